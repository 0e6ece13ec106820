"""Grants: what one sequence gets in one plan, or why it gets nothing."""

from collections.abc import Collection, Iterable

from attrs import evolve, frozen

from nanofn.config import blocks_for
from nanofn.request import BlockId, Refusal, Row, SequenceId
from nanofn.schedule.preempt import preempt
from nanofn.state.block_pool import allocate, num_freed, share
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest
from nanofn.state.effects import Preempted, Started
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import match
from nanofn.state.sequence import Sequence, max_hits


@frozen
class Grant:
    """Tokens for one sequence in the plan being made.

    Attributes:
        sequence: The sequence as it is once the step ran: row, block table and computed count included.
        row: Its row.
        first_position: First token to compute.
        num_tokens: How many.
        num_known_blocks: How much of the block table the row's owner had before.
    """

    sequence: Sequence
    row: Row
    first_position: int
    num_tokens: int
    num_known_blocks: int

    @property
    def entry(self) -> tuple[SequenceId, int, Row, int, int, bool]:
        """Its plan entry's fields. It samples if it reaches the last known token or computes a placeholder."""
        samples = self.first_position + self.num_tokens >= self.sequence.num_tokens
        return self.sequence.sequence_id, self.sequence.epoch, self.row, self.first_position, self.num_tokens, samples


def grant_running(
    state: EngineState, sequence: Sequence, row: Row, num_tokens: int, victims: Iterable[SequenceId]
) -> tuple[EngineState, Grant | Refusal, tuple[Preempted, ...]]:
    """Give a running sequence its next tokens, preempting victims only if it then fits.

    Args:
        state: The state with all that was granted before in this plan.
        sequence: A running sequence of it that does not await a result.
        row: Its row.
        num_tokens: Tokens at most, within the budget.
        victims: Who may yield, in order. Not looked at while free blocks suffice.

    Returns:
        The next state, the grant or the refusal, and who was preempted for it.
    """
    start, table = sequence.num_computed_tokens, sequence.block_table
    num_tokens = min(num_tokens, sequence.num_remaining_tokens)
    num_new = blocks_for(start + num_tokens, state.limits.block_size) - len(table)
    yielding = _yielding(state, num_new - state.pool.num_free, victims)
    if yielding is None:
        return state, "blocks", ()
    state, preempted = preempt(state, yielding) if yielding else (state, ())
    if num_new > 0:
        pool, index, blocks = allocate(state.pool, state.prefix_index, num_new)
        state = evolve(state, pool=pool, prefix_index=index)
        table = table.extend(blocks)
    return state, _grant(sequence, row, table, start, num_tokens), preempted


def grant_waiting(
    state: EngineState, sequence: Sequence, num_tokens: int, being_written: Collection[Digest]
) -> tuple[EngineState, Grant | Refusal, tuple[Started, ...]]:
    """Start a waiting sequence: look up its prefix, pin it and allocate the rest, in one transition.

    Args:
        state: The state with all that was granted before in this plan.
        sequence: A waiting sequence of it that no plan in flight names.
        num_tokens: Tokens at most, within the budget.
        being_written: Prefixes whose blocks are written by plans in flight or earlier grants of this one.

    Returns:
        The next state, the grant or the refusal, and the effect of a grant.
    """
    block_size = state.limits.block_size
    limit = max_hits(sequence, block_size)
    hits = match(state.prefix_index, sequence.chain, limit)
    if len(hits) < limit and sequence.chain[len(hits)] in being_written:
        return state, "pending_prefix", ()
    if not state.rows:
        return state, "max_num_seqs", ()
    start = len(hits) * block_size
    num_tokens = min(num_tokens, sequence.num_tokens - start)
    num_new = blocks_for(start + num_tokens, block_size) - len(hits)
    pool = share(state.pool, hits)
    if num_new > pool.num_free:
        return state, "blocks", ()
    pool, index, blocks = allocate(pool, state.prefix_index, num_new)
    waiting, row = state.waiting.discard(sequence.sequence_id), state.rows[-1]
    state = evolve(state, pool=pool, prefix_index=index, rows=state.rows[:-1], waiting=waiting)
    grant = _grant(sequence, row, Chunked[BlockId]().extend(hits + blocks), start, num_tokens)
    return state, grant, (Started(sequence.sequence_id, start),)


def _grant(sequence: Sequence, row: Row, table: Chunked[BlockId], start: int, num_tokens: int) -> Grant:
    after = evolve(sequence, row=row, block_table=table, num_computed_tokens=start + num_tokens)
    return Grant(after, row, start, num_tokens, len(sequence.block_table))


def _yielding(state: EngineState, num_missing: int, victims: Iterable[SequenceId]) -> frozenset[SequenceId] | None:
    """Choose who must yield so that `num_missing` more blocks are free; None if all together do not suffice.

    The shortest run from the front of `victims` that suffices, less those that turn out not to be needed: preempting
    a sequence whose blocks others hold frees nothing and costs a recomputation.
    """
    if num_missing <= 0:
        return frozenset()
    tables: dict[SequenceId, Chunked[BlockId]] = {}
    for victim in victims:
        sequence = state.running.get(victim)
        if sequence is not None:
            tables[victim] = sequence.block_table
            if num_freed(state.pool, tables.values()) >= num_missing:
                break
    else:
        return None
    for victim in tuple(tables):
        rest = {other: table for other, table in tables.items() if other != victim}
        if num_freed(state.pool, rest.values()) >= num_missing:
            tables = rest
    return frozenset(tables)
