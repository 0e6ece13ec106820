"""Engine options: names, defaults, and what is wrong with a value."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypedDict

from attrs import fields, frozen

from nanofn.errors import ConfigError
from nanofn.policy import fcfs
from nanofn.state.decision import Policy

OURS = {
    "kvcache_block_size": "block_size",
    "num_kvcache_blocks": "num_kv_blocks",
    "num_gpu_blocks_override": "num_kv_blocks",
    "max_model_length": "max_model_len",
    "max_seq_len": "max_model_len",
    "max_batch_size": "max_num_seqs",
    "tp": "tensor_parallel_size",
    "scheduling_policy": "policy",
}
"""Names that other engines use, and ours."""

UNNEEDED = {
    "trust_remote_code": "nanofn never runs code from a checkpoint",
    "enable_chunked_prefill": "prompts are always cut where the token budget ends",
    "swap_space": "preempted sequences are recomputed, not swapped",
    "disable_log_stats": "nothing is logged unless you set up the logger 'nanofn'",
    "quantization": "quantised checkpoints are not supported, but for GGUF files, whose weights are unpacked at loading",
    "kv_cache_dtype": "K/V have the weights' dtype",
}
"""Names that other engines use and we have no use for, with the reason."""


class OptionNames(TypedDict, total=False):
    """The keywords of `LLM`, for editors and type checkers. A test holds it equal to `EngineOptions`."""

    tokenizer: str | Path | None
    revision: str | None
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    device: Literal["auto", "cpu", "cuda"]
    load_format: Literal["auto", "dummy"]
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_kv_blocks: int | None
    gpu_memory_utilization: float
    enable_prefix_caching: bool
    enforce_eager: bool
    seed: int | None
    depth: int
    policy: Policy[Any]
    record: str | Path | None
    tensor_parallel_size: int
    deterministic: bool


_DTYPES = ("auto", "float32", "bfloat16", "float16")
_DEVICES = ("auto", "cpu", "cuda")
_LOAD_FORMATS = ("auto", "dummy")


@frozen(kw_only=True)
class EngineOptions:
    """All options of `LLM`; see there for their meaning."""

    model: str | Path | None = None
    tokenizer: str | Path | None = None
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    load_format: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 16384
    block_size: int = 64
    num_kv_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    seed: int | None = None
    depth: int = 2
    policy: Policy[Any] = fcfs
    record: str | Path | None = None
    tensor_parallel_size: int = 1
    deterministic: bool = False

    def __attrs_post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "depth"):
            _require_count(name, getattr(self, name), 1)
        for name, least in (("max_model_len", 2), ("num_kv_blocks", 1)):
            if getattr(self, name) is not None:
                _require_count(name, getattr(self, name), least)
        _require_choice("dtype", self.dtype, _DTYPES)
        _require_choice("device", self.device, _DEVICES)
        _require_choice("load_format", self.load_format, _LOAD_FORMATS)
        _require_type("revision", self.revision, (str, type(None)), "a branch, tag or commit, or None")
        for name in ("model", "tokenizer", "record"):
            _require_type(name, getattr(self, name), (str, Path, type(None)), "a path, or None")
        for name in ("enable_prefix_caching", "enforce_eager", "deterministic"):
            _require_type(name, getattr(self, name), bool, "True or False")
        if not (self.seed is None or (type(self.seed) is int)):
            raise ConfigError(f"seed is {self.seed!r}; it must be an integer, or None")
        if type(self.gpu_memory_utilization) not in (int, float) or not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization!r}; it must be above 0 and at most 1"
            )
        if not callable(getattr(self.policy, "decide", None)) or not hasattr(self.policy, "init"):
            raise ConfigError(f"policy is {self.policy!r}; it needs `init` and `decide`, like nanofn.policy.fcfs")
        for name, default in (
            ("tensor_parallel_size", 1),
            ("deterministic", False),
        ):
            if getattr(self, name) != default:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not built yet; leave it at {default!r}")


def read_options(given: dict[str, Any]) -> EngineOptions:
    """Check option names, then values.

    Raises:
        TypeError: A name is unknown; another engine's name is answered with ours.
        ConfigError: A value is wrong.
    """
    known = [attribute.name for attribute in fields(EngineOptions)]
    for name in given:
        if name not in known:
            raise TypeError(f"LLM has no option {name!r}{_advice(name, known)}")
    return EngineOptions(**given)


def _advice(name: str, known: list[str]) -> str:
    if name in OURS:
        return f"; here it is {OURS[name]}"
    if name in UNNEEDED:
        return f": {UNNEEDED[name]}"
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; it has {', '.join(known)}"


def _require_count(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be an integer of at least {least}")


def _require_type(name: str, value: Any, types: Any, expected: str) -> None:
    if not isinstance(value, types):
        raise ConfigError(f"{name} is {value!r}; it must be {expected}")


def _require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
