"""The running sequences as columns: one tuple per field of `Sequence`, in admission order.

A step changes one or two counts of every running sequence. As columns that is one tuple per count; as records it
would be one record per sequence, four times the cost of a mutable scheduler's step.
"""

from collections.abc import Container, Iterable, Iterator
from operator import sub
from typing import Any, Self

from attrs import fields, frozen

from nanofn.request import BlockId, Hint, Request, Row, SequenceId
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest
from nanofn.state.sequence import Sequence


@frozen
class Running:
    """The transpose of a tuple of `Sequence`; its attributes are those of `Sequence`, in the same order."""

    sequence_id: tuple[SequenceId, ...] = ()
    request: tuple[Request, ...] = ()
    child: tuple[int, ...] = ()
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
    tail: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.sequence_id)

    def __getitem__(self, index: int) -> Sequence:
        return Sequence(*[column[index] for column in columns(self)])

    def __iter__(self) -> Iterator[Sequence]:
        return (Sequence(*values) for values in zip(*columns(self), strict=True))

    @property
    def only_decode(self) -> bool:
        """Whether each sequence is left with exactly one token, and it can be planned now; True for none."""
        computed = self.num_computed_tokens
        return (
            max(map(sub, self.num_tokens, computed), default=1) <= 1
            and min(map(sub, self.max_num_tokens, computed), default=2) > 1
            and all(request.plans_ahead for request in self.request)
        )

    def index(self, sequence_id: SequenceId) -> int | None:
        """Find a sequence's place; None if it does not run."""
        return self.sequence_id.index(sequence_id) if sequence_id in self.sequence_id else None

    def get(self, sequence_id: SequenceId) -> Sequence | None:
        """Look up a sequence; None if it does not run."""
        index = self.index(sequence_id)
        return None if index is None else self[index]

    def append(self, sequences: Iterable[Sequence]) -> Self:
        """Add sequences at the end."""
        rows = [record(sequence) for sequence in sequences]
        if not rows:
            return self
        added = zip(*rows, strict=True)
        return type(self)(*[column + new for column, new in zip(columns(self), added, strict=True)])

    def without(self, sequence_ids: Container[SequenceId]) -> Self:
        """Drop sequences; the others keep their order."""
        kept = [index for index, sequence_id in enumerate(self.sequence_id) if sequence_id not in sequence_ids]
        if len(kept) == len(self):
            return self
        return type(self)(*[tuple([column[index] for index in kept]) for column in columns(self)])


_NAMES = tuple(attribute.name for attribute in fields(Running))


def columns(running: Running) -> list[tuple[Any, ...]]:
    """List the columns in field order."""
    return [getattr(running, name) for name in _NAMES]


def record(sequence: Sequence) -> tuple[Any, ...]:
    """List a sequence's fields in the same order."""
    return tuple([getattr(sequence, name) for name in _NAMES])
