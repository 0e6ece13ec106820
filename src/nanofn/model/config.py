"""What the decoder needs to know of a checkpoint's `config.json`, and the refusal of what it does not cover."""

from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from nanofn.errors import CheckpointError, UnsupportedModelError
from nanofn.model.config_values import count, positive
from nanofn.model.experts_config import ExpertsConfig, read_experts
from nanofn.model.rope_scaling import RopeScaling, read_rope

DtypeName = Literal["float32", "bfloat16", "float16"]
"""Element types that weights may have."""

_DTYPE_NAMES = ("float32", "bfloat16", "float16")


@frozen
class Family:
    """What a `model_type` implies where `config.json` does not say.

    Attributes:
        has_qk_norm: Queries and keys are normalised per head before rotation.
        has_qkv_bias: The Q, K and V projections have biases whatever `attention_bias` says.
        reads_attention_bias: `attention_bias` adds biases to the Q, K, V and output projections.
        always_slides: `sliding_window` is in use unless it is null; elsewhere `use_sliding_window` decides.
        head_dim: Used where `head_dim` is absent; None means hidden_size / num_attention_heads.
        has_experts: Some layers are mixtures of experts.
        eos_token_ids: Used where `eos_token_id` is absent.
    """

    has_qk_norm: bool = False
    has_qkv_bias: bool = False
    reads_attention_bias: bool = False
    always_slides: bool = False
    head_dim: int | None = None
    has_experts: bool = False
    eos_token_ids: tuple[int, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "llama": Family(reads_attention_bias=True, eos_token_ids=(2,)),
    "mistral": Family(always_slides=True, eos_token_ids=(2,)),
    "qwen2": Family(has_qkv_bias=True),
    "qwen3": Family(has_qk_norm=True, reads_attention_bias=True, head_dim=128),
    "qwen3_moe": Family(has_qk_norm=True, reads_attention_bias=True, has_experts=True),
}
"""The supported values of `model_type`. Defaults are those of transformers' config classes."""

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""What a checkpoint of each kind names as its architecture, if it names one."""


@frozen(kw_only=True)
class ModelConfig:
    """A decoder's sizes and switches.

    Attributes:
        model_type: Key of `FAMILIES`.
        vocab_size: Rows of the embedding, padding rows included.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated unit.
        num_layers: Decoder layers.
        num_heads: Query heads, a multiple of `num_kv_heads`.
        num_kv_heads: Key and value heads.
        head_dim: Width of one head, even.
        rms_norm_eps: Added to the mean square.
        rope_theta: Base of the rotary frequencies.
        max_position_embeddings: Most tokens the checkpoint is meant for, stretched frequencies counted in.
        rope_scaling: How the frequencies are stretched, or None.
        tie_word_embeddings: The head is the embedding.
        has_qk_norm: See `Family`.
        has_qkv_bias: The Q, K and V projections have biases.
        has_output_bias: The attention's output projection has a bias.
        experts: The mixture of experts that some layers have, or None.
        dtype: Element type that the checkpoint declares, or None.
        eos_token_ids: Ids that end a text, by `config.json` alone.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    has_qk_norm: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    experts: ExpertsConfig | None = None
    dtype: DtypeName | None = None
    eos_token_ids: tuple[int, ...] = ()


def from_dict(config_json: Mapping[str, Any]) -> ModelConfig:
    """Read a parsed `config.json`, as transformers 4 or 5 writes it.

    Raises:
        UnsupportedModelError: The architecture, or a feature in use, is not covered. It is named.
        CheckpointError: A needed key is absent or not a number in range.
    """
    family = _family(config_json)
    _refuse_uncovered(config_json, family)
    num_heads = count(config_json, "num_attention_heads")
    hidden_size = count(config_json, "hidden_size")
    head_dim = count(config_json, "head_dim", family.head_dim or hidden_size // num_heads)
    num_kv_heads = count(config_json, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"config.json has {num_heads} attention heads and {num_kv_heads} key/value heads; the first must be a multiple "
            "of the second"
        )
    if head_dim % 2:
        raise CheckpointError(f"config.json has head_dim {head_dim}; rotation needs an even number")
    rope = read_rope(config_json, count(config_json, "max_position_embeddings"))
    has_bias = family.reads_attention_bias and bool(config_json.get("attention_bias", False))
    return ModelConfig(
        model_type=config_json["model_type"],
        vocab_size=count(config_json, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=count(config_json, "intermediate_size"),
        num_layers=count(config_json, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=positive(config_json, "rms_norm_eps", 1e-6),
        rope_theta=rope.theta,
        max_position_embeddings=rope.max_position_embeddings,
        rope_scaling=rope.scaling,
        tie_word_embeddings=bool(config_json.get("tie_word_embeddings", False)),
        has_qk_norm=family.has_qk_norm,
        has_qkv_bias=family.has_qkv_bias or has_bias,
        has_output_bias=has_bias,
        experts=read_experts(config_json) if family.has_experts else None,
        dtype=_dtype(config_json),
        eos_token_ids=token_ids_of(config_json.get("eos_token_id", family.eos_token_ids), "config.json"),
    )


def token_ids_of(value: object, file_name: str) -> tuple[int, ...]:
    """Read `eos_token_id`, which is absent, one id, or a list of ids.

    Raises:
        CheckpointError: It is something else.
    """
    ids = () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
    if any(type(token_id) is not int or token_id < 0 for token_id in ids):
        raise CheckpointError(f"{file_name} has eos_token_id {value!r}; it must be an id, a list of ids, or null")
    return ids


def _family(config_json: Mapping[str, Any]) -> Family:
    model_type = config_json.get("model_type")
    if model_type is None:
        raise CheckpointError("config.json has no 'model_type'; it must be one of " + ", ".join(sorted(FAMILIES)))
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UnsupportedModelError(
            f"model_type {model_type!r} is not supported; supported are " + ", ".join(sorted(FAMILIES))
        )
    architectures = config_json.get("architectures") or []
    expected = ARCHITECTURES[model_type]
    if not isinstance(architectures, list):
        raise CheckpointError(f"architectures in config.json is {architectures!r}; it must be a list of names")
    if architectures and expected not in architectures:
        raise UnsupportedModelError(
            f"architecture {architectures[0]!r} of a {model_type} checkpoint is not supported; supported is {expected!r}"
        )
    return FAMILIES[model_type]


def _refuse_uncovered(config_json: Mapping[str, Any], family: Family) -> None:
    """Raise for every feature in use that the decoder would silently get wrong."""
    if (quantization := config_json.get("quantization_config")) is not None:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else quantization
        raise UnsupportedModelError(
            f"quantization_config (quant_method {method!r}) is not supported; use a float32, bfloat16 or float16 checkpoint"
        )
    activation = config_json.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"hidden_act {activation!r} is not supported; supported is 'silu'")
    if config_json.get("mlp_bias"):
        raise UnsupportedModelError("mlp_bias true is not supported; the gated unit has no biases here")
    if config_json.get("use_mrope"):
        raise UnsupportedModelError("use_mrope true is not supported; only text positions are")
    _refuse_sliding_window(config_json, family)


def _refuse_sliding_window(config_json: Mapping[str, Any], family: Family) -> None:
    kinds = set(config_json.get("layer_types") or ()) - {"full_attention"}
    window = config_json.get("sliding_window")
    if family.always_slides:
        is_used = window is not None and window < config_json.get("max_position_embeddings", window + 1)
    else:
        # Layers below max_window_layers attend in full even where the switch is on.
        first = config_json.get("max_window_layers", 0)
        has_sliding_layers = first < config_json.get("num_hidden_layers", first + 1)
        is_used = bool(config_json.get("use_sliding_window")) and window is not None and has_sliding_layers
    if is_used:
        raise UnsupportedModelError(
            f"sliding_window {window} is in use and not supported; every layer must attend in full"
        )
    if kinds:
        raise UnsupportedModelError(
            f"layer_types has {', '.join(sorted(map(repr, kinds)))}, which is not supported; supported is 'full_attention'"
        )


def _dtype(config_json: Mapping[str, Any]) -> DtypeName | None:
    value = config_json.get("dtype", config_json.get("torch_dtype"))
    if value is None or value == "auto":
        return None
    name = str(value).removeprefix("torch.")
    if name not in _DTYPE_NAMES:
        raise UnsupportedModelError(f"dtype {value!r} is not supported; supported are " + ", ".join(_DTYPE_NAMES))
    return name  # type: ignore[return-value]
