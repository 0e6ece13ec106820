"""decisions: everything that a policy could wish for in a state, at a stated scope."""

from collections.abc import Iterator
from itertools import permutations, product

from nanofn.request import SequenceId
from nanofn.state.decision import Decision
from nanofn.state.engine_state import EngineState

ALL = 1 << 20
"""A grant of all that remains."""


def decisions(state: EngineState, max_grants: int, counts: tuple[int, ...] = (1, ALL)) -> Iterator[Decision]:
    """List decisions: each order of up to `max_grants` sequences, each with each count, with at most one preemption.

    Where blocks are short, victims besides the default are tried: everybody else, running ones in either order. A decision
    that names nobody stands for all that name only the dead, and one that repeats itself for those that do.
    """
    running = state.running.sequence_id
    live = (*running, *[key for key, _ in state.waiting])
    preempted: tuple[tuple[SequenceId, ...], ...] = ((), *[(sequence_id,) for sequence_id in running])
    for preempt in preempted:
        for size in range(min(max_grants, len(live)) + 1):
            for order in permutations(live, size):
                for chosen in product(counts, repeat=size):
                    grants = tuple(zip(order, chosen, strict=True))
                    yield Decision(grants, preempt=preempt)
                    if size and state.pool.num_free < size and not preempt:
                        yield Decision(grants, victims=running)
                        yield Decision(grants, victims=running[::-1], skip_blocked=True)
