"""Top-p's end by a sample: a value below it and, where many ids are kept, one above it; and a pass that looks at what lies between.

What lies above such a window is kept, so the pass that adds up its mass also picks the best of it. In the window are few percent
of the mass, and seldom a better score: only then must it be known where the end is, and the window's ids are gathered.
"""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import INTERPRETED, cdiv, jit, next_power_of_2, tl
from nanofn_kernels.reference.noise import SAMPLING_DOMAIN
from nanofn_kernels.sample_decide import UNIT
from nanofn_kernels.sample_filter import weight_of
from nanofn_kernels.sample_pick import BLOCK, NO_ID, PROGRAMS, chunk_size, gumbel, noise_words

ACCEPTS = True
"""Whether a row may do without its end; False is for tests."""

REACH = tl.constexpr(40.0)
"""How far below the likeliest id an end is sought, in units of the temperature: what lies lower has e^-40 each."""

TURNS = tl.constexpr(10)
"""Bisections of a search: REACH / 1,024 is 0.04, less than the distance of bf16 numbers from 8 on."""

DEVIATIONS = tl.constexpr(3.5)
"""Standard deviations of the sample's mass that make a bound safe. Their estimate is an upper bound of it."""


@jit
def value_below_end(x, weights, wanted, peak, inverse):
    """A value that nearly surely lies below the end of top-p: the mass of the sample under it falls short of `wanted`.

    x, weights: the sample, of two dimensions. wanted: of the sample's mass, what lies below the end, were it as the row is.
    No id under a value weighs more than the value would, so the variance of their mass is at most the product of both. The
    head may have no one in the sample; a value that weighs more than a tenth of what is wanted is never taken.
    """
    smallest = tl.min(tl.min(tl.where(x > float("-inf"), x, peak), 1), 0)
    step = tl.minimum(tl.div_rn(REACH, inverse), 1.01 * (peak - smallest) + 1e-3)
    value = peak - step
    for _ in range(TURNS):
        step *= 0.5
        weight = weight_of(value + step, peak, inverse, True)
        below = tl.sum(tl.sum(tl.where(x <= value + step, weights, 0.0), 1), 0)
        is_safe = below <= wanted - DEVIATIONS * tl.sqrt(wanted * weight) - 0.5 * weight
        value = tl.where(is_safe, value + step, value)
    return value


@jit
def value_above_end(x, weights, wanted, low, peak, inverse):
    """A value that is nearly surely not below the end of top-p, which lies above `low`; the rest as `value_below_end`."""
    below = tl.where(x <= low, weights, 0.0)
    mass = tl.sum(tl.sum(below, 1), 0)
    squares = tl.sum(tl.sum(below * below, 1), 0)
    step = peak - low
    for _ in range(TURNS - 2):
        step *= 0.5
        weight = weight_of(low + step, peak, inverse, True)
        below_here = tl.sum(tl.sum(tl.where(x <= low + step, weights, 0.0), 1), 0)
        variance = squares + tl.maximum(wanted - mass, 0.0) * weight
        is_safe = below_here >= wanted + DEVIATIONS * (tl.sqrt(variance) + weight)
        low = tl.where(is_safe, low, low + step)
    return low + step


@jit
def _columns(x):
    """The 8 columns of [LINES, 8], each within the threads that have the lines: a store of the whole would move it between them."""
    LINES: tl.constexpr = x.shape[0]
    even, odd = tl.split(tl.reshape(x, [LINES, 4, 2]))
    c04, c26 = tl.split(tl.reshape(even, [LINES, 2, 2]))
    c15, c37 = tl.split(tl.reshape(odd, [LINES, 2, 2]))
    c0, c4 = tl.split(c04)
    c1, c5 = tl.split(c15)
    c2, c6 = tl.split(c26)
    c3, c7 = tl.split(c37)
    return c0, c1, c2, c3, c4, c5, c6, c7


@jit
def store_above(gathered, gathered_ids, count, x, first, bound, CAPACITY: tl.constexpr):
    """Append what is above a bound, and its ids from `first` on, to what was gathered."""
    LINES: tl.constexpr = x.shape[0]
    counts = tl.sum((x > bound).to(tl.int32), 1)
    at = tl.atomic_add(count, tl.sum(counts, 0), sem="relaxed")
    slot = at + tl.cumsum(counts, 0) - counts
    columns = _columns(x)
    for column in tl.static_range(8):
        is_in = columns[column] > bound
        fits = is_in & (slot < CAPACITY)
        tl.store(gathered + slot, columns[column], mask=fits)
        tl.store(gathered_ids + slot, first + tl.arange(0, LINES) * 8 + column, mask=fits)
        slot += is_in.to(tl.int32)


@jit
def _exp2(x, FAST: tl.constexpr):
    """2^x; fast is the hardware's, 2^-22 of it, and 0 below 2^-126."""
    if FAST:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.exp2(x)


@jit
def _in_units(weights):
    """Sums of [LINES, 4] weights in 32 numbers, which a warp's threads have. What adds up is whole, so no order matters."""
    lines = tl.reshape(tl.sum(weights, 1), [weights.shape[0] // 32, 32])
    return (tl.sum(lines, 0) * UNIT + 0.5).to(tl.int64)


@jit
def _window_kernel(
    score_ptr, id_ptr, rival_ptr, above_ptr, within_ptr, state_ptr, bound_ptr, high_ptr, peak_ptr, logits_ptr, temperature_ptr,
    min_p_ptr, seed_ptr, position_ptr, child_ptr, vocab_size, logits_stride, chunk,
    DOMAIN: tl.constexpr, BLOCK: tl.constexpr, MIN_P: tl.constexpr, FAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """score, id = the best of what lies above a window, in a chunk, as in `sample_pick`; rival = a score in the window.

    A score in the window that is at least the row's best above it is a rival of its chunk, or less than the rival.
    above, within = the mass above the window and in it, in units.
    Program (i, j), one warp, does ids [j * chunk, (j + 1) * chunk) of row i. Traffic: element_bytes * vocab_size a row.
    """
    QUADS: tl.constexpr = BLOCK // 4
    LOG2_E: tl.constexpr = 1.4426950408889634
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    if tl.load(state_ptr + row) != 6:
        return
    start = tl.program_id(1) * chunk
    stop = tl.minimum(start + chunk, vocab_size)
    quad = tl.arange(0, QUADS)
    place = quad[:, None] * 4 + tl.arange(0, 4)[None, :]
    logits_row = logits_ptr + row * logits_stride
    following = tl.load(logits_row + start + place, mask=start + place < stop, other=float("-inf"))
    bound = tl.load(bound_ptr + row)
    high = tl.load(high_ptr + row)
    peak = tl.load(peak_ptr + row)
    inverse = tl.div_rn(1.0, tl.load(temperature_ptr + row))
    domain = row * 0 + DOMAIN
    seed = tl.load(seed_ptr + row)
    position = tl.load(position_ptr + row)
    child = tl.load(child_ptr + row)
    floor = inverse * 0.0
    if MIN_P:
        least = tl.minimum(tl.load(min_p_ptr + row), 1.0)
        floor = tl.where(least > 0.0, tl.log(tl.maximum(least, 1.2e-38)), float("-inf"))
    above = tl.zeros([32], tl.int64)
    within = tl.zeros([32], tl.int64)
    best = peak * 0 + float("-inf")
    best_id = start * 0 + NO_ID
    rival = best
    for first in range(start, stop, BLOCK):
        token = first + place
        x = following.to(tl.float32)
        following = tl.load(logits_row + token + BLOCK, mask=token + BLOCK < stop, other=float("-inf"))
        is_above = x > high
        weights = tl.where(x > bound, _exp2((x - peak) * (inverse * LOG2_E), FAST), 0.0)
        above += _in_units(tl.where(is_above, weights, 0.0))
        within += _in_units(tl.where(is_above, 0.0, weights))
        words = noise_words((first // 4 + quad).to(tl.uint32), seed, position, child, domain)
        is_first = best == float("-inf")
        # `sample_pick`'s margin, of the weights that are there: a word has to be under 2^32 exp(x * inverse - best). Were that
        # farther below the peak than 60, every weight from e^-REACH on would do.
        to_beat = tl.where(is_first, 0.0, best)
        scale = tl.exp(tl.minimum(peak * inverse - to_beat, 60.0) + 1e-4 + 1e-6 * tl.abs(to_beat)) * 4294967296.0
        has_margin = (tl.max(weights * scale - words.to(tl.float32), 1) > 0.0).to(tl.int32)
        if is_first | (tl.max(has_margin, 0) > 0):
            is_kept = x > bound
            if MIN_P:
                is_kept &= (x - peak) * inverse >= floor
            score = tl.where(is_kept, x * inverse + gumbel(words, FAST), float("-inf"))
            rival = tl.maximum(rival, tl.max(tl.max(tl.where(is_above, float("-inf"), score), 1), 0))
            score = tl.where(is_above, score, float("-inf"))
            highest = tl.max(tl.max(score, 1), 0)
            if highest > best:
                best = highest
                best_id = tl.min(tl.min(tl.where(score == highest, token, NO_ID), 1), 0)
    tl.atomic_add(above_ptr + row, tl.sum(above, 0), sem="relaxed")
    tl.atomic_add(within_ptr + row, tl.sum(within, 0), sem="relaxed")
    at = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(score_ptr + at, best)
    tl.store(id_ptr + at, best_id)
    tl.store(rival_ptr + at, rival)


@jit
def best_above(score_ptr, id_ptr, num_chunks, CHUNKS: tl.constexpr):
    """The best score of a row's chunks and its id, the lowest on ties."""
    chunk = tl.arange(0, CHUNKS)
    scores = tl.load(score_ptr + chunk, mask=chunk < num_chunks, other=float("-inf"))
    ids = tl.load(id_ptr + chunk, mask=chunk < num_chunks, other=NO_ID)
    best = tl.max(scores, 0)
    return best, tl.min(tl.where(scores == best, ids, NO_ID), 0)


@jit
def _settle_kernel(
    token_ids_ptr, undefined_ptr, gathered_ptr, gathered_ids_ptr, count_ptr, state_ptr, bound_ptr, high_ptr, score_ptr, id_ptr,
    rival_ptr, above_ptr, within_ptr, mass_ptr, top_p_ptr, logits_ptr, vocab_size, logits_stride, num_chunks, chunk,
    ACCEPTS: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """token_id = the best of what lies above the window, if the end lies in the window and nothing there has as good a score.

    If not, gathered, ids = the logits in the window, in any order. Program (i, j), one warp, does ids [j * chunk, (j + 1) * chunk)
    of row i. Traffic: 12 * num_chunks bytes a program, and element_bytes * vocab_size for a row that is gathered.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    # Of a row that is settled every program finds so, whether it still sees 6 here or not.
    if tl.load(state_ptr + row) != 6:
        return
    best, best_id = best_above(score_ptr + row * num_chunks, id_ptr + row * num_chunks, num_chunks, CHUNKS)
    piece = tl.arange(0, CHUNKS)
    rivals = tl.load(rival_ptr + row * num_chunks + piece, mask=piece < num_chunks, other=float("-inf"))
    above = tl.load(above_ptr + row)
    target = tl.maximum((tl.load(top_p_ptr + row) * (tl.load(mass_ptr + row) * UNIT)).to(tl.int64), 1)
    is_in = (above < target) & (above + tl.load(within_ptr + row) >= target)
    if ACCEPTS & is_in & (tl.max(rivals, 0) < best):
        if tl.program_id(1) == 0:
            tl.store(token_ids_ptr + row, best_id)
            tl.store(undefined_ptr + row, False)
            tl.store(state_ptr + row, 1)
        return
    start = tl.program_id(1) * chunk
    stop = tl.minimum(start + chunk, vocab_size)
    place = tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    bound = tl.load(bound_ptr + row)
    high = tl.load(high_ptr + row)
    for first in range(start, stop, BLOCK):
        x = tl.load(
            logits_ptr + row * logits_stride + first + place, mask=first + place < stop, other=float("-inf")
        ).to(tl.float32)
        x = tl.where(x <= high, x, float("-inf"))
        if tl.max(tl.max(x, 1), 0) > bound:
            store_above(
                gathered_ptr + row * CAPACITY,
                gathered_ids_ptr + row * CAPACITY,
                count_ptr + row,
                x,
                first,
                bound,
                CAPACITY,
            )


def launch_window(
    token_ids: Tensor,
    is_undefined: Tensor,
    gathered: Tensor,
    gathered_ids: Tensor,
    count: Tensor,
    state: Tensor,
    bound: Tensor,
    high: Tensor,
    peak: Tensor,
    above: Tensor,
    within: Tensor,
    mass: Tensor,
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    min_p: Tensor | None,
    seed: Tensor,
    position: Tensor,
    child: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Sample the rows that have a window and no rival in it; gather the window of the others.

    Mutates token_ids, is_undefined and state there, and what is gathered, above and within of rows with a window.

    Returns:
        The best score above the window of every row and chunk, and its id; unwritten for rows without a window.
    """
    (num_rows, vocab_size), device, stride = logits.shape, logits.device, logits.stride(0)
    own_chunk = chunk_size(num_rows, vocab_size, PROGRAMS)
    num_chunks = cdiv(vocab_size, own_chunk)
    scores, rivals = (torch.empty((num_rows, num_chunks), dtype=torch.float32, device=device) for _ in range(2))
    ids = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=device)
    # 128 registers leave room for 16 programs on a multiprocessor, and so for all of them in one round.
    _window_kernel[(num_rows, num_chunks)](
        scores, ids, rivals, above, within, state, bound, high, peak, logits, temperature, min_p, seed, position, child, vocab_size,
        stride, own_chunk, DOMAIN=SAMPLING_DOMAIN, BLOCK=BLOCK, MIN_P=min_p is not None, FAST=not INTERPRETED,
        PDL=not INTERPRETED, num_warps=1, maxnreg=128, launch_pdl=True,
    )  # fmt: skip
    _settle_kernel[(num_rows, cdiv(vocab_size, chunk))](
        token_ids, is_undefined, gathered, gathered_ids, count, state, bound, high, scores, ids, rivals, above, within, mass, top_p,
        logits, vocab_size, stride, num_chunks, chunk, ACCEPTS=ACCEPTS, CAPACITY=gathered.shape[1], BLOCK=BLOCK,
        CHUNKS=next_power_of_2(cdiv(vocab_size, BLOCK)), PDL=not INTERPRETED, num_warps=1, launch_pdl=True,
    )  # fmt: skip
    return scores, ids
