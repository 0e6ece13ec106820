"""finish: sequences end, whatever they were doing, and give everything back."""

from collections.abc import Iterable

from attrs import evolve

from nanofn.request import RequestId, SequenceId
from nanofn.state.block_pool import release
from nanofn.state.effects import Finished
from nanofn.state.engine_state import EngineState, find


def finish(state: EngineState, endings: Iterable[Finished]) -> tuple[EngineState, tuple[Finished, ...]]:
    """Take live sequences out of the state.

    Published blocks stay in the prefix index; the rest of a table becomes free. Results in flight find no sequence
    and are dropped.

    Args:
        state: Any state.
        endings: How each one ends. Those that are not alive are passed over, so that ending twice is ending once.

    Returns:
        The next state, and the endings that took effect.
    """
    pool, waiting, rows, by_request = state.pool, state.waiting, state.rows, state.by_request
    ended: dict[SequenceId, Finished] = {}
    for ending in endings:
        sequence = find(state, ending.sequence_id)
        if sequence is None or ending.sequence_id in ended:
            continue
        ended[ending.sequence_id] = ending
        if sequence.row is None:
            waiting = waiting.discard(sequence.sequence_id)
        else:
            pool = release(pool, state.prefix_index, sequence.block_table, sequence.chain)
            rows = (*rows, sequence.row)
        request_id: RequestId = sequence.request.request_id
        left = tuple([child for child in by_request.get(request_id) or () if child != sequence.sequence_id])
        by_request = by_request.set(request_id, left) if left else by_request.discard(request_id)
    running = state.running.without(ended, have_ended=True)
    state = evolve(state, pool=pool, waiting=waiting, rows=rows, by_request=by_request, running=running)
    return state, tuple(ended.values())
