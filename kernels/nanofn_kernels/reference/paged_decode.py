"""Attention of one query a sequence over its paged keys, in plain torch: see `nanofn_kernels.paged_decode`."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import cdiv


def gather_tokens(cache: Tensor, table: Tensor, seq_len: int) -> Tensor:
    """Copy a sequence's stored tokens out of a cache.

    Args:
        cache: [num_blocks, block_size, num_kv_heads, head_dim].
        table: [max_blocks_per_seq] integer, the sequence's block ids. Those past the last needed one are not looked at.
        seq_len: Tokens to copy.

    Returns:
        [seq_len, num_kv_heads, head_dim].

    Mutates:
        Nothing.
    """
    blocks = table[: cdiv(seq_len, cache.shape[1])].long()
    return cache[blocks].flatten(0, 1)[:seq_len]


def paged_decode(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    items: Tensor,
    blocks: Tensor,
    count: Tensor,
    scratch: Tensor,
    arrived: Tensor,
    scale: float,
    split_size: int,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    launch_pdl: bool = False,
) -> Tensor:
    """Attend one new query per entry to its sequence's stored keys; float32 inside, float64 for float64 inputs."""
    compute = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // k_cache.shape[2]
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for entry, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        if length == 0:
            continue
        keys = gather_tokens(k_cache, block_table[row], length).to(compute).repeat_interleave(groups, dim=1)
        values = gather_tokens(v_cache, block_table[row], length).to(compute).repeat_interleave(groups, dim=1)
        logits = torch.einsum("hd,nhd->hn", query[entry].to(compute), keys) * (scale * k_scale)
        out[entry] = (torch.einsum("hn,nhd->hd", logits.softmax(dim=-1), values) * v_scale).to(query.dtype)
    return out
