"""reads: which facts a policy looks at, found by watching it look.

A fact that a policy never reads need not tell states apart, and a counter that it reads must.
"""

from collections.abc import Iterator
from typing import Any, cast

from nanofn.state.view import View

_INSIDE = ("SequenceViews", "SequenceView")


class _Watched:
    """Stands for a view or a part of it, and notes the names of what is read."""

    def __init__(self, inner: Any, names: set[str]) -> None:
        self._inner = inner
        self._names = names

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        found = getattr(self._inner, name)
        return self._get if name == "get" else _watched(found, self._names)

    def _get(self, sequence_id: Any) -> Any:
        return _watched(self._inner.get(sequence_id), self._names)

    def __getitem__(self, index: Any) -> Any:
        found = self._inner[index]
        if isinstance(found, tuple):
            return tuple([_watched(each, self._names) for each in found])
        return _watched(found, self._names)

    def __iter__(self) -> Iterator[Any]:
        return (_watched(each, self._names) for each in self._inner)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(list(self))

    def __len__(self) -> int:
        return len(self._inner)

    def __bool__(self) -> bool:
        return bool(self._inner)


def _watched(value: Any, names: set[str]) -> Any:
    return _Watched(value, names) if type(value).__name__ in _INSIDE else value


def watched(view: View, names: set[str]) -> View:
    """Wrap a view: what is read of it, or of a sequence in it, is added to `names`."""
    return cast(View, _Watched(view, names))
