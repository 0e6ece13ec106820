"""What decode attention has to do this step, as a compact list that lives on the device."""

import math

import torch
from torch import Tensor

from nanofn_kernels._dispatch import cdiv, check_tensor, define_op, jit, next_power_of_2, tl
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.reference.work_list import (
    ITEM_FIELDS,
    NO_SPLIT,
    SPLIT_UNIT,
    max_splits,
    num_splits,
    split_length,
    work_list as _reference,
)

__all__ = [
    "ITEM_FIELDS",
    "NO_SPLIT",
    "SPLIT_UNIT",
    "max_item_blocks",
    "max_items",
    "max_splits",
    "num_splits",
    "split_length",
    "work_list",
]

MAX_ENTRIES = 4096
"""The largest batch: every program looks at all lengths at once."""

BLOCKS_A_PROGRAM = 32
"""Block ids of an item that one program copies."""


def _lengths_at_once(num_entries: int) -> int:
    """A power of two that holds all lengths: one for what a warp sums up, one for a program's, and what more needs.

    Fewer sizes than there are powers of two are fewer kernels to compile at an engine's start.
    """
    return 32 if num_entries <= 32 else max(128, next_power_of_2(num_entries))


def max_items(num_seqs: int, max_seq_len: int, split_size: int, num_kv_heads: int) -> int:
    """The most items that a batch can need.

    Args:
        num_seqs: Entries, padding included.
        max_seq_len: The longest sequence, in tokens.
        split_size: As for `work_list`.
        num_kv_heads: As for `work_list`.

    Returns:
        The first size that `items` and `blocks` must have.
    """
    return num_seqs * max(1, min(max_splits(num_kv_heads), cdiv(max_seq_len, split_size)))


def max_item_blocks(max_seq_len: int, split_size: int, block_size: int, num_kv_heads: int) -> int:
    """The most blocks that an item can touch: the second size that `blocks` must have."""
    tokens = split_length(max_seq_len, split_size, num_kv_heads)
    if tokens >= max_seq_len:
        return cdiv(max_seq_len, block_size)
    # A split begins at a multiple of 64 tokens, so as late in its block as this.
    return cdiv(tokens + block_size - math.gcd(SPLIT_UNIT, block_size), block_size)


@jit
def _split_length(length, split_size, UNIT: tl.constexpr, SPLITS: tl.constexpr):
    """`reference.work_list.split_length`, on the device."""
    return tl.maximum(split_size, UNIT * ((length + (UNIT * SPLITS - 1)) // (UNIT * SPLITS)))


@jit
def _work_list_kernel(
    table_ptr, rows_ptr, seq_lens_ptr, items_ptr, blocks_ptr, count_ptr, split_size, num_entries, capacity, table_stride, blocks_stride,
    ENTRIES: tl.constexpr, UNIT: tl.constexpr, SPLITS: tl.constexpr, BLOCK_SIZE: tl.constexpr, IDS: tl.constexpr,
):  # fmt: skip
    """items = [(entry, start, stop, slot, first_slot, num_splits)], blocks = their block ids, count = their number.

    Program (e, c) writes entry e's items, if c is 0, and the c-th IDS block ids of each of them. Whole splits come first, in entry
    order, then the remainders, longest first.
    Traffic: 4 * (num_entries + ids) read and 32 * count + 4 * ids written, in bytes; the lengths stay in L2.
    """
    mine = tl.program_id(0)
    piece = tl.program_id(1)
    my_length = tl.load(seq_lens_ptr + mine)
    row = tl.load(rows_ptr + mine)
    my_size = _split_length(my_length, split_size, UNIT, SPLITS)
    # The first piece also lists the items; the others only have ids to copy, if so many.
    if (piece == 0) | (piece * IDS * BLOCK_SIZE < tl.minimum(my_size + BLOCK_SIZE, my_length)):
        entry = tl.arange(0, ENTRIES)
        known = entry < num_entries
        length = tl.load(seq_lens_ptr + entry, mask=known, other=0)
        size = _split_length(length, split_size, UNIT, SPLITS)
        whole = length // size
        rest = length - whole * size
        has_rest = known & ((rest > 0) | (length == 0))
        pieces = tl.where(known, whole + has_rest.to(tl.int32), 0)
        before = entry < mine
        first_slot = tl.sum(tl.where(before, pieces, 0))
        first_place = tl.sum(tl.where(before, whole, 0))
        num_whole = tl.sum(tl.where(known, whole, 0))
        my_whole = my_length // my_size
        my_rest = my_length - my_whole * my_size
        my_count = my_whole + ((my_rest > 0) | (my_length == 0)).to(tl.int32)
        rank = tl.sum((has_rest & ((rest > my_rest) | ((rest == my_rest) & before))).to(tl.int32))

        split = tl.arange(0, SPLITS)
        place = tl.where(split == my_whole, num_whole + rank, first_place + split)
        start = split * my_size
        stop = tl.minimum(start + my_size, my_length)
        keep = (split < my_count) & (place < capacity)
        if piece == 0:
            tl.store(count_ptr, tl.sum(pieces), mask=mine == 0)
            item = items_ptr + place * 8
            tl.store(item, mine, mask=keep)
            tl.store(item + 1, start, mask=keep)
            tl.store(item + 2, stop, mask=keep)
            tl.store(item + 3, first_slot + split, mask=keep)
            tl.store(item + 4, first_slot, mask=keep)
            tl.store(item + 5, my_count, mask=keep)
        index = piece * IDS + tl.arange(0, IDS)[None, :]
        block = start[:, None] // BLOCK_SIZE + index
        wanted = keep[:, None] & (block * BLOCK_SIZE < stop[:, None]) & (index < blocks_stride)
        ids = tl.load(table_ptr + row.to(tl.int64) * table_stride + block, mask=wanted, other=0)
        tl.store(blocks_ptr + place[:, None].to(tl.int64) * blocks_stride + index, ids, mask=wanted)


def _check(
    block_table: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    split_size: int,
    block_size: int,
    num_kv_heads: int,
    items: Tensor,
    blocks: Tensor,
    count: Tensor,
) -> None:
    device = rows.device
    check_tensor("rows", rows, (None,), torch.int32, device)
    entries = rows.shape[0]
    check_tensor("block_table", block_table, (None, None), torch.int32, device)
    check_tensor("seq_lens", seq_lens, (entries,), torch.int32, device)
    check_tensor("items", items, (None, len(ITEM_FIELDS)), torch.int32, device)
    check_tensor("blocks", blocks, (None, None), torch.int32, device)
    check_tensor("count", count, (1,), torch.int32, device)
    if not 0 < entries <= MAX_ENTRIES:
        raise ShapeError("rows", f"1 to {MAX_ENTRIES} entries", entries)
    if split_size <= 0 or split_size % SPLIT_UNIT:
        raise ShapeError("split_size", f"a positive multiple of {SPLIT_UNIT}", split_size)
    max_seq_len = block_table.shape[1] * block_size
    check_work(entries, max_seq_len, split_size, block_size, num_kv_heads, items, blocks)


def check_work(
    entries: int, max_seq_len: int, split_size: int, block_size: int, num_kv_heads: int, items: Tensor, blocks: Tensor
) -> None:
    """Raise unless items and blocks hold what a batch of full block-table rows would need."""
    needed = max_items(entries, max_seq_len, split_size, num_kv_heads)
    columns = max_item_blocks(max_seq_len, split_size, block_size, num_kv_heads)
    if items.shape[0] < needed or not items.is_contiguous():
        raise ShapeError(
            "items", f"at least {needed} items for full rows of the block table, contiguous", list(items.shape)
        )
    if blocks.shape[0] < needed or blocks.shape[1] < columns or not blocks.is_contiguous():
        raise ShapeError(
            "blocks", f"at least [{needed}, {columns}] for full rows of the block table, contiguous", list(blocks.shape)
        )


@define_op(
    "work_list",
    mutates=("items", "blocks", "count"),
    reference=_reference,
    fake=lambda *_, **__: None,
    check=_check,
)
def work_list(
    block_table: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    split_size: int,
    block_size: int,
    num_kv_heads: int,
    items: Tensor,
    blocks: Tensor,
    count: Tensor,
) -> None:
    """Cut every entry's tokens into splits and list them, long ones first. Once a step, for all layers.

    An entry of n tokens becomes ceil(n / s) items, and an empty one becomes one item without tokens, whose
    output is zeros. s is `split_size`, or ceil(n / max_splits) rounded up to 64 tokens where that is more, so how
    a sequence is cut depends on its own length alone.

    Args:
        block_table: [num_rows, max_blocks_per_seq] int32. Block ids; what a length does not reach is not looked at.
        rows: [num_seqs] int32. Row of the block table, -1 for padding. At most 4,096 of them; a row may occur more than once.
        seq_lens: [num_seqs] int32. Tokens to attend to, the newest included; 0 for padding.
        split_size: Tokens a split, a multiple of 64. `NO_SPLIT` keeps every sequence whole.
        block_size: Tokens a block.
        num_kv_heads: K/V heads, which decide `max_splits`: 16 for 8 heads or more, 64 for 1 or 2.
        items: int32, at least `max_items(...)` by 8, contiguous. See `ITEM_FIELDS`: `start` and `stop` are token
            positions, `slot` is the item's place in scratch, where an entry's slots are adjacent.
        blocks: int32, at least `max_items(...)` by `max_item_blocks(...)`, contiguous. Each item's block ids, beside
            it: so attention reads them without waiting for the item.
        count: [1] int32. The number of items.

    Returns:
        Nothing.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        items and blocks, up to the count, and count.

    Accuracy:
        Exact.

    Source:
        Ours. Splitting over keys as in Dao 2023, "Flash-Decoding for long-context inference"; the longest
        first as in Graham 1969, "Bounds on multiprocessing timing anomalies".
    """
    entries = rows.shape[0]
    _work_list_kernel[(entries, cdiv(blocks.shape[1], BLOCKS_A_PROGRAM))](
        block_table, rows, seq_lens, items, blocks, count, min(split_size, NO_SPLIT), entries, items.shape[0], block_table.stride(0),
        blocks.shape[1], ENTRIES=_lengths_at_once(entries), UNIT=SPLIT_UNIT, SPLITS=max_splits(num_kv_heads), BLOCK_SIZE=block_size,
        IDS=BLOCKS_A_PROGRAM, num_warps=4,
    )  # fmt: skip
