"""The picture of a sequence's life shows what the transitions do."""

from itertools import pairwise

from core import phases
from nanofn.lab.random_work import random_work


def test_the_documented_phases_are_the_observed_ones() -> None:
    """Table and picture in the documentation are what replayed random works give."""
    changes = phases.observed()
    assert phases.documented() == phases.table(changes)
    assert phases.PICTURE.read_text("utf-8") == phases.picture(changes)


def test_each_change_is_shown_in_the_picture() -> None:
    """An arrow for each pair of phases, and the name of each event beside it."""
    changes = phases.observed(range(40))
    drawn = phases.picture(changes)
    assert drawn.count("<line") == len(changes)
    assert all(f">{kind}</text>" in drawn for kinds in changes.values() for kind in kinds)


def test_nothing_leads_back_from_the_end() -> None:
    """A sequence that has ended is never seen again, under no event."""
    for seed in range(40):
        work = random_work(seed, checked=False)
        alive = [set(phases.phases(state)) for state in phases.states(work)]
        gone = [before - after for before, after in pairwise(alive)]
        assert all(not ended & later for place, ended in enumerate(gone) for later in alive[place + 1 :])
