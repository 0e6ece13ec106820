"""fcfs: first come, first served, decodes before prefills. The default policy."""

from attrs import frozen

from nanofn.request import SequenceId
from nanofn.state.decision import Decision
from nanofn.state.view import SequenceView, View

Grants = tuple[tuple[SequenceId, int], ...]


@frozen
class Fcfs:
    """Decode every running sequence, then spend the rest of the budget on prefills in arrival order.

    A prompt may be cut anywhere (chunked prefill: Agrawal et al. 2023, arXiv:2308.16369), so a long one never stalls
    the decodes. The queue is strict: nobody overtakes its head, except while that waits for a prefix that another
    sequence is computing. A sequence starts only if its whole prompt fits and `watermark` blocks per running sequence
    stay free after that, or if nothing runs. When blocks run out all the same, the last to be granted yields first.

    Attributes:
        watermark: Free blocks that must remain for each running sequence when another one starts.
        init: None: it remembers nothing.
    """

    watermark: int = 1
    init: None = None

    def decide(self, policy_state: None, view: View) -> tuple[None, Decision]:
        """Choose whom to run: see the class."""
        running, budget = view.running, view.limits.max_num_batched_tokens
        prefills: tuple[SequenceView, ...] = ()
        decodes = running.decodes
        if decodes is None:
            remaining = running.num_remaining_tokens
            decodes = tuple([(key, 1) for key, left in zip(running.sequence_ids, remaining, strict=True) if left == 1])
            prefills = tuple([running[place] for place, left in enumerate(remaining) if left > 1])
        if len(decodes) > budget:
            # Beyond the budget a running sequence keeps its rank only, so that it can yield its blocks.
            decodes = decodes[:budget] + tuple([(sequence_id, 0) for sequence_id, _ in decodes[budget:]])
        if prefills or view.num_waiting:
            decodes += self._prefills(view, prefills, max(budget - len(decodes), 0), len(running))
        return policy_state, Decision(decodes)

    def _prefills(self, view: View, prefills: tuple[SequenceView, ...], budget: int, num_running: int) -> Grants:
        """Grant running prefills, then waiting sequences while tokens, rows and blocks last."""
        grants: list[tuple[SequenceId, int]] = []
        being_written: set[object] = set()
        free = view.num_free_blocks - self.watermark * num_running
        for each in prefills:
            ahead = each.prospect()
            being_written.add(ahead.next_digest)
            # The rest of a prompt that has started is spoken for.
            free -= ahead.num_blocks
            grants.append((each.sequence_id, min(ahead.num_tokens, budget)))
            budget -= grants[-1][1]
        if num_running and free <= self.watermark:
            return tuple(grants)  # a start takes a block at least, so none of those that wait need be looked at
        for each in view.waiting:
            if not budget or num_running == view.limits.max_num_seqs or each.is_in_flight:
                break
            ahead = each.prospect()
            if ahead.next_digest is not None and (ahead.next_digest in being_written or each.is_prefix_pending):
                continue
            free -= ahead.num_blocks + self.watermark
            if free < 0 and num_running:
                break
            being_written.add(ahead.next_digest)
            grants.append((each.sequence_id, min(ahead.num_tokens, budget)))
            budget -= grants[-1][1]
            num_running += 1
        return tuple(grants)


fcfs = Fcfs()
"""The default policy: one free block per running sequence as its watermark."""
