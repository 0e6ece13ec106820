"""Writes the trained model as a folder that any library for Qwen3 checkpoints can load."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanofn.embedded.markup import END_OF_TEXT, END_OF_TURN, START_OF_TURN
from nanofn.model.params import ModelParams

PIECE_BYTES = 16 << 20

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '" + START_OF_TURN + "' + message['role'] + '\\n' + message['content'] + '" + END_OF_TURN + "\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + START_OF_TURN + "assistant\\n' }}{% endif %}"
)


def save_folder(folder: Path, params: ModelParams, special_ids: dict[str, int]) -> None:
    """Write everything but tokenizer.json, with weights in bfloat16.

    Args:
        folder: Exists.
        params: Trained weights of a tied Qwen3.
        special_ids: Ids of the special tokens.
    """
    config = params.config
    end_of_text, end_of_turn = special_ids[END_OF_TEXT], special_ids[END_OF_TURN]
    _write_json(
        folder / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": config.model_type,
            "attention_bias": False,
            "bos_token_id": None,
            "dtype": "bfloat16",
            "eos_token_id": end_of_turn,
            "pad_token_id": end_of_text,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "max_position_embeddings": config.max_position_embeddings,
            "num_attention_heads": config.num_heads,
            "num_hidden_layers": config.num_layers,
            "num_key_value_heads": config.num_kv_heads,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "vocab_size": config.vocab_size,
        },
    )
    sampling = {"do_sample": True, "temperature": 0.6}
    stops = {"eos_token_id": [end_of_turn, end_of_text], "pad_token_id": end_of_text}
    _write_json(folder / "generation_config.json", sampling | stops)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": END_OF_TURN,
            "pad_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config.max_position_embeddings,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    write_safetensors(folder / "model.safetensors", _stored_tensors(params))


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors in safetensors format: the header's length, the header in JSON, then the bytes without gaps.

    Tensors on a device come to the host in pieces of `PIECE_BYTES`.
    """
    names = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in sorted(tensors.items()):
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in sorted(tensors.items()):
            for piece in tensor.detach().contiguous().view(-1).view(torch.uint8).split(PIECE_BYTES):
                file.write(piece.cpu().numpy().data)


def _stored_tensors(params: ModelParams) -> dict[str, Tensor]:
    """Part the joined matrices and give each tensor its name in a Qwen3 checkpoint."""
    config = params.config
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    found = {"model.embed_tokens.weight": params.embedding, "model.norm.weight": params.final_norm}
    for index, layer in enumerate(params.layers):
        assert layer.q_norm is not None
        assert layer.k_norm is not None
        q, k, v = layer.qkv_weight.split((q_size, kv_size, kv_size))
        gate, up = layer.gate_up_weight.chunk(2)
        parts = {
            "input_layernorm": layer.input_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.q_norm": layer.q_norm,
            "self_attn.k_norm": layer.k_norm,
            "self_attn.o_proj": layer.output_weight,
            "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down_weight,
        }
        found |= {f"model.layers.{index}.{name}.weight": tensor for name, tensor in parts.items()}
    return {name: tensor.detach().to(torch.bfloat16) for name, tensor in found.items()}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
