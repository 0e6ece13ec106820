"""The column of tails says what a list of growing tails would, however it came about."""

import pytest
from hypothesis import given, strategies as st

from nanofn.state import tails as tails_module
from nanofn.state.digest import token_bytes
from nanofn.state.tails import MAX_RECENT, Tails, lengthened

OPERATIONS = st.lists(st.sampled_from(["tokens", "tokens", "tokens", "end", "join", "split"]), max_size=40)


@given(OPERATIONS, st.integers(1, 5), st.integers(1, 7))
def test_a_column_of_tails_is_a_list_of_tails(operations, block_size, max_recent) -> None:
    """Tokens for all, an end, a newcomer, a cut: each tail is what came after the last full block, and full blocks are told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails_module, "MAX_RECENT", max_recent)
        model, tails = [[] for _ in range(3)], (b"",) * 3
        for number, what in enumerate(operations):
            if what == "tokens" and model:
                model, tails = with_tokens(model, tails, number, block_size)
            elif what == "end":
                model, tails = model[:1] + model[2:], tails[:1] + tails[2:]
            elif what == "join":
                newcomer = list(range(number % block_size))
                joining = (token_bytes(newcomer),)
                model, tails = [*model, newcomer], tails + joining
            elif what == "split":
                tails = tuple(tails[:1]) + tails[1:2] + tails[2:]
            expected = tuple(map(token_bytes, model))
            assert (tuple(tails), len(tails)) == (expected, len(expected))
            assert tails == expected
            assert expected == tails
            assert hash(tails) == hash(expected)
            assert repr(tails) == repr(expected)
            assert [tails[place] for place in range(-len(model), len(model))] == [*expected, *expected]


def with_tokens(model, tails, number, block_size):
    """Give each sequence a token, in the model and in the column, and compare the blocks that this fills."""
    tokens = tuple(range(number, number + len(model)))
    longer = lengthened(tails, tokens, block_size)
    model = [[*tail, token] for tail, token in zip(model, tokens, strict=True)]
    full = tuple(place for place, tail in enumerate(model) if len(tail) == block_size)
    assert longer.blocks(full) == [token_bytes(model[place]) for place in full]
    return [[] if len(tail) == block_size else tail for tail in model], longer


def test_tails_are_settled_when_there_are_many_columns() -> None:
    """Up to 64 columns are kept as they came, by pointer; the next one finds packed tails."""
    column, tails = (5, 6), (b"", b"")
    for number in range(1, MAX_RECENT + 1):
        tails = lengthened(tails, column, 1_000)
        assert len(tails.recent) == number
        assert all(each is column for each in tails.recent)
        assert tails.settled == (b"", b"")
    tails = lengthened(tails, column, 1_000)
    assert tails.recent == (column,)
    assert tails.settled == (token_bytes([5]) * MAX_RECENT, token_bytes([6]) * MAX_RECENT)


def test_cutting_and_joining_keeps_columns() -> None:
    """A sequence that ends leaves the others' columns as columns; nothing is packed."""
    tails = lengthened(lengthened((b"", b"", b""), (1, 2, 3), 4), (4, 5, 6), 4)
    left = tails[:1] + tails[2:]
    assert isinstance(left, Tails)
    assert left.recent == ((1, 3), (4, 6))


def test_columns_of_other_lengths_are_settled_to_be_joined() -> None:
    """Sequences that got tokens in other steps have no columns in common."""
    once, twice = (lengthened((b"",), (number,), 4) for number in (1, 2))
    twice = lengthened(twice, (3,), 4)
    assert once + twice == (token_bytes([1]), token_bytes([2, 3]))
    assert isinstance(once + twice, tuple)


@pytest.mark.parametrize("index", [2, -3])
def test_nothing_lies_outside_the_column(index: int) -> None:
    """Reading there raises, as with a tuple."""
    with pytest.raises(IndexError):
        lengthened((b"", b""), (1, 2), 4)[index]


def test_a_column_is_equal_to_columns_alone() -> None:
    """Not to a list, nor to one with another tail."""
    tails = lengthened((b"",), (1,), 4)
    assert tails != [token_bytes([1])]
    assert tails != (token_bytes([2]),)
