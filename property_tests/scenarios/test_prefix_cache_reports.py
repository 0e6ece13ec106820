"""What the prefix index offers was computed, is still there, and belongs to nobody else's prefix."""

import pytest

from core.build import grants, planned, refusals, request, work
from nanofn.policy import fcfs
from nanofn.schedule.view import view
from nanofn.state.effects import Started
from scenarios.row import row


def solo(run, number):
    """Run one sequence to its end; returns how many cached tokens it started with."""
    step_plan = run.step(grants(number))
    run.deliver()
    while number in run.live_ids:
        run.step(grants(number))
        run.deliver()
    return next(effect.num_cached_tokens for effect in step_plan.effects if isinstance(effect, Started))


@row("C1", "R19")
@pytest.mark.parametrize(("first", "second", "num_blocks"), [(8, 8, 2), (9, 12, 3)])
def test_a_block_with_new_content_is_not_found_under_the_old(first: int, second: int, num_blocks: int) -> None:
    """X, then Y in the same blocks, then X again: X hits nothing, and the index holds no more than the pool."""
    run = work(num_blocks=num_blocks, max_model_len=num_blocks * 4 + 1)
    for number, prompt in enumerate([range(first), range(100, 100 + second), range(first)]):
        run.arrive(request(number, prompt, 1))
        assert solo(run, number) == 0
        assert len(run.state.prefix_index.holders) <= num_blocks
    run.check_outputs()


@row("C3")
def test_blocks_that_were_planned_and_not_computed_are_not_offered() -> None:
    """Preempted with 32 of 64 prompt tokens computed and the rest planned: a twin hits 32 at most."""
    run = work(request(0, range(64), 2), block_size=16, num_blocks=6, max_model_len=97)
    run.step(grants((0, 32)))
    run.deliver()
    run.step(grants((0, 32)))
    run.step(grants(preempt=(0,)))
    run.arrive(request(1, [*range(64), 7], 2))
    assert len(run.state.prefix_index.holders) == 2
    assert planned(run.step(grants(1))) == {1: (32, 33)}
    run.drain(fcfs)
    run.check_outputs()


@row("C4", "C5", "C12", "R17", "R26")
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("budget", [64, 10, 3])
@pytest.mark.parametrize("prompt", [9, 11, 40])
def test_equal_prompts_of_one_batch_have_the_outputs_of_solo_runs(prompt: int, budget: int, reads: bool) -> None:
    """Whether the second waits for the first one's blocks or computes its own, also when others reuse freed blocks."""
    tokens = [*range(prompt - 3), 90, 91, 92]
    arrivals = [request(0, tokens, 8, reads_prefix_cache=reads), request(1, tokens, 8, reads_prefix_cache=reads)]
    arrivals.append(request(2, [*range(prompt - 3), 80, 81, 82], 8))
    run = work(*arrivals, num_blocks=26, max_num_batched_tokens=budget, max_num_seqs=3)
    run.arrive(request(3, 40))
    run.drain(fcfs, depth=2)
    run.check_all_returned()
    run.check_outputs()


@row("C5", "R26")
def test_what_is_computed_starts_where_the_hit_ends() -> None:
    """Eight shared tokens and three new ones: position 8, three tokens, and only these are charged to the budget."""
    run = work(request(0, 9, 1), max_num_batched_tokens=9)
    solo(run, 0)
    run.arrive(request(1, [*range(8), 50, 51, 52]))
    run.arrive(request(2, [*range(8), 60, 61, 62]))
    assert planned(run.step(grants(1, 2))) == {1: (8, 3), 2: (8, 3)}


@row("C6")
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_hit_is_pinned_or_gone(order) -> None:
    """One wants two cached blocks of four, one wants all four: the first to be granted gets them, the other none."""
    run = work(request(0, range(32), 1), block_size=16, num_blocks=4, max_model_len=65)
    solo(run, 0)
    run.arrive(request(1, [*range(32), *range(50, 66)], 1))
    run.arrive(request(2, range(200, 264), 1))
    assert [each.num_cached_tokens for each in view(run.state, 0).waiting] == [32, 0]
    step_plan = run.step(grants(*order, skip_blocked=True))
    assert planned(step_plan) == ({1: (32, 16)} if order[0] == 1 else {2: (0, 64)})
    assert refusals(step_plan) == {order[1]: "blocks"}
    run.drain(fcfs)
    assert run.executor.num_computed == 32 + 64 + (16 if order[0] == 1 else 48)
    run.check_outputs()


@row("C8")
def test_ids_that_agree_in_their_low_bytes_do_not_meet() -> None:
    """65 and 321 are equal modulo 256, and share nothing."""
    run = work(block_size=16)
    for number, token in enumerate((65, 321, 65 + 2**16, 65 + 2**24)):
        run.arrive(request(number, [token] * 17, 1))
        assert solo(run, number) == 0


@row("C9")
def test_a_hit_needs_equal_keys_of_equal_kind() -> None:
    """Salt a, a, b, none; then "x" as salt and as adapter: one hit, and the salt acts on later blocks through the first."""
    run = work(num_blocks=64)
    keys = [(("salt", "a"),), (("salt", "a"),), (("salt", "b"),), (), (("salt", "x"),), (("adapter", "x"),)]
    hits = []
    for number, each in enumerate(keys):
        run.arrive(request(number, range(33), 1, cache_keys=each))
        hits.append(solo(run, number))
    assert hits == [0, 32, 0, 0, 0, 0]
    run.check_outputs()


@row("C10")
def test_an_old_prefix_loses_its_end_first() -> None:
    """Of three cached blocks one is needed: the last goes, the first two are still found."""
    run = work(request(0, range(48), 1), block_size=16, num_blocks=3, max_model_len=49)
    solo(run, 0)
    run.arrive(request(1, 9, 1))
    solo(run, 1)
    run.arrive(request(2, range(48), 1))
    assert solo(run, 2) == 32


@row("C13")
def test_what_was_published_does_not_change_with_its_owner() -> None:
    """An index that was kept from before still names the same blocks after their rows and tables went to others."""
    run = work(request(0, 9, 1), max_num_seqs=1)
    solo(run, 0)
    kept = run.state.prefix_index
    before = dict(kept.holders.items)
    for number in (1, 2):
        run.arrive(request(number, 60, 4))
        solo(run, number)
    assert dict(kept.holders.items) == before
    assert run.state.prefix_index != kept


@row("C16")
def test_an_aborted_prefill_leaves_only_what_it_computed() -> None:
    """96 tokens in chunks of 32, aborted after 64: four blocks are found, or gone to others, and never wrong."""
    for others in (32, 64, 96):
        run = work(request(0, range(96), 2), block_size=16, num_blocks=7, max_model_len=113, max_num_batched_tokens=32)
        for _ in range(2):
            run.step(grants(0))
            run.deliver()
        run.step(grants(0))  # the third chunk is in flight when the abort comes
        run.abort(0)
        run.deliver()
        assert len(run.state.prefix_index.holders) == 4
        run.arrive(request(1, others, 2))
        run.drain(fcfs)
        run.arrive(request(2, range(96), 2))
        run.drain(fcfs)
        run.check_all_returned()
        run.check_outputs()


@row("R18", "L10")
def test_the_first_of_two_copies_is_found_as_long_as_it_lives() -> None:
    """Two equal prompts computed apart; the later ends and its blocks hold something else: a third hits two blocks."""
    facts = {"max_tokens": 12, "reads_prefix_cache": False}
    run = work(request(0, range(9), **facts), request(1, range(9), **facts), num_blocks=8)
    run.step(grants(0, 1))
    run.deliver()
    run.abort(1)
    run.arrive(request(2, 17, 1))
    run.step(grants(2))
    run.deliver()
    assert run.state.pool.num_free == 5
    run.arrive(request(3, range(9), 1))
    assert planned(run.step(grants(3))) == {3: (8, 1)}


@row("L10")
def test_equal_prompts_need_their_blocks_once() -> None:
    """The second waits a step for the first, so two prompts of nine take four blocks, not six."""
    run = work(request(0, range(9)), request(1, range(9)), num_blocks=8)
    assert refusals(run.step(grants(0, 1))) == {1: "pending_prefix"}
    run.deliver()
    run.step(grants(0, 1))
    assert run.state.pool.num_free == 4


@row("R23")
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_cache_is_alive_at_every_depth(depth: int) -> None:
    """A prompt of nine tokens that has ended is found again: two blocks."""
    run = work(request(0, range(9), 3))
    run.drain(fcfs, depth=depth)
    run.arrive(request(1, range(9), 3))
    assert planned(run.step(grants(1))) == {1: (8, 1)}
