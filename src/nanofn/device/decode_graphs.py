"""Decode steps by number of entries: captured once as graphs, replayed with whatever the entries say."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from nanofn.config import Limits, blocks_for
from nanofn.device.capture import Captured, capture
from nanofn.device.sampler import sample_entries
from nanofn.device.step_memory import StepMemory
from nanofn.model.decode import allocate_workspace, decode
from nanofn.model.params import ModelParams

STEP = 16
"""Between 16 and 256 entries a bucket is at most this much too large."""


def bucket_sizes(limits: Limits) -> tuple[int, ...]:
    """List the numbers of entries that steps are padded to, the largest last."""
    most = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    sizes = [1, 2, 4, 8, *range(STEP, 257, STEP), *range(320, 1025, 64), *range(1280, most, 256)]
    return (*[size for size in sizes if size < most], most)


@frozen(eq=False)
class Bucket:
    """One number of entries.

    Attributes:
        forward: Runs the model on the staged entries; returns logits [size, vocab_size], the same memory each time.
        sample: Samples from them; takes whether any row has a filter.
    """

    forward: Callable[[], Tensor]
    sample: Callable[[bool], None]


def make_bucket(params: ModelParams, memory: StepMemory, size: int, pool: Any) -> Bucket:
    """Make a bucket.

    Args:
        params: The weights.
        memory: What all steps share.
        size: Entries.
        pool: The graphs' memory pool; None captures nothing.
    """
    config, tables, kv_cache, staging = params.config, memory.tables, memory.kv_cache, memory.staging
    entries = staging.entries_of(size)
    workspace = allocate_workspace(
        size,
        blocks_for(tables.tokens.shape[1], kv_cache.block_size) * kv_cache.block_size,
        kv_cache.block_size,
        config.num_heads,
        config.head_dim,
        kv_cache.k[0].shape[2],
        entries.device,
    )

    logits: list[Tensor] = []

    def forward() -> Tensor:
        logits[:] = [decode(params, entries, tables.tokens, tables.block_table, kv_cache, memory.cos_sin, workspace)]
        return logits[0]

    def sample(filters: bool) -> None:
        sample_entries(logits[0], entries, tables, staging.device_output, filters)

    if pool is None:
        return Bucket(forward, sample)
    entries.fill_(-1)
    forwards = _capture(forward, pool)
    samplers = {filters: _capture(partial(sample, filters), pool) for filters in (False, True)}
    return Bucket(forwards.replay, lambda filters: samplers[filters].replay())


def _capture(work: Callable[[], Any], pool: Any) -> Captured[Any]:
    """Run once, so that every kernel is compiled and every library awake, then capture."""
    work()
    torch.cuda.current_stream().synchronize()
    return capture(work, pool)
