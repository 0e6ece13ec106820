"""Who livelocks and who can starve: the policies of the liveness study, the built-in ones, and what `patience` makes of them."""

from importlib import import_module
from itertools import takewhile

import pytest
from attrs import evolve

from core.seeding import Bug, planted
from nanofn.config import blocks_for
from nanofn.lab.graph import Arrivals, Point, arrived, stepped
from nanofn.lab.liveness import study
from nanofn.lab.policy_facts import Caps
from nanofn.lab.scopes import LIVENESS
from nanofn.lab.zoo import ZOO, Plain, all_of, half_empty, newcomers, skip_ahead, strict_fcfs
from nanofn.policy import (
    fair,
    fcfs,
    guaranteed,
    leader,
    longest_prefix,
    patience,
    prefill_first,
    priority,
    shortest_first,
)
from nanofn.request import RequestId
from nanofn.schedule.transition import transition
from nanofn.state.decision import Decision
from nanofn.state.engine_state import initial_state
from nanofn.state.events import RequestArrived, StepDecided

SCOPES = list(LIVENESS.values())
A, B, C, D, E = SCOPES


def letters(verdict):
    """L: a livelock; S: somebody can starve; "-": all states were seen, and neither."""
    found = "L" * (verdict.livelock is not None) + "S" * (verdict.starvation is not None)
    return found or ("-" if verdict.is_complete else "?")


TABLE = {
    "strict fcfs": "- - -",
    "fcfs, skip what does not fit": "- S -",
    "victim: the oldest": "- S -",
    "victim: most blocks": "- S -",
    "victim: least progress": "- S -",
    "shortest prompt first": "S S -",
    "shortest remaining first": "S S S",
    "least attained service": "S S S",
    "last come, first served": "S S S",
    "newcomers take over": "LS S LS",
    "only while half is free": "- LS -",
}
"""Policy to verdicts at scopes A, B and C."""


@pytest.mark.parametrize("policy", ZOO, ids=lambda policy: policy.name)
def test_the_verdicts_of_the_study(policy) -> None:
    """Two of the eleven livelock somewhere, ten can starve somebody, strict first come first served is clean."""
    assert " ".join([letters(study(policy, scope)) for scope in (A, B, C)]) == TABLE[policy.name]


def test_the_table_in_figures() -> None:
    """The table above has two rows with an L and ten with an S."""
    assert sum("L" in row for row in TABLE.values()) == 2
    assert sum("S" in row for row in TABLE.values()) == 10


RULE = "victim for victim in victims if victim not in ranked"
OTHER_RULES = {
    "yields in its turn": f"{RULE} or victim == sequence_id",
    "may rank before": "victim for victim in victims if victim not in "
    "{sequence_id, *draft.entries.sequence_id, *[grant.sequence.sequence_id for grant in grants]}",
}
"""The rule of `plan` that says who may yield, and what it could be: the needy one itself, or somebody ranked before it."""


@pytest.fixture
def verdict_under():
    """Judge a policy of the zoo at a scope in an engine with another victim rule."""

    def run(rule, name, scope):
        with planted(Bug(rule, "schedule/plan.py", RULE, OTHER_RULES[rule])):
            plan, grant, preempting = [
                import_module(f"nanofn.schedule.{name}") for name in ("plan", "grant", "preempt")
            ]
            zoo, scopes, liveness = [import_module(f"nanofn.lab.{name}") for name in ("zoo", "scopes", "liveness")]

            def grant_running(state, sequence, row, num_tokens, victims):
                victims, itself = list(victims), sequence.sequence_id
                ahead = list(takewhile(lambda victim: victim != itself, victims))
                found = grant.grant_running(state, sequence, row, num_tokens, ahead)
                if found[1] != "blocks" or itself not in victims:
                    return found
                state, preempted = preempting.preempt(state, {itself})
                return state, "preempted", preempted

            plan.grant_running = grant_running
            policy = next(each for each in zoo.ZOO if each.name == name)
            return letters(liveness.study(policy, list(scopes.LIVENESS.values())[scope]))

    return run


@pytest.mark.parametrize(
    ("name", "scope", "expected"), [("newcomers take over", 1, "-"), ("victim: the oldest", 2, "S")]
)
def test_two_verdicts_are_due_to_the_rule_that_nobody_yields_itself(name, scope, expected, verdict_under) -> None:
    """Where whoever lacks blocks may be its own victim, these two cells are those of the study."""
    assert verdict_under("yields in its turn", name, scope) == expected != TABLE[name].split()[scope]


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_that_victims_rank_behind_changes_no_verdict_at_depth_1(name, verdict_under) -> None:
    """It is there for two plans in flight."""
    assert " ".join([verdict_under("may rank before", name, scope) for scope in range(3)]) == TABLE[name]


def test_half_of_the_pool_can_be_meant_otherwise() -> None:
    """Counted exactly, and for prompts alone, it locks where a prompt is longer than half, and only there."""

    def choose(view):
        free, starts = view.num_free_blocks, []
        for each in view.waiting:
            free -= blocks_for(each.num_prompt_tokens, view.limits.block_size)
            if 2 * free < view.limits.num_blocks:
                break
            starts.append(each)
        return Decision(all_of((*view.running, *starts)))

    assert [letters(study(Plain("half, exactly", choose), scope)) for scope in (A, B, C)] == ["-", "-", "LS"]


@pytest.mark.parametrize("policy", [newcomers, half_empty, skip_ahead], ids=lambda policy: policy.name)
def test_patience_makes_the_worst_of_them_clean(policy) -> None:
    """At the scope where memory is tightest nothing livelocks and nobody starves."""
    assert study(patience(policy, 3), B, Caps(3)).is_clean


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("num_steps", [3, 6])
@pytest.mark.parametrize("policy", ZOO, ids=lambda policy: policy.name)
def test_patience_makes_every_policy_clean(policy, num_steps: int) -> None:
    """At all three scopes."""
    assert all(study(patience(policy, num_steps), scope, Caps(num_steps)).is_clean for scope in (A, B, C))


@pytest.mark.parametrize("policy", [newcomers, skip_ahead], ids=lambda policy: policy.name)
def test_a_leader_makes_them_clean(policy) -> None:
    """So does ranking the oldest first."""
    assert study(leader(policy), B).is_clean


BUILT_IN = {
    "fcfs": (fcfs, "- - - - -", 12),
    "prefill_first": (prefill_first, "S S S - -", None),
    "priority": (priority, "- - - S -", None),
    "shortest_first": (shortest_first, "S S S S S", None),
    "fair": (fair, "- - - - -", 13),
    "longest_prefix": (longest_prefix, "- - - - S", None),
    "guaranteed": (guaranteed, "- - - - -", 12),
}
"""Name to the policy, its verdicts at all five scopes, and its longest wait in steps where nobody can starve."""


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_policies_keep_the_liveness_they_declare(name: str) -> None:
    """Those without a bound starve somebody where they say, and the others make nobody wait longer than stated."""
    policy, expected, longest = BUILT_IN[name]
    verdicts = [study(policy, scope) for scope in SCOPES]
    assert " ".join(map(letters, verdicts)) == expected
    if longest is not None:
        assert max(verdict.longest_wait for verdict in verdicts) == longest


@pytest.mark.parametrize(("policy", "scope"), [(priority, D), (longest_prefix, E), (prefill_first, B)])
def test_patience_gives_a_bound_to_built_in_policies_that_have_none(policy, scope: Arrivals) -> None:
    """Where they starve somebody alone they are clean within `patience`."""
    assert study(patience(policy, 3), scope, Caps(3)).is_clean


@pytest.mark.parametrize(("policy", "scope"), [(newcomers, A), (half_empty, B)], ids=["newcomers", "half empty"])
def test_a_livelock_is_a_run_that_goes_round_without_arrivals(policy, scope: Arrivals) -> None:
    """Folded through the real transitions its cycle has steps alone, and nobody's tokens grow."""
    run = study(policy, scope).livelock
    state = initial_state(scope.limits)
    for event in run.events[: run.cycle_start]:
        state, _ = transition(state, event)
    before = {each.sequence_id: each.num_tokens for each in (*state.running, *state.waiting.values())}
    around = run.events[run.cycle_start :]
    for event in around:
        state, _ = transition(state, event)
    assert {each.sequence_id: each.num_tokens for each in (*state.running, *state.waiting.values())} == before
    assert any(isinstance(event, StepDecided) for event in around)
    assert not any(isinstance(event, RequestArrived) for event in around)


def test_starvation_goes_on_for_as_long_as_it_is_repeated() -> None:
    """A hundred times around the cycle the same sequence still waits for its next token."""
    run = study(skip_ahead, B).starvation
    point = Point(initial_state(B.limits), skip_ahead.init)
    way, around = run.events[: run.cycle_start], run.events[run.cycle_start :]
    for number, event in enumerate((*way, *around * 100)):
        if isinstance(event, RequestArrived):
            point = arrived(point, evolve(event.request, request_id=RequestId(point.num_requests)))
        elif isinstance(event, StepDecided):
            point = stepped(point, skip_ahead)[1]
        if number == len(way):
            length = point.lengths[run.unserved]
    assert point.lengths[run.unserved] == length


def test_a_counter_is_told_apart_far_enough() -> None:
    """Capped too low, `patience` seems to starve; walked with the real policy the cycle is none, and the cap grows."""
    assert not study(patience(skip_ahead, 6), B, Caps(2)).is_complete
    assert study(patience(skip_ahead, 6), B, Caps(2), grows=True).is_clean


def test_the_longest_wait_is_met() -> None:
    """Strict first come, first served at scope B: six steps, and no state waits longer."""
    assert study(strict_fcfs, B).longest_wait == 6
