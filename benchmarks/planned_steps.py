"""The steps that the core plans for a work where nothing is short: what a limit of the work is computed from."""

from collections.abc import Iterator, Sequence

from nanofn.config import Limits
from nanofn.policy import fcfs
from nanofn.request import Request, RequestId, TokenId
from nanofn.schedule.admit import admit
from nanofn.schedule.commit import commit
from nanofn.schedule.plan import plan
from nanofn.schedule.view import view
from nanofn.state.engine_state import initial_state
from nanofn.state.step_plan import StepResult
from roofline import Entry

BLOCK_SIZE = 64
TOKEN_BUDGET = 16_384


def planned_steps(requests: Sequence[tuple[Sequence[int], int]]) -> Iterator[list[Entry]]:
    """Plan (prompt, number of output tokens) pairs, all there at the start, none preempted, prefixes shared.

    The settings are fixed, so that figures of one work under other settings are held against one limit.
    """
    longest = max(len(prompt) + num_output for prompt, num_output in requests)
    state = initial_state(
        Limits(
            block_size=BLOCK_SIZE,
            num_blocks=len(requests) * -(-longest // BLOCK_SIZE),
            max_num_seqs=len(requests),
            max_num_batched_tokens=max(TOKEN_BUDGET, len(requests)),
            max_model_len=longest + 1,
        )
    )
    for number, (prompt, num_output) in enumerate(requests):
        state, _ = admit(state, Request(RequestId(number), tuple(map(TokenId, prompt)), num_output))
    policy_state, news = fcfs.init, ()
    while len(state.running) or len(state.waiting):
        policy_state, decision = fcfs.decide(policy_state, view(state, 0, news))
        state, step_plan = plan(state, decision)
        entries = step_plan.entries
        yield [Entry(*each) for each in zip(entries.first_position, entries.num_tokens, entries.samples, strict=True)]
        sampled = (TokenId(0),) * sum(entries.samples)
        state, effects = commit(state, step_plan.plan_id, StepResult(sampled, 0))
        news = (*step_plan.effects, *effects)
