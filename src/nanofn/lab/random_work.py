"""Random whole runs from a seed: everything that can happen, under decisions that no policy would make."""

from collections.abc import Sequence
from random import Random
from typing import Any

from nanofn.config import Limits
from nanofn.lab.shadow import EOS
from nanofn.lab.work import Work, require
from nanofn.policy import fcfs, prefill_first
from nanofn.request import Request, RequestId, SequenceId, TokenId
from nanofn.state.decision import Decision, Policy
from nanofn.state.effects import Refused
from nanofn.state.events import HintChanged, PrefixCacheReset, StopStringMatched


def random_limits(random: Random) -> Limits:
    """Pool 2 to 16 blocks, block size 1 to 16, budget 1 to 64: anything goes that `Limits` accepts."""
    block_size, num_blocks = random.choice([1, 2, 3, 4, 8, 16]), random.randint(2, 16)
    return Limits(
        block_size,
        num_blocks,
        max_num_seqs=random.randint(1, 4),
        max_num_batched_tokens=random.randint(1, 64),
        max_model_len=random.randint(2, min(block_size * num_blocks + 1, 40)),
        enable_prefix_caching=random.random() < 0.8,
    )


def random_request(random: Random, request_id: int, max_model_len: int) -> Request:
    """A request whose prompt meets others' prefixes often; now and then one that must be refused."""
    length = random.randint(1, max(1, max_model_len - 1))
    if random.random() < 0.03:
        length = random.choice([0, max_model_len, max_model_len + 3])
    varied = random.random() < 0.3
    return Request(
        RequestId(request_id),
        tuple([TokenId(random.choice([1, 2]) if varied else 1) for _ in range(length)]),
        max_tokens=random.randint(1, 12),
        min_tokens=random.choice([0, 0, 2]),
        n=random.choice([1, 1, 1, 2, 3]),
        stop_token_ids=random.choice([(), (EOS,)]),
        cache_keys=random.choice([(), (), (("salt", "a"),), (("adapter", "a"),)]),
        reads_prefix_cache=random.random() < 0.9,
        priority=request_id % 3,
        client="ab"[request_id % 2],
    )


def random_decision(random: Random, live_ids: Sequence[SequenceId]) -> Decision:
    """Any mention of any sequence, live or not, in any order, with any count."""
    anyone = (*live_ids, SequenceId(max(live_ids, default=0) + 1))

    def some(most: int) -> tuple[SequenceId, ...]:
        return tuple([random.choice(anyone) for _ in range(random.randint(0, most))])

    order = random.sample(live_ids, random.randint(0, len(live_ids)))
    counts = [0, 1, 1, 1, 2, 3, 5, 100, -1]
    return Decision(
        tuple([(sequence_id, random.choice(counts)) for sequence_id in (*order, *some(1))]),
        preempt=some(random.choice([0, 0, 0, 1])),
        victims=None if random.random() < 0.5 else some(4),
        shed=some(1) if random.random() < 0.02 else (),
        skip_blocked=random.random() < 0.5,
    )


def decided_step(work: Work, decision: Decision, *, fails: bool) -> None:
    """Take a step, and see that nobody is passed over in silence: each grant has an entry or a refusal."""
    step_plan = work.step(decision, fails=fails)
    refused = {effect.sequence_id for effect in step_plan.effects if isinstance(effect, Refused)}
    passed_over = {sequence_id for sequence_id, count in decision.grants if count} - refused
    require(passed_over <= set(step_plan.entries.sequence_id), f"{passed_over} got neither tokens nor a refusal")


def random_event(random: Random, work: Work, depth: int, *, failing: bool) -> None:
    """Let one thing happen: a step, a result, or something from outside."""
    live_ids, chance = work.live_ids, random.random()
    if chance < 0.03:
        work.abort(RequestId(random.randint(0, len(work.owner))))
    elif chance < 0.04:
        work.apply(PrefixCacheReset(random.random() < 0.5))
    elif chance < 0.05 and live_ids:
        work.apply(StopStringMatched(random.choice(live_ids), random.randint(0, 3)))
    elif chance < 0.06 and live_ids:
        work.apply(HintChanged(random.choice(live_ids), random.randint(0, 9)))
    elif chance < 0.6 and len(work.state.in_flight) < depth:
        decided_step(work, random_decision(random, live_ids), fails=failing and random.random() < 0.1)
    elif work.executor.results:
        work.deliver()


def random_work(seed: int, *, checked: bool = True, policies: Sequence[Policy[Any]] = (fcfs, prefill_first)) -> Work:
    """Run some steps under arbitrary decisions, then let one of some policies finish; the work is checked to the end."""
    random = Random(seed)  # noqa: S311  a seed is what makes a run repeatable
    limits, depth = random_limits(random), random.randint(1, 3)
    work, failing = Work(limits, checked=checked), random.random() < 0.3
    arrivals = [random_request(random, request_id, limits.max_model_len) for request_id in range(random.randint(1, 6))]
    for _ in range(random.randint(5, 60)):
        if arrivals and random.random() < 0.2:
            work.arrive(arrivals.pop())
        else:
            random_event(random, work, depth, failing=failing)
    work.drain(random.choice(policies), depth=depth)
    work.check_all_returned()
    work.check_outputs()
    return work
