"""Where top-k, top-p and min-p cut a row, whatever they keep: thresholds by pivots over a row in L2, without sorting it.

The kept ids are a prefix of the ids ordered by falling logit, lower ids first. A prefix is given by its last value and, if
only some of the ids with that value are kept, by the last of them. It ends where the weight before an id reaches a target:
every id weighs 1 for top-k (target k), and exp((x - max) / temperature) for top-p (target p times the weight top-k left).

1. A sample of 8,192 logits says about where the end is: four pivots around it.
2. One pass over the row adds up the weight above each pivot; the end lies between two of them.
3. One pass gathers the logits between those two. If they do not fit the scratch, four new pivots between, and again.
4. The end is found among the gathered by bisection in registers. No sum depends on the order in which programs run.
"""

from dataclasses import dataclass

from torch import Tensor

from nanofn_kernels._dispatch import INTERPRETED, jit, tl

GATHERED = 8192
"""Logits of one row that the scratch holds; also the size of the sample."""


@dataclass(frozen=True)
class Few:
    """What `sample_few` leaves behind.

    Attributes:
        state: [at least num_rows] int32. 0 not filtered, 1 done or padding, 2 for this module, 4 its bounds are known.
        bounds: [num_rows, 4] fp32. Written where known: last kept value, last kept id of that value (the bits of an int32),
            largest logit, log(min_p).
        gathered: [num_rows, capacity] fp32 scratch.
        gathered_ids: [num_rows, capacity] int32 scratch.
    """

    state: Tensor
    bounds: Tensor
    gathered: Tensor
    gathered_ids: Tensor


STAGES = tl.constexpr(3)
"""Blocks of a row in flight."""

ROW_BLOCK_BYTES = 8192
"""What one step of a pass over a row reads."""

SMALL = 2048
"""Up to this k everything from the end upwards is gathered, so top-p needs no pass of its own."""


@jit
def key_of(x, shift):
    """An int32 that orders as x does; without the low bits, which are equal in all values of a 16-bit type."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> shift


@jit
def value_of(key, shift):
    """The largest x with this key."""
    bits = (key << shift) | ((1 << shift) - 1)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits & -(1 << shift)).to(tl.float32, bitcast=True)


@jit
def weight_of(x, peak, inverse, by_mass):
    """1 for every id, or its probability relative to the likeliest."""
    weight = tl.where(x == x, 1.0, 1.0)
    if by_mass:
        weight = tl.exp((x - peak) * inverse)
    return weight


@jit
def end_key(keys, weights, low, high, base, target):
    """The least key in (low, high] before which the weight is under the target; `base` weighs what lies above all keys."""
    while low + 1 < high:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        is_low = base + tl.sum(tl.sum(tl.where(keys > middle, weights, 0.0), 1), 0) >= target
        low = tl.where(is_low, middle, low)
        high = tl.where(is_low, high, middle)
    return high


@jit
def _find(ptr, size, value, rank, BLOCK: tl.constexpr):
    """The place of the rank-th number equal to a value, counting from 1; size - 1 if there are fewer."""
    place = size - 1
    seen = 0
    start = 0
    while start < size:
        here = start + tl.arange(0, BLOCK)
        x = tl.load(ptr + here, mask=here < size, other=float("nan")).to(tl.float32)
        is_equal = (x == value).to(tl.int32)
        found = tl.sum(is_equal, 0)
        start += BLOCK
        if seen + found >= rank:
            counted = seen + tl.cumsum(is_equal, 0)
            place = tl.min(tl.where((counted == rank) & (is_equal > 0), here, size - 1), 0)
            start = size
        seen += found
    return place


@jit
def _above(logits, vocab_size, v0, v1, v2, v3, peak, inverse, by_mass, BLOCK: tl.constexpr):
    """The weight above each of four values, in one pass."""
    line = tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    s0 = tl.zeros([BLOCK // 8], tl.float32)
    s1 = tl.zeros([BLOCK // 8], tl.float32)
    s2 = tl.zeros([BLOCK // 8], tl.float32)
    s3 = tl.zeros([BLOCK // 8], tl.float32)
    for first in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
        x = tl.load(logits + first + line, mask=first + line < vocab_size, other=float("-inf")).to(tl.float32)
        weight = weight_of(x, peak, inverse, by_mass)
        s0 += tl.sum(tl.where(x > v0, weight, 0.0), 1)
        s1 += tl.sum(tl.where(x > v1, weight, 0.0), 1)
        s2 += tl.sum(tl.where(x > v2, weight, 0.0), 1)
        s3 += tl.sum(tl.where(x > v3, weight, 0.0), 1)
    return tl.sum(s0, 0), tl.sum(s1, 0), tl.sum(s2, 0), tl.sum(s3, 0)


@jit
def _gather(
    gathered, gathered_ids, logits, vocab_size, low_value, high_value, GATHERED: tl.constexpr, BLOCK: tl.constexpr
):
    """Store the logits in (low_value, high_value] and their ids, in the order of ids; return how many there are."""
    size = 0
    line = tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.debug_barrier()
    for first in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
        token = first + line
        x = tl.load(logits + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
        is_in = ((x > low_value) & (x <= high_value)).to(tl.int32)
        counts = tl.sum(is_in, 1)
        found = tl.sum(counts, 0)
        if found > 0:
            place = size + (tl.cumsum(counts, 0) - counts)[:, None] + tl.cumsum(is_in, 1) - 1
            fits = (is_in > 0) & (place < GATHERED)
            tl.store(gathered + place, x, mask=fits)
            tl.store(gathered_ids + place, token, mask=fits)
        size += found
    tl.debug_barrier()
    return size


@jit
def _narrow(low, high, base, key, above, target, keep_high):
    """Move one end of (low, high] to a key whose weight above is known."""
    is_low = above >= target
    low = tl.where(is_low & (key > low), key, low)
    is_high = (above < target) & (key < high) & (keep_high == 0)
    high = tl.where(is_high, key, high)
    base = tl.where(is_high, above, base)
    return low, high, base


@jit
def _pivots(
    logits, vocab_size, low, high, target, total, peak, inverse, by_mass, SHIFT: tl.constexpr, GATHERED: tl.constexpr
):
    """Four keys around the end, by a sample of the row."""
    # Pieces of 64 neighbours, evenly spread: the ids of a vocabulary are not in random order.
    piece = tl.arange(0, GATHERED // 8)
    spacing = vocab_size // (GATHERED // 64)
    places = ((piece // 8) * spacing + (piece % 8) * 8)[:, None] + tl.arange(0, 8)[None, :]
    sample = tl.load(logits + places).to(tl.float32)
    keys = key_of(sample, SHIFT)
    weights = weight_of(sample, peak, inverse, by_mass)
    weight = tl.sum(tl.sum(weights, 1), 0)
    squares = tl.sum(tl.sum(weights * weights, 1), 0)
    part = target / total
    # Four standard deviations of a part of the sample's weight, and one.
    far = 4.0 * tl.sqrt(tl.maximum(part * (1.0 - part), 0.0) * squares) + 4.0 * weight / GATHERED
    k0 = low
    k1 = low
    k2 = low
    k3 = low
    # A loop that is run, so that the search is compiled once.
    for i in range(4):
        offset = tl.where((i == 0) | (i == 3), far, 0.25 * far)
        key = end_key(keys, weights, low, high, 0.0, part * weight + tl.where(i < 2, -offset, offset))
        k0 = tl.where(i == 0, key, k0)
        k1 = tl.where(i == 1, key, k1)
        k2 = tl.where(i == 2, key, k2)
        k3 = tl.where(i == 3, key, k3)
    return k0, k1, k2, k3


@jit
def _gather_end(
    gathered, gathered_ids, logits, vocab_size, target, total, peak, inverse, by_mass, keep_high,
    SHIFT: tl.constexpr, GATHERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gather the logits around the end: the keys (low, high] they have, the weight above them and their number."""
    low = key_of(tl.full([], float("-inf"), tl.float32), SHIFT)
    high = key_of(peak, SHIFT)
    base = tl.full([], 0.0, tl.float32)
    k0 = low
    k1 = low
    k2 = low
    k3 = low
    if vocab_size > GATHERED:
        k0, k1, k2, k3 = _pivots(logits, vocab_size, low, high, target, total, peak, inverse, by_mass, SHIFT, GATHERED)
    size = vocab_size
    keeps = keep_high
    goes_on = True
    while goes_on:
        if vocab_size > GATHERED:
            a0, a1, a2, a3 = _above(
                logits, vocab_size, value_of(k0, SHIFT), value_of(k1, SHIFT), value_of(k2, SHIFT), value_of(k3, SHIFT), peak,
                inverse, by_mass, BLOCK,
            )  # fmt: skip
            low, high, base = _narrow(low, high, base, k0, a0, target, keeps)
            low, high, base = _narrow(low, high, base, k1, a1, target, keeps)
            low, high, base = _narrow(low, high, base, k2, a2, target, keeps)
            low, high, base = _narrow(low, high, base, k3, a3, target, keeps)
        size = _gather(
            gathered, gathered_ids, logits, vocab_size, value_of(low, SHIFT), value_of(high, SHIFT), GATHERED, BLOCK
        )
        keeps = False
        width = high.to(tl.int64) - low
        k0 = (low + width * 4 // 5).to(tl.int32)
        k1 = (low + width * 3 // 5).to(tl.int32)
        k2 = (low + width * 2 // 5).to(tl.int32)
        k3 = (low + (width + 4) // 5).to(tl.int32)
        goes_on = (size > GATHERED) & (low + 1 < high) & (target == target)  # NaN would narrow nothing
    return low, high, base, size


@jit
def _places(size, GATHERED: tl.constexpr):
    """The places of the scratch, as a function of how many are taken: known ahead, they would be kept in local memory."""
    zero = tl.multiple_of(tl.minimum(size, 0), 8)
    return zero + tl.arange(0, GATHERED // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]


@jit
def _find_end(
    gathered, gathered_ids, logits, vocab_size, size, low, high, base, target, peak, inverse, by_mass,
    SHIFT: tl.constexpr, GATHERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The end's key and its last kept id, from what was gathered; from the row if that was too much, as its keys are equal."""
    end = high
    before = base
    last_id = vocab_size
    if size <= GATHERED:
        line = _places(size, GATHERED)
        x = tl.load(gathered + line, mask=line < size, other=float("-inf"))
        weights = tl.where(line < size, weight_of(x, peak, inverse, by_mass), 0.0)
        keys = key_of(x, SHIFT)
        end = end_key(keys, weights, low, high, base, target)
        before = base + tl.sum(tl.sum(tl.where(keys > end, weights, 0.0), 1), 0)
    value = value_of(end, SHIFT)
    rank = tl.ceil((target - before) / weight_of(value, peak, inverse, by_mass))
    rank = tl.maximum(tl.minimum(rank, 1.0e9), 1.0).to(tl.int32)
    if size <= GATHERED:
        last_id = tl.load(gathered_ids + _find(gathered, size, value, rank, BLOCK))
    else:
        last_id = _find(logits, vocab_size, value, rank, BLOCK)
    return end, last_id


@jit
def _filter_kernel(
    bounds_ptr, state_ptr, gathered_ptr, gathered_ids_ptr, logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr,
    vocab_size, logits_stride,
    SHIFT: tl.constexpr, CAPACITY: tl.constexpr, GATHERED: tl.constexpr, SMALL: tl.constexpr, BLOCK: tl.constexpr,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """bounds = (last kept value, last kept id of that value, largest logit, log(min_p)) of a row.

    Program i does row i if its state is 2 and its largest logit is finite.
    Traffic: element_bytes * vocab_size a row from memory, and 2 to 3 times as much from L2.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    if tl.load(state_ptr + row) != 2:
        return
    inverse = tl.div_rn(1.0, tl.load(temperature_ptr + row))
    k = tl.full([], 0, tl.int32)
    p = tl.full([], 1.0, tl.float32)
    floor = float("-inf")
    if TOP_K:
        k = tl.minimum(tl.load(top_k_ptr + row), vocab_size).to(tl.int32)
    if TOP_P:
        p = tl.load(top_p_ptr + row)
    if MIN_P:
        least = tl.minimum(tl.load(min_p_ptr + row), 1.0)
        floor = tl.where(least > 0.0, tl.log(tl.maximum(least, 1.2e-38)), float("-inf"))
    has_k = (k > 0) & (k < vocab_size)
    has_p = p < 1.0
    logits = logits_ptr + row * logits_stride
    gathered = gathered_ptr + row * CAPACITY
    gathered_ids = gathered_ids_ptr + row * CAPACITY
    line = tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    peak = 0.0
    if has_k | has_p | (floor > float("-inf")):
        tops = tl.full([BLOCK // 8], float("-inf"), tl.float32)
        for first in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
            x = tl.load(logits + first + line, mask=first + line < vocab_size, other=float("-inf")).to(tl.float32)
            tops = tl.maximum(tops, tl.max(x, 1))
        peak = tl.max(tops, 0)
    # Without a distribution there is no end: weights are NaN, and no pivot would narrow the search. Its logits flag the row.
    if (peak == float("inf")) | (peak == float("-inf")):
        return
    end = key_of(tl.full([], float("-inf"), tl.float32), SHIFT)
    last_id = vocab_size
    low = end
    high = end
    base = tl.full([], 0.0, tl.float32)
    size = vocab_size * 0
    is_all = False
    # Top-k, then top-p: a loop that is run, so that the search is compiled once.
    for turn in range(2 if TOP_P else 1):
        by_mass = turn == 1
        if (has_p & by_mass) | (has_k & (turn == 0)):
            target = tl.cast(k, tl.float32)
            total = tl.cast(vocab_size, tl.float32)
            if by_mass:
                bound = value_of(end, SHIFT)
                if is_all:
                    # Everything that top-k keeps was gathered.
                    spot = _places(size, GATHERED)
                    x = tl.load(gathered + spot, mask=spot < size, other=float("-inf"))
                    ids = tl.load(gathered_ids + spot, mask=spot < size, other=0)
                    is_kept = (spot < size) & ((x > bound) | ((x == bound) & (ids <= last_id)))
                    total = tl.sum(tl.sum(tl.where(is_kept, weight_of(x, peak, inverse, True), 0.0), 1), 0)
                else:
                    sums = tl.zeros([BLOCK // 8], tl.float32)
                    for first in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
                        x = tl.load(logits + first + line, mask=first + line < vocab_size, other=float("-inf")).to(
                            tl.float32
                        )
                        is_kept = (x > bound) | ((x == bound) & (first + line <= last_id))
                        sums += tl.sum(tl.where(is_kept, weight_of(x, peak, inverse, True), 0.0), 1)
                    total = tl.sum(sums, 0)
                target = tl.maximum(p, 0.0) * total + 1.2e-38
            if is_all:
                high = key_of(peak, SHIFT)
                base = tl.full([], 0.0, tl.float32)
            else:
                low, high, base, size = _gather_end(
                    gathered, gathered_ids, logits, vocab_size, target, total, peak, inverse, by_mass, (k <= SMALL) & (turn == 0),
                    SHIFT, GATHERED, BLOCK,
                )  # fmt: skip
            new_end, new_last = _find_end(
                gathered, gathered_ids, logits, vocab_size, size, low, high, base, target, peak, inverse, by_mass, SHIFT, GATHERED,
                BLOCK,
            )  # fmt: skip
            # A sum's last bit must not let top-p pass top-k.
            kept = tl.where(new_end < end, last_id, tl.where(new_end == end, tl.minimum(new_last, last_id), new_last))
            last_id = tl.where(by_mass, kept, new_last)
            end = tl.maximum(new_end, end)
            is_all = (turn == 0) & (base == 0.0) & (size <= GATHERED)
    bound = tl.where(has_k | has_p, value_of(end, SHIFT), float("-inf"))
    tl.store(bounds_ptr + row * 4, bound)
    tl.store(bounds_ptr + row * 4 + 1, last_id.to(tl.float32, bitcast=True))
    tl.store(bounds_ptr + row * 4 + 2, peak)
    tl.store(bounds_ptr + row * 4 + 3, floor)


def launch_filter(
    few: Few,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    shift: int,
) -> None:
    """Find the bounds of the rows that `few` left and that have a distribution. Mutates few's bounds and scratch."""
    num_rows, vocab_size = logits.shape
    _filter_kernel[(num_rows,)](
        few.bounds,
        few.state,
        few.gathered,
        few.gathered_ids,
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        vocab_size,
        logits.stride(0),
        SHIFT=shift,
        CAPACITY=few.gathered.shape[1],
        GATHERED=GATHERED,
        SMALL=SMALL,
        BLOCK=ROW_BLOCK_BYTES // logits.element_size(),
        TOP_K=top_k is not None,
        TOP_P=top_p is not None,
        MIN_P=min_p is not None,
        PDL=not INTERPRETED,
        num_warps=16,
        launch_pdl=True,
    )
