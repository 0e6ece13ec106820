"""The kernels that steps will need, compiled in threads before the first step asks for one."""

import os
from collections.abc import Sequence

import numpy as np
import torch
from attrs import evolve

from nanofn.batch.build import StepBatch
from nanofn.batch.device_entries import chunk_array
from nanofn.batch.masks import NO_MASKS, Masks, num_words
from nanofn.config import Limits
from nanofn.device.decode_graphs import bucket_sizes, make_bucket
from nanofn.device.prefill_graphs import PrefillGraphs
from nanofn.device.row_params import RowParams
from nanofn.device.sampler import sample_entries
from nanofn.device.second_use import SecondUse
from nanofn.device.step_memory import allocate_step_memory
from nanofn.model.params import ModelParams
from nanofn.model.prefill import prefill_layer
from nanofn.request import Row
from nanofn.sampling.logprobs import token_logprobs
from nanofn_kernels._dispatch import only_compiling

NUM_THREADS = min(8, os.cpu_count() or 1)
"""A tenth of a compilation holds Python's lock: more threads would add little, and be in the way of the one that goes on."""


@torch.inference_mode()
def request_kernels(params: ModelParams, limits: Limits, device: torch.device) -> None:
    """Go through the steps of every shape with one layer, launching nothing: each kernel that is new gets compiled.

    Inside `compiled_in_background` this returns at once, and compilations go on in threads. What is compiled lies in Triton's
    cache on disk, so that the next process finds it there.

    Args:
        params: The weights; shapes, types and alignment count.
        limits: The bounds. The number of blocks does not count.
        device: Where the weights are.
    """
    first = evolve(params, layers=params.layers[:1], config=evolve(params.config, num_layers=1))
    memory = allocate_step_memory(first, limits, device, depth=0, num_blocks=2)
    tables, staging = memory.tables, memory.staging
    # In the order in which a trial asks for them.
    with only_compiling():
        prefills = PrefillGraphs(first, memory, limits, prefill_layer, SecondUse("prefill steps", None))
        for batch in (chunks_of([2]), chunks_of([2] * limits.max_num_seqs)):
            chunks = staging.upload_chunks(staging.next_slot(), chunk_array(batch, limits.max_num_seqs))
            prefills.run(chunks, batch.num_tokens)
        for size in reversed(telling_sizes(limits)):
            bucket = make_bucket(first, memory, size, pool=None)
            bucket.forward()
            for filters in (True, False):
                bucket.sample(filters)
        # What adjusts logits leaves fp32.
        entries = staging.entries_of(limits.max_num_seqs)
        vocab_size, rows = params.head.shape[0], RowParams(tables, params.head.shape[0])
        logits = torch.zeros((limits.max_num_seqs, vocab_size), dtype=params.head.dtype, device=device)
        mask_of = np.full(limits.max_num_seqs, -1, dtype=np.int32)
        mask = Masks((Row(0),), np.zeros((1, num_words(vocab_size)), dtype=np.uint32))
        rows.adjusted(logits, entries[0], entries[1] + 1, mask, mask_of)
        adjusted = rows.adjusted(logits, entries[0], entries[1] + 1, NO_MASKS, mask_of)
        for filters in (True, False):
            sample_entries(adjusted, entries, tables, staging.device_output, filters)
        token_logprobs(logits, torch.zeros(limits.max_num_seqs, dtype=torch.int64, device=device), 1)


def telling_sizes(limits: Limits) -> list[int]:
    """List the bucket sizes that tell which kernels all of them need: launches change at powers of two, if at all.

    A kernel that none of these needs is compiled when its bucket is captured, which takes longer.
    """
    sizes = bucket_sizes(limits)
    return [size for size in sizes if size & (size - 1) == 0 or size == sizes[-1]]


def chunks_of(counts: Sequence[int]) -> StepBatch:
    """A step of chunks of so many tokens, all of the first row and from its first position on."""
    zeros = [0] * len(counts)
    return StepBatch(
        entries=np.array([zeros, zeros, counts], dtype=np.int32),
        sampling=np.arange(len(counts), dtype=np.int32),
        new_blocks=np.zeros((3, 0), dtype=np.int32),
        num_tokens=sum(counts),
        max_query_len=max(counts),
        max_seq_len=max(counts),
    )
