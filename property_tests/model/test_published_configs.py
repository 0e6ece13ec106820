"""Published models' configs, abridged: they are read, and their weights have as many numbers as their makers say."""

from math import prod

import pytest

from nanofn.device.tensor_names import all_parameters
from nanofn.model.config import from_dict
from nanofn.model.kv_cache import block_bytes

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
    "hidden_act": "silu", "max_position_embeddings": 40960, "max_window_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
LLAMA3 = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "hidden_act": "silu",
    "max_position_embeddings": 131072, "mlp_bias": False, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "vocab_size": 128256,
    "eos_token_id": [128001, 128008, 128009],
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def sizes(hidden, inner, layers, heads, **more):
    """The four sizes that differ most."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return dict(zip(names, (hidden, inner, layers, heads), strict=True)) | more


PUBLISHED = {
    "Qwen3-0.6B": (QWEN3 | sizes(1024, 3072, 28, 16, tie_word_embeddings=True), 596_049_920),
    "Qwen3-8B": (QWEN3 | sizes(4096, 12288, 36, 32), 8_190_735_360),
    "Qwen3-14B": (QWEN3 | sizes(5120, 17408, 40, 40), 14_768_307_200),
    "Qwen3-32B": (QWEN3 | sizes(5120, 25600, 64, 64), 32_762_123_264),
    "Qwen3-30B-A3B": (
        QWEN3
        | sizes(2048, 6144, 48, 32, num_key_value_heads=4)
        | {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1,
            "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128,
            "num_experts_per_tok": 8, "router_aux_loss_coef": 0.001,
        },
        30_532_122_624,
    ),
    "Qwen2.5-7B-Instruct": (
        QWEN3
        | sizes(3584, 18944, 28, 28, num_key_value_heads=4, head_dim=None, vocab_size=152064)
        | {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 32768,
            "sliding_window": 131072,
        },
        7_615_616_512,
    ),
    "Llama-3.1-8B-Instruct": (LLAMA3 | sizes(4096, 14336, 32, 32, rope_scaling=LLAMA3_ROPE | {"factor": 8.0}), 8_030_261_248),
    "Llama-3.2-1B": (
        LLAMA3
        | sizes(2048, 8192, 16, 32, head_dim=64, tie_word_embeddings=True, rope_scaling=LLAMA3_ROPE | {"factor": 32.0}),
        1_235_814_400,
    ),
    "Llama-2-7b": (
        LLAMA3
        | sizes(4096, 11008, 32, 32, num_key_value_heads=32, vocab_size=32000, max_position_embeddings=4096)
        | {"eos_token_id": 2, "torch_dtype": "float16"},
        6_738_415_616,
    ),
    "Mistral-7B-Instruct-v0.3": (
        LLAMA3
        | sizes(4096, 14336, 32, 32, vocab_size=32768, max_position_embeddings=32768)
        | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None, "eos_token_id": 2},
        7_248_023_552,
    ),
    "SmolLM2-135M-Instruct": (
        LLAMA3
        | sizes(576, 1536, 30, 9, num_key_value_heads=3, vocab_size=49152, max_position_embeddings=8192)
        | {"rope_interleaved": False, "rope_theta": 100000, "tie_word_embeddings": True, "eos_token_id": 2},
        134_515_008,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read_and_its_weights_are_all_there(name):
    """The number of parameters is the published one."""
    config_json, expected = PUBLISHED[name]
    config = from_dict(config_json)
    assert sum(prod(parameter.shape) for parameter in all_parameters(config)) == expected


def test_qwen3_with_a_stretched_context_is_read():
    """As its makers write it for texts of 131,072 tokens."""
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = from_dict(PUBLISHED["Qwen3-8B"][0] | {"rope_scaling": stretched})
    assert config.max_position_embeddings == 131_072


def test_the_kv_of_a_token_is_what_it_is_known_to_be():
    """Qwen3-0.6B: 28 layers of 8 heads of 128, K and V, two bytes each: 112 KiB."""
    import torch

    config = from_dict(PUBLISHED["Qwen3-0.6B"][0])
    assert block_bytes(config, 1, dtype=torch.bfloat16) == 112 * 1024
