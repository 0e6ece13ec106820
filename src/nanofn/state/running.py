"""The running sequences as columns: one tuple per field of `Sequence`, in admission order.

A step changes one or two counts of every running sequence. As columns that is one tuple per count; as records it
would be one record per sequence, four times the cost of a mutable scheduler's step.
"""

from collections.abc import Container, Iterable, Iterator
from functools import reduce
from itertools import chain
from operator import add, attrgetter, sub
from types import MappingProxyType
from typing import Any, TypeVar

from attrs import field, fields, frozen

from nanofn.request import BlockId, Hint, PlanId, Request, Row, SequenceId
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest, Tail
from nanofn.state.sequence import Sequence
from nanofn.state.steady import Cohort, Steady

T = TypeVar("T")


@frozen
class Running:
    """The transpose of a tuple of `Sequence`; its attributes are those of `Sequence`, in the same order, and a memo."""

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
    steady: Steady | None = field(default=None, eq=False, repr=False)

    def __len__(self) -> int:
        return len(self.sequence_id)

    def __getitem__(self, index: int) -> Sequence:
        return Sequence(*[column[index] for column in columns(self)])

    def __iter__(self) -> Iterator[Sequence]:
        return (Sequence(*values) for values in zip(*columns(self), strict=True))

    @property
    def num_remaining_tokens(self) -> tuple[int, ...]:
        """Tokens that a plan could compute for each now: the column of `Sequence.num_remaining_tokens`."""
        left = tuple(map(sub, self.num_tokens, self.num_computed_tokens))
        if min(left, default=1) > 0:
            return left
        may_go_on = [
            computed + 1 < longest and request.plans_ahead
            for computed, longest, request in zip(
                self.num_computed_tokens, self.max_num_tokens, self.request, strict=True
            )
        ]
        return tuple([count if count > 0 else int(may) for count, may in zip(left, may_go_on, strict=True)])

    @property
    def decodes(self) -> tuple[tuple[SequenceId, int], ...] | None:
        """A grant of one token to each, if each has exactly one left that can be planned now; None otherwise."""
        if self.steady is not None and self.may_decode(self.steady):
            return self.steady.grants
        if self.num_remaining_tokens != (1,) * len(self.sequence_id):
            return None
        return tuple([(sequence_id, 1) for sequence_id in self.sequence_id])

    def formed(self, grants: tuple[tuple[SequenceId, int], ...], plans: tuple[PlanId, ...], block_size: int) -> Steady:
        """Look at every sequence, of which there is at least one, for a memo; `grants` are one token for each."""
        members: dict[int, list[int]] = {}
        for place, count in enumerate(self.num_tokens):
            members.setdefault(count % block_size, []).append(place)
        stop_token_ids = {request.stop_token_ids for request in self.request}
        cohort = Cohort(
            frozenset(chain.from_iterable(stop_token_ids)),
            all(request.plans_ahead for request in self.request),
            MappingProxyType({rest: tuple(places) for rest, places in members.items()}),
        )
        return Steady(cohort, grants, self.first_to_end, plans=plans)

    @property
    def first_to_end(self) -> int:
        """Place of the sequence with the fewest tokens left to its final length."""
        left = tuple(map(sub, self.max_num_tokens, self.num_tokens))
        return left.index(min(left))

    def places_with(self, num_rest: int, block_size: int) -> tuple[int, ...]:
        """Find the sequences that have so many known tokens beyond their full blocks, modulo the block size."""
        if self.steady is not None:
            return self.steady.places_with(num_rest, block_size)
        wanted = num_rest % block_size
        return tuple([place for place, count in enumerate(self.num_tokens) if count % block_size == wanted])

    def may_decode(self, steady: Steady) -> bool:
        """Whether each, according to the memo, may decode another token now: none awaits a result."""
        if not steady.plans:
            return True
        place = steady.first_to_end
        left = self.max_num_tokens[place] - self.num_tokens[place]
        return left > len(steady.plans) and steady.cohort.plans_ahead

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

    def take(self, places: range | list[int]) -> "Running":
        """Read the sequences at some places; a range stands for the first ones."""
        if isinstance(places, range):
            size = len(places)
            return self if size == len(self.sequence_id) else _of([column[:size] for column in columns(self)])
        return _of([tuple([column[place] for place in places]) for column in columns(self)])

    def put(self, places: range | list[int], part: "Running") -> "Running":
        """Write sequences at some places; a range stands for the first ones."""
        if isinstance(places, range) and len(places) == len(self.sequence_id):
            return part
        pairs = zip(columns(self), columns(part), strict=True)
        if isinstance(places, range):
            return _of([new + column[len(places) :] for column, new in pairs])
        return _of([_put(column, places, new) for column, new in pairs])

    def index(self, sequence_id: SequenceId) -> int | None:
        """Find a sequence's place; None if it does not run."""
        return self.sequence_id.index(sequence_id) if sequence_id in self.sequence_id else None

    def get(self, sequence_id: SequenceId) -> Sequence | None:
        """Look up a sequence; None if it does not run."""
        index = self.index(sequence_id)
        return None if index is None else self[index]

    def advanced(
        self, block_table: tuple[Chunked[BlockId], ...], num_computed_tokens: tuple[int, ...], steady: Steady | None
    ) -> "Running":
        """Exchange what a plan changes. By position: `evolve` costs four times as much."""
        return Running(
            self.sequence_id, self.request, self.child, self.num_prompt_tokens, self.max_num_tokens, self.num_tokens,
            self.epoch, self.row, block_table, num_computed_tokens, self.hint, self.first_output_us, self.last_output_us,
            self.last_output_step, self.chain, self.tail, steady,
        )  # fmt: skip

    def with_tokens(
        self,
        num_tokens: tuple[int, ...],
        output: tuple[int, int],
        digested: tuple[tuple[Chunked[Digest], ...], tuple[Tail, ...]],
        steady: Steady | None,
    ) -> "Running":
        """Exchange what a later output token of each changes; `output` is its time and the number of steps by then."""
        number = len(num_tokens)
        return Running(
            self.sequence_id, self.request, self.child, self.num_prompt_tokens, self.max_num_tokens, num_tokens,
            self.epoch, self.row, self.block_table, self.num_computed_tokens, self.hint, self.first_output_us,
            (output[0],) * number, (output[1],) * number, *digested, steady,
        )  # fmt: skip

    def append(self, sequences: Iterable[Sequence]) -> "Running":
        """Add sequences at the end."""
        added = transposed(sequences)
        return _of([column + new for column, new in zip(columns(self), columns(added), strict=True)])

    def without(self, sequence_ids: Container[SequenceId], *, have_ended: bool = False) -> "Running":
        """Drop sequences; the others keep their order. If those dropped have ended, what is known of the others stays."""
        gone = [place for place, sequence_id in enumerate(self.sequence_id) if sequence_id in sequence_ids]
        if not gone:
            return self
        pieces = [slice(start, end) for start, end in zip([0, *[i + 1 for i in gone]], [*gone, len(self)], strict=True)]
        left = _of([reduce(add, [column[each] for each in pieces]) for column in columns(self)])
        if self.steady is None or not have_ended or not left.sequence_id:
            return left
        return left.advanced(left.block_table, left.num_computed_tokens, self.steady.without(gone, left.first_to_end))


_values = attrgetter(*[attribute.name for attribute in fields(Sequence)])


def columns(running: Running) -> tuple[tuple[Any, ...], ...]:
    """List the columns in field order."""
    values: tuple[tuple[Any, ...], ...] = _values(running)
    return values


def transposed(sequences: Iterable[Sequence]) -> Running:
    """Turn sequences into columns."""
    rows = [_values(sequence) for sequence in sequences]
    return _of(zip(*rows, strict=True)) if rows else Running()


def _of(values: Iterable[Any]) -> Running:
    return Running(*values)


def _put(column: tuple[T, ...], places: list[int], values: tuple[T, ...]) -> tuple[T, ...]:
    written = list(column)
    for place, value in zip(places, values, strict=True):
        written[place] = value
    return tuple(written)
