"""The persistent containers against plain ones: same contents after any operations, layout a function of content."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nanofn.event_log import read_log, replay
from nanofn.state.chunked import Chunked
from nanofn.state.persistent import Map, sorted_items
from nanofn.state.sorted_table import SortedTable

AWKWARD = st.sampled_from([0, 1, 2, 63, 64, 65, 127, 128, 129, 200])


@given(st.lists(st.tuples(st.sampled_from(["push", "extend", "pop"]), AWKWARD), max_size=12))
def test_chunked_is_a_stack(operations) -> None:
    """Pushes, extensions and pops of any size give what a list gives, and old versions stay as they were."""
    model, stack, versions = [], Chunked(), []
    for what, count in operations:
        versions.append((stack, tuple(model)))
        if what == "push":
            model.append(count)
            stack = stack.push(count)
        elif what == "extend":
            model += range(count)
            stack = stack.extend(range(count))
        else:
            expected = tuple([model.pop() for _ in range(min(count, len(model)))])
            stack, popped = stack.pop(count)
            assert popped == expected
    versions.append((stack, tuple(model)))
    for version, content in versions:
        assert tuple(version) == content
        assert len(version) == len(content)
        assert all(version[index] == item for index, item in enumerate(content))
        assert not content or version[-1] == content[-1]
        # The layout follows from the content, so equality and hash do too.
        assert version == Chunked().extend(content)
        assert hash(version) == hash(Chunked().extend(content))


def test_chunked_grows_by_single_pushes() -> None:
    """Over several chunks: content, last item and layout."""
    stack = Chunked()
    assert stack.last is None
    for number in range(200):
        stack = stack.push(number)
        assert stack.last == number
        assert stack == Chunked().extend(range(number + 1))
        assert (stack[0], stack[number], stack[-number - 1]) == (0, number, 0)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 130])
@pytest.mark.parametrize("count", [0, 1, 2, 64, 65, 130])
def test_chunked_is_in_its_one_layout_after_a_pop(size: int, count: int) -> None:
    """Also where just the shorter tail is taken, or whole chunks."""
    left = max(size - count, 0)
    assert Chunked().extend(range(size)).pop(count)[0] == Chunked().extend(range(left))


@pytest.mark.parametrize("index", [3, -4, 64])
def test_chunked_has_nothing_beyond_its_end(index: int) -> None:
    """Reading outside raises, as with a tuple."""
    with pytest.raises(IndexError):
        Chunked().extend(range(3))[index]


KEYS = st.integers(0, 60)
TABLE_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS),
        st.tuples(st.just("discard"), KEYS),
        st.tuples(st.just("extend"), st.integers(0, 1_500)),
        st.tuples(st.just("pop_first"), st.integers(0, 1_200)),
        st.tuples(st.just("discard_all"), KEYS),
    ),
    max_size=12,
)


@given(TABLE_OPERATIONS, st.integers(0, 9))
def test_sorted_table_is_a_sorted_dict(operations, offset) -> None:
    """Sets, discards, appends and pops give what a sorted dictionary gives, across chunk borders."""
    model, table = {}, SortedTable()
    for number, (what, key) in enumerate(operations):
        before, snapshot = table, tuple(table)
        if what == "set":
            model[key * 37 + offset] = number
            table = table.set(key * 37 + offset, number)
        elif what == "discard":
            model.pop(key * 37 + offset, None)
            table = table.discard(key * 37 + offset)
        elif what == "discard_all":
            doomed = frozenset(key * 37 + offset + step for step in range(0, 400, 7))
            model = {each: value for each, value in model.items() if each not in doomed}
            table = table.discard_all(doomed)
        elif what == "extend":
            pairs = [(max(model, default=-1) + 1 + place, number) for place in range(key)]
            model |= pairs
            table = table.extend(pairs)
        else:
            first = sorted(model)[:key]
            expected = tuple([model.pop(each) for each in first])
            table, popped = table.pop_first(key)
            assert popped == expected
        assert tuple(before) == snapshot
        check_table(table, model)


def check_table(table, model):
    """A table equals its model, in content, look-up, equality, hash and shape."""
    assert tuple(table) == tuple(sorted(model.items()))
    assert tuple(table.values()) == tuple([model[key] for key in sorted(model)])
    assert len(table) == len(model)
    for key in [*list(model)[:50], -1, 10**9]:
        assert table.get(key) == model.get(key)
        assert tuple(table.starting(key)) == tuple([pair for pair in sorted(model.items()) if pair[0] >= key])
    skips = [table.skipped, *[0] * len(table.chunks)]
    assert table.firsts == tuple([chunk[skip][0] for chunk, skip in zip(table.chunks, skips, strict=False)])
    assert all(0 < len(chunk) <= 512 for chunk in table.chunks)
    other = SortedTable().extend(sorted(model.items()))
    assert table == other
    assert hash(table) == hash(other)


def test_sorted_tables_with_other_content_differ() -> None:
    """Equality looks at keys and values, and never raises."""
    table = SortedTable().extend([(1, "a"), (2, "b")])
    assert table != table.set(2, "c")
    assert table != table.discard(2)
    assert table != ((1, "a"), (2, "b"))


def test_sorted_table_discards_many() -> None:
    """Discarding keys one after the other, some absent."""
    table = SortedTable().extend([(key, key) for key in range(2_000)])
    assert tuple(table.discard_all([5, 1_999, 7_000]).values()) == tuple([k for k in range(1_999) if k != 5])


def test_a_sorted_table_of_many_chunks_is_a_sorted_dict() -> None:
    """New keys in the first, a middle and the last chunk, full or with pairs skipped; whole and half chunks popped."""
    model = {key: key for key in range(0, 4_000, 2)}
    table = SortedTable().extend(model.items())
    for count, keys in ((0, (-1, 1, 1_023, 1_025, 2_001, 3_999)), (600, (1_201, 1_199, 3_001)), (512, (2_999, 5_001))):
        table, popped = table.pop_first(count)
        assert popped == tuple([model.pop(key) for key in sorted(model)[:count]])
        check_table(table, model)
        for key in keys:
            model[key] = -key
            table = table.set(key, -key)
            check_table(table, model)
        gone = frozenset([keys[0], *sorted(model)[300:900]])
        model = {key: value for key, value in model.items() if key not in gone}
        table = table.discard_all(gone)
        check_table(table, model)
        pairs = [(max(model) + 1 + place, count) for place in range(700)]
        model |= pairs
        table = table.extend(pairs)
        check_table(table, model)
    for count in (len(model) - 1, 5):
        table, popped = table.pop_first(count)
        assert popped == tuple([model.pop(key) for key in sorted(model)[:count]])
        check_table(table, model)


def test_a_sorted_table_ends_and_begins_anywhere() -> None:
    """Whole chunks popped, nothing before the first key to discard, and a table that has become empty."""
    model = {key: key for key in range(1_024)}
    table = SortedTable().extend(model.items())
    assert table.discard(-1) == table.discard_all([-1, -7]) == table
    assert SortedTable().discard(3) == SortedTable()
    table, popped = table.pop_first(512)
    assert popped == tuple(range(512))
    check_table(table, {key: key for key in range(512, 1_024)})
    table, popped = table.pop_first(9_999)
    assert (len(popped), len(table), tuple(table.set(1, 2))) == (512, 0, ((1, 2),))
    assert tuple(table.extend([(3, 4)]).extend([(5, 6)])) == ((3, 4), (5, 6))


@given(
    st.lists(st.tuples(st.sampled_from(["set", "discard", "set_all", "discard_all"]), st.integers(0, 30)), max_size=30)
)
def test_map_is_a_dict(operations) -> None:
    """Any changes give what a dictionary gives; equal maps have equal hashes, however they were filled."""
    model, mapping = {}, Map()
    for number, (what, key) in enumerate(operations):
        before, snapshot = mapping, tuple(sorted_items(mapping))
        if what == "set":
            model[key] = number
            mapping = mapping.set(key, number)
        elif what == "discard":
            model.pop(key, None)
            mapping = mapping.discard(key)
        elif what == "set_all":
            model |= {key: number, key + 1: number}
            mapping = mapping.set_all({key: number, key + 1: number})
        else:
            for each in (key, key + 1):
                model.pop(each, None)
            mapping = mapping.discard_all([key, key + 1])
        assert tuple(sorted_items(before)) == snapshot
    assert dict(sorted_items(mapping)) == model
    assert len(mapping) == len(model)
    assert all((key in mapping) == (key in model) and mapping.get(key) == model.get(key) for key in range(40))
    other = Map().set_all(dict(reversed(model.items())))
    assert mapping == other
    assert hash(mapping) == hash(other)
    longer = mapping.set(99, 0)
    assert hash(mapping) != hash(longer)
    assert repr(Map().set(1, 2)) == "Map(items={1: 2})"


WITHOUT_IMMUTABLES = """
import sys
sys.modules["immutables"] = None
from nanofn.event_log import read_log, replay
from nanofn.state.persistent import Map, sorted_items
assert type(Map().items).__module__.startswith("rpds")
numbers = Map().set_all({key: key for key in range(100)}).discard_all(range(0, 100, 3)).discard(1).discard(1).set(2, 7)
assert list(sorted_items(numbers)) == [(key, 7 if key == 2 else key) for key in range(2, 100) if key % 3]
done = replay(read_log(sys.argv[1]))
assert done.difference is None
print(done.plan_hash)
"""


def test_the_other_map_gives_the_same_plans() -> None:
    """Where `immutables` is not to be had, `rpds-py` stands in: a recorded run replays to the same hash."""
    recorded = Path(__file__).parents[1] / "event_log" / "recorded.jsonl"
    command = [sys.executable, "-c", WITHOUT_IMMUTABLES, str(recorded)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == replay(read_log(recorded)).plan_hash
