"""explore: every state that the real core can reach at a small scope, under every decision, breadth first.

A state differs from another only if its normal form does, or what the shadow memory holds. The first broken rule ends the
search; breadth first, so its way there is a shortest one.
"""

from collections import deque
from collections.abc import Iterator
from itertools import product
from time import perf_counter
from typing import Any

from attrs import evolve, frozen

from nanofn.config import Limits
from nanofn.lab.decisions import decisions
from nanofn.lab.fingerprint import fingerprint
from nanofn.lab.shadow import EOS, ShadowExecutor
from nanofn.request import Request, RequestId, SequenceId, TokenId
from nanofn.schedule.transition import transition
from nanofn.state.effects import Admitted, TokensCommitted
from nanofn.state.engine_state import EngineState, find, initial_state
from nanofn.state.events import (
    Effect,
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
from nanofn.state.step_invariants import step_violations

Outcome = tuple[EngineState, tuple[Effect, ...]]


@frozen
class Scope:
    """What may happen in an exploration.

    Attributes:
        limits: The bounds.
        requests: What may arrive, each any number of times; ids are given by the exploration.
        max_live: Most sequences alive at once.
        depth: Most plans in flight.
        max_grants: Most sequences that a decision names.
        tokens: What may be sampled.
        has_aborts: Whether requests are aborted and stop strings found.
        has_failures: Whether plans fail and the prefix cache is reset.
        max_states: Where to give up.
    """

    limits: Limits
    requests: tuple[Request, ...]
    max_live: int
    depth: int = 1
    max_grants: int = 2
    tokens: tuple[TokenId, ...] = (EOS, TokenId(1))
    has_aborts: bool = True
    has_failures: bool = False
    max_states: int = 1_000_000


@frozen(eq=False)
class Node:
    """A state with all that a run knows besides.

    Attributes:
        state: The state, as the transitions made it.
        executor: Shadow memory and results in flight.
        outputs: Committed tokens of each live sequence.
        num_requests: Requests so far.
        parent: Where it came from, and by which event.
    """

    state: EngineState
    executor: ShadowExecutor
    outputs: dict[SequenceId, tuple[TokenId, ...]]
    num_requests: int = 0
    parent: "tuple[Node, Event] | None" = None

    def known_tokens(self, sequence_id: int) -> tuple[TokenId, ...]:
        """Prompt and committed output of a live sequence."""
        sequence = find(self.state, SequenceId(sequence_id))
        assert sequence is not None
        return (*sequence.request.prompt_token_ids, *self.outputs[sequence.sequence_id])

    def events(self) -> tuple[Event, ...]:
        """List the events from the beginning."""
        found, node = list[Event](), self
        while node.parent is not None:
            node, event = node.parent
            found.append(event)
        return tuple(reversed(found))


@frozen
class Broken:
    """A way to a broken rule.

    Attributes:
        events: From the initial state; the last one breaks it.
        problem: What is broken.
    """

    events: tuple[Event, ...]
    problem: str


@frozen
class Exploration:
    """What was found.

    Attributes:
        num_states: Different states.
        num_transitions: Events tried.
        seconds: How long it took.
        broken: The shortest way to a broken rule, if there is one.
        is_complete: Whether all states were seen.
    """

    num_states: int
    num_transitions: int
    seconds: float
    broken: Broken | None
    is_complete: bool


def explore(scope: Scope) -> Exploration:
    """Search all states of a scope, breadth first."""
    start, num_transitions = perf_counter(), 0
    first = Node(initial_state(scope.limits), ShadowExecutor(scope.limits.block_size), {})
    seen, queue = {key_of(first)}, deque([first])
    broken = None
    while queue and broken is None and len(seen) < scope.max_states:
        node = queue.popleft()
        for event, samples, outcome in moves(node, scope):
            num_transitions += 1
            try:
                after, effects = step(node, event, samples, outcome)
                key = key_of(after)
                if key not in seen:
                    seen.add(key)
                    findings = step_violations(node.state, event, after.state, effects)
                    broken = Broken(after.events(), "; ".join(map(str, findings))) if findings else broken
                    queue.append(after)
            except Exception as error:  # noqa: BLE001  an exception from the core is a finding as well
                broken = Broken((*node.events(), event), f"{type(error).__name__}: {error}")
            if broken is not None:
                break
    return Exploration(len(seen), num_transitions, perf_counter() - start, broken, not queue and broken is None)


def step(
    node: Node, event: Event, samples: tuple[TokenId, ...], outcome: Outcome | None = None
) -> tuple[Node, tuple[Effect, ...]]:
    """Take an event through the real transition; a launched plan runs in the shadow memory and samples `samples`."""
    state, effects = transition(node.state, event) if outcome is None else outcome
    executor, outputs, num_requests = node.executor, dict(node.outputs), node.num_requests
    for effect in effects:
        if isinstance(effect, Admitted):
            outputs |= dict.fromkeys(effect.sequence_ids, ())
        elif isinstance(effect, TokensCommitted):
            for sequence_id, token_id in zip(effect.sequence_ids, effect.token_ids, strict=True):
                outputs[sequence_id] += (token_id,)
    after = Node(state, executor, outputs, num_requests + isinstance(event, RequestArrived), (node, event))
    if isinstance(event, StepCompleted | StepFailed):
        executor = executor.fork()
        while executor.results and _is_over(executor.results, event):
            executor.results.pop() if isinstance(event, StepFailed) else executor.results.popleft()
    launched = effects[-1] if effects else None
    if isinstance(launched, Launched) and launched.step_plan.plan_id is not None:
        executor = executor.fork()
        tokens = iter(samples)
        executor.launch(state, launched.step_plan, after.known_tokens, sample=lambda *_: next(tokens))
    alive = {*state.running.sequence_id, *[key for key, _ in state.waiting]}
    outputs = {sequence_id: tokens for sequence_id, tokens in outputs.items() if sequence_id in alive}
    return evolve(after, executor=executor, outputs=outputs), effects


def _is_over(results: "deque[Any]", event: StepCompleted | StepFailed) -> bool:
    if isinstance(event, StepFailed):
        return bool(results[-1][0] >= event.plan_id)
    return bool(results[0][0] == event.plan_id)


def moves(node: Node, scope: Scope) -> Iterator[tuple[Event, tuple[TokenId, ...], Outcome | None]]:
    """List what can happen next, each with the tokens that a plan would sample, and with its outcome where that is known."""
    state = node.state
    yield from ((event, (), None) for event in _outer_moves(node, scope))
    if node.executor.results:
        plan_id, result = node.executor.results[0]
        assert result is not None
        yield StepCompleted(plan_id, result), (), None
    if len(state.in_flight) < scope.depth:
        plans = set()
        for decision in decisions(state, scope.max_grants):
            event = StepDecided(decision, now_us=0)
            after, effects = transition(state, event)
            launched = effects[-1]
            assert isinstance(launched, Launched)
            made = (after.running, after.waiting, launched.step_plan.entries, launched.step_plan.new_blocks)
            if made not in plans:
                plans.add(made)
                for samples in product(scope.tokens, repeat=sum(launched.step_plan.entries.samples)):
                    yield event, samples, (after, effects)


def _outer_moves(node: Node, scope: Scope) -> Iterator[Event]:
    state = node.state
    num_live = len(state.running) + len(state.waiting)
    for request in scope.requests:
        if num_live + request.n <= scope.max_live:
            yield RequestArrived(evolve(request, request_id=RequestId(node.num_requests)))
    if scope.has_aborts:
        requests = {sequence.request.request_id for sequence in (*state.running, *state.waiting.values())}
        yield from (RequestAborted(request_id) for request_id in sorted(requests))
        for sequence in state.running:
            if sequence.num_output_tokens:
                yield StopStringMatched(sequence.sequence_id, sequence.num_output_tokens - 1)
    if scope.has_failures:
        yield PrefixCacheReset(preempt_running=True)
        yield from (StepFailed(plan.plan_id) for plan in state.in_flight if plan.plan_id is not None)


def key_of(node: Node) -> tuple[Any, ...]:
    """What tells a node from others: its state's fingerprint, and the results in flight."""
    tokens = {sequence_id: node.known_tokens(sequence_id) for sequence_id in node.outputs}
    results = tuple([result.token_ids for _, result in node.executor.results if result is not None])
    return *fingerprint(node.state, tokens, node.executor.memory, keeps_order=False), results
