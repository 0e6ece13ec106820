"""The compact list of decode attention's work, in plain torch: see `nanofn_kernels.work_list`."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import cdiv, next_power_of_2

ITEM_FIELDS = ("entry", "start", "stop", "slot", "first_slot", "num_splits", "unused", "unused")
"""What the eight numbers of an item are."""

SPLIT_UNIT = 64
"""Every split starts at a multiple of this many tokens, so a K/V tile never straddles two splits."""

NO_SPLIT = 1 << 30
"""The split size that no sequence reaches."""


def max_splits(num_kv_heads: int) -> int:
    """How many splits a sequence has at most: enough for its heads to fill a GPU, few enough to merge at one go.

    A longer sequence gets longer splits, by its own length alone.
    """
    return min(64, max(16, next_power_of_2(cdiv(128, num_kv_heads))))


def split_length(seq_len: int, split_size: int, num_kv_heads: int) -> int:
    """The tokens of each split of a sequence but its last: the split size, or more when `max_splits` asks for it."""
    return max(split_size, SPLIT_UNIT * cdiv(seq_len, SPLIT_UNIT * max_splits(num_kv_heads)))


def num_splits(seq_len: int, split_size: int, num_kv_heads: int) -> int:
    """How many items a sequence becomes. An empty one is one item, which writes its zeros."""
    return max(1, cdiv(seq_len, split_length(seq_len, split_size, num_kv_heads)))


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
    """Cut every entry's tokens into splits: see `nanofn_kernels.work_list`."""
    found = []
    first_slot = 0
    for entry, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        size, number = split_length(length, split_size, num_kv_heads), num_splits(length, split_size, num_kv_heads)
        for split in range(number):
            start, stop = split * size, min(length, (split + 1) * size)
            found.append(
                (row, (entry, start, stop, first_slot + split, first_slot, number, 0, 0), stop - start == size)
            )
        first_slot += number
    # Whole splits in entry order, then what is left over, longest first.
    found.sort(key=lambda item: (not item[2], 0 if item[2] else item[1][1] - item[1][2]))
    count.fill_(len(found))
    for place, (row, item, _) in enumerate(found[: items.shape[0]]):
        items[place] = torch.tensor(item, dtype=torch.int32, device=items.device)
        ids = block_table[row, item[1] // block_size : cdiv(item[2], block_size)]
        blocks[place, : ids.shape[0]] = ids
