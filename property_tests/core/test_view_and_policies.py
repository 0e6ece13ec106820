"""What a policy sees, and what the built-in ones make of it."""

from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from core.build import grants, limits, planned, request, work
from nanofn.config import blocks_for
from nanofn.lab.random_work import random_limits, random_request, random_work
from nanofn.lab.shadow import EOS
from nanofn.lab.work import Work
from nanofn.policy import fcfs, prefill_first
from nanofn.policy.fcfs import Fcfs
from nanofn.schedule.plan import plan
from nanofn.schedule.transition import transition
from nanofn.schedule.view import view
from nanofn.state.decision import Decision
from nanofn.state.effects import Preempted, Refused
from nanofn.state.engine_state import initial_state
from nanofn.state.events import HintChanged, Launched, StepDecided


def test_a_view_shows_running_in_admission_order_and_waiting_in_arrival_order() -> None:
    """Also after a preemption, which sends a sequence back to its place by arrival."""
    run = work(*[request(number, 3) for number in range(4)])
    run.step(grants(2, 0, 1))
    run.deliver()
    run.step(Decision(preempt=(0,)))
    seen = view(run.state, 17)
    assert [each.sequence_id for each in seen.running] == [2, 1]
    assert [each.sequence_id for each in seen.waiting] == [0, 3]
    assert (seen.running.sequence_ids, seen.waiting.sequence_ids) == ((2, 1), (0, 3))
    assert (seen.now_us, seen.num_free_blocks, seen.num_plans_in_flight) == (17, 14, 0)
    assert (len(seen.running), len(seen.waiting)) == (2, 2)
    assert (seen.running[-1].sequence_id, seen.waiting[1].sequence_id) == (1, 3)
    assert [each.sequence_id for each in seen.waiting[:1]] == [0]
    assert (seen.running.get(0), seen.waiting.get(3).sequence_id, seen.num_waiting) == (None, 3, 2)
    assert (seen.running.num_remaining_tokens, seen.waiting.num_remaining_tokens) == ((1, 1), (4, 3))
    assert (seen.running.decodes, seen.waiting.decodes) == (((2, 1), (1, 1)), None)
    assert (seen.running[-2].sequence_id, seen.waiting[-2].sequence_id, seen.waiting[-1].sequence_id) == (2, 0, 3)
    for place in (2, -3):
        with pytest.raises(IndexError):
            seen.waiting[place]


@given(
    st.sampled_from([None, *range(-5, 6)]),
    st.sampled_from([None, *range(-5, 6)]),
    st.sampled_from([None, 1, 2, -1, -2]),
)
def test_views_are_sliced_like_tuples(start, stop, step) -> None:
    """Running and waiting ones, by every slice."""
    run = work(*[request(number, 3) for number in range(8)])
    run.step(grants(0, 1, 2, 3))
    seen = view(run.state, 0)
    for views, ids in ((seen.running, (0, 1, 2, 3)), (seen.waiting, (4, 5, 6, 7))):
        assert tuple([each.sequence_id for each in views[start:stop:step]]) == ids[start:stop:step]


def test_a_sequence_view_tells_the_callers_facts() -> None:
    """As given, without the tokens."""
    facts = {
        "arrival_us": 5,
        "priority": 2,
        "client": "c",
        "ttft_slo_us": 7,
        "tpot_slo_us": 8,
        "deadline_us": 9,
        "tags": (("a", "b"),),
        "n": 2,
    }
    run = work(request(4, 9, max_tokens=6, **facts))
    run.step(grants(0))
    run.step(grants(0))
    run.deliver()
    run.apply(HintChanged(0, 3))
    seen = view(run.state, 0).running[0]
    assert {name: getattr(seen, name) for name in facts} == facts
    assert (seen.request_id, seen.child, seen.sequence_id, seen.hint) == (4, 0, 0, 3)
    assert (seen.num_prompt_tokens, seen.max_tokens, seen.num_tokens, seen.num_output_tokens) == (9, 6, 10, 1)
    assert (seen.num_computed_tokens, seen.num_placeholders, seen.num_remaining_tokens) == (10, 1, 1)
    assert (seen.num_blocks, seen.num_reclaimable_blocks, seen.num_preemptions) == (3, 3, 0)
    assert (seen.num_cached_tokens, seen.blocks_needed(1), seen.blocks_needed(3)) == (0, 0, 1)
    assert (seen.is_running, seen.is_prefill, seen.is_in_flight, seen.steps_since_output) == (True, False, True, 0)
    assert (seen.first_output_us, seen.last_output_us, len(seen.chain)) == (0, 0, 2)
    run.step(Decision())
    assert view(run.state, 0).running[0].steps_since_output == 1
    waiting = view(run.state, 0).waiting[0]
    assert (waiting.child, waiting.is_running, waiting.is_prefill, waiting.num_blocks) == (1, False, True, 0)
    assert waiting.steps_since_output == 3
    assert not hasattr(waiting, "prompt_token_ids")


def test_one_token_left_is_no_prefill() -> None:
    """A sequence with its last known token to compute decodes; with two it prefills."""
    run = work(request(0, 3))
    assert view(run.state, 0).waiting[0].is_prefill
    run.step(grants((0, 1)))
    assert view(run.state, 0).running[0].is_prefill
    run.step(grants((0, 1)))
    assert (view(run.state, 0).running[0].num_remaining_tokens, view(run.state, 0).running[0].is_prefill) == (1, False)


def test_nothing_is_left_for_one_that_awaits_its_last_result() -> None:
    """Its record, its view and its prospect say so."""
    run = work(request(0, 3, max_tokens=1))
    run.step(grants(0))
    seen = view(run.state, 0).running[0]
    assert run.state.running[0].num_remaining_tokens == seen.num_remaining_tokens == 0
    assert seen.prospect().num_tokens == 0


def test_a_prospect_tells_what_a_grant_would_do() -> None:
    """A waiting sequence with two cached blocks of three; a running one with a chunk of its prompt computed."""
    run = work(request(0, [5] * 13), request(1, [5] * 9 + [6] * 4))
    run.step(grants((0, 9)))
    run.deliver()
    running, waiting = view(run.state, 0).running[0], view(run.state, 0).waiting[0]
    assert waiting.prospect() == (8, 5, 2, waiting.chain[2])
    assert waiting.prospect(2) == (8, 2, 1, waiting.chain[2])
    assert running.prospect() == (0, 4, 1, running.chain[2])
    assert running.prospect(3) == (0, 3, 0, running.chain[2])


def test_cached_tokens_are_those_that_a_grant_would_find() -> None:
    """The view's count, and its prediction of pending prefixes, agree with the plan made right after."""
    run = work(request(0, 9), request(1, [*range(8), 77, 78, 79, 80, 81]))
    seen = view(run.state, 0).waiting
    assert (seen[1].num_cached_tokens, seen[1].is_prefix_pending) == (0, False)
    run.step(grants(0))
    assert view(run.state, 0).waiting[0].is_prefix_pending
    run.deliver()
    seen = view(run.state, 0).waiting[0]
    assert (seen.num_cached_tokens, seen.is_prefix_pending) == (8, False)
    assert seen.blocks_needed(1) == 1
    assert seen.blocks_needed(5) == 2


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_a_view_predicts_what_plan_does(seed: int) -> None:
    """Blocks needed, cached tokens and pending prefixes of any one sequence in any reachable state."""
    done = random_work(seed, checked=False)
    state = initial_state(done.state.limits)
    random = Random(seed)
    for event in done.log:
        state, _ = transition(state, event)
        everyone = (*view(state, 0).running, *view(state, 0).waiting)
        if not everyone:
            continue
        seen, wish = random.choice(everyone), random.randint(1, 20)
        after, step_plan = plan(state, Decision(((seen.sequence_id, wish),)))
        outcome = [effect.refusal for effect in step_plan.effects if isinstance(effect, Refused)]
        assert ("pending_prefix" in outcome) <= seen.is_prefix_pending
        if step_plan.entries:
            assert not seen.is_prefix_pending
            entry = step_plan.entries[0]
            assert state.pool.num_free - after.pool.num_free == seen.blocks_needed(entry.num_tokens)
            if not seen.is_running:
                assert entry.first_position == seen.num_cached_tokens
            wanted = min(wish, state.limits.max_num_batched_tokens)
            assert entry.num_tokens == min(wanted, seen.num_remaining_tokens - seen.num_cached_tokens)


@pytest.mark.parametrize("policy", [fcfs, prefill_first])
@pytest.mark.parametrize("seed", range(40))
def test_a_builtin_policy_ends_every_work_at_every_depth(policy, seed: int) -> None:
    """Arrivals all at once, tight pools and budgets: everything ends, outputs right."""
    random = Random(seed)
    limits = random_limits(random)
    arrivals = [random_request(random, number, limits.max_model_len) for number in range(random.randint(2, 7))]
    for depth in (1, 2, 3):
        run = Work(limits, checked=seed % 4 == 0)
        for each in arrivals:
            run.arrive(each)
        run.drain(policy, depth=depth)
        run.check_all_returned()
        run.check_outputs()


@pytest.mark.parametrize("policy", [fcfs, prefill_first])
def test_a_builtin_policy_wishes_for_nothing_impossible(policy) -> None:
    """At depth 1 no grant of a whole run is refused for rows, budget, or because it is unknown."""
    for seed in range(60):
        random = Random(seed)
        run = Work(random_limits(random), checked=False)
        for number in range(5):
            run.arrive(random_request(random, number, run.state.limits.max_model_len))
        run.drain(policy)
        state = initial_state(run.state.limits)
        for event in run.log:
            state, effects = transition(state, event)
            refused = {effect.refusal for effect in effects if isinstance(effect, Refused)}
            assert refused <= {"blocks", "preempted", "pending_prefix"}, refused


def first_plans(run, policy, count):
    """What a policy's first steps compute, at depth 1."""
    plans, policy_state = [], policy.init
    for _ in range(count):
        policy_state, decision = policy.decide(policy_state, view(run.state, 0))
        plans.append(planned(run.step(decision)))
        run.deliver()
    return plans


def test_fcfs_cuts_any_prompt_to_fill_the_budget() -> None:
    """Budget 10, prompts 6, 6, 3: [6, 4], then [1 decode, 2, 3]."""
    run = work(request(0, 6), request(1, 6), request(2, 3), max_num_batched_tokens=10)
    assert first_plans(run, fcfs, 2) == [{0: (0, 6), 1: (0, 4)}, {0: (6, 1), 1: (4, 2), 2: (0, 3)}]


def test_fcfs_decodes_every_running_sequence_in_every_step() -> None:
    """A new prompt in each step does not hold up one that decodes."""
    run = work(request(0, 3, max_tokens=40), num_blocks=64, max_num_batched_tokens=8, max_model_len=200)
    policy_state = fcfs.init
    for number in range(1, 30):
        run.arrive(request(number, 20, max_tokens=1))
        policy_state, decision = fcfs.decide(policy_state, view(run.state, 0))
        run.step(decision)
        run.deliver()
    assert run.state.running.get(0).num_output_tokens == 29


def test_prefill_first_lets_decodes_wait() -> None:
    """With a new prompt in each step the running sequences get nothing: its documented weakness."""
    run = work(request(0, 3, max_tokens=40), num_blocks=64, max_num_seqs=40)
    policy_state = prefill_first.init
    for number in range(1, 20):
        run.arrive(request(number, 4))
        policy_state, decision = prefill_first.decide(policy_state, view(run.state, 0))
        run.step(decision)
        run.deliver()
    assert run.state.running.get(0).num_output_tokens == 1


def test_fcfs_keeps_its_watermark() -> None:
    """Six prompts of one block each in a pool of six: three start, so that each can open its second block."""
    run = work(*[request(number, 4, max_tokens=4) for number in range(6)], num_blocks=6)
    assert first_plans(run, fcfs, 1) == [{0: (0, 4), 1: (0, 4), 2: (0, 4)}]
    run.drain(fcfs)
    assert run.num_preemptions == 0
    run = work(*[request(number, 4, max_tokens=4) for number in range(6)], num_blocks=6)
    assert len(first_plans(run, Fcfs(watermark=0), 1)[0]) == 6


def test_fcfs_lets_nobody_overtake() -> None:
    """A short request behind a long one that does not fit yet waits; alone, the long one starts."""
    run = work(request(0, 9), num_blocks=6, max_model_len=25)
    first_plans(run, fcfs, 1)
    run.arrive(request(1, 12))
    run.arrive(request(2, 1))
    assert first_plans(run, fcfs, 1) == [{0: (9, 1)}]
    run.abort(0)
    assert first_plans(run, fcfs, 1) == [{1: (0, 12), 2: (0, 1)}]


def test_fcfs_admits_nobody_into_blocks_that_a_started_prompt_needs() -> None:
    """The rest of a prompt that has started is spoken for."""
    run = work(request(0, 16), request(1, 4), num_blocks=5, max_num_batched_tokens=6, max_model_len=20)
    assert first_plans(run, fcfs, 2) == [{0: (0, 6)}, {0: (6, 6)}]
    assert first_plans(run, fcfs, 1) == [{0: (12, 4)}]


def test_the_memo_of_a_steady_step_saves_building_the_grants() -> None:
    """As long as the same sequences decode, the very same grants come back."""
    run = work(request(0, 3), request(1, 3))
    first_plans(run, fcfs, 2)
    grants_before = view(run.state, 0).running.decodes
    first_plans(run, fcfs, 1)
    assert view(run.state, 0).running.decodes is grants_before
    assert grants_before == ((0, 1), (1, 1))


@pytest.mark.parametrize("policy", [fcfs, prefill_first])
def test_one_sequence_is_planned_for_each_of_its_tokens_once(policy) -> None:
    """No work beyond the prompt and the outputs but the last, which is never an input."""
    run = work(request(0, 10, max_tokens=12), request(1, 7, max_tokens=3), num_blocks=32)
    for depth in (1, 2, 3):
        run = work(request(0, 10, max_tokens=12), request(1, 7, max_tokens=3), num_blocks=32)
        run.drain(policy, depth=depth)
        assert run.executor.num_computed == 10 + 12 - 1 + 7 + 3 - 1


def test_a_stop_token_costs_at_most_the_steps_in_flight() -> None:
    """At depth d an end by stop token computes d - 1 tokens too many at most."""
    for depth in (1, 2, 3):
        run = work(request(0, 5, max_tokens=30, stop_token_ids=(EOS,)), num_blocks=32)
        run.drain(fcfs, depth=depth)
        reason, count = run.endings[0]
        assert reason == "stop"
        assert run.executor.num_computed - (5 + count - 1) <= depth - 1


def test_blocks_for_rounds_up() -> None:
    """No tokens need no block, one more than a block needs two."""
    assert [blocks_for(count, 4) for count in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_preempted_sequences_find_their_own_blocks_again() -> None:
    """What nobody took meanwhile is a hit."""
    run = work(request(0, 9))
    run.step(grants(0))
    run.deliver()
    run.step(Decision(preempt=(0,)))
    assert planned(run.step(grants(0))) == {0: (8, 2)}


def test_a_launched_effect_ends_the_effects_of_a_decision() -> None:
    """After the plan's own effects, also when the plan is empty."""
    state = initial_state(limits())
    _, effects = transition(state, StepDecided(Decision(((5, 1),)), now_us=0))
    assert isinstance(effects[-1], Launched)
    assert effects[:-1] == (Refused(5, "unknown"),)
    assert not [effect for effect in effects if isinstance(effect, Preempted)]
