"""A map that keeps key order: for waiting sequences, for cached blocks by age, for indexes of policies."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Generic, Protocol, Self, TypeVar

from attrs import frozen


class Comparable(Protocol):
    """What can be sorted."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether it comes before another."""
        ...


K = TypeVar("K", bound=Comparable)
V = TypeVar("V")
_CHUNK = 512
"""Most pairs in a chunk. A change copies one chunk and one pointer per chunk: 512 + 2,000 pointers at a million pairs."""
_key = itemgetter(0)


@frozen(eq=False)
class SortedTable(Generic[K, V]):
    """An immutable sorted map; its keys can be compared. Equality and hash follow the content, not the layout.

    Attributes:
        chunks: Non-empty runs of (key, value), ascending within and across chunks.
        firsts: First key of each chunk, those skipped not counted.
        size: Number of pairs.
        skipped: Pairs at the front of the first chunk that are there no more: popping copies nothing.
    """

    chunks: tuple[tuple[tuple[K, V], ...], ...] = ()
    firsts: tuple[K, ...] = ()
    size: int = 0
    skipped: int = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return islice(chain.from_iterable(self.chunks), self.skipped, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedTable) and self.size == other.size and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def values(self) -> Iterator[V]:
        """Iterate over the values in key order, lazily."""
        return (value for _, value in self)

    def get(self, key: K) -> V | None:
        """Look up a key; None if absent. Values are never None."""
        where = bisect_right(self.firsts, key) - 1
        if where < 0:
            return None
        chunk = self.chunks[where]
        offset = bisect_left(chunk, key, key=_key)
        return chunk[offset][1] if offset < len(chunk) and chunk[offset][0] == key else None

    def starting(self, key: K) -> Iterator[tuple[K, V]]:
        """Iterate from the first key that is not less than `key`, lazily."""
        where = max(bisect_right(self.firsts, key) - 1, 0)
        if self.firsts and key < self.firsts[0]:
            key = self.firsts[0]
        chunks = (self.chunks[place] for place in range(where, len(self.chunks)))
        return (pair for chunk in chunks for pair in chunk[bisect_left(chunk, key, key=_key) :])

    def set(self, key: K, value: V) -> Self:
        """Bind one key, new or not."""
        where = max(bisect_right(self.firsts, key) - 1, 0)
        chunk = self._live(where) if self.chunks else ()
        offset = bisect_left(chunk, key, key=_key)
        is_new = offset == len(chunk) or chunk[offset][0] != key
        chunk = (*chunk[:offset], (key, value), *chunk[offset + (not is_new) :])
        # Appending keeps the full chunk and opens a new one; inserting splits in the middle.
        cut = len(chunk) // 2 if offset < _CHUNK else _CHUNK
        pieces = (chunk,) if len(chunk) <= _CHUNK else (chunk[:cut], chunk[cut:])
        return self._spliced(where, pieces, self.size + is_new)

    def discard_all(self, keys: Collection[K]) -> Self:
        """Drop keys, present or not."""
        table = self
        for where in sorted({bisect_right(self.firsts, key) - 1 for key in keys}, reverse=True):
            if where >= 0:
                chunk = table._live(where)
                rest = tuple([pair for pair in chunk if pair[0] not in keys])
                table = table._spliced(where, (rest,) if rest else (), table.size - len(chunk) + len(rest))
        return table

    def discard(self, key: K) -> Self:
        """Drop one key, present or not."""
        return self.discard_all((key,))

    def extend(self, pairs: Iterable[tuple[K, V]]) -> Self:
        """Append pairs whose ascending keys exceed every key present."""
        added, where = tuple(pairs), max(len(self.chunks) - 1, 0)
        joined = (self._live(where) if self.chunks else ()) + added
        pieces = tuple(joined[start : start + _CHUNK] for start in range(0, len(joined), _CHUNK))
        return self._spliced(where, pieces, self.size + len(added))

    def pop_first(self, count: int) -> tuple[Self, tuple[V, ...]]:
        """Take up to `count` pairs off the front; returns their values in key order."""
        taken = tuple(islice(self.values(), count))
        skipped, num_chunks = self.skipped + count, 0
        while num_chunks < len(self.chunks) and len(self.chunks[num_chunks]) <= skipped:
            skipped -= len(self.chunks[num_chunks])
            num_chunks += 1
        chunks = self.chunks[num_chunks:] if num_chunks else self.chunks
        if not chunks:
            return type(self)(), taken
        firsts = (chunks[0][skipped][0], *self.firsts[num_chunks + 1 :])
        return type(self)(chunks, firsts, self.size - len(taken), skipped), taken

    def _live(self, where: int) -> tuple[tuple[K, V], ...]:
        """A chunk without what is skipped."""
        return self.chunks[where] if where else self.chunks[0][self.skipped :]

    def _spliced(self, where: int, pieces: tuple[tuple[tuple[K, V], ...], ...], size: int) -> Self:
        """Put live pieces in the place of a chunk."""
        chunks = self.chunks[:where] + pieces + self.chunks[where + 1 :]
        firsts = self.firsts[:where] + tuple([piece[0][0] for piece in pieces]) + self.firsts[where + 1 :]
        return type(self)(chunks, firsts, size, self.skipped if where else 0)
