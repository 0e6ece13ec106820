"""Blocks are counted right: at the edges of a block, when a grant is refused, and when something ends twice."""

from gc import collect, disable, enable
from weakref import ref

import pytest
from attrs import evolve

from core.build import grants, limits, planned, refusals, request, work
from nanofn.policy import fcfs
from nanofn.schedule.admit import admit
from nanofn.schedule.commit import commit
from nanofn.schedule.plan import plan
from nanofn.state.block_pool import BlockPool, allocate, release, share
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest
from nanofn.state.effects import Preempted
from nanofn.state.engine_state import initial_state
from nanofn.state.prefix_index import PrefixIndex, publish
from nanofn.state.step_plan import StepResult
from scenarios.row import row


def step(run, *pairs, **rest):
    """Plan, launch and deliver."""
    step_plan = run.step(grants(*pairs, **rest))
    if step_plan.plan_id is not None:
        run.deliver()
    return step_plan


@row("A1")
def test_a_refused_grant_leaves_its_hits_unpinned() -> None:
    """Three hits in use, three in the free list and three new blocks do not fit into five: nothing changes."""
    run = work(request(0, range(48), 3), num_blocks=10, block_size=16, max_model_len=161)
    step(run, 0)
    run.arrive(request(1, range(96), 1))
    step(run, 1)
    run.arrive(request(2, range(500, 532), 3))
    step(run, 2)
    before = run.state
    assert before.pool.num_free == 5
    assert not len(before.pool.shared)
    run.arrive(request(3, range(144), 1))
    assert refusals(run.step(grants(3))) == {3: "blocks"}
    assert (run.state.pool, run.state.prefix_index, run.state.rows) == (before.pool, before.prefix_index, before.rows)


@row("A3", "R20")
@pytest.mark.parametrize("prompt", [3, 4, 5, 8])
def test_ending_in_three_ways_frees_once(prompt: int) -> None:
    """Stopped, aborted and stopped again: two later owners still get different blocks, and all of them are there."""
    run = work(request(0, prompt, 3), num_blocks=3)
    step(run, 0)
    run.abort(0)
    run.abort(0)
    run.step(grants(shed=(0,)))
    assert run.state.pool.num_free == 3
    run.arrive(request(1, 4))
    run.arrive(request(2, 8))
    step(run, 1, 2)
    assert len({block for each in run.state.running for block in each.block_table}) == 3


@row("A4")
def test_a_finished_sequence_is_no_victim() -> None:
    """Its blocks are free before the next grant looks for some, so nobody is preempted."""
    run = work(
        request(0, 31, 3, stop_token_ids=tuple(range(7))), request(1, 32), num_blocks=4, block_size=16, max_model_len=65
    )
    step(run, 0, 1)
    assert run.endings == {0: ("stop", 1)}
    step_plan = run.step(grants(1, 0, victims=(0,)))
    assert planned(step_plan) == {1: (32, 1)}
    assert not [effect for effect in step_plan.effects if isinstance(effect, Preempted)]
    assert run.state.pool.num_free == 1


@row("A6")
def test_nothing_is_kept_of_what_has_ended() -> None:
    """After 200 requests an idle engine is a fresh one, counters aside, and each request is dead without a collection."""
    state = fresh = initial_state(limits(enable_prefix_caching=False))
    references = []
    collect()
    disable()
    try:
        for number in range(200):
            asked = request(number, 5, 1)
            references.append(ref(asked))
            state, _ = admit(state, asked)
            del asked
            state, step_plan = plan(state, grants(number))
            state, _ = commit(state, step_plan.plan_id, StepResult((1,), 0))
        del step_plan
        assert not [alive for alive in references if alive() is not None]
    finally:
        enable()
    counters = {name: getattr(state, name) for name in ("next_sequence_id", "next_plan_id", "num_steps")}
    pool = evolve(fresh.pool, frontier=state.pool.frontier, returned=state.pool.returned)
    assert state == evolve(fresh, pool=pool, **counters)
    assert sorted(state.pool.returned) == list(range(state.pool.frontier))


@row("A10")
def test_room_in_the_last_block_costs_no_block() -> None:
    """One more token after 63 in blocks of 64 takes no block, and evicts none."""
    run = work(request(0, 128, 1), num_blocks=3, block_size=64, max_model_len=193)
    step(run, 0)
    run.arrive(request(1, 62, 9))
    step(run, 1)
    index = run.state.prefix_index
    for position in (62, 63):
        step_plan = step(run, 1)
        assert (planned(step_plan), step_plan.new_blocks) == ({1: (position, 1)}, ())
    assert run.state.pool.num_free == 2
    assert set(index.holders.items) < set(run.state.prefix_index.holders.items)


@row("A11", "R20", "R21", "R24", "R32", "L17")
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 8, 15, 16, 17])
def test_a_table_has_the_blocks_that_its_written_positions_need(block_size: int, prompt: int) -> None:
    """Before each step of a sequence: as many blocks as positions are written after it, for any block size."""
    run = work(request(0, prompt, 6), num_blocks=32, block_size=block_size)
    for number in range(6):
        run.step(grants(0))
        assert len(run.state.running[0].block_table) == -(-(prompt + number) // block_size)
        run.deliver()
    run.check_all_returned()
    run.check_outputs()
    assert sum(map(len, run.state.prefix_index.holders.items.values())) <= 32


@row("A12")
def test_eviction_is_counted_in_blocks() -> None:
    """Eight cached tokens of four are two blocks: two owners get one each, and no other is withdrawn."""
    run = work(request(0, 8, 1), num_blocks=4)
    step(run, 0)
    run.arrive(request(1, 8, 9))
    step(run, 1)
    assert run.state.pool.num_free == 2
    for number, cached in ((2, 1), (3, 0)):
        run.arrive(request(number, 4, 9))
        step(run, number)
        assert len(run.state.pool.cached) == cached
    assert sorted(block for each in run.state.running for block in each.block_table) == [0, 1, 2, 3]


@row("L13")
def test_the_block_size_belongs_to_the_state() -> None:
    """Two engines side by side: ten tokens are three blocks of four in one and two of eight in the other."""
    runs = [work(request(0, 10), block_size=size) for size in (4, 8)]
    for run in runs:
        run.step(grants(0))
    assert [len(run.state.running[0].block_table) for run in runs] == [3, 2]


@row("L16")
def test_a_blocked_head_is_not_digested_again(monkeypatch) -> None:
    """Its chain was computed when it arrived: looking it up in later steps hashes nothing."""
    run = work(request(0, 12), num_blocks=4)
    step(run, 0)
    run.arrive(request(1, 12))

    def no_hash(*args, **kwargs):
        raise AssertionError("a digest is computed again")

    monkeypatch.setattr("nanofn.state.digest.blake2b", no_hash)
    for _ in range(3):
        state, step_plan = plan(run.state, grants(1))
        assert refusals(step_plan) == {1: "blocks"}
        assert state.waiting is run.state.waiting


@row("R14")
@pytest.mark.parametrize("max_tokens", [1, 4])
def test_an_output_is_never_longer_than_max_tokens(max_tokens: int) -> None:
    """At any depth, and the count is that of the tokens that were told."""
    for depth in (1, 2, 3):
        run = work(request(0, 3, max_tokens))
        run.drain(fcfs, depth=depth)
        assert run.endings[0] == ("length", len(run.outputs[0])) == ("length", max_tokens)


@row("L15")
@pytest.mark.parametrize("place", [0, 7_000, 19_999])
def test_a_hit_in_a_large_pool_copies_a_small_part_of_it(place: int) -> None:
    """Of 20,000 cached blocks one is taken: all but one of the 512-wide pieces of the list are the same objects."""
    pool, index, blocks = allocate(BlockPool(20_000), PrefixIndex(), 20_000)
    named = [(block, Digest(block.to_bytes(16, "little"))) for block in blocks]
    index = publish(index, named)
    pool = release(pool, index, Chunked().extend(blocks), Chunked().extend([digest for _, digest in named]))
    assert len(pool.cached) == 20_000
    after = share(pool, [place])
    assert len(after.cached) == 19_999
    kept = {id(chunk) for chunk in after.cached.chunks} & {id(chunk) for chunk in pool.cached.chunks}
    assert len(kept) == len(pool.cached.chunks) - 1 >= 39
