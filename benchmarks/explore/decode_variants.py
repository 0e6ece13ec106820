"""Other forms of decode attention: ways to add up an entry's splits, and block ids asked for before the wait.

`counter` is what the package has, where ids are not early. `poll` has no counter: the program of an entry's last split waits for
numbers that nobody has written yet to disappear from scratch. `kernel` adds up in a launch of its own. `none` does not add up:
its results are wrong, and its time is the bound for all others.
"""

import math

from torch import Tensor, empty_like, int32

from nanofn_kernels._dispatch import INTERPRETED, jit, next_power_of_2, tl
from nanofn_kernels.decode_launch import Launch, choose_launch, decode_split_size
from nanofn_kernels.paged_decode import MERGE_NUMBERS, _attend_tiles, _merge_splits, _num_multiprocessors
from nanofn_kernels.work_list import max_items, max_splits

COUNTER, POLL, KERNEL, NONE = range(4)
MODES = {"counter": COUNTER, "poll": POLL, "kernel": KERNEL, "none": NONE}

EMPTY = -0x21524F
"""0xFFDEADB1, the bits of a NaN that no instruction makes: what `poll` finds where nothing has been written."""


@jit
def _first_ids(ids_ptr, blocks_stride, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """An item's first tile of block ids, whatever its length: what lies past its end is read here and never followed."""
    # Volatile, or the compiler moves them behind the wait.
    if BLOCK_SIZE % TILE == 0:
        ids = tl.load(ids_ptr, volatile=True)
    else:
        ids = tl.load(ids_ptr + tl.minimum(tl.arange(0, TILE) // BLOCK_SIZE, blocks_stride - 1), volatile=True)
    return ids


@jit
def _merge_polled(
    out_ptr, scratch_ptr, sums_ptr, num_splits, v_scale, out_stride_head,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    SPLITS: tl.constexpr, MERGE_ROWS: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    """As `_merge_splits`, of partial results that are waited for one by one; leaves their places empty again."""
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, HEAD_COLS)
    in_head = dim < HEAD_DIM
    parts = scratch_ptr.to(tl.pointer_type(tl.int32))
    sums = sums_ptr.to(tl.pointer_type(tl.int32))
    for first in range(0, GROUP, MERGE_ROWS):
        member = first + tl.arange(0, MERGE_ROWS)
        known = (split < num_splits)[:, None] & (member < GROUP)[None, :]
        wanted = known[:, :, None] & in_head[None, None, :]
        place = split[:, None] * NUM_HEADS + member[None, :]
        part_at, sums_at = parts + place[:, :, None] * HEAD_DIM + dim[None, None, :], sums + place * 2
        part = tl.load(part_at, mask=wanted, other=0, volatile=True)
        maximum = tl.load(sums_at, mask=known, other=0, volatile=True)
        total = tl.load(sums_at + 1, mask=known, other=0, volatile=True)
        missing = tl.max((part == EMPTY).to(tl.int32), 2) + ((maximum == EMPTY) | (total == EMPTY)).to(tl.int32)
        # A reduction in a loop's condition is what Triton 3.7 does not compile.
        left = tl.max(tl.max(missing, 1), 0)
        while left > 0:
            part = tl.load(part_at, mask=wanted, other=0, volatile=True)
            maximum = tl.load(sums_at, mask=known, other=0, volatile=True)
            total = tl.load(sums_at + 1, mask=known, other=0, volatile=True)
            missing = tl.max((part == EMPTY).to(tl.int32), 2) + ((maximum == EMPTY) | (total == EMPTY)).to(tl.int32)
            left = tl.max(tl.max(missing, 1), 0)
        highest = tl.where(known, maximum.to(tl.float32, bitcast=True), -1e30)
        weight = tl.exp2(highest - tl.max(highest, 0)[None, :])
        norm = tl.sum(tl.where(known, weight * total.to(tl.float32, bitcast=True), 0.0), 0)
        result = tl.sum(weight[:, :, None] * part.to(tl.float32, bitcast=True), 0)
        result *= (v_scale / tl.where(norm > 0.0, norm, 1.0))[:, None]
        tl.store(
            out_ptr + member[:, None] * out_stride_head + dim[None, :], result.to(out_ptr.dtype.element_ty),
            mask=(member < GROUP)[:, None] & in_head[None, :],
        )  # fmt: skip
        tl.store(part_at, EMPTY, mask=wanted)
        tl.store(sums_at, EMPTY, mask=known)
        tl.store(sums_at + 1, EMPTY, mask=known)


@jit
def _variant_item(
    ids, out_ptr, query_ptr, k_ptr, v_ptr, ids_ptr, scratch_ptr, sums_ptr, arrived_ptr,
    entry, start, stop, slot, first_slot, num_splits, head, logit_scale, v_scale,
    out_stride_seq, out_stride_head, query_stride_seq, query_stride_head,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr, MERGE_ROWS: tl.constexpr,
    UPCAST: tl.constexpr, MODE: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    """As `_decode_item`, with the first tile's ids given, and splits added up by MODE."""
    acc, maximum, total = _attend_tiles(
        ids, query_ptr, k_ptr, v_ptr, ids_ptr, entry, start, stop, head, logit_scale, query_stride_seq, query_stride_head,
        K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
        GROUP, GROUP_ROWS, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, UPCAST,
    )  # fmt: skip
    member = tl.arange(0, GROUP_ROWS)[:, None]
    dim = tl.arange(0, HEAD_COLS)[None, :]
    is_real = (member < GROUP) & (dim < HEAD_DIM)
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    out_head = out_ptr + entry.to(tl.int64) * out_stride_seq + head * GROUP * out_stride_head
    if SPLIT and num_splits > 1:
        row = tl.arange(0, GROUP_ROWS)
        place = slot.to(tl.int64) * NUM_HEADS + head * GROUP
        tl.store(scratch_ptr + (place + member) * HEAD_DIM + dim, acc, mask=is_real)
        tl.store(sums_ptr + (place + row) * 2, maximum, mask=row < GROUP)
        tl.store(sums_ptr + (place + row) * 2 + 1, total, mask=row < GROUP)
        first = first_slot.to(tl.int64) * NUM_HEADS + head * GROUP
        if MODE == 0:
            tl.debug_barrier()
            counter = arrived_ptr + entry * NUM_KV_HEADS + head
            if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_splits - 1:
                tl.store(counter, 0)
                _merge_splits(
                    out_head, scratch_ptr + first * HEAD_DIM, sums_ptr + first * 2, num_splits, v_scale, out_stride_head,
                    NUM_HEADS, GROUP, HEAD_DIM, HEAD_COLS, MAX_SPLITS, MERGE_ROWS,
                )  # fmt: skip
        if MODE == 1:
            # Programs take works in ascending order, so whoever is waited for has begun or comes before all that wait.
            if slot == first_slot + num_splits - 1:
                _merge_polled(
                    out_head, scratch_ptr + first * HEAD_DIM, sums_ptr + first * 2, num_splits, v_scale, out_stride_head,
                    NUM_HEADS, GROUP, HEAD_DIM, HEAD_COLS, MAX_SPLITS, MERGE_ROWS, EMPTY,
                )  # fmt: skip
    else:
        result = acc * (v_scale / tl.where(total > 0.0, total, 1.0))[:, None]
        tl.store(out_head + member * out_stride_head + dim, result.to(out_ptr.dtype.element_ty), mask=is_real)


@jit
def _variant_kernel(
    out_ptr, query_ptr, k_ptr, v_ptr, items_ptr, blocks_ptr, count_ptr, scratch_ptr, sums_ptr, arrived_ptr, logit_scale, v_scale,
    out_stride_seq, out_stride_head, query_stride_seq, query_stride_head, blocks_stride,
    K_STRIDE_BLOCK: tl.constexpr, K_STRIDE_SLOT: tl.constexpr, K_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr, V_STRIDE_SLOT: tl.constexpr, V_STRIDE_HEAD: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr, MERGE_ROWS: tl.constexpr,
    UPCAST: tl.constexpr, PDL: tl.constexpr, MODE: tl.constexpr, EARLY: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    """As `_paged_decode_kernel`; with EARLY an item's first block ids are asked for together with the item, before the wait."""
    program = tl.program_id(0)
    item = items_ptr + (program // NUM_KV_HEADS) * 8
    blocks = blocks_ptr + (program // NUM_KV_HEADS) * blocks_stride
    if SPLIT:
        entry, start, stop = (
            tl.load(item, volatile=True),
            tl.load(item + 1, volatile=True),
            tl.load(item + 2, volatile=True),
        )
        slot, first_slot = tl.load(item + 3, volatile=True), tl.load(item + 4, volatile=True)
        num_splits = tl.load(item + 5, volatile=True)
        works = tl.load(count_ptr, volatile=True) * NUM_KV_HEADS
    else:
        entry, start, stop = tl.load(item), tl.load(item + 1), tl.load(item + 2)
    if EARLY:
        ids = _first_ids(blocks, blocks_stride, BLOCK_SIZE, TILE)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if PDL or (MODE == 2 and not UPCAST):
        tl.extra.cuda.gdc_launch_dependents()
    if SPLIT:
        for work in range(program, works, tl.num_programs(0)):
            blocks = blocks_ptr + (work // NUM_KV_HEADS) * blocks_stride
            if not EARLY:
                ids = _first_ids(blocks, blocks_stride, BLOCK_SIZE, TILE)
            _variant_item(
                ids, out_ptr, query_ptr, k_ptr, v_ptr, blocks, scratch_ptr, sums_ptr, arrived_ptr,
                entry, start, stop, slot, first_slot, num_splits, work % NUM_KV_HEADS, logit_scale, v_scale,
                out_stride_seq, out_stride_head, query_stride_seq, query_stride_head,
                K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
                NUM_KV_HEADS, GROUP, GROUP_ROWS, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, SPLIT, MAX_SPLITS, MERGE_ROWS, UPCAST, MODE, EMPTY,
            )  # fmt: skip
            more = work + tl.num_programs(0) < works
            following = tl.where(more, work + tl.num_programs(0), work) // NUM_KV_HEADS
            if EARLY:
                ids = _first_ids(blocks_ptr + following * blocks_stride, blocks_stride, BLOCK_SIZE, TILE)
            item = items_ptr + following * 8
            entry, start, stop = tl.load(item, mask=more), tl.load(item + 1, mask=more), tl.load(item + 2, mask=more)
            slot, first_slot, num_splits = (
                tl.load(item + 3, mask=more),
                tl.load(item + 4, mask=more),
                tl.load(item + 5, mask=more),
            )
    else:
        if not EARLY:
            ids = _first_ids(blocks, blocks_stride, BLOCK_SIZE, TILE)
        _variant_item(
            ids, out_ptr, query_ptr, k_ptr, v_ptr, blocks, scratch_ptr, sums_ptr, arrived_ptr,
            entry, start, stop, entry, entry, 1, program % NUM_KV_HEADS, logit_scale, v_scale,
            out_stride_seq, out_stride_head, query_stride_seq, query_stride_head,
            K_STRIDE_BLOCK, K_STRIDE_SLOT, K_STRIDE_HEAD, V_STRIDE_BLOCK, V_STRIDE_SLOT, V_STRIDE_HEAD,
            NUM_KV_HEADS, GROUP, GROUP_ROWS, HEAD_DIM, HEAD_COLS, BLOCK_SIZE, TILE, SPLIT, MAX_SPLITS, MERGE_ROWS, UPCAST, MODE, EMPTY,
        )  # fmt: skip


@jit
def _merge_kernel(
    out_ptr, items_ptr, count_ptr, scratch_ptr, sums_ptr, v_scale, out_stride_seq, out_stride_head,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    ITEMS: tl.constexpr, MAX_SPLITS: tl.constexpr, MERGE_ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (e, h) adds up entry e's partial results of K/V head h. The work list was complete before decode began."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    entry, head = tl.program_id(0), tl.program_id(1)
    index = tl.arange(0, ITEMS)
    whose = tl.load(items_ptr + index * 8, mask=index < tl.load(count_ptr), other=-1)
    first_slot = tl.sum(((whose < entry) & (whose >= 0)).to(tl.int32), 0)
    num_splits = tl.sum((whose == entry).to(tl.int32), 0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if num_splits > 1:
        NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
        first = first_slot.to(tl.int64) * NUM_HEADS + head * GROUP
        _merge_splits(
            out_ptr + entry.to(tl.int64) * out_stride_seq + head * GROUP * out_stride_head, scratch_ptr + first * HEAD_DIM,
            sums_ptr + first * 2, num_splits, v_scale, out_stride_head, NUM_HEADS, GROUP, HEAD_DIM, HEAD_COLS, MAX_SPLITS, MERGE_ROWS,
        )  # fmt: skip


def prepare(scratch: Tensor, mode: str) -> None:
    """Make scratch what `poll` needs before its first launch; every launch leaves it so.

    Mutates:
        scratch.
    """
    if mode == "poll":
        scratch.view(int32).fill_(EMPTY)


def launch_variant(
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
    *,
    launch_pdl: bool = False,
    launch: Launch | None = None,
    mode: str = "counter",
    early_ids: bool = False,
) -> Tensor:
    """As `launch_paged_decode`, in one of `MODES` and with or without early ids."""
    entries, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    launch = launch or choose_launch(entries, num_kv_heads, head_dim, k_cache.element_size(), fixed_tile=split_size > 0)
    split_size = split_size or decode_split_size(entries, num_kv_heads)
    capacity = max_items(entries, max_blocks * block_size, split_size, num_kv_heads)
    split = capacity > entries
    out = empty_like(query)
    head_cols = next_power_of_2(head_dim)
    group_rows, splits = next_power_of_2(group), max_splits(num_kv_heads)
    merge_rows = max(1, min(group_rows, MERGE_NUMBERS // (splits * head_cols)))
    programs = capacity * num_kv_heads
    if split:
        programs = min(programs, launch.programs_per_sm * _num_multiprocessors(query.device))
    sums = scratch[capacity * num_heads * head_dim :]
    _variant_kernel[(programs,)](
        out, query, k_cache, v_cache, items, blocks, count, scratch, sums, arrived, scale * math.log2(math.e), 1.0,
        out.stride(0), out.stride(1), query.stride(0), query.stride(1), blocks.stride(0),
        K_STRIDE_BLOCK=k_cache.stride(0), K_STRIDE_SLOT=k_cache.stride(1), K_STRIDE_HEAD=k_cache.stride(2),
        V_STRIDE_BLOCK=v_cache.stride(0), V_STRIDE_SLOT=v_cache.stride(1), V_STRIDE_HEAD=v_cache.stride(2),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_ROWS=max(16, group_rows), HEAD_DIM=head_dim, HEAD_COLS=head_cols,
        BLOCK_SIZE=block_size, TILE=launch.tile, SPLIT=split, MAX_SPLITS=splits, MERGE_ROWS=merge_rows, UPCAST=INTERPRETED, PDL=launch_pdl,
        MODE=MODES[mode] if split else COUNTER, EARLY=early_ids, EMPTY=EMPTY,
        num_warps=launch.num_warps, num_stages=launch.num_stages, launch_pdl=launch_pdl,
    )  # fmt: skip
    if split and mode == "kernel":
        _merge_kernel[(entries, num_kv_heads)](
            out, items, count, scratch, sums, 1.0, out.stride(0), out.stride(1),
            NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, HEAD_COLS=head_cols, ITEMS=next_power_of_2(capacity),
            MAX_SPLITS=splits, MERGE_ROWS=merge_rows, PDL=not INTERPRETED, num_warps=4, launch_pdl=not INTERPRETED,
        )  # fmt: skip
    return out
