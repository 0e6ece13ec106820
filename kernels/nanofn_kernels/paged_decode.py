"""Decode attention over a paged cache: the kernel that decides the throughput."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nanofn_kernels._dispatch import FLOATS, INTERPRETED, check_tensor, define_op, jit, next_power_of_2, tl
from nanofn_kernels.errors import DtypeError, ShapeError
from nanofn_kernels.reference.paged_decode import paged_decode as _reference
from nanofn_kernels.work_list import ITEM_FIELDS, NO_SPLIT, SPLIT_UNIT, check_work, max_items

__all__ = ["Launch", "choose_launch", "decode_split_size", "paged_decode", "scratch_size"]

HEAD_DIMS = (32, 64, 80, 96, 128, 192, 256)
MAX_GROUP = 32


def decode_split_size(num_seqs: int, num_kv_heads: int) -> int:
    """Choose the split size by batch: the default mode's table, measured on an H200.

    Args:
        num_seqs: Entries of the bucket, padding included.
        num_kv_heads: K/V heads; with `num_seqs` the number of programs without splits.

    Returns:
        Tokens a split, for `work_list` and `paged_decode`. Bits depend on it: a constant gives batch-invariant ones.
    """
    pairs = num_seqs * num_kv_heads
    if pairs >= 512:
        return NO_SPLIT
    if pairs >= 128:
        return 512
    if pairs >= 32:
        return 256
    return 128


def scratch_size(num_items: int, num_heads: int, head_dim: int) -> int:
    """The float32 numbers that `scratch` must hold: an output, a maximum and a sum for every item and head."""
    return num_items * num_heads * (head_dim + 2)


@dataclass(frozen=True)
class Launch:
    """How a decode launch is shaped. No field but `tile` changes a bit of the result.

    Attributes:
        tile: K/V tokens a step, at most `SPLIT_UNIT`.
        num_warps: Warps a program.
        num_stages: Triton's pipeline depth; it counts the block-table load.
        programs_per_sm: Programs of a split launch for every multiprocessor; they stride over the items.
        prefetch: Tokens of a program's first item that are requested into L2 before the wait for the kernel before.
    """

    tile: int
    num_warps: int
    num_stages: int
    programs_per_sm: int = 8
    prefetch: int = 0
    evict: str = ""


def choose_launch(num_seqs: int, num_kv_heads: int, head_dim: int, block_size: int, element_bytes: int) -> Launch:
    """Choose tile, warps and stages from a static table, measured on an H200."""
    if element_bytes * next_power_of_2(head_dim) > 512:
        return Launch(tile=16, num_warps=4, num_stages=3)
    if block_size % 32:
        return Launch(tile=64, num_warps=2, num_stages=3)
    return Launch(tile=32, num_warps=2, num_stages=3)


@jit
def _prefetch_rows(ptrs, mask):
    """Ask for one cache line a pointer in L2. Only behind a constexpr: the interpreter has no assembly."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [ptrs.to(tl.int64), mask.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@jit
def _prefetch_item(
    k_ptr, v_ptr, ids_ptr, start, stop, head,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    LINES: tl.constexpr, LINE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Ask for the first TOKENS tokens of an item's K and V in L2, which is coherent: no value is read."""
    position = start + tl.arange(0, TOKENS)
    here = position < stop
    block = tl.load(ids_ptr + (position // BLOCK_SIZE - start // BLOCK_SIZE), mask=here, other=0).to(tl.int64)
    slot = position % BLOCK_SIZE
    line = tl.arange(0, LINES)[None, :] * LINE
    k_row = block * K_STRIDE_BLOCK + slot * K_STRIDE_SLOT + head * K_STRIDE_HEAD
    v_row = block * V_STRIDE_BLOCK + slot * V_STRIDE_SLOT + head * V_STRIDE_HEAD
    wanted = here[:, None] & (line >= 0)
    _prefetch_rows(k_ptr + k_row[:, None] + line, wanted)
    _prefetch_rows(v_ptr + v_row[:, None] + line, wanted)


@jit
def _decode_item(
    out_ptr, query_ptr, k_ptr, v_ptr, ids_ptr, scratch_ptr, sums_ptr, arrived_ptr,
    entry, start, stop, slot, first_slot, num_splits, head, logit_scale, v_scale,
    out_stride_seq, out_stride_head, query_stride_seq, query_stride_head,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, MERGE_GROUP: tl.constexpr, MERGE_SPLITS: tl.constexpr,
    UPCAST: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """One item and K/V head: softmax(q k^T) v over [start, stop), and the merge if it is an entry's last to finish."""
    member = tl.arange(0, GROUP_ROWS)
    dim = tl.arange(0, HEAD_COLS)
    in_group = member[:, None] < GROUP
    in_head = dim[None, :] < HEAD_DIM
    compute: tl.constexpr = tl.float32 if UPCAST else query_ptr.dtype.element_ty

    query_row = query_ptr + entry.to(tl.int64) * query_stride_seq + (head * GROUP + member[:, None]) * query_stride_head
    q = tl.load(query_row + dim[None, :], mask=in_group & in_head & (start < stop), other=0.0).to(compute)
    first_block = start // BLOCK_SIZE
    k_head = k_ptr + head * K_STRIDE_HEAD + dim[None, :]
    v_head = v_ptr + head * V_STRIDE_HEAD + dim[None, :]
    token = tl.arange(0, TILE)

    # -1e30 and not -inf: the difference of two maxima must never be NaN.
    maximum = tl.full([GROUP_ROWS], -1e30, tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    acc = tl.zeros([GROUP_ROWS, HEAD_COLS], tl.float32)
    for first in range(start, stop, TILE):
        here = first + token < stop
        if BLOCK_SIZE % TILE == 0:
            block = tl.load(ids_ptr + (first // BLOCK_SIZE - first_block)).to(tl.int64)
            inside = first % BLOCK_SIZE
            k_rows = block * K_STRIDE_BLOCK + inside * K_STRIDE_SLOT + token[:, None] * K_STRIDE_SLOT
            v_rows = block * V_STRIDE_BLOCK + inside * V_STRIDE_SLOT + token[:, None] * V_STRIDE_SLOT
        else:
            position = first + token
            blocks = tl.load(ids_ptr + (position // BLOCK_SIZE - first_block), mask=here, other=0).to(tl.int64)
            slots = position % BLOCK_SIZE
            k_rows = (blocks * K_STRIDE_BLOCK + slots * K_STRIDE_SLOT)[:, None]
            v_rows = (blocks * V_STRIDE_BLOCK + slots * V_STRIDE_SLOT)[:, None]
        # Slots past `stop` may hold anything, NaN too: both loads are masked.
        k = tl.load(k_head + k_rows, mask=here[:, None] & in_head, other=0.0, eviction_policy=EVICT).to(compute)
        v = tl.load(v_head + v_rows, mask=here[:, None] & in_head, other=0.0, eviction_policy=EVICT).to(compute)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=tl.float32) * logit_scale
        logits = tl.where(here[None, :], logits, -1e30)
        new_maximum = tl.maximum(maximum, tl.max(logits, 1))
        weights = tl.where(here[None, :], tl.exp2(logits - new_maximum[:, None]), 0.0)
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(compute), v, acc=acc * shrink[:, None], input_precision="ieee", out_dtype=tl.float32)
        maximum = new_maximum

    out_type: tl.constexpr = out_ptr.dtype.element_ty
    out_row = out_ptr + entry.to(tl.int64) * out_stride_seq + (head * GROUP + member[:, None]) * out_stride_head
    if SPLIT and num_splits > 1:
        partial = (slot.to(tl.int64) * NUM_KV_HEADS + head) * GROUP + member
        tl.store(scratch_ptr + partial[:, None] * HEAD_DIM + dim[None, :], acc, mask=in_group & in_head)
        tl.store(sums_ptr + partial * 2, maximum, mask=member < GROUP)
        tl.store(sums_ptr + partial * 2 + 1, total, mask=member < GROUP)
        # All threads' stores come before the one thread's release.
        tl.debug_barrier()
        counter = arrived_ptr + entry * NUM_KV_HEADS + head
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_splits - 1:
            tl.store(counter, 0)
            _merge_splits(
                out_ptr + entry.to(tl.int64) * out_stride_seq + head * GROUP * out_stride_head, scratch_ptr, sums_ptr,
                first_slot.to(tl.int64), num_splits, head, v_scale, out_stride_head,
                NUM_KV_HEADS, GROUP, HEAD_DIM, HEAD_COLS, MERGE_GROUP, MERGE_SPLITS,
            )  # fmt: skip
    else:
        result = acc * (v_scale / tl.where(total > 0.0, total, 1.0))[:, None]
        tl.store(out_row + dim[None, :], result.to(out_type), mask=in_group & in_head)


@jit
def _merge_splits(
    out_ptr, scratch_ptr, sums_ptr, first_slot, num_splits, head, v_scale, out_stride_head,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    MERGE_GROUP: tl.constexpr, MERGE_SPLITS: tl.constexpr,
):  # fmt: skip
    """out = sum_s 2^(m_s - m) acc_s / sum_s 2^(m_s - m) l_s, always in split order, whoever comes last."""
    member = tl.arange(0, MERGE_GROUP)
    dim = tl.arange(0, HEAD_COLS)
    in_group = member < GROUP
    maximum = tl.full([MERGE_GROUP], -1e30, tl.float32)
    total = tl.zeros([MERGE_GROUP], tl.float32)
    acc = tl.zeros([MERGE_GROUP, HEAD_COLS], tl.float32)
    for first in range(0, num_splits, MERGE_SPLITS):
        split = first + tl.arange(0, MERGE_SPLITS)
        partial = ((first_slot + split[:, None]) * NUM_KV_HEADS + head) * GROUP + member[None, :]
        real = (split[:, None] < num_splits) & in_group[None, :]
        # .cg: written by other multiprocessors, so not from this one's L1.
        split_maximum = tl.load(sums_ptr + partial * 2, mask=real, other=-1e30, cache_modifier=".cg")
        split_total = tl.load(sums_ptr + partial * 2 + 1, mask=real, other=0.0, cache_modifier=".cg")
        split_acc = tl.load(
            scratch_ptr + partial[:, :, None] * HEAD_DIM + dim[None, None, :],
            mask=real[:, :, None] & (dim[None, None, :] < HEAD_DIM),
            other=0.0,
            cache_modifier=".cg",
        )
        new_maximum = tl.maximum(maximum, tl.max(split_maximum, 0))
        shrink = tl.exp2(maximum - new_maximum)
        weight = tl.where(real, tl.exp2(split_maximum - new_maximum[None, :]), 0.0)
        total = total * shrink + tl.sum(weight * split_total, 0)
        acc = acc * shrink[:, None] + tl.sum(weight[:, :, None] * split_acc, 0)
        maximum = new_maximum
    result = acc * (v_scale / tl.where(total > 0.0, total, 1.0))[:, None]
    tl.store(
        out_ptr + member[:, None] * out_stride_head + dim[None, :],
        result.to(out_ptr.dtype.element_ty),
        mask=in_group[:, None] & (dim[None, :] < HEAD_DIM),
    )


@jit
def _paged_decode_kernel(
    out_ptr, query_ptr, k_ptr, v_ptr, items_ptr, blocks_ptr, count_ptr, scratch_ptr, sums_ptr, arrived_ptr, logit_scale, v_scale,
    out_stride_seq, out_stride_head, query_stride_seq, query_stride_head, blocks_stride,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, MERGE_GROUP: tl.constexpr, MERGE_SPLITS: tl.constexpr,
    UPCAST: tl.constexpr, EVICT: tl.constexpr, PDL: tl.constexpr, PREFETCH: tl.constexpr, LINE: tl.constexpr,
):  # fmt: skip
    """out[e, h] = softmax(scale * q[e, h] K^T) V over the tokens of entry e, whose K/V head is h // GROUP.

    Work w is item w // NUM_KV_HEADS and K/V head w % NUM_KV_HEADS. Whole sequences: program w does it. Splits: programs stride.
    Traffic: 2 * num_kv_heads * head_dim * element_bytes * sum(seq_lens), and the queries, outputs and partials.
    """
    program = tl.program_id(0)
    # The first item, its block ids and the count are independent loads: one wait, not three.
    item = items_ptr + (program // NUM_KV_HEADS) * 8
    if SPLIT:
        # Volatile, or the compiler moves the item's loads behind the test of the count.
        entry, start, stop = tl.load(item, volatile=True), tl.load(item + 1, volatile=True), tl.load(item + 2, volatile=True)
        slot, first_slot = tl.load(item + 3, volatile=True), tl.load(item + 4, volatile=True)
        num_splits = tl.load(item + 5, volatile=True)
        works = tl.load(count_ptr, volatile=True) * NUM_KV_HEADS
    else:
        entry, start, stop = tl.load(item), tl.load(item + 1), tl.load(item + 2)
        slot, first_slot, num_splits = entry, entry, 1
        works = tl.num_programs(0)
    if PDL:
        # Work list, rows and table were complete before the kernel in front began; K, V and queries come after the wait.
        if PREFETCH > 0:
            if program < works:
                _prefetch_item(
                    k_ptr, v_ptr, blocks_ptr + (program // NUM_KV_HEADS) * blocks_stride, start, stop, program % NUM_KV_HEADS,
                    K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
                    HEAD_COLS // LINE, LINE, BLOCK_SIZE, PREFETCH,
                )  # fmt: skip
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if SPLIT:
        for work in range(program, works, tl.num_programs(0)):
            _decode_item(
                out_ptr, query_ptr, k_ptr, v_ptr, blocks_ptr + (work // NUM_KV_HEADS) * blocks_stride,
                scratch_ptr, sums_ptr, arrived_ptr,
                entry, start, stop, slot, first_slot, num_splits, work % NUM_KV_HEADS, logit_scale, v_scale,
                out_stride_seq, out_stride_head, query_stride_seq, query_stride_head,
                K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
                NUM_KV_HEADS, GROUP, GROUP_ROWS, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, SPLIT, MERGE_GROUP, MERGE_SPLITS, UPCAST, EVICT,
            )  # fmt: skip
            item = items_ptr + ((work + tl.num_programs(0)) // NUM_KV_HEADS) * 8
            more = work + tl.num_programs(0) < works
            entry, start, stop = tl.load(item, mask=more), tl.load(item + 1, mask=more), tl.load(item + 2, mask=more)
            slot, first_slot, num_splits = tl.load(item + 3, mask=more), tl.load(item + 4, mask=more), tl.load(item + 5, mask=more)
    else:
        _decode_item(
            out_ptr, query_ptr, k_ptr, v_ptr, blocks_ptr + (program // NUM_KV_HEADS) * blocks_stride,
            scratch_ptr, sums_ptr, arrived_ptr,
            entry, start, stop, slot, first_slot, num_splits, program % NUM_KV_HEADS, logit_scale, v_scale,
            out_stride_seq, out_stride_head, query_stride_seq, query_stride_head,
            K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
            NUM_KV_HEADS, GROUP, GROUP_ROWS, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, SPLIT, MERGE_GROUP, MERGE_SPLITS, UPCAST, EVICT,
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
    num_kv_heads = k_cache.shape[2]
    check_tensor("v_cache", v_cache, tuple(k_cache.shape), query.dtype, device)
    check_tensor("block_table", block_table, (None, None), torch.int32, device)
    check_tensor("rows", rows, (entries,), torch.int32, device)
    check_tensor("seq_lens", seq_lens, (entries,), torch.int32, device)
    check_tensor("items", items, (None, len(ITEM_FIELDS)), torch.int32, device)
    check_tensor("blocks", blocks, (None, None), torch.int32, device)
    check_tensor("count", count, (1,), torch.int32, device)
    check_tensor("scratch", scratch, (None,), torch.float32, device)
    check_tensor("arrived", arrived, (None,), torch.int32, device)
    if head_dim not in HEAD_DIMS:
        raise ShapeError("query", f"head_dim in {HEAD_DIMS}", head_dim)
    if num_heads % num_kv_heads or not 1 <= num_heads // num_kv_heads <= MAX_GROUP:
        raise ShapeError("query", f"num_heads a multiple of {num_kv_heads}, at most {MAX_GROUP} times", num_heads)
    if split_size < 0 or split_size % SPLIT_UNIT:
        raise ShapeError("split_size", f"a multiple of {SPLIT_UNIT}, or 0 for the table", split_size)
    size = split_size or decode_split_size(entries, num_kv_heads)
    max_seq_len = block_table.shape[1] * k_cache.shape[1]
    check_work(entries, max_seq_len, size, k_cache.shape[1], items, blocks)
    needed = max_items(entries, max_seq_len, size)
    if needed > entries:
        if scratch.shape[0] < scratch_size(needed, num_heads, head_dim):
            raise ShapeError("scratch", f"at least {scratch_size(needed, num_heads, head_dim)} numbers", scratch.shape[0])
        if arrived.shape[0] < entries * num_kv_heads:
            raise ShapeError("arrived", f"at least {entries * num_kv_heads} numbers", arrived.shape[0])


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
    """Attend one new query per entry to its sequence's stored keys."""
    return launch_paged_decode(
        query, k_cache, v_cache, block_table.shape[1], items, blocks, count, scratch, arrived, scale, split_size, k_scale, v_scale,
        launch_pdl,
    )


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
    """Launch the kernel, in a given shape or the table's. For `paged_decode` and its benchmark."""
    entries, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    split_size = split_size or decode_split_size(entries, num_kv_heads)
    capacity = max_items(entries, max_blocks * block_size, split_size)
    split = capacity > entries
    launch = launch or choose_launch(entries, num_kv_heads, head_dim, block_size, k_cache.element_size())
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    head_cols = next_power_of_2(head_dim)
    merge_group = next_power_of_2(group)
    programs = capacity * num_kv_heads
    if split:
        programs = min(programs, launch.programs_per_sm * _num_multiprocessors(query.device))
    _paged_decode_kernel[(programs,)](
        out, query, k_cache, v_cache, items, blocks, count, scratch,
        scratch[capacity * num_heads * head_dim :], arrived, scale * k_scale * math.log2(math.e), v_scale,
        out.stride(0), out.stride(1), query.stride(0), query.stride(1), blocks.stride(0),
        K_STRIDE_BLOCK=k_cache.stride(0), K_STRIDE_SLOT=k_cache.stride(1), K_STRIDE_HEAD=k_cache.stride(2),
        V_STRIDE_BLOCK=v_cache.stride(0), V_STRIDE_SLOT=v_cache.stride(1), V_STRIDE_HEAD=v_cache.stride(2),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_ROWS=max(16, merge_group), HEAD_DIM=head_dim, HEAD_COLS=head_cols,
        BLOCK_SIZE=block_size, TILE=launch.tile, SPLIT=split,
        MERGE_GROUP=merge_group, MERGE_SPLITS=max(1, 4096 // (merge_group * head_cols)),
        UPCAST=INTERPRETED, EVICT=launch.evict, PDL=launch_pdl, PREFETCH=launch.prefetch, LINE=min(head_cols, 128 // k_cache.element_size()),
        num_warps=launch.num_warps, num_stages=launch.num_stages, launch_pdl=launch_pdl,
    )  # fmt: skip
    return out


def _num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
