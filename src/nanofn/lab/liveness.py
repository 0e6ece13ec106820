"""liveness: does a policy end what it starts, and does everybody have its turn?

In the graph of states under a policy, a livelock is a cycle of steps without arrivals; somebody can starve if a cycle with
a step in it, arrivals allowed, keeps one sequence alive. Output lengths are bounded, so no cycle contains an output token
of the same sequence. A cycle counts only once it was walked many times with the real policy.
"""

from collections.abc import Callable
from time import process_time
from typing import Any

from attrs import evolve, frozen

from nanofn.lab.cycles import Lasso, cycle, longest_way, unserved, without_arrivals
from nanofn.lab.graph import Arrivals, Point, arrived, graph_of, stepped
from nanofn.lab.policy_facts import NO_COUNTERS, Caps
from nanofn.request import RequestId, SequenceId
from nanofn.state.decision import Policy
from nanofn.state.engine_state import initial_state
from nanofn.state.events import Event, RequestArrived, StepDecided

MAX_CAP = 64
"""Steps without output are told apart up to here at most: a policy that is more patient than that is not judged."""
_ROUNDS = 4
"""A cycle is walked until the tagged sequence has waited for so many times the cap, and at least so many rounds."""


@frozen
class Run:
    """A real run into a cycle and once around it.

    Attributes:
        events: From the beginning.
        cycle_start: Number of the event with which the cycle begins.
        unserved: The sequence that gets no token there, however often it is repeated.
    """

    events: tuple[Event, ...]
    cycle_start: int
    unserved: SequenceId


@frozen
class Verdict:
    """What a policy does at a scope.

    Attributes:
        num_states: Different states, tags included.
        seconds: CPU time.
        livelock: A cycle without arrivals, and the way into it; None if there is none.
        starvation: A cycle in which one sequence lives on, arrivals allowed, and the way into it; None if there is none.
        longest_wait: Most steps between two output tokens of a sequence, or before its first; None with starvation.
        is_complete: Whether all states were seen, and counters told apart far enough.
    """

    num_states: int
    seconds: float
    livelock: Run | None
    starvation: Run | None
    longest_wait: int | None
    is_complete: bool

    @property
    def is_clean(self) -> bool:
        """Whether all states were seen and nothing is wrong."""
        return self.is_complete and self.livelock is None and self.starvation is None


def study(
    policy: Policy[Any],
    arrivals: Arrivals,
    caps: Caps = NO_COUNTERS,
    *,
    grows: bool = False,
    watch: Callable[[int], None] | None = None,
) -> Verdict:
    """Explore a policy at a scope and judge its liveness, at depth 1.

    Args:
        policy: Who decides.
        arrivals: What may arrive.
        caps: Up to where the counters that the policy reads are told apart.
        grows: Whether to raise `caps.num_steps` until it is enough: a cycle found is a real one, or nobody ever waits so long.
        watch: Called with the number of states so far, every thousand of them.
    """
    start = process_time()
    while True:
        graph = graph_of(policy, arrivals, caps, watch)
        livelock, followed = cycle(graph, without_arrivals(graph)), unserved(graph)
        starvation = cycle(graph, followed)
        wait = longest_way(followed) if starvation is None else None
        locked = None if livelock is None else _walked_round(policy, arrivals, livelock, caps)
        starved = None if starvation is None else _walked_round(policy, arrivals, starvation, caps)
        is_real = locked is not None or starved is not None
        is_enough = is_real or (wait is not None and (not grows or wait < caps.num_steps))
        if is_enough or not graph.is_complete or not grows or caps.num_steps >= MAX_CAP:
            break
        caps = evolve(caps, num_steps=wait + 1 if wait is not None else 2 * max(caps.num_steps, 4))
    return Verdict(
        len(graph.edges),
        process_time() - start,
        locked,
        starved,
        wait,
        is_complete=graph.is_complete and is_enough,
    )


def _walked_round(policy: Policy[Any], arrivals: Arrivals, lasso: Lasso, caps: Caps) -> Run | None:
    """Walk a lasso with the real policy, many times around; None if the sequence is served after all."""
    way, point = _walked(Point(initial_state(arrivals.limits), policy.init), policy, lasso.way)
    followed, length = list(point.lengths.items())[lasso.rank]
    num_steps = sum([isinstance(event, StepDecided) for event in lasso.around])
    rounds = max(_ROUNDS, -(-_ROUNDS * (caps.num_steps + 1) // num_steps))
    first: tuple[Event, ...] = ()
    for _ in range(rounds):
        around, point = _walked(point, policy, lasso.around)
        first = first or around
        if point.lengths.get(followed) != length:
            return None
    return Run(way + first, len(way), followed)


def _walked(point: Point, policy: Policy[Any], events: tuple[Event, ...]) -> tuple[tuple[Event, ...], Point]:
    """Let arrivals arrive and steps be decided anew; results follow by themselves."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, RequestArrived):
            request = evolve(event.request, request_id=RequestId(point.num_requests))
            found.append(RequestArrived(request))
            point = arrived(point, request)
        elif isinstance(event, StepDecided):
            done, point = stepped(point, policy)
            found += done
    return tuple(found), point
