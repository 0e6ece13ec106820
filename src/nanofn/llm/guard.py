"""The guard: what runs when a policy fails, so that no policy can stop the engine."""

from nanofn.config import Limits
from nanofn.state.decision import Decision
from nanofn.state.view import SequenceView, View


def oldest_first(view: View) -> Decision:
    """Run the oldest live sequence, whatever that takes, and nobody else.

    It gets the whole budget, and everybody younger may have to yield. Outputs survive preemption, so the oldest
    one's remaining output strictly decreases and it ends: no request starves under the guard alone.
    """
    oldest = min((*view.running, *list(view.waiting)[:1]), key=lambda each: each.sequence_id)
    younger = tuple(sorted((each for each in view.running.sequence_ids if each != oldest.sequence_id), reverse=True))
    grants = ((oldest.sequence_id, view.limits.max_num_batched_tokens), *[(each, 0) for each in reversed(younger)])
    if oldest.is_running:
        return Decision(grants, victims=younger)
    return Decision(grants, preempt=() if _fits(oldest, view) else younger)


def _fits(sequence: SequenceView, view: View) -> bool:
    num_tokens = min(sequence.num_remaining_tokens - sequence.num_cached_tokens, view.limits.max_num_batched_tokens)
    is_row_free = len(view.running) < view.limits.max_num_seqs
    return is_row_free and sequence.blocks_needed(num_tokens) <= view.num_free_blocks


def patience(limits: Limits) -> int:
    """Count the steps without any output token after which the guard takes over until one comes.

    Enough for every running sequence to be prefilled twice at full length, so a policy that makes progress at all
    never meets it.
    """
    return 16 + 2 * limits.max_num_seqs * -(-limits.max_model_len // limits.max_num_batched_tokens)
