"""Node: a state in an exploration, with all that a run knows besides, and one step from it."""

from collections import deque
from typing import Any

from attrs import frozen

from nanofn.lab.shadow import ShadowExecutor
from nanofn.request import SequenceId, TokenId
from nanofn.schedule.transition import transition
from nanofn.state.effects import Admitted, TokensCommitted
from nanofn.state.engine_state import EngineState
from nanofn.state.events import Effect, Event, Launched, RequestArrived, StepCompleted, StepDecided, StepFailed

Outcome = tuple[EngineState, tuple[Effect, ...]]
Tokens = dict[SequenceId, tuple[TokenId, ...]]


@frozen(eq=False)
class Node:
    """A state with all that a run knows besides.

    Attributes:
        state: The state, as the transitions made it.
        executor: Shadow memory and results in flight.
        tokens: Known tokens of each live sequence.
        num_requests: Requests so far.
        parent: Where it came from, and by which event.
        policy_state: The policy's, where one decides.
        news: Effects since it decided.
    """

    state: EngineState
    executor: ShadowExecutor
    tokens: Tokens
    num_requests: int = 0
    parent: "tuple[Node, Event] | None" = None
    policy_state: Any = None
    news: tuple[Effect, ...] = ()

    def events(self) -> tuple[Event, ...]:
        """List the events from the beginning."""
        found, node = list[Event](), self
        while node.parent is not None:
            node, event = node.parent
            found.append(event)
        return tuple(reversed(found))


@frozen(eq=False)
class Move:
    """One thing that can happen next.

    Attributes:
        event: What.
        samples: Tokens that the plan samples, where there is one.
        outcome: What the transition gives, where that is known already.
        policy_state: The policy's afterwards, where the event is its decision.
    """

    event: Event
    samples: tuple[TokenId, ...] = ()
    outcome: Outcome | None = None
    policy_state: Any = None


def step(node: Node, move: Move) -> tuple[Node, tuple[Effect, ...]]:
    """Take an event through the real transition; a launched plan runs in the shadow memory and samples as told."""
    event = move.event
    state, effects = transition(node.state, event) if move.outcome is None else move.outcome
    executor, tokens = _executor_after(node.executor, event), dict(node.tokens)
    policy_state, news = node.policy_state, (*node.news, *effects)
    if isinstance(event, StepDecided):
        policy_state, news = move.policy_state, effects
    for effect in effects:
        if isinstance(effect, Admitted) and isinstance(event, RequestArrived):
            tokens |= dict.fromkeys(effect.sequence_ids, event.request.prompt_token_ids)
        elif isinstance(effect, TokensCommitted):
            for sequence_id, token_id in zip(effect.sequence_ids, effect.token_ids, strict=True):
                tokens[sequence_id] += (token_id,)
    launched = effects[-1] if effects else None
    if isinstance(launched, Launched) and launched.step_plan.plan_id is not None:
        executor, samples = executor.fork(), iter(move.samples)
        known = tokens
        executor.launch(
            state, launched.step_plan, lambda each: known[SequenceId(each)], sample=lambda *_: next(samples)
        )
    alive = {*state.running.sequence_id, *[key for key, _ in state.waiting]}
    if len(alive) != len(tokens):
        tokens = {sequence_id: known for sequence_id, known in tokens.items() if sequence_id in alive}
    num_requests = node.num_requests + isinstance(event, RequestArrived)
    return Node(state, executor, tokens, num_requests, (node, event), policy_state, news), effects


def _executor_after(executor: ShadowExecutor, event: Event) -> ShadowExecutor:
    """Drop the results that an event has taken, or that will not come."""
    if isinstance(event, StepCompleted) and executor.results and executor.results[0][0] == event.plan_id:
        executor = executor.fork()
        executor.results.popleft()
    if isinstance(event, StepFailed):
        executor = executor.fork()
        executor.results = deque([result for result in executor.results if result[0] < event.plan_id])
    return executor
