"""Prefill and mixed steps: the library's products, ours for the paged cache, and a compiler for all between."""

import functools
import importlib
from collections.abc import Callable, Hashable
from itertools import count
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from attrs import astuple
from torch import Tensor

from nanofn.model.decoder import gated_unit
from nanofn.model.experts_config import ExpertsConfig
from nanofn.model.kv_cache import KVCache
from nanofn.model.layers import rms_norm
from nanofn.model.params import ModelParams
from nanofn_kernels.entries import prefill_inputs
from nanofn_kernels.norm_rope_store import norm_rope_store
from nanofn_kernels.paged_prefill import paged_prefill

Layer = Callable[..., Tensor]
"""`prefill_layer`, as it is or compiled."""


_number = count()

LayerTensors = tuple[Any, ...]
"""A layer's tensors in the order of `LayerParams`: a compiled function specialises on objects, not on tensors."""


def prefill(
    params: ModelParams,
    chunks: Tensor,
    num_tokens: int,
    tokens: Tensor,
    block_table: Tensor,
    kv_cache: KVCache,
    cos_sin: Tensor,
    layer: Layer,
) -> Tensor:
    """Compute the residual stream of every token of a step, after the last layer and before the final norm.

    Nothing is read back, and shapes follow the numbers of tokens and chunks alone.

    Args:
        params: The weights.
        chunks: [3, num_chunks + 1] int32. See `nanofn_kernels.entries`.
        num_tokens: At least the chunks' tokens, a multiple of 16; those behind the last chunk are padding.
        tokens: [num_rows, max_model_len + 1] int64. Ids by position.
        block_table: [num_rows, max_blocks_per_seq] int32.
        kv_cache: Earlier positions are read from it.
        cos_sin: [max_position, head_dim] fp32. A position's cosines, then its sines.
        layer: `prefill_layer`, or what a compiler made of it.

    Returns:
        [num_tokens, hidden_size] the weights' dtype, chunk after chunk. Padding means nothing.

    Mutates:
        kv_cache: the step's slots.

    Source:
        Qwen3: arXiv:2505.09388, section 2; the block is that of LLaMA, arXiv:2302.13971, section 2.2.
    """
    config, block_size = params.config, kv_cache.block_size
    hidden, positions, slots = prefill_inputs(chunks, tokens, block_table, params.embedding, block_size, num_tokens)
    rows, starts, seq_lens = chunks[0, :-1], chunks[1], chunks[2, :-1]
    for tensor in (hidden, positions, slots, rows, starts, seq_lens):
        torch._dynamo.mark_dynamic(tensor, 0)  # noqa: SLF001  torch documents it under this name
    for tensor, axis in ((cos_sin, 0), (block_table, 0), (block_table, 1)):  # other bounds, and those that a trial had
        torch._dynamo.maybe_mark_dynamic(tensor, axis)  # noqa: SLF001
    where, spans = (cos_sin, positions, slots), (block_table, rows, starts, seq_lens)
    for each, k_cache, v_cache in zip(params.layers, kv_cache.k, kv_cache.v, strict=True):
        for cache in (k_cache, v_cache):
            torch._dynamo.maybe_mark_dynamic(cache, 0)  # noqa: SLF001
        hidden = layer(
            hidden,
            astuple(each, recurse=False),
            k_cache,
            v_cache,
            where,
            spans,
            config.num_heads,
            config.rms_norm_eps,
            config.experts,
        )
    return hidden


def prefill_layer(
    hidden: Tensor,
    tensors: LayerTensors,
    k_cache: Tensor,
    v_cache: Tensor,
    where: tuple[Tensor, Tensor, Tensor],
    spans: tuple[Tensor, Tensor, Tensor, Tensor],
    num_heads: int,
    eps: float,
    experts: ExpertsConfig | None,
) -> Tensor:
    """Run one layer on the tokens of some chunks.

    Args:
        hidden: [num_tokens, hidden_size] the weights' dtype.
        tensors: See `LayerTensors`.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        where: cos_sin, positions and slot_mapping, as `norm_rope_store` takes them.
        spans: block_table, rows, query_start_loc and seq_lens, as `paged_prefill` takes them.
        num_heads: Query heads.
        eps: Of every norm.
        experts: Of a mixture, if it is one.

    Returns:
        [num_tokens, hidden_size].

    Mutates:
        k_cache, v_cache: the slots.

    Source:
        As `prefill`.
    """
    (
        input_norm, qkv_weight, qkv_bias, q_norm, k_norm, output_weight, output_bias, mlp_norm, gate_up_weight, down_weight,
        router_weight,
    ) = tensors  # fmt: skip
    qkv = F.linear(rms_norm(hidden, input_norm, eps), qkv_weight, qkv_bias)
    query = norm_rope_store(qkv, q_norm, k_norm, *where, k_cache, v_cache, num_heads, eps)
    attended = paged_prefill(query, k_cache, v_cache, *spans, query.shape[2] ** -0.5)
    hidden = hidden + F.linear(attended.flatten(1), output_weight, output_bias)
    normed = rms_norm(hidden, mlp_norm, eps)
    return hidden + gated_unit(normed, gate_up_weight, down_weight, router_weight, experts)


def wake_compiler() -> None:
    """Import the compiler, which takes two seconds: in a thread they pass while weights are read."""
    importlib.import_module("torch._inductor.compile_fx")


@functools.cache
def compiled_layer(kind: Hashable) -> Layer:
    """Compile `prefill_layer` for a kind of layer, and for any number of tokens, chunks and blocks; each must be at least 2.

    A code object of its own for each kind: torch compiles one at most eight times, then it raises, and sizes that it has seen
    change, as they do from model to model, it no longer takes for constants. The name is part of how it tells them apart.

    Args:
        kind: Equal for layers of the same sizes, types and parts.
    """
    del kind  # the cache looks at it
    name = f"{prefill_layer.__name__}_{next(_number)}"
    own = FunctionType(prefill_layer.__code__.replace(co_name=name), prefill_layer.__globals__, name)
    # A handful of kernels: processes that would compile them beside this one, one a core, come too late and stay.
    return torch.compile(own, fullgraph=True, dynamic=None, options={"compile_threads": 1})
