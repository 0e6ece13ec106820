"""Decode steps by number of entries: captured once as graphs, replayed with whatever the entries say."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from nanofn.config import blocks_for
from nanofn.device.capture import capture
from nanofn.device.sampler import sample_entries
from nanofn.device.staging import Staging
from nanofn.device.tables import DeviceTables
from nanofn.model.decode import allocate_workspace, decode
from nanofn.model.kv_cache import KVCache
from nanofn.model.params import ModelParams

STEP = 16
"""Between 16 and 256 entries a bucket is at most this much too large."""


def bucket_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """List the numbers of entries that steps are padded to, the largest last."""
    sizes = [1, 2, 4, 8, *range(STEP, 257, STEP), *range(320, 1025, 64), *range(1280, max_num_seqs, 256)]
    return (*[size for size in sizes if size < max_num_seqs], max_num_seqs)


@frozen(eq=False)
class Bucket:
    """One number of entries.

    Attributes:
        forward: Runs the model on the staged entries; returns logits [size, vocab_size], the same memory each time.
        sample: Samples from them; takes whether any row has a filter.
        pool: The graphs' memory pool; None where nothing is captured.
    """

    forward: Callable[[], Tensor]
    sample: Callable[[bool], None]
    pool: Any


def make_bucket(
    params: ModelParams,
    staging: Staging,
    tables: DeviceTables,
    kv_cache: KVCache,
    cos_sin: Tensor,
    size: int,
    largest: Bucket | None,
    *,
    captures: bool,
) -> Bucket:
    """Make a bucket.

    Args:
        params: The weights.
        staging: Entries and output.
        tables: The rows' tables.
        kv_cache: The cache.
        cos_sin: [max_position, head_dim] fp32.
        size: Entries.
        largest: The bucket whose memory pool is shared, if it exists.
        captures: Whether to capture graphs.
    """
    config = params.config
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
        logits[:] = [decode(params, entries, tables.tokens, tables.block_table, kv_cache, cos_sin, workspace)]
        return logits[0]

    def sample(filters: bool) -> None:
        sample_entries(logits[0], entries, tables, staging.device_output, filters)

    if not captures:
        return Bucket(forward, sample, None)
    entries.fill_(-1)
    pool = largest.pool if largest else torch.cuda.graph_pool_handle()
    forward_graph = _capture(forward, pool)
    samplers = {filters: _capture(partial(sample, filters), pool) for filters in (False, True)}

    def replay() -> Tensor:
        forward_graph.replay()
        return logits[0]

    return Bucket(replay, lambda filters: samplers[filters].replay(), pool)


def _capture(work: Callable[[], object], pool: Any) -> "torch.cuda.CUDAGraph":
    """Run once, so that every kernel is compiled and every library awake, then capture."""
    work()
    torch.cuda.current_stream().synchronize()
    return capture(work, pool)[0]
