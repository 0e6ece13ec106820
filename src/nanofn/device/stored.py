"""What a checkpoint holds on disk, and how it is read, whatever its format."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Element types that weights may be stored in, besides GGUF's, by safetensors' names."""


@frozen(kw_only=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        file: Where.
        dtype: By the format's own name, such as "BF16" or "Q4_K".
        shape: As stored, the axis that moves fastest last.
        first_byte: Where it begins in the file.
        num_bytes: How many it takes there.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    first_byte: int
    num_bytes: int


@frozen(eq=False)
class Piece:
    """Rows of a tensor as they are read; the next piece may reuse their memory.

    Attributes:
        name: The tensor's.
        first_row: Where they belong.
        rows: On the host, or on the device that was asked for.
        num_bytes: What reading them took from the file.
    """

    name: str
    first_row: int
    rows: Tensor
    num_bytes: int


@frozen(eq=False, kw_only=True)
class Source:
    """A checkpoint on disk. Names are those of transformers' checkpoints.

    Attributes:
        path: The folder, or the file.
        config_json: config.json, or what stands for it.
        generation_defaults: generation_config.json as it is, or {}.
        stored: The tensors by name.
        dtypes: The stored dtypes that can be read.
        read: Yields all rows of the named tensors, in the order of the files; takes the device where they go as well.
    """

    path: Path
    config_json: Mapping[str, Any]
    generation_defaults: Mapping[str, Any]
    stored: Mapping[str, StoredTensor]
    dtypes: frozenset[str]
    read: Callable[[Mapping[str, StoredTensor], torch.device], Iterator[Piece]]
