"""stop: the text layer found a stop string."""

from nanofn.request import SequenceId
from nanofn.schedule.finish import finish
from nanofn.state.effects import Finished
from nanofn.state.engine_state import EngineState, find


def stop(
    state: EngineState, sequence_id: SequenceId, num_output_tokens: int
) -> tuple[EngineState, tuple[Finished, ...]]:
    """End a sequence with reason "stop" after `num_output_tokens` output tokens; committed ones beyond are surplus.

    A sequence that is not alive changes nothing.
    """
    sequence = find(state, sequence_id)
    if sequence is None:
        return state, ()
    kept = min(max(num_output_tokens, 0), sequence.num_output_tokens)
    return finish(state, [Finished(sequence_id, "stop", None, kept)])
