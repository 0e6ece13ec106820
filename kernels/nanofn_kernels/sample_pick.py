"""One pass over the logits: the best score of every row, with Gumbel noise that is a function of (seed, position, child, id)."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import INTERPRETED, cdiv, jit, next_power_of_2, tl
from nanofn_kernels.reference.noise import SAMPLING_DOMAIN
from nanofn_kernels.reference.sample import GREEDY_BELOW

BLOCK = 512
"""Ids that a program, one warp, looks at a step. Scores do not depend on it."""

PROGRAMS = 2048
"""How many programs the pick should have, 16 for each of 132 multiprocessors, whose registers hold no more."""

NO_ID = tl.constexpr(2147483647)


@jit
def _philox(c0, c1, c2, c3, k0, k1):
    """Ten rounds of Philox4x32 on uint32 values, as `reference.noise.philox`; one wide product gives both halves."""
    for _ in tl.static_range(10):
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p2 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p2 >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = p2.to(tl.uint32)
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = p0.to(tl.uint32)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@jit
def noise_words(quads, seed, position, child, domain):
    """The words of ids 4 * quads + (0, 1, 2, 3), [QUADS, 4] uint32; quads uint32, the rest int64 scalars."""
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    w0, w1, w2, w3 = _philox(quads, position.to(tl.uint32), child.to(tl.uint32), domain.to(tl.uint32), k0, k1)
    pairs = tl.permute(tl.join(tl.join(w0, w1), tl.join(w2, w3)), (0, 2, 1))
    return tl.reshape(pairs, [quads.shape[0], 4])


@jit
def noise_word(ids, seed, position, child, domain):
    """The word of every id, uint32, of the ids' shape."""
    w0, w1, w2, w3 = _philox(
        (ids >> 2).to(tl.uint32), position.to(tl.uint32), child.to(tl.uint32), domain.to(tl.uint32), seed.to(tl.uint32),
        (seed >> 32).to(tl.uint32),
    )  # fmt: skip
    return tl.where((ids & 2) == 0, tl.where((ids & 1) == 0, w0, w1), tl.where((ids & 1) == 0, w2, w3))


@jit
def _log(x, FAST: tl.constexpr):
    """The natural logarithm; fast is the hardware's, 2^-22 absolute near 1 and relative elsewhere."""
    if FAST:
        log2 = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
        return log2 * 0.6931471805599453
    return tl.log(x)


@jit
def gumbel(words, FAST: tl.constexpr):
    """-log(-log1p(-x)), x = min((words + 1/2) / 2^32, 1 - 2^-24): `reference.noise.gumbel` within 1e-5.

    Below 1/16 the inner logarithm is a series: 1 - x would round away what decides the right tail.
    """
    x = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.999999940395355)
    series = x * (1.0 + x * (0.5 + x * (0.3333333333 + x * (0.25 + x * 0.2))))
    exponential = tl.where(x < 0.0625, series, -_log(1.0 - x, FAST))
    return -_log(exponential, FAST)


@jit
def _larger(a, b):
    """The larger number, or NaN if there is one."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@jit
def largest(x):
    """The largest of a block in two dimensions, or NaN if there is one."""
    return tl.reduce(tl.reduce(x, 1, _larger), 0, _larger)


@jit
def _pick_kernel(
    score_ptr, id_ptr, logits_ptr, temperature_ptr, seed_ptr, position_ptr, child_ptr, valid_ptr, bounds_ptr, state_ptr,
    vocab_size,
    logits_stride, chunk,
    GREEDY_BELOW: tl.constexpr, DOMAIN: tl.constexpr, BLOCK: tl.constexpr, VALID: tl.constexpr, FILTERED: tl.constexpr,
    FAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """score, id = max over a chunk of logits / temperature + noise among the kept ids, lowest id on ties; NaN marks a bad row.

    Program (i, j) does ids [j * chunk, (j + 1) * chunk) of row i. An id beats the best score b so far only if its noise is above
    t = b - logit / temperature, that is x < 1 - exp(-exp(-t)) <= exp(-t): most blocks have no such word, and take no logarithm.
    Traffic: element_bytes * vocab_size a row.
    """
    QUADS: tl.constexpr = BLOCK // 4
    LOG2_E: tl.constexpr = 1.4426950408889634
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    if VALID:
        if tl.load(valid_ptr + row) == 0:
            return
    is_bounded = False
    if FILTERED:
        state = tl.load(state_ptr + row)
        if state == 1:
            return
        is_bounded = (state == 2) | (state == 4)
    start = tl.program_id(1) * chunk
    stop = tl.minimum(start + chunk, vocab_size)
    quad = tl.arange(0, QUADS)
    place = quad[:, None] * 4 + tl.arange(0, 4)[None, :]
    logits_row = logits_ptr + row * logits_stride
    following = tl.load(logits_row + start + place, mask=start + place < stop, other=float("-inf"))
    temperature = tl.load(temperature_ptr + row)
    is_sampled = temperature >= GREEDY_BELOW
    inverse = tl.where(is_sampled, tl.div_rn(1.0, tl.where(is_sampled, temperature, 1.0)), 1.0)
    domain = row * 0 + DOMAIN
    seed = tl.load(seed_ptr + row)
    position = tl.load(position_ptr + row)
    child = tl.load(child_ptr + row)
    if FILTERED:
        bound = tl.load(bounds_ptr + row * 4)
        last_tie = tl.load(bounds_ptr + row * 4 + 1).to(tl.int32, bitcast=True)
        peak = tl.load(bounds_ptr + row * 4 + 2)
        floor = tl.load(bounds_ptr + row * 4 + 3)
    best = temperature * 0 + float("-inf")
    best_id = start * 0 + NO_ID
    is_bad = start * 0
    words = tl.zeros([QUADS, 4], tl.uint32)
    for first in range(start, stop, BLOCK):
        token = first + place
        x = following.to(tl.float32)
        following = tl.load(logits_row + token + BLOCK, mask=token + BLOCK < stop, other=float("-inf"))
        is_first = best == float("-inf")
        to_beat = tl.where(is_first, 0.0, best)
        if is_sampled:
            words = noise_words((first // 4 + quad).to(tl.uint32), seed, position, child, domain)
            # Room for what rounding does to either side: 5 roundings of numbers as large as the best score.
            room = 1e-4 + 1e-6 * tl.abs(to_beat)
            margin = tl.exp2(x * (inverse * LOG2_E) + (32.0 + (room - to_beat) * LOG2_E)) - words.to(tl.float32)
        else:
            margin = x - to_beat
        if FILTERED:
            if is_bounded:
                margin = tl.where(x < bound, -1.0, margin)
        # A margin that is no number counts: it has to be seen what it comes from.
        if is_first | ~(largest(margin) <= 0.0):
            is_bad |= tl.max(tl.max(((x != x) | (x == float("inf"))).to(tl.int32), 1), 0)
            score = x * inverse
            if is_sampled:
                score += gumbel(words, FAST)
            if FILTERED:
                if is_bounded:
                    keep = (x > bound) | ((x == bound) & (token <= last_tie))
                    keep &= (x - peak) * inverse >= floor
                    score = tl.where(keep, score, float("-inf"))
            top = tl.max(tl.max(score, 1), 0)
            if top > best:
                best = top
                best_id = tl.min(tl.min(tl.where(score == top, token, NO_ID), 1), 0)
    at = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(score_ptr + at, tl.where(is_bad > 0, float("nan"), best))
    tl.store(id_ptr + at, best_id)


@jit
def _merge_kernel(
    token_ids_ptr, undefined_ptr, score_ptr, id_ptr, valid_ptr, state_ptr, num_chunks,
    CHUNKS: tl.constexpr, VALID: tl.constexpr, FILTERED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """token_id = id of the best chunk, lowest id on ties; 0 and a flag where the best score is not finite.

    Program i does row i. Traffic: 8 * num_chunks + 5 bytes a row.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    if VALID:
        if tl.load(valid_ptr + row) == 0:
            return
    if FILTERED:
        if tl.load(state_ptr + row) == 1:
            return
    chunk = tl.arange(0, CHUNKS)
    score = tl.load(score_ptr + row * num_chunks + chunk, mask=chunk < num_chunks, other=float("-inf"))
    ids = tl.load(id_ptr + row * num_chunks + chunk, mask=chunk < num_chunks, other=NO_ID)
    is_bad = tl.max((score != score).to(tl.int32), 0) > 0
    top = tl.max(tl.where(score != score, float("-inf"), score), 0)
    token = tl.min(tl.where(score == top, ids, NO_ID), 0)
    is_undefined = is_bad | (top == float("-inf")) | (top == float("inf"))
    tl.store(token_ids_ptr + row, tl.where(is_undefined, 0, token))
    tl.store(undefined_ptr + row, is_undefined)


def chunk_size(num_rows: int, vocab_size: int, programs: int) -> int:
    """Ids of a row that one program does, some blocks of them, where there should be so many programs for all rows."""
    blocks = cdiv(vocab_size, BLOCK)
    return cdiv(blocks, min(blocks, cdiv(programs, num_rows))) * BLOCK


def launch_pick(
    token_ids: Tensor,
    is_undefined: Tensor,
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    child: Tensor,
    is_valid: Tensor | None,
    bounds: Tensor | None,
    state: Tensor | None,
    *,
    launch_pdl: bool,
) -> None:
    """Sample the rows that are not padding and, with a state, not done. Mutates token_ids and is_undefined there."""
    (num_rows, vocab_size), device = logits.shape, logits.device
    chunk = chunk_size(num_rows, vocab_size, PROGRAMS)
    num_chunks = cdiv(vocab_size, chunk)
    scores = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=device)
    ids = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=device)
    flags = {"VALID": is_valid is not None, "FILTERED": state is not None, "PDL": not INTERPRETED}
    options = {"launch_pdl": True} if launch_pdl else {}
    _pick_kernel[(num_rows, num_chunks)](
        scores, ids, logits, temperature, seed, position, child, is_valid, bounds, state, vocab_size, logits.stride(0), chunk,
        GREEDY_BELOW=GREEDY_BELOW, DOMAIN=SAMPLING_DOMAIN, BLOCK=BLOCK, FAST=not INTERPRETED, num_warps=1, **flags, **options,
    )  # fmt: skip
    # As wide as a row can be cut, so that one kernel serves every number of rows.
    _merge_kernel[(num_rows,)](
        token_ids, is_undefined, scores, ids, is_valid, state, num_chunks,
        CHUNKS=next_power_of_2(cdiv(vocab_size, BLOCK)), num_warps=1, launch_pdl=True, **flags,
    )  # fmt: skip
