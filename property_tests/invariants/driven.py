"""A policy at work on the real core, turn by turn, with requests that arrive on the way."""

from attrs import frozen

from nanofn.config import Limits
from nanofn.lab.work import Work
from nanofn.policy import (
    fair,
    fcfs,
    guaranteed,
    leader,
    longest_prefix,
    patience,
    prefill_first,
    priority,
    quantum,
    shortest_first,
    watermark,
)
from nanofn.request import Request
from nanofn.schedule.view import view
from nanofn.state.decision import Decision
from nanofn.state.engine_state import EngineState
from nanofn.state.events import Launched
from nanofn.state.step_plan import StepPlan

BUILT_IN = {
    "fcfs": fcfs,
    "prefill_first": prefill_first,
    "priority": priority,
    "shortest_first": shortest_first,
    "fair": fair,
    "longest_prefix": longest_prefix,
    "guaranteed": guaranteed,
}
POLICIES = BUILT_IN | {
    "patience of priority": patience(priority, 6),
    "leader of shortest_first": leader(shortest_first),
    "watermark of prefill_first": watermark(prefill_first, 1),
    "quantum of fcfs": quantum(fcfs, 3),
}
TIGHT = Limits(4, 10, max_num_seqs=4, max_num_batched_tokens=12, max_model_len=25)
"""Room for one and a half sequences of full length, so that blocks run out."""


@frozen(eq=False)
class Turn:
    """One decision and what became of it."""

    before: EngineState
    decision: Decision
    step_plan: StepPlan
    after: EngineState
    policy_state: object


def turns(run, policy, arrivals, *, depth=1, start_us=0):
    """Drive a work to its end; yields each turn. The lists of requests arrive one before each step.

    A step is a millisecond. Whatever comes back is told to the policy, as the loop does.
    """
    policy_state, news, number, queue = policy.init, (), 0, list(arrivals)
    while queue or not run.is_idle:
        for each in queue.pop(0) if queue else ():
            news += run.arrive(each)
        is_open = True
        while is_open and len(run.state.in_flight) < depth:
            before, seen = run.state, view(run.state, start_us + 1_000 * number, news)
            policy_state, decision = policy.decide(policy_state, seen)
            step_plan = run.step(decision)
            news, is_open = (*step_plan.effects, Launched(step_plan)), step_plan.plan_id is not None
            yield Turn(before, decision, step_plan, run.state, policy_state)
        number += 1
        if run.executor.results:
            news += run.deliver()
        elif not queue and not run.is_idle:
            raise AssertionError(f"nothing is planned and nothing flies: {run.state}")


def random_arrivals(random, count, *, is_shared=True, **facts):
    """Requests for `TIGHT` in lists of none to three; prompts share prefixes, or each has tokens of its own."""
    asked = []
    for number in range(count):
        length = random.randint(1, 16)
        own = range(1_000 * (number + 1), 1_000 * (number + 1) + length)
        defaults = {
            "prompt_token_ids": tuple(random.choices([1, 1, 1, 2], k=length) if is_shared else own),
            "max_tokens": random.randint(1, 9),
            "priority": random.randint(0, 4),
            "client": random.choice(["a", "b", "c"]),
            "arrival_us": number,
        }
        asked.append(Request(number, **defaults | facts))
    lists = []
    while asked:
        size = random.randint(0, 3)
        lists.append(asked[:size])
        asked = asked[size:]
    return lists


def flat(arrivals):
    """All requests of some lists."""
    return [each for some in arrivals for each in some]


def log_of(limits, policy, arrivals, **options):
    """The decisions' plans, and the work they were made for."""
    run = Work(limits, checked=False)
    return [turn.step_plan for turn in turns(run, policy, arrivals, **options)], run
