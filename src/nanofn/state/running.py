"""The running sequences as columns: one tuple per field of `Sequence`, in admission order.

A step changes one or two counts of every running sequence. As columns that is one tuple per count; as records it
would be one record per sequence, four times the cost of a mutable scheduler's step.
"""

from collections.abc import Container, Iterable, Iterator
from functools import reduce
from itertools import chain
from operator import add, attrgetter, sub
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from attrs import evolve, field, fields, frozen

from nanofn.request import BlockId, Hint, PlanId, Request, Row, SequenceId
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest
from nanofn.state.sequence import Sequence
from nanofn.state.steady import Cohort, Steady
from nanofn.state.tails import Column

T = TypeVar("T")


class Columns(NamedTuple):
    """The transpose of some sequences; its fields are those of `Sequence`, in the same order.

    A named tuple, because a step makes two of them: it costs a fifth of a frozen record with as many fields.
    """

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
    tail: Column = ()

    def at(self, place: int) -> Sequence:
        """Read one sequence."""
        values: list[Any] = [column[place] for column in self]
        return Sequence(*values)

    def take(self, places: range | list[int]) -> "Columns":
        """Read the sequences at some places; a range stands for the first ones."""
        if not isinstance(places, range):
            return _columns([tuple([column[place] for place in places]) for column in self])
        size = len(places)
        return self if size == len(self.sequence_id) else _columns([column[:size] for column in self])

    def put(self, places: range | list[int], part: "Columns") -> "Columns":
        """Write sequences at some places; a range stands for the first ones."""
        pairs = _pairs(self, part)
        if not isinstance(places, range):
            return _columns([_put(column, places, new) for column, new in pairs])
        size = len(places)
        return part if size == len(self.sequence_id) else _columns([new + column[size:] for column, new in pairs])

    def advanced(self, block_table: tuple[Chunked[BlockId], ...], num_computed_tokens: tuple[int, ...]) -> "Columns":
        """Exchange what a plan changes."""
        return Columns(
            self.sequence_id, self.request, self.child, self.num_prompt_tokens, self.max_num_tokens, self.num_tokens,
            self.epoch, self.row, block_table, num_computed_tokens, self.hint, self.first_output_us, self.last_output_us,
            self.last_output_step, self.chain, self.tail,
        )  # fmt: skip

    def with_tokens(
        self,
        num_tokens: tuple[int, ...],
        output: tuple[int, int],
        digested: tuple[tuple[Chunked[Digest], ...], Column],
    ) -> "Columns":
        """Exchange what a later output token of each changes; `output` is its time and the number of steps by then."""
        number = len(num_tokens)
        return Columns(
            self.sequence_id, self.request, self.child, self.num_prompt_tokens, self.max_num_tokens, num_tokens,
            self.epoch, self.row, self.block_table, self.num_computed_tokens, self.hint, self.first_output_us,
            (output[0],) * number, (output[1],) * number, *digested,
        )  # fmt: skip

    @property
    def num_remaining_tokens(self) -> tuple[int, ...]:
        """Tokens that a plan could compute for each now: the column of `Sequence.num_remaining_tokens`."""
        left = tuple(map(sub, self.num_tokens, self.num_computed_tokens))
        if min(left, default=1) > 0:
            return left
        longest = zip(left, self.num_computed_tokens, self.max_num_tokens, strict=True)
        return tuple([count if count > 0 else int(computed + 1 < most) for count, computed, most in longest])

    @property
    def first_to_end(self) -> int:
        """Place of the sequence with the fewest tokens left to its final length."""
        left = tuple(map(sub, self.max_num_tokens, self.num_tokens))
        return left.index(min(left))


@frozen
class Running:
    """Running sequences.

    Attributes:
        columns: Their fields.
        steady: A memo, while all of them decode.
    """

    columns: Columns = Columns()
    steady: Steady | None = field(default=None, eq=False, repr=False)

    def __len__(self) -> int:
        return len(self.columns.sequence_id)

    def __getitem__(self, index: int) -> Sequence:
        return self.columns.at(index)

    def __iter__(self) -> Iterator[Sequence]:
        columns: tuple[Any, ...] = self.columns
        return (Sequence(*values) for values in zip(*columns, strict=True))

    @property
    def sequence_id(self) -> tuple[SequenceId, ...]:
        """Ids in order."""
        return self.columns.sequence_id

    @property
    def decodes(self) -> tuple[tuple[SequenceId, int], ...] | None:
        """A grant of one token to each, if each has exactly one left that can be planned now; None otherwise."""
        columns, steady = self.columns, self.steady
        if steady is not None and steady.may_decode(columns.num_tokens, columns.max_num_tokens):
            return steady.cohort.grants
        if columns.num_remaining_tokens != (1,) * len(columns.sequence_id):
            return None
        return tuple([(sequence_id, 1) for sequence_id in columns.sequence_id])

    def formed(self, grants: tuple[tuple[SequenceId, int], ...], plans: tuple[PlanId, ...], block_size: int) -> Steady:
        """Look at every sequence, of which there is at least one, for a memo; `grants` are one token for each."""
        columns = self.columns
        members: dict[int, list[int]] = {}
        for place, count in enumerate(columns.num_tokens):
            members.setdefault(count % block_size, []).append(place)
        stop_token_ids = {request.stop_token_ids for request in columns.request}
        cohort = Cohort(
            grants,
            frozenset(chain.from_iterable(stop_token_ids)),
            columns.first_to_end,
            MappingProxyType({rest: tuple(places) for rest, places in members.items()}),
        )
        return Steady(cohort, 0, plans)

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

    def index(self, sequence_id: SequenceId) -> int | None:
        """Find a sequence's place; None if it does not run."""
        return self.sequence_id.index(sequence_id) if sequence_id in self.sequence_id else None

    def get(self, sequence_id: SequenceId) -> Sequence | None:
        """Look up a sequence; None if it does not run."""
        index = self.index(sequence_id)
        return None if index is None else self[index]

    def with_hint(self, place: int, hint: Hint | None) -> "Running":
        """Exchange one hint."""
        return evolve(self, columns=self.columns._replace(hint=_put(self.columns.hint, [place], (hint,))))

    def append(self, sequences: Iterable[Sequence]) -> "Running":
        """Add sequences at the end."""
        added = transposed(sequences)
        return Running(_columns([column + new for column, new in _pairs(self.columns, added)]))

    def without(self, sequence_ids: Container[SequenceId], *, have_ended: bool = False) -> "Running":
        """Drop sequences; the others keep their order. If those dropped have ended, what is known of the others stays."""
        gone = [place for place, sequence_id in enumerate(self.sequence_id) if sequence_id in sequence_ids]
        if not gone:
            return self
        pieces = [slice(start, end) for start, end in zip([0, *[i + 1 for i in gone]], [*gone, len(self)], strict=True)]
        left = _columns([reduce(add, [column[each] for each in pieces]) for column in self.columns])
        if self.steady is None or not have_ended or not left.sequence_id:
            return Running(left)
        return Running(left, self.steady.without(gone, left.first_to_end))


_values = attrgetter(*[attribute.name for attribute in fields(Sequence)])


def transposed(sequences: Iterable[Sequence]) -> Columns:
    """Turn sequences into columns."""
    rows = [_values(sequence) for sequence in sequences]
    return Columns(*zip(*rows, strict=True)) if rows else Columns()


def _columns(values: Iterable[Any]) -> Columns:
    return Columns(*values)


def _pairs(one: Columns, other: Columns) -> Iterator[tuple[Any, Any]]:
    return zip(one, other, strict=True)


def _put(column: tuple[T, ...], places: list[int], values: tuple[T, ...]) -> tuple[T, ...]:
    written: list[Any] = list(column)
    for place, value in zip(places, values, strict=True):
        written[place] = value
    return tuple(written)
