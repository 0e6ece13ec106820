"""Filtered rows that keep few ids: gather every id that can be kept, decide among those in registers, and pick.

A sample of 8,192 logits gives a bound that nearly surely lies below the last kept logit. One pass gathers what lies above
the bound; its order is that of arrival, so everything behind it counts in integers, and no result depends on the order.
A row whose end was not among what was gathered (the sample misled, or more was kept than the scratch holds) is left to
`sample_filter`.

Where the sample shows that top-p keeps many, a pass of its own picks above a window around the end. With min-p alone the pass
gathers what is above the sample's largest logit, to find the row's; its bounds are known then, and it is left to the pick.

A row's state:
0: not filtered
1: done, or padding
2: left to `sample_filter`
3: decided here, among what is gathered
4: its bounds are known, and it is left to the pick
5: min-p alone; what is gathered gives its largest logit
6: top-p alone or with min-p; what lies above a window around its end is picked from, and the end sought if that is not enough
"""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import INTERPRETED, cdiv, jit, next_power_of_2, tl
from nanofn_kernels.reference.noise import SAMPLING_DOMAIN
from nanofn_kernels.reference.sample import GREEDY_BELOW
from nanofn_kernels.sample_decide import decide
from nanofn_kernels.sample_filter import Few, key_of, value_of, weight_of
from nanofn_kernels.sample_pick import BLOCK, chunk_size, largest
from nanofn_kernels.sample_window import (
    best_above,
    launch_window,
    store_above,
    value_above_end,
    value_below_end,
)

CAPACITY = 8192
"""Ids of one row that can be decided here."""

DECIDERS = ((2048, 8), (CAPACITY, 16))
"""Rows that gathered no more than so many ids are decided by so many warps."""

BOUND_WARPS = 8
"""With 16 only one program fits a multiprocessor, and 256 rows take two rounds."""

SAMPLE = 8192
"""Logits in the sample."""

PASSING = 7168
"""How many programs a pass over all rows should have, 54 for each of 132 multiprocessors: two rounds."""

MANY = 6000
"""Rows that seem to have more ids above their bound do not gather them; CAPACITY lies six deviations of that estimate above."""

MAX_K = 2048
"""The largest k that is decided here."""


@jit
def _filters(
    row, vocab_size, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, GREEDY_BELOW: tl.constexpr,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr,
):  # fmt: skip
    """A row's 1 / temperature, k (0: off), p (1: off) and log(min_p) (-inf: off)."""
    temperature = tl.load(temperature_ptr + row)
    is_sampled = temperature >= GREEDY_BELOW
    inverse = tl.where(is_sampled, tl.div_rn(1.0, tl.where(is_sampled, temperature, 1.0)), 1.0)
    k = (row * 0).to(tl.int32)
    p = inverse * 0.0 + 1.0
    floor = inverse * 0.0 + float("-inf")
    if TOP_K:
        k = tl.minimum(tl.load(top_k_ptr + row), vocab_size).to(tl.int32)
        k = tl.where(is_sampled & (k > 0) & (k < vocab_size), k, 0)
    if TOP_P:
        p = tl.where(is_sampled, tl.minimum(tl.maximum(tl.load(top_p_ptr + row), 0.0), 1.0), 1.0)
    if MIN_P:
        least = tl.minimum(tl.load(min_p_ptr + row), 1.0)
        floor = tl.where(is_sampled & (least > 0.0), tl.log(tl.maximum(least, 1.2e-38)), float("-inf"))
    return inverse, k, p, floor


@jit
def _mass_kernel(
    tops_ptr, sums_ptr, logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, valid_ptr, vocab_size, logits_stride, chunk,
    GREEDY_BELOW: tl.constexpr, BLOCK: tl.constexpr, TOP_K: tl.constexpr, VALID: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """tops, sums = max x and sum of exp((x - top) / temperature) of every block, for rows with top-p and without top-k.

    Program (i, j), one warp, does ids [j * chunk, (j + 1) * chunk) of row i. Sums are a block's, whatever the chunk: with
    a chunk's the last bits of a row's mass, and so the end of top-p, would depend on the number of rows.
    Traffic: element_bytes * vocab_size a row.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    if VALID:
        if tl.load(valid_ptr + row) == 0:
            return
    inverse, k, p, _ = _filters(
        row, vocab_size, temperature_ptr, top_k_ptr, top_p_ptr, top_p_ptr, GREEDY_BELOW, TOP_K, True, False
    )
    if (k == 0) & (p < 1.0):
        start = tl.program_id(1) * chunk
        stop = tl.minimum(start + chunk, vocab_size)
        place = tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
        logits_row = logits_ptr + row * logits_stride
        following = tl.load(logits_row + start + place, mask=start + place < stop, other=float("-inf"))
        at = row * tl.cdiv(vocab_size, BLOCK) + start // BLOCK
        for first in range(start, stop, BLOCK):
            x = following.to(tl.float32)
            following = tl.load(
                logits_row + first + BLOCK + place, mask=first + BLOCK + place < stop, other=float("-inf")
            )
            top = tl.max(tl.max(x, 1), 0)
            base = tl.where(top > float("-inf"), top, 0.0)
            tl.store(tops_ptr + at, top)
            tl.store(sums_ptr + at, tl.sum(tl.sum(tl.exp((x - base) * inverse), 1), 0))
            at += 1


@jit
def _value_below(x, highest, wanted):
    """The largest value, of those with 7 bits behind the first, that so many logits are above; -inf if there are not so many."""
    low = key_of(highest * 0.0 + float("-inf"), 16)
    high = key_of(highest, 16)
    while low + 1 < high:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        is_low = tl.sum(tl.sum((x > value_of(middle, 16)).to(tl.int32), 1), 0) >= wanted
        low = tl.where(is_low, middle, low)
        high = tl.where(is_low, high, middle)
    return value_of(low, 16)


@jit
def _bound_kernel(
    state_ptr, bound_ptr, high_ptr, peak_ptr, above_ptr, within_ptr, mass_ptr, count_ptr, bad_ptr, tops_ptr, sums_ptr, logits_ptr,
    temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, valid_ptr, vocab_size, logits_stride, num_blocks,
    GREEDY_BELOW: tl.constexpr, SAMPLE: tl.constexpr, BLOCKS: tl.constexpr, MANY: tl.constexpr,
    MAX_K: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, VALID: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """state of a row, a bound that nearly surely lies below its last kept logit, and its mass relative to its largest logit.

    high, peak: of a window, a value above the end and the row's largest logit. Of min-p alone, peak is the sample's largest.
    Program i does row i. Traffic: 16 KiB a row.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    tl.store(count_ptr + row, 0)
    tl.store(bad_ptr + row, 0)
    tl.store(state_ptr + row, 1)
    if VALID:
        if tl.load(valid_ptr + row) == 0:
            return
    inverse, k, p, floor = _filters(
        row, vocab_size, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, GREEDY_BELOW, TOP_K, TOP_P, MIN_P
    )
    is_on = (k > 0) | (p < 1.0) | (floor > float("-inf"))
    state = tl.where(is_on, tl.where(k > MAX_K, 2, 3), 0)
    tl.store(state_ptr + row, state)
    if state != 3:
        return
    # Pieces of 64 neighbours, evenly spread: the ids of a vocabulary are not in random order. A thread has 16 bytes of a line.
    EACH: tl.constexpr = 16 // (logits_ptr.dtype.element_ty.primitive_bitwidth // 8)
    piece = tl.arange(0, SAMPLE // EACH)
    spacing = tl.where(vocab_size > SAMPLE, vocab_size // (SAMPLE // 64), 64)
    places = ((piece // (64 // EACH)) * spacing + (piece % (64 // EACH)) * EACH)[:, None] + tl.arange(0, EACH)[None, :]
    x = tl.load(logits_ptr + row * logits_stride + places, mask=places < vocab_size, other=float("-inf")).to(tl.float32)
    highest = tl.max(tl.max(x, 1), 0)
    bound = inverse * 0.0 + float("-inf")
    if vocab_size > SAMPLE:
        share = tl.full([], SAMPLE, tl.float32) / vocab_size
        if TOP_K:
            if k > 0:
                # As many of the sample as four standard deviations make safe.
                expected = k.to(tl.float32) * share
                bound = _value_below(x, highest, (expected + 4.0 * tl.sqrt(expected) + 8.0).to(tl.int32))
        if TOP_P:
            if (k == 0) & (p < 1.0):
                block = tl.arange(0, BLOCKS)
                known = block < num_blocks
                tops = tl.load(tops_ptr + row * num_blocks + block, mask=known, other=float("-inf"))
                sums = tl.load(sums_ptr + row * num_blocks + block, mask=known, other=0.0)
                peak = tl.max(tops, 0)
                base = tl.where(peak > float("-inf"), peak, 0.0)
                mass = tl.sum(sums * tl.exp((tops - base) * inverse), 0)
                tl.store(mass_ptr + row, mass)
                weights = weight_of(x, base, inverse, True)
                wanted = (1.0 - p) * mass * share
                bound = value_below_end(x, weights, wanted, base, inverse)
                if mass != mass:
                    # There is a NaN or an infinity.
                    tl.store(state_ptr + row, 2)
                elif tl.sum(tl.sum((x > bound).to(tl.int32), 1), 0) > MANY * share:
                    tl.store(high_ptr + row, value_above_end(x, weights, wanted, bound, base, inverse))
                    tl.store(peak_ptr + row, base)
                    tl.store(above_ptr + row, 0)
                    tl.store(within_ptr + row, 0)
                    tl.store(state_ptr + row, 6)
        if (k == 0) & (p >= 1.0):
            # The sample's largest logit is at most the row's. Room for what rounding does to either summand.
            below = floor / inverse
            bound = highest + below - 1e-5 * (tl.abs(highest) - below)
            if tl.sum(tl.sum((x > bound).to(tl.int32), 1), 0) > MANY * share:
                bound = highest
                tl.store(peak_ptr + row, highest)
                tl.store(state_ptr + row, 5)
    elif TOP_P:
        if (k == 0) & (p < 1.0):
            base = tl.where(highest > float("-inf"), highest, 0.0)
            tl.store(mass_ptr + row, tl.sum(tl.sum(weight_of(x, base, inverse, True), 1), 0))
    tl.store(bound_ptr + row, bound)


@jit
def _gather_kernel(
    gathered_ptr, gathered_ids_ptr, count_ptr, bad_ptr, state_ptr, bound_ptr, logits_ptr, vocab_size, logits_stride, chunk,
    CAPACITY: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """gathered, ids = the logits above a row's bound, in any order; bad where there is a NaN or an infinity.

    Program (i, j), one warp, does ids [j * chunk, (j + 1) * chunk) of row i. Traffic: element_bytes * vocab_size a row.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(state_ptr + row)
    if (state != 3) & (state != 5):
        return
    start = tl.program_id(1) * chunk
    stop = tl.minimum(start + chunk, vocab_size)
    line = tl.arange(0, BLOCK // 8)
    place = line[:, None] * 8 + tl.arange(0, 8)[None, :]
    logits_row = logits_ptr + row * logits_stride
    following = tl.load(logits_row + start + place, mask=start + place < stop, other=float("-inf"))
    bound = tl.load(bound_ptr + row)
    for first in range(start, stop, BLOCK):
        token = first + place
        x = following.to(tl.float32)
        following = tl.load(logits_row + token + BLOCK, mask=token + BLOCK < stop, other=float("-inf"))
        top = largest(x)
        if ~(top <= bound):
            if ~(top < float("inf")):
                tl.atomic_max(bad_ptr + row, 1)
            store_above(
                gathered_ptr + row * CAPACITY,
                gathered_ids_ptr + row * CAPACITY,
                count_ptr + row,
                x,
                first,
                bound,
                CAPACITY,
            )


@jit
def _decide_kernel(
    token_ids_ptr, undefined_ptr, state_ptr, bounds_ptr, gathered_ptr, gathered_ids_ptr, count_ptr, bad_ptr, above_ptr, bound_ptr,
    peak_ptr, mass_ptr, score_ptr, id_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, position_ptr, child_ptr,
    vocab_size, shift, num_chunks,
    GREEDY_BELOW: tl.constexpr, DOMAIN: tl.constexpr, CAPACITY: tl.constexpr, ROOM: tl.constexpr, CHUNKS: tl.constexpr,
    IS_LAST: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, FAST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """token_id = id of the best kept score, or bounds and state = 4; or state = 2 where what was gathered does not say.

    Program i does row i if it gathered at most CAPACITY ids; if not, it leaves the row to a larger launch, or IS_LAST to
    another kernel. Traffic: 8 bytes a gathered id.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(state_ptr + row)
    if (state < 3) | (state == 4):
        return
    size = tl.load(count_ptr + row)
    is_bad = tl.load(bad_ptr + row) > 0
    is_mine = (size <= CAPACITY) | is_bad
    inverse, k, p, floor = _filters(
        row, vocab_size, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, GREEDY_BELOW, TOP_K, TOP_P, MIN_P
    )
    mass = inverse * 0.0
    if TOP_P:
        # With top-k nobody wrote it.
        mass = tl.load(mass_ptr + row, mask=k == 0, other=0.0)
    domain = row * 0 + DOMAIN
    seed = tl.load(seed_ptr + row)
    position = tl.load(position_ptr + row)
    child = tl.load(child_ptr + row)
    picks = state != 5
    above = tl.load(above_ptr + row, mask=state == 6, other=0)
    peak = tl.load(peak_ptr + row, mask=state != 3, other=float("-inf"))
    best = inverse * 0.0
    best_id = size * 0
    is_found = is_bad
    if is_mine & (is_bad == 0):
        best, best_id, is_found = decide(
            gathered_ptr + row * ROOM, gathered_ids_ptr + row * ROOM, bounds_ptr + row * 4, size, tl.load(bound_ptr + row), peak,
            above, mass, inverse, k, p, floor, picks, seed, position, child, domain, vocab_size, shift,
            CAPACITY, TOP_K, TOP_P, MIN_P, FAST,
        )  # fmt: skip
        if TOP_P:
            if state == 6:
                top, top_id = best_above(score_ptr + row * num_chunks, id_ptr + row * num_chunks, num_chunks, CHUNKS)
                best_id = tl.where(top > best, top_id, tl.where(top < best, best_id, tl.minimum(best_id, top_id)))
                best = tl.maximum(best, top)
    picks |= is_bad
    if is_found & picks:
        is_undefined = is_bad | (best == float("-inf")) | (best == float("inf"))
        tl.store(token_ids_ptr + row, tl.where(is_undefined, 0, best_id))
        tl.store(undefined_ptr + row, is_undefined)
    if is_mine | IS_LAST:
        tl.store(state_ptr + row, tl.where(is_found, tl.where(picks, 1, 4), 2))


def launch_few(
    token_ids: Tensor,
    is_undefined: Tensor,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seed: Tensor,
    position: Tensor,
    child: Tensor,
    is_valid: Tensor | None,
    shift: int,
    launch_pdl: bool,
) -> Few:
    """Sample the filtered rows that keep few ids; say which rows are left. Mutates token_ids and is_undefined there."""
    num_rows, vocab_size = logits.shape
    device, stride = logits.device, logits.stride(0)
    bounds = torch.empty((num_rows, 4), dtype=torch.float32, device=device)
    chunk = chunk_size(num_rows, vocab_size, PASSING)
    num_chunks, num_blocks = cdiv(vocab_size, chunk), cdiv(vocab_size, BLOCK)
    gathered = torch.empty((num_rows, CAPACITY), dtype=torch.float32, device=device)
    gathered_ids = torch.empty((num_rows, CAPACITY), dtype=torch.int32, device=device)
    # Each begins at a multiple of 16 bytes: kernels are compiled anew for pointers that do not.
    padded = cdiv(num_rows, 4) * 4
    state, count, bad = torch.empty((3, padded), dtype=torch.int32, device=device)
    bound, high, peak, mass = torch.empty((4, padded), dtype=torch.float32, device=device)
    above, within = torch.empty((2, padded), dtype=torch.int64, device=device)
    tops, sums = torch.empty((2, padded, num_blocks), dtype=torch.float32, device=device)
    flags = {"TOP_K": top_k is not None, "PDL": not INTERPRETED}
    all_flags = flags | {"TOP_P": top_p is not None, "MIN_P": min_p is not None}
    options, scores, ids = {"launch_pdl": True} if launch_pdl else {}, None, None
    if top_p is not None:
        _mass_kernel[(num_rows, num_chunks)](
            tops, sums, logits, temperature, top_k, top_p, is_valid, vocab_size, stride, chunk,
            GREEDY_BELOW=GREEDY_BELOW, BLOCK=BLOCK, VALID=is_valid is not None, num_warps=1, **flags, **options,
        )  # fmt: skip
        options = {"launch_pdl": True}
    _bound_kernel[(num_rows,)](
        state, bound, high, peak, above, within, mass, count, bad, tops, sums, logits, temperature, top_k, top_p, min_p, is_valid,
        vocab_size, stride, num_blocks, GREEDY_BELOW=GREEDY_BELOW, SAMPLE=SAMPLE, BLOCKS=next_power_of_2(num_blocks),
        MANY=MANY, MAX_K=MAX_K, VALID=is_valid is not None, num_warps=BOUND_WARPS, **all_flags, **options,
    )  # fmt: skip
    _gather_kernel[(num_rows, num_chunks)](
        gathered, gathered_ids, count, bad, state, bound, logits, vocab_size, stride, chunk,
        CAPACITY=CAPACITY, BLOCK=BLOCK, PDL=not INTERPRETED, num_warps=1, launch_pdl=True,
    )  # fmt: skip
    if top_p is not None:
        scores, ids = launch_window(
            token_ids, is_undefined, gathered, gathered_ids, count, state, bound, high, peak, above, within, mass, logits,
            temperature, top_p, min_p, seed, position, child, chunk,
        )  # fmt: skip
    for capacity, num_warps in DECIDERS:
        _decide_kernel[(num_rows,)](
            token_ids, is_undefined, state, bounds, gathered, gathered_ids, count, bad, above, bound, peak, mass, scores, ids,
            temperature, top_k, top_p, min_p, seed, position, child, vocab_size, shift,
            0 if scores is None else scores.shape[1],
            CHUNKS=next_power_of_2(num_blocks), GREEDY_BELOW=GREEDY_BELOW, DOMAIN=SAMPLING_DOMAIN, CAPACITY=capacity, ROOM=CAPACITY,
            IS_LAST=capacity == CAPACITY, FAST=not INTERPRETED, num_warps=num_warps, launch_pdl=True, **all_flags,
        )  # fmt: skip
    return Few(state, bounds, gathered, gathered_ids)
