"""GGUF's words in those of transformers: tensor names, and the metadata as a `config.json`."""

from collections.abc import Mapping
from typing import Any

from nanofn.device.gguf_header import GgufHeader
from nanofn.errors import CheckpointError, UnsupportedModelError

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Values of general.architecture that are covered; they are transformers' model types as well."""

_COUNTS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}


def transformers_name(name: str) -> str:
    """Translate a tensor's name; one without a counterpart stays as it is, and will be surplus."""
    stem, dot, kind = name.rpartition(".")
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if block == "blk" and part in _IN_LAYER:
        return f"model.layers.{layer}.{_IN_LAYER[part]}{dot}{kind}"
    return f"{_OUTER[stem]}{dot}{kind}" if stem in _OUTER else name


def config_json_of(header: GgufHeader, path: object) -> dict[str, Any]:
    """Say in the words of `config.json` what a header's metadata say.

    Raises:
        UnsupportedModelError: The architecture, or a feature in use, is not covered. It is named.
        CheckpointError: The embedding is missing.
    """
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"general.architecture {architecture!r} of {path} is not supported; supported in GGUF are "
            + ", ".join(ARCHITECTURES)
        )
    of = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    _refuse_uncovered(of, shapes)
    if len(shapes.get("token_embd.weight", ())) != 2:
        raise CheckpointError(f"{path} has no token_embd.weight of two axes; copy or download it again")
    config_json = {ours: of[theirs] for ours, theirs in _COUNTS.items() if theirs in of}
    config_json.setdefault("rope_theta", 10_000.0)
    return config_json | {
        "model_type": architecture,
        "vocab_size": shapes["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_output.bias" in shapes,
        "eos_token_id": _end_ids(metadata),
        "dtype": "bfloat16",  # quantised weights have none; this is what the models were published in
    }


def _refuse_uncovered(of: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    if of.get("split.count", 1) > 1:
        raise UnsupportedModelError(
            f"the GGUF file is one of {of['split.count']} parts, which is not supported; merge them with llama-gguf-split"
        )
    if of.get("expert_count", 0) > 0:
        raise UnsupportedModelError(
            f"expert_count {of['expert_count']} in a GGUF file is not supported; use safetensors"
        )
    if "rope_freqs.weight" in shapes:
        raise UnsupportedModelError(
            "rope_freqs.weight in a GGUF file (llama3 scaling) is not supported; use safetensors"
        )
    if (kind := of.get("rope.scaling.type", "none")) != "none":
        raise UnsupportedModelError(f"rope.scaling.type {kind!r} in a GGUF file is not supported; use safetensors")
    if (window := of.get("attention.sliding_window")) and window < of.get("context_length", window + 1):
        raise UnsupportedModelError(
            f"sliding_window {window} is in use and not supported; every layer must attend in full"
        )
    head_dim = of.get("attention.key_length") or of.get("embedding_length", 0) // max(
        of.get("attention.head_count", 1), 1
    )
    for key in ("rope.dimension_count", "attention.value_length"):
        if of.get(key, head_dim) != head_dim:
            raise UnsupportedModelError(f"{key} {of[key]} is not supported; it must be the head's width, {head_dim}")


def _end_ids(metadata: Mapping[str, Any]) -> list[int]:
    found = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    return sorted({token_id for token_id in found if token_id is not None})
