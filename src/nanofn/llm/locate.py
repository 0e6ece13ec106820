"""locate: where a model lies on this machine, and the tokenizer that belongs to it."""

from importlib.resources import files
from pathlib import Path

from nanofn.device.gguf_header import read_gguf_header
from nanofn.device.hub import fetch_from_hub, is_hub_name
from nanofn.device.sources import find_gguf
from nanofn.errors import ConfigError, UnsupportedModelError
from nanofn.text.gguf_tokenizer import gguf_tokenizer, refuse_unknown_tokenizer
from nanofn.text.tokenizer import Tokenizer, load_tokenizer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""A folder without any of them has no tokenizer."""


def embedded_model() -> Path:
    """Find the model that comes with nanofn."""
    return Path(str(files("nanofn.embedded") / "model"))


def locate(model: str | Path | None, revision: str | None = None, *, with_weights: bool = True) -> Path:
    """Find a model's folder or file; a name on the hub is downloaded, or found in its cache.

    Args:
        model: A path, `owner/name` on the hub where there is no such path, or None for the embedded model.
        revision: Of a name on the hub.
        with_weights: Whether those are downloaded too.

    Raises:
        ConfigError: The hub does not give it, or `revision` is given for a path.
    """
    if model is not None and not Path(model).exists() and is_hub_name(str(model)):
        return fetch_from_hub(str(model), revision, with_weights=with_weights)
    if revision is not None:
        raise ConfigError(f"revision is {revision!r}, and {model} is no name on the hub; leave it out")
    return embedded_model() if model is None else Path(model)


def load_tokenizer_of(path: Path) -> Tokenizer:
    """Load the tokenizer of a folder, or rebuild that of a GGUF file.

    Raises:
        CheckpointError: There is none, or it cannot be read.
        UnsupportedModelError: A GGUF file has one of a kind that is not covered.
    """
    gguf = find_gguf(path)
    return load_tokenizer(path) if gguf is None else gguf_tokenizer(read_gguf_header(gguf).metadata)


def tokenizer_obstacle(path: Path) -> str | None:
    """Say why there is no tokenizer to load, as far as names and headers tell; None where there may be one.

    Raises:
        CheckpointError: A GGUF file cannot be read.
    """
    if (gguf := find_gguf(path)) is not None:
        try:
            refuse_unknown_tokenizer(read_gguf_header(gguf).metadata)
        except UnsupportedModelError as error:
            return str(error)
        return None
    if any((path / name).exists() for name in TOKENIZER_FILES):
        return None
    return f"{path} has none of {', '.join(TOKENIZER_FILES)}. Pass tokenizer=FOLDER"
