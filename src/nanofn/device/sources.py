"""sources: from a path to a checkpoint's source, in either format."""

from pathlib import Path
from typing import Any

from nanofn.device.gguf_source import gguf_source
from nanofn.device.read_shards import read_shards
from nanofn.device.shards import INDEX, SINGLE, find_tensors, read_json
from nanofn.device.stored import DTYPES, Source
from nanofn.errors import CheckpointError


def open_source(path: str | Path) -> Source:
    """Find out what a checkpoint says and holds, without reading its weights.

    Args:
        path: A folder with config.json and safetensors, a GGUF file, or a folder whose only weights are one.

    Raises:
        UnsupportedModelError: A GGUF file holds what is not covered.
        CheckpointError: A file is missing or damaged.
    """
    if (gguf := find_gguf(path)) is not None:
        return gguf_source(gguf)
    folder = Path(path)
    config_json = read_config_json(folder)
    return Source(
        path=folder,
        config_json=config_json,
        generation_defaults=read_generation_defaults(folder),
        stored=find_tensors(folder),
        dtypes=frozenset(DTYPES),
        read=read_shards,
    )


def find_gguf(path: str | Path) -> Path | None:
    """Find the GGUF file that a path means; None where it means a folder with safetensors, or nothing.

    Raises:
        CheckpointError: The folder has several, and no safetensors.
    """
    path = Path(path)
    if _is_gguf(path):
        return path
    if not path.is_dir() or any((path / name).exists() for name in (SINGLE, INDEX)):
        return None
    found = sorted(filter(_is_gguf, path.iterdir()))
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:8])
        raise CheckpointError(f"{path} has {len(found)} GGUF files ({names}); give the path of one")
    return found[0] if found else None


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def read_config_json(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json.

    Raises:
        CheckpointError: There is no such folder or file, or it cannot be read.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder; give one that holds config.json and the weights, or a GGUF file"
        )
    return read_json(folder / "config.json")


def read_generation_defaults(folder: Path) -> dict[str, Any]:
    """Read a folder's generation_config.json, {} where there is none.

    Raises:
        CheckpointError: It cannot be read.
    """
    path = folder / "generation_config.json"
    return read_json(path) if path.exists() else {}
