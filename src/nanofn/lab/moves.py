"""moves: what can happen next, from outside and from the engine itself."""

from collections.abc import Iterator
from itertools import product

from attrs import evolve

from nanofn.lab.decisions import decisions
from nanofn.lab.node import Move, Node
from nanofn.lab.scope import Scope
from nanofn.request import RequestId
from nanofn.schedule.transition import transition
from nanofn.schedule.view import view
from nanofn.state.effects import Refused
from nanofn.state.events import (
    Event,
    Launched,
    PrefixCacheReset,
    RequestAborted,
    RequestArrived,
    StepCompleted,
    StepDecided,
    StepFailed,
    StopStringMatched,
)


def moves(node: Node, scope: Scope) -> Iterator[Move]:
    """List what can happen next: each event, with each choice of tokens that its plan could sample."""
    yield from map(Move, _from_outside(node, scope))
    if node.executor.results:
        plan_id, result = node.executor.results[0]
        assert result is not None
        yield Move(StepCompleted(plan_id, result))
    if len(node.state.in_flight) < scope.depth:
        yield from _decided(node, scope)


def _decided(node: Node, scope: Scope) -> Iterator[Move]:
    """List decisions, as far as they lead to different plans, with what may be sampled."""
    state, policy_state = node.state, node.policy_state
    wishes = decisions(state, scope.max_grants)
    if scope.policy is not None:
        policy_state, decision = scope.policy.decide(policy_state, view(state, 0, node.news))
        wishes = iter([decision])
    plans = set()
    for decision in wishes:
        event = StepDecided(decision, now_us=0)
        try:
            after, effects = transition(state, event)
        except Exception:  # noqa: BLE001  taken again as a move, where it is a finding
            yield Move(event)
            continue
        launched = effects[-1]
        assert isinstance(launched, Launched)
        step_plan = launched.step_plan
        # A state and what was preempted, ended, started and allocated in which order give the state afterwards.
        done = tuple([effect for effect in step_plan.effects if not isinstance(effect, Refused)])
        made = (step_plan.entries.columns, step_plan.new_blocks, done)
        if made not in plans:
            plans.add(made)
            for samples in product(scope.tokens, repeat=sum(step_plan.entries.samples)):
                yield Move(event, samples, (after, effects), policy_state)


def _from_outside(node: Node, scope: Scope) -> Iterator[Event]:
    state = node.state
    num_live = len(state.running) + len(state.waiting)
    for request in scope.requests:
        if num_live + request.n <= scope.max_live:
            yield RequestArrived(evolve(request, request_id=RequestId(node.num_requests)))
    if scope.has_aborts:
        requests = {sequence.request.request_id for sequence in (*state.running, *state.waiting.values())}
        yield from (RequestAborted(request_id) for request_id in sorted(requests))
        for sequence in (*state.running, *state.waiting.values()):
            if sequence.num_output_tokens:
                yield StopStringMatched(sequence.sequence_id, sequence.num_output_tokens - 1)
    if scope.has_failures:
        yield from (PrefixCacheReset(preempt_running) for preempt_running in (False, True))
        yield from (StepFailed(plan.plan_id) for plan in state.in_flight if plan.plan_id is not None)
