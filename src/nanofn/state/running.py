"""The running sequences as columns: one tuple per field of `Sequence`, in admission order.

A step changes one or two counts of every running sequence. As columns that is one tuple per count; as records it
would be one record per sequence, four times the cost of a mutable scheduler's step.
"""

from collections.abc import Container, Iterable, Iterator
from itertools import chain
from operator import attrgetter, sub
from typing import Any, Self, TypeVar

from attrs import fields, frozen

from nanofn.request import BlockId, Hint, Request, Row, SequenceId
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest, Tail
from nanofn.state.sequence import Sequence

T = TypeVar("T")


@frozen
class Running:
    """The transpose of a tuple of `Sequence`; its attributes are those of `Sequence`, in the same order."""

    sequence_id: tuple[SequenceId, ...] = ()
    request: tuple[Request, ...] = ()
    child: tuple[int, ...] = ()
    num_prompt_tokens: tuple[int, ...] = ()
    max_num_tokens: tuple[int, ...] = ()
    num_tokens: tuple[int, ...] = ()
    epoch: tuple[int, ...] = ()
    row: tuple[Row, ...] = ()
    block_table: tuple[Chunked[BlockId], ...] = ()
    num_computed_tokens: tuple[int, ...] = ()
    hint: tuple[Hint | None, ...] = ()
    first_output_us: tuple[int | None, ...] = ()
    last_output_us: tuple[int | None, ...] = ()
    last_output_step: tuple[int, ...] = ()
    chain: tuple[Chunked[Digest], ...] = ()
    tail: tuple[Tail, ...] = ()

    def __len__(self) -> int:
        return len(self.sequence_id)

    def __getitem__(self, index: int) -> Sequence:
        return Sequence(*[column[index] for column in columns(self)])

    def __iter__(self) -> Iterator[Sequence]:
        return (Sequence(*values) for values in zip(*columns(self), strict=True))

    @property
    def only_decode(self) -> bool:
        """Whether each sequence is left with exactly one token, and it can be planned now; True for none."""
        return self.num_leading_decodes() == len(self.sequence_id)

    def num_leading_decodes(self) -> int:
        """Count the sequences, from the first on, with exactly one token left that can be planned now."""
        known, computed = self.num_tokens, self.num_computed_tokens
        if tuple(map(sub, known, computed)) == (1,) * len(known):
            return len(known)
        for place, position in enumerate(computed):
            awaits = position + 1 >= self.max_num_tokens[place] or not self.request[place].plans_ahead
            if known[place] > position + 1 or (known[place] <= position and awaits):
                return place
        return len(known)

    def places(self, sequence_ids: tuple[SequenceId, ...]) -> range | list[int]:
        """Find sequences' places, as far as they run and none is named twice; a range where they are the first ones."""
        size = len(sequence_ids)
        if self.sequence_id[:size] == sequence_ids:
            return range(size)
        where = {sequence_id: place for place, sequence_id in enumerate(self.sequence_id)}
        found: list[int] = []
        for sequence_id in sequence_ids:
            place = where.pop(sequence_id, None)
            if place is None:
                break
            found.append(place)
        return found

    def take(self, places: range | list[int]) -> Self:
        """Read the sequences at some places; a range stands for the first ones."""
        if isinstance(places, range):
            size = len(places)
            return self if size == len(self.sequence_id) else type(self)(*[column[:size] for column in columns(self)])
        return type(self)(*[tuple([column[place] for place in places]) for column in columns(self)])

    def put(self, places: range | list[int], part: Self) -> Self:
        """Write sequences at some places; a range stands for the first ones."""
        if isinstance(places, range) and len(places) == len(self.sequence_id):
            return part
        pairs = zip(columns(self), columns(part), strict=True)
        if isinstance(places, range):
            return type(self)(*[new + column[len(places) :] for column, new in pairs])
        return type(self)(*[_put(column, places, new) for column, new in pairs])

    def index(self, sequence_id: SequenceId) -> int | None:
        """Find a sequence's place; None if it does not run."""
        return self.sequence_id.index(sequence_id) if sequence_id in self.sequence_id else None

    def get(self, sequence_id: SequenceId) -> Sequence | None:
        """Look up a sequence; None if it does not run."""
        index = self.index(sequence_id)
        return None if index is None else self[index]

    def advanced(self, block_table: tuple[Chunked[BlockId], ...], num_computed_tokens: tuple[int, ...]) -> Self:
        """Exchange the columns that a plan changes. By position: `evolve` costs four times as much."""
        return type(self)(
            self.sequence_id, self.request, self.child, self.num_prompt_tokens, self.max_num_tokens, self.num_tokens,
            self.epoch, self.row, block_table, num_computed_tokens, self.hint, self.first_output_us, self.last_output_us,
            self.last_output_step, self.chain, self.tail,
        )  # fmt: skip

    def with_tokens(
        self,
        num_tokens: tuple[int, ...],
        last_output_us: tuple[int | None, ...],
        last_output_step: tuple[int, ...],
        chain: tuple[Chunked[Digest], ...],
        tail: tuple[Tail, ...],
    ) -> Self:
        """Exchange the columns that later output tokens change."""
        return type(self)(
            self.sequence_id, self.request, self.child, self.num_prompt_tokens, self.max_num_tokens, num_tokens,
            self.epoch, self.row, self.block_table, self.num_computed_tokens, self.hint, self.first_output_us,
            last_output_us, last_output_step, chain, tail,
        )  # fmt: skip

    def append(self, sequences: Iterable[Sequence]) -> Self:
        """Add sequences at the end."""
        added = transposed(sequences)
        return type(self)(*[column + new for column, new in zip(columns(self), columns(added), strict=True)])

    def without(self, sequence_ids: Container[SequenceId]) -> Self:
        """Drop sequences; the others keep their order."""
        gone = [index for index, sequence_id in enumerate(self.sequence_id) if sequence_id in sequence_ids]
        if not gone:
            return self
        pieces = [slice(start, end) for start, end in zip([0, *[i + 1 for i in gone]], [*gone, len(self)], strict=True)]
        return type(self)(*[tuple(chain.from_iterable([column[each] for each in pieces])) for column in columns(self)])


_NAMES = tuple(attribute.name for attribute in fields(Running))
_values = attrgetter(*_NAMES)


def columns(running: Running) -> tuple[tuple[Any, ...], ...]:
    """List the columns in field order."""
    values: tuple[tuple[Any, ...], ...] = _values(running)
    return values


def transposed(sequences: Iterable[Sequence]) -> Running:
    """Turn sequences into columns."""
    rows = [_values(sequence) for sequence in sequences]
    return Running(*zip(*rows, strict=True)) if rows else Running()


def _put(column: tuple[T, ...], places: list[int], values: tuple[T, ...]) -> tuple[T, ...]:
    written = list(column)
    for place, value in zip(places, values, strict=True):
        written[place] = value
    return tuple(written)
