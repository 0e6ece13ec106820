"""The column of tails: what each running sequence knows beyond its full blocks, packed.

Sequences that decode together get one token each in every step. Those tokens come as one column and stay one until
somebody asks for a tail: a step keeps a pointer, where a tail per sequence would be as many objects as there are
sequences, made one step apart each and out of the cache by the time a block of 256 tokens is full.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from struct import Struct
from typing import overload

from attrs import frozen

from nanofn.request import TokenId
from nanofn.state.digest import TOKEN_BYTES

MAX_RECENT = 64
"""Columns that are kept as they came. More cost a full block more, fewer settle more often."""


@frozen(eq=False, repr=False)
class Tails(Sequence[bytes]):
    """Tails, each built when it is looked at. Equal to a tuple of them, with the same hash, and printed as one.

    Attributes:
        settled: What each knew beyond its full blocks before the recent columns.
        recent: Tokens since, oldest column first, at least one; a column has a token for each.
        block_size: Tokens in a block.
    """

    settled: tuple[bytes, ...]
    recent: tuple[tuple[TokenId, ...], ...]
    block_size: int

    def __len__(self) -> int:
        return len(self.settled)

    def __iter__(self) -> Iterator[bytes]:
        return map(self._beyond, map(bytes.__add__, self.settled, map(self._pack, *self.recent)))

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "Tails": ...
    def __getitem__(self, index: int | slice) -> "bytes | Tails":
        if isinstance(index, slice):
            return Tails(self.settled[index], tuple([column[index] for column in self.recent]), self.block_size)
        return self._beyond(self.settled[index] + self._pack(*map(itemgetter(index), self.recent)))

    def __add__(self, other: "Column") -> "Column":
        if isinstance(other, Tails) and len(other.recent) == len(self.recent):
            recent = tuple([one + more for one, more in zip(self.recent, other.recent, strict=True)])
            return Tails(self.settled + other.settled, recent, self.block_size)
        return (*self, *other)

    def __radd__(self, other: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return (*other, *self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tails | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    @property
    def _pack(self) -> Callable[..., bytes]:
        """What packs the recent tokens of one sequence."""
        return Struct(f"<{len(self.recent)}I").pack

    def _beyond(self, known: bytes) -> bytes:
        """Drop full blocks."""
        return known[len(known) // TOKEN_BYTES // self.block_size * self.block_size * TOKEN_BYTES :]

    def blocks(self, places: tuple[int, ...]) -> list[bytes]:
        """Pack the last blocks of some sequences whose tails have just become empty."""
        recent = self.recent[-self.block_size :]
        pack = Struct(f"<{len(recent)}I").pack
        late = [pack(*map(itemgetter(place), recent)) for place in places]
        if len(recent) == self.block_size:
            return late
        return [self.settled[place] + block for place, block in zip(places, late, strict=True)]


Column = tuple[bytes, ...] | Tails


def lengthened(tails: Column, token_ids: tuple[TokenId, ...], block_size: int) -> Tails:
    """Add one token to each tail."""
    if isinstance(tails, Tails) and len(tails.recent) < MAX_RECENT:
        return Tails(tails.settled, (*tails.recent, token_ids), block_size)
    return Tails(tuple(tails), (token_ids,), block_size)
