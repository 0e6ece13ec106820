"""read_shards: tensors of safetensors files in long spans, which threads read ahead of whoever puts them in their places."""

import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from nanofn.device.stored import DTYPES, Piece, StoredTensor
from nanofn.errors import CheckpointError

SPAN_BYTES = 16 << 20
"""Read at once. Long enough that what a read costs besides its bytes does not count."""

MAX_READERS = 8
"""Threads. One copies some GB/s out of the page cache, a device takes several times that."""


@frozen
class Rows:
    """Neighbouring rows of a tensor.

    Attributes:
        name: The tensor's.
        first: Index of the first row.
        shape: Of the rows together.
        num_bytes: In the file.
    """

    name: str
    first: int
    shape: tuple[int, ...]
    num_bytes: int


@frozen
class Span:
    """A stretch of a file.

    Attributes:
        file: Where.
        dtype: Of all its numbers, by the format's name.
        first_byte: Where it begins in the file.
        rows: What lies in it, without gaps.
    """

    file: Path
    dtype: str
    first_byte: int
    rows: tuple[Rows, ...]

    @property
    def num_bytes(self) -> int:
        """How long it is."""
        return sum(rows.num_bytes for rows in self.rows)


def read_shards(stored: Mapping[str, StoredTensor], device: torch.device) -> Iterator[Piece]:
    """Read tensors in the order of the files.

    All buffers together are no larger than the largest file; for a GPU they are pinned, so that it fetches from them itself.

    Args:
        stored: The tensors by name.
        device: Where they go.

    Raises:
        CheckpointError: A file cannot be read, or ends early.
    """
    num_readers = min(MAX_READERS, os.cpu_count() or 1)
    num_buffers = num_readers + 1  # one is emptied while the others are filled
    file_bytes = Counter[Path]()
    for tensor in stored.values():
        file_bytes[tensor.file] += tensor.num_bytes
    # Pinned memory comes in powers of two: what a buffer is short of one would be taken all the same.
    share = _power_of_two(max(file_bytes.values(), default=0) // num_buffers)
    spans = list(spans_of(stored, min(SPAN_BYTES, share)))
    size = max((span.num_bytes for span in spans), default=0)
    left = iter(spans)
    with ThreadPoolExecutor(num_readers) as readers:
        ahead = deque[tuple[Span, Tensor, Future[None]]]()
        for _, span in zip(range(num_buffers), left, strict=False):
            buffer = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
            ahead.append((span, buffer, readers.submit(_fill, buffer, span)))
        while ahead:
            span, buffer, reading = ahead.popleft()
            reading.result()
            yield from _pieces(span, buffer)
            if (following := next(left, None)) is not None:
                ahead.append((following, buffer, readers.submit(_fill, buffer, following)))


def spans_of(stored: Mapping[str, StoredTensor], max_bytes: int) -> Iterator[Span]:
    """Cut tensors into spans, in the order of the files. A span has at most so many bytes, or is one row."""
    pending: list[Rows] = []
    start: StoredTensor | None = None
    first_byte = end = 0
    for name, tensor in sorted(stored.items(), key=lambda item: (item[1].file, item[1].first_byte)):
        row_bytes = tensor.num_bytes // tensor.shape[0]
        step = max(1, max_bytes // row_bytes)
        for first in range(0, tensor.shape[0], step):
            num_rows = min(step, tensor.shape[0] - first)
            rows = Rows(name, first, (num_rows, *tensor.shape[1:]), num_rows * row_bytes)
            place = tensor.first_byte + first * row_bytes
            goes_on = start is not None and (start.file, start.dtype, end) == (tensor.file, tensor.dtype, place)
            if start is not None and not (goes_on and end + rows.num_bytes - first_byte <= max_bytes):
                yield Span(start.file, start.dtype, first_byte, tuple(pending))
                start = None
            if start is None:
                pending, start, first_byte = [], tensor, place
            pending.append(rows)
            end = place + rows.num_bytes
    if start is not None:
        yield Span(start.file, start.dtype, first_byte, tuple(pending))


def _power_of_two(number: int) -> int:
    """Round down; 0 stays."""
    return 1 << number.bit_length() >> 1


def _fill(buffer: Tensor, span: Span) -> None:
    """Read a span to a buffer's begin."""
    try:
        with span.file.open("rb", buffering=0) as file:
            file.seek(span.first_byte)
            left = buffer.numpy().data[: span.num_bytes]
            while left:
                if not (count := file.readinto(left)):
                    raise EOFError("it ends there")  # noqa: TRY301  handled like what the system refuses
                left = left[count:]
    except (OSError, EOFError) as error:
        raise CheckpointError(
            f"{span.file} cannot be read at {span.rows[0].name} ({error}); copy or download it again"
        ) from error


def _pieces(span: Span, buffer: Tensor) -> Iterator[Piece]:
    first = 0
    for rows in span.rows:
        numbers = buffer[first : first + rows.num_bytes].view(DTYPES[span.dtype])
        yield Piece(rows.name, rows.first, numbers.view(rows.shape), rows.num_bytes)
        first += rows.num_bytes
