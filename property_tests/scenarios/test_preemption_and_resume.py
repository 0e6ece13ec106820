"""Who loses blocks, what the plan of that step still holds, and how the loser goes on."""

import pytest

from core.build import grants, planned, refusals, request, work
from nanofn.policy import fcfs, guaranteed, priority
from nanofn.policy.fcfs import Fcfs
from nanofn.schedule.view import view
from nanofn.state.effects import Preempted, Started
from nanofn.state.events import Launched
from scenarios.row import row


def step(run, *pairs, **rest):
    """Plan, launch and deliver."""
    step_plan = run.step(grants(*pairs, **rest))
    if step_plan.plan_id is not None:
        run.deliver()
    return step_plan


def preempted(step_plan):
    """Who lost blocks, in order."""
    return [effect.sequence_id for effect in step_plan.effects if isinstance(effect, Preempted)]


@row("B1")
def test_a_victim_is_not_in_the_plan() -> None:
    """Of two in a full pool the less important one yields, holds nothing, and resumes with all its 32 known tokens."""
    run = work(request(0, 30, 9, priority=1), request(1, 32, 3), num_blocks=4, block_size=16, max_model_len=65)
    for _ in range(2):
        step(run, 0, (1, 32) if not run.outputs[1] else (1, 0))
    step_plan = run.step(grants(1, 0))
    assert planned(step_plan) == {1: (32, 1)}
    assert preempted(step_plan) == [0]
    loser = run.state.waiting.get(0)
    assert (len(loser.block_table), loser.row, loser.num_tokens) == (0, None, 32)
    run.deliver()
    step(run, 1)
    assert planned(run.step(grants(0))) == {0: (16, 16)}
    run.drain(fcfs)
    run.check_outputs()


@row("B1")
def test_whoever_was_granted_in_a_call_keeps_its_grant() -> None:
    """Ranked the other way round, the needy one is refused; nobody's entry is taken out of the plan again."""
    run = work(request(0, 30, 9), request(1, 32, 3), num_blocks=4, block_size=16, max_model_len=65)
    step(run, 0, 1)
    step_plan = run.step(grants(0, 1, victims=(0,)))
    assert planned(step_plan) == {0: (30, 1)}
    assert refusals(step_plan) == {1: "blocks"}


@row("B2")
def test_whoever_ranks_after_a_victim_is_still_planned() -> None:
    """Admitted in the order A, B, C, ranked B, C, A: B takes A's blocks, and C decodes in the same step."""
    facts = {"num_blocks": 5, "block_size": 16, "max_model_len": 81}
    run = work(request(0, 45, priority=9), request(1, 16, priority=0), request(2, 1, priority=1), **facts)
    step(run, 0, 1, 2)
    _, decision = priority.decide(priority.init, view(run.state, 0))
    step_plan = run.step(decision)
    assert planned(step_plan) == {1: (16, 1), 2: (1, 1)}
    assert preempted(step_plan) == [0]


@row("B4")
def test_whoever_was_passed_over_keeps_its_place() -> None:
    """Two that wait for a prefix in flight let a third one pass, and the queue is as it was."""
    prefix = list(range(8))
    waiting = [request(1, [*prefix, 50]), request(2, [*prefix, 51]), request(3, 3), request(4, 3)]
    run = work(request(0, [*prefix, 49]), *waiting, max_num_seqs=2)
    step_plan = run.step(grants(*range(5)))
    assert set(planned(step_plan)) == {0, 3}
    assert [key for key, _ in run.state.waiting] == [1, 2, 4]
    assert refusals(step_plan) == {1: "pending_prefix", 2: "pending_prefix", 4: "max_num_seqs"}


@row("B7")
def test_a_prompt_that_must_be_computed_whole_is_computed_whole_again() -> None:
    """Preempted after 64 of 100 tokens, a request that reads no cache starts from position 0."""
    run = work(request(0, 100, 2, reads_prefix_cache=False), block_size=16, max_num_batched_tokens=32)
    step(run, 0)
    step(run, 0)
    run.step(grants(preempt=(0,)))
    assert [planned(step(run, 0))[0] for _ in range(4)] == [(0, 32), (32, 32), (64, 32), (96, 4)]
    assert len(run.outputs[0]) == 1


@row("B8", "R4")
def test_a_sequence_does_not_make_room_for_itself() -> None:
    """The last block goes to the first; the second, its own only victim, keeps what it has, and then both end."""
    run = work(request(0, 3, 5), request(1, 8, 2), num_blocks=3)
    step(run, 0, 1)
    step_plan = step(run, 0, 1)
    assert planned(step_plan) == {0: (3, 1)}
    assert (refusals(step_plan), preempted(step_plan)) == ({1: "blocks"}, [])
    assert [len(each.block_table) for each in run.state.running] == [1, 2]
    run.drain(fcfs)
    run.check_all_returned()
    run.check_outputs()


@row("B9")
def test_cached_blocks_are_room() -> None:
    """Five blocks free and 95 that only hold cached prefixes: a prompt of ten blocks starts at once."""
    run = work(request(0, 95 * 16, 1), num_blocks=100, block_size=16, max_num_batched_tokens=2_000)
    step(run, (0, 2_000))
    assert len(run.state.pool.cached) == 95
    run.arrive(request(1, range(100_000, 100_150), 4))
    _, decision = fcfs.decide(None, view(run.state, 0))
    assert planned(run.step(decision)) == {1: (0, 150)}
    assert len(run.state.pool.cached) == 90


@row("B10")
def test_a_resumed_sequence_computes_its_outputs_as_a_prompt() -> None:
    """20 prompt and 5 output tokens, resumed with a budget of 16: 16, then 9, then one token for position 25."""
    run = work(request(0, 20, 9), max_num_batched_tokens=32, enable_prefix_caching=False)
    for _ in range(5):
        step(run, 0)
    assert len(run.outputs[0]) == 5
    run.step(grants(preempt=(0,)))
    first, second = step(run, (0, 16)), step(run, (0, 16))
    assert (planned(first), first.entries.samples) == ({0: (0, 16)}, (False,))
    assert (planned(second), second.entries.samples) == ({0: (16, 9)}, (True,))
    assert len(run.outputs[0]) == 6


@row("B11")
def test_a_hit_on_ones_own_blocks_is_told_apart() -> None:
    """Prompts without a common prefix, many preemptions: only a sequence that was preempted before ever starts with hits."""
    run = work(*[request(number, 6, 12) for number in range(5)], num_blocks=8, max_model_len=24)
    run.drain(Fcfs(watermark=0))
    seen, hits = set(), {True: 0, False: 0}
    for effect in replayed_effects(run):
        if isinstance(effect, Preempted):
            seen.add(effect.sequence_id)
        elif isinstance(effect, Started):
            hits[effect.sequence_id in seen] += effect.num_cached_tokens
    assert hits[False] == 0
    assert hits[True] > 0


def replayed_effects(run):
    """Every effect of a work's log."""
    from nanofn.schedule.transition import transition
    from nanofn.state.engine_state import initial_state

    state = initial_state(run.state.limits)
    for event in run.log:
        state, effects = transition(state, event)
        yield from effects


# How often: by hand. With three blocks for (3, 5) and (8, 2) the first needs its second block at position 4.
@row("R3", "R4", "R30", "L9")
@pytest.mark.parametrize(
    ("num_blocks", "lengths", "num_preemptions"),
    [
        (4, [(8, 5), (8, 5)], 1),
        (3, [(3, 5), (8, 2)], 1),
        (4, [(3, 5), (8, 3)], 1),
        (3, [(4, 5), (4, 5)], 0),
        (6, [(4, 6)] * 6, 5),
    ],
)
def test_small_pools_end_with_the_outputs_of_large_ones(num_blocks, lengths, num_preemptions) -> None:
    """Without a watermark some are preempted, each once in a call and never planned in it; with blocks set aside, none."""
    for policy, expected in ((Fcfs(watermark=0), num_preemptions), (guaranteed, 0)):
        run = work(*[request(number, *each) for number, each in enumerate(lengths)], num_blocks=num_blocks)
        run.drain(policy)
        run.check_all_returned()
        run.check_outputs()
        assert run.num_preemptions == expected
        for effect in replayed_effects(run):
            if isinstance(effect, Launched):
                losers = preempted(effect.step_plan)
                assert len(set(losers)) == len(losers)
                assert not set(losers) & set(planned(effect.step_plan))
