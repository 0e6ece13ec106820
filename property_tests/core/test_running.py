"""Columns and records say the same."""

import pytest
from attrs import evolve, fields
from hypothesis import given, strategies as st

from core.build import request
from nanofn.request import Row, SequenceId
from nanofn.state.running import Columns, Running
from nanofn.state.sequence import Sequence


def sequence(number, **facts):
    """A sequence with a row."""
    return Sequence(
        SequenceId(number), request(number, 3), 0, 3, max_num_tokens=9, num_tokens=3, row=Row(number), **facts
    )


def test_the_columns_are_the_fields_of_a_sequence() -> None:
    """Same names in the same order, so that transposing is a zip."""
    assert list(Columns._fields) == [each.name for each in fields(Sequence)]


@given(st.lists(st.integers(0, 9), unique=True), st.sets(st.integers(0, 9)))
def test_running_is_a_list_of_sequences(numbers, gone) -> None:
    """Appending, indexing, finding and dropping are those of a list of records."""
    records = [sequence(number, num_computed_tokens=number) for number in numbers]
    running = Running().append(records[:2]).append(records[2:])
    assert list(running) == records
    assert len(running) == len(records)
    assert [running[index] for index in range(len(records))] == records
    assert all(running.get(SequenceId(number)) == sequence(number, num_computed_tokens=number) for number in numbers)
    assert running.get(SequenceId(77)) is None
    assert list(running.without(gone)) == [record for record in records if record.sequence_id not in gone]
    assert running.without(()) is running
    assert running.append(()) == running


@pytest.mark.parametrize("ends", [(7, 0, 11, 5, 3, 8), (7, 8, 6, 0, 1, 2), (0, 1, 2, 3, 4, 5), (11, 10, 9, 1, 0, 2)])
def test_a_memo_renumbers_its_members_once_five_have_gone(ends) -> None:
    """Up to four gaps are kept in mind; the places that it finds are right with gaps and without."""
    records = [
        evolve(sequence(number), num_tokens=3 + number % 3, num_computed_tokens=2 + number % 3) for number in range(12)
    ]
    running = Running().append(records)
    running = Running(running.columns, running.formed(running.decodes, (), 4))
    for count, number in enumerate(ends, 1):
        running = running.without((number,), have_ended=True)
        assert len(running.steady.cohort.gone) == (count if count < 5 else count - 5)
        for rest in range(4):
            places = [place for place, tokens in enumerate(running.columns.num_tokens) if tokens % 4 == rest]
            assert running.steady.places_with(rest, 4) == tuple(places)
        assert running.steady.cohort.grants == tuple([(each, 1) for each in running.sequence_id])


@given(st.lists(st.integers(0, 6), max_size=4))
def test_the_column_of_remaining_tokens_is_that_of_the_records(facts) -> None:
    """Known tokens that are not computed, else a placeholder where one may be planned, else nothing."""
    records = [
        evolve(
            sequence(number, num_computed_tokens=computed),
            num_tokens=min(computed + 1, 5) if number % 2 else 4,
            max_num_tokens=7,
        )
        for number, computed in enumerate(facts)
    ]
    column = Running().append(records).columns.num_remaining_tokens
    assert column == tuple([record.num_remaining_tokens for record in records])
    assert all(count >= 0 for count in column)


def test_decodes_are_one_token_each_that_can_be_planned() -> None:
    """One grant each; None with a prefill or a final placeholder."""
    decoding = sequence(0, num_computed_tokens=2)
    assert Running().decodes == ()
    assert Running().append([decoding, sequence(1, num_computed_tokens=7)]).decodes == ((0, 1), (1, 1))
    prefilling, awaiting = sequence(1, num_computed_tokens=1), sequence(1, num_computed_tokens=8)
    for other in (prefilling, awaiting):
        assert Running().append([decoding, other]).decodes is None
