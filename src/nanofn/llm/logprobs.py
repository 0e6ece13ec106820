"""Logprobs: a position's log-probabilities as a dict, made when it is read."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np
from attrs import frozen

from nanofn.batch.logprob_record import num_top_of, record_type
from nanofn.text.token_text import MOST_EARLIER, token_text
from nanofn.text.tokenizer import Tokenizer

Position_co = TypeVar("Position_co", covariant=True, bound=Mapping[int, "Logprob"] | None)


@frozen
class Logprob:
    """How likely a token was at its position.

    Attributes:
        logprob: Natural logarithm of its probability under the model's own distribution: before temperature, filters,
            penalties and all else.
        rank: 1 for the likeliest.
        decoded_token: Its text; see `token_text` for tokens that are parts of a character.
    """

    logprob: float
    rank: int
    decoded_token: str


class Logprobs(Sequence[Position_co], Generic[Position_co]):
    """What was found at each position, in little memory: records, see `record_type`. Never changes.

    Attributes:
        total: The tokens' log-probabilities added up.
    """

    __slots__ = ("_records", "_token_ids", "_tokenizer", "_unknown", "total")

    def __init__(self, tokenizer: Tokenizer, records: Sequence[bytes], *, unknown: Sequence[int] = ()) -> None:
        """Take records of one width, one a position.

        Args:
            tokenizer: For the tokens' texts.
            records: Of consecutive positions.
            unknown: Token ids before them; each has a position, which is None.
        """
        self._tokenizer, self._unknown = tokenizer, tuple(unknown)
        self._records = np.frombuffer(b"".join(records), record_type(num_top_of(records[0]) if records else 0))
        self.total = float(self._records["found"]["logprob"][:, 0].sum(dtype=np.float64))

    def __len__(self) -> int:
        return len(self._unknown) + len(self._records)

    @overload
    def __getitem__(self, place: int) -> Position_co: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Position_co, ...]: ...
    def __getitem__(self, place: Any) -> Any:
        """Make a position's dict; a slice gives a tuple of them."""
        places = range(len(self))[place]
        return tuple(map(self._position, places)) if isinstance(places, range) else self._position(places)

    def _position(self, place: int) -> Mapping[int, Logprob] | None:
        first = len(self._unknown)
        if place < first:
            return None
        record, earlier = self._records[place - first], self._earlier(place - first)
        rank, found = int(record["rank"]), record["found"].tolist()
        # The token itself comes first, and its own rank counts: others of its probability may be listed before it.
        result = {token_id: (logprob, number) for number, (token_id, logprob) in enumerate(found)}
        result[found[0][0]] = found[0][1], rank
        return {
            token_id: Logprob(logprob, number, token_text(self._tokenizer, token_id, earlier))
            for token_id, (logprob, number) in result.items()
        }

    def _earlier(self, number: int) -> Sequence[int]:
        """The tokens before a record's, as far as they may matter to its text."""
        recorded = self._records["found"]["token_id"][max(number - MOST_EARLIER, 0) : number, 0]
        return [*self._unknown, *recorded.tolist()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, list, Logprobs)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> Any:
        """Copy and pickle as a plain tuple: without the tokenizer."""
        return tuple, (tuple(self),)
