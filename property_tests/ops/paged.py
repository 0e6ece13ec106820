"""Paged sequences for the tests of attention: unwritten slots and unused blocks are NaN, unused table entries are traps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nanofn_kernels._dispatch import INTERPRETED
from nanofn_kernels.paged_decode import decode_split_size, paged_decode, scratch_size
from nanofn_kernels.work_list import max_item_blocks, max_items, work_list

DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
"""The GPU where there is one; else the CPU, under the interpreter where `nox -s tests` runs these tests."""

TOLERANCE = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 2**-7 if INTERPRETED else 4e-3}
"""Largest relative error in norm against float64, rounding of the result included; measured, times about 1.2. Triton's
interpreter cuts what it stores as bf16 instead of rounding it: each number may be a whole unit in the last place too small."""


def error(actual: Tensor, expected: Tensor) -> float:
    """The relative error in norm; infinite where a NaN is."""
    difference = (actual.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)
    return float("inf") if difference.isnan() else float(difference)


class Sequences:
    """Caches and a block table that hold random tokens for some sequences, in shuffled blocks.

    Attributes:
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], NaN wherever no token is.
        table: One row more than there are sequences; unused entries are -1 or 2**30.
        rows: The row of each sequence, shuffled; -1 for one of length 0.
        seq_lens: Lengths, int32.
    """

    def __init__(
        self, lengths: Sequence[int], *, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, seed: int = 0,
        max_seq_len: int = 0,
    ) -> None:  # fmt: skip
        random = torch.Generator().manual_seed(seed)
        columns = max(1, -(-max([max_seq_len, *lengths]) // block_size))
        needed = [-(-length // block_size) for length in lengths]
        num_blocks = sum(needed) + 3
        shape = (num_blocks, block_size, kv_heads, head_dim)
        caches = [torch.full(shape, float("nan"), dtype=dtype) for _ in range(2)]
        order = torch.randperm(num_blocks, generator=random).int()
        table = torch.full((len(lengths) + 1, columns), 2**30, dtype=torch.int32)
        table[::2] = -1
        rows = torch.randperm(len(lengths) + 1, generator=random)[: len(lengths)].int()
        first = 0
        for row, length, count in zip(rows.tolist(), lengths, needed, strict=True):
            blocks = order[first : first + count]
            table[row, :count] = blocks
            for cache in caches:
                tokens = torch.randn((length, kv_heads, head_dim), generator=random).to(dtype)
                places = torch.arange(length)
                cache[blocks.long()[places // block_size], places % block_size] = tokens
            first += count
        rows[torch.tensor(lengths) == 0] = -1
        self.k_cache, self.v_cache = (cache.to(DEVICE) for cache in caches)
        self.table, self.rows = table.to(DEVICE), rows.to(DEVICE)
        self.seq_lens = torch.tensor(list(lengths), dtype=torch.int32, device=DEVICE)
        self.random = random

    def queries(self, count: int, heads: int, *, stride: int = 0) -> Tensor:
        """Random queries; with `stride`, a view that skips as many heads after each row."""
        head_dim = self.k_cache.shape[3]
        whole = torch.randn((count, heads + stride, head_dim), generator=self.random).to(self.k_cache.dtype)
        return whole.to(DEVICE)[:, :heads]


def near_and_far() -> tuple[Sequences, Sequences]:
    """One sequence of 9 tokens twice: in a cache of one block, and in the last block of one with more than 2**31 elements."""
    cache = torch.empty((140_000, 16, 8, 128), dtype=torch.float16, device=DEVICE)
    cache[-1] = torch.randn((16, 8, 128), device=DEVICE)
    near, far = (Sequences([9], kv_heads=8, head_dim=128, block_size=16, dtype=torch.float16) for _ in range(2))
    for each, blocks in ((near, cache[-1:]), (far, cache)):
        each.k_cache = each.v_cache = blocks
        each.table[each.rows[0], 0] = len(blocks) - 1
    return near, far


def make_work(table: Tensor, rows: Tensor, seq_lens: Tensor, split_size: int, block_size: int, heads: int, kv_heads: int, head_dim: int):  # fmt: skip
    """The work list of a batch, with NaN scratch and zeroed counters: the arguments of `paged_decode` between lengths and scale."""
    entries, longest = rows.shape[0], table.shape[1] * block_size
    number = max_items(entries, longest, split_size, kv_heads)
    columns = max_item_blocks(longest, split_size, block_size, kv_heads)
    items = torch.full((number, 8), -(2**30), dtype=torch.int32, device=rows.device)
    blocks = torch.full((number, columns), 2**30, dtype=torch.int32, device=rows.device)
    count = torch.zeros(1, dtype=torch.int32, device=rows.device)
    work_list(table, rows, seq_lens, split_size, block_size, kv_heads, items, blocks, count)
    scratch = torch.full((scratch_size(number, heads, head_dim),), float("nan"), device=rows.device)
    return items, blocks, count, scratch, torch.zeros(entries * kv_heads, dtype=torch.int32, device=rows.device)


def decode(sequences: Sequences, query: Tensor, split_size: int, *, scale: float = 0.0, pdl: bool = False) -> Tensor:
    """Work list and attention of a whole batch."""
    _, heads, head_dim = query.shape
    _, block_size, kv_heads, _ = sequences.k_cache.shape
    split_size = split_size or decode_split_size(query.shape[0], kv_heads)
    work = make_work(
        sequences.table, sequences.rows, sequences.seq_lens, split_size, block_size, heads, kv_heads, head_dim
    )
    out = paged_decode(
        query, sequences.k_cache, sequences.v_cache, sequences.table, sequences.rows, sequences.seq_lens, *work,
        scale or head_dim**-0.5, split_size, launch_pdl=pdl,
    )  # fmt: skip
    assert not work[-1].any()  # the counters are zeros again
    return out
