"""What decode attention has to do this step, as a compact list that lives on the device."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import cdiv, check_tensor, define_op, jit, next_power_of_2, tl
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.reference.work_list import ITEM_FIELDS, MAX_SPLITS, NO_SPLIT, SPLIT_UNIT, num_splits
from nanofn_kernels.reference.work_list import work_list as _reference

__all__ = ["ITEM_FIELDS", "MAX_SPLITS", "NO_SPLIT", "SPLIT_UNIT", "max_items", "num_splits", "work_list"]

MAX_ENTRIES = 4096
"""The largest batch: every program looks at all lengths at once."""


def max_items(num_seqs: int, max_seq_len: int, split_size: int) -> int:
    """The most items that a batch can need.

    Args:
        num_seqs: Entries, padding included.
        max_seq_len: The longest sequence, in tokens.
        split_size: As for `work_list`.

    Returns:
        The first size that `items` must have.
    """
    return num_seqs * max(1, min(MAX_SPLITS, cdiv(max_seq_len, split_size)))


@jit
def _work_list_kernel(
    rows_ptr,
    seq_lens_ptr,
    items_ptr,
    count_ptr,
    split_size,
    num_entries,
    capacity,
    ENTRIES: tl.constexpr,
    UNIT: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """items = [(entry, row, start, stop, slot, first_slot, num_splits, 0)], count = their number.

    Program e writes entry e's items: whole splits first, in entry order, then the remainders, longest first.
    Traffic: 4 * num_entries read and 32 * count written, in bytes; the lengths stay in L2.
    """
    mine = tl.program_id(0)
    entry = tl.arange(0, ENTRIES)
    known = entry < num_entries
    length = tl.load(seq_lens_ptr + entry, mask=known, other=0)
    size = tl.maximum(split_size, UNIT * ((length + (UNIT * SPLITS - 1)) // (UNIT * SPLITS)))
    whole = length // size
    rest = length - whole * size
    has_rest = known & ((rest > 0) | (length == 0))
    pieces = tl.where(known, whole + has_rest.to(tl.int32), 0)

    before = entry < mine
    first_slot = tl.sum(tl.where(before, pieces, 0))
    first_place = tl.sum(tl.where(before, whole, 0))
    num_whole = tl.sum(tl.where(known, whole, 0))
    tl.store(count_ptr, tl.sum(pieces), mask=mine == 0)

    row = tl.load(rows_ptr + mine)
    my_length = tl.load(seq_lens_ptr + mine)
    my_size = tl.maximum(split_size, UNIT * ((my_length + (UNIT * SPLITS - 1)) // (UNIT * SPLITS)))
    my_whole = my_length // my_size
    my_rest = my_length - my_whole * my_size
    mine_has_rest = (my_rest > 0) | (my_length == 0)
    my_count = my_whole + mine_has_rest.to(tl.int32)
    rank = tl.sum((has_rest & ((rest > my_rest) | ((rest == my_rest) & before))).to(tl.int32))

    # One more than MAX_SPLITS lanes: the remainder rides along as split number `my_whole`.
    split = tl.arange(0, 2 * SPLITS)
    is_rest = split == my_whole
    place = tl.where(is_rest, num_whole + rank, first_place + split)
    start = split * my_size
    item = items_ptr + place * 8
    keep = (split < my_count) & (place < capacity)
    tl.store(item, mine, mask=keep)
    tl.store(item + 1, row, mask=keep)
    tl.store(item + 2, start, mask=keep)
    tl.store(item + 3, tl.minimum(start + my_size, my_length), mask=keep)
    tl.store(item + 4, first_slot + split, mask=keep)
    tl.store(item + 5, first_slot, mask=keep)
    tl.store(item + 6, my_count, mask=keep)
    tl.store(item + 7, 0, mask=keep)


def _check(rows: Tensor, seq_lens: Tensor, split_size: int, items: Tensor, count: Tensor) -> None:
    entries = rows.shape[0] if rows.dim() else 0
    check_tensor("rows", rows, (None,), torch.int32, rows.device)
    check_tensor("seq_lens", seq_lens, (entries,), torch.int32, rows.device)
    check_tensor("items", items, (None, len(ITEM_FIELDS)), torch.int32, rows.device)
    check_tensor("count", count, (1,), torch.int32, rows.device)
    if not 0 < entries <= MAX_ENTRIES:
        raise ShapeError("rows", f"1 to {MAX_ENTRIES} entries", entries)
    if items.shape[0] < entries:
        raise ShapeError("items", f"at least {entries} items", items.shape[0])
    if split_size <= 0 or split_size % SPLIT_UNIT:
        raise ShapeError("split_size", f"a positive multiple of {SPLIT_UNIT}", split_size)


@define_op(
    "work_list",
    mutates=("items", "count"),
    reference=_reference,
    fake=lambda rows, seq_lens, split_size, items, count: None,
    check=_check,
)
def work_list(rows: Tensor, seq_lens: Tensor, split_size: int, items: Tensor, count: Tensor) -> None:
    """Cut every entry's tokens into splits and list them, long ones first. Once a step, for all layers.

    An entry of n tokens becomes ceil(n / s) items, and an empty one becomes one item without tokens, whose
    output is zeros. s is `split_size`, or ceil(n / 64) rounded up to 64 tokens where that is more, so no
    sequence has more than 64 items and how one is cut depends on its own length alone.

    Args:
        rows: [num_seqs] int32. Row of the block table, -1 for padding. At most 4,096 of them.
        seq_lens: [num_seqs] int32. Tokens to attend to, the newest included; 0 for padding.
        split_size: Tokens a split, a multiple of 64. `NO_SPLIT` keeps every sequence whole.
        items: [at least max_items(...), 8] int32. See `ITEM_FIELDS`: `start` and `stop` are token
            positions, `slot` is the item's place in scratch, where an entry's slots are adjacent.
        count: [1] int32.

    Returns:
        Nothing.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit. `items` being too short for these
            lengths is not seen: what does not fit is left out.

    Mutates:
        items, up to the count, and count.

    Accuracy:
        Exact.

    Source:
        Ours. Splitting over keys as in Dao 2023, "Flash-Decoding for long-context inference"; the longest
        first as in Graham 1969, "Bounds on multiprocessing timing anomalies".
    """
    entries = rows.shape[0]
    _work_list_kernel[(entries,)](
        rows,
        seq_lens,
        items,
        count,
        min(split_size, NO_SPLIT),
        entries,
        items.shape[0],
        ENTRIES=next_power_of_2(max(entries, 16)),
        UNIT=SPLIT_UNIT,
        SPLITS=MAX_SPLITS,
        num_warps=1 if entries <= 256 else 4,
    )
