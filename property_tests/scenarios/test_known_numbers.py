"""Numbers that vLLM's tests of its scheduler assert, restated for this core.

From `tests/v1/core` of https://github.com/vllm-project/vllm at 017e9f4448, in our own words and on our own calls.
"""

from random import Random

import pytest

from core.build import grants, planned, refusals, request, work
from nanofn.policy import by_key, fcfs, priority
from nanofn.schedule.view import view
from nanofn.state.effects import Preempted, TokensCommitted
from nanofn.state.events import PrefixCacheReset


def counts(step_plan):
    """Tokens of each entry, in rank order."""
    return list(step_plan.entries.num_tokens)


def step(run, *pairs, **rest):
    """Plan, launch and deliver."""
    step_plan = run.step(grants(*pairs, **rest))
    run.deliver()
    return step_plan


def test_three_prompts_in_pieces_share_a_budget() -> None:
    """Budget 1,024, at most 400 each, three of 800: 400, 400, 224 twice; then two decode and the third gets the rest."""
    run = work(
        *[request(number, 800) for number in range(3)], num_blocks=256, block_size=16, max_num_batched_tokens=1_024
    )
    wish = [(number, 400) for number in range(3)]
    assert [counts(step(run, *wish)) for _ in range(3)] == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


def test_short_prompts_do_not_overtake() -> None:
    """Budget 1,024 and prompts of 800, 800, 10, 10: the first and a piece of the second start, nobody else."""
    lengths = (800, 800, 10, 10)
    run = work(
        *[request(number, length) for number, length in enumerate(lengths)],
        num_blocks=256,
        block_size=16,
        max_num_batched_tokens=1_024,
    )
    _, decision = fcfs.decide(None, view(run.state, 0))
    assert planned(run.step(decision)) == {0: (0, 800), 1: (0, 224)}


def test_a_token_in_flight_survives_its_owners_preemption_once() -> None:
    """Two prompts of 80 in ten blocks of 16: the second loses its blocks while its step runs; its token counts once."""
    run = work(request(0, 80), request(1, 80), num_blocks=10, block_size=16)
    run.step(grants(0))
    run.step(grants(1))
    run.deliver()
    step_plan = run.step(grants(0, 1))
    assert [effect.sequence_id for effect in step_plan.effects if isinstance(effect, Preempted)] == [1]
    (committed,) = [effect for effect in run.deliver() if isinstance(effect, TokensCommitted)]
    assert (committed.sequence_ids, committed.num_tokens) == ((1,), (81,))
    run.drain(fcfs, depth=2)
    run.check_outputs()


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
def test_an_end_by_length_wastes_no_step(max_tokens: int) -> None:
    """Two steps ahead: prompt + max_tokens - 1 tokens are planned in all."""
    run = work(request(0, 10, max_tokens))
    run.drain(fcfs, depth=2)
    assert run.endings[0] == ("length", max_tokens)
    assert run.executor.num_computed == 10 + max_tokens - 1


def test_each_of_ten_aborted_in_turn_has_the_tokens_of_the_results_before() -> None:
    """One abort a step in mixed order, two steps in flight: as many tokens as results that came, none later."""
    order = Random(3).sample(range(10), 10)
    run = work(*[request(number, 5, 20) for number in range(10)], max_num_seqs=10, num_blocks=100)
    for _ in range(2):
        run.step(grants(*range(10)))
    for number, aborted in enumerate(order):
        run.deliver()
        assert run.abort(aborted)[0].num_output_tokens == number + 1
        run.step(grants(*range(10)))
    while run.executor.results:
        assert run.deliver() == ()
    assert [len(run.outputs[aborted]) for aborted in order] == list(range(1, 11))
    run.check_all_returned()


def test_equal_prompts_of_a_hundred_compute_four_tokens_after_the_first() -> None:
    """In blocks of 16, 96 of 100 tokens are hits; 17 equal tokens are 16 hits and one."""
    run = work(*[request(number, range(100)) for number in range(3)], block_size=16, num_blocks=64)
    assert counts(step(run, 0, 1, 2)) == [100]
    assert counts(step(run, 1, 2)) == [4, 4]
    run = work(request(0, range(17), 1), block_size=16)
    step(run, 0)
    run.arrive(request(1, range(17), 1))
    assert planned(step(run, 1)) == {1: (16, 1)}


def test_three_equal_prompts_in_tiny_pieces_all_end() -> None:
    """Budget 6, at most 2 tokens each, three rows."""
    run = work(*[request(number, range(9), 3) for number in range(3)], max_num_batched_tokens=6, max_num_seqs=3)
    for _ in range(60):
        if run.live_ids:
            run.step(grants(*[(key, 2) for key in run.live_ids]))
        if run.executor.results:
            run.deliver()
    assert run.is_idle
    run.check_outputs()


@pytest.mark.parametrize("seed", range(5))
def test_priority_then_arrival_decides_who_runs_and_how_the_rest_is_ranked(seed: int) -> None:
    """Any mix of priorities and three rows: the three best start, best first, and the others follow in that order."""
    random = Random(seed)
    asked = [request(number, 3, 2, priority=random.randint(0, 3)) for number in range(9)]
    run = work(*asked, num_blocks=64, max_num_seqs=3)
    best_first = sorted(range(9), key=lambda number: (asked[number].priority, number))
    policy_state, started = priority.init, []
    while run.live_ids:
        policy_state, decision = priority.decide(policy_state, view(run.state, 0))
        step_plan = run.step(decision)
        started += [key for key in step_plan.entries.sequence_id if key not in started]
        run.deliver()
    assert started == best_first


def test_the_less_important_yields_when_the_other_needs_a_third_block() -> None:
    """Five blocks of 16: low has 32 tokens, then high 32; when high opens its third block low has to go, not high."""
    policy = by_key(lambda each: each.priority, watermark=0)
    run = work(request(0, 32, 9, priority=1), num_blocks=5, block_size=16, max_model_len=81)
    step(run, 0)
    run.arrive(request(1, 32, 9, priority=0))
    step(run, 1, (0, 0))
    step_plan = run.step(grants(0))  # low opens its third block, the last one
    assert refusals(step_plan) == {}
    run.deliver()
    _, decision = policy.decide(policy.init, view(run.state, 0))
    step_plan = run.step(decision)
    assert [effect.sequence_id for effect in step_plan.effects if isinstance(effect, Preempted)] == [0]
    assert planned(step_plan) == {1: (32, 1)}


def test_blocks_are_allocated_shared_and_released_in_the_known_order() -> None:
    """55 tokens are three full blocks and one partial; a twin shares three; all ten are reused tails first."""
    run = work(request(0, range(55), 9), num_blocks=10, block_size=16)
    step(run, 0)
    run.arrive(request(1, [*range(48), *range(200, 207)], 9))
    step(run, 1)
    tables = [tuple(each.block_table) for each in run.state.running]
    assert tables == [(0, 1, 2, 3), (0, 1, 2, 4)]
    run.abort(0)
    run.abort(1)
    run.arrive(request(2, range(500, 660), 1))
    run.step(grants(2))
    assert tuple(run.state.running[0].block_table) == (4, 3, 5, 6, 7, 8, 9, 2, 1, 0)
    assert not len(run.state.prefix_index.holders)


def test_decodes_fill_the_partial_block_first() -> None:
    """After 55 tokens four more take no block, and 19 take one; the block they fill is published, the last is not."""
    run = work(request(0, range(55), 30), num_blocks=10, block_size=16)
    step(run, 0)
    for _ in range(4):
        assert step(run, 0).new_blocks == ()
    opened = sum(len(step(run, 0).new_blocks) for _ in range(15))
    assert (opened, len(run.state.running[0].block_table)) == (1, 5)
    assert len(run.state.prefix_index.holders) == 4


def test_a_forced_reset_sends_all_back_in_the_order_they_came() -> None:
    """Refused while they run; forced, they wait in their order and in front of whoever came later."""
    run = work(*[request(number, 20) for number in range(3)], num_blocks=64)
    step(run, 2, 0, 1)
    run.arrive(request(3, 20))
    assert run.apply(PrefixCacheReset(preempt_running=False)) == ()
    run.apply(PrefixCacheReset(preempt_running=True))
    assert [key for key, _ in run.state.waiting] == [0, 1, 2, 3]
    run.drain(fcfs)
    run.check_outputs()


def test_a_full_pool_refuses_without_a_cache() -> None:
    """No hits with the cache off, and no room means no."""
    run = work(request(0, 60, 9), num_blocks=4, block_size=16, enable_prefix_caching=False, max_model_len=65)
    step(run, 0)
    run.arrive(request(1, range(16), 1))
    assert refusals(run.step(grants(1))) == {1: "blocks"}
    assert not len(run.state.prefix_index.holders)
