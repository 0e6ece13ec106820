"""Random checkpoints that notice mistakes: untied, with norm weights around 1 and biases that are not 0.

A fresh model of transformers has norms of 1 and biases of 0, so code that ignores them would pass.
"""

from pathlib import Path

import torch
from attrs import frozen
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SIZES = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 50_000,
    "eos_token_id": 3,
    "tie_word_embeddings": False,
}
YARN = {"rope_type": "yarn", "rope_theta": 12_345.0, "factor": 4.0, "original_max_position_embeddings": 12_500}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,  # within what a short sequence can tell
}
MOE = {"head_dim": 16, "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "qwen3 with biases": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8, "attention_bias": True}),
    "qwen3 tied": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, one query head per key head": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8, "num_key_value_heads": 6}),
    "qwen3 with YaRN": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32, "rope_parameters": YARN}),
    "qwen3 moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, MOE | {"norm_topk_prob": True}),
    "qwen3 moe, some layers dense": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        MOE | {"num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2 with YaRN, its factor given": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"rope_parameters": YARN | {"attention_factor": 0.8, "beta_fast": 16.0, "beta_slow": 2.0}},
    ),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama with biases": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "num_key_value_heads": 1}),
    "llama 3.1": (LlamaConfig, LlamaForCausalLM, {"head_dim": 32, "rope_parameters": LLAMA3}),
    "llama with linear scaling": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None, "head_dim": 10}),
}


@frozen(eq=False)
class Fixture:
    """A model of transformers and the folder it was saved to."""

    model: PreTrainedModel
    folder: Path


def make_fixture(name: str, folder: Path, **changes: object) -> Fixture:
    """Make and save a random model of a family, in fp32."""
    config_class, model_class, sizes = FAMILIES[name]
    torch.manual_seed(len(name))
    config = config_class(**(SIZES | {"rope_theta": 12_345.0} | sizes | changes))
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif parameter_name.endswith("bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                nn.init.normal_(parameter, std=0.08)
    model.save_pretrained(folder, save_original_format="moe" in name)  # published mixtures have experts one by one
    return Fixture(model, folder)


@torch.inference_mode()
def expected_logits(model: PreTrainedModel, token_ids: list[int], *, first_position: int = 0) -> torch.Tensor:
    """What transformers says about every position: [num_tokens, vocab_size]."""
    positions = torch.arange(first_position, first_position + len(token_ids))
    return model(input_ids=torch.tensor([token_ids]), position_ids=positions[None], use_cache=False).logits[0]
