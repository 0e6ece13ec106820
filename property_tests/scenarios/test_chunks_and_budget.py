"""Prompts in pieces: which tokens a step computes, what the budget is charged, and who decodes meanwhile."""

import pytest

from core.build import grants, planned, refusals, request, work
from nanofn.policy import fcfs
from nanofn.schedule.view import view
from scenarios.row import row


def fcfs_step(run):
    """One step of fcfs at depth 1; returns the plan."""
    _, decision = fcfs.decide(None, view(run.state, 0))
    step_plan = run.step(decision)
    run.deliver()
    return step_plan


@row("D1", "D2", "D5", "R6", "R27", "R28", "R29", "R31")
@pytest.mark.parametrize("facts", [{"enable_prefix_caching": False}, {}, {"block_size": 16}])
@pytest.mark.parametrize(("prompt", "budget"), [(40, 16), (100, 32), (10, 6), (9, 8), (5, 8)])
def test_chunks_follow_each_other_and_the_last_one_samples(prompt: int, budget: int, facts) -> None:
    """Each begins where the one before ended and reads no further; then decode: one token at the prompt's end."""
    run = work(request(0, prompt, 3), num_blocks=40, max_num_batched_tokens=budget, **facts)
    starts = list(range(0, prompt, budget))
    for start in starts:
        step_plan = fcfs_step(run)
        assert planned(step_plan) == {0: (start, min(budget, prompt - start))}
        assert step_plan.entries.samples == (start == starts[-1],)
        assert len(run.outputs[0]) == (start == starts[-1])
    assert planned(fcfs_step(run)) == {0: (prompt, 1)}
    run.drain(fcfs)
    run.check_outputs()


@row("R27")
def test_a_chunk_may_begin_inside_a_block() -> None:
    """Three of ten tokens are computed: the next chunk continues in the same block, and each slot is written once."""
    run = work(request(0, 10, 2))
    run.step(grants((0, 3)))
    run.deliver()
    assert planned(run.step(grants((0, 4)))) == {0: (3, 4)}
    run.deliver()
    run.drain(fcfs)
    run.check_outputs()


@row("D3")
def test_a_chunk_that_is_refused_counts_for_nothing() -> None:
    """No room for the next 32 tokens: computed tokens, blocks and cache stay, and no entry is empty."""
    run = work(request(0, 64, 2), request(1, 32, 9), block_size=16, num_blocks=4, max_model_len=65)
    run.step(grants((0, 32), 1))
    run.deliver()
    before = run.state
    step_plan = run.step(grants((1, 0), (0, 32)))
    assert (refusals(step_plan), len(step_plan.entries)) == ({0: "blocks"}, 0)
    assert (run.state.running, run.state.pool, run.state.prefix_index) == (
        before.running,
        before.pool,
        before.prefix_index,
    )


@row("D4")
def test_the_budget_is_charged_what_is_really_computed() -> None:
    """A hit of 48 tokens was in sight; a grant before it evicts one of its blocks: 32 are hit, the rest is charged."""
    run = work(block_size=16, num_blocks=11, max_num_batched_tokens=96, max_model_len=129)
    for number, prompt in ((0, range(48)), (3, range(300, 348))):  # the first of two cached prefixes is evicted first
        run.arrive(request(number, prompt, 1))
        run.step(grants(*run.live_ids))
        run.deliver()
    run.arrive(request(1, 96, 2))
    run.arrive(request(2, [*range(48), *range(900, 916)], 2))
    assert [each.num_cached_tokens for each in view(run.state, 0).waiting] == [0, 48]
    run.step(grants((2, 80)))
    run.deliver()
    step_plan = run.step(grants((2, 16), (3, 96)))
    # The sixth block of the first grant was the last of the three that the second would have hit.
    assert planned(step_plan) == {2: (80, 16), 3: (32, 32)}
    assert sum(step_plan.entries.num_tokens) <= 96


@row("A8", "R16")
@pytest.mark.parametrize(
    ("block_size", "cached", "prompt", "budget", "taken"),
    [(16, 32, 48, 64, 40), (4, 4, 7, 16, 0)],
)
def test_the_hit_comes_before_the_count(block_size: int, cached: int, prompt: int, budget: int, taken: int) -> None:
    """A sequence gets what is left after its hit, at most what is left of the budget; refused, it holds no block."""
    run = work(request(0, range(cached + 1), 1), block_size=block_size, max_num_batched_tokens=budget)
    run.step(grants(0))
    run.deliver()
    run.arrive(request(1, max(taken, 1), 2))
    run.arrive(request(2, [*range(cached), *range(500, 500 + prompt - cached)], 2))
    step_plan = run.step(grants((1, taken), 2))
    assert planned(step_plan)[2] == (cached, min(prompt - cached, budget - taken))
    run.deliver()
    run.arrive(request(3, budget, 2))
    run.arrive(request(4, [*range(cached), 7, 7], 2))
    free = run.state.pool.num_free
    assert refusals(run.step(grants(3, 4))) == {4: "token_budget"}
    assert free - run.state.pool.num_free == budget // block_size


@row("L5")
def test_decodes_are_charged_to_the_budget() -> None:
    """Ten running and a budget of four: four decode in each step, and all have their turn."""
    run = work(*[request(number, 1, 5) for number in range(10)], max_num_seqs=10, max_num_batched_tokens=4)
    while run.live_ids:
        assert sum(fcfs_step(run).entries.num_tokens) <= 4
    assert set(run.endings.values()) == {("length", 5)}


@row("R13", "L6", "L7", "R33")
@pytest.mark.parametrize("prompt", [4, 160])
def test_whoever_runs_decodes_in_every_step(prompt: int) -> None:
    """With a new prompt in each step, or one of ten budgets' length, a running sequence still gets its token each time."""
    run = work(request(0, 3, 90), num_blocks=100, max_num_batched_tokens=16)
    for number in range(50):
        step_plan = fcfs_step(run)
        assert 0 in planned(step_plan)
        assert len(run.outputs[0]) == number + 1
        if number == 0 or prompt < 160:
            run.arrive(request(number + 1, prompt, 2))
    assert sum(run.endings.get(number) is not None for number in range(1, 51)) >= 1
