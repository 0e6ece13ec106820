"""ranked: turn an order of sequences into grants that fit."""

from collections.abc import Iterable

from nanofn.request import SequenceId
from nanofn.state.view import SequenceView, View

Grants = tuple[tuple[SequenceId, int], ...]


def ranked(view: View, order: Iterable[SequenceView], *, watermark: int = 0, skip_blocked: bool = False) -> Grants:
    """Grant what fits, highest rank first, running and waiting sequences alike.

    A prefill leaves a token to each running sequence behind it that only decodes, so a long prompt stalls nobody. A
    waiting sequence is granted if a row is free, its whole prompt fits, and `watermark` blocks for each running sequence
    stay free after that; the first one that is not ends the admission, unless `skip_blocked`. One whose prefix is being
    computed by another is passed over. With nothing running anything fits that was admitted.

    Args:
        view: What the policy sees.
        order: Sequences of it by rank. Read as far as tokens last.
        watermark: Free blocks that must remain for each running sequence when another one starts.
        skip_blocked: Whether those behind a waiting sequence that does not fit are tried.
    """
    grants: list[tuple[SequenceId, int]] = []
    remaining = view.running.num_remaining_tokens
    budget, decoding, num_running = view.limits.max_num_batched_tokens, remaining.count(1), len(remaining)
    free = view.num_free_blocks - watermark * num_running
    is_open, being_written = True, set[object]()
    for each in order:
        if budget == 0:
            break
        ahead = each.prospect()
        if each.is_running:
            decoding -= ahead.num_tokens == 1
            # A prefill's rest is spoken for; a decode takes a block that its watermark stands for.
            free -= ahead.num_blocks if ahead.num_tokens > 1 else 0
        elif not is_open or each.is_in_flight or num_running == view.limits.max_num_seqs:
            is_open = is_open and skip_blocked
            continue
        elif ahead.next_digest is not None and (ahead.next_digest in being_written or each.is_prefix_pending):
            continue
        elif free < ahead.num_blocks + watermark and num_running:
            is_open = skip_blocked
            continue
        else:
            free -= ahead.num_blocks + watermark
            num_running += 1
        being_written.add(ahead.next_digest)
        count = min(ahead.num_tokens, max(budget - decoding, int(ahead.num_tokens == 1)))
        grants.append((each.sequence_id, count))
        budget -= count
    return tuple(grants)
