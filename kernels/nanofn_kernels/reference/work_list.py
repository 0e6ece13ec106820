"""The compact list of decode attention's work, in plain torch: see `nanofn_kernels.work_list`."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import cdiv

ITEM_FIELDS = ("entry", "row", "start", "stop", "slot", "first_slot", "num_splits", "unused")
"""What the eight numbers of an item are."""

SPLIT_UNIT = 64
"""Every split starts at a multiple of this many tokens, so a K/V tile never straddles two splits."""

MAX_SPLITS = 64
"""A sequence is cut into at most this many splits: a longer one gets longer splits, by its own length alone."""

NO_SPLIT = 1 << 30
"""The split size that no sequence reaches."""


def split_length(seq_len: int, split_size: int) -> int:
    """The tokens of each split of a sequence but its last: the split size, or more when `MAX_SPLITS` asks for it."""
    return max(split_size, SPLIT_UNIT * cdiv(seq_len, SPLIT_UNIT * MAX_SPLITS))


def num_splits(seq_len: int, split_size: int) -> int:
    """How many items a sequence becomes. An empty one is one item, which writes its zeros."""
    return max(1, cdiv(seq_len, split_length(seq_len, split_size)))


def work_list(rows: Tensor, seq_lens: Tensor, split_size: int, items: Tensor, count: Tensor) -> None:
    """Cut every entry's tokens into splits: see `nanofn_kernels.work_list`."""
    lengths = seq_lens.tolist()
    pieces = [num_splits(length, split_size) for length in lengths]
    first = [0, *torch.tensor(pieces, dtype=torch.int64).cumsum(0).tolist()]
    found = []
    for entry, (row, length, number) in enumerate(zip(rows.tolist(), lengths, pieces, strict=True)):
        size = split_length(length, split_size)
        for split in range(number):
            stop = min(length, (split + 1) * size)
            found.append((entry, row, split * size, stop, first[entry] + split, first[entry], number, 0, stop - split * size == size))
    # Whole splits in entry order, then what is left over, longest first.
    found.sort(key=lambda item: (not item[8], 0 if item[8] else item[2] - item[3]))
    count.fill_(len(found))
    items[: len(found)] = torch.tensor([item[:8] for item in found], dtype=torch.int32).reshape(-1, 8)[: items.shape[0]]
