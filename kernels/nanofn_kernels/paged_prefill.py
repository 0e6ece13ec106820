"""Attention of prompt chunks over a paged cache that already holds them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nanofn_kernels._dispatch import FLOATS, INTERPRETED, check_tensor, define_op, jit, next_power_of_2, tl
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.paged_decode import check_heads
from nanofn_kernels.reference.paged_prefill import paged_prefill as _reference

__all__ = ["Launch", "choose_launch", "paged_prefill"]

MAX_CHUNKS = 4096
"""The most chunks of a call: every program looks at all bounds at once."""


@dataclass(frozen=True)
class Launch:
    """How the launch is shaped. It may depend on types and sizes of a head, never on the batch: `tile` decides bits.

    Attributes:
        block_rows: Rows of a program: tokens times the heads of a group.
        tile: K/V tokens a step, from position 0 on.
        num_warps: Warps a program.
        num_stages: Triton's pipeline depth; it counts the block-table load.
    """

    block_rows: int
    tile: int
    num_warps: int
    num_stages: int


def choose_launch(head_dim: int, block_size: int, element_bytes: int) -> Launch:
    """Choose from a static table, measured on an H200 with 256 bytes a row."""
    row_bytes = element_bytes * next_power_of_2(head_dim)
    if element_bytes == 4:
        return Launch(block_rows=32, tile=32 if row_bytes <= 512 else 16, num_warps=4, num_stages=2)
    if row_bytes > 256:
        return Launch(block_rows=64, tile=64, num_warps=4, num_stages=2)
    if block_size % 64:
        return Launch(block_rows=128, tile=32, num_warps=8, num_stages=3)
    return Launch(block_rows=64, tile=64, num_warps=4, num_stages=3)


@jit
def _prefill_tiles(
    ids, acc, maximum, total, q, position, k_head, v_head, table_row, begin, end, seq_len, logit_scale,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr,
    HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Online softmax over the tiles in [begin, end). MASKED or not, a visible key gets the same operations."""
    token = tl.arange(0, TILE)
    in_head = tl.arange(0, HEAD_COLS)[None, :] < HEAD_DIM
    for first in range(begin, end, TILE):
        # The ids of this tile were loaded one tile ago: a load that a load waits for would not be pipelined as deeply.
        block = ids.to(tl.int64)
        if BLOCK_SIZE % TILE == 0:
            inside = first % BLOCK_SIZE
            k_rows = block * K_STRIDE_BLOCK + inside * K_STRIDE_SLOT + token[:, None] * K_STRIDE_SLOT
            v_rows = block * V_STRIDE_BLOCK + inside * V_STRIDE_SLOT + token[:, None] * V_STRIDE_SLOT
            ids = tl.load(table_row + (first + TILE) // BLOCK_SIZE, mask=first + TILE < seq_len, other=0)
        else:
            slots = (first + token) % BLOCK_SIZE
            k_rows = (block * K_STRIDE_BLOCK + slots * K_STRIDE_SLOT)[:, None]
            v_rows = (block * V_STRIDE_BLOCK + slots * V_STRIDE_SLOT)[:, None]
            next_token = first + TILE + token
            ids = tl.load(table_row + next_token // BLOCK_SIZE, mask=next_token < seq_len, other=0)
        if MASKED:
            wanted = (first + token < seq_len)[:, None] & in_head
            k = tl.load(k_head + k_rows, mask=wanted, other=0.0).to(q.dtype)
            v = tl.load(v_head + v_rows, mask=wanted, other=0.0).to(q.dtype)
        elif HEAD_DIM == HEAD_COLS:
            k = tl.load(k_head + k_rows).to(q.dtype)
            v = tl.load(v_head + v_rows).to(q.dtype)
        else:
            k = tl.load(k_head + k_rows, mask=in_head, other=0.0).to(q.dtype)
            v = tl.load(v_head + v_rows, mask=in_head, other=0.0).to(q.dtype)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=tl.float32)
        if MASKED:
            logits = tl.where(first + token[None, :] <= position[:, None], logits, -1e30)
        new_maximum = tl.maximum(maximum, tl.max(logits, 1) * logit_scale)
        weights = tl.exp2(logits * logit_scale - new_maximum[:, None])
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype), v, acc=acc * shrink[:, None], input_precision="ieee", out_dtype=tl.float32)
        maximum = new_maximum
    return ids, acc, maximum, total


@jit
def _paged_prefill_kernel(
    out_ptr, query_ptr, k_ptr, v_ptr, table_ptr, rows_ptr, bounds_ptr, seq_lens_ptr, num_chunks, num_tokens, logit_scale, v_scale,
    query_stride_token, query_stride_head, table_stride_row,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    CHUNKS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    HEAD_COLS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out[t, h] = softmax(scale * q[t, h] K^T) V over the positions up to t's own.

    Program p does K/V head p % NUM_KV_HEADS and block NUM_BLOCKS - 1 - p // NUM_KV_HEADS, long ones first; chunk s begins at
    block bounds[s] // TOKENS + s, so the grid's size is known without the bounds.
    Traffic: 4 * num_heads * head_dim * element_bytes a token, and every K/V tile once a block, mostly from L2.
    """
    TOKENS: tl.constexpr = BLOCK_ROWS // GROUP_ROWS
    head = tl.program_id(0) % NUM_KV_HEADS
    block = tl.num_programs(0) // NUM_KV_HEADS - 1 - tl.program_id(0) // NUM_KV_HEADS
    index = tl.arange(0, CHUNKS)
    bounds = tl.load(bounds_ptr + index, mask=index <= num_chunks, other=0)
    chunk = tl.sum(((index <= num_chunks) & (bounds // TOKENS + index <= block)).to(tl.int32)) - 1
    start = tl.load(bounds_ptr + chunk)
    is_real = chunk < num_chunks
    stop = tl.load(bounds_ptr + chunk + 1, mask=is_real, other=num_tokens)
    row = tl.load(rows_ptr + chunk, mask=is_real, other=0)
    seq_len = tl.load(seq_lens_ptr + chunk, mask=is_real, other=0)
    first_token = (block - start // TOKENS - chunk) * TOKENS
    if start + first_token < stop:
        lane = tl.arange(0, BLOCK_ROWS)
        token = start + first_token + lane // GROUP_ROWS
        member = lane % GROUP_ROWS
        dim = tl.arange(0, HEAD_COLS)
        rows_mask = ((token < stop) & (member < GROUP))[:, None] & (dim < HEAD_DIM)[None, :]
        compute: tl.constexpr = tl.float32 if UPCAST else query_ptr.dtype.element_ty
        if PDL:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        query_row = (
            query_ptr
            + token.to(tl.int64)[:, None] * query_stride_token
            + (head * GROUP + member[:, None]) * query_stride_head
        )
        q = tl.load(query_row + dim[None, :], mask=rows_mask & is_real, other=0.0).to(compute)
        position = seq_len - (stop - token)
        first_position = seq_len - (stop - start) + first_token
        table_row = table_ptr + row.to(tl.int64) * table_stride_row
        k_head = k_ptr + head * K_STRIDE_HEAD + dim[None, :]
        v_head = v_ptr + head * V_STRIDE_HEAD + dim[None, :]
        if BLOCK_SIZE % TILE == 0:
            ids = tl.load(table_row, mask=seq_len > 0, other=0)
        else:
            first_ids = tl.arange(0, TILE)
            ids = tl.load(table_row + first_ids // BLOCK_SIZE, mask=first_ids < seq_len, other=0)
        acc = tl.zeros([BLOCK_ROWS, HEAD_COLS], tl.float32)
        # -1e30 and not -inf: the difference of two maxima must never be NaN.
        maximum = tl.full([BLOCK_ROWS], -1e30, tl.float32)
        total = tl.zeros([BLOCK_ROWS], tl.float32)
        end = tl.where(is_real, tl.minimum(first_position + TOKENS, seq_len), 0)
        whole = tl.where(is_real, (first_position + 1) // TILE * TILE, 0)
        ids, acc, maximum, total = _prefill_tiles(
            ids, acc, maximum, total, q, position, k_head, v_head, table_row, 0, whole, seq_len, logit_scale,
            K_STRIDE_BLOCK, K_STRIDE_SLOT, V_STRIDE_BLOCK, V_STRIDE_SLOT, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, False,
        )  # fmt: skip
        ids, acc, maximum, total = _prefill_tiles(
            ids, acc, maximum, total, q, position, k_head, v_head, table_row, whole, end, seq_len, logit_scale,
            K_STRIDE_BLOCK, K_STRIDE_SLOT, V_STRIDE_BLOCK, V_STRIDE_SLOT, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, True,
        )  # fmt: skip
        result = acc * (v_scale / tl.where(total > 0.0, total, 1.0))[:, None]
        out_row = (
            out_ptr + (token.to(tl.int64)[:, None] * (NUM_KV_HEADS * GROUP) + head * GROUP + member[:, None]) * HEAD_DIM
        )
        tl.store(out_row + dim[None, :], result.to(out_ptr.dtype.element_ty), mask=rows_mask)
    elif PDL:
        tl.extra.cuda.gdc_wait()


def _check(
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
) -> None:
    device = query.device
    check_tensor("query", query, (None, None, None), FLOATS, device)
    _, num_heads, head_dim = query.shape
    check_tensor("k_cache", k_cache, (None, None, None, head_dim), query.dtype, device)
    num_kv_heads = k_cache.shape[2]
    check_tensor("v_cache", v_cache, tuple(k_cache.shape), query.dtype, device)
    check_tensor("block_table", block_table, (None, None), torch.int32, device)
    check_tensor("rows", rows, (None,), torch.int32, device)
    chunks = rows.shape[0]
    if not 0 < chunks <= MAX_CHUNKS:
        raise ShapeError("rows", f"1 to {MAX_CHUNKS} chunks", chunks)
    check_tensor("query_start_loc", query_start_loc, (chunks + 1,), torch.int32, device)
    check_tensor("seq_lens", seq_lens, (chunks,), torch.int32, device)
    check_heads(num_heads, num_kv_heads, head_dim)
    if scale <= 0 or k_scale <= 0:
        raise ShapeError("scale", "a positive number, and a positive k_scale", (scale, k_scale))


def _fake(query: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@define_op("paged_prefill", mutates=(), reference=_reference, fake=_fake, check=_check)
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
    """Attend every chunk's new queries to its sequence's stored keys, each up to its own position.

    The chunks' own keys and values must be in the cache already.

    Args:
        query: [num_tokens, num_heads, head_dim] fp16, bf16 or fp32. Rotated; the chunks one after the other. Any strides but
            the last. Tokens behind the last chunk are padding.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim] as query. Read only. Any strides but the last.
        v_cache: [num_blocks, block_size, num_kv_heads, head_dim] as k_cache.
        block_table: [num_rows, max_blocks_per_seq] int32. Block ids; what a length does not reach is not looked at.
        rows: [num_seqs] int32. Row of the block table; -1 where a chunk has no tokens. At most 4,096 chunks.
        query_start_loc: int32, one more than there are chunks. Chunk i owns the tokens from number i up to number i + 1.
        seq_lens: [num_seqs] int32. Tokens stored, this chunk's included; 0 where it has none.
        scale: Positive factor on logits, 1 / sqrt(head_dim) as a rule.
        k_scale: Stored keys are this many times too small, a positive number. For fp8 caches to come.
        v_scale: The same for values.
        launch_pdl: Launch while the kernel in front still runs. It must then have been launched after the table, rows, bounds
            and lengths were complete; query and the newest K/V may be its product.

    Returns:
        [num_tokens, num_heads, head_dim] as query, contiguous. Accumulated in fp32, cast once. Zeros for padding.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        Nothing.

    Accuracy:
        Relative error in norm against fp64: 1e-6 for fp32, 5e-4 for fp16, 4e-3 for bf16. On a GPU a token's bits depend on its
        own query, position and K/V alone: not on where its prompt was cut, nor on what else is in the pack.

    Source:
        Dao 2023, arXiv:2307.08691, section 3.1, over fixed tiles from position 0; the heads of a group share a program's rows
        as in Kwon et al. 2023, arXiv:2309.06180, and later paged kernels.
    """
    return launch_paged_prefill(
        query, k_cache, v_cache, block_table, rows, query_start_loc, seq_lens, scale, k_scale, v_scale, launch_pdl
    )


def launch_paged_prefill(
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
    launch: Launch | None = None,
) -> Tensor:
    """Launch the kernel, in a given shape or the table's. For `paged_prefill` and its benchmark."""
    tokens, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    group_rows = next_power_of_2(group)
    launch = launch or choose_launch(head_dim, block_size, k_cache.element_size())
    block_tokens = launch.block_rows // group_rows
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    # One block more than the chunks need: tokens behind the last bound are padding, and get zeros.
    blocks = tokens // block_tokens + rows.shape[0] + 1
    _paged_prefill_kernel[(blocks * num_kv_heads,)](
        out, query, k_cache, v_cache, block_table, rows, query_start_loc, seq_lens, rows.shape[0], tokens,
        scale * k_scale * math.log2(math.e), v_scale, query.stride(0), query.stride(1), block_table.stride(0),
        K_STRIDE_BLOCK=k_cache.stride(0), K_STRIDE_SLOT=k_cache.stride(1), K_STRIDE_HEAD=k_cache.stride(2),
        V_STRIDE_BLOCK=v_cache.stride(0), V_STRIDE_SLOT=v_cache.stride(1), V_STRIDE_HEAD=v_cache.stride(2),
        CHUNKS=next_power_of_2(max(rows.shape[0] + 1, 32)), NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_ROWS=group_rows,
        HEAD_DIM=head_dim, HEAD_COLS=next_power_of_2(head_dim), BLOCK_SIZE=block_size, BLOCK_ROWS=launch.block_rows,
        TILE=launch.tile, UPCAST=INTERPRETED, PDL=launch_pdl,
        num_warps=launch.num_warps, num_stages=launch.num_stages, launch_pdl=launch_pdl,
    )  # fmt: skip
    return out
