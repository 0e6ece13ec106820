"""checkpoint: files become a config, a parameter tree and generation defaults, each tensor accounted for."""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from tqdm import tqdm

from nanofn.device.accounts import check_accounts, check_sizes
from nanofn.device.damage import typed_errors
from nanofn.device.random_source import random_source
from nanofn.device.sources import open_source
from nanofn.device.stored import DTYPES, Source
from nanofn.device.tensor_names import Parameter, layer_parameters, outer_parameters
from nanofn.errors import CheckpointWarning
from nanofn.model.config import ModelConfig, from_dict, token_ids_of
from nanofn.model.params import LayerParams, ModelParams
from nanofn.model.rope import make_rope

BAR_DELAY_S = 0.5
"""Shorter loads show no bar."""


@frozen(eq=False, kw_only=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        config: Sizes and switches.
        params: Weights, on their device.
        eos_token_ids: Ids that end a text by config.json or generation_config.json. The tokenizer may name another.
        generation_defaults: generation_config.json as it is, or {}.
        casts: (stored dtype by its format's name, number of tensors) for each dtype that is not that of `params`.
        num_bytes: Read from the files.
        seconds: What reading took.
    """

    config: ModelConfig
    params: ModelParams
    eos_token_ids: tuple[int, ...]
    generation_defaults: Mapping[str, Any]
    casts: tuple[tuple[str, int], ...]
    num_bytes: int
    seconds: float


def load_checkpoint(
    path: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    is_dummy: bool = False,
) -> Checkpoint:
    """Load a checkpoint. Threads read the files ahead, and each tensor is copied straight to its place.

    On a terminal a bar shows the progress of long loads.

    Args:
        path: A folder with config.json and weights in safetensors format, one file or sharded; or a GGUF file.
        dtype: What weights are cast to; None is the config's, or the embedding's where the config has none.
        device: Where they go.
        is_dummy: Random weights are made there instead of read; the folder needs config.json alone.

    Raises:
        ConfigError: Random weights take more memory than the device has.
        UnsupportedModelError: The architecture, a feature of it or a tensor's dtype is not covered.
        CheckpointError: A file is missing or damaged, or tensors are missing, surplus or misshapen: all are named.

    Warns:
        CheckpointWarning: Weights are NaN or infinite.
    """
    with typed_errors(path):
        source = random_source(path, dtype, device) if is_dummy else open_source(path)
        return _load(source, dtype, device)


def _load(source: Source, dtype: torch.dtype | None, device: torch.device | str) -> Checkpoint:
    config = from_dict(source.config_json)
    check_sizes(config, source)
    outer = outer_parameters(config)
    layers = [layer_parameters(config, layer) for layer in range(config.num_layers)]
    parameters = [parameter for group in (outer, *layers) for parameter in group]
    check_accounts(config, parameters, source)
    kind = dtype or getattr(torch, config.dtype or "", None) or DTYPES[source.stored[outer[0].sources[0].name].dtype]
    start = time.monotonic()
    tensors = [torch.empty(parameter.shape, dtype=kind, device=device) for parameter in parameters]
    num_bytes = _fill(parameters, tensors, source)
    if tensors[0].is_cuda:
        torch._C._host_emptyCache()  # noqa: SLF001  torch would keep pinned buffers as long as the process lives
    _warn_of_not_finite(parameters, tensors)
    seconds = time.monotonic() - start
    counts = Counter(source.stored[part.name].dtype for parameter in parameters for part in parameter.sources)
    eos = {
        *config.eos_token_ids,
        *token_ids_of(source.generation_defaults.get("eos_token_id"), "generation_config.json"),
    }
    return Checkpoint(
        config=config,
        params=_tree(config, (outer, *layers), tensors, device),
        eos_token_ids=tuple(sorted(eos)),
        generation_defaults=source.generation_defaults,
        casts=tuple((stored, count) for stored, count in counts.items() if DTYPES.get(stored) != kind),
        num_bytes=num_bytes,
        seconds=seconds,
    )


def _fill(parameters: Sequence[Parameter], tensors: Sequence[Tensor], source: Source) -> int:
    """Read every stored tensor to its rows; returns the bytes read."""
    places: dict[str, Tensor] = {}
    for parameter, tensor in zip(parameters, tensors, strict=True):
        rows = tensor.view(-1, *parameter.sources[0].shape[1:])
        first = 0
        for part in parameter.sources:
            places[part.name] = rows[first : first + part.shape[0]]
            first += part.shape[0]
    stored = {name: source.stored[name] for name in places}
    total = sum(tensor.num_bytes for tensor in stored.values())
    is_shown = sys.stderr is not None and sys.stderr.isatty()
    with tqdm(total=total, desc="Loading", unit="B", unit_scale=True, delay=BAR_DELAY_S, disable=not is_shown) as bar:
        for piece in source.read(stored, tensors[0].device):
            last = piece.first_row + piece.rows.shape[0]
            place, rows = places[piece.name][piece.first_row : last], piece.rows
            # A cast happens on the device, and costs the host no memory.
            place.copy_(rows if rows.dtype == place.dtype else rows.to(place.device))
            bar.update(piece.num_bytes)
    return total


def _warn_of_not_finite(parameters: Sequence[Parameter], tensors: Sequence[Tensor]) -> None:
    # The extremes take a quarter of the time of the copy, and no memory; on a GPU all are read at once.
    extremes = torch.stack([torch.stack(torch.aminmax(tensor)).to(torch.float32) for tensor in tensors]).tolist()
    found = [
        parameter.sources[0].name
        for parameter, pair in zip(parameters, extremes, strict=True)
        if not all(map(isfinite, pair))
    ]
    if found:
        warnings.warn(
            f"{len(found)} of {len(tensors)} weights have NaN or infinite numbers, {found[0]} first; texts that reach "
            'them fail. Copy or download the checkpoint again, or use dtype="float32" if it was cast to float16',
            CheckpointWarning,
            stacklevel=2,
        )


def _tree(
    config: ModelConfig,
    groups: Sequence[Sequence[Parameter]],
    tensors: Sequence[Tensor],
    device: torch.device | str,
) -> ModelParams:
    left = iter(tensors)
    outer, *layers = ({parameter.field: next(left) for parameter in group} for group in groups)
    outer.setdefault("head", outer["embedding"])
    return ModelParams(
        config=config,
        layers=tuple(LayerParams(**layer) for layer in layers),
        rope=make_rope(config, device),
        **outer,
    )
