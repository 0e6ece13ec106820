"""RowStart: what a device row is told when a sequence takes it."""

from attrs import frozen

from nanofn.batch.row_sampling import RowSampling
from nanofn.request import Row, SequenceId, TokenId


@frozen
class RowStart:
    """A row's new owner. Nothing of the former one may be read afterwards.

    Attributes:
        row: The row.
        sequence_id: Its owner.
        token_ids: Every known token, prompt and output, as a resumed sequence brings its output along.
        num_prompt_tokens: How many of them are the prompt.
        sampling: How its tokens are chosen.
        seed: 64 bits, the noise's key.
        child: Which of the request's samples, a word of the noise's counter.
    """

    row: Row
    sequence_id: SequenceId
    token_ids: tuple[TokenId, ...]
    num_prompt_tokens: int
    sampling: RowSampling
    seed: int
    child: int
