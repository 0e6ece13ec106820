"""leader: the oldest comes first, whatever a policy thinks of it."""

from typing import Generic, TypeVar

from attrs import frozen

from nanofn.policy.put_first import put_first
from nanofn.state.decision import Decision, Policy
from nanofn.state.view import View

P = TypeVar("P")


@frozen
class Leader(Generic[P]):
    """Another policy, but the oldest live sequence ranks first and never yields.

    Liveness: the oldest gets a token in each step in which it can; it ends, then the next one is the oldest. So every
    sequence waits at most for the work of those that arrived before it and of those that run when its turn comes.

    Attributes:
        policy: Decides about all others.
    """

    policy: Policy[P]

    @property
    def init(self) -> P:
        """The policy's own."""
        return self.policy.init

    def decide(self, policy_state: P, view: View) -> tuple[P, Decision]:
        """Let the policy choose, then put the oldest first."""
        policy_state, decision = self.policy.decide(policy_state, view)
        oldest = min((*view.running, *view.waiting[:1]), key=lambda each: each.sequence_id, default=None)
        return policy_state, decision if oldest is None else put_first(view, decision, [oldest])


def leader(policy: Policy[P]) -> Leader[P]:
    """Never let the oldest wait under another policy: see `Leader`."""
    return Leader(policy)
