"""Every state of the core at small scopes, under every decision: no rule breaks, and a planted bug is found."""

import pytest

from core.seeding import Bug, planted
from nanofn.lab.explore import explore
from nanofn.lab.scopes import LARGE, SMALL, safety_of
from nanofn.lab.timeline import timeline
from nanofn.policy import fair, fcfs, guaranteed, longest_prefix, prefill_first, priority, shortest_first

BUILT_IN = [fcfs, prefill_first, priority, shortest_first, fair, longest_prefix, guaranteed]


def explored(name, scope, least):
    """Search a scope whole, and print its figures."""
    found = explore(scope)
    print(f"{name:22} {found.num_states:>8,} states {found.num_transitions:>9,} transitions {found.seconds:6.1f} s")
    assert found.broken is None, timeline(scope.limits, found.broken.events, found.broken.problem)
    assert found.is_complete
    assert found.num_states > least
    return found


@pytest.mark.parametrize("name", SMALL)
def test_no_rule_breaks_at_a_small_scope(name: str) -> None:
    """All states were seen, thousands in most, and none breaks a rule."""
    explored(name, SMALL[name], least=1_000)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", LARGE)
def test_no_rule_breaks_at_a_large_scope(name: str) -> None:
    """As at the small ones: three sequences, longer ones, failures with sharing, three plans in flight."""
    explored(name, LARGE[name], least=5_000)


@pytest.mark.parametrize("policy", BUILT_IN, ids=lambda policy: type(policy).__name__)
def test_no_rule_breaks_under_a_built_in_policy(policy) -> None:
    """Whatever arrives, is aborted, fails or is sampled."""
    explored("failures", safety_of(policy)["failures"], least=50)


BUGS = (
    (
        Bug(
            "a block handed out keeps its digest",
            "state/block_pool.py",
            "        index = withdraw(index, evicted)\n",
            "        pass\n",
        ),
        "sharing",
    ),
    (
        Bug(
            "a fully cached prompt leaves nothing to compute",
            "state/sequence.py",
            "return min((sequence.num_tokens - 1) // block_size, len(sequence.chain))",
            "return len(sequence.chain)",
        ),
        "sharing",
    ),
    (
        Bug(
            "an abort keeps the row",
            "schedule/finish.py",
            "            rows = (*rows, sequence.row)\n",
            "            pass\n",
        ),
        "memory",
    ),
    (
        Bug(
            "a preempted sequence starts again while a result for it is due",
            "schedule/plan.py",
            "sequence.row is None and sequence.epoch and _is_in_flight(state, sequence.sequence_id)",
            "False",
        ),
        "depth 2",
    ),
)


@pytest.mark.parametrize(("bug", "scope"), BUGS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_a_planted_bug_is_found_on_a_short_way(bug: Bug, scope: str) -> None:
    """The explorer finds it in at most twelve events, and tells them a line each with the broken rule at the end."""
    with planted(bug):
        from nanofn.lab import explore as explorer, scopes, timeline as timelines

        limits = scopes.SMALL[scope].limits
        found = explorer.explore(scopes.SMALL[scope])
        assert found.broken is not None
        told = timelines.timeline(limits, found.broken.events, found.broken.problem)
    print(told)
    assert 1 <= len(found.broken.events) <= 12
    assert told.count("\n") == len(found.broken.events) + 2
    assert told.endswith(f"==> {found.broken.problem}\n")


def test_a_counterexample_is_a_shortest_one() -> None:
    """A bug that shows when the first request is aborted needs four events: arrival, plan, result or not, abort."""
    bug = Bug(
        "an abort keeps the row",
        "schedule/finish.py",
        "            rows = (*rows, sequence.row)\n",
        "            pass\n",
    )
    with planted(bug):
        from nanofn.lab import explore as explorer, scopes

        found = explorer.explore(scopes.SMALL["memory"])
    assert [type(event).__name__ for event in found.broken.events] == [
        "RequestArrived",
        "StepDecided",
        "RequestAborted",
    ]


def test_a_search_that_is_cut_off_says_so() -> None:
    """`is_complete` is False where `max_states` ended it."""
    from attrs import evolve

    assert not explore(evolve(SMALL["memory"], max_states=100)).is_complete
