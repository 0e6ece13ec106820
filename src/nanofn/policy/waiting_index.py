"""WaitingIndex: waiting sequences in the order of a key that never changes, kept up to date from the news."""

from collections.abc import Callable, Iterator
from typing import Any

from attrs import frozen

from nanofn.request import SequenceId
from nanofn.state.effects import Admitted, Finished, Preempted, Started
from nanofn.state.persistent import Map
from nanofn.state.sorted_table import SortedTable
from nanofn.state.view import SequenceView, View

Rank = tuple[Any, SequenceId]
_FEW = 64
"""Up to so many changes are made one by one; more, and the index is built anew."""


@frozen
class WaitingIndex:
    """Waiting sequences by rank: part of a policy's state.

    Attributes:
        order: Rank to sequence.
        ranks: Sequence to rank: the inverse, for those that are gone when the news says so.
    """

    order: SortedTable[Rank, SequenceId] = SortedTable()
    ranks: Map[SequenceId, Rank] = Map()

    def updated(self, view: View, rank: Callable[[SequenceView], Rank]) -> "WaitingIndex":
        """Follow what happened since the last decision. Where the news does not explain the view, start anew."""
        changed: dict[SequenceId, None] = {}
        for effect in view.news:
            match effect:
                case Admitted(_, sequence_ids):
                    changed |= dict.fromkeys(sequence_ids)
                case Started(sequence_id) | Preempted(sequence_id) | Finished(sequence_id):
                    changed[sequence_id] = None
                case _:
                    pass
        order, ranks = self.order, self.ranks
        for sequence_id in list(changed)[:_FEW]:
            before, now = ranks.get(sequence_id), view.waiting.get(sequence_id)
            if before is not None:
                order, ranks = order.discard(before), ranks.discard(sequence_id)
            if now is not None:
                order, ranks = order.set(rank(now), sequence_id), ranks.set(sequence_id, rank(now))
        if len(changed) <= _FEW and len(order) == view.num_waiting:
            return WaitingIndex(order, ranks)
        pairs = sorted([(rank(each), each.sequence_id) for each in view.waiting])
        order = SortedTable[Rank, SequenceId]().extend(pairs)
        return WaitingIndex(order, Map[SequenceId, Rank]().set_all({number: each for each, number in pairs}))

    def sequences(self, view: View) -> Iterator[SequenceView]:
        """Look them up in order, as far as they are asked for."""
        return (each for number in self.order.values() if (each := view.waiting.get(number)) is not None)
