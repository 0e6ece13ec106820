"""liveness: does a policy end what it starts, and does everybody have its turn?

The graph of all states that the real core reaches under a policy at a small scope, whatever arrives and whenever. In it,
a livelock is a cycle of steps without arrivals; somebody can starve if a cycle with a step in it, arrivals allowed, keeps
one sequence alive. Output lengths are bounded, so no cycle contains an output token of the same sequence.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from time import perf_counter
from typing import Any

from attrs import evolve, field, frozen

from nanofn.config import Limits
from nanofn.lab.fingerprint import fingerprint
from nanofn.request import Request, RequestId, SequenceId, TokenId
from nanofn.schedule.admit import admit
from nanofn.schedule.commit import commit
from nanofn.schedule.plan import plan
from nanofn.schedule.view import view
from nanofn.state.decision import Decision, Policy
from nanofn.state.engine_state import EngineState, find, initial_state
from nanofn.state.events import Effect, Event, RequestArrived, StepDecided
from nanofn.state.step_plan import StepResult

TOKEN = TokenId(1)
"""Every prompt and output consists of it: only lengths matter here."""


@frozen
class Arrivals:
    """What may arrive while a policy is studied.

    Attributes:
        limits: The bounds.
        requests: Kinds of requests, each at any time and any number of times.
        max_live: Most sequences alive at once.
        max_steps: `steps_since_output` is told apart up to here; 0 where the policy does not look at it.
        max_states: Where to give up.
    """

    limits: Limits
    requests: tuple[Request, ...]
    max_live: int
    max_steps: int = 0
    max_states: int = 200_000


@frozen(eq=False)
class Point:
    """A state under a policy, with one of its sequences tagged, or none.

    Attributes:
        state: The state.
        policy_state: The policy's.
        tagged: The sequence that is followed.
        num_requests: Requests so far.
        news: Effects since the policy decided.
    """

    state: EngineState
    policy_state: Any
    tagged: SequenceId | None = None
    num_requests: int = 0
    news: tuple[Effect, ...] = ()


@frozen
class Verdict:
    """What a policy does at a scope.

    Attributes:
        num_states: Different states, tags included.
        seconds: How long it took.
        livelock: Events that lead into a cycle without arrivals, and the cycle; None if there is none.
        starvation: Events that lead into a cycle in which one sequence lives on, and the cycle; None if there is none.
        longest_wait: Most steps between two output tokens of a sequence, or before its first; None with starvation.
    """

    num_states: int
    seconds: float
    livelock: tuple[tuple[Event, ...], tuple[Event, ...]] | None
    starvation: tuple[tuple[Event, ...], tuple[Event, ...]] | None
    longest_wait: int | None


@frozen(eq=False)
class Graph:
    """States and what leads from one to the other.

    Attributes:
        edges: For each state: (event, whether it is a step, whether the tagged one got a token, next state).
        origins: For each state, where it was first reached from, and by what.
        tagged: Whether a sequence is tagged.
        is_empty: Whether nobody lives.
    """

    edges: list[list[tuple[Event, bool, bool, int]]] = field(factory=list)
    origins: list[tuple[int, Event] | None] = field(factory=list)
    tagged: list[bool] = field(factory=list)
    is_empty: list[bool] = field(factory=list)

    def path(self, place: int) -> tuple[Event, ...]:
        """Events that lead to a state."""
        found: list[Event] = []
        while (origin := self.origins[place]) is not None:
            place, event = origin
            found.append(event)
        return tuple(reversed(found))


def study(policy: Policy[Any], arrivals: Arrivals) -> Verdict:
    """Explore a policy at a scope and judge its liveness, at depth 1."""
    start = perf_counter()
    graph = graph_of(policy, arrivals)
    livelock = cycle(graph, lambda place: not graph.is_empty[place], lambda is_step, _: is_step)
    starvation = cycle(graph, lambda place: graph.tagged[place], lambda _, is_served: not is_served)
    wait = None if starvation is not None else longest_wait(graph)
    return Verdict(len(graph.edges), perf_counter() - start, livelock, starvation, wait)


def graph_of(policy: Policy[Any], arrivals: Arrivals) -> Graph:
    """Follow every arrival and every step from the empty state."""
    graph, places, queue = Graph(), dict[Hashable, int](), deque[Point]()

    def place_of(point: Point, origin: tuple[int, Event] | None) -> int:
        key = _key(point, arrivals.max_steps)
        if key not in places:
            places[key] = len(places)
            graph.edges.append([])
            graph.origins.append(origin)
            graph.tagged.append(point.tagged is not None)
            graph.is_empty.append(not (len(point.state.running) or len(point.state.waiting)))
            queue.append(point)
        return places[key]

    place_of(Point(initial_state(arrivals.limits), policy.init), None)
    here = 0
    while queue and len(places) < arrivals.max_states:
        point = queue.popleft()
        for event, is_step, is_served, after in _moves(point, policy, arrivals):
            graph.edges[here].append((event, is_step, is_served, place_of(after, (here, event))))
        here += 1
    return graph


def _key(point: Point, max_steps: int) -> Hashable:
    state = point.state
    live = [*state.running, *state.waiting.values()]
    tokens = {each.sequence_id: (TOKEN,) * each.num_tokens for each in live}
    rank = None if point.tagged is None else sorted(tokens).index(point.tagged)
    order = tuple([sorted(tokens).index(key) for key in state.running.sequence_id])
    return fingerprint(state, tokens, {}, keeps_order=True, max_steps=max_steps), order, rank, point.policy_state


def _moves(point: Point, policy: Policy[Any], arrivals: Arrivals) -> Iterator[tuple[Event, bool, bool, Point]]:
    state = point.state
    if len(state.running) + len(state.waiting) < arrivals.max_live:
        for kind in arrivals.requests:
            request = evolve(kind, request_id=RequestId(point.num_requests))
            after, effects = admit(state, request)
            arrived = Point(after, point.policy_state, point.tagged, point.num_requests + 1, (*point.news, *effects))
            yield RequestArrived(request), False, False, arrived
            if point.tagged is None:
                yield RequestArrived(request), False, False, evolve(arrived, tagged=state.next_sequence_id)
    if len(state.running) or len(state.waiting):
        policy_state, decision = policy.decide(point.policy_state, view(state, 0, point.news))
        yield _stepped(point, policy_state, decision)


def _stepped(point: Point, policy_state: Any, decision: Decision) -> tuple[Event, bool, bool, Point]:
    state, step_plan = plan(point.state, decision)
    news: tuple[Effect, ...] = step_plan.effects
    if step_plan.plan_id is not None:
        result = StepResult((TOKEN,) * sum(step_plan.entries.samples), now_us=0)
        state, effects = commit(state, step_plan.plan_id, result)
        news += effects
    tagged = point.tagged
    before = None if tagged is None else find(point.state, tagged)
    now = None if tagged is None else find(state, tagged)
    is_served = before is not None and (now is None or now.num_tokens > before.num_tokens)
    after = Point(state, policy_state, tagged if now is not None else None, point.num_requests, news)
    return StepDecided(decision, now_us=0), True, is_served, after


def cycle(graph: Graph, holds: Any, counts: Any) -> tuple[tuple[Event, ...], tuple[Event, ...]] | None:
    """Find a cycle with a step in it, of states for which `holds` and edges that `counts`: the way there, and around."""
    for component in _components(graph, holds, counts):
        inside = set(component)
        for place in component:
            for event, is_step, is_served, after in graph.edges[place]:
                if is_step and after in inside and counts(is_step, is_served):
                    way = _way(graph, after, place, inside, counts)
                    return graph.path(place), (event, *way)
    return None


def _way(graph: Graph, start: int, end: int, inside: set[int], counts: Any) -> tuple[Event, ...]:
    """Find the shortest way between two states of a component."""
    ways: dict[int, tuple[Event, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        place = queue.popleft()
        if place == end:
            break
        for event, is_step, is_served, after in graph.edges[place]:
            if after in inside and after not in ways and counts(is_step, is_served):
                ways[after] = (*ways[place], event)
                queue.append(after)
    return ways[end]


def _components(graph: Graph, holds: Any, counts: Any) -> Iterator[list[int]]:
    """List strongly connected components (Tarjan 1972), without recursion."""
    numbers: dict[int, int] = {}
    lows: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(len(graph.edges)):
        if root in numbers or not holds(root):
            continue
        work = [(root, iter(graph.edges[root]))]
        numbers[root] = lows[root] = len(numbers)
        stack.append(root)
        on_stack.add(root)
        while work:
            place, edges = work[-1]
            for _, is_step, is_served, after in edges:
                if not holds(after) or not counts(is_step, is_served):
                    continue
                if after not in numbers:
                    numbers[after] = lows[after] = len(numbers)
                    stack.append(after)
                    on_stack.add(after)
                    work.append((after, iter(graph.edges[after])))
                    break
                if after in on_stack:
                    lows[place] = min(lows[place], numbers[after])
            else:
                work.pop()
                if work:
                    lows[work[-1][0]] = min(lows[work[-1][0]], lows[place])
                if lows[place] == numbers[place]:
                    cut = stack.index(place)
                    component, stack[cut:] = stack[cut:], []
                    on_stack -= set(component)
                    yield component


def longest_wait(graph: Graph) -> int:
    """Count the most steps of a tagged sequence without an output token: the longest way without one being served."""
    longest: dict[int, int] = {}
    order = [place for component in _components(graph, graph.tagged.__getitem__, _unserved) for place in component]
    for place in order:  # components come out successors first
        steps = [
            is_step + (longest.get(after, 0) if graph.tagged[after] and not is_served else 0)
            for _, is_step, is_served, after in graph.edges[place]
        ]
        longest[place] = max(steps, default=0)
    return max(longest.values(), default=0)


def _unserved(_: bool, is_served: bool) -> bool:
    return not is_served
