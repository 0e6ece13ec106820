"""Causal attention of packed chunks over their paged sequences, in plain torch: see `nanofn_kernels.paged_prefill`."""

import torch
from torch import Tensor

from nanofn_kernels.reference.paged_decode import gather_tokens


def paged_prefill(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    rows: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    launch_pdl: bool = False,
) -> Tensor:
    """Attend each chunk's queries to the stored keys up to their own; float32 inside, float64 for float64 inputs."""
    compute = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // k_cache.shape[2]
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    bounds = query_start_loc.tolist()
    for row, start, stop, length in zip(rows.tolist(), bounds[:-1], bounds[1:], seq_lens.tolist(), strict=True):
        if stop == start:
            continue
        keys = gather_tokens(k_cache, block_table[row], length).to(compute).repeat_interleave(groups, dim=1)
        values = gather_tokens(v_cache, block_table[row], length).to(compute).repeat_interleave(groups, dim=1)
        logits = torch.einsum("qhd,nhd->hqn", query[start:stop].to(compute), keys) * (scale * k_scale)
        position = torch.arange(length - (stop - start), length, device=query.device)
        later = torch.arange(length, device=query.device) > position[:, None]
        weights = logits.masked_fill(later, float("-inf")).softmax(dim=-1)
        out[start:stop] = (torch.einsum("hqn,nhd->qhd", weights, values) * v_scale).to(query.dtype)
    return out
