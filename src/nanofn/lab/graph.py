"""graph: all states that the real core reaches under a policy at a small scope, whatever arrives and whenever.

Depth 1: a step is decided, planned and committed in one go. Each edge says what becomes of every live sequence, so each can
be followed on its own.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from attrs import evolve, field, frozen

from nanofn.config import Limits
from nanofn.lab.fingerprint import fingerprint
from nanofn.lab.policy_facts import NO_COUNTERS, Caps, facts_for_policy, normal_news, normal_policy_state
from nanofn.request import Request, RequestId, SequenceId, TokenId
from nanofn.schedule.admit import admit
from nanofn.schedule.commit import commit
from nanofn.schedule.plan import plan
from nanofn.schedule.view import view
from nanofn.state.decision import Policy
from nanofn.state.engine_state import EngineState, initial_state
from nanofn.state.events import Effect, Event, RequestArrived, StepCompleted, StepDecided
from nanofn.state.step_plan import StepResult

TOKEN = TokenId(1)
"""Every output consists of it: only lengths matter here."""


@frozen
class Arrivals:
    """What may arrive while a policy is studied.

    Attributes:
        limits: The bounds.
        requests: Kinds of requests, each at any time and any number of times.
        max_live: Most sequences alive at once.
        max_states: Where to give up.
    """

    limits: Limits
    requests: tuple[Request, ...]
    max_live: int
    max_states: int = 200_000


@frozen(eq=False)
class Point:
    """A state under a policy.

    Attributes:
        state: The state.
        policy_state: The policy's.
        num_requests: Requests so far.
        news: Effects since the policy decided.
    """

    state: EngineState
    policy_state: Any
    num_requests: int = 0
    news: tuple[Effect, ...] = ()

    @property
    def lengths(self) -> dict[SequenceId, int]:
        """Known tokens of each live sequence, in order of arrival."""
        live = [*self.state.running, *self.state.waiting.values()]
        return dict(sorted([(each.sequence_id, each.num_tokens) for each in live]))


@frozen(eq=False)
class Edge:
    """What leads from one state to the next.

    Attributes:
        events: An arrival, or a decision and its result.
        is_step: Whether it is a step.
        after: Place of the next state.
        unserved: For each live sequence, by arrival: its place by arrival in the next state if it lives on without a new
            token, else None.
    """

    events: tuple[Event, ...]
    is_step: bool
    after: int
    unserved: tuple[int | None, ...]


@frozen(eq=False)
class Graph:
    """States and what leads from one to the other.

    Attributes:
        edges: For each state.
        origins: For each state, where it was first reached from, and by what.
        num_live: For each state, its live sequences.
        is_complete: Whether all states were seen.
    """

    edges: list[list[Edge]] = field(factory=list)
    origins: list[tuple[int, tuple[Event, ...]] | None] = field(factory=list)
    num_live: list[int] = field(factory=list)
    is_complete: bool = True

    def path(self, place: int) -> tuple[Event, ...]:
        """Events that lead to a state."""
        found: list[tuple[Event, ...]] = []
        while (origin := self.origins[place]) is not None:
            place, events = origin
            found.append(events)
        return tuple([event for events in reversed(found) for event in events])


def graph_of(
    policy: Policy[Any], arrivals: Arrivals, caps: Caps = NO_COUNTERS, watch: Callable[[int], None] | None = None
) -> Graph:
    """Follow every arrival and every step from the empty state.

    Args:
        policy: Who decides.
        arrivals: What may arrive.
        caps: Up to where the counters that the policy reads are told apart.
        watch: Called with the number of states so far, every thousand of them.
    """
    graph, places, queue = Graph(), dict[Hashable, int](), deque[Point]()

    def place_of(point: Point, origin: tuple[int, tuple[Event, ...]] | None) -> int:
        key = _key(point, policy, caps)
        if key not in places:
            places[key] = len(places)
            graph.edges.append([])
            graph.origins.append(origin)
            graph.num_live.append(len(point.state.running) + len(point.state.waiting))
            queue.append(point)
            if watch is not None and len(places) % 1_000 == 0:
                watch(len(places))
        return places[key]

    place_of(Point(initial_state(arrivals.limits), policy.init), None)
    here = 0
    while queue and len(places) < arrivals.max_states:
        point = queue.popleft()
        before = point.lengths
        for events, is_step, after in _moves(point, policy, arrivals):
            ranks, lengths = {}, after.lengths
            for rank, sequence_id in enumerate(lengths):
                ranks[sequence_id] = rank if lengths[sequence_id] == before.get(sequence_id) else None
            unserved = tuple([ranks.get(sequence_id) for sequence_id in before])
            graph.edges[here].append(Edge(events, is_step, place_of(after, (here, events)), unserved))
        here += 1
    return evolve(graph, is_complete=not queue)


def _key(point: Point, policy: Policy[Any], caps: Caps) -> Hashable:
    state = point.state
    live = [*state.running, *state.waiting.values()]
    ranks = {key: place for place, key in enumerate(sorted([each.sequence_id for each in live]))}
    facts = {
        each.sequence_id: (
            each.num_tokens,
            each.request.prompt_token_ids,
            each.num_computed_tokens,
            each.max_num_tokens,
            each.child,
            *facts_for_policy(each, state.num_steps, caps),
        )
        for each in live
    }
    told = normal_news(policy, point.news, ranks)
    return fingerprint(state, facts, {}, keeps_order=True), normal_policy_state(policy, point.policy_state, ranks), told


def _moves(point: Point, policy: Policy[Any], arrivals: Arrivals) -> Iterator[tuple[tuple[Event, ...], bool, Point]]:
    num_live = len(point.state.running) + len(point.state.waiting)
    for kind in arrivals.requests:
        if num_live + kind.n <= arrivals.max_live:
            request = evolve(kind, request_id=RequestId(point.num_requests))
            yield (RequestArrived(request),), False, arrived(point, request)
    if num_live:
        events, after = stepped(point, policy)
        yield events, True, after


def arrived(point: Point, request: Request) -> Point:
    """Let a request arrive."""
    state, effects = admit(point.state, request)
    return Point(state, point.policy_state, point.num_requests + 1, (*point.news, *effects))


def stepped(point: Point, policy: Policy[Any]) -> tuple[tuple[Event, ...], Point]:
    """Let the policy decide, and the plan run."""
    policy_state, decision = policy.decide(point.policy_state, view(point.state, 0, point.news))
    state, step_plan = plan(point.state, decision)
    news: tuple[Effect, ...] = step_plan.effects
    events: tuple[Event, ...] = (StepDecided(decision, now_us=0),)
    if step_plan.plan_id is not None:
        result = StepResult((TOKEN,) * sum(step_plan.entries.samples), now_us=0)
        state, effects = commit(state, step_plan.plan_id, result)
        news += effects
        events += (StepCompleted(step_plan.plan_id, result),)
    return events, Point(state, policy_state, point.num_requests, news)
