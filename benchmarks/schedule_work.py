"""The standard work of the scheduler's benchmark, and one way to run it for each scheduler."""

from random import Random
from time import perf_counter_ns

from mutable_scheduler import MutableScheduler
from nanofn.config import Limits
from nanofn.policy import fcfs
from nanofn.request import Request, RequestId, TokenId
from nanofn.schedule.admit import admit
from nanofn.schedule.commit import commit
from nanofn.schedule.plan import plan
from nanofn.schedule.view import view
from nanofn.state.effects import Preempted
from nanofn.state.engine_state import initial_state
from nanofn.state.step_plan import StepResult

POOLS = {(256, "enough"): 1_206, (256, "40 %"): 482, (16, "enough"): 17_422, (16, "40 %"): 6_968}
"""(block size, share) to blocks: all sequences at full length at once, and 40 % of that."""


def standard_work(num_requests=256, longest=1_024):
    """Prompts of 100 to 1,024 random ids and as many outputs: 142,827 prompt and 133,966 output tokens."""
    random = Random(0)
    shortest = min(100, longest)
    prompts = [
        tuple([random.randint(0, 10_000) for _ in range(random.randint(shortest, longest))])
        for _ in range(num_requests)
    ]
    return [(prompt, random.randint(shortest, longest)) for prompt in prompts]


def standard_limits(block_size, num_blocks):
    """Limits of the standard work."""
    return Limits(block_size, num_blocks, max_num_seqs=512, max_num_batched_tokens=16_384, max_model_len=2_049)


def token(step, number):
    """Some token, the same for either scheduler."""
    return TokenId((step * 31 + number * 7) % 10_000)


class Outcome:
    """What a run took and did: nanoseconds a step, and a digest of each plan.

    Not the plans: keeping them would fill the caches that the next step needs, and take pages that it would have got.
    """

    def __init__(self):
        self.nanoseconds, self.plans = [], []
        self.num_preemptions = self.num_prefilled = 0

    def step(self, start, end, entries):
        """Note one step: its time, and its (sequence, first position, tokens) entries."""
        self.nanoseconds.append(end - start)
        self.plans.append(hash(tuple(entries)))
        self.num_prefilled += sum(count for _, _, count in entries if count > 1)


def run_core(requests, limits, policy=fcfs):
    """Run the pure core to the end."""
    outcome, state = Outcome(), initial_state(limits)
    for number, (prompt, max_tokens) in enumerate(requests):
        state, _ = admit(state, Request(RequestId(number), prompt, max_tokens))
    policy_state, news, clock = policy.init, (), perf_counter_ns
    while len(state.running) or len(state.waiting):
        start = clock()
        policy_state, decision = policy.decide(policy_state, view(state, 0, news))
        state, step_plan = plan(state, decision)
        middle = clock()
        entries = step_plan.entries
        token_ids = tuple(
            [
                token(len(outcome.plans), number)
                for number, samples in zip(entries.sequence_id, entries.samples, strict=True)
                if samples
            ]
        )
        result = StepResult(token_ids, 0)
        resumed = clock()
        state, effects = commit(state, step_plan.plan_id, result)
        end = clock()
        news = (*step_plan.effects, *effects)
        outcome.step(
            start + resumed - middle,
            end,
            list(zip(entries.sequence_id, entries.first_position, entries.num_tokens, strict=True)),
        )
        outcome.num_preemptions += sum(isinstance(effect, Preempted) for effect in step_plan.effects)
    return outcome


def run_mutable(requests, limits):
    """Run the mutable yardstick to the end."""
    outcome, scheduler, clock = Outcome(), MutableScheduler(limits), perf_counter_ns
    for number, (prompt, max_tokens) in enumerate(requests):
        scheduler.add(number, prompt, max_tokens)
    while scheduler.running or scheduler.waiting:
        start = clock()
        entries, _ = scheduler.schedule()
        middle = clock()
        noted = [(sequence.number, position, count) for sequence, position, count in entries]
        token_ids = [
            token(len(outcome.plans), sequence.number)
            for sequence, position, count in entries
            if position + count == sequence.length
        ]
        resumed = clock()
        scheduler.commit(entries, token_ids)
        end = clock()
        outcome.step(start + resumed - middle, end, noted)
    outcome.num_preemptions = scheduler.num_preemptions
    return outcome
