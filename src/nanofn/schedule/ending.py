"""ending: whether an accepted token is a sequence's last."""

from nanofn.request import Request, SequenceId, TokenId
from nanofn.state.effects import Finished


def ending(
    sequence_id: SequenceId, request: Request, token_id: TokenId, num_output_tokens: int, *, is_longest: bool
) -> Finished | None:
    """Decide whether a sequence ends with a token it was just given.

    A stop token ends it after `min_tokens`, with "stop" even as the last one allowed; its final length always does.
    """
    if token_id in request.stop_token_ids and num_output_tokens > request.min_tokens:
        return Finished(sequence_id, "stop", token_id, num_output_tokens)
    return Finished(sequence_id, "length", None, num_output_tokens) if is_longest else None
