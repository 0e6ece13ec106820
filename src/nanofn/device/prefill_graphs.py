"""Prefill and mixed steps by number of tokens: small ones, and those that fill the budget, are captured at their second use.

Launched one by one, the kernels of a small step keep the host busy for many times what they keep the GPU busy.
"""

import logging
from functools import partial
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor

from nanofn.batch.build import StepBatch
from nanofn.config import Limits
from nanofn.device.capture import capture
from nanofn.device.tables import DeviceTables
from nanofn.model.kv_cache import KVCache
from nanofn.model.params import ModelParams
from nanofn.model.prefill import Layer, prefill

logger = logging.getLogger("nanofn")

TOKEN_UNIT = 16
"""Tokens are padded to a multiple of this: products stay aligned, and a compiled function sees no size of 1."""

FEW_COLUMNS = 32
"""Chunks are padded to one less than this or than the most there can be: two shapes, not one for each number."""

SIZES = (*range(32, 257, 32), *range(320, 513, 64), *range(640, 1025, 128), *range(1280, 2049, 256))
"""Numbers of tokens that small steps are padded to."""


def num_columns(num_chunks: int, max_num_seqs: int) -> int:
    """Choose the columns of an array of chunks, whose rows stay 16-byte aligned; one column more than chunks is needed."""
    return FEW_COLUMNS if num_chunks < FEW_COLUMNS else (max_num_seqs // 4 + 1) * 4


def capture_sizes(most: int) -> list[int]:
    """List the numbers of tokens that captured steps are padded to, where a step has at most so many."""
    return [size for size in sorted({*SIZES, most}) if size <= most and size % TOKEN_UNIT == 0]


def capture_size(num_tokens: int, most: int) -> int | None:
    """Choose what a step is padded to; None where it is not captured, being neither small nor as large as can be."""
    if SIZES[-1] < num_tokens < most:
        return None
    return next((size for size in capture_sizes(most) if size >= num_tokens), None)


def chunk_array(batch: StepBatch, max_num_seqs: int) -> NDArray[np.int32]:
    """Spell a step's chunks out, padded: see `nanofn_kernels.entries.CHUNK_FIELDS`."""
    rows, first_positions, counts = batch.entries
    chunks = np.full((3, num_columns(len(rows), max_num_seqs)), -1, dtype=np.int32)
    chunks[0, : len(rows)] = rows
    chunks[1] = batch.num_tokens
    chunks[1, : len(rows)] = np.cumsum(counts) - counts
    chunks[2] = 0
    chunks[2, : len(rows)] = first_positions + counts
    return chunks


@frozen(eq=False)
class PrefillGraphs:
    """The steps of one engine.

    Attributes:
        params: The weights.
        tables: The rows' tables.
        kv_cache: The cache.
        cos_sin: [max_position, head_dim] fp32.
        limits: The bounds.
        layer: `prefill_layer`, or what a compiler made of it.
        pool: The graphs' memory pool; None where nothing is captured.
        captured: (tokens, columns) to a graph and where it leaves its result, both None if there was no room; to None after a
            first use.
    """

    params: ModelParams
    tables: DeviceTables
    kv_cache: KVCache
    cos_sin: Tensor
    limits: Limits
    layer: Layer
    pool: Any
    captured: dict[tuple[int, int], Any] = field(factory=dict)

    def run(self, chunks: Tensor, num_tokens: int) -> Tensor:
        """Compute a step.

        Args:
            chunks: [3, num_columns] int32, the same memory for the same number of columns.
            num_tokens: Without padding.

        Returns:
            [at least num_tokens, hidden_size] the weights' dtype. A captured step's result lasts until the next step.

        Mutates:
            The K/V cache: the step's slots.
        """
        size = None if self.pool is None else capture_size(num_tokens, self.limits.max_num_batched_tokens)
        if size is None:
            return self._prefill(chunks, -(-num_tokens // TOKEN_UNIT) * TOKEN_UNIT)
        key = size, chunks.shape[1]
        if key not in self.captured:
            self.captured[key] = None
            return self._prefill(chunks, size)
        if self.captured[key] is None:
            self.captured[key] = self._capture(chunks, size)
        graph, hidden = self.captured[key]
        if graph is None:
            return self._prefill(chunks, size)
        graph.replay()
        found: Tensor = hidden
        return found

    def _capture(self, chunks: Tensor, size: int) -> tuple["torch.cuda.CUDAGraph | None", Tensor | None]:
        """Capture a step; without room for it the step is launched as it is from now on, as slow as before."""
        try:
            return capture(partial(self._prefill, chunks, size), self.pool)
        except torch.OutOfMemoryError as error:
            logger.warning("no memory to capture prefill steps of %d tokens, they stay slow: %s", size, error)
            return None, None

    def _prefill(self, chunks: Tensor, num_tokens: int) -> Tensor:
        tables = self.tables
        return prefill(
            self.params, chunks, num_tokens, tables.tokens, tables.block_table, self.kv_cache, self.cos_sin, self.layer
        )
