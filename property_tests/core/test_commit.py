"""What results do: tokens, endings, published blocks."""

import pytest

from core.build import grants, request, work
from nanofn.errors import PlanOrderError
from nanofn.lab.shadow import EOS
from nanofn.schedule.commit import commit
from nanofn.state.decision import Decision
from nanofn.state.effects import Finished, TokensCommitted
from nanofn.state.persistent import sorted_items
from nanofn.state.step_plan import StepResult


def outcome(run, *token_ids, now_us=0):
    """Commit chosen tokens for the oldest plan of a work, in place of the fake model's."""
    plan_id, _ = run.executor.results.popleft()
    run.executor.results.appendleft((plan_id, StepResult(token_ids, now_us)))
    return run.deliver()


def decoding(*, max_tokens=8, **facts):
    """A sequence whose first token is in flight."""
    run = work(request(0, 3, max_tokens, **facts))
    run.step(grants(0))
    return run


def test_tokens_are_committed_as_columns() -> None:
    """Ids, tokens and counts in entry order; times are copied."""
    run = work(request(0, 3), request(1, 4))
    run.step(grants(1, 0))
    assert outcome(run, 5, 6, now_us=77) == (TokensCommitted((1, 0), (5, 6), (5, 4)),)
    assert [(each.first_output_us, each.last_output_us) for each in run.state.running] == [(77, 77)] * 2
    run.step(grants(0, 1))
    outcome(run, 5, 6, now_us=99)
    assert [(each.first_output_us, each.last_output_us) for each in run.state.running] == [(77, 99)] * 2


def test_the_last_allowed_token_ends_by_length() -> None:
    """By max_tokens, or by max_model_len when that comes first."""
    assert outcome(decoding(max_tokens=1), 5)[1:] == (Finished(0, "length", None, 1),)
    run = work(request(0, 7, 9), num_blocks=2, max_model_len=8)
    run.step(grants(0))
    assert outcome(run, 5)[1:] == (Finished(0, "length", None, 1),)


def test_a_stop_token_as_the_last_allowed_one_is_a_stop() -> None:
    """The reason is "stop", with the token."""
    assert outcome(decoding(max_tokens=1, stop_token_ids=(4, EOS)), EOS)[1:] == (Finished(0, "stop", EOS, 1),)


def test_only_stop_tokens_of_its_own_end_a_sequence() -> None:
    """Each of several does; without any, none does."""
    for token_id in (4, 9):
        assert outcome(decoding(stop_token_ids=(4, 9)), token_id)[1:] == (Finished(0, "stop", token_id, 1),)
    assert outcome(decoding(stop_token_ids=()), EOS)[1:] == ()


@pytest.mark.parametrize("min_tokens", [0, 1, 4])
def test_min_tokens_precede_a_stop_token(min_tokens: int) -> None:
    """With EOS at every position an output has min_tokens + 1 tokens, EOS being the last."""
    run = decoding(min_tokens=min_tokens, stop_token_ids=(EOS,))
    count = 1
    while not any(isinstance(effect, Finished) for effect in outcome(run, EOS)):
        run.step(grants(0))
        count += 1
    assert count == min_tokens + 1
    assert run.endings[0] == ("stop", count)


def test_min_tokens_do_not_lift_the_hard_limits() -> None:
    """A sequence that reaches its length below min_tokens ends there."""
    run = work(request(0, 7, 20, min_tokens=20), num_blocks=2, max_model_len=9)
    run.step(grants(0))
    outcome(run, 5)
    run.step(grants(0))
    assert outcome(run, 5)[1:] == (Finished(0, "length", None, 2),)


def test_an_abort_beats_the_result_in_flight() -> None:
    """Applied first, it is the outcome; the late token is dropped."""
    run = decoding(max_tokens=1)
    assert run.abort(0) == (Finished(0, "abort", None, 0),)
    assert outcome(run, 5) == ()
    run.check_all_returned()


def test_a_preempted_sequence_keeps_what_was_sampled_for_it() -> None:
    """A token is accepted by its position, whatever the epoch, and even ends the sequence."""
    run = decoding(max_tokens=2)
    run.step(grants(0))
    run.step(Decision(preempt=(0,)))
    assert outcome(run, 5) == (TokensCommitted((0,), (5,), (4,)),)
    assert run.state.waiting.get(0).num_tokens == 4
    assert outcome(run, 6) == (TokensCommitted((0,), (6,), (5,)), Finished(0, "length", None, 2))
    run.check_all_returned()


def test_a_zombie_step_is_dropped() -> None:
    """After a stop token the step already launched finds no sequence; nothing is committed or freed twice."""
    run = decoding(stop_token_ids=(EOS,))
    run.step(grants(0))
    outcome(run, EOS)
    assert run.state.pool.num_free == 16
    assert outcome(run, 5) == ()
    run.check_all_returned()


def test_blocks_are_published_once_their_tokens_are_known_and_written() -> None:
    """Not when planned, not while a token is a placeholder, not when partial."""
    run = work(request(0, 7))
    published = []
    for _ in range(3):
        run.step(grants(0))
        published.append(len(run.state.prefix_index.holders))
    while run.executor.results:
        run.deliver()
        published.append(len(run.state.prefix_index.holders))
    assert published == [0, 0, 0, 1, 2, 2]


def test_a_past_epoch_publishes_nothing() -> None:
    """What a preempted sequence computed is not offered: its blocks may belong to others by now."""
    run = work(request(0, 9))
    run.step(grants(0))
    run.step(Decision(preempt=(0,)))
    run.deliver()
    assert not len(run.state.prefix_index.holders)


def test_the_next_turn_hits_prompt_and_output() -> None:
    """A conversation goes on from its own blocks, outputs included."""
    run = work(request(0, 5, 8))
    while run.live_ids:
        run.step(grants(0))
        run.deliver()
    run.arrive(request(1, [*range(5), *run.outputs[0], 50, 51]))
    run.step(grants(1))
    assert run.state.running[0].num_computed_tokens == 15
    assert run.log[-1].decision.grants == ((1, 1_000),)
    assert run.state.in_flight[0].entries[0].first_position == 12


def test_equal_prompts_computed_side_by_side_are_both_kept() -> None:
    """The first holder stays; when it is gone the second is found."""
    run = work(request(0, 8, 2), request(1, 8, 2), num_blocks=8)
    run = work(request(0, range(9), 2, reads_prefix_cache=False), request(1, range(9), 2, reads_prefix_cache=False))
    run.step(grants(0, 1))
    run.deliver()
    holders = [blocks for _, blocks in sorted_items(run.state.prefix_index.holders)]
    assert sorted(holders) == [(0, 3), (1, 4)]
    run.step(grants(0, 1))
    run.deliver()
    run.arrive(request(2, range(9)))
    run.step(grants(2))
    assert tuple(run.state.running[0].block_table)[:2] == (0, 1)


def test_results_come_oldest_first() -> None:
    """A younger plan's result, or one with the wrong number of tokens, is the caller's bug, and changes nothing."""
    run = work(request(0, 3))
    first = run.step(grants(0)).plan_id
    second = run.step(grants(0)).plan_id
    with pytest.raises(PlanOrderError, match=f"a result for plan {second} came, but due is plan {first}"):
        commit(run.state, second, StepResult((1,), 0))
    with pytest.raises(PlanOrderError, match="1 tokens instead of 2"):
        commit(run.state, first, StepResult((1, 2), 0))


def test_a_plan_that_is_not_in_flight_is_no_news() -> None:
    """The result of a dropped plan, or a result given twice, changes nothing."""
    run = work(request(0, 3))
    plan_id = run.step(grants(0)).plan_id
    assert commit(run.state, plan_id + 1, StepResult((1,), 0)) == (run.state, ())
    run.deliver()
    assert commit(run.state, plan_id, StepResult((1,), 0)) == (run.state, ())
