"""by_key: run the sequences with the smallest keys."""

from collections.abc import Callable, Iterable
from heapq import merge
from typing import Any

from attrs import frozen

from nanofn.policy.ranked import ranked
from nanofn.policy.waiting_index import WaitingIndex
from nanofn.request import SequenceId
from nanofn.state.decision import Decision
from nanofn.state.view import SequenceView, View


@frozen
class ByKey:
    """Rank running and waiting sequences by a key, then by arrival; who lacks blocks takes them from the last in rank.

    Liveness: no bound, since sequences with better keys may keep coming; `patience` makes one.

    Attributes:
        key: Smaller is better. A function of the view's facts and counts.
        is_fixed: Whether a sequence's key never changes. Then an index of the waiting ones is kept from step to step,
            and a step costs the same however many wait.
        watermark: Free blocks that must remain for each running sequence when another one starts.
        skip_blocked: Whether those behind a waiting sequence that does not fit are tried.
        init: An empty index.
    """

    key: Callable[[SequenceView], Any]
    is_fixed: bool = False
    watermark: int = 1
    skip_blocked: bool = False
    init: WaitingIndex = WaitingIndex()

    def decide(self, policy_state: WaitingIndex, view: View) -> tuple[WaitingIndex, Decision]:
        """Choose whom to run: see the class."""
        running = sorted(view.running, key=self.rank)
        waiting: Iterable[SequenceView]
        if self.is_fixed:
            policy_state = policy_state.updated(view, self.rank)
            waiting = policy_state.sequences(view)
        else:
            waiting = sorted(view.waiting, key=self.rank)
        order = merge(running, waiting, key=self.rank)
        grants = ranked(view, order, watermark=self.watermark, skip_blocked=self.skip_blocked)
        victims = tuple([each.sequence_id for each in reversed(running)])
        return policy_state, Decision(grants, victims=victims, skip_blocked=self.skip_blocked)

    def rank(self, each: SequenceView) -> tuple[Any, SequenceId]:
        """Order of a sequence: its key, then its arrival."""
        return self.key(each), each.sequence_id


def by_key(
    key: Callable[[SequenceView], Any], *, is_fixed: bool = False, watermark: int = 1, skip_blocked: bool = False
) -> ByKey:
    """Make a policy of a key: see `ByKey`."""
    return ByKey(key, is_fixed, watermark, skip_blocked)
