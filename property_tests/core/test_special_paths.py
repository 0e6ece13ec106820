"""The special paths for steps that only decode do what the general paths do, bit for bit."""

from random import Random

import pytest
from attrs import evolve

from core.build import grants, request, work
from nanofn.lab.random_work import random_work
from nanofn.policy import fcfs
from nanofn.schedule import commit as commit_module, plan as plan_module
from nanofn.schedule.commit_decodes import commit_decodes
from nanofn.schedule.plan_decodes import plan_decodes
from nanofn.schedule.transition import transition
from nanofn.state.engine_state import initial_state
from nanofn.state.events import PrefixCacheReset, StepCompleted, StepDecided
from nanofn.state.persistent import sorted_items
from nanofn.state.step_plan import PlanEntries, StepResult
from nanofn.state.tails import MAX_RECENT, Tails


@pytest.fixture
def general(monkeypatch):
    """`transition` without the special paths."""

    def run(state, event):
        state = evolve(state, running=evolve(state.running, steady=None))
        with monkeypatch.context() as patch:
            patch.setattr(plan_module, "plan_steady", lambda *_: None)
            patch.setattr(plan_module, "plan_decodes", lambda state, _: plan_decodes(state, ()))
            patch.setattr(
                commit_module, "commit_decodes", lambda state, *_: commit_decodes(state, PlanEntries(), (), 0)
            )
            return transition(state, event)

    return run


def same(one, other):
    """Equal, in what equality compares and in the layout that it does not look at."""
    return one == other and repr(one[0].running) == repr(other[0].running) and layout(one[0]) == layout(other[0])


def layout(state):
    """The parts of a state whose order a later step reads, spelled out."""
    pool = state.pool
    holders = tuple(sorted_items(state.prefix_index.holders))
    return tuple(pool.returned), tuple(pool.cached), pool.frontier, state.rows, holders


@pytest.mark.parametrize("shard", range(4))
def test_special_paths_equal_the_general_ones(shard: int, general) -> None:
    """In every state that a random work reaches, decided or completed as it was and as pure decode."""
    num_special = 0
    for seed in range(shard, 160, 4):
        done = random_work(seed, checked=False)
        state = initial_state(done.state.limits)
        for event in done.log:
            running = state.running.sequence_id
            for each in (event, StepDecided(grants(*running), now_us=0)):
                if isinstance(each, StepDecided):
                    num_special += len(plan_decodes(state, each.decision.grants).entries)
                if isinstance(each, StepDecided | StepCompleted):
                    assert same(transition(state, each), general(state, each)), (seed, each)
            state, _ = transition(state, event)
    assert num_special > 200


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_long_decodes_are_the_same_on_either_path(seed: int, depth: int, general) -> None:
    """Runs that mostly decode, with endings by stop token and by length, at each depth."""
    random = Random(seed)
    run = work(block_size=random.choice([1, 2, 3, 4]), num_blocks=64, max_model_len=32)
    for request_id in range(4):
        prompt = [random.choice([1, 2]) for _ in range(random.randint(1, 9))]
        run.arrive(request(request_id, prompt, random.randint(2, 20), n=2, stop_token_ids=(0,), min_tokens=3))
    run.drain(fcfs, depth=depth)
    state = initial_state(run.state.limits)
    for event in run.log:
        assert same(transition(state, event), general(state, event))
        state, _ = transition(state, event)
    run.check_outputs()


def test_plans_in_another_order_than_the_running_sequences_form_no_memo() -> None:
    """Tokens go to the sequences of the entries: a plan that decodes all, but in another order, is not a steady one."""
    run = work(request(0, [1]), request(1, [1, 2]), max_model_len=20)
    run.step(grants(0, 1))
    run.deliver()
    run.step(grants(1, 0))
    run.step(grants(0, 1))
    run.deliver()
    run.drain(fcfs, depth=2)
    run.check_outputs()


def test_a_prompt_computed_again_beside_decodes_forms_no_memo(general) -> None:
    """Its plan samples one token for each, but one of them fills several blocks, all of which are published."""
    run = work(request(0, 3), request(1, 11), block_size=4, max_model_len=40)
    run.step(grants(0, 1))
    run.deliver()
    run.step(grants((0, 1), preempt=(1,)))
    run.deliver()
    run.apply(PrefixCacheReset(preempt_running=True))
    run.step(grants(0))
    run.deliver()
    run.step(grants((0, 1), 1))
    run.step(grants((0, 1), (1, 1)))
    state = run.state
    run.deliver()
    assert same((run.state,), (general(state, run.log[-1])[0],))
    run.step(grants((0, 1), (1, 1)))
    run.drain(fcfs, depth=2)
    run.check_outputs()


@pytest.mark.parametrize("block_size", [128, 256, 300])
def test_large_blocks_are_the_same_on_either_path(block_size: int, general) -> None:
    """Outputs longer than tokens are kept by columns, over blocks of more tokens than that."""
    run = work(block_size=block_size, num_blocks=16, max_model_len=1_000)
    for request_id, length in enumerate([1, block_size - 1, block_size, 2 * block_size + 1]):
        run.arrive(request(request_id, length, max_tokens=330))
    run.drain(fcfs, depth=2)
    run.check_outputs()
    state = initial_state(run.state.limits)
    for event in run.log:
        assert same(transition(state, event), general(state, event))
        state, _ = transition(state, event)
        tails = state.running.columns.tail
        assert not isinstance(tails, Tails) or len(tails.recent) <= MAX_RECENT


def test_a_wrong_number_of_tokens_is_refused_on_either_path(general) -> None:
    """Both paths raise where the result does not fit the plan."""
    run = work(request(0, 3), request(1, 3))
    run.step(grants(0, 1))
    run.deliver()
    run.step(grants(0, 1))
    event = StepCompleted(run.state.in_flight[0].plan_id, StepResult((1,), 0))
    for path in (transition, general):
        with pytest.raises(Exception, match="2 tokens instead of 1"):
            path(run.state, event)
