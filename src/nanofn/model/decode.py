"""The decode step by fused kernels: one token of each entry, from its entry to its logits."""

import torch
from attrs import frozen
from torch import Tensor

from nanofn.model.decoder import gated_unit
from nanofn.model.experts_config import ExpertsConfig
from nanofn.model.kv_cache import KVCache
from nanofn.model.layers import rms_norm
from nanofn.model.params import LayerParams, ModelParams
from nanofn_kernels.decode_launch import decode_split_size, scratch_size
from nanofn_kernels.entries import decode_inputs
from nanofn_kernels.linear import linear, linear_norm
from nanofn_kernels.norm_rope_store import norm_rope_store
from nanofn_kernels.paged_decode import paged_decode
from nanofn_kernels.work_list import ITEM_FIELDS, max_item_blocks, max_items, work_list


@frozen(eq=False)
class Workspace:
    """Memory that decode attention works in, for one number of entries. What it holds between steps means nothing.

    Attributes:
        items: See `work_list`.
        blocks: See `work_list`.
        count: See `work_list`.
        scratch: See `paged_decode`.
        arrived: See `paged_decode`. Zeros between steps.
    """

    items: Tensor
    blocks: Tensor
    count: Tensor
    scratch: Tensor
    arrived: Tensor


def allocate_workspace(
    num_entries: int,
    max_seq_len: int,
    block_size: int,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int,
    device: torch.device,
) -> Workspace:
    """Allocate what decode attention over this many entries needs, whatever their lengths."""
    split_size = decode_split_size(num_entries, num_kv_heads)
    number = max_items(num_entries, max_seq_len, split_size, num_kv_heads)
    width = max_item_blocks(max_seq_len, split_size, block_size, num_kv_heads)
    shapes = (number, len(ITEM_FIELDS)), (number, width), (1,), (num_entries * num_kv_heads,)
    items, blocks, count, arrived = (torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes)
    scratch = torch.empty(scratch_size(number, num_heads, head_dim), dtype=torch.float32, device=device)
    return Workspace(items, blocks, count, scratch, arrived)


@frozen(eq=False)
class DecodeStep:
    """What every layer reads of a decode step.

    Attributes:
        rows: [num_entries] int32. Row of the block table; -1 pads.
        positions: [num_entries] int32.
        slot_mapping: [num_entries] int64. -1 pads.
        seq_lens: [num_entries] int32, the new token included; 0 pads.
        block_table: [num_rows, max_blocks_per_seq] int32.
        cos_sin: [max_position, head_dim] fp32. A position's cosines, then its sines.
        workspace: With this step's work list.
        num_heads: Query heads.
        eps: Of every norm.
        experts: Of a mixture, if it is one.
    """

    rows: Tensor
    positions: Tensor
    slot_mapping: Tensor
    seq_lens: Tensor
    block_table: Tensor
    cos_sin: Tensor
    workspace: Workspace
    num_heads: int
    eps: float
    experts: ExpertsConfig | None


def decode(
    params: ModelParams,
    entries: Tensor,
    tokens: Tensor,
    block_table: Tensor,
    kv_cache: KVCache,
    cos_sin: Tensor,
    workspace: Workspace,
) -> Tensor:
    """Compute the logits that follow one token of each entry.

    Nothing is read back, and shapes follow the number of entries alone: a captured graph works for any lengths.

    Args:
        params: The weights.
        entries: [5, num_entries] int32. See `nanofn_kernels.entries`.
        tokens: [num_rows, max_model_len + 1] int64. Ids by position.
        block_table: [num_rows, max_blocks_per_seq] int32.
        kv_cache: Earlier positions are read from it.
        cos_sin: [max_position, head_dim] fp32.
        workspace: For this number of entries.

    Returns:
        [num_entries, vocab_size] the weights' dtype. Padding means nothing.

    Mutates:
        block_table: the entries' new blocks.
        kv_cache: their slots.
        workspace.

    Source:
        Qwen3: arXiv:2505.09388, section 2; the block is that of LLaMA, arXiv:2302.13971, section 2.2.
    """
    config, layers = params.config, params.layers
    hidden, rows, positions, slots, seq_lens = decode_inputs(
        entries, tokens, block_table, params.embedding, kv_cache.block_size
    )
    num_kv_heads = kv_cache.k[0].shape[2]
    split_size = decode_split_size(entries.shape[1], num_kv_heads)
    work_list(
        block_table, rows, seq_lens, split_size, kv_cache.block_size, num_kv_heads,
        workspace.items, workspace.blocks, workspace.count,
    )  # fmt: skip
    step = DecodeStep(
        rows,
        positions,
        slots,
        seq_lens,
        block_table,
        cos_sin,
        workspace,
        config.num_heads,
        config.rms_norm_eps,
        config.experts,
    )
    normed: Tensor | None = None
    next_norms = [*(layer.input_norm for layer in layers[1:]), params.final_norm]
    for layer, next_norm, k_cache, v_cache in zip(layers, next_norms, kv_cache.k, kv_cache.v, strict=True):
        hidden, normed = decode_layer(hidden, normed, layer, next_norm, k_cache, v_cache, step)
    return linear(hidden, params.head, None, params.final_norm, normed, eps=config.rms_norm_eps, launch_pdl=True)


def decode_layer(
    hidden: Tensor,
    normed: Tensor | None,
    layer: LayerParams,
    next_norm: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    step: DecodeStep,
) -> tuple[Tensor, Tensor | None]:
    """Run one layer on one token of each entry.

    Six launches for one entry, more where products are split or the library's. Each may start while the one before it runs
    (programmatic dependent launch): weights are requested before the wait, results of earlier kernels after it.

    Args:
        hidden: [num_entries, hidden_size] the weights' dtype.
        normed: What the layer before returned beside it; None for the first one.
        layer: The weights.
        next_norm: [hidden_size]. The norm that comes after this layer.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        step: What all layers share.

    Returns:
        hidden, and the same normed with `next_norm`, for `linear` only; None after a mixture of experts.

    Mutates:
        k_cache, v_cache: the step's slots.
        step.workspace.

    Source:
        As `decode`.
    """
    eps, work = step.eps, step.workspace
    qkv = linear(hidden, layer.qkv_weight, layer.qkv_bias, layer.input_norm, normed, eps=eps, launch_pdl=True)
    query = norm_rope_store(
        qkv, layer.q_norm, layer.k_norm, step.cos_sin, step.positions, step.slot_mapping, k_cache, v_cache, step.num_heads, eps,
        launch_pdl=True,
    )  # fmt: skip
    attended = paged_decode(
        query, k_cache, v_cache, step.block_table, step.rows, step.seq_lens, work.items, work.blocks, work.count, work.scratch,
        work.arrived, query.shape[2] ** -0.5, 0, launch_pdl=True,
    )  # fmt: skip
    hidden, normed = linear_norm(
        attended.flatten(1), layer.output_weight, layer.mlp_norm, layer.output_bias, hidden, eps=eps, launch_pdl=True
    )
    if layer.router_weight is not None:
        normed = rms_norm(hidden, layer.mlp_norm, eps)
        weights = layer.gate_up_weight, layer.down_weight, layer.router_weight
        return hidden + gated_unit(normed, *weights, step.experts), None
    gated = linear(hidden, layer.gate_up_weight, None, layer.mlp_norm, normed, eps=eps, is_gated=True, launch_pdl=True)
    return linear_norm(gated, layer.down_weight, next_norm, None, hidden, eps=eps, launch_pdl=True)
