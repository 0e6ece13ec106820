"""Decode attention with other ways to add up an entry's splits than the package's, by which that one is judged.

`held` is the package's former way: all splits of some heads are one tensor, and its sum goes through shared memory. `none` does not
add up: its results are wrong, and its time is the bound for all others.
"""

import math

from torch import Tensor, empty, empty_like

from nanofn_kernels._dispatch import INTERPRETED, jit, next_power_of_2, tl
from nanofn_kernels.decode_launch import Launch, choose_launch, decode_split_size
from nanofn_kernels.paged_decode import _attend_tiles, _first_ids_at, _num_multiprocessors
from nanofn_kernels.work_list import max_items, max_splits

MODES = ("held", "none")

MERGE_NUMBERS = 4096
"""Partial results that a program of `held` has at once."""


@jit
def _merge_held(
    out_ptr, scratch_ptr, sums_ptr, num_splits, out_stride_head,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    SPLITS: tl.constexpr, MERGE_ROWS: tl.constexpr,
):  # fmt: skip
    """out = sum_s 2^(m_s - m) acc_s / sum_s 2^(m_s - m) l_s."""
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, HEAD_COLS)
    real = (split < num_splits)[:, None]
    for first in range(0, GROUP, MERGE_ROWS):
        member = first + tl.arange(0, MERGE_ROWS)
        known = real & (member < GROUP)[None, :]
        in_head = (dim < HEAD_DIM)[None, None, :]
        part = tl.load(
            scratch_ptr + (split[:, None] * NUM_HEADS + member[None, :])[:, :, None] * HEAD_DIM + dim[None, None, :],
            mask=known[:, :, None] & in_head, other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        sums = sums_ptr + (split[:, None] * NUM_HEADS + member[None, :]) * 2
        maximum = tl.load(sums, mask=known, other=-1e30, cache_modifier=".cg")
        total = tl.load(sums + 1, mask=known, other=0.0, cache_modifier=".cg")
        weight = tl.exp2(maximum - tl.max(maximum, 0)[None, :])
        total = tl.sum(weight * total, 0)
        result = tl.sum(weight[:, :, None] * part, 0) / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(
            out_ptr + member[:, None] * out_stride_head + dim[None, :], result.to(out_ptr.dtype.element_ty),
            mask=(member < GROUP)[:, None] & (dim < HEAD_DIM)[None, :],
        )  # fmt: skip


@jit
def _variant_kernel(
    out_ptr, query_ptr, k_ptr, v_ptr, items_ptr, blocks_ptr, count_ptr, scratch_ptr, sums_ptr, arrived_ptr, logit_scale,
    out_stride_seq, out_stride_head, query_stride_seq, query_stride_head, blocks_stride,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, MAX_SPLITS: tl.constexpr, MERGE_ROWS: tl.constexpr,
    UPCAST: tl.constexpr, PDL: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """As `_paged_decode_kernel` with splits; adds them up only with HELD."""
    program = tl.program_id(0)
    item = items_ptr + (program // NUM_KV_HEADS) * 8
    entry, start, stop = (
        tl.load(item, volatile=True),
        tl.load(item + 1, volatile=True),
        tl.load(item + 2, volatile=True),
    )
    slot, first_slot = tl.load(item + 3, volatile=True), tl.load(item + 4, volatile=True)
    num_splits = tl.load(item + 5, volatile=True)
    works = tl.load(count_ptr, volatile=True) * NUM_KV_HEADS
    blocks = blocks_ptr + (program // NUM_KV_HEADS) * blocks_stride
    ids = tl.load(_first_ids_at(blocks, blocks_stride, BLOCK_SIZE, TILE), volatile=True)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.arange(0, GROUP_ROWS)
    member = row[:, None]
    dim = tl.arange(0, HEAD_COLS)[None, :]
    is_real = (member < GROUP) & (dim < HEAD_DIM)
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    for work in range(program, works, tl.num_programs(0)):
        head = work % NUM_KV_HEADS
        blocks = blocks_ptr + (work // NUM_KV_HEADS) * blocks_stride
        ids = tl.load(_first_ids_at(blocks, blocks_stride, BLOCK_SIZE, TILE), mask=work != program, other=ids)
        acc, maximum, total = _attend_tiles(
            ids, query_ptr, k_ptr, v_ptr, blocks, entry, start, stop, head, logit_scale, query_stride_seq, query_stride_head,
            K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
            GROUP, GROUP_ROWS, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, UPCAST,
        )  # fmt: skip
        out_head = out_ptr + entry.to(tl.int64) * out_stride_seq + head * GROUP * out_stride_head
        if num_splits > 1:
            partial = slot.to(tl.int64) * NUM_HEADS + head * GROUP
            tl.store(scratch_ptr + (partial + member) * HEAD_DIM + dim, acc, mask=is_real)
            tl.store(sums_ptr + (partial + row) * 2, maximum, mask=row < GROUP)
            tl.store(sums_ptr + (partial + row) * 2 + 1, total, mask=row < GROUP)
            if HELD:
                tl.debug_barrier()
                counter = arrived_ptr + entry * NUM_KV_HEADS + head
                if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_splits - 1:
                    tl.store(counter, 0)
                    partial = first_slot.to(tl.int64) * NUM_HEADS + head * GROUP
                    _merge_held(
                        out_head, scratch_ptr + partial * HEAD_DIM, sums_ptr + partial * 2, num_splits, out_stride_head,
                        NUM_HEADS, GROUP, HEAD_DIM, HEAD_COLS, MAX_SPLITS, MERGE_ROWS,
                    )  # fmt: skip
        else:
            result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
            tl.store(out_head + member * out_stride_head + dim, result.to(out_ptr.dtype.element_ty), mask=is_real)
        item = items_ptr + ((work + tl.num_programs(0)) // NUM_KV_HEADS) * 8
        more = work + tl.num_programs(0) < works
        entry, start, stop = tl.load(item, mask=more), tl.load(item + 1, mask=more), tl.load(item + 2, mask=more)
        slot, first_slot, num_splits = (
            tl.load(item + 3, mask=more),
            tl.load(item + 4, mask=more),
            tl.load(item + 5, mask=more),
        )


def launch_variant(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    max_blocks: int,
    items: Tensor,
    blocks: Tensor,
    count: Tensor,
    arrived: Tensor,
    scale: float,
    split_size: int,
    *,
    mode: str,
    launch_pdl: bool = False,
    launch: Launch | None = None,
) -> Tensor:
    """As `launch_paged_decode` where sequences are split, in one of `MODES`, with scratch of its own."""
    entries, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    launch = launch or choose_launch(entries, num_kv_heads, head_dim, k_cache.element_size(), fixed_tile=split_size > 0)
    split_size = split_size or decode_split_size(entries, num_kv_heads)
    capacity = max_items(entries, max_blocks * block_size, split_size, num_kv_heads)
    scratch = empty(capacity * num_heads * (head_dim + 2), device=query.device)
    out = empty_like(query)
    head_cols = next_power_of_2(head_dim)
    group_rows, splits = next_power_of_2(group), max_splits(num_kv_heads)
    programs = min(capacity * num_kv_heads, launch.programs_per_sm * _num_multiprocessors(query.device))
    _variant_kernel[(programs,)](
        out, query, k_cache, v_cache, items, blocks, count, scratch, scratch[capacity * num_heads * head_dim :], arrived,
        scale * math.log2(math.e), out.stride(0), out.stride(1), query.stride(0), query.stride(1), blocks.stride(0),
        K_STRIDE_BLOCK=k_cache.stride(0), K_STRIDE_SLOT=k_cache.stride(1), K_STRIDE_HEAD=k_cache.stride(2),
        V_STRIDE_BLOCK=v_cache.stride(0), V_STRIDE_SLOT=v_cache.stride(1), V_STRIDE_HEAD=v_cache.stride(2),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_ROWS=max(16, group_rows), HEAD_DIM=head_dim, HEAD_COLS=head_cols,
        BLOCK_SIZE=block_size, TILE=launch.tile, MAX_SPLITS=splits,
        MERGE_ROWS=max(1, min(group_rows, MERGE_NUMBERS // (splits * head_cols))), UPCAST=INTERPRETED, PDL=launch_pdl,
        HELD=mode == "held", num_warps=launch.num_warps, num_stages=launch.num_stages, launch_pdl=launch_pdl,
    )  # fmt: skip
    return out
