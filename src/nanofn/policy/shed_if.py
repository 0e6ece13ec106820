"""shed_if: give up what is hopeless."""

from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import evolve, frozen

from nanofn.state.decision import Decision, Policy
from nanofn.state.view import SequenceView, View

P = TypeVar("P")


@frozen
class ShedIf(Generic[P]):
    """Another policy, but sequences for which a predicate holds end now, with finish reason "abort".

    For example a deadline that has passed: `shed_if(fcfs, lambda each, view: view.now_us > each.deadline_us)`.
    Liveness: the policy's own; what is shed has ended.

    Attributes:
        policy: Decides about everything else.
        is_hopeless: Whether to give a sequence up. Asked about each running and each waiting one in each step.
    """

    policy: Policy[P]
    is_hopeless: Callable[[SequenceView, View], bool]

    @property
    def init(self) -> P:
        """The policy's own."""
        return self.policy.init

    def decide(self, policy_state: P, view: View) -> tuple[P, Decision]:
        """Let the policy choose, then shed."""
        policy_state, decision = self.policy.decide(policy_state, view)
        hopeless = [each.sequence_id for each in (*view.running, *view.waiting) if self.is_hopeless(each, view)]
        return policy_state, evolve(decision, shed=(*decision.shed, *hopeless)) if hopeless else decision


def shed_if(policy: Policy[P], is_hopeless: Callable[[SequenceView, View], bool]) -> ShedIf[P]:
    """Give up what is hopeless under another policy: see `ShedIf`."""
    return ShedIf(policy, is_hopeless)
