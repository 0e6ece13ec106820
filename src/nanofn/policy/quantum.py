"""quantum: nobody keeps its place for more than so many tokens while others wait."""

from typing import Generic, TypeVar

from attrs import evolve, frozen

from nanofn.request import SequenceId
from nanofn.state.decision import Decision, Policy
from nanofn.state.view import SequenceView, View

P = TypeVar("P")


@frozen
class Turns(Generic[P]):
    """When each running sequence's turn began.

    Attributes:
        policy_state: The other policy's.
        starts: (sequence, its output tokens when its turn began).
    """

    policy_state: P
    starts: tuple[tuple[SequenceId, int], ...] = ()


@frozen
class Quantum(Generic[P]):
    """Another policy, but a sequence that has got `num_tokens` output tokens since it started is preempted if others wait.

    The waiting one with the fewest output tokens takes its place: round robin, so short answers are not stuck behind long
    ones (FastServe: Wu et al. 2023, arXiv:2305.05920). What a preempted sequence had computed must be computed again, or
    be found in the prefix cache.
    Liveness: among the first 128 that wait everybody has its turn, and each turn yields tokens.

    Attributes:
        policy: Decides about everything else.
        num_tokens: Output tokens of a turn.
    """

    policy: Policy[P]
    num_tokens: int

    @property
    def init(self) -> Turns[P]:
        """The policy's own, and no turns."""
        return Turns(self.policy.init)

    def decide(self, policy_state: Turns[P], view: View) -> tuple[Turns[P], Decision]:
        """Let the policy choose, then end the turns that are over."""
        inner, decision = self.policy.decide(policy_state.policy_state, view)
        known = dict(policy_state.starts)
        starts = {each.sequence_id: known.get(each.sequence_id, each.num_output_tokens) for each in view.running}
        over = [
            each.sequence_id
            for each in view.running
            if each.num_output_tokens - starts[each.sequence_id] >= self.num_tokens and not each.num_placeholders
        ]
        heirs = sorted([each for each in view.waiting[:128] if not each.is_in_flight], key=_least_served)[: len(over)]
        over = over[: len(heirs)]
        kept = tuple([(sequence_id, count) for sequence_id, count in starts.items() if sequence_id not in over])
        if over:
            starts_first = tuple([(each.sequence_id, view.limits.max_num_batched_tokens) for each in heirs])
            decision = evolve(decision, grants=starts_first + decision.grants, preempt=(*decision.preempt, *over))
        return Turns(inner, kept), decision


def _least_served(each: SequenceView) -> tuple[int, SequenceId]:
    return each.num_output_tokens, each.sequence_id


def quantum(policy: Policy[P], num_tokens: int) -> Quantum[P]:
    """Let sequences take turns under another policy: see `Quantum`."""
    return Quantum(policy, num_tokens)
