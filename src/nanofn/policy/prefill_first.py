"""prefill_first: whoever can be prefilled is, and decodes wait meanwhile. nano-vllm's order, as a baseline."""

from attrs import frozen

from nanofn.request import SequenceId
from nanofn.state.decision import Decision
from nanofn.state.view import View


@frozen
class PrefillFirst:
    """Prefill in arrival order while budget, rows and blocks last; decode only in steps without any prefill.

    Good for throughput when all requests are there from the start, bad for latency: with a new prompt at each step
    the running sequences get no token at all. There is no watermark, so a full pool preempts.

    Attributes:
        init: None: it remembers nothing.
    """

    init: None = None

    def decide(self, policy_state: None, view: View) -> tuple[None, Decision]:
        """Choose whom to run: see the class."""
        budget, free = view.limits.max_num_batched_tokens, view.num_free_blocks
        running = tuple(view.running)
        prefilling = [each for each in running if each.num_remaining_tokens > 1]
        grants: list[tuple[SequenceId, int]] = []
        being_written = {each.next_digest for each in prefilling}
        for each in prefilling:
            free -= each.blocks_needed(each.num_remaining_tokens)
            grants.append((each.sequence_id, min(each.num_remaining_tokens, budget)))
            budget -= grants[-1][1]
        num_free_rows = view.limits.max_num_seqs - len(running)
        for each in view.waiting:
            if not budget or not num_free_rows or each.is_in_flight:
                break
            digest = each.next_digest
            if digest is not None and (digest in being_written or each.is_prefix_pending):
                continue
            remaining = each.num_tokens - each.num_cached_tokens
            free -= each.blocks_needed(remaining)
            if free < 0:
                break
            being_written.add(digest)
            grants.append((each.sequence_id, min(remaining, budget)))
            budget -= grants[-1][1]
            num_free_rows -= 1
        # Beside prefills the decodes keep their rank only: they are passed over, and yield blocks if need be.
        decodes = [each.sequence_id for each in running if each.num_remaining_tokens == 1]
        num_decodes = 0 if grants else budget
        grants += [(sequence_id, int(place < num_decodes)) for place, sequence_id in enumerate(decodes)]
        return policy_state, Decision(tuple(grants))


prefill_first = PrefillFirst()
"""nano-vllm's order."""
