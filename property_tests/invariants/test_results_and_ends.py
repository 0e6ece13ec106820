"""What holds of tokens, endings, preemptions and whole runs in every transition that random works reach."""

from random import Random

import pytest
from attrs import evolve, fields
from hypothesis import given, strategies as st

from invariants.reached import effects_of, runs, steps
from nanofn.lab.random_work import random_decision, random_limits, random_request
from nanofn.lab.work import Work
from nanofn.policy import fcfs
from nanofn.schedule.plan import plan
from nanofn.schedule.transition import transition
from nanofn.state.decision import Decision
from nanofn.state.effects import Admitted, Finished, Preempted, Refused, TokensCommitted
from nanofn.state.engine_state import EngineState, find, initial_state
from nanofn.state.events import (
    HintChanged,
    PrefixCacheReset,
    RequestAborted,
    RequestArrived,
    StepCompleted,
    StepDecided,
    StepFailed,
    StopStringMatched,
)
from nanofn.state.invariants import live
from nanofn.state.step_invariants import step_violations


def test_a_token_is_accepted_if_its_sequence_lives_and_it_is_the_next() -> None:
    """inv37: of a plan's samples, in entry order, exactly those; the epoch does not matter."""
    counts = {"accepted": 0, "dropped": 0, "of a past epoch": 0}
    for step in steps(StepCompleted):
        known = {sequence.sequence_id: sequence for sequence in live(step.before)}
        expected = []
        for entry, token_id in zip(
            [entry for entry in step.before.in_flight[0].entries if entry.samples],
            step.event.result.token_ids,
            strict=True,
        ):
            sequence = known.get(entry.sequence_id)
            if sequence is not None and sequence.num_tokens == entry.first_position + entry.num_tokens:
                expected.append((entry.sequence_id, token_id, sequence.num_tokens + 1))
                counts["of a past epoch"] += sequence.epoch != entry.epoch
            else:
                counts["dropped"] += 1
        counts["accepted"] += len(expected)
        columns = [(each.sequence_ids, each.token_ids, each.num_tokens) for each in effects_of(step, TokensCommitted)]
        assert columns == ([tuple(zip(*expected, strict=True))] if expected else [])
    assert min(counts.values()) > 5, counts


def test_what_has_ended_is_never_heard_of_again() -> None:
    """inv40: no effect but a refusal names a sequence after its end, and it is not among the living."""
    count = 0
    for run in runs():
        ended = set()
        for step in run:
            for effect in step.effects:
                if isinstance(effect, Refused):
                    continue
                named = getattr(effect, "sequence_ids", (getattr(effect, "sequence_id", None),))
                assert not ended & set(named)
                if isinstance(effect, Finished):
                    ended.add(effect.sequence_id)
            assert not ended & {sequence.sequence_id for sequence in live(step.after)}
        count += len(ended)
    assert count > 200


def test_preemption_keeps_tokens_and_nothing_else() -> None:
    """inv41: known tokens, times and hint stay; the epoch is one more; nothing is computed, held or awaited."""
    count = 0
    for step in steps():
        for effect in effects_of(step, Preempted):
            was, now = step.before.running.get(effect.sequence_id), find(step.after, effect.sequence_id)
            assert was is not None
            assert now is not None
            assert effect.num_computed_tokens == was.num_computed_tokens
            reset = {"row": None, "num_computed_tokens": 0, "block_table": type(was.block_table)()}
            assert now == evolve(was, epoch=was.epoch + 1, **reset)
            assert now.num_placeholders == 0
            count += 1
    assert count > 50


def test_admission_touches_only_the_queue_and_the_requests() -> None:
    """inv43: every other field is the very same object, and whoever waited before waits as before."""
    count = 0
    for step in steps(RequestArrived):
        changing = {"waiting", "by_request", "next_sequence_id"} if effects_of(step, Admitted) else set()
        for each in fields(EngineState):
            if each.name not in changing:
                assert getattr(step.after, each.name) is getattr(step.before, each.name)
        assert [pair for pair in step.after.waiting if step.before.waiting.get(pair[0])] == list(step.before.waiting)
        count += bool(changing)
    assert count > 100


def test_an_idle_engine_has_everything_back() -> None:
    """inv44: at the end of a run all blocks and rows are free, no count and no request is left, nothing flies."""
    for run in runs():
        state = run[-1].after
        assert not live(state)
        assert (state.pool.num_free, len(state.pool.shared)) == (state.limits.num_blocks, 0)
        assert sorted(state.rows) == list(range(state.limits.max_num_seqs))
        assert (len(state.by_request), state.in_flight) == (0, ())


def test_a_run_is_the_fold_of_its_events() -> None:
    """inv53: folded again from the empty state, the same states, effects and plans come out."""
    for run in runs()[::4]:
        state = initial_state(run[0].before.limits)
        for step in run:
            state, effects = transition(state, step.event)
            assert (state, effects) == (step.after, step.effects)


def test_whoever_is_refused_is_as_before() -> None:
    """safe12: a sequence that got a refusal and nothing else has the same record after the call."""
    count = 0
    for step in steps(StepDecided):
        others = {getattr(effect, "sequence_id", None) for effect in step.effects if not isinstance(effect, Refused)}
        (launched,) = [effect.step_plan for effect in step.effects if hasattr(effect, "step_plan")]
        touched = others | set(launched.entries.sequence_id)
        for effect in effects_of(step, Refused):
            if effect.sequence_id not in touched:
                assert find(step.after, effect.sequence_id) == find(step.before, effect.sequence_id)
                count += 1
    assert count > 200


IDS = st.integers(-1, 9)
EVENTS = st.one_of(
    st.builds(RequestAborted, IDS),
    st.builds(StopStringMatched, IDS, st.integers(-3, 9)),
    st.builds(HintChanged, IDS, st.none() | st.integers()),
    st.builds(PrefixCacheReset, st.booleans()),
    st.builds(StepFailed, st.integers(-1, 99)),
    st.builds(
        StepDecided,
        st.builds(
            Decision,
            grants=st.lists(st.tuples(IDS, st.integers(-2, 10**9)), max_size=9).map(tuple),
            preempt=st.lists(IDS, max_size=3).map(tuple),
            victims=st.none() | st.lists(IDS, max_size=6).map(tuple),
            shed=st.lists(IDS, max_size=2).map(tuple),
            skip_blocked=st.booleans(),
        ),
        st.integers(),
    ),
)


@given(st.integers(0, 10**6), EVENTS)
def test_any_event_in_any_state_is_answered(number, event) -> None:
    """safe13: well-typed events about the living, the dead and nobody raise nothing, and break no rule."""
    every = steps()
    before = every[number % len(every)].after
    after, effects = transition(before, event)
    assert step_violations(before, event, after, effects) == ()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_admitted_can_be_served_alone(seed: int) -> None:
    """safe14: in its own limits, after any decisions about it, a request that was not refused runs to its end."""
    random = Random(seed)
    limits = random_limits(random)
    for number in range(6):
        run = Work(limits, checked=False)
        (effect,) = run.arrive(random_request(random, number, limits.max_model_len))
        if not isinstance(effect, Admitted):
            continue
        for _ in range(random.randint(0, 6)):
            run.step(random_decision(random, run.live_ids))
            if run.executor.results:
                run.deliver()
        run.drain(fcfs)
        run.check_all_returned()


def test_a_plan_that_is_made_twice_is_made_once() -> None:
    """inv34: `plan` on a kept state gives the same again after others were made from it."""
    for step in steps(StepDecided)[::5]:
        plan(step.before, Decision())
        assert transition(step.before, step.event) == (step.after, step.effects)
