"""Safetensors: which files of a folder hold which tensors, from their headers alone."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from nanofn.device.stored import StoredTensor
from nanofn.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

MAX_HEADER_BYTES = 100_000_000
"""The format allows no more. A length is a number in the file, so a wrong one must not decide how much is parsed."""

_AGAIN = "copy or download it again"
_LFS = b"version https://git-lfs"
_ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        CheckpointError: It is absent, or something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}; give a folder with a whole checkpoint, or a GGUF file"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); {_AGAIN}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}; it must hold a JSON object")
    return value


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """List a checkpoint's tensors by name. An index decides which files count; others beside them do not.

    Raises:
        CheckpointError: There are no weights, a shard is missing or damaged, or the index and its shards disagree.
    """
    if (folder / INDEX).exists():
        return _find_sharded(folder)
    if (folder / SINGLE).exists():
        return _read_header(folder / SINGLE)
    if broken := [name for name in (INDEX, SINGLE) if (folder / name).is_symlink()]:
        raise CheckpointError(
            f"{folder / broken[0]} is a link to {(folder / broken[0]).readlink()}, which is not there; {_AGAIN}"
        )
    found = sorted(path.name for path in folder.iterdir() if path.suffix in {".safetensors", ".bin", ".pth"})
    others = f"; it has {', '.join(found[:8])}, which nanofn does not load" if found else ""
    own = [name for name in found if name.endswith(".safetensors")]
    advice = (
        f"rename {own[0]} to {SINGLE} if it holds all weights"
        if len(own) == 1
        else "give a checkpoint in safetensors format, or a GGUF file"
    )
    raise CheckpointError(f"{folder} has neither {SINGLE} nor {INDEX}{others}; {advice}")


def _find_sharded(folder: Path) -> dict[str, StoredTensor]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from tensor to file; {_AGAIN}")
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise CheckpointError(f"{folder / INDEX} names {outside[0]!r}, which is not a file of its own folder; {_AGAIN}")
    if missing := [name for name in names if not (folder / name).exists()]:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(names)} shards that {INDEX} names: {', '.join(missing)}; "
            "download what is missing" + f", or remove the index if {SINGLE} is whole" * (folder / SINGLE).exists()
        )
    headers = {name: _read_header(folder / name) for name in names}
    _check_index(weight_map, headers)
    return {name: stored for header in headers.values() for name, stored in header.items()}


def _check_index(weight_map: Mapping[str, str], headers: Mapping[str, Mapping[str, StoredTensor]]) -> None:
    for name, file in weight_map.items():
        if name not in headers[file]:
            raise CheckpointError(f"{INDEX} says that {name} is in {file}, which lacks it; {_AGAIN}")
    homes: dict[str, str] = {}
    for file, header in headers.items():
        for name in header:
            if (other := homes.setdefault(name, file)) != file:
                raise CheckpointError(f"{name} is in both {other} and {file}; one file must hold it")


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """Parse a safetensors header and hold it against the file's size.

    The format: eight bytes with the header's length, the header in JSON, then the tensors without gaps.
    """
    if not path.is_file():  # a pipe would be waited for
        raise CheckpointError(f"{path} is not a file; {_AGAIN}")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        header_bytes = int.from_bytes(start, "little")
        if (start + file.read(len(_LFS) - 8)).startswith(_LFS):
            raise CheckpointError(f"{path} is a Git LFS pointer, not the weights; fetch them with `git lfs pull`")
        if len(start) < 8 or 8 + header_bytes > size:
            raise CheckpointError(
                f"{path} is truncated: it has {size} bytes, its header alone would end at {8 + header_bytes}; {_AGAIN}"
            )
        if header_bytes > MAX_HEADER_BYTES:
            raise CheckpointError(
                f"{path} has a damaged header: it would have {header_bytes} bytes, the format allows {MAX_HEADER_BYTES}; "
                f"{_AGAIN}"
            )
        file.seek(8)
        raw = file.read(header_bytes)
    data_start = 8 + header_bytes
    try:
        header = {name: entry for name, entry in json.loads(raw).items() if name != "__metadata__"}
        stored = {name: _stored_tensor(path, data_start, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header ({type(error).__name__}: {error}); {_AGAIN}") from error
    described = max((tensor.first_byte + tensor.num_bytes for tensor in stored.values()), default=data_start)
    if described != size:
        state = "truncated" if size < described else "damaged"
        raise CheckpointError(f"{path} is {state}: it has {size} bytes, its header describes {described}; {_AGAIN}")
    end = data_start
    for name, tensor in sorted(stored.items(), key=lambda item: (item[1].first_byte, item[1].num_bytes)):
        if tensor.first_byte != end:
            raise CheckpointError(
                f"{path} is damaged: {name} begins at byte {tensor.first_byte}, what lies before it ends at {end}; {_AGAIN}"
            )
        _check_bytes(path, name, tensor)
        end += tensor.num_bytes
    return stored


def _stored_tensor(path: Path, data_start: int, entry: Mapping[str, Any]) -> StoredTensor:
    first, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if any(type(value) is not int or value < 0 for value in (first, end, *shape)) or end < first:
        raise ValueError(f"shape {list(shape)} at {first} to {end}")
    return StoredTensor(
        file=path, dtype=str(entry["dtype"]), shape=shape, first_byte=data_start + first, num_bytes=end - first
    )


def _check_bytes(path: Path, name: str, tensor: StoredTensor) -> None:
    item_bytes = _ITEM_BYTES.get(tensor.dtype)
    if item_bytes is not None and tensor.num_bytes != item_bytes * prod(tensor.shape):
        raise CheckpointError(
            f"{path} is damaged: {name} has {tensor.num_bytes} bytes, {tensor.dtype} {list(tensor.shape)} takes "
            f"{item_bytes * prod(tensor.shape)}; {_AGAIN}"
        )
