"""preempt: running sequences lose their blocks and wait again."""

from collections.abc import Collection

from attrs import evolve

from nanofn.request import SequenceId
from nanofn.state.block_pool import release
from nanofn.state.chunked import Chunked
from nanofn.state.effects import Preempted
from nanofn.state.engine_state import EngineState


def preempt(state: EngineState, sequence_ids: Collection[SequenceId]) -> tuple[EngineState, tuple[Preempted, ...]]:
    """Move running sequences back to `waiting`, in their place by arrival, with nothing computed.

    Known tokens stay, and so do results in flight: a token is accepted by its position, whatever the epoch. Rows and
    blocks return at once: device work runs in plan order on one stream, so a later owner's writes come later.

    Args:
        state: Any state.
        sequence_ids: Running sequences; others are passed over.

    Returns:
        The next state, and Preempted for each, in running order.
    """
    pool, waiting, rows = state.pool, state.waiting, state.rows
    effects = []
    for sequence in state.running:
        if sequence.sequence_id in sequence_ids and sequence.row is not None:
            pool = release(pool, state.prefix_index, sequence.block_table, sequence.chain)
            rows = (*rows, sequence.row)
            effects.append(Preempted(sequence.sequence_id, sequence.num_computed_tokens))
            waiting = waiting.set(
                sequence.sequence_id,
                evolve(sequence, epoch=sequence.epoch + 1, row=None, block_table=Chunked(), num_computed_tokens=0),
            )
    running = state.running.without(frozenset([effect.sequence_id for effect in effects]))
    return evolve(state, pool=pool, waiting=waiting, rows=rows, running=running), tuple(effects)
