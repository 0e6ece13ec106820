"""What stands between the QKV product and attention, in one kernel: head norms, rotary embedding, cache store."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nanofn_kernels._dispatch import FLOATS, cdiv, check_tensor, define_op, jit, next_power_of_2, tl
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.reference.norm_rope_store import norm_rope_store as _reference

__all__ = ["Launch", "norm_rope_store"]

MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class Launch:
    """How the launch is shaped: one shape for every batch, so that a token's bits do not depend on its mates.

    Attributes:
        heads: Heads a program takes, all of one kind (query, key or value).
        num_warps: Warps a program.
    """

    heads: int
    num_warps: int


LAUNCH = Launch(heads=8, num_warps=1)
"""Measured on an H200."""


@jit
def _norm_rope_store_kernel(
    query_ptr, qkv_ptr, q_weight_ptr, k_weight_ptr, cos_sin_ptr, positions_ptr, slots_ptr, k_ptr, v_ptr,
    eps, inverse_k_scale, inverse_v_scale, qkv_stride_token, cos_stride, k_stride_block, k_stride_slot, k_stride_head,
    v_stride_block, v_stride_slot, v_stride_head,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF_COLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr, SCALED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """query, key = rotate(x * rsqrt(mean(x^2) + eps) * weight); cache[slot] = key, value.

    Program p does token p // CHUNKS and one chunk of HEADS heads: queries first, then keys, then values.
    Traffic: 2 * element_bytes * (num_heads + 2 * num_kv_heads) * head_dim + 4 * head_dim a token.
    """
    Q_CHUNKS: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    KV_CHUNKS: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    CHUNKS: tl.constexpr = Q_CHUNKS + 2 * KV_CHUNKS
    HALF: tl.constexpr = HEAD_DIM // 2
    token = (tl.program_id(0) // CHUNKS).to(tl.int64)
    chunk = tl.program_id(0) % CHUNKS
    is_query = chunk < Q_CHUNKS
    is_value = chunk >= Q_CHUNKS + KV_CHUNKS
    first = tl.where(is_query, chunk, tl.where(is_value, chunk - Q_CHUNKS - KV_CHUNKS, chunk - Q_CHUNKS)) * HEADS
    head = first + tl.arange(0, HEADS)
    dim = tl.arange(0, HALF_COLS)
    in_half = dim < HALF
    mask = (head < tl.where(is_query, NUM_HEADS, NUM_KV_HEADS))[:, None] & in_half[None, :]

    # Nothing up to the wait was written by the kernel in front.
    slot = tl.load(slots_ptr + token)
    position = tl.load(positions_ptr + token, mask=slot >= 0, other=0).to(tl.int64)
    cos = tl.load(cos_sin_ptr + position * cos_stride + dim, mask=in_half, other=0.0)[None, :]
    sin = tl.load(cos_sin_ptr + position * cos_stride + HALF + dim, mask=in_half, other=0.0)[None, :]
    low_weight = tl.full([HALF_COLS], 1.0, tl.float32)
    high_weight = tl.full([HALF_COLS], 1.0, tl.float32)
    if Q_NORM:
        wanted = in_half & is_query
        low_weight = tl.load(q_weight_ptr + dim, mask=wanted, other=1.0).to(tl.float32)
        high_weight = tl.load(q_weight_ptr + HALF + dim, mask=wanted, other=1.0).to(tl.float32)
    if K_NORM:
        wanted = in_half & (chunk >= Q_CHUNKS) & (chunk < Q_CHUNKS + KV_CHUNKS)
        low_weight *= tl.load(k_weight_ptr + dim, mask=wanted, other=1.0).to(tl.float32)
        high_weight *= tl.load(k_weight_ptr + HALF + dim, mask=wanted, other=1.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    qkv_head = head + tl.where(is_query, 0, tl.where(is_value, NUM_HEADS + NUM_KV_HEADS, NUM_HEADS))
    source = qkv_ptr + token * qkv_stride_token + qkv_head[:, None] * HEAD_DIM + dim[None, :]
    low_raw = tl.load(source, mask=mask & (slot >= 0), other=0.0)
    high_raw = tl.load(source + HALF, mask=mask & (slot >= 0), other=0.0)
    low, high = low_raw.to(tl.float32), high_raw.to(tl.float32)
    if is_value:
        if slot >= 0:
            target = v_ptr + (slot // BLOCK_SIZE) * v_stride_block + (slot % BLOCK_SIZE) * v_stride_slot
            target += head[:, None] * v_stride_head + dim[None, :]
            if SCALED:
                low, high = low * inverse_v_scale, high * inverse_v_scale
            tl.store(target, low.to(v_ptr.dtype.element_ty), mask=mask)
            tl.store(target + HALF, high.to(v_ptr.dtype.element_ty), mask=mask)
    else:
        if Q_NORM or K_NORM:
            inverse = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / HEAD_DIM + eps)
            if not Q_NORM:
                inverse = tl.where(is_query, 1.0, inverse)
            if not K_NORM:
                inverse = tl.where(is_query, inverse, 1.0)
            low = low * inverse[:, None] * low_weight[None, :]
            high = high * inverse[:, None] * high_weight[None, :]
        new_low = low * cos - high * sin
        new_high = high * cos + low * sin
        if is_query:
            target = query_ptr + (token * NUM_HEADS + head[:, None]) * HEAD_DIM + dim[None, :]
            tl.store(target, new_low.to(query_ptr.dtype.element_ty), mask=mask)
            tl.store(target + HALF, new_high.to(query_ptr.dtype.element_ty), mask=mask)
        elif slot >= 0:
            target = k_ptr + (slot // BLOCK_SIZE) * k_stride_block + (slot % BLOCK_SIZE) * k_stride_slot
            target += head[:, None] * k_stride_head + dim[None, :]
            if SCALED:
                new_low, new_high = new_low * inverse_k_scale, new_high * inverse_k_scale
            tl.store(target, new_low.to(k_ptr.dtype.element_ty), mask=mask)
            tl.store(target + HALF, new_high.to(k_ptr.dtype.element_ty), mask=mask)


def _check(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    eps: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    launch_pdl: bool = False,
) -> None:
    device = qkv.device
    check_tensor("k_cache", k_cache, (None, None, None, None), FLOATS, device)
    num_kv_heads, head_dim = k_cache.shape[2:]
    check_tensor("v_cache", v_cache, tuple(k_cache.shape), k_cache.dtype, device)
    check_tensor("qkv", qkv, (None, (num_heads + 2 * num_kv_heads) * head_dim), FLOATS, device)
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        if weight is not None:
            check_tensor(name, weight, (head_dim,), FLOATS, device)
    check_tensor("cos_sin", cos_sin, (None, head_dim), torch.float32, device)
    check_tensor("positions", positions, (qkv.shape[0],), (torch.int32, torch.int64), device)
    check_tensor("slot_mapping", slot_mapping, (qkv.shape[0],), torch.int64, device)
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise ShapeError("k_cache", f"an even head_dim up to {MAX_HEAD_DIM}", head_dim)


def _fake(qkv: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor,
          k_cache: Tensor, v_cache: Tensor, num_heads: int, eps: float, *_: object, **__: object) -> Tensor:  # fmt: skip
    return qkv.new_empty((qkv.shape[0], num_heads, k_cache.shape[3]))


@define_op("norm_rope_store", mutates=("k_cache", "v_cache"), reference=_reference, fake=_fake, check=_check)
def norm_rope_store(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    eps: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    launch_pdl: bool = False,
) -> Tensor:
    """Normalise and rotate queries and keys, and store keys and values in the cache.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] fp16, bf16 or fp32. Queries, keys, values. Rows may be
            strided, the last axis is contiguous.
        q_weight: [head_dim] fp16, bf16 or fp32. Weight of the queries' norm; None leaves them as they are (Qwen2, Llama).
        k_weight: [head_dim] fp16, bf16 or fp32. The same for keys.
        cos_sin: [max_position, head_dim] fp32. A position's cosines, then its sines.
        positions: [num_tokens] int32 or int64. Below max_position.
        slot_mapping: [num_tokens] int64. Where the token is stored: block id * block_size + offset. -1 marks padding: it is
            not stored, its position is not looked at, and its query is zeros.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim] fp16, bf16 or fp32. Any strides but the last.
        v_cache: [num_blocks, block_size, num_kv_heads, head_dim] as k_cache.
        num_heads: Query heads.
        eps: Added to the mean square.
        k_scale: Keys are divided by it before the store. For fp8 caches to come.
        v_scale: The same for values.
        launch_pdl: Launch while the kernel in front still runs. It must then have been launched after positions and
            slot_mapping were complete; qkv may be its product.

    Returns:
        [num_tokens, num_heads, head_dim] of qkv's type. Computed in fp32, cast once.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        k_cache, v_cache, at the slots.

    Accuracy:
        1e-6 relative in norm before the cast for fp32; half an ulp of the type for fp16 and bf16.

    Source:
        Zhang and Sennrich 2019, arXiv:1910.07467, equation 4; Su et al. 2021, arXiv:2104.09864, section 3.2, with the pairs
        half a head apart; norm before rotation as in Qwen3, arXiv:2505.09388, section 2.
    """
    return launch_norm_rope_store(
        qkv,
        q_weight,
        k_weight,
        cos_sin,
        positions,
        slot_mapping,
        k_cache,
        v_cache,
        num_heads,
        eps,
        k_scale,
        v_scale,
        launch_pdl,
    )


def launch_norm_rope_store(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    eps: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    launch_pdl: bool = False,
    launch: Launch = LAUNCH,
) -> Tensor:
    """Launch the kernel in a given shape. For `norm_rope_store` and its benchmark."""
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    tokens = qkv.shape[0]
    query = qkv.new_empty((tokens, num_heads, head_dim))
    if tokens == 0:
        return query
    chunks = cdiv(num_heads, launch.heads) + 2 * cdiv(num_kv_heads, launch.heads)
    _norm_rope_store_kernel[(tokens * chunks,)](
        query, qkv, qkv if q_weight is None else q_weight, qkv if k_weight is None else k_weight, cos_sin, positions, slot_mapping,
        k_cache, v_cache, eps, 1.0 / k_scale, 1.0 / v_scale, qkv.stride(0), cos_sin.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEADS=launch.heads, HEAD_DIM=head_dim,
        HALF_COLS=next_power_of_2(head_dim // 2), BLOCK_SIZE=block_size, Q_NORM=q_weight is not None, K_NORM=k_weight is not None,
        SCALED=(k_scale, v_scale) != (1.0, 1.0), PDL=launch_pdl, num_warps=launch.num_warps, launch_pdl=launch_pdl,
    )  # fmt: skip
    return query
