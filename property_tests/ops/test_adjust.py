"""Adjusted logits against the reference, which `sampling/test_adjust.py` compares with the definitions."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels.adjust import ALLOWS, BANS, BIASES, BLOCK, ENDS, OUTSIDE, PENALISES, adjust_logits
from nanofn_kernels.errors import DtypeError, ShapeError
from nanofn_kernels.reference.adjust import adjust_logits as reference
from ops.paged import DEVICE

NUM_ROWS = 5
KINDS = [0, ALLOWS, BANS, ENDS, BIASES, PENALISES, ALLOWS | BANS | ENDS, ALLOWS | BANS | ENDS | BIASES | PENALISES]


class Work:
    """Random tables and entries. The marks of some rows leave nothing of one restriction or another."""

    def __init__(self, vocab_size, dtype, kinds, *, seed, is_masked=False):
        random = torch.Generator().manual_seed(seed)
        count = len(kinds)
        wide = torch.randn((count, vocab_size + 3), generator=random) * 9
        wide[torch.rand(wide.shape, generator=random) < 0.2] = -torch.inf
        wide[:, vocab_size:] = torch.nan
        rows = torch.randperm(NUM_ROWS, generator=random)[:count].to(torch.int32)
        rules = torch.randint(0, 9, (NUM_ROWS, 3), generator=random, dtype=torch.int32)
        rules[rows.long(), 0] = torch.tensor(kinds, dtype=torch.int32)
        marks = torch.randint(0, 16, (NUM_ROWS, vocab_size), generator=random)
        for row in range(NUM_ROWS):
            marks[row] |= int(torch.randint(0, 8, (1,), generator=random)) & int(
                torch.randint(0, 8, (1,), generator=random)
            )
        counts = torch.randint(-3, 4, (NUM_ROWS, vocab_size), generator=random).clamp(min=0)
        masks = torch.randint(-(2**31), 2**31, (2, vocab_size // 32 + 2), generator=random)
        mask_of = torch.randint(-1, 2, (count,), generator=random)
        self.tensors = [
            wide.to(dtype).to(DEVICE)[:, :vocab_size],
            rows.to(DEVICE),
            torch.randint(0, 20, (count,), generator=random, dtype=torch.int32).to(DEVICE),
            rules.to(DEVICE),
            (torch.rand((NUM_ROWS, 3), generator=random) * 2 + 0.1).to(DEVICE),
            marks.to(torch.uint8).to(DEVICE),
            counts.to(torch.int32).to(DEVICE),
            torch.randn((NUM_ROWS, vocab_size), generator=random).to(DEVICE),
        ]
        if is_masked:
            self.tensors += [masks.to(torch.int32).to(DEVICE), mask_of.to(torch.int32).to(DEVICE)]

    def check(self):
        """The op equals its reference, which says what is forbidden to the bit."""
        found, expected = adjust_logits(*self.tensors), reference(*self.tensors)
        assert found.dtype == torch.float32
        assert torch.equal(found == -torch.inf, expected == -torch.inf)
        # A product and a sum may be rounded once: one part in 2^23 of the larger one, which is below 100 here.
        torch.testing.assert_close(found, expected, rtol=3e-7, atol=2e-5)


@settings(max_examples=15)
@given(
    vocab_size=st.sampled_from([1, 31, 32, 33, 600]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    kinds=st.lists(st.sampled_from(KINDS), min_size=0, max_size=NUM_ROWS),
    seed=st.integers(0, 1000),
    is_masked=st.booleans(),
)
def test_every_kind_of_row_equals_the_reference(vocab_size, dtype, kinds, seed, is_masked) -> None:
    """Rows of all kinds beside each other, rows in any order, NaN behind every row of logits, restrictions that leave nothing."""
    Work(vocab_size, dtype, kinds, seed=seed, is_masked=is_masked).check()


@pytest.mark.parametrize("vocab_size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_a_row_of_several_blocks_equals_the_reference(vocab_size) -> None:
    """What would be left is asked of all blocks together."""
    Work(vocab_size, torch.float32, [KINDS[-1], ALLOWS], seed=vocab_size, is_masked=True).check()


def test_the_only_id_left_may_lie_in_any_block() -> None:
    """One allowed id at the end keeps a restriction; where its logit is -inf, the restriction is dropped."""
    work = Work(2 * BLOCK, torch.float32, [ALLOWS, ALLOWS], seed=0)
    logits, rows, marks = work.tensors[0], work.tensors[1].long(), work.tensors[5]
    logits[:] = 1.0
    marks[:] = 1
    marks[rows, -1] = 0
    logits[1, -1] = -torch.inf
    found = adjust_logits(*work.tensors)
    assert (found > -torch.inf).sum(dim=1).tolist() == [1, 2 * BLOCK - 1]
    work.check()


def test_padding_is_copied_and_unread_tables_may_be_empty() -> None:
    """Row -1, and a batch of which nobody asks for anything."""
    work = Work(70, torch.bfloat16, [0, 0, 0], seed=3)
    work.tensors[1][1] = -1
    work.tensors[5:] = [table[:0] for table in work.tensors[5:]]
    assert torch.equal(adjust_logits(*work.tensors), work.tensors[0].to(torch.float32))


@pytest.mark.gpu
def test_a_large_vocabulary_gives_the_same_bits_every_time() -> None:
    """200 allowed ids of 151,936 in each row, a hundred times: exactly they are finite, their values untouched."""
    work = Work(151_936, torch.float32, [ALLOWS] * NUM_ROWS, seed=4)
    logits, rows, marks = work.tensors[0], work.tensors[1].long(), work.tensors[5]
    logits[:] = torch.randn(logits.shape, device=DEVICE)
    marks[:] = OUTSIDE
    allowed = torch.stack([torch.randperm(151_936, device=DEVICE)[:200] for _ in range(NUM_ROWS)])
    marks[rows.unsqueeze(1), allowed] = 0
    expected = torch.full_like(logits, -torch.inf).scatter(1, allowed, logits.gather(1, allowed))
    assert all(torch.equal(expected, adjust_logits(*work.tensors)) for _ in range(100))


def test_arguments_that_do_not_fit_are_named() -> None:
    """A type, the size of a table, half of a mask, and a mask that is too short."""
    work = Work(70, torch.float32, [BANS], seed=3, is_masked=True)
    for place, wrong, error, name in (
        (1, work.tensors[1].long(), DtypeError, "rows"),
        (6, work.tensors[6][:2], ShapeError, "counts"),
        (9, None, ShapeError, "mask_of"),
        (8, work.tensors[8][:, :1], ShapeError, "masks"),
    ):
        tensors = [*work.tensors[:place], wrong, *work.tensors[place + 1 :]]
        with pytest.raises(error, match=name):
            adjust_logits(*tensors)
