"""gguf_source: a GGUF file as a checkpoint, its weights dequantised as they are read."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nanofn.device.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from nanofn.device.gguf_names import config_json_of, transformers_name
from nanofn.device.stored import Piece, Source, StoredTensor
from nanofn.errors import CheckpointError, ConfigError

PIECE_NUMBERS = 1 << 17
"""Numbers that are dequantised at a time, half a MiB in fp32: two to three times as fast as whole tensors of 12 million."""


def gguf_source(path: Path) -> Source:
    """Open a GGUF file. Its weights are rounded to fp32 first, whatever they are cast to.

    Raises:
        ConfigError: The package `gguf` is missing.
        UnsupportedModelError: The architecture or a feature of it is not covered.
        CheckpointError: The file is damaged.
    """
    gguf, header = _package(), read_gguf_header(path)
    config_json = config_json_of(header, path)
    of_type = {kind.value: kind for kind in gguf.GGMLQuantizationType}
    stored = {transformers_name(tensor.name): _stored(path, tensor, header, of_type, gguf) for tensor in header.tensors}
    _refuse_overlaps(path, stored, len(header.tensors))
    interleaved = _interleaved_heads(config_json)

    def read(wanted: Mapping[str, StoredTensor], _device: torch.device) -> Iterator[Piece]:
        types = {tensor.dtype: gguf.GGMLQuantizationType[tensor.dtype] for tensor in wanted.values()}
        for name, tensor in sorted(wanted.items(), key=lambda item: item[1].first_byte):
            num_heads = next((number for ending, number in interleaved.items() if name.endswith(ending)), None)
            for first, some in _pieces(_raw_rows(tensor, num_heads), tensor):
                # As one row: `gguf` goes through many rows sixteen at a time.
                numbers = np.array(gguf.dequantize(some.reshape(1, -1), types[tensor.dtype]), dtype=np.float32)
                yield Piece(name, first, torch.from_numpy(numbers).view(len(some), *tensor.shape[1:]), some.nbytes)

    return Source(
        path=path,
        config_json=config_json,
        generation_defaults={},
        stored=stored,
        dtypes=frozenset(kind.name for kind in gguf.GGMLQuantizationType if _can_dequantize(gguf, kind)),
        read=read,
    )


def _package() -> ModuleType:
    try:
        import gguf  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigError("a GGUF file needs the package `gguf`: python -m pip install gguf") from error
    package: ModuleType = gguf
    return package


def _can_dequantize(gguf: ModuleType, kind: Any) -> bool:
    num_numbers, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        numbers = gguf.dequantize(np.zeros((1, num_bytes), dtype=np.uint8), kind)
    except (NotImplementedError, TypeError, ValueError):
        return False
    return numbers.shape == (1, num_numbers)


def _stored(
    path: Path, tensor: GgufTensor, header: GgufHeader, of_type: Mapping[int, Any], gguf: ModuleType
) -> StoredTensor:
    if tensor.type_id not in of_type:
        raise CheckpointError(
            f"{path}: {tensor.name} has the unknown type {tensor.type_id}; download it again, or update gguf"
        )
    kind = of_type[tensor.type_id]
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    numbers = prod(tensor.shape)
    num_bytes = numbers // per_block * block_bytes
    if not tensor.shape or tensor.shape[-1] % per_block or tensor.first_byte + num_bytes > header.num_bytes:
        raise CheckpointError(
            f"{path} is damaged: {tensor.name} is {kind.name} {list(tensor.shape)} at {tensor.first_byte}, the file ends "
            f"at {header.num_bytes}; copy or download it again"
        )
    return StoredTensor(
        file=path, dtype=kind.name, shape=tensor.shape, first_byte=tensor.first_byte, num_bytes=num_bytes
    )


def _refuse_overlaps(path: Path, stored: Mapping[str, StoredTensor], num_tensors: int) -> None:
    """Raise where two tensors have the same name, or the same bytes."""
    if len(stored) != num_tensors:
        raise CheckpointError(f"{path} is damaged: some of its {num_tensors} tensors share a name; download it again")
    in_order = sorted(stored.items(), key=lambda item: item[1].first_byte)
    for (name, one), (other_name, other) in pairwise(in_order):
        if other.first_byte < one.first_byte + one.num_bytes:
            raise CheckpointError(
                f"{path} is damaged: {other_name} begins at byte {other.first_byte}, before {name} ends at "
                f"{one.first_byte + one.num_bytes}; copy or download it again"
            )


def _interleaved_heads(config_json: Mapping[str, Any]) -> dict[str, int]:
    """Name the tensors whose heads have neighbours paired for rotation instead of halves: llama's queries and keys."""
    if config_json["model_type"] != "llama":
        return {}
    heads = {"q": config_json["num_attention_heads"], "k": config_json["num_key_value_heads"]}
    return {f"{x}_proj.{kind}": number for x, number in heads.items() for kind in ("weight", "bias")}


def _raw_rows(tensor: StoredTensor, num_heads: int | None) -> NDArray[np.uint8]:
    """View a tensor's bytes by rows; blocks of quantised numbers lie along a row, so rows may change places."""
    raw = np.memmap(tensor.file, dtype=np.uint8, mode="r", offset=tensor.first_byte, shape=(tensor.num_bytes,))
    rows = raw.reshape(tensor.shape[0], -1)
    if num_heads is None:
        return rows
    return rows.reshape(num_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _pieces(rows: NDArray[np.uint8], tensor: StoredTensor) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    step = max(1, PIECE_NUMBERS // max(1, prod(tensor.shape[1:])))
    for first in range(0, len(rows), step):
        yield first, rows[first : first + step]
