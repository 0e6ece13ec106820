"""Top-p's end by a sample: a value below it and, where many ids are kept, one above it; and a pass that looks at what lies between.

What lies above such a window is kept, so the pass that adds up its mass also picks the best of it. In the window are few percent
of the mass, and seldom a better score: only then must it be known where the end is, and the window's ids are gathered.
"""

from nanofn_kernels._dispatch import jit, tl
from nanofn_kernels.sample_decide import UNIT
from nanofn_kernels.sample_filter import weight_of
from nanofn_kernels.sample_pick import NO_ID, gumbel, largest, margin_of, noise_words

REACH = tl.constexpr(40.0)
"""How far below the likeliest id an end is sought, in units of the temperature: what lies lower has e^-40 each."""

TURNS = tl.constexpr(10)
"""Bisections of a search: REACH / 1,024 is 0.04, less than the distance of bf16 numbers from 8 on."""

DEVIATIONS = tl.constexpr(3.0)
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
def window_kernel(
    score_ptr, id_ptr, rival_ptr, above_ptr, within_ptr, bad_ptr, state_ptr, bound_ptr, high_ptr, peak_ptr, logits_ptr,
    temperature_ptr, min_p_ptr, seed_ptr, position_ptr, child_ptr, vocab_size, logits_stride, chunk,
    DOMAIN: tl.constexpr, BLOCK: tl.constexpr, MIN_P: tl.constexpr, FAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """score, id = the best of what lies above a window, in a chunk, as in `sample_pick`; rival = a score in the window.

    A score in the window that is at least the row's best above it is a rival of its chunk, or less than the rival.
    above, within = the mass above the window and in it, in units; bad where there is a NaN or an infinity.
    Program (i, j), one warp, does ids [j * chunk, (j + 1) * chunk) of row i. Traffic: element_bytes * vocab_size a row.
    """
    QUADS: tl.constexpr = BLOCK // 4
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
    least = inverse * 0.0
    if MIN_P:
        least = tl.minimum(tl.load(min_p_ptr + row), 1.0)
    floor = tl.where(least > 0.0, tl.log(tl.maximum(least, 1.2e-38)), float("-inf"))
    above = row * 0
    within = row * 0
    best = peak * 0 + float("-inf")
    best_id = start * 0 + NO_ID
    rival = best
    for first in range(start, stop, BLOCK):
        token = first + place
        x = following.to(tl.float32)
        following = tl.load(logits_row + token + BLOCK, mask=token + BLOCK < stop, other=float("-inf"))
        top = largest(x)
        if ~(top <= bound):
            if ~(top < float("inf")):
                tl.atomic_max(bad_ptr + row, 1)
            is_above = x > high
            weights = tl.where(x > bound, weight_of(x, peak, inverse, True), 0.0)
            # A block's sums, whatever the chunk, as in the pass for the mass; from there on integers.
            mass_above = tl.sum(tl.sum(tl.where(is_above, weights, 0.0), 1), 0)
            above += (mass_above * UNIT).to(tl.int64)
            within += ((tl.sum(tl.sum(weights, 1), 0) - mass_above) * UNIT).to(tl.int64)
            words = noise_words((first // 4 + quad).to(tl.uint32), seed, position, child, domain)
            is_kept = (x > bound) & ((x - peak) * inverse >= floor)
            is_first = best == float("-inf")
            margin = margin_of(x, words, inverse, tl.where(is_first, 0.0, best))
            if is_first | (largest(tl.where(is_kept, margin, -1.0)) > 0.0):
                score = tl.where(is_kept, x * inverse + gumbel(words, FAST), float("-inf"))
                rival = tl.maximum(rival, tl.max(tl.max(tl.where(is_above, float("-inf"), score), 1), 0))
                score = tl.where(is_above, score, float("-inf"))
                highest = tl.max(tl.max(score, 1), 0)
                if highest > best:
                    best = highest
                    best_id = tl.min(tl.min(tl.where(score == highest, token, NO_ID), 1), 0)
    tl.atomic_add(above_ptr + row, above, sem="relaxed")
    tl.atomic_add(within_ptr + row, within, sem="relaxed")
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
def accept_kernel(
    token_ids_ptr, undefined_ptr, state_ptr, score_ptr, id_ptr, rival_ptr, above_ptr, within_ptr, bad_ptr, mass_ptr, top_p_ptr,
    num_chunks, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """token_id = the best of what lies above the window, if the end lies in the window and nothing there has as good a score.

    Program i does row i. Traffic: 12 * num_chunks + 40 bytes a row.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    if tl.load(state_ptr + row) != 6:
        return
    best, best_id = best_above(score_ptr + row * num_chunks, id_ptr + row * num_chunks, num_chunks, CHUNKS)
    chunk = tl.arange(0, CHUNKS)
    rival = tl.max(
        tl.load(rival_ptr + row * num_chunks + chunk, mask=chunk < num_chunks, other=float("-inf")), 0
    )
    above = tl.load(above_ptr + row)
    target = tl.maximum((tl.load(top_p_ptr + row) * (tl.load(mass_ptr + row) * UNIT)).to(tl.int64), 1)
    is_in = (above < target) & (above + tl.load(within_ptr + row) >= target)
    if is_in & (rival < best) & (tl.load(bad_ptr + row) == 0):
        tl.store(token_ids_ptr + row, best_id)
        tl.store(undefined_ptr + row, False)
        tl.store(state_ptr + row, 1)
