"""What policies owe: order, progress, no idling, bounded memory. The core is correct without any of it."""

from random import Random

import pytest

from core.build import request
from invariants.driven import BUILT_IN, POLICIES, TIGHT, flat, log_of, random_arrivals, turns
from nanofn.config import Limits
from nanofn.lab.graph import Arrivals
from nanofn.lab.liveness import study
from nanofn.lab.policy_facts import Caps
from nanofn.lab.work import Work
from nanofn.lab.zoo import last_come, shortest_prompt, strict_fcfs
from nanofn.policy import by_key, fair, fcfs, guaranteed, leader, patience
from nanofn.policy.fcfs import Fcfs
from nanofn.state.effects import Preempted, Started
from nanofn.state.engine_state import find

SEEDS = range(20)


def losers(turn):
    """Who was preempted in a turn."""
    return [effect.sequence_id for effect in turn.step_plan.effects if isinstance(effect, Preempted)]


def test_victims_yield_to_their_betters_only_and_only_if_blocks_are_short() -> None:
    """inv30: under priorities, the last in rank yields, to one before it that got blocks, and only if too few were free."""
    policy, count = by_key(lambda each: each.priority, is_fixed=True, watermark=0), 0
    for seed in SEEDS:
        run = Work(TIGHT, checked=False)
        for turn in turns(run, policy, random_arrivals(Random(seed), 8, is_shared=False)):
            if not losers(turn):
                continue
            rank = {key: (find(turn.before, key).request.priority, key) for key in turn.before.running.sequence_id}
            rows = {row for row, _, _ in turn.step_plan.new_blocks}
            gained = [entry.sequence_id for entry in turn.step_plan.entries if entry.row in rows]
            best = min(rank[key] for key in gained if key in rank)
            assert all(rank[key] > best for key in losers(turn))
            assert len(turn.step_plan.new_blocks) > turn.before.pool.num_free
            if set(turn.step_plan.entries.num_tokens) == {1}:  # one block is enough for each, so the last one has it
                kept = [rank[key] for key in turn.after.running.sequence_id if key in rank]
                assert min(rank[key] for key in losers(turn)) > max(kept)
            count += 1
    assert count >= 8


@pytest.mark.parametrize("policy", [strict_fcfs, guaranteed, Fcfs(watermark=0), fcfs])
def test_first_come_first_served_runs_the_oldest(policy) -> None:
    """inv31: at depth 1 and without shared prefixes the running sequences are the first ones of all that live."""
    for seed in SEEDS:
        run = Work(TIGHT, checked=False)
        for turn in turns(run, policy, random_arrivals(Random(seed), 8, is_shared=False)):
            running = sorted(turn.after.running.sequence_id)
            live = sorted([*running, *[key for key, _ in turn.after.waiting]])
            assert running == live[: len(running)]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("policy", [strict_fcfs, guaranteed, fcfs], ids=["strict", "guaranteed", "fcfs"])
def test_the_oldest_is_never_preempted_and_all_end_in_time(policy, depth: int) -> None:
    """inv48: within the sum of (prompt + output) / budget, plus output, plus depth, plus two steps for each."""
    for seed in SEEDS:
        run = Work(TIGHT, checked=False)
        arrivals = [flat(random_arrivals(Random(seed), 8, is_shared=False))]
        num_steps = 0
        for turn in turns(run, policy, arrivals, depth=depth):
            num_steps += turn.step_plan.plan_id is not None
            live = [*turn.before.running.sequence_id, *[key for key, _ in turn.before.waiting]]
            if live:
                assert min(live) not in losers(turn)
                assert min(live) in turn.after.running.sequence_id
        lengths = [(each.num_prompt_tokens, each.max_tokens) for each in arrivals[0]]
        bound = sum(-(-(p + m) // TIGHT.max_num_batched_tokens) + m + depth + 2 for p, m in lengths)
        assert num_steps <= bound


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("policy", [strict_fcfs, Fcfs(watermark=0)], ids=["strict", "fcfs"])
def test_between_two_preemptions_a_sequence_gets_a_token(policy, depth: int) -> None:
    """inv49: nobody is preempted twice in vain, so preemptions are at most as many as output tokens."""
    count = 0
    for seed in SEEDS:
        run, at = Work(TIGHT, checked=False), {}
        for turn in turns(run, policy, random_arrivals(Random(seed), 8), depth=depth):
            for key in losers(turn):
                tokens = find(turn.after, key).num_tokens
                assert at.get(key, 0) < tokens
                at[key] = tokens
                count += 1
    assert count >= 8


@pytest.mark.parametrize("name", POLICIES)
def test_no_step_is_empty_while_somebody_lives(name: str) -> None:
    """inv54, pol4: with nothing in flight and without a time to wake, something is planned."""
    for seed in SEEDS:
        run = Work(TIGHT, checked=False)
        for turn in turns(run, POLICIES[name], random_arrivals(Random(seed), 8)):
            alive = len(turn.before.running) + len(turn.before.waiting) > 0
            assert (turn.step_plan.plan_id is not None) == alive
            assert turn.decision.wake_us is None


@pytest.mark.parametrize("name", POLICIES)
def test_a_policys_memory_is_bounded_by_what_lives(name: str) -> None:
    """pol2: its state is hashable, and after 200 requests of three clients it is no larger than after 40."""
    sizes = []
    for count in (40, 200):
        run = Work(TIGHT, checked=False)
        last = None
        for turn in turns(run, POLICIES[name], [*random_arrivals(Random(count), count, max_tokens=2), []]):
            assert hash(turn.policy_state) is not None
            last = turn.policy_state
        sizes.append(len(repr(last)))
    assert sizes[1] <= sizes[0] + 100


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_ends_what_arrives(name: str, depth: int) -> None:
    """live1: whatever arrives, everything ends, and with the outputs of an unlimited pool."""
    for seed in range(12):
        _, run = log_of(TIGHT, POLICIES[name], random_arrivals(Random(seed), 8, n=1 + seed % 2), depth=depth)
        run.check_all_returned()
        run.check_outputs()


SCOPE = Arrivals(
    Limits(2, 2, max_num_seqs=2, max_num_batched_tokens=3, max_model_len=4),
    (request(0, [1], 2), request(0, [1, 1, 1], 1)),
    max_live=3,
)
FAIR_ORDER = {
    "fcfs": (fcfs, 5),
    "strict fcfs": (strict_fcfs, 4),
    "guaranteed": (guaranteed, 4),
    "leader": (leader(last_come), None),
}


@pytest.mark.parametrize("name", FAIR_ORDER)
def test_nobody_starves_while_others_keep_coming(name: str) -> None:
    """live2: in the graph of all states of a small scope no cycle of steps keeps a sequence alive; in two others, one does."""
    policy, _ = FAIR_ORDER[name]
    verdict = study(policy, SCOPE)
    assert verdict.is_complete
    assert verdict.num_states > 50
    assert (verdict.livelock, verdict.starvation) == (None, None)


@pytest.mark.parametrize("policy", [last_come, shortest_prompt], ids=lambda policy: policy.name)
def test_a_policy_that_starves_somebody_is_found(policy) -> None:
    """live2: the newest first, and the shortest first, do."""
    assert study(policy, SCOPE).starvation is not None


@pytest.mark.parametrize("name", [name for name in FAIR_ORDER if FAIR_ORDER[name][1]])
def test_nobody_waits_longer_than_stated(name: str) -> None:
    """live3: the most steps without a token, over all arrivals of the scope, are as counted."""
    policy, bound = FAIR_ORDER[name]
    assert study(policy, SCOPE).longest_wait == bound


def test_patience_bounds_the_wait_under_a_policy_that_starves() -> None:
    """live3: newest first, but nobody waits for ever once patience is out."""
    verdict = study(patience(last_come, 3), Arrivals(SCOPE.limits, SCOPE.requests[:1], max_live=3), Caps(3))
    assert verdict.starvation is None
    assert verdict.longest_wait is not None


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_set_aside_blocks_are_never_taken_back(depth: int) -> None:
    """live4: `guaranteed` preempts nobody, so without a cache it computes each token once."""
    limits = Limits(4, 10, 4, 12, 25, enable_prefix_caching=False)
    for seed in SEEDS:
        _, run = log_of(limits, guaranteed, random_arrivals(Random(seed), 8), depth=depth)
        assert run.num_preemptions == 0
        needed = sum(asked.num_prompt_tokens + run.endings[key][1] - 1 for key, (asked, _) in run.owner.items())
        assert run.executor.num_computed == needed


@pytest.mark.parametrize("name", BUILT_IN)
def test_preemption_costs_a_bounded_part_of_the_work(name: str) -> None:
    """live4: over many tight works, what is computed is less than twice what is needed."""
    computed = needed = 0
    for seed in SEEDS:
        _, run = log_of(TIGHT, BUILT_IN[name], random_arrivals(Random(seed), 8, is_shared=False))
        computed += run.executor.num_computed
        needed += sum(asked.num_prompt_tokens + run.endings[key][1] - 1 for key, (asked, _) in run.owner.items())
    assert needed <= computed < 2 * needed


def largest_gap(policy):
    """How far apart two clients' services come while both wait, with prompt tokens at one and output tokens at two.

    Client a asks for 60 short prompts and long outputs, after client b asked for 60 of the other kind.
    """
    kinds = {"b": (14, 3), "a": (2, 8)}
    arrivals = [
        request(number, kinds[client][0], kinds[client][1], client=client)
        for number, client in enumerate(["b"] * 60 + ["a"] * 60)
    ]
    run, prompts, gap = Work(TIGHT, checked=False), {"a": 0, "b": 0}, 0
    for turn in turns(run, policy, [arrivals]):
        for effect in turn.step_plan.effects:
            if isinstance(effect, Started):
                asked = find(turn.before, effect.sequence_id).request
                prompts[asked.client] += asked.num_prompt_tokens - effect.num_cached_tokens
        if {each.request.client for each in turn.after.waiting.values()} == {"a", "b"}:
            service = dict(prompts)
            for key, outputs in run.outputs.items():
                service[run.owner[key][0].client] += 2 * len(outputs)
            gap = max(gap, abs(service["a"] - service["b"]))
    return gap


def test_two_clients_that_always_have_work_get_the_same_service() -> None:
    """live5: the gap stays below twice what a full pool's output tokens cost, the paper's bound; first come does not."""
    bound = 2 * 2 * TIGHT.num_blocks * TIGHT.block_size
    assert largest_gap(fair) <= bound
    assert largest_gap(fcfs) > 4 * bound
