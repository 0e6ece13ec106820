"""The tests of this folder can fail: bugs that engines really had, planted into the source, are found in seconds."""

import pytest

from core.seeding import Bug, planted

BUGS = (
    Bug(
        "blocks are published when their tokens are known, not when they are written",
        "schedule/commit.py",
        "written = min((entry.first_position + entry.num_tokens) // block_size, len(sequence.chain))",
        "written = min(len(sequence.block_table), len(sequence.chain))",
    ),
    Bug(
        "a block handed out keeps its digest",
        "state/block_pool.py",
        "        index = withdraw(index, evicted)\n",
        "        pass\n",
    ),
    Bug(
        "a release ignores other owners",
        "state/block_pool.py",
        "        if references is not None:\n",
        "        if references is not None and references > 2:\n",
    ),
    Bug(
        "a fully cached prompt leaves nothing to compute",
        "state/sequence.py",
        "return min((sequence.num_tokens - 1) // block_size, len(sequence.chain))",
        "return len(sequence.chain)",
    ),
    Bug(
        "a preempted sequence starts again while a result for it is due",
        "schedule/plan.py",
        "sequence.row is None and sequence.epoch and _is_in_flight(state, sequence.sequence_id)",
        "False",
    ),
    Bug(
        "an abort keeps the row",
        "schedule/finish.py",
        "            rows = (*rows, sequence.row)\n",
        "            pass\n",
    ),
    Bug(
        "blocks needed is off by one",
        "config.py",
        "    return -(-num_tokens // block_size)",
        "    return num_tokens // block_size",
    ),
)


def first_failure(seeds=range(400)):
    """What goes wrong first in random works: (seed, error); None if nothing does."""
    from core.random_work import random_work

    for seed in seeds:
        try:
            random_work(seed)
        except Exception as error:  # noqa: BLE001 any failure is a finding
            return seed, error
    return None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """Random works find it."""
    with planted(bug):
        assert first_failure() is not None


def test_without_a_bug_nothing_is_found() -> None:
    """The same search on the source as it is, loaded the same way."""
    with planted(Bug("none", "config.py", "@frozen", "@frozen")):
        assert first_failure(range(40)) is None


def test_a_patch_that_no_longer_applies_is_an_error() -> None:
    """A bug whose place in the source has changed is not silently passed."""
    with pytest.raises(ValueError, match="occurs 0 times"), planted(Bug("gone", "config.py", "no such text", "")):
        first_failure(range(1))
