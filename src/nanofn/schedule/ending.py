"""ending: whether an accepted token is a sequence's last."""

from nanofn.request import TokenId
from nanofn.state.effects import Finished
from nanofn.state.sequence import Sequence


def ending(sequence: Sequence, token_id: TokenId) -> Finished | None:
    """Decide whether a sequence ends with the token it was just given.

    A stop token ends it after `min_tokens`, with "stop" even as the last one allowed; its final length always does.
    """
    request, num_output_tokens = sequence.request, sequence.num_output_tokens
    if token_id in request.stop_token_ids and num_output_tokens > request.min_tokens:
        return Finished(sequence.sequence_id, "stop", token_id, num_output_tokens)
    if sequence.num_tokens == sequence.max_num_tokens:
        return Finished(sequence.sequence_id, "length", None, num_output_tokens)
    return None
