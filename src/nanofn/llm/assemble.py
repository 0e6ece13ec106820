"""assemble: from options to a loaded engine's parts, and the one line that says what was chosen."""

import logging
import platform
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from nanofn.config import Limits, blocks_for
from nanofn.device.checkpoint import Checkpoint, load_checkpoint
from nanofn.device.executor import EagerExecutor, Executor
from nanofn.device.fused_executor import FusedExecutor
from nanofn.device.kernel_support import obstacle
from nanofn.device.memory import CPU_SHARE, free_bytes, pool_size, room_on
from nanofn.device.precompile import NUM_THREADS, request_kernels
from nanofn.device.trial import working_bytes
from nanofn.errors import CheckpointError, ConfigError, ParameterError
from nanofn.event_log import LogWriter
from nanofn.llm.locate import embedded_model, load_tokenizer_of, locate
from nanofn.llm.options import EngineOptions
from nanofn.llm.quick_turns import quick_turns
from nanofn.model.kv_cache import block_bytes
from nanofn.model.prefill import Layer, compiled_layer, prefill_layer, wake_compiler
from nanofn.request import TokenId
from nanofn.sampling.params import SamplingParams, unbuilt_fields
from nanofn.text.tokenizer import Tokenizer
from nanofn_kernels._dispatch import compiled_in_background
from nanofn_kernels.work_list import MAX_ENTRIES

logger = logging.getLogger("nanofn")

SAID_BYTES = 50_000_000
"""How fast the weights came is said from here on."""

_FROM_GENERATION_CONFIG = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""What generation_config.json may set, and our name for it."""


@frozen(eq=False)
class Parts:
    """What an `LLM` is made of.

    Attributes:
        limits: The bounds.
        executor: Holds weights, tables and K/V.
        tokenizer: Text to ids and back.
        vocab_size: Rows of the embedding.
        eos_token_ids: By config, generation config and tokenizer together.
        default_params: Of a call that gives none.
        log: Where every event goes, if asked for.
        notes: What was chosen, one fact each, for the line on stderr.
    """

    limits: Limits
    executor: Executor
    tokenizer: Tokenizer
    vocab_size: int
    eos_token_ids: tuple[TokenId, ...]
    default_params: SamplingParams
    log: LogWriter | None
    notes: tuple[str, ...]


def assemble(options: EngineOptions) -> Parts:
    """Load a model and make room for its K/V.

    Raises:
        ConfigError: Something does not exist, is not supported, or does not fit.
    """
    is_dummy = options.load_format == "dummy"
    path = locate(options.model, options.revision, with_weights=not is_dummy)
    device = pick_device(options.device)
    with quick_turns(), ThreadPoolExecutor(1) as beside:
        if device.type == "cuda" and not options.enforce_eager:
            beside.submit(wake_compiler)
        with room_on(device, str(path), "free some, or use a narrower dtype or a smaller model"):
            dtype = pick_dtype(options.dtype, device)
            checkpoint = load_checkpoint(path, dtype=dtype, device=device, is_dummy=is_dummy)
        tokenizer = load_tokenizer_of(
            path if options.tokenizer is None else locate(options.tokenizer, with_weights=False)
        )
    default_params, left_out = read_generation_defaults(checkpoint.generation_defaults)
    why_plain = obstacle(checkpoint.config, device) if device.type == "cuda" else None
    is_fused = device.type == "cuda" and why_plain is None
    is_mixture = checkpoint.config.experts is not None
    # In fp32 torch's products by group read their bounds back, which no graph can hold.
    reads_back = is_mixture and checkpoint.params.embedding.dtype == torch.float32
    captures = is_fused and not options.enforce_eager and not reads_back
    # Most of a mixture is products by group, which a compiler does not touch.
    params = checkpoint.params
    kind = checkpoint.config, params.embedding.dtype, options.block_size
    layer = compiled_layer(kind) if captures and not is_mixture else prefill_layer
    with room_on(
        device,
        "the engine",
        "lower gpu_memory_utilization, max_num_seqs, max_num_batched_tokens or max_model_len",
    ):
        available = (
            _bytes_beside_steps(options, checkpoint, device, layer, captures=captures)
            if is_fused
            else _share_of_free_bytes(options, device)
        )
        limits = _limits(options, checkpoint, available)
        log = _open_log(options, limits)
        executor = (
            FusedExecutor(params, limits, device, depth=options.depth, layer=layer, captures=captures)
            if is_fused
            else EagerExecutor(params, limits, device)
        )
    eos = {*checkpoint.eos_token_ids, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])}
    parts = Parts(
        limits=limits,
        executor=executor,
        tokenizer=tokenizer,
        vocab_size=checkpoint.config.vocab_size,
        eos_token_ids=tuple(sorted(map(TokenId, eos))),
        default_params=default_params,
        log=log,
        notes=_notes(path, checkpoint, limits, device, why_plain, default_params, left_out, is_dummy=is_dummy),
    )
    sys.stderr.write(f"nanofn: {', '.join(parts.notes)}\n")
    return parts


def read_generation_defaults(defaults: Mapping[str, Any]) -> tuple[SamplingParams, tuple[str, ...]]:
    """Turn generation_config.json into parameters, as vLLM does: whatever it says of `do_sample`.

    Returns:
        The parameters, and the fields that it sets and that are not built yet: those are left out.

    Raises:
        CheckpointError: A value is out of its range.
    """
    given = {
        ours: defaults[theirs] for theirs, ours in _FROM_GENERATION_CONFIG.items() if defaults.get(theirs) is not None
    }
    try:
        left_out = unbuilt_fields(SamplingParams(**given))
    except ParameterError as error:
        raise CheckpointError(f"generation_config.json cannot be used: {error}. Correct it, or remove it") from error
    return SamplingParams(**{name: value for name, value in given.items() if name not in left_out}), left_out


def pick_device(name: str) -> torch.device:
    """Turn the option `device` into a device.

    Raises:
        ConfigError: It is "cuda", and there is none.
    """
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ConfigError('device is "cuda", but torch finds no GPU; use device="cpu" or "auto"')
    return torch.device("cuda", torch.cuda.current_device()) if has_gpu and name != "cpu" else torch.device("cpu")


def pick_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """Turn the option `dtype` into a dtype; None is the checkpoint's own."""
    if name == "auto":
        has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return None if has_bfloat16 else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _share_of_free_bytes(options: EngineOptions, device: torch.device) -> int:
    """What K/V may take where steps are plain torch and nobody has measured them: on a GPU half of its share is theirs."""
    return int(free_bytes(device) * (CPU_SHARE if device.type == "cpu" else options.gpu_memory_utilization / 2))


def _bytes_beside_steps(
    options: EngineOptions, checkpoint: Checkpoint, device: torch.device, layer: Layer, *, captures: bool
) -> int:
    """Measure what a GPU's share leaves to K/V beside weights, the largest steps and other processes."""
    if options.max_num_seqs > MAX_ENTRIES:
        raise ConfigError(
            f"max_num_seqs is {options.max_num_seqs}, the GPU's kernels take {MAX_ENTRIES} sequences a step; lower it to that"
        )
    longest = _checked_max_len(options, checkpoint)
    bounds = Limits(
        block_size=options.block_size,
        num_blocks=blocks_for(longest, options.block_size),
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=longest,
    )
    with compiled_in_background(NUM_THREADS, device) if captures else nullcontext():
        if captures:
            request_kernels(checkpoint.params, bounds, device)
        working = working_bytes(checkpoint.params, bounds, device, depth=options.depth, layer=layer, captures=captures)
    free, total = torch.cuda.mem_get_info(device)
    return max(0, int(total * options.gpu_memory_utilization) - (total - free) - working)


def _checked_max_len(options: EngineOptions, checkpoint: Checkpoint) -> int:
    model_max_len = checkpoint.config.max_position_embeddings
    if options.max_model_len is not None and options.max_model_len > model_max_len:
        raise ConfigError(
            f"max_model_len is {options.max_model_len}, the model is made for {model_max_len} tokens; lower it to that"
        )
    return options.max_model_len or model_max_len


def _limits(options: EngineOptions, checkpoint: Checkpoint, available_bytes: int) -> Limits:
    config = checkpoint.config
    model_max_len = config.max_position_embeddings
    _checked_max_len(options, checkpoint)
    size = pool_size(
        available_bytes=available_bytes,
        block_bytes=block_bytes(config, options.block_size, dtype=checkpoint.params.embedding.dtype),
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        model_max_len=model_max_len,
        max_model_len=options.max_model_len,
        num_kv_blocks=options.num_kv_blocks,
    )
    return Limits(
        block_size=options.block_size,
        num_blocks=size.num_blocks,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=size.max_model_len,
        enable_prefix_caching=options.enable_prefix_caching,
    )


def _open_log(options: EngineOptions, limits: Limits) -> LogWriter | None:
    if options.record is None:
        return None
    facts = {"depth": options.depth, "policy": repr(options.policy), "python": platform.python_version()}
    try:
        return LogWriter(options.record, limits, **facts)
    except OSError as error:
        raise ConfigError(f"record is {str(options.record)!r}, which cannot be written: {error}") from error


def _notes(
    path: Path,
    checkpoint: Checkpoint,
    limits: Limits,
    device: torch.device,
    why_plain: str | None,
    params: SamplingParams,
    left_out: tuple[str, ...],
    *,
    is_dummy: bool,
) -> tuple[str, ...]:
    dtype = checkpoint.params.embedding.dtype
    block = block_bytes(checkpoint.config, limits.block_size, dtype=dtype)
    where = "CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    notes = [
        "the embedded model" if path == embedded_model() else str(path),
        f"{str(dtype).removeprefix('torch.')} on {where}",
        f"sequences of up to {limits.max_model_len:,} tokens",
        f"{limits.num_blocks:,} K/V blocks of {limits.block_size} tokens ({limits.num_blocks * block / 2**30:.2f} GiB)",
    ]
    if why_plain is not None:
        notes.append(f"one operation after another: {why_plain}")
    if is_dummy:
        notes.append("random weights")
    elif checkpoint.num_bytes >= SAID_BYTES:
        rate = checkpoint.num_bytes / checkpoint.seconds / 1e9
        notes.append(f"{checkpoint.num_bytes / 1e9:.2f} GB read in {checkpoint.seconds:.1f} s ({rate:.2f} GB/s)")
    if checkpoint.generation_defaults:
        notes.append(f"by default temperature {params.temperature:g} and up to {params.max_tokens} tokens")
    if left_out:
        notes.append(f"{', '.join(left_out)} of generation_config.json left out, not built yet")
    return tuple(notes)
