"""patience: whoever has waited too long for a token comes first, and keeps what it has until it gets one."""

from typing import Generic, TypeVar

from attrs import frozen

from nanofn.policy.put_first import put_first
from nanofn.state.decision import Decision, Policy
from nanofn.state.view import SequenceView, View

P = TypeVar("P")


@frozen
class Patience(Generic[P]):
    """Another policy, but a sequence without an output token for `num_steps` steps ranks first and keeps what it has.

    Those are served in order of arrival, each may take blocks from the ones behind it, and nobody else starts before
    them. Output tokens count, not computed ones: under recomputation a chunk of a prompt is no progress, since it can be
    taken away again.
    Liveness: each sequence gets a token within about `num_steps` steps of its turn, whatever the policy decides; so
    nothing starves and nothing is preempted for ever.

    Attributes:
        policy: Decides about all others.
        num_steps: How long a sequence waits for an output token before it comes first.
    """

    policy: Policy[P]
    num_steps: int

    @property
    def init(self) -> P:
        """The policy's own."""
        return self.policy.init

    def decide(self, policy_state: P, view: View) -> tuple[P, Decision]:
        """Let the policy choose, then put those first that have waited too long."""
        policy_state, decision = self.policy.decide(policy_state, view)
        late = [each for each in view.running if self._is_late(each)]
        late += [each for each in view.waiting[: view.limits.max_num_seqs] if self._is_late(each)]
        late.sort(key=lambda each: each.sequence_id)
        return policy_state, put_first(view, decision, late) if late else decision

    def _is_late(self, each: SequenceView) -> bool:
        return each.steps_since_output >= self.num_steps


def patience(policy: Policy[P], num_steps: int) -> Patience[P]:
    """Give every sequence its turn under another policy: see `Patience`."""
    return Patience(policy, num_steps)
