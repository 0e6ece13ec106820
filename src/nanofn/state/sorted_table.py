"""A map from integers to values that keeps key order: for waiting sequences and for cached blocks by age."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Generic, Self, TypeVar

from attrs import frozen

V = TypeVar("V")
_CHUNK = 512
"""Most pairs in a chunk. A change copies one chunk and one pointer per chunk: 512 + 2,000 pointers at a million pairs."""
_key = itemgetter(0)


@frozen(eq=False)
class SortedTable(Generic[V]):
    """An immutable sorted map. Equality and hash follow the content, not the layout.

    Attributes:
        chunks: Non-empty runs of (key, value), ascending within and across chunks.
        firsts: First key of each chunk.
        size: Number of pairs.
    """

    chunks: tuple[tuple[tuple[int, V], ...], ...] = ()
    firsts: tuple[int, ...] = ()
    size: int = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[tuple[int, V]]:
        return chain.from_iterable(self.chunks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedTable) and self.size == other.size and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def values(self) -> Iterator[V]:
        """Iterate over the values in key order, lazily."""
        return (value for _, value in self)

    def get(self, key: int) -> V | None:
        """Look up a key; None if absent. Values are never None."""
        where = bisect_right(self.firsts, key) - 1
        if where < 0:
            return None
        chunk = self.chunks[where]
        offset = bisect_left(chunk, key, key=_key)
        return chunk[offset][1] if offset < len(chunk) and chunk[offset][0] == key else None

    def set(self, key: int, value: V) -> Self:
        """Bind one key, new or not."""
        where = max(bisect_right(self.firsts, key) - 1, 0)
        chunk = self.chunks[where] if self.chunks else ()
        offset = bisect_left(chunk, key, key=_key)
        is_new = offset == len(chunk) or chunk[offset][0] != key
        chunk = (*chunk[:offset], (key, value), *chunk[offset + (not is_new) :])
        # Appending keeps the full chunk and opens a new one; inserting splits in the middle.
        cut = len(chunk) // 2 if offset < _CHUNK else _CHUNK
        pieces = (chunk,) if len(chunk) <= _CHUNK else (chunk[:cut], chunk[cut:])
        return self._spliced(where, pieces, self.size + is_new)

    def discard(self, key: int) -> Self:
        """Drop one key, present or not."""
        where = bisect_right(self.firsts, key) - 1
        if where < 0:
            return self
        chunk = self.chunks[where]
        offset = bisect_left(chunk, key, key=_key)
        if offset == len(chunk) or chunk[offset][0] != key:
            return self
        rest = chunk[:offset] + chunk[offset + 1 :]
        return self._spliced(where, (rest,) if rest else (), self.size - 1)

    def discard_all(self, keys: Iterable[int]) -> Self:
        """Drop keys, present or not."""
        table = self
        for key in keys:
            table = table.discard(key)
        return table

    def extend(self, pairs: Iterable[tuple[int, V]]) -> Self:
        """Append pairs whose ascending keys exceed every key present."""
        added = tuple(pairs)
        last = self.chunks[-1] if self.chunks else ()
        joined = last + added
        pieces = tuple(joined[start : start + _CHUNK] for start in range(0, len(joined), _CHUNK))
        return self._spliced(max(len(self.chunks) - 1, 0), pieces, self.size + len(added))

    def pop_first(self, count: int) -> tuple[Self, tuple[V, ...]]:
        """Take up to `count` pairs off the front; returns their values in key order."""
        taken = tuple(islice(self.values(), count))
        left, num_chunks = count, 0
        while num_chunks < len(self.chunks) and len(self.chunks[num_chunks]) <= left:
            left -= len(self.chunks[num_chunks])
            num_chunks += 1
        chunks = self.chunks[num_chunks:]
        if chunks and left:
            chunks = (chunks[0][left:], *chunks[1:])
        firsts = tuple(chunk[0][0] for chunk in chunks[:1]) + self.firsts[num_chunks + 1 :]
        return type(self)(chunks, firsts, self.size - len(taken)), taken

    def _spliced(self, where: int, pieces: tuple[tuple[tuple[int, V], ...], ...], size: int) -> Self:
        chunks = self.chunks[:where] + pieces + self.chunks[where + 1 :]
        firsts = self.firsts[:where] + tuple(piece[0][0] for piece in pieces) + self.firsts[where + 1 :]
        return type(self)(chunks, firsts, size)
