"""A trial of the largest steps: what they take besides weights and K/V, measured rather than guessed."""

import gc
from typing import Any

import torch

from nanofn.batch.build import StepBatch
from nanofn.batch.device_entries import chunk_array
from nanofn.config import Limits
from nanofn.device.decode_graphs import bucket_sizes, make_bucket
from nanofn.device.precompile import chunks_of
from nanofn.device.prefill_graphs import PrefillGraphs, capture_shapes
from nanofn.device.sampler import sample_entries
from nanofn.device.second_use import SecondUse
from nanofn.device.step_memory import StepMemory, allocate_step_memory
from nanofn.errors import ConfigError
from nanofn.model.params import ModelParams
from nanofn.model.prefill import Layer
from nanofn_kernels.linear import linear


@torch.inference_mode()
def working_bytes(
    params: ModelParams, limits: Limits, device: torch.device, *, depth: int, layer: Layer, captures: bool
) -> int:
    """Run the largest prefill and the largest decode step on a GPU, with a cache of two blocks that all tokens share.

    Args:
        params: The weights.
        limits: The bounds. The number of blocks does not count.
        device: Where the weights are.
        depth: Most steps under way.
        layer: `prefill_layer`, or what a compiler made of it.
        captures: Whether steps will be captured.

    Returns:
        Bytes that steps, tables and graphs take at most.

    Raises:
        ConfigError: Not even that fits.
    """
    gc.collect()  # an engine that nobody holds any more may hold memory
    torch.cuda.current_stream(device).synchronize()  # not the device: another engine may capture in its thread
    torch.cuda.empty_cache()
    free_before, reserved_before = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)

    def outside() -> int:
        """Bytes gone that torch's allocator knows nothing of: graphs, kernels, and what others took meanwhile."""
        torch.cuda.current_stream(device).synchronize()
        return free_before - torch.cuda.mem_get_info(device)[0] - (torch.cuda.memory_reserved(device) - reserved_before)

    sizes = bucket_sizes(limits)
    try:
        with torch.cuda.stream(torch.cuda.Stream(device)):  # none can be captured on the default stream
            memory = allocate_step_memory(params, limits, device, depth=depth, num_blocks=2)
            pool = torch.cuda.graph_pool_handle() if captures else None
            held = [kept_results(params, memory, limits, pool), _run(params, memory, limits, layer, pool)]
            outside_at_first = outside()
            # A smaller step shows what one graph more takes; the first one brought kernels and libraries along.
            held.append(make_bucket(params, memory, sizes[0], pool))
            a_graph = max(0, outside() - outside_at_first)
            del held
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a step of {limits.max_num_batched_tokens} tokens and one of {limits.max_num_seqs} sequences do not fit beside the "
            f"weights: {free_before / 2**30:.2f} GiB were free; lower max_num_batched_tokens, max_num_seqs or max_model_len"
        ) from error
    reserved = torch.cuda.max_memory_reserved(device) - reserved_before
    num_graphs = len(sizes) + len(capture_shapes(limits)) if captures else 0
    del memory
    torch.cuda.empty_cache()
    return reserved + max(0, outside_at_first) + num_graphs * a_graph


def _run(params: ModelParams, memory: StepMemory, limits: Limits, layer: Layer, pool: Any) -> object:
    """Run the largest steps, and return what must be held for as long as their graphs shall exist."""
    tables, staging, size = memory.tables, memory.staging, bucket_sizes(limits)[-1]
    prefills = PrefillGraphs(params, memory, limits, layer, SecondUse("prefill steps", pool))

    def run(batch: StepBatch) -> None:
        chunks = staging.upload_chunks(staging.next_slot(), chunk_array(batch, limits.max_num_seqs))
        prefills.run(chunks, batch.num_tokens)

    largest = chunks_of(largest_counts(limits))
    # First, because what it compiles in this thread takes longest, and kernels may still be compiled in others.
    run(largest)
    bucket = make_bucket(params, memory, size, pool)
    bucket.forward()
    bucket.sample(True)
    # Again: it is captured at its second use. Many short chunks are another shape of kernel.
    run(largest)
    run(chunks_of([2] * min(limits.max_num_seqs, limits.max_num_batched_tokens // 2 or 1)))
    hidden = params.embedding.new_zeros((size, params.config.hidden_size))
    logits = linear(hidden, params.head, None, params.final_norm, eps=params.config.rms_norm_eps)
    sample_entries(logits, staging.entries_of(size), tables, staging.device_output, filters=True)
    return bucket, prefills


def kept_results(params: ModelParams, memory: StepMemory, limits: Limits, pool: Any) -> object:
    """Allocate what every size of step keeps to itself as long as the engine lives, besides the largest decode step.

    Workspaces and logits of all other buckets, and the hidden states of all captured prefills: 0.7 GB at Qwen3-0.6B's sizes
    and 256 sequences.
    """
    sizes, (vocab_size, hidden_size) = bucket_sizes(limits)[:-1], params.head.shape
    return [
        [make_bucket(params, memory, size, pool=None) for size in sizes],
        params.head.new_empty((sum(sizes), vocab_size)),
        [params.head.new_empty((size, hidden_size)) for size, _ in capture_shapes(limits) if pool is not None],
    ]


def largest_counts(limits: Limits) -> list[int]:
    """Fill the token budget with chunks as long as sequences can be."""
    longest = limits.max_model_len - 1
    num_tokens = min(limits.max_num_batched_tokens, longest * limits.max_num_seqs)
    return [min(longest, num_tokens - first) for first in range(0, num_tokens, longest)]
