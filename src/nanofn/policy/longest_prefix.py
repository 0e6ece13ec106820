"""longest_prefix: those first that find most of their prompt in the prefix cache."""

from attrs import frozen

from nanofn.policy.ranked import ranked
from nanofn.state.decision import Decision
from nanofn.state.view import View


@frozen
class LongestPrefix:
    """Decode what runs, then start the waiting sequence with the most cached tokens (RadixAttention: Zheng et al. 2023).

    Only the first `horizon` waiting sequences by arrival are compared, so a step does not cost more the more wait, and
    nobody is overtaken by one that arrived much later.
    Liveness: no bound for one without cached tokens while others with some keep coming within the horizon; `patience`
    makes one.

    Attributes:
        horizon: How many waiting sequences are compared.
        watermark: Free blocks that must remain for each running sequence when another one starts.
        init: None: it remembers nothing.
    """

    horizon: int = 128
    watermark: int = 1
    init: None = None

    def decide(self, policy_state: None, view: View) -> tuple[None, Decision]:
        """Choose whom to run: see the class."""
        waiting = sorted(view.waiting[: self.horizon], key=lambda each: (-each.num_cached_tokens, each.sequence_id))
        return policy_state, Decision(ranked(view, (*view.running, *waiting), watermark=self.watermark))


longest_prefix = LongestPrefix()
"""Compares the first 128 that wait."""
