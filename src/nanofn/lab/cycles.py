"""cycles: cycles and longest ways in a graph of states, and of states with one sequence that is followed."""

from collections import deque
from collections.abc import Iterator

from attrs import frozen

from nanofn.lab.graph import Edge, Graph
from nanofn.state.events import Event


@frozen(eq=False)
class Ways:
    """A part of a graph: states, or states with one live sequence each, and the edges between them that count.

    Attributes:
        ways: For each of its nodes: an edge and the node it leads to.
        places: For each node, the state's place in the graph and the place by arrival of the one that is followed.
    """

    ways: list[list[tuple[Edge, int]]]
    places: list[tuple[int, int]]


@frozen
class Lasso:
    """A way into a cycle, and the cycle.

    Attributes:
        way: Events from the beginning.
        around: Events once around.
        rank: Place by arrival of the sequence that is followed, where the cycle begins.
    """

    way: tuple[Event, ...]
    around: tuple[Event, ...]
    rank: int


def without_arrivals(graph: Graph) -> Ways:
    """Keep steps alone, and states in which somebody lives. The oldest one is followed."""
    ways = [
        [(edge, edge.after) for edge in edges if edge.is_step and graph.num_live[place] and graph.num_live[edge.after]]
        for place, edges in enumerate(graph.edges)
    ]
    return Ways(ways, [(place, 0) for place in range(len(ways))])


def unserved(graph: Graph) -> Ways:
    """Follow each live sequence of each state as long as it gets no token."""
    first, places = list[int](), list[tuple[int, int]]()
    for place, num_live in enumerate(graph.num_live):
        first.append(len(places))
        places += [(place, rank) for rank in range(num_live)]
    ways = [
        [
            (edge, first[edge.after] + rank_after)
            for edge in graph.edges[place]
            if (rank_after := edge.unserved[rank]) is not None
        ]
        for place, rank in places
    ]
    return Ways(ways, places)


def cycle(graph: Graph, part: Ways) -> Lasso | None:
    """Find a cycle with a step in it; of all that there are, one with a short way into it."""
    best: tuple[int, Edge, int, set[int]] | None = None
    for component in components(part):
        inside = set(component)
        for node in component:
            # States are numbered breadth first, so the smallest number is the nearest.
            if best is None or part.places[node] < part.places[best[0]]:
                steps = [(edge, after) for edge, after in part.ways[node] if edge.is_step and after in inside]
                best = (node, *steps[0], inside) if steps else best
    if best is None:
        return None
    node, edge, after, inside = best
    place, rank = part.places[node]
    return Lasso(graph.path(place), (*edge.events, *_way(part, after, node, inside)), rank)


def _way(part: Ways, start: int, end: int, inside: set[int]) -> tuple[Event, ...]:
    """Find the shortest way between two nodes of a component."""
    ways: dict[int, tuple[Event, ...]] = {start: ()}
    queue = deque([start])
    while queue and end not in ways:
        node = queue.popleft()
        for edge, after in part.ways[node]:
            if after in inside and after not in ways:
                ways[after] = (*ways[node], *edge.events)
                queue.append(after)
    return ways[end]


def components(part: Ways) -> Iterator[list[int]]:
    """List strongly connected components, successors first (Tarjan 1972), without recursion."""
    numbers: dict[int, int] = {}
    lows: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(len(part.ways)):
        if root in numbers:
            continue
        work = [(root, iter(part.ways[root]))]
        numbers[root] = lows[root] = len(numbers)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, ways = work[-1]
            for _, after in ways:
                if after not in numbers:
                    numbers[after] = lows[after] = len(numbers)
                    stack.append(after)
                    on_stack.add(after)
                    work.append((after, iter(part.ways[after])))
                    break
                if after in on_stack:
                    lows[node] = min(lows[node], numbers[after])
            else:
                work.pop()
                if work:
                    lows[work[-1][0]] = min(lows[work[-1][0]], lows[node])
                if lows[node] == numbers[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    on_stack -= set(component)
                    yield component


def longest_way(part: Ways) -> int:
    """Count the most steps on a way that is not interrupted: only where there is no cycle with a step in it."""
    longest = [0] * len(part.ways)
    for component in components(part):
        inside = set(component)
        out = [
            edge.is_step + longest[after]
            for node in component
            for edge, after in part.ways[node]
            if after not in inside
        ]
        # The step that ends the wait counts as well.
        most = max(out, default=1)
        for node in component:
            longest[node] = max(most, 1)
    return max(longest, default=0)
