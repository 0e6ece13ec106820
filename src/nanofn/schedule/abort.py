"""abort: nobody wants a request any more."""

from nanofn.request import RequestId, SequenceId
from nanofn.schedule.finish import finish
from nanofn.state.effects import Finished
from nanofn.state.engine_state import EngineState, find


def abort(state: EngineState, request_id: RequestId) -> tuple[EngineState, tuple[Finished, ...]]:
    """End all live sequences of a request with reason "abort". Unknown or ended requests change nothing."""
    return finish(state, [aborted(state, child) for child in state.by_request.get(request_id) or ()])


def aborted(state: EngineState, sequence_id: SequenceId) -> Finished:
    """The ending "abort" of a sequence with the output it has, alive or not."""
    sequence = find(state, sequence_id)
    return Finished(sequence_id, "abort", None, 0 if sequence is None else sequence.num_output_tokens)
