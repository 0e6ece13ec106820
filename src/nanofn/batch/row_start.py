"""RowStart: what a device row is told when a sequence takes it."""

from attrs import frozen

from nanofn.request import Row, TokenId


@frozen
class RowStart:
    """A row's new owner. Nothing of the former one may be read afterwards.

    Attributes:
        row: The row.
        token_ids: Every known token, prompt and output, as a resumed sequence brings its output along.
        temperature: Below 1e-5 means greedy.
        seed: 64 bits, the noise's key.
        child: Which of the request's samples, a word of the noise's counter.
    """

    row: Row
    token_ids: tuple[TokenId, ...]
    temperature: float
    seed: int
    child: int
