"""The one door to persistent maps: lookup only, because their iteration order is not a function of their content.

Equal maps iterate in different orders, so a core function that iterated one would not replay. Order lives in tuples,
`Chunked` and `SortedTable`; audits iterate through `sorted_items`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

from attrs import field, frozen

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)

try:
    from immutables import Map as _Inner

    def _without(items: Any, keys: Iterable[Any]) -> Any:
        changed = items.mutate()
        for key in keys:
            changed.pop(key, None)
        return changed.finish()

except ImportError:  # it has no wheels from Python 3.14 on: see ADR 0003
    from rpds import HashTrieMap as _Inner  # type: ignore[assignment]

    def _without(items: Any, keys: Iterable[Any]) -> Any:
        for key in keys:
            items = items.discard(key)
        return items


_EMPTY: Any = _Inner()


@frozen
class Map(Generic[K, V]):
    """An immutable mapping whose new versions share structure with the old one: O(log n) per change.

    Attributes:
        items: The map itself. Nothing outside this module touches it.
    """

    items: Any = field(default=_EMPTY, repr=lambda items: repr(dict(items)))

    @property
    def get(self) -> Callable[[K], V | None]:
        """Look up a key; None if absent. Values are never None. The map's own method: no call lies between."""
        found: Callable[[K], V | None] = self.items.get
        return found

    def set(self, key: K, value: V) -> Self:
        """Bind one key."""
        return type(self)(self.items.update({key: value}))

    def set_all(self, pairs: Mapping[K, V]) -> Self:
        """Bind many keys at once."""
        return type(self)(self.items.update(pairs))

    def discard(self, key: K) -> Self:
        """Drop a key, present or not."""
        return type(self)(_without(self.items, (key,)))

    def discard_all(self, keys: Iterable[K]) -> Self:
        """Drop keys, present or not."""
        return type(self)(_without(self.items, keys))

    def __contains__(self, key: K) -> bool:
        return key in self.items

    def __len__(self) -> int:
        return len(self.items)

    def __hash__(self) -> int:
        # Independent of iteration order, unlike a hash of the items in sequence.
        return hash(frozenset(self.items.items()))


def sorted_items(mapping: "Map[Any, Any]") -> Iterator[tuple[Any, Any]]:
    """Iterate in key order: for audits, never for a step."""
    return iter(sorted(mapping.items.items()))
