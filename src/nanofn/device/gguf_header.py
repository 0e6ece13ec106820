"""A GGUF file's header: metadata and the places of the tensors.

The package `gguf` has a reader too; it makes arrays of every string, and takes 38 s on a vocabulary of 152,000 tokens
where this takes 0.4 s (one core). Format: ggml's docs/gguf.md, versions 2 and 3.
"""

import mmap
import struct
from pathlib import Path
from typing import Any

from attrs import frozen

from nanofn.errors import CheckpointError, UnsupportedModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
MAX_ITEMS = 1 << 22
"""Of a list: many times the longest vocabulary. A value takes several times its bytes in the file, so a wrong count would."""


@frozen
class GgufTensor:
    """A tensor's entry.

    Attributes:
        name: By ggml's names.
        shape: The axis that moves fastest last, as in torch; the file has it first.
        type_id: ggml's number of the element type.
        first_byte: Where it begins in the file.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    first_byte: int


@frozen(eq=False)
class GgufHeader:
    """All of a file but the weights.

    Attributes:
        metadata: Values by key: numbers, strings, booleans, lists of those.
        tensors: In the file's order.
        num_bytes: Of the whole file.
    """

    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    num_bytes: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Read a header.

    Raises:
        UnsupportedModelError: It is of another version of the format.
        CheckpointError: It cannot be read, or is damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data))
    except UnsupportedModelError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path}; give a GGUF file, or a folder with a checkpoint") from None
    except (OSError, ValueError, struct.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{path} is no GGUF file, or damaged ({error}); copy or download it again") from error


class _Cursor:
    """Reads little-endian values one after the other; every read is held against the file's end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.place = 0
        self.num_bytes = len(data)

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > self.num_bytes - self.place:
            raise ValueError(f"{num_bytes} bytes are due at {self.place}, the file ends at {self.num_bytes}")
        start, self.place = self.place, self.place + num_bytes
        return self._data[start : self.place]

    def scalar(self, code: str) -> Any:
        return self.scalars(code, 1)[0]

    def scalars(self, code: str, number: int) -> tuple[Any, ...]:
        taken = self.take(number * struct.calcsize(code))
        return struct.unpack(f"<{number}{code}", taken)

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8")

    def value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY:
            element, number = self.scalar("I"), self.scalar("Q")
            if number > MAX_ITEMS:
                raise ValueError(f"a list of {number} values at {self.place}, at most {MAX_ITEMS} are read")
            if element in _SCALARS:
                return list(self.scalars(_SCALARS[element], number))
            return [self.value(element) for _ in range(number)]
        if type_id in _SCALARS:
            return self.scalar(_SCALARS[type_id])
        raise ValueError(f"value type {type_id} at {self.place}")


def _parse(cursor: _Cursor) -> GgufHeader:
    if (magic := cursor.take(4)) != b"GGUF":
        raise ValueError(f"it begins with {magic!r}")
    if (version := cursor.scalar("I")) not in _VERSIONS:
        raise UnsupportedModelError(f"GGUF version {version} is not supported; supported are 2 and 3, little-endian")
    num_tensors, num_keys = cursor.scalars("Q", 2)
    metadata = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    entries = []
    for _ in range(num_tensors):
        name = cursor.string()
        shape = cursor.scalars("Q", cursor.scalar("I"))[::-1]
        entries.append((name, shape, cursor.scalar("I"), cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = -(-cursor.place // alignment) * alignment
    tensors = tuple(GgufTensor(name, shape, type_id, start + offset) for name, shape, type_id, offset in entries)
    return GgufHeader(metadata, tensors, cursor.num_bytes)
