"""The decoder: token ids in, hidden states out; hidden states in, logits out."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nanofn.model.attention import attend, store_kv
from nanofn.model.attention_plan import AttentionPlan, plan_attention
from nanofn.model.experts import mix_experts, route
from nanofn.model.experts_config import ExpertsConfig
from nanofn.model.inputs import ModelInputs
from nanofn.model.kv_cache import KVCache
from nanofn.model.layers import rms_norm, rope, rope_tables, swiglu
from nanofn.model.params import LayerParams, LocalHeads, ModelParams, local_heads

Collective = Callable[[Tensor], Tensor]
"""Combines the ranks' partial results: the same shape and meaning on every rank."""


def alone(x: Tensor) -> Tensor:
    """Combine the results of a single rank: return x itself."""
    return x


def forward(
    params: ModelParams,
    inputs: ModelInputs,
    kv_cache: KVCache,
    *,
    num_ranks: int = 1,
    reduce: Collective = alone,
) -> Tensor:
    """Compute the final hidden state of every token of a step.

    Args:
        params: This rank's weights.
        inputs: The step. An id outside the vocabulary is the caller's bug.
        kv_cache: This rank's heads. Earlier positions are read from it.
        num_ranks: Tensor-parallel ranks.
        reduce: Sums a [num_tokens, hidden_size] tensor over the ranks.

    Returns:
        [num_tokens, hidden_size] the weights' dtype, after the final norm. Padding is 0.

    Raises:
        ConfigError: num_ranks does not divide the heads.

    Mutates:
        kv_cache: the slots of `inputs.slot_mapping`.

    Source:
        Qwen3: arXiv:2505.09388, section 2; the block is that of LLaMA, arXiv:2302.13971, section 2.2.
    """
    config = params.config
    heads = local_heads(config, num_ranks)
    plan = plan_attention(inputs, kv_cache.k[0], heads.num_heads)
    token_ids, positions = inputs.token_ids, inputs.positions
    if plan.order is not None:
        token_ids, positions = token_ids[plan.order], positions[plan.order]
    cos, sin = rope_tables(positions, params.rope)
    hidden = F.embedding(token_ids, params.embedding)
    for layer, k_cache, v_cache in zip(params.layers, kv_cache.k, kv_cache.v, strict=True):
        normed = rms_norm(hidden, layer.input_norm, config.rms_norm_eps)
        q, k, v = project_qkv(layer, normed, heads, cos, sin, config.rms_norm_eps)
        store_kv(k, v, k_cache, v_cache, plan)
        attended = attend(q, k, v, k_cache, v_cache, plan).flatten(1)
        hidden += _with_bias(reduce(F.linear(attended, layer.output_weight)), layer.output_bias)
        normed = rms_norm(hidden, layer.mlp_norm, config.rms_norm_eps)
        hidden += reduce(
            gated_unit(normed, layer.gate_up_weight, layer.down_weight, layer.router_weight, config.experts)
        )
    return _in_token_order(rms_norm(hidden, params.final_norm, config.rms_norm_eps), plan, inputs.token_ids.shape[0])


def compute_logits(params: ModelParams, hidden: Tensor, *, gather: Collective = alone) -> Tensor:
    """Score every token id as the next token.

    Args:
        params: This rank's weights; the head may hold a slice of the vocabulary.
        hidden: [num_rows, hidden_size] the weights' dtype, from `forward`.
        gather: Joins the ranks' slices along the last axis.

    Returns:
        [num_rows, vocab_size] fp32. Multiplied in the weights' dtype, then cast.

    Mutates:
        Nothing.
    """
    return gather(F.linear(hidden, params.head)).to(torch.float32)


def project_qkv(
    layer: LayerParams, normed: Tensor, heads: LocalHeads, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Project, normalise where the model does, and rotate.

    Args:
        layer: Its QKV matrix, bias and q/k norms count.
        normed: [num_tokens, hidden_size] after the input norm.
        heads: Of this rank.
        cos: [num_tokens, 1, head_dim] fp32, from `rope_tables`.
        sin: [num_tokens, 1, head_dim] fp32, from `rope_tables`.
        eps: Of the q/k norms.

    Returns:
        q [num_tokens, num_heads, head_dim]
        k [num_tokens, num_kv_heads, head_dim]
        v [num_tokens, num_kv_heads, head_dim]

    Mutates:
        Nothing.

    Source:
        Qwen3: arXiv:2505.09388, section 2.
    """
    qkv = F.linear(normed, layer.qkv_weight, layer.qkv_bias).unflatten(1, (-1, cos.shape[-1]))
    num_rotated = heads.num_heads + heads.num_kv_heads
    rotated, v = qkv[:, :num_rotated], qkv[:, num_rotated:]
    if layer.q_norm is not None and layer.k_norm is not None:
        rotated = rms_norm(rotated, None, eps)
        rotated[:, : heads.num_heads].mul_(layer.q_norm)
        rotated[:, heads.num_heads :].mul_(layer.k_norm)
    rotated = rope(rotated, cos, sin)
    return rotated[:, : heads.num_heads], rotated[:, heads.num_heads :], v


def gated_unit(
    normed: Tensor,
    gate_up_weight: Tensor,
    down_weight: Tensor,
    router_weight: Tensor | None,
    experts: ExpertsConfig | None,
) -> Tensor:
    """Compute a layer's gated unit, or its mixture of them.

    Args:
        normed: [num_tokens, hidden_size] after the norm.
        gate_up_weight: See `LayerParams`, like the others.
        down_weight: See there.
        router_weight: See there.
        experts: The model's, if it has any.

    Returns:
        [num_tokens, hidden_size] the weights' dtype; this rank's part of it.

    Mutates:
        Nothing.

    Source:
        See `swiglu` and `mix_experts`.
    """
    if router_weight is None:
        return F.linear(swiglu(F.linear(normed, gate_up_weight)), down_weight)
    assert experts is not None
    return mix_experts(normed, route(normed, router_weight, experts), gate_up_weight, down_weight)


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def _in_token_order(rows: Tensor, plan: AttentionPlan, num_tokens: int) -> Tensor:
    if plan.order is None:
        return rows
    return rows.new_zeros(num_tokens, rows.shape[1]).index_copy_(0, plan.order, rows)
