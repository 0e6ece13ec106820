"""explore: every state that the real core can reach at a small scope, under every decision, breadth first.

A state differs from another only if its normal form does, or what the shadow memory holds. Every transition is checked,
and every state. The first broken rule ends the search; breadth first, so its way there is a shortest one.
"""

from collections import deque
from collections.abc import Callable
from time import process_time
from typing import Any

from attrs import frozen

from nanofn.lab.fingerprint import facts_for_core, fingerprint
from nanofn.lab.moves import moves
from nanofn.lab.node import Move, Node, step
from nanofn.lab.policy_facts import facts_for_policy, normal_news, normal_policy_state
from nanofn.lab.scope import Scope
from nanofn.lab.shadow import ShadowExecutor
from nanofn.state.engine_state import initial_state
from nanofn.state.events import Event
from nanofn.state.invariants import violations
from nanofn.state.sequence import Sequence
from nanofn.state.step_invariants import transition_violations


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
        seconds: CPU time.
        broken: The shortest way to a broken rule, if there is one.
        is_complete: Whether all states were seen.
    """

    num_states: int
    num_transitions: int
    seconds: float
    broken: Broken | None
    is_complete: bool


def explore(scope: Scope, watch: Callable[[int], None] | None = None) -> Exploration:
    """Search all states of a scope, breadth first.

    Args:
        scope: What may happen.
        watch: Called with the number of states so far, every thousand of them.
    """
    start, num_transitions = process_time(), 0
    first = Node(
        initial_state(scope.limits),
        ShadowExecutor(scope.limits.block_size),
        {},
        policy_state=None if scope.policy is None else scope.policy.init,
    )
    seen, queue = {key_of(first, scope)}, deque([first])
    broken = None
    while queue and broken is None and len(seen) < scope.max_states:
        node = queue.popleft()
        event: Event | None = None
        try:
            for move in moves(node, scope):
                event, num_transitions = move.event, num_transitions + 1
                after, problem = _checked(node, move, scope, seen)
                if problem:
                    broken = Broken((*node.events(), event), problem)
                    break
                if after is not None:
                    queue.append(after)
                    if watch is not None and len(seen) % 1_000 == 0:
                        watch(len(seen))
                event = None
        except Exception as error:  # noqa: BLE001  whatever the core or a policy raises is a finding
            events = node.events() if event is None else (*node.events(), event)
            broken = Broken(events, f"{type(error).__name__}: {error}")
    return Exploration(len(seen), num_transitions, process_time() - start, broken, not queue and broken is None)


def _checked(node: Node, move: Move, scope: Scope, seen: set[tuple[Any, ...]]) -> tuple[Node | None, str]:
    """Take a move and look for broken rules; the node it leads to, if that is new, and what is broken."""
    after, effects = step(node, move)
    findings = transition_violations(node.state, move.event, after.state, effects)
    key = key_of(after, scope)
    is_new = key not in seen
    if is_new:
        seen.add(key)
        findings += violations(after.state)
    return after if is_new else None, "; ".join([f"{each.invariant}: {each.detail}" for each in findings])


def key_of(node: Node, scope: Scope) -> tuple[Any, ...]:
    """What tells a node from others: its state's fingerprint, the results in flight, and what the policy knows."""
    state, tokens = node.state, node.tokens
    live: list[Sequence] = [*state.running, *state.waiting.values()]
    facts = {each.sequence_id: facts_for_core(each, tokens[each.sequence_id]) for each in live}
    results = tuple([result.token_ids for _, result in node.executor.results if result is not None])
    if scope.policy is None:
        return *fingerprint(state, facts, node.executor.memory, keeps_order=False), results
    facts = {each.sequence_id: (*facts[each.sequence_id], *facts_for_policy(each, state.num_steps)) for each in live}
    rank = {sequence_id: place for place, sequence_id in enumerate(sorted(tokens))}
    knows = (
        normal_policy_state(scope.policy, node.policy_state, rank),
        normal_news(scope.policy, node.news, rank, tells_of_ended=False),
    )
    return *fingerprint(state, facts, node.executor.memory, keeps_order=True), results, knows
