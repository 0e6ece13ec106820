"""Where top-k and top-p end among gathered ids, and the best of those that they and min-p keep: in integers, so order cannot matter."""

from nanofn_kernels._dispatch import jit, tl
from nanofn_kernels.sample_filter import key_of, value_of, weight_of
from nanofn_kernels.sample_pick import NO_ID, gumbel, noise_word

UNIT = tl.constexpr(1 << 27)
"""The weight of the likeliest id, in integers: the weights that a thread has in a line fit 32 bits."""


@jit
def _sum(weights):
    """The sum of [LINES, 4] int32: a line is one thread's, and only what it makes needs 64 bits."""
    return tl.sum(tl.sum(weights, 1).to(tl.int64), 0)


@jit
def _prefix(x, ids, weights, low, high, target, vocab_size, shift):
    """The last x, and an id, of the shortest prefix by (x falling, id rising) whose integer weight reaches a target.

    Of the ids with the last x those up to that id are in the prefix. The last x has its key in (low, high].
    """
    while low + 1 < high:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        is_low = _sum(tl.where(x > value_of(middle, shift), weights, 0)) >= target
        low = tl.where(is_low, middle, low)
        high = tl.where(is_low, high, middle)
    end = value_of(high, shift)
    missing = target - _sum(tl.where(x > end, weights, 0))
    ties = tl.where(x == end, weights, 0)
    weight = tl.max(tl.max(ties, 1), 0)
    # The fewest of the ties, lower ids first, that make up what is missing: any id that parts them from the rest will do.
    first = -1
    last = vocab_size - 1
    reached = _sum(ties)
    while (reached - weight >= missing) & (first + 1 < last):
        middle = (first + last) >> 1
        here = _sum(tl.where(ids <= middle, ties, 0))
        first = tl.where(here >= missing, first, middle)
        last = tl.where(here >= missing, middle, last)
        reached = tl.where(here >= missing, here, reached)
    return end, last


@jit
def _is_in(x, ids, end, last):
    return (x > end) | ((x == end) & (ids <= last))


@jit
def decide(
    gathered, gathered_ids, bounds, size, bound, peak, above, mass, inverse, k, p, floor, picks, seed, position, child, domain,
    vocab_size, shift,
    CAPACITY: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The best score among the kept of the gathered ids, its id, and whether the end is among them.

    Mutates bounds: top-p's, the row's largest logit and min-p's floor. peak: at most the row's largest logit, and equal to it if
    that was not gathered. above: the row's mass above everything gathered. If it is not to pick, there is no best score.
    """
    slot = tl.arange(0, CAPACITY // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    is_known = slot < size
    x = tl.load(gathered + slot, mask=is_known, other=float("-inf"))
    ids = tl.load(gathered_ids + slot, mask=is_known, other=NO_ID)
    top = tl.max(tl.max(x, 1), 0)
    peak = tl.maximum(peak, top)
    # Everything gathered lies above the bound. Between two negative numbers of the logits' type it has the upper one's key.
    low = key_of(bound, shift) - 1
    high = key_of(top, shift)
    is_found = (size > 0) | ~picks
    k_end = inverse * 0.0 + float("-inf")
    k_last = vocab_size
    p_end = k_end
    p_last = size * 0 + vocab_size
    if TOP_K:
        if k > 0:
            is_found &= size >= k
            # Every id weighs k. With 1 the compiler counts bits, and packs them through local memory.
            k_end, k_last = _prefix(
                x, ids, tl.where(is_known, k, 0), low, high, k.to(tl.int64) * k, vocab_size, shift
            )  # fmt: skip
    if TOP_P:
        if (p < 1.0) & is_found:
            weights = (weight_of(x, peak, inverse, True) * UNIT + 0.5).to(tl.int32)
            weights = tl.where(is_known & _is_in(x, ids, k_end, k_last), tl.maximum(weights, 1), 0)
            there = _sum(weights)
            total = tl.where(k > 0, there.to(tl.float32), mass * UNIT)
            target = tl.maximum((p * total).to(tl.int64), 1) - above
            is_found &= (target > 0) & (there >= target)
            p_end, p_last = _prefix(x, ids, weights, low, high, target, vocab_size, shift)
    best = k_end
    best_id = size * 0
    if picks:
        is_kept = is_known & _is_in(x, ids, k_end, k_last) & _is_in(x, ids, p_end, p_last)
        if MIN_P:
            is_kept &= (x - peak) * inverse >= floor
        noise = gumbel(noise_word(ids, seed, position, child, domain), FAST)
        score = tl.where(is_kept, x * inverse + noise, float("-inf"))
        best = tl.max(tl.max(score, 1), 0)
        best_id = tl.min(tl.min(tl.where(score == best, ids, NO_ID), 1), 0)
    tl.store(bounds, p_end)
    tl.store(bounds + 1, p_last.to(tl.float32, bitcast=True))
    tl.store(bounds + 2, peak)
    tl.store(bounds + 3, floor)
    return best, best_id, is_found
