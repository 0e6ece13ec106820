"""Rows of which top-p keeps many: what a sample says about how high its end can lie."""

from nanofn_kernels._dispatch import jit, tl
from nanofn_kernels.sample_filter import end_key, value_of, weight_of


@jit
def value_above_end(keys, weights, low, highest, kept, peak, inverse, shift):
    """A value that is nearly surely not below the end of top-p; +inf where the sample cannot say.

    keys, weights: the sample's, of two dimensions. low: a key nearly surely below the end. highest: the largest of the keys.
    kept: the sample's weight above the end, were it as the row is.
    """
    SAMPLE: tl.constexpr = keys.shape[0] * keys.shape[1]
    end = highest
    margin = kept * 0.0
    target = kept
    # First where the sample has its own end; then four standard deviations of its weight below that end, and four ids,
    # farther up. A loop that is run, so that the search is compiled once.
    for _ in range(2):
        target = kept - margin
        end = end_key(keys, weights, low, highest, 0.0, target)
        below = tl.where(keys <= end, weights, 0.0)
        sums = tl.sum(tl.sum(below, 1), 0)
        variance = tl.sum(tl.sum(below * below, 1), 0) - sums * sums / SAMPLE
        margin = 4.0 * (tl.sqrt(tl.maximum(variance, 0.0)) + weight_of(value_of(end, shift), peak, inverse, True))
        low = end - 1
    return tl.where(target > 0.0, value_of(end, shift), float("inf"))
