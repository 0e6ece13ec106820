"""A stack whose growth does not copy what is already there: for block tables, digest chains and free blocks."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Generic, Self, TypeVar

from attrs import frozen

T = TypeVar("T")
_CHUNK = 64
"""A push copies at most this many entries; once in 64 it copies one pointer per 64 entries. Measured flat to 128 k."""


@frozen
class Chunked(Generic[T]):
    """An immutable stack of items, in full chunks of 64 and a shorter tail.

    The layout is a function of the content, so equal contents compare and hash equal.

    Attributes:
        full: Chunks of exactly 64 items.
        tail: Fewer than 64 items.
    """

    full: tuple[tuple[T, ...], ...] = ()
    tail: tuple[T, ...] = ()

    def __len__(self) -> int:
        return len(self.full) * _CHUNK + len(self.tail)

    def __iter__(self) -> Iterator[T]:
        return chain(chain.from_iterable(self.full), self.tail)

    def __getitem__(self, index: int) -> T:
        start = len(self.full) * _CHUNK
        if index >= start:
            return self.tail[index - start]
        if index < 0:
            index += start + len(self.tail)
            if index < 0:
                raise IndexError(index)
            return self[index]
        return self.full[index // _CHUNK][index % _CHUNK]

    @property
    def last(self) -> T | None:
        """The last item; None if there is none."""
        if self.tail:
            return self.tail[-1]
        return self.full[-1][-1] if self.full else None

    def push(self, item: T) -> Self:
        """Add one item at the end."""
        tail = (*self.tail, item)
        if len(tail) < _CHUNK:
            return type(self)(self.full, tail)
        return type(self)((*self.full, tail))

    def extend(self, items: Iterable[T]) -> Self:
        """Add items at the end, in order."""
        tail = (*self.tail, *items)
        cut = len(tail) - len(tail) % _CHUNK
        chunks = tuple(tail[start : start + _CHUNK] for start in range(0, cut, _CHUNK))
        return type(self)(self.full + chunks, tail[cut:])

    def pop(self, count: int) -> tuple[Self, tuple[T, ...]]:
        """Take up to `count` items off the end; the last one comes first in the result."""
        full, tail = self.full, self.tail
        num_chunks = 0
        while len(tail) < count and num_chunks < len(full):
            num_chunks += 1
            tail = full[-num_chunks] + tail
        if num_chunks:
            full = full[:-num_chunks]
        keep = max(len(tail) - count, 0)
        return type(self)(full, tail[:keep]), tail[keep:][::-1]
