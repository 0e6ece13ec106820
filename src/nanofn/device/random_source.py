"""random_source: a checkpoint without weights, as if it had random ones. They are made where they are wanted."""

import os
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from nanofn.device.memory import free_bytes
from nanofn.device.sources import read_config_json, read_generation_defaults
from nanofn.device.stored import DTYPES, Piece, Source, StoredTensor
from nanofn.device.tensor_names import HEAD, all_parameters
from nanofn.errors import ConfigError
from nanofn.model.config import ModelConfig, from_dict

SEED = 0

LOGIT_STD = 2.0
"""Standard deviation of the logits. Softmax then spreads over about 20,000 of 151,936 ids."""

EMBEDDING, FINAL_NORM = "model.embed_tokens.weight", "model.norm.weight"


def random_source(path: str | Path, dtype: torch.dtype | None, device: torch.device | str) -> Source:
    """Find out what a checkpoint would hold by its config.json. Weights are always the same on one kind of device.

    Args:
        path: A folder with config.json. Weights that lie there are not looked at.
        dtype: What they are cast to; None is the config's own.
        device: Where they go.

    Raises:
        UnsupportedModelError: The architecture or a feature of it is not covered.
        CheckpointError: config.json is missing or damaged.
        ConfigError: The weights take more memory than the device has.
    """
    folder = Path(path)
    config_json = read_config_json(folder)
    config = from_dict(config_json)
    own = next((name for name, each in DTYPES.items() if str(each) == f"torch.{config.dtype}"), "BF16")
    item_bytes = (dtype or DTYPES[own]).itemsize
    _check_room(folder, _least_numbers(config) * item_bytes, device)
    shapes = {part.name: part.shape for parameter in all_parameters(config) for part in parameter.sources}
    _check_room(folder, sum(map(prod, shapes.values())) * item_bytes, device)
    stored = {
        name: StoredTensor(
            file=folder, dtype=own, shape=shape, first_byte=0, num_bytes=prod(shape) * DTYPES[own].itemsize
        )
        for name, shape in shapes.items()
    }
    return Source(
        path=folder,
        config_json=config_json,
        generation_defaults=read_generation_defaults(folder),
        stored=stored,
        dtypes=frozenset(DTYPES),
        read=_draw,
    )


def random_tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Draw one weight.

    A matrix keeps the root mean square of what passes it, so that activations neither grow nor die over many layers. The
    final norm has random signs: without them a tied head finds the latest token in the residual stream and leans to it. At
    temperature 0.6, 100 tokens of a tiny model then have 8 to 53 different ids; with the signs 85 to 93.

    Args:
        name: As in a checkpoint.
        shape: Of the whole tensor.
        dtype: Any float dtype.
        generator: Says the device too.

    Returns:
        [*shape] dtype.

    Mutates:
        generator.

    Source:
        Ours.
    """
    noise = torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)
    if name == FINAL_NORM:
        return noise.sign() + 0.1 * noise
    if len(shape) == 1:
        return noise.mul_(0.1).add_(0.0 if name.endswith(".bias") else 1.0)
    gain = LOGIT_STD if name in {EMBEDDING, HEAD} else 1.0
    return noise.mul_(gain / shape[1] ** 0.5)


def _draw(stored: Mapping[str, StoredTensor], device: torch.device) -> Iterator[Piece]:
    generator = torch.Generator(device).manual_seed(SEED)
    for name, tensor in stored.items():
        yield Piece(name, 0, random_tensor(name, tensor.shape, DTYPES[tensor.dtype], generator), tensor.num_bytes)


def _least_numbers(config: ModelConfig) -> int:
    """Bound the number of weights from below, before they are listed: Q and output of each layer, and the experts."""
    numbers = 2 * config.hidden_size * config.num_layers * config.num_heads * config.head_dim
    if (experts := config.experts) is not None:
        numbers += (
            3 * config.hidden_size * experts.intermediate_size
            * experts.num_experts * experts.num_mixtures(config.num_layers)
        )  # fmt: skip
    return numbers


def _check_room(folder: Path, num_bytes: int, device: torch.device | str) -> None:
    kind = torch.device(device)
    # On a CPU what is free now says little: most of the rest are files that give way.
    room = free_bytes(kind) if kind.type == "cuda" else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > room:
        raise ConfigError(
            f"weights as {folder / 'config.json'} describes them take at least {num_bytes / 2**30:.2f} GiB, {device} has "
            f"{room / 2**30:.2f} GiB; use a smaller dtype, another device, or a smaller config"
        )
