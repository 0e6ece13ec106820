"""A trial of the largest steps: what they take besides weights and K/V, measured rather than guessed."""

import torch
from torch import Tensor

from nanofn.config import Limits
from nanofn.device.decode_graphs import bucket_sizes, make_bucket
from nanofn.device.precompile import chunks_of
from nanofn.device.prefill_graphs import PrefillGraphs, capture_sizes, chunk_array, num_columns
from nanofn.device.sampler import sample_entries
from nanofn.device.staging import allocate_staging
from nanofn.device.tables import allocate_tables
from nanofn.errors import ConfigError
from nanofn.model.kv_cache import allocate_kv_cache
from nanofn.model.params import ModelParams
from nanofn.model.prefill import Layer
from nanofn.model.rotations import cos_sin_table
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
        captures: Whether decode steps will be captured.

    Returns:
        Bytes that steps, tables and graphs take at most.

    Raises:
        ConfigError: Not even that fits.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free_before = torch.cuda.mem_get_info(device)[0]
    torch.cuda.reset_peak_memory_stats(device)
    reserved_before = torch.cuda.memory_reserved(device)
    try:
        with torch.cuda.stream(torch.cuda.Stream(device)):  # none can be captured on the default stream
            _run(params, limits, device, depth, layer, captures=captures)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a step of {limits.max_num_batched_tokens} tokens and one of {limits.max_num_seqs} sequences do not fit beside the "
            f"weights: {free_before / 2**30:.2f} GiB were free; lower max_num_batched_tokens, max_num_seqs or max_model_len"
        ) from error
    torch.cuda.synchronize(device)
    reserved = torch.cuda.max_memory_reserved(device) - reserved_before
    outside = max(
        0, free_before - torch.cuda.mem_get_info(device)[0] - (torch.cuda.memory_reserved(device) - reserved_before)
    )
    torch.cuda.empty_cache()
    return reserved + outside * (len(bucket_sizes(limits.max_num_seqs)) if captures else 1)


def _run(
    params: ModelParams, limits: Limits, device: torch.device, depth: int, layer: Layer, *, captures: bool
) -> None:
    tables, staging = allocate_tables(limits, device), allocate_staging(limits.max_num_seqs, depth, device)
    cos_sin = cos_sin_table(params.rope, limits.max_model_len)
    cache = allocate_kv_cache(params.config, 2, limits.block_size, dtype=params.embedding.dtype, device=device)
    bucket = make_bucket(params, staging, tables, cache, cos_sin, limits.max_num_seqs, None, captures=captures)
    kept = (
        kept_results(params, limits, captures=captures),
        [
            make_bucket(params, staging, tables, cache, cos_sin, size, None, captures=False)
            for size in bucket_sizes(limits.max_num_seqs)[:-1]
        ],
    )
    bucket.forward()
    bucket.sample(True)
    prefills = PrefillGraphs(params, tables, cache, cos_sin, limits, layer, bucket.pool)
    # The largest twice: it is captured at its second use. Many short chunks are another shape of kernel.
    largest = chunks_of(largest_counts(limits))
    many = chunks_of([2] * min(limits.max_num_seqs, limits.max_num_batched_tokens // 2 or 1))
    for batch in (largest, largest, many):
        chunks = staging.upload_chunks(staging.next_slot(), chunk_array(batch, limits.max_num_seqs))
        prefills.run(chunks, batch.num_tokens)
    hidden = params.embedding.new_zeros((limits.max_num_seqs, params.config.hidden_size))
    logits = linear(hidden, params.head, None, params.final_norm, eps=params.config.rms_norm_eps)
    sample_entries(logits, staging.entries_of(limits.max_num_seqs), tables, staging.device_output, filters=True)
    del kept


def kept_results(params: ModelParams, limits: Limits, *, captures: bool) -> list[Tensor]:
    """Allocate what every size of step keeps to itself as long as the engine lives, besides the largest decode step.

    The logits of all other buckets, and the hidden states of all captured prefills: 0.7 GB at Qwen3-0.6B's sizes and 256
    sequences.
    """
    rows, tokens = sum(bucket_sizes(limits.max_num_seqs)[:-1]), sum(capture_sizes(limits.max_num_batched_tokens))
    columns = {num_columns(1, limits.max_num_seqs), num_columns(limits.max_num_seqs, limits.max_num_seqs)}
    vocab_size, hidden_size = params.head.shape
    logits = params.head.new_empty((rows, vocab_size))
    return [logits, *[params.head.new_empty((tokens, hidden_size)) for _ in columns if captures]]


def largest_counts(limits: Limits) -> list[int]:
    """Fill the token budget with chunks as long as sequences can be."""
    longest = limits.max_model_len - 1
    num_tokens = min(limits.max_num_batched_tokens, longest * limits.max_num_seqs)
    return [min(longest, num_tokens - first) for first in range(0, num_tokens, longest)]
