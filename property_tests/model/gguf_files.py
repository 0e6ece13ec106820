"""Small GGUF files, written by `gguf` from a random model the way llama.cpp's converter lays weights out."""

from pathlib import Path

import gguf
import numpy as np
import torch
from attrs import frozen

from model.checkpoints import make_fixture
from nanofn.device.gguf_names import transformers_name

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
"""Rows of whole blocks of 32, which quantised types have."""

NAMES = ("token_embd", "output_norm", "output")
IN_LAYER = (
    "attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm",
    "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip


@frozen(eq=False)
class GgufFixture:
    """A model of transformers that computes with what the file holds, and the file."""

    model: torch.nn.Module
    path: Path


def interleaved(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Order a head's rows so that the two halves alternate, as files of llama's architecture have queries and keys."""
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def metadata_of(writer: gguf.GGUFWriter, config) -> None:
    """Write what llama.cpp reads of a config."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_eos_token_id(3)


def make_gguf(family: str, folder: Path, kind: gguf.GGMLQuantizationType, **changes: object) -> GgufFixture:
    """Make a random model, write it with its matrices in a type, and let the model have what the rounding left."""
    fixture = make_fixture(family, folder / "source", **SIZES | changes)
    config, weights = fixture.model.config, fixture.model.state_dict()
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(str(path), config.model_type)
    metadata_of(writer, config)
    known = [f"{name}.weight" for name in NAMES]
    known += [
        f"blk.{n}.{x}.{end}" for n in range(config.num_hidden_layers) for x in IN_LAYER for end in ("weight", "bias")
    ]
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name in known:
        ours = transformers_name(name)
        if ours not in weights or (name == "output.weight" and config.tie_word_embeddings):
            continue
        rows = weights[ours].numpy()
        part = name.split(".")[-2]
        if config.model_type == "llama" and part in heads:
            rows = interleaved(rows, heads[part])
        stored = kind if rows.ndim == 2 else gguf.GGMLQuantizationType.F32
        raw = gguf.quantize(np.ascontiguousarray(rows), stored)
        writer.add_tensor(name, raw, raw_dtype=stored)
        kept = gguf.dequantize(raw, stored).reshape(rows.shape)
        if config.model_type == "llama" and part in heads:
            # The other way round: the two of each pair to their halves.
            kept = kept.reshape(heads[part], -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
        weights[ours].copy_(torch.from_numpy(np.array(kept)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFixture(fixture.model, path)
