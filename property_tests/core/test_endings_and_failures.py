"""abort, stop, hint, fail, reset: what comes from outside."""

import pytest

from core.build import grants, planned, request, work
from nanofn.lab.random_work import random_work
from nanofn.policy import fcfs
from nanofn.schedule.abort import abort
from nanofn.schedule.fail import fail
from nanofn.schedule.hint import hint
from nanofn.schedule.reset_prefix_cache import reset_prefix_cache
from nanofn.schedule.stop import stop
from nanofn.state.decision import Decision
from nanofn.state.effects import Finished, Preempted, PrefixCacheCleared
from nanofn.state.events import HintChanged, PrefixCacheReset, StopStringMatched


def test_abort_ends_every_child_wherever_it_is() -> None:
    """Running or waiting, with the output it has; everything it held is free at once."""
    run = work(request(0, 9, n=3), max_num_seqs=1)
    run.step(grants(0))
    run.deliver()
    run.step(grants(0))
    assert run.abort(0) == (Finished(0, "abort", None, 1), Finished(1, "abort", None, 0), Finished(2, "abort", None, 0))
    run.deliver()
    run.check_all_returned()


def test_abort_twice_is_once() -> None:
    """And an unknown request is no request."""
    state, _ = abort(work(request(0, 3)).state, 0)
    assert abort(state, 0) == (state, ())
    assert abort(state, 99) == (state, ())


def test_a_waiting_request_that_is_aborted_leaves_the_cache_as_it_was() -> None:
    """It had looked at cached blocks and held none."""
    run = work(request(0, 9, 1), max_num_seqs=1)
    run.step(grants(0))
    run.deliver()
    before = run.state
    run.arrive(request(1, range(9)))
    run.abort(1)
    assert (run.state.pool, run.state.prefix_index) == (before.pool, before.prefix_index)


def test_an_idle_engine_after_an_abort_steps_to_nothing() -> None:
    """No request, no plan, no error."""
    run = work(request(0, 3))
    run.step(grants(0))
    run.deliver()
    run.abort(0)
    assert run.step(grants(0)).plan_id is None


def test_a_stop_string_cuts_the_surplus() -> None:
    """The output ends where the text layer says, however many tokens were committed since."""
    run = work(request(0, 3))
    for _ in range(4):
        run.step(grants(0))
        run.deliver()
    assert run.apply(StopStringMatched(0, 2)) == (Finished(0, "stop", None, 2),)
    assert stop(run.state, 0, 2) == (run.state, ())
    run.check_all_returned()
    run.check_outputs()


@pytest.mark.parametrize(("asked", "kept"), [(-3, 0), (0, 0), (9, 1)])
def test_a_stop_keeps_at_most_what_is_there(asked: int, kept: int) -> None:
    """Counts out of range are brought into it."""
    run = work(request(0, 3))
    run.step(grants(0))
    run.deliver()
    assert run.apply(StopStringMatched(0, asked)) == (Finished(0, "stop", None, kept),)


def test_a_hint_changes_the_hint_alone() -> None:
    """Of a running sequence, of a waiting one, of nobody."""
    run = work(request(0, 3), request(1, 3))
    run.step(grants(0))
    run.apply(HintChanged(0, 5))
    run.apply(HintChanged(1, (1, 2.5)))
    assert (run.state.running[0].hint, run.state.waiting.get(1).hint) == (5, (1, 2.5))
    assert hint(run.state, 9, 5) == (run.state, ())
    run.apply(HintChanged(0, None))
    assert run.state.running[0].hint is None


def test_a_failed_step_preempts_whom_it_names_and_loses_nothing() -> None:
    """The others keep their blocks; the named ones compute their known tokens anew."""
    run = work(request(0, 3), request(1, 3))
    run.step(grants(0, 1))
    run.deliver()
    plan_id = run.step(grants(0)).plan_id
    assert run.fail(plan_id) == (Preempted(0, 4),)
    assert run.live_ids == (1, 0)
    assert run.state.waiting.get(0).num_tokens == 4
    assert run.state.running[0].num_computed_tokens == 3
    run.drain(fcfs)
    run.check_all_returned()
    run.check_outputs()


def test_a_failure_drops_all_later_plans() -> None:
    """Their results, should they come, are no news; earlier plans stay."""
    run = work(request(0, 3), request(1, 3), request(2, 3))
    run.step(grants(0))
    second, third = run.step(grants(1)).plan_id, run.step(grants(2, 0)).plan_id
    effects = run.fail(second)
    assert [effect.sequence_id for effect in effects] == [0, 1, 2]
    assert [step_plan.plan_id for step_plan in run.state.in_flight] == [0]
    assert fail(run.state, third) == (run.state, ())
    run.deliver()  # the token of the first plan is accepted although 0 was preempted
    assert run.state.waiting.get(0).num_tokens == 4
    run.drain(fcfs)
    run.check_outputs()


def test_a_failure_names_only_the_living_in_their_epoch() -> None:
    """A sequence that ended or was preempted after the plan is not preempted again."""
    run = work(request(0, 3), request(1, 3))
    plan_id = run.step(grants(0, 1)).plan_id
    run.step(Decision(preempt=(0,)))
    run.abort(1)
    assert run.fail(plan_id) == ()
    assert run.state.waiting.get(0).epoch == 1


def test_what_a_failed_step_half_wrote_is_not_offered() -> None:
    """Nothing of it is in the prefix index, and the whole prompt is computed again."""
    run = work(request(0, 9))
    run.fail(run.step(grants(0)).plan_id)
    assert not len(run.state.prefix_index.holders)
    assert planned(run.step(grants(0))) == {0: (0, 9)}


def test_a_reset_is_all_or_nothing() -> None:
    """With running sequences it does nothing unless they may be preempted; then the cache is empty."""
    run = work(request(0, 9), request(1, 9))
    run.step(grants(0, 1))
    run.deliver()
    assert reset_prefix_cache(run.state, preempt_running=False) == (run.state, ())
    assert run.apply(PrefixCacheReset(preempt_running=True)) == (
        Preempted(0, 9),
        Preempted(1, 9),
        PrefixCacheCleared(4),
    )
    assert run.live_ids == (0, 1)
    assert run.state.pool.num_free == 16
    assert planned(run.step(grants(0, 1))) == {0: (0, 10), 1: (0, 10)}


def test_a_reset_without_running_sequences_clears_the_cache() -> None:
    """Also while plans of ended sequences are in flight: they publish nothing."""
    run = work(request(0, 9), request(1, [*range(9), 7]))
    run.step(grants(0))
    run.abort(0)
    assert run.apply(PrefixCacheReset(preempt_running=False)) == (PrefixCacheCleared(0),)
    run.deliver()
    assert not len(run.state.prefix_index.holders)
    assert planned(run.step(grants(1))) == {1: (0, 10)}


def test_two_resets_in_a_row_lose_no_token() -> None:
    """Results in flight are accepted by position after each."""
    run = work(request(0, 3))
    run.step(grants(0))
    run.step(grants(0))
    for _ in range(2):
        run.apply(PrefixCacheReset(preempt_running=True))
    run.deliver()
    run.deliver()
    assert run.state.waiting.get(0).num_tokens == 5
    run.drain(fcfs, depth=2)
    run.check_outputs()


def test_every_step_may_fail_once() -> None:
    """At each depth, whichever plan fails: nothing is lost. Random works with failing steps ended with all outputs."""
    for depth in (1, 2, 3):
        for failing in range(8):
            run = work(request(0, 5, 4), request(1, 6, 3, n=2), num_blocks=6, max_model_len=25, max_num_seqs=3)
            for number in range(4):
                if len(run.state.in_flight) == depth:
                    run.deliver()
                run.step(grants(*run.live_ids), fails=number == failing)
            run.drain(fcfs, depth=depth)
            run.check_all_returned()
            run.check_outputs()


def test_aborting_everything_at_any_point_leaves_an_empty_engine() -> None:
    """Whatever was going on, only the prefix index remembers."""
    for seed in range(30):
        run = random_work(seed, checked=False)
        run.arrive(request(50, 1, n=2))
        run.step(grants(*run.live_ids))
        run.abort(50)
        assert not run.live_ids
        assert run.state.pool.num_free == run.state.limits.num_blocks


def test_the_failure_of_a_plan_that_is_not_in_flight_changes_nothing() -> None:
    """One that has its result, while a later one flies; and one that was never made."""
    run = work(request(0, 3), request(1, 3))
    run.step(grants(0))
    run.deliver()
    run.step(grants(0, 1))
    for plan_id in (0, 7):
        assert fail(run.state, plan_id) == (run.state, ())
