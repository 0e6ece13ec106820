"""hint: a predictor said something new about a sequence."""

from attrs import evolve

from nanofn.request import Hint, SequenceId
from nanofn.state.engine_state import EngineState


def hint(state: EngineState, sequence_id: SequenceId, value: Hint | None) -> tuple[EngineState, tuple[()]]:
    """Replace a live sequence's hint. One that is not alive changes nothing; there are no effects."""
    running, index = state.running, state.running.index(sequence_id)
    if index is not None:
        return evolve(state, running=running.with_hint(index, value)), ()
    sequence = state.waiting.get(sequence_id)
    if sequence is None:
        return state, ()
    return evolve(state, waiting=state.waiting.set(sequence_id, evolve(sequence, hint=value))), ()
