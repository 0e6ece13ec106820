"""Stop strings: the one that is complete first, of those the longest, however the text is cut."""

import pytest
from hypothesis import example, given, settings, strategies as st

from nanofn.text.stop_strings import StopStrings

TEXT = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)
"""Of few letters, so that much of a text is the beginning of something."""

MANY = settings(max_examples=200)


def ending(text, stops, first=0):
    """(end, start, stop) by definition: the earliest ending at or after `first`; of those that end together the longest."""
    found = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(first, len(text))
        if text.startswith(stop, start)
    ]
    return min(found, default=None)


def cut(data, text):
    """Cut a text anywhere, empty pieces included; now and then into single characters."""
    if data.draw(st.booleans()):
        return [*text]
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@MANY
@given(text=TEXT, stops=STOPS, data=st.data(), is_included=st.booleans())
@example(text="ababb", stops=["bb", "ababb", "bbb"], data=None, is_included=False)
def test_any_cut_gives_what_the_definition_says(text, stops, data, is_included):
    """Pushed in any pieces, the stop string and the end of the output are those of the whole text."""
    search = StopStrings(stops, is_included=is_included)
    for piece in [*text] if data is None else cut(data, text):
        if search.push(piece):
            break
    expected = ending(text, stops)
    if expected is None:
        assert search.found is None
        return
    end, start, stop = expected
    assert (stop, end if is_included else start) == (search.found, search.end)


@MANY
@given(text=TEXT, stops=STOPS, data=st.data(), is_included=st.booleans())
def test_what_is_certain_never_turns_out_to_be_wrong_and_holds_back_no_more_than_needed(text, stops, data, is_included):
    """Certain characters are the output's whatever comes; where some are held back, a continuation exists that needs it."""
    search, certain = StopStrings(stops, is_included=is_included), 0
    for piece in cut(data, text):
        search.push(piece)
        assert search.num_certain >= certain
        certain = search.num_certain
        if search.found is not None:
            assert certain == search.end
            return
        held = search.text[certain:]
        assert not held or any(stop.startswith(held) for stop in stops)
        assert [start for start in range(certain) if any(s.startswith(search.text[start:]) for s in stops)] == []


@given(early=TEXT, late=TEXT, stops=STOPS)
def test_what_comes_too_early_is_neither_searched_nor_held_back(early, late, stops):
    """A stop string counts where it begins and ends in text that may stop."""
    search = StopStrings(stops, is_included=False)
    search.push(early, may_stop=False)
    assert search.num_certain == len(early)
    search.push(late)
    expected = ending(early + late, stops, first=len(early))
    assert (None if expected is None else expected[2]) == search.found


@pytest.mark.parametrize(("included", "end"), [(False, 2), (True, 4)])
def test_the_stop_string_is_kept_on_request(included, end):
    """`abcde` with the stop string `cd`: `ab`, or `abcd`."""
    search = StopStrings(["cd"], is_included=included)
    assert [search.push(piece) for piece in "abcd"] == [False, False, False, True]
    assert search.end == end
    assert search.push("e")
    assert search.end == end
