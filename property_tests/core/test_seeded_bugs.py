"""The tests of this folder can fail: bugs that engines really had, planted into the source, are found in seconds."""

import pytest

from core.seeded_bugs import BUGS, by_exploration, by_works
from core.seeding import Bug, planted


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """Random works find it."""
    with planted(bug):
        assert by_works().number is not None


EXPLORABLE = (
    "a found prefix is not pinned before blocks are allocated",
    "a release ignores other owners",
    "a block handed out keeps its digest",
    "a fully cached prompt leaves nothing to compute",
    "a victim is taken that the step has planned already",
    "a preempted sequence keeps its count of computed tokens",
    "an end keeps the blocks",
    "a row is given out twice",
)


@pytest.mark.parametrize("name", EXPLORABLE)
def test_an_exploration_finds_a_planted_bug(name: str) -> None:
    """Within some hundred states of a scope with two sequences and four blocks."""
    [bug] = [bug for bug in BUGS if bug.name == name]
    with planted(bug):
        assert by_exploration().number is not None


def test_without_a_bug_nothing_is_found() -> None:
    """The same searches on the source as it is, loaded the same way."""
    with planted(Bug("none", "config.py", "@frozen", "@frozen")):
        assert by_works(40).number is None
        assert by_exploration(100).number is None


def test_every_bug_names_a_public_report() -> None:
    """A thread, a pull request or a commit; and no two bugs are the same."""
    assert all(bug.report.startswith("https://github.com/") for bug in BUGS)
    assert len({bug.name for bug in BUGS}) == len({(bug.file, bug.old, bug.new) for bug in BUGS}) == len(BUGS)


def test_a_patch_that_no_longer_applies_is_an_error() -> None:
    """A bug whose place in the source has changed is not silently passed."""
    with pytest.raises(ValueError, match="occurs 0 times"), planted(Bug("gone", "config.py", "no such text", "")):
        by_works(1)
