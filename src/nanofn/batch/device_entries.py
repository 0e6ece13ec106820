"""Device entries: a step's entries as the GPU's kernels take them."""

import numpy as np
from numpy.typing import NDArray

from nanofn.batch.build import StepBatch

FEW_COLUMNS = 32
"""Chunks are padded to one less than this or than the most there can be: two shapes, not one for each number."""


def decode_entries(batch: StepBatch, num_rows: int, *, with_blocks: bool) -> NDArray[np.int32]:
    """Spell a decode step's entries out, with the at most one block that each of them gets.

    Args:
        batch: Every entry is one token.
        num_rows: Device rows that there are.
        with_blocks: Whether the step's new blocks travel with its entries.

    Returns:
        [5, num_entries] int32. See `nanofn_kernels.entries`.
    """
    count = batch.entries.shape[1]
    entries = np.full((5, count), -1, dtype=np.int32)
    entries[:2], entries[4] = batch.entries[:2], 0
    entries[4, batch.sampling] = 1
    if with_blocks and batch.new_blocks.shape[1]:
        place = np.empty(num_rows, dtype=np.int64)
        place[batch.entries[0]] = np.arange(count)
        entries[2:4, place[batch.new_blocks[0]]] = batch.new_blocks[1:]
    return entries


def sampling_entries(batch: StepBatch) -> NDArray[np.int32]:
    """Spell out the entries that sample, each as its last token.

    Returns:
        [5, num_samples] int32. See `nanofn_kernels.entries`.
    """
    entries = np.full((5, len(batch.sampling)), -1, dtype=np.int32)
    entries[0], entries[1], entries[4] = batch.sampled_rows, batch.sampled_positions - 1, 1
    return entries


def num_columns(num_chunks: int, max_num_seqs: int) -> int:
    """Choose the columns of an array of chunks, whose rows stay 16-byte aligned; one column more than chunks is needed."""
    return FEW_COLUMNS if num_chunks < FEW_COLUMNS else (max_num_seqs // 4 + 1) * 4


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
