"""Decode attention over a paged cache: the kernel that decides the throughput."""

import functools
import math

import torch
from torch import Tensor

from nanofn_kernels._dispatch import FLOATS, INTERPRETED, check_tensor, define_op, jit, next_power_of_2, tl
from nanofn_kernels.decode_ids import ask_for_ids, few_blocks, first_ids, next_ids, tile_rows
from nanofn_kernels.decode_launch import Launch, choose_launch, decode_split_size, scratch_size
from nanofn_kernels.decode_merge import merge_shape, merge_splits
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.reference.paged_decode import paged_decode as _reference
from nanofn_kernels.work_list import ITEM_FIELDS, SPLIT_UNIT, check_work, max_items, max_splits

__all__ = ["Launch", "choose_launch", "decode_split_size", "paged_decode", "scratch_size"]

HEAD_DIMS = (32, 64, 80, 96, 128, 192, 256)
MAX_GROUP = 32


@jit
def _attend_tiles(
    ids, query_ptr, k_ptr, v_ptr, ids_ptr, entry, start, stop, head, logit_scale, query_stride_seq, query_stride_head,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """acc = sum_t 2^(l_t - m) v_t, m = max_t l_t and sum_t 2^(l_t - m) over [start, stop); `ids` are the first tile's."""
    member = tl.arange(0, GROUP_ROWS)
    dim = tl.arange(0, HEAD_COLS)
    token = tl.arange(0, TILE)
    in_group = member[:, None] < GROUP
    in_head = dim[None, :] < HEAD_DIM
    compute: tl.constexpr = tl.float32 if UPCAST else query_ptr.dtype.element_ty
    query_row = query_ptr + entry.to(tl.int64) * query_stride_seq + (head * GROUP + member[:, None]) * query_stride_head
    q = tl.load(query_row + dim[None, :], mask=in_group & in_head & (start < stop), other=0.0).to(compute)
    first_block = start // BLOCK_SIZE
    k_head = k_ptr + head * K_STRIDE_HEAD + dim[None, :]
    v_head = v_ptr + head * V_STRIDE_HEAD + dim[None, :]
    # -1e30 and not -inf: the difference of two maxima must never be NaN.
    maximum = tl.full([GROUP_ROWS], -1e30, tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    acc = tl.zeros([GROUP_ROWS, HEAD_COLS], tl.float32)
    for first in range(start, stop, TILE):
        here = first + token < stop
        # This tile's ids were loaded one tile ago: a load that a load waits for costs the pipeline its depth.
        k_rows = tile_rows(ids, first, K_STRIDE_BLOCK, K_STRIDE_SLOT, BLOCK_SIZE, TILE, BLOCKS)
        v_rows = tile_rows(ids, first, V_STRIDE_BLOCK, V_STRIDE_SLOT, BLOCK_SIZE, TILE, BLOCKS)
        ids = next_ids(ids_ptr, first + TILE, first_block, stop, BLOCK_SIZE, TILE, BLOCKS)
        # Slots past `stop` may hold anything, NaN too: both loads are masked.
        k = tl.load(k_head + k_rows, mask=here[:, None] & in_head, other=0.0).to(compute)
        v = tl.load(v_head + v_rows, mask=here[:, None] & in_head, other=0.0).to(compute)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=tl.float32) * logit_scale
        logits = tl.where(here[None, :], logits, -1e30)
        new_maximum = tl.maximum(maximum, tl.max(logits, 1))
        weights = tl.where(here[None, :], tl.exp2(logits - new_maximum[:, None]), 0.0)
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(compute), v, acc=acc * shrink[:, None], input_precision="ieee", out_dtype=tl.float32)
        maximum = new_maximum
    return acc, maximum, total


@jit
def _decode_item(
    ids, out_ptr, query_ptr, k_ptr, v_ptr, ids_ptr, scratch_ptr, weights_ptr, arrived_ptr,
    entry, start, stop, slot, first_slot, num_splits, head, logit_scale, v_scale,
    out_stride_seq, out_stride_head, query_stride_seq, query_stride_head,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr,
    MERGE_ROWS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One item and K/V head: softmax(q k^T) v over [start, stop), and the merge if it is an entry's last to finish.

    `ids` are the first tile's. A split leaves its output and, as its weight, the logarithm of its sum.
    """
    member = tl.arange(0, GROUP_ROWS)
    dim = tl.arange(0, HEAD_COLS)
    in_group = member[:, None] < GROUP
    in_head = dim[None, :] < HEAD_DIM
    acc, maximum, total = _attend_tiles(
        ids, query_ptr, k_ptr, v_ptr, ids_ptr, entry, start, stop, head, logit_scale, query_stride_seq, query_stride_head,
        K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
        GROUP, GROUP_ROWS, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, BLOCKS, UPCAST,
    )  # fmt: skip

    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    out_head = out_ptr + entry.to(tl.int64) * out_stride_seq + head * GROUP * out_stride_head
    total = tl.where(total > 0.0, total, 1.0)
    result = acc * (v_scale / total)[:, None]
    if SPLIT and num_splits > 1:
        partial = slot.to(tl.int64) * NUM_HEADS + head * GROUP
        tl.store(
            scratch_ptr + partial * HEAD_DIM + member[:, None] * HEAD_DIM + dim[None, :],
            result,
            mask=in_group & in_head,
        )
        if UPCAST or query_ptr.dtype.element_ty == tl.float32:
            logarithm = tl.log2(total)
        else:
            # One instruction, of relative error 2^-22. The exact one is a chain of 30 that the merge would wait for.
            logarithm = tl.extra.cuda.libdevice.fast_log2f(total)
        tl.store(weights_ptr + partial + member, maximum + logarithm, mask=member < GROUP)
        # All threads' stores come before the one thread's release. Its acquire, an invalidation of L1, is as cheap as any:
        # a fence in the branch would need a barrier of its own before the other threads may load.
        tl.debug_barrier()
        counter = arrived_ptr + entry * NUM_KV_HEADS + head
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_splits - 1:
            tl.store(counter, 0)
            partial = first_slot.to(tl.int64) * NUM_HEADS + head * GROUP
            merge_splits(
                out_head, scratch_ptr + partial * HEAD_DIM, weights_ptr + partial, num_splits, out_stride_head,
                NUM_HEADS, GROUP, HEAD_DIM, HEAD_COLS, MAX_SPLITS, MERGE_ROWS,
            )  # fmt: skip
    else:
        tl.store(
            out_head + member[:, None] * out_stride_head + dim[None, :],
            result.to(out_ptr.dtype.element_ty),
            mask=in_group & in_head,
        )


@jit
def _paged_decode_kernel(
    out_ptr, query_ptr, k_ptr, v_ptr, items_ptr, blocks_ptr, count_ptr, scratch_ptr, weights_ptr, arrived_ptr, logit_scale, v_scale,
    out_stride_seq, out_stride_head, query_stride_seq, query_stride_head, blocks_stride,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr,
    MERGE_ROWS: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[e, h] = softmax(scale * q[e, h] K^T) V over the tokens of entry e, whose K/V head is h // GROUP.

    Work w is item w // NUM_KV_HEADS and K/V head w % NUM_KV_HEADS. Whole sequences: program w does it. Splits: programs stride.
    Traffic: 2 * num_kv_heads * head_dim * element_bytes * sum(seq_lens), and the queries, outputs and partials.
    """
    program = tl.program_id(0)
    item = items_ptr + (program // NUM_KV_HEADS) * 8
    if SPLIT:
        # Volatile, or the compiler moves the item's loads behind the test of the count.
        entry, start, stop = (
            tl.load(item, volatile=True),
            tl.load(item + 1, volatile=True),
            tl.load(item + 2, volatile=True),
        )
        slot, first_slot = tl.load(item + 3, volatile=True), tl.load(item + 4, volatile=True)
        num_splits = tl.load(item + 5, volatile=True)
        works = tl.load(count_ptr, volatile=True) * NUM_KV_HEADS
        if BLOCKS > 0:
            # So are the first item's first ids, or the compiler moves them behind the wait.
            blocks = blocks_ptr + (program // NUM_KV_HEADS) * blocks_stride
            ids = first_ids(blocks, blocks_stride, start, BLOCK_SIZE, TILE, BLOCKS, True)
    else:
        if BLOCKS != 1 and not UPCAST:
            ask_for_ids(blocks_ptr + (program // NUM_KV_HEADS) * blocks_stride, blocks_stride)
        entry, start, stop = tl.load(item), tl.load(item + 1), tl.load(item + 2)
    if PDL:
        # The work list, with its block ids, was complete before the kernel in front began: it may be read before the wait.
        # Queries and new K/V are what that kernel writes.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if SPLIT:
        for work in range(program, works, tl.num_programs(0)):
            blocks = blocks_ptr + (work // NUM_KV_HEADS) * blocks_stride
            # Ids of later items are asked for here, at their item's beginning.
            if BLOCKS > 0:
                if work != program:
                    ids = first_ids(blocks, blocks_stride, start, BLOCK_SIZE, TILE, BLOCKS, False)
            else:
                ids = first_ids(blocks, blocks_stride, start, BLOCK_SIZE, TILE, BLOCKS, False)
            _decode_item(
                ids, out_ptr, query_ptr, k_ptr, v_ptr, blocks, scratch_ptr, weights_ptr, arrived_ptr,
                entry, start, stop, slot, first_slot, num_splits, work % NUM_KV_HEADS, logit_scale, v_scale,
                out_stride_seq, out_stride_head, query_stride_seq, query_stride_head,
                K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
                NUM_KV_HEADS, GROUP, GROUP_ROWS, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, BLOCKS, SPLIT, MAX_SPLITS, MERGE_ROWS,
                UPCAST,
            )  # fmt: skip
            item = items_ptr + ((work + tl.num_programs(0)) // NUM_KV_HEADS) * 8
            more = work + tl.num_programs(0) < works
            entry, start, stop = tl.load(item, mask=more), tl.load(item + 1, mask=more), tl.load(item + 2, mask=more)
            slot, first_slot, num_splits = (
                tl.load(item + 3, mask=more),
                tl.load(item + 4, mask=more),
                tl.load(item + 5, mask=more),
            )
    else:
        blocks = blocks_ptr + (program // NUM_KV_HEADS) * blocks_stride
        ids = first_ids(blocks, blocks_stride, start, BLOCK_SIZE, TILE, BLOCKS, False)
        _decode_item(
            ids, out_ptr, query_ptr, k_ptr, v_ptr, blocks, scratch_ptr, weights_ptr, arrived_ptr,
            entry, start, stop, entry, entry, 1, program % NUM_KV_HEADS, logit_scale, v_scale,
            out_stride_seq, out_stride_head, query_stride_seq, query_stride_head,
            K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
            NUM_KV_HEADS, GROUP, GROUP_ROWS, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, BLOCKS, SPLIT, MAX_SPLITS, MERGE_ROWS,
            UPCAST,
        )  # fmt: skip


def _check(
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
) -> None:
    device = query.device
    check_tensor("query", query, (None, None, None), FLOATS, device)
    entries, num_heads, head_dim = query.shape
    check_tensor("k_cache", k_cache, (None, None, None, head_dim), query.dtype, device)
    _, block_size, num_kv_heads, _ = k_cache.shape
    check_tensor("v_cache", v_cache, tuple(k_cache.shape), query.dtype, device)
    check_tensor("block_table", block_table, (None, None), torch.int32, device)
    check_tensor("rows", rows, (entries,), torch.int32, device)
    check_tensor("seq_lens", seq_lens, (entries,), torch.int32, device)
    check_tensor("items", items, (None, len(ITEM_FIELDS)), torch.int32, device)
    check_tensor("blocks", blocks, (None, None), torch.int32, device)
    check_tensor("count", count, (1,), torch.int32, device)
    check_tensor("scratch", scratch, (None,), torch.float32, device)
    check_tensor("arrived", arrived, (None,), torch.int32, device)
    check_heads(num_heads, num_kv_heads, head_dim)
    if split_size < 0 or split_size % SPLIT_UNIT:
        raise ShapeError("split_size", f"a multiple of {SPLIT_UNIT}, or 0 for the rule", split_size)
    size = split_size or decode_split_size(entries, num_kv_heads)
    max_seq_len = block_table.shape[1] * block_size
    check_work(entries, max_seq_len, size, block_size, num_kv_heads, items, blocks)
    needed = max_items(entries, max_seq_len, size, num_kv_heads)
    if needed > entries and scratch.shape[0] < scratch_size(needed, num_heads, head_dim):
        raise ShapeError("scratch", f"at least {scratch_size(needed, num_heads, head_dim)} numbers", scratch.shape[0])
    if needed > entries and arrived.shape[0] < entries * num_kv_heads:
        raise ShapeError("arrived", f"at least {entries * num_kv_heads} numbers", arrived.shape[0])


def check_heads(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """Raise unless attention is built for these heads."""
    if head_dim not in HEAD_DIMS:
        raise ShapeError("query", f"head_dim in {HEAD_DIMS}", head_dim)
    if num_heads % num_kv_heads or not 1 <= num_heads // num_kv_heads <= MAX_GROUP:
        raise ShapeError("query", f"num_heads a multiple of {num_kv_heads}, at most {MAX_GROUP} times", num_heads)


def _fake(query: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@define_op("paged_decode", mutates=("scratch", "arrived"), reference=_reference, fake=_fake, check=_check)
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
    """Attend one new query per entry to its sequence's stored keys.

    Args:
        query: [num_seqs, num_heads, head_dim] fp16, bf16 or fp32. Rotated. Any strides but the last.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim] as query. Read only. Any strides but the last.
        v_cache: [num_blocks, block_size, num_kv_heads, head_dim] as k_cache.
        block_table: [num_rows, max_blocks_per_seq] int32. Its width bounds every length.
        rows: [num_seqs] int32. As given to `work_list`.
        seq_lens: [num_seqs] int32. As given to `work_list`. An entry of length 0 is padding: it reads nothing.
        items: int32. What `work_list` made of rows and seq_lens; so are blocks and count.
        blocks: int32. See items.
        count: [1] int32. See items.
        scratch: fp32, at least `scratch_size(...)` numbers. Its content before and after means nothing.
        arrived: int32, at least num_seqs * num_kv_heads numbers. Zeros before, and again after.
        scale: Dimensionless factor on logits, 1 / sqrt(head_dim) as a rule.
        split_size: As given to `work_list`; or 0, if that was `decode_split_size`, for the fastest launch at this batch.
        k_scale: Stored keys are this many times too small. For fp8 caches to come.
        v_scale: The same for values.
        launch_pdl: Launch while the kernel in front still runs. It must then have been launched after the work list was
            complete; query and the newest K/V may be its product.

    Returns:
        [num_seqs, num_heads, head_dim] as query, contiguous. Accumulated in fp32, cast once. Zeros for padding.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        scratch, arrived.

    Accuracy:
        Relative error in norm against fp64: 1e-6 for fp32, 5e-4 for fp16, 4e-3 for bf16. At a split size
        that is given, not 0, an entry's bits depend on its own query, length and K/V alone.

    Source:
        Kwon et al. 2023, arXiv:2309.06180, section 4.1; online softmax of Milakov and Gimelshein 2018, arXiv:1805.02867;
        splits as in Dao 2023, "Flash-Decoding for long-context inference", merged by the last program to finish.
    """
    return launch_paged_decode(
        query, k_cache, v_cache, block_table.shape[1], items, blocks, count, scratch, arrived, scale, split_size, k_scale, v_scale,
        launch_pdl,
    )  # fmt: skip


@functools.cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def launch_paged_decode(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    max_blocks: int,
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
    launch: Launch | None = None,
) -> Tensor:
    """Launch the kernel, in a given shape or the table's. As `paged_decode`, for it and its benchmark."""
    entries, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    launch = launch or choose_launch(entries, num_kv_heads, head_dim, k_cache.element_size(), fixed_tile=split_size > 0)
    split_size = split_size or decode_split_size(entries, num_kv_heads)
    capacity = max_items(entries, max_blocks * block_size, split_size, num_kv_heads)
    split = capacity > entries
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    head_cols = next_power_of_2(head_dim)
    group_rows = next_power_of_2(group)
    programs, registers, merge_rows = capacity * num_kv_heads, None, 1
    if split:
        programs = min(programs, launch.programs_per_sm * _num_multiprocessors(query.device))
        registers, merge_rows = merge_shape(launch, group_rows, head_cols)
    _paged_decode_kernel[(programs,)](
        out, query, k_cache, v_cache, items, blocks, count, scratch, scratch[capacity * num_heads * head_dim :], arrived,
        scale * k_scale * math.log2(math.e), v_scale,
        out.stride(0), out.stride(1), query.stride(0), query.stride(1), blocks.shape[1],
        K_STRIDE_BLOCK=k_cache.stride(0), K_STRIDE_SLOT=k_cache.stride(1), K_STRIDE_HEAD=k_cache.stride(2),
        V_STRIDE_BLOCK=v_cache.stride(0), V_STRIDE_SLOT=v_cache.stride(1), V_STRIDE_HEAD=v_cache.stride(2),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_ROWS=max(16, group_rows), HEAD_DIM=head_dim, HEAD_COLS=head_cols,
        BLOCK_SIZE=block_size, TILE=launch.tile, BLOCKS=few_blocks(launch.tile, block_size), SPLIT=split,
        MAX_SPLITS=max_splits(num_kv_heads), MERGE_ROWS=merge_rows, UPCAST=INTERPRETED, PDL=launch_pdl,
        num_warps=launch.num_warps, num_stages=launch.num_stages, maxnreg=registers, launch_pdl=launch_pdl,
    )  # fmt: skip
    return out
