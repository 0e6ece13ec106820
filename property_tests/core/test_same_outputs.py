"""Scheduling does not change the text: outputs are equal over depth, policy, pool, budget, block size and cache."""

from random import Random

import pytest
from hypothesis import given, strategies as st

from core.build import request, work
from nanofn.config import Limits
from nanofn.lab.shadow import EOS
from nanofn.lab.work import Work
from nanofn.policy import fcfs, prefill_first
from nanofn.state.events import PrefixCacheReset

MAX_MODEL_LEN = 25
REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.sampled_from([1, 2]), min_size=1, max_size=12),
            "max_tokens": st.integers(1, 12),
            "n": st.integers(1, 3),
            "stop_token_ids": st.sampled_from([(), (EOS,)]),
            "cache_keys": st.sampled_from([(), (("salt", "a"),), (("adapter", "a"),)]),
        }
    ),
    min_size=1,
    max_size=5,
)


def outputs(arrivals, limits, policy, depth, order):
    """Output and reason of each child, by request; requests arrive in the given order, one per step."""
    run = Work(limits, checked=False)
    run.owner = {}
    for number in order:
        run.arrive(request(number, **arrivals[number]))
    run.drain(policy, depth=depth)
    run.check_all_returned()
    return {
        (asked.request_id, child): (tuple(run.outputs[key][: run.endings[key][1]]), run.endings[key][0])
        for key, (asked, child) in run.owner.items()
    }


@given(REQUESTS, st.data())
def test_outputs_do_not_depend_on_how_they_are_scheduled(arrivals, data) -> None:
    """Any pool that holds the largest request, any budget, depth, policy, cache setting and arrival order."""
    roomy = Limits(16, 64, 8, 1_000, MAX_MODEL_LEN, enable_prefix_caching=False)
    expected = outputs(arrivals, roomy, fcfs, 1, range(len(arrivals)))
    for _ in range(3):
        block_size = data.draw(st.sampled_from([1, 2, 3, 4, 16]))
        least = -(-(MAX_MODEL_LEN - 1) // block_size)
        tight = Limits(
            block_size,
            data.draw(st.integers(least, least + 6)),
            max_num_seqs=data.draw(st.integers(1, 4)),
            max_num_batched_tokens=data.draw(st.integers(1, 30)),
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=data.draw(st.booleans()),
        )
        policy = data.draw(st.sampled_from([fcfs, prefill_first]))
        depth = data.draw(st.integers(1, 3))
        order = data.draw(st.permutations(range(len(arrivals))))
        assert outputs(arrivals, tight, policy, depth, order) == expected


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_staggered_arrivals_in_a_tiny_pool_lose_no_token(depth: int) -> None:
    """Eight requests of 8 + 24 tokens, one arriving per step, blocks for two of them: exactly 24 tokens each."""
    run = work(block_size=16, num_blocks=4, max_model_len=33)
    policy_state = fcfs.init
    for number in range(8):
        run.arrive(request(number, 8, max_tokens=24))
        if len(run.state.in_flight) == depth:
            run.deliver()
        policy_state = step(run, policy_state)
    run.drain(fcfs, depth=depth)
    assert set(run.endings.values()) == {("length", 24)}
    run.check_outputs()


def step(run, policy_state):
    """One decision of fcfs, carried out."""
    from nanofn.schedule.view import view

    policy_state, decision = fcfs.decide(policy_state, view(run.state, 0))
    run.step(decision)
    return policy_state


def test_forced_resets_do_not_change_outputs() -> None:
    """At depth 2 in a tiny pool, with the cache reset by force now and then."""
    random = Random(0)
    for _ in range(20):
        run = work(block_size=2, num_blocks=10, max_model_len=21)
        for number in range(4):
            run.arrive(request(number, [1] * random.randint(1, 8), random.randint(1, 12), n=2))
        policy_state = fcfs.init
        for _ in range(30):
            if len(run.state.in_flight) < 2 and run.live_ids:
                policy_state = step(run, policy_state)
            elif run.executor.results:
                run.deliver()
            if random.random() < 0.2:
                run.apply(PrefixCacheReset(preempt_running=True))
        run.drain(fcfs, depth=2)
        run.check_all_returned()
        run.check_outputs()


def test_the_cache_saves_work_and_changes_nothing_else() -> None:
    """The same decisions' outputs, fewer computed tokens."""
    computed = {}
    for enabled in (False, True):
        run = work(num_blocks=32, enable_prefix_caching=enabled)
        for number in range(4):
            run.arrive(request(number, [*range(12), 50 + number], 4))
        run.drain(fcfs)
        run.check_outputs()
        computed[enabled] = run.executor.num_computed
    assert computed == {False: 4 * (13 + 3), True: 4 * (13 + 3) - 3 * 12}
