"""checkpoint: a folder becomes a config, a parameter tree and its generation defaults, each tensor accounted for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nanofn.device.shards import StoredTensor, find_tensors, read_json
from nanofn.device.tensor_names import HEAD, Parameter, is_known_surplus, layer_parameters, outer_parameters
from nanofn.errors import CheckpointError, NanofnError, UnsupportedModelError
from nanofn.model.config import ModelConfig, from_dict, token_ids_of
from nanofn.model.params import LayerParams, ModelParams
from nanofn.model.rope import make_rope

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Element types that weights may be stored in."""

_MAX_NAMED = 8


@frozen(eq=False)
class Checkpoint:
    """A loaded folder.

    Attributes:
        config: Sizes and switches.
        params: Weights, on their device.
        eos_token_ids: Ids that end a text by config.json or generation_config.json. The tokenizer may name another.
        generation_defaults: generation_config.json as it is, or {}.
        casts: (stored dtype, number of tensors) for each dtype that was cast to that of `params`.
    """

    config: ModelConfig
    params: ModelParams
    eos_token_ids: tuple[int, ...]
    generation_defaults: dict[str, Any]
    casts: tuple[tuple[torch.dtype, int], ...]


def load_checkpoint(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Checkpoint:
    """Load a checkpoint. Files are mapped into memory, and each tensor is copied straight to its place.

    Args:
        folder: With config.json and weights in safetensors format, one file or sharded.
        dtype: What weights are cast to; None is the config's, or the embedding's where the config has none.
        device: Where they go.

    Raises:
        UnsupportedModelError: The architecture, a feature of it or a tensor's dtype is not covered.
        CheckpointError: A file is missing or damaged, or tensors are missing, surplus or misshapen: all are named.
    """
    try:
        return _load(Path(folder), dtype, device)
    except NanofnError:
        raise
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder} holds what no checkpoint does ({type(error).__name__}: {error})") from error


def _load(folder: Path, dtype: torch.dtype | None, device: torch.device | str) -> Checkpoint:
    config = read_config(folder)
    defaults = read_generation_defaults(folder)
    stored = find_tensors(folder)
    layers = tuple(layer_parameters(config, layer) for layer in range(config.num_layers))
    outer = outer_parameters(config)
    parameters = [parameter for group in (outer, *layers) for parameter in group]
    _check_accounts(config, parameters, stored, folder)
    kind = dtype or getattr(torch, config.dtype or "", None) or DTYPES[stored[outer[0].sources[0].name].dtype]
    with ExitStack() as stack:
        reader = _Reader(stored, stack)
        outer_tensors = {parameter.field: _assemble(parameter, reader, kind, device) for parameter in outer}
        layer_params = tuple(
            LayerParams(**{each.field: _assemble(each, reader, kind, device) for each in layer}) for layer in layers
        )
    outer_tensors.setdefault("head", outer_tensors["embedding"])
    counts = Counter(DTYPES[stored[source.name].dtype] for parameter in parameters for source in parameter.sources)
    eos = {*config.eos_token_ids, *token_ids_of(defaults.get("eos_token_id"), "generation_config.json")}
    return Checkpoint(
        config=config,
        params=ModelParams(
            config=config,
            layers=layer_params,
            rope=make_rope(config, device),
            **outer_tensors,
        ),
        eos_token_ids=tuple(sorted(eos)),
        generation_defaults=defaults,
        casts=tuple((found, count) for found, count in counts.items() if found != kind),
    )


def read_config(folder: str | Path) -> ModelConfig:
    """Read a folder's config.json.

    Raises:
        UnsupportedModelError: It asks for what is not covered.
        CheckpointError: There is no such folder or file, or it cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give one that holds config.json and the weights")
    return from_dict(read_json(folder / "config.json"))


def read_generation_defaults(folder: str | Path) -> dict[str, Any]:
    """Read a folder's generation_config.json, {} where there is none.

    Raises:
        CheckpointError: It cannot be read.
    """
    path = Path(folder) / "generation_config.json"
    return read_json(path) if path.exists() else {}


class _Reader:
    """Opens each file once, and reads tensors without copying them."""

    def __init__(self, stored: Mapping[str, StoredTensor], stack: ExitStack) -> None:
        self._stored = stored
        self._stack = stack
        self._open: dict[Path, Any] = {}

    def read(self, name: str) -> Tensor:
        path = self._stored[name].file
        try:
            if path not in self._open:
                self._open[path] = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
            tensor: Tensor = self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} cannot be read at {name} ({error}); copy or download it again") from error
        return tensor


def _assemble(parameter: Parameter, reader: _Reader, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    tensor = torch.empty(parameter.shape, dtype=dtype, device=device)
    row = 0
    for source in parameter.sources:
        tensor[row : row + source.shape[0]].copy_(reader.read(source.name))
        row += source.shape[0]
    return tensor


def _check_accounts(
    config: ModelConfig, parameters: Sequence[Parameter], stored: Mapping[str, StoredTensor], folder: Path
) -> None:
    """Raise unless the stored tensors are exactly those that the config asks for."""
    wanted = {source.name: source.shape for parameter in parameters for source in parameter.sources}
    missing = [name for name in wanted if name not in stored]
    surplus = [name for name in stored if name not in wanted and not is_known_surplus(config, name)]
    misshapen = [
        f"{name} has {list(stored[name].shape)} and needs {list(shape)}"
        for name, shape in wanted.items()
        if name in stored and stored[name].shape != shape
    ]
    found = [
        f"{kind}: {', '.join(names[:_MAX_NAMED])}"
        + (f" and {len(names) - _MAX_NAMED} more" * (len(names) > _MAX_NAMED))
        for kind, names in (
            (f"missing {len(missing)} of {len(wanted)} tensors", missing),
            (f"surplus {len(surplus)}", surplus),
            (f"misshapen {len(misshapen)}", misshapen),
        )
        if names
    ]
    if found:
        advice = (
            "set tie_word_embeddings to true in config.json if the head is the embedding"
            if missing == [HEAD]
            else "config.json and the weights must come from the same checkpoint, complete"
        )
        raise CheckpointError(f"the weights in {folder} do not match its config.json: {'; '.join(found)}; {advice}")
    for name in wanted:
        if stored[name].dtype not in DTYPES:
            raise UnsupportedModelError(
                f"{name} is stored as {stored[name].dtype}, which is not supported; supported are {', '.join(DTYPES)}"
            )
