"""What a model is, and what fits on this machine, from its files' headers alone."""

import contextlib
from collections import Counter
from math import prod
from pathlib import Path
from typing import cast

import torch
from attrs import evolve, frozen

from nanofn.device.accounts import check_accounts, check_sizes
from nanofn.device.damage import typed_errors
from nanofn.device.memory import CPU_SHARE, PoolSize, free_bytes, pool_size
from nanofn.device.sources import open_source
from nanofn.device.stored import DTYPES, Source
from nanofn.device.tensor_names import all_parameters, outer_parameters
from nanofn.errors import ConfigError, UnsupportedModelError
from nanofn.llm.assemble import pick_dtype
from nanofn.llm.locate import tokenizer_obstacle
from nanofn.llm.options import EngineOptions
from nanofn.model.config import DtypeName, ModelConfig, from_dict
from nanofn.model.kv_cache import block_bytes


@frozen(kw_only=True)
class ModelFacts:
    """What can be said without the weights.

    Attributes:
        path: Folder or file.
        model_type: As the checkpoint says it.
        config: None where the model is not supported. Its dtype is the embedding's where the checkpoint declares none.
        refusal: Why it is not, or None.
        tokenizer_obstacle: Why it has no tokenizer that can be loaded, or None.
        num_parameters: Numbers in all stored tensors.
        dtypes: (stored dtype, tensors, numbers), the most numbers first.
        file_bytes: Of all stored tensors.
    """

    path: Path
    model_type: str
    config: ModelConfig | None
    refusal: str | None
    tokenizer_obstacle: str | None
    num_parameters: int
    dtypes: tuple[tuple[str, int, int], ...]
    file_bytes: int


@frozen(kw_only=True)
class Fit:
    """What one machine has room for.

    Attributes:
        dtype: Of weights and K/V.
        free_bytes: Memory that could be allocated.
        weight_bytes: Of the model there.
        pool: The K/V pool of an engine with default options; None where not even a block fits beside the weights.
    """

    dtype: torch.dtype
    free_bytes: int
    weight_bytes: int
    pool: PoolSize | None


def inspect_model(path: Path) -> ModelFacts:
    """Look at a checkpoint's files.

    Raises:
        CheckpointError: A file is missing or damaged, or the files do not match each other.
    """
    with typed_errors(path):
        return _facts(open_source(path))


def _facts(source: Source) -> ModelFacts:
    counts: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for tensor in source.stored.values():
        counts[tensor.dtype] += 1
        numbers[tensor.dtype] += prod(tensor.shape)
    config, refusal = _read(source)
    return ModelFacts(
        path=source.path,
        model_type=str(source.config_json.get("model_type")),
        config=config,
        refusal=refusal,
        tokenizer_obstacle=tokenizer_obstacle(source.path),
        num_parameters=numbers.total(),
        dtypes=tuple((dtype, counts[dtype], number) for dtype, number in numbers.most_common()),
        file_bytes=sum(tensor.num_bytes for tensor in source.stored.values()),
    )


def _read(source: Source) -> tuple[ModelConfig | None, str | None]:
    try:
        config = from_dict(source.config_json)
        check_sizes(config, source)
        check_accounts(config, all_parameters(config), source)
    except UnsupportedModelError as error:
        return None, str(error)
    if config.dtype is None:
        embedding = source.stored[outer_parameters(config)[0].sources[0].name]
        config = evolve(config, dtype=cast("DtypeName", str(DTYPES[embedding.dtype]).removeprefix("torch.")))
    return config, None


def fit(config: ModelConfig, device: torch.device, options: EngineOptions) -> Fit:
    """Work out what an engine with these options would have room for.

    On a GPU the engine measures its largest steps first and leaves them their memory: there this is an upper bound.

    Args:
        config: Of a supported model.
        device: Where it would run.
        options: Limits and dtype; what they name as the model does not count.
    """
    own: torch.dtype = getattr(torch, config.dtype or "bfloat16")
    kind = pick_dtype(options.dtype, device) or own
    free, weights = free_bytes(device), _num_weights(config) * kind.itemsize
    share = CPU_SHARE if device.type == "cpu" else options.gpu_memory_utilization
    pool = None
    with contextlib.suppress(ConfigError):  # not a block fits
        pool = pool_size(
            available_bytes=max(0, int((free - weights) * share)),
            block_bytes=block_bytes(config, options.block_size, dtype=kind),
            block_size=options.block_size,
            max_num_seqs=options.max_num_seqs,
            model_max_len=config.max_position_embeddings,
            max_model_len=options.max_model_len,
            num_kv_blocks=options.num_kv_blocks,
        )
    return Fit(dtype=kind, free_bytes=free, weight_bytes=weights, pool=pool)


def _num_weights(config: ModelConfig) -> int:
    return sum(prod(parameter.shape) for parameter in all_parameters(config))
