"""The decoder without a cache, differentiable: what training needs. A test holds it equal to `model.decoder`."""

import torch
import torch.nn.functional as F
from attrs import evolve, fields
from torch import Tensor

from nanofn.model.config import ModelConfig
from nanofn.model.layers import rope, rope_tables, swiglu
from nanofn.model.params import LayerParams, ModelParams
from nanofn.model.rope import make_rope

INITIAL_SPREAD = 0.04


def initial_params(config: ModelConfig, generator: torch.Generator) -> ModelParams:
    """Draw the weights that training starts from: matrices normal, those that add to the residual smaller, norms 1."""

    def matrix(rows: int, columns: int, spread: float) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) * spread).requires_grad_()

    def ones(size: int) -> Tensor:
        return torch.ones(size, requires_grad=True)

    residual = INITIAL_SPREAD / (2 * config.num_layers) ** 0.5
    num_qkv_heads = config.num_heads + 2 * config.num_kv_heads
    embedding = matrix(config.vocab_size, config.hidden_size, INITIAL_SPREAD)
    layers = tuple(
        LayerParams(
            input_norm=ones(config.hidden_size),
            qkv_weight=matrix(num_qkv_heads * config.head_dim, config.hidden_size, INITIAL_SPREAD),
            q_norm=ones(config.head_dim),
            k_norm=ones(config.head_dim),
            output_weight=matrix(config.hidden_size, config.num_heads * config.head_dim, residual),
            mlp_norm=ones(config.hidden_size),
            gate_up_weight=matrix(2 * config.intermediate_size, config.hidden_size, INITIAL_SPREAD),
            down_weight=matrix(config.hidden_size, config.intermediate_size, residual),
        )
        for _ in range(config.num_layers)
    )
    return ModelParams(
        config=config,
        embedding=embedding,
        layers=layers,
        final_norm=ones(config.hidden_size),
        head=embedding,
        rope=make_rope(config),
    )


def on_device(params: ModelParams, device: torch.device) -> ModelParams:
    """Copy the weights to a device, as leaves that gather gradients where the originals do."""

    def move(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, copy=True).requires_grad_(tensor.requires_grad)

    embedding = move(params.embedding)
    layers = tuple(
        evolve(
            layer,
            **{
                field.name: move(value)
                for field in fields(LayerParams)
                if (value := getattr(layer, field.name)) is not None
            },
        )
        for layer in params.layers
    )
    return evolve(
        params,
        embedding=embedding,
        head=embedding,
        layers=layers,
        final_norm=move(params.final_norm),
        rope=evolve(params.rope, inverse_frequencies=params.rope.inverse_frequencies.to(device)),
    )


def dense_logits(params: ModelParams, token_ids: Tensor, *, dropout: float = 0.0) -> Tensor:
    """Score the next token at every position of a batch of rows.

    Args:
        params: Of a tied Qwen3.
        token_ids: [num_rows, row_length] int64, each row from position 0.
        dropout: Share of the numbers left out, drawn anew, of the embedding and of what each half layer adds.

    Returns:
        [num_rows, row_length, vocab_size] the weights' dtype, or that of autocast.

    Mutates:
        Nothing.
    """
    config = params.config
    cos, sin = rope_tables(torch.arange(token_ids.shape[1], device=token_ids.device), params.rope)
    hidden = F.dropout(F.embedding(token_ids, params.embedding), dropout)
    num_rotated = config.num_heads + config.num_kv_heads
    for layer in params.layers:
        qkv = F.linear(_norm(hidden, layer.input_norm, config.rms_norm_eps), layer.qkv_weight)
        qkv = qkv.unflatten(2, (-1, config.head_dim))
        q, k, v = qkv.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=2)
        assert layer.q_norm is not None
        assert layer.k_norm is not None
        q, k = _norm(q, layer.q_norm, config.rms_norm_eps), _norm(k, layer.k_norm, config.rms_norm_eps)
        rotated = rope(torch.cat((q, k), dim=2), cos, sin).transpose(1, 2)
        attended = F.scaled_dot_product_attention(
            rotated[:, : config.num_heads],
            rotated[:, config.num_heads : num_rotated],
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        )
        hidden = hidden + F.dropout(F.linear(attended.transpose(1, 2).flatten(2), layer.output_weight), dropout)
        gate_up = F.linear(_norm(hidden, layer.mlp_norm, config.rms_norm_eps), layer.gate_up_weight)
        hidden = hidden + F.dropout(F.linear(swiglu(gate_up), layer.down_weight), dropout)
    return F.linear(_norm(hidden, params.final_norm, config.rms_norm_eps), params.head)


def trainable(params: ModelParams) -> dict[str, Tensor]:
    """Name every weight once, as `LayerParams` and `ModelParams` name them."""
    layers = {
        f"layers.{index}.{name}": getattr(layer, name)
        for index, layer in enumerate(params.layers)
        for name in (attribute.name for attribute in fields(LayerParams))
        if isinstance(getattr(layer, name), Tensor)
    }
    return {"embedding": params.embedding, "final_norm": params.final_norm, **layers}


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    # The engine's own norm works in place, which a backward pass forbids.
    # Under autocast a product is narrower than the weight; torch has a fast norm for equal types alone.
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps)
