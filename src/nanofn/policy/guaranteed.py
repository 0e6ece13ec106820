"""guaranteed: start only what can end without anybody's preemption."""

from attrs import frozen

from nanofn.config import blocks_for
from nanofn.policy.ranked import Grants, ranked
from nanofn.state.decision import Decision
from nanofn.state.view import SequenceView, View


@frozen
class Guaranteed:
    """First come, first served, with blocks for every sequence's greatest length set aside when it starts.

    No token is ever computed twice, at the price of a smaller batch where outputs end early (TensorRT-LLM's default).
    Liveness: strict order of arrival, so a sequence waits only for those before it.

    Attributes:
        init: None: it remembers nothing.
    """

    init: None = None

    def decide(self, policy_state: None, view: View) -> tuple[None, Decision]:
        """Choose whom to run: see the class."""
        decodes = view.running.decodes
        if decodes is not None and not view.num_waiting and len(decodes) <= view.limits.max_num_batched_tokens:
            return policy_state, Decision(decodes)
        return policy_state, Decision(self._grants(view))

    def _grants(self, view: View) -> Grants:
        running = tuple(view.running)
        free = view.limits.num_blocks - sum([most_blocks(each, view) for each in running])
        waiting: list[SequenceView] = []
        for each in view.waiting:
            free -= most_blocks(each, view)
            if free < 0 or len(running) + len(waiting) == view.limits.max_num_seqs:
                break
            waiting.append(each)
        return ranked(view, (*running, *waiting))


def most_blocks(each: SequenceView, view: View) -> int:
    """Count the blocks of a sequence at its greatest length. Its last token is never an input."""
    length = min(each.num_prompt_tokens + each.max_tokens, view.limits.max_model_len)
    return blocks_for(length - 1, view.limits.block_size)


guaranteed = Guaranteed()
"""Counts no shared prefix: what two sequences share is set aside twice."""
