"""The dimensions of published models, as their `config.json` has them, and tiny ones for trials."""

from typing import Any

PUBLISHED: dict[str, dict[str, int | bool]] = {
    "tiny": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 2_048,
        "tie_word_embeddings": True,
    },
    "tiny-mixture": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 128,
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 2_048,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "num_hidden_layers": 28,
        "hidden_size": 1_024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 3_072,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "num_hidden_layers": 36,
        "hidden_size": 4_096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 12_288,
    },
    "qwen3-14b": {
        "num_hidden_layers": 40,
        "hidden_size": 5_120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "intermediate_size": 17_408,
    },
    "qwen3-32b": {
        "num_hidden_layers": 64,
        "hidden_size": 5_120,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 25_600,
    },
    "qwen3-30b-a3b": {
        "num_hidden_layers": 48,
        "hidden_size": 2_048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 6_144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
}
"""What differs; `config_json` adds what all have in common."""

_IN_COMMON: dict[str, Any] = {
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40_960,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "dtype": "bfloat16",
}

_MIXTURE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}


def config_json(name: str) -> dict[str, Any]:
    """The `config.json` of a model of these dimensions, in bfloat16.

    Raises:
        KeyError: There is no model of this name; `PUBLISHED` has them all.
    """
    dense = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    return (_MIXTURE if "num_experts" in PUBLISHED[name] else dense) | _IN_COMMON | PUBLISHED[name]
