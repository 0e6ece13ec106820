"""Attention over the paged cache in plain torch, and the one write to that cache."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanofn.model.attention_plan import AttentionPlan, Chunk, DecodeGroup

MAX_MASK_ELEMENTS = 1 << 21
"""Longer chunks with a cached prefix attend in slices, so that no mask is larger than this."""


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionPlan) -> None:
    """Write this step's keys and values to their slots.

    Args:
        k: [num_rows, num_kv_heads, head_dim] the cache's dtype. Rotated.
        v: [num_rows, num_kv_heads, head_dim] the cache's dtype.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim]. Contiguous.
        v_cache: [num_blocks, block_size, num_kv_heads, head_dim]. Contiguous.
        plan: Its written rows and slots count. No slot is named twice.

    Mutates:
        k_cache, v_cache: the named slots, no others.

    Source:
        Kwon et al. 2023, arXiv:2309.06180, section 4.1.
    """
    for new, cache in ((k, k_cache), (v, v_cache)):
        rows = new if plan.written_rows is None else new[plan.written_rows]
        cache.view(-1, *cache.shape[2:]).index_copy_(0, plan.written_slots, rows)


def attend(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionPlan) -> Tensor:
    """Attend each row's query to its own sequence, up to and including its own position.

    Args:
        q: [num_rows, num_heads, head_dim] any float dtype. Rotated. Rows in the plan's order.
        k: [num_rows, num_kv_heads, head_dim]. This step's keys; only chunks that start a sequence read them.
        v: [num_rows, num_kv_heads, head_dim]. This step's values.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim]. Holds this step's keys too.
        v_cache: [num_blocks, block_size, num_kv_heads, head_dim]. Holds this step's values too.
        plan: Groups and chunks that cover all rows.

    Returns:
        [num_rows, num_heads, head_dim] q's dtype. Logits are scaled by 1 / sqrt(head_dim).

    Mutates:
        Nothing.

    Accuracy:
        A row's result may depend on its batch mates in the last bits: padded length and slices follow the batch.

    Source:
        Kwon et al. 2023, arXiv:2309.06180, section 4.1; grouped queries: Ainslie et al. 2023, arXiv:2305.13245.
    """
    out = q.new_empty(q.shape)
    for group in plan.decode_groups:
        rows = slice(group.first_row, group.first_row + group.num_rows)
        out[rows] = _attend_group(q[rows], k_cache, v_cache, group, plan.scratch)
    for chunk in plan.chunks:
        rows = slice(chunk.first_row, chunk.first_row + chunk.num_rows)
        if chunk.slots is None:
            out[rows] = _causal(q[rows], k[rows], v[rows])
        else:
            _attend_chunk(q[rows], k_cache, v_cache, chunk, out[rows])
    return out


def _attend_group(q: Tensor, k_cache: Tensor, v_cache: Tensor, group: DecodeGroup, scratch: Tensor) -> Tensor:
    """Attend with gathered keys and with values read in place: a weighted sum over slots is an embedding bag.

    Against the fused call on gathered keys and values this takes about a third of the time at one query per sequence.
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[2]
    keys = torch.index_select(k_cache.view(-1, head_dim), 0, group.key_slots, out=scratch[: len(group.key_slots)])
    keys = keys.view(num_rows * num_kv_heads, -1, head_dim).to(torch.float32)
    # The query heads that share a key head are that head's rows, so keys are not repeated.
    queries = q.reshape(num_rows * num_kv_heads, num_heads // num_kv_heads, head_dim).to(torch.float32)
    scores = torch.baddbmm(group.mask, queries, keys.transpose(1, 2), alpha=head_dim**-0.5)
    weights = scores.softmax(dim=-1).view(group.value_slots.shape).to(v_cache.dtype)
    values = v_cache.view(-1, head_dim)
    return F.embedding_bag(group.value_slots, values, mode="sum", per_sample_weights=weights).view(q.shape)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).squeeze(0).transpose(0, 1)


def _attend_chunk(q: Tensor, k_cache: Tensor, v_cache: Tensor, chunk: Chunk, out: Tensor) -> None:
    """Fill `out` slice by slice; a slice reads no key after its own last position."""
    assert chunk.slots is not None
    length = chunk.slots.shape[0]
    k, v = (
        cache.view(-1, *cache.shape[2:]).index_select(0, chunk.slots).transpose(0, 1).unsqueeze(0)
        for cache in (k_cache, v_cache)
    )
    queries = q.transpose(0, 1).unsqueeze(0)
    num_earlier = length - chunk.num_rows
    step = max(1, MAX_MASK_ELEMENTS // length)
    for start in range(0, chunk.num_rows, step):
        stop = min(start + step, chunk.num_rows)
        seen = num_earlier + stop
        mask = q.new_full((stop - start, seen), -torch.inf).triu_(num_earlier + start + 1)
        part = F.scaled_dot_product_attention(
            queries[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], attn_mask=mask, enable_gqa=True
        )
        out[start:stop] = part.squeeze(0).transpose(0, 1)
