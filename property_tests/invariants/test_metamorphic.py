"""Two runs whose difference is known: what must then be equal, and what may differ."""

from random import Random

import pytest
from attrs import evolve

from core.build import grants, request, work
from invariants.driven import POLICIES, TIGHT, flat, log_of, random_arrivals, turns
from invariants.reached import steps
from nanofn.config import Limits
from nanofn.lab.random_work import random_decision
from nanofn.lab.work import Work
from nanofn.policy import fcfs, priority, shed_if, shortest_first
from nanofn.request import SequenceId, TokenId
from nanofn.schedule.commit import commit
from nanofn.schedule.plan import plan
from nanofn.schedule.view import view
from nanofn.state.block_pool import BlockPool
from nanofn.state.chunked import Chunked
from nanofn.state.decision import Decision
from nanofn.state.engine_state import find, initial_state
from nanofn.state.events import StepDecided
from nanofn.state.step_plan import StepResult

NO_CACHE = evolve(TIGHT, enable_prefix_caching=False)
SEEDS = range(10)


def computed(step_plans):
    """What each plan computes: (sequence, first position, tokens), empty plans left out."""
    return [
        [(entry.sequence_id, entry.first_position, entry.num_tokens) for entry in step_plan.entries]
        for step_plan in step_plans
        if step_plan.plan_id is not None
    ]


def by_request(run, step_plans):
    """What each plan computes, with requests' ids in place of arrival numbers."""
    return [
        sorted((run.owner[key][0].request_id, first, count) for key, first, count in entries)
        for entries in computed(step_plans)
    ]


def outputs(run):
    """Output and reason of each child, by request."""
    return {
        (asked.request_id, child): (tuple(run.outputs[key][: run.endings[key][1]]), run.endings[key][0])
        for key, (asked, child) in run.owner.items()
    }


def mapped(arrivals, change):
    """The same lists of requests, each changed."""
    return [[change(each) for each in some] for some in arrivals]


@pytest.mark.parametrize("name", POLICIES)
def test_names_do_not_matter(name: str) -> None:
    """meta1: other request ids and, in the same order, other clients give the very same plans."""
    for seed in SEEDS:
        arrivals = random_arrivals(Random(seed), 8)
        renamed = mapped(
            arrivals, lambda each: evolve(each, request_id=997 - 31 * each.request_id, client="of " + each.client)
        )
        plans, _ = log_of(TIGHT, POLICIES[name], arrivals, depth=1 + seed % 3)
        assert log_of(TIGHT, POLICIES[name], renamed, depth=1 + seed % 3)[0] == plans


@pytest.mark.parametrize("seed", SEEDS)
def test_which_block_is_which_does_not_matter(seed: int) -> None:
    """meta1: a pool that hands out its blocks in another order computes the same, in other blocks one for one."""
    order = Random(seed).sample(range(TIGHT.num_blocks), TIGHT.num_blocks)
    arrivals = random_arrivals(Random(seed), 8)
    plans, _ = log_of(NO_CACHE, fcfs, arrivals)
    run = Work(NO_CACHE, checked=False)
    run.state = evolve(run.state, pool=BlockPool(TIGHT.num_blocks, TIGHT.num_blocks, Chunked().extend(reversed(order))))
    others = [turn.step_plan for turn in turns(run, fcfs, arrivals)]
    assert computed(others) == computed(plans)
    pairs = {
        (one[2], order.index(other[2]))
        for step_plan, same in zip(plans, others, strict=True)
        for one, other in zip(step_plan.new_blocks, same.new_blocks, strict=True)
    }
    assert all(one == other for one, other in pairs)
    assert len(pairs) > 3


HOPELESS = {"shed_if of fcfs": shed_if(fcfs, lambda each, seen: seen.now_us - each.arrival_us > 15_000)}


@pytest.mark.parametrize("name", POLICIES | HOPELESS)
def test_the_clock_may_start_anywhere(name: str) -> None:
    """meta2: a constant added to all times changes no plan, also where a policy looks at times."""
    policy = (POLICIES | HOPELESS)[name]
    num_shed = 0
    for seed in SEEDS:
        arrivals = random_arrivals(Random(seed), 8)
        later = mapped(arrivals, lambda each: evolve(each, arrival_us=each.arrival_us + 10**9))
        plans, run = log_of(TIGHT, policy, arrivals)
        assert log_of(TIGHT, policy, later, start_us=10**9)[0] == plans
        num_shed += [reason for reason, _ in run.endings.values()].count("abort")
    assert (num_shed > 0) == (name in HOPELESS)


@pytest.mark.parametrize("policy", [priority, shortest_first], ids=["priority", "shortest_first"])
def test_the_order_of_simultaneous_arrivals_breaks_ties_only(policy) -> None:
    """meta3: where keys differ, every step computes the same of each request, whoever was queued first."""
    for seed in SEEDS:
        random = Random(seed)
        keys = random.sample(range(1, 17), 8)
        asked = [request(number, keys[number], 5, priority=keys[number]) for number in range(8)]
        plans, run = log_of(NO_CACHE, policy, [asked])
        shuffled = random.sample(asked, 8)
        others, other = log_of(NO_CACHE, policy, [shuffled])
        assert by_request(other, others) == by_request(run, plans)
        assert outputs(other) == outputs(run)


def forced(state, policy, endings, *, num_steps):
    """Plans under a fake model whose sequences stop after so many tokens each, a token being 0 only at the end."""
    policy_state, news, plans = policy.init, (), []
    for _ in range(num_steps):
        policy_state, decision = policy.decide(policy_state, view(state, 0, news))
        state, step_plan = plan(state, decision)
        plans.append(step_plan)
        news = step_plan.effects
        if step_plan.plan_id is not None:
            sampling = [entry.sequence_id for entry in step_plan.entries if entry.samples]
            tokens = [TokenId(int(find(state, key).num_output_tokens + 1 < endings[key])) for key in sampling]
            state, effects = commit(state, step_plan.plan_id, StepResult(tuple(tokens), 0))
            news += effects
    return plans


@pytest.mark.parametrize("name", POLICIES)
def test_nobody_knows_how_long_an_output_will_be(name: str) -> None:
    """meta4, pol5: until an output ends in one run and not in the other, the plans are equal."""
    differed = 0
    for seed in SEEDS:
        random = Random(seed)
        run = work(
            *[request(number, random.randint(1, 9), 9, stop_token_ids=(0,)) for number in range(6)],
            num_blocks=10,
            max_model_len=25,
            max_num_seqs=4,
            max_num_batched_tokens=12,
        )
        short = {SequenceId(number): random.randint(1, 9) for number in range(6)}
        longer = short | {SequenceId(0): short[0] + 3}
        one, other = (forced(run.state, POLICIES[name], each, num_steps=30) for each in (short, longer))
        end = [number for number, step_plan in enumerate(one) if 0 in step_plan.entries.sequence_id][-1]
        assert one[: end + 1] == other[: end + 1]
        differed += one != other
    assert differed > 0


@pytest.mark.parametrize("name", POLICIES)
def test_what_arrives_later_changes_nothing_before(name: str) -> None:
    """meta5: with one more request at the end, the plans up to its arrival are the same."""
    for seed in SEEDS:
        arrivals = random_arrivals(Random(seed), 6)
        plans, _ = log_of(TIGHT, POLICIES[name], arrivals)
        more = [*arrivals, *[[]] * len(plans), [request(50, 9)]]
        others, _ = log_of(TIGHT, POLICIES[name], more)
        with_work = [step_plan for step_plan in plans if step_plan.plan_id is not None]
        assert [step_plan for step_plan in others if step_plan.plan_id is not None][: len(with_work)] == with_work


def test_more_blocks_break_nothing() -> None:
    """meta6: in every pool from the smallest up, all ends, all comes back, and outputs are the same."""
    for seed in SEEDS:
        arrivals = random_arrivals(Random(seed), 7)
        found = []
        for num_blocks in range(6, 16):
            _, run = log_of(evolve(TIGHT, num_blocks=num_blocks), fcfs, arrivals, depth=1 + seed % 3)
            run.check_all_returned()
            run.check_outputs()
            found.append(outputs(run))
        assert all(each == found[0] for each in found)


@pytest.mark.parametrize("name", POLICIES)
def test_tokens_do_not_depend_on_the_policy(name: str) -> None:
    """meta8: under any policy, at any depth, the outputs are those under fcfs in an unlimited pool."""
    roomy = Limits(16, 400, 8, 1_000, TIGHT.max_model_len, enable_prefix_caching=False)
    for seed in SEEDS:
        arrivals = random_arrivals(Random(seed), 8, stop_token_ids=(TokenId(0),))
        expected = outputs(log_of(roomy, fcfs, arrivals)[1])
        assert outputs(log_of(TIGHT, POLICIES[name], arrivals, depth=1 + seed % 3)[1]) == expected


def test_the_cache_saves_work_and_costs_none() -> None:
    """meta9: where blocks suffice, the same outputs with it and without, and never more tokens computed."""
    saved = 0
    for seed in SEEDS:
        arrivals = random_arrivals(Random(seed), 8)
        runs = [
            log_of(Limits(2, 200, 8, 12, 25, enable_prefix_caching=enabled), fcfs, arrivals)[1]
            for enabled in (False, True)
        ]
        assert outputs(runs[0]) == outputs(runs[1])
        assert runs[1].executor.num_computed <= runs[0].executor.num_computed
        saved += runs[0].executor.num_computed - runs[1].executor.num_computed
    assert saved > 100


@pytest.mark.parametrize("name", POLICIES)
def test_an_aborted_request_leaves_no_trace(name: str) -> None:
    """meta10: aborted before anybody saw it, the others' plans are as if it had never come."""
    for seed in SEEDS:
        asked = flat(random_arrivals(Random(seed), 7))
        plans, run = log_of(TIGHT, POLICIES[name], [asked])
        other = Work(TIGHT, checked=False)
        for each in asked[:3]:
            other.arrive(each)
        other.arrive(request(90, 16, n=2))
        for each in asked[3:]:
            other.arrive(each)
        other.abort(90)
        others = [turn.step_plan for turn in turns(other, POLICIES[name], [])]
        assert by_request(other, others) == by_request(run, plans)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_abort_at_any_time_changes_nobody_elses_output(depth: int) -> None:
    """meta10: the others get the same tokens, and the engine ends as empty as without it."""
    for seed in SEEDS:
        random = Random(seed)
        asked = flat(random_arrivals(random, 6))
        _, run = log_of(TIGHT, fcfs, [asked])
        other = Work(TIGHT, checked=False)
        for each in [request(90, [1] * 12), *asked]:
            other.arrive(each)
        for number, _ in enumerate(turns(other, fcfs, [], depth=depth)):
            if number == seed:
                other.abort(90)
        other.check_all_returned()
        left = {key: value for key, value in outputs(other).items() if key[0] != 90}
        assert left == outputs(run)


def test_a_time_to_wake_is_for_the_loop_alone() -> None:
    """meta13: whatever `wake_us` says, past or future, the plan is the same."""
    random = Random(0)
    for step in steps(StepDecided)[::20]:
        expected = plan(step.before, step.event.decision)
        for wake_us in (-(10**9), 0, random.randint(1, 10**9)):
            assert plan(step.before, evolve(step.event.decision, wake_us=wake_us)) == expected


def test_a_wish_about_nobody_changes_nothing() -> None:
    """meta13: in an empty engine any decision gives an empty plan, and only the count of steps moves."""
    state = initial_state(TIGHT)
    for seed in range(20):
        decision = random_decision(Random(seed), [])
        after, step_plan = plan(state, decision)
        assert (step_plan.plan_id, len(step_plan.entries), step_plan.new_blocks) == (None, 0, ())
        assert after == evolve(state, num_steps=1)
    assert plan(state, Decision())[1].effects == ()
    assert plan(state, grants(0))[1].effects != ()
