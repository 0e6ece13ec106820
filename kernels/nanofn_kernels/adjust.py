"""Logits as sequences ask for them: restrictions, bias and penalties of every entry of a step, from tables on the device."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import FLOATS, cdiv, check_tensor, define_op, jit, tl
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.reference.adjust import (
    ALLOWS,
    BANNED,
    BANS,
    BIASES,
    END,
    ENDS,
    LARGEST,
    OUTSIDE,
    PENALISES,
    PENALTY_FIELDS,
    PROMPT,
    RESTRICTIONS,
    RULE_FIELDS,
    WORD_BITS,
    adjust_logits as _reference,
)

__all__ = [
    "ALLOWS",
    "BANNED",
    "BANS",
    "BIASES",
    "END",
    "ENDS",
    "LARGEST",
    "OUTSIDE",
    "PENALISES",
    "PENALTY_FIELDS",
    "PROMPT",
    "RULE_FIELDS",
    "WORD_BITS",
    "adjust_logits",
]

BLOCK = 2048
"""Ids of a program. No bit of the result depends on it."""


@jit
def _active(kinds, position, num_prompt_tokens, min_tokens, ALL: tl.constexpr, ENDS: tl.constexpr):
    """The restrictions that hold at a position: an end is early while fewer than min_tokens are out."""
    return tl.where(position - num_prompt_tokens < min_tokens, kinds & ALL, kinds & (ALL & ~ENDS))


@jit
def _allowed(x, token, inside, entry, masks_ptr, mask_of_ptr, masks_stride):
    """x, -inf where the entry's mask of a grammar has no bit."""
    mask = tl.load(mask_of_ptr + entry).to(tl.int64)
    word = tl.load(masks_ptr + mask * masks_stride + token // 32, mask=inside & (mask >= 0), other=-1)
    return tl.where(((word >> (token % 32)) & 1) != 0, x, float("-inf"))


@jit
def _find_kernel(
    found_ptr, logits_ptr, rows_ptr, positions_ptr, rules_ptr, marks_ptr, masks_ptr, mask_of_ptr, vocab_size, logits_stride,
    marks_stride, masks_stride, RESTRICTIONS: tl.constexpr, ENDS: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """found |= 1 << (mark & active) over the ids with a logit above -inf: all that is asked of "would nothing be left".

    Program (e, c) does the c-th BLOCK ids of entry e, where a restriction holds for it.
    Traffic: (element_bytes + 1) * vocab_size an entry that has one, vocab_size / 8 more with a mask.
    """
    entry = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + entry).to(tl.int64)
    is_real = row >= 0
    kinds = tl.load(rules_ptr + row * 3, mask=is_real, other=0)
    num_prompt_tokens = tl.load(rules_ptr + row * 3 + 1, mask=is_real, other=0)
    min_tokens = tl.load(rules_ptr + row * 3 + 2, mask=is_real, other=0)
    active = _active(kinds, tl.load(positions_ptr + entry), num_prompt_tokens, min_tokens, RESTRICTIONS, ENDS)
    if active != 0:
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = token < vocab_size
        x = tl.load(logits_ptr + entry * logits_stride + token, mask=inside, other=float("-inf")).to(tl.float32)
        if MASKED:
            x = _allowed(x, token, inside, entry, masks_ptr, mask_of_ptr, masks_stride)
        mark = tl.load(marks_ptr + row * marks_stride + token, mask=inside, other=0).to(tl.int32)
        found = tl.reduce_or(tl.where(x > float("-inf"), 1 << (mark & active), 0), 0)
        tl.atomic_or(found_ptr + entry, found, sem="relaxed")


@jit
def _adjust_kernel(
    result_ptr, logits_ptr, rows_ptr, positions_ptr, rules_ptr, penalties_ptr, marks_ptr, counts_ptr, bias_ptr, masks_ptr,
    mask_of_ptr, found_ptr, vocab_size, logits_stride, marks_stride, counts_stride, bias_stride, masks_stride,
    RESTRICTIONS: tl.constexpr, ENDS: tl.constexpr, BIASES: tl.constexpr, PENALISES: tl.constexpr,
    PROMPT: tl.constexpr, LARGEST: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result = penalties of (bias of (restrictions of logits)), from the tables of the entry's row.

    Program (e, c) does the c-th BLOCK ids of entry e.
    Traffic: (element_bytes + 4) * vocab_size an entry; where it asks for it, 1 more an id for marks, 4 for counts, 4 for
    the bias, 1 / 8 for a mask.
    """
    entry = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + entry).to(tl.int64)
    is_real = row >= 0
    kinds = tl.load(rules_ptr + row * 3, mask=is_real, other=0)
    num_prompt_tokens = tl.load(rules_ptr + row * 3 + 1, mask=is_real, other=0)
    min_tokens = tl.load(rules_ptr + row * 3 + 2, mask=is_real, other=0)
    active = _active(kinds, tl.load(positions_ptr + entry), num_prompt_tokens, min_tokens, RESTRICTIONS, ENDS)
    # Which of the eight kinds of ids are left; a restriction without which none would be is dropped.
    left = tl.load(found_ptr + entry)
    allowed = left & 0b01010101
    active = tl.where(allowed == 0, active & ~1, active)
    left = tl.where(allowed == 0, left, allowed)
    unbanned = left & 0b00110011
    active = tl.where(unbanned == 0, active & ~2, active)
    left = tl.where(unbanned == 0, left, unbanned)
    active = tl.where((left & 0b00001111) == 0, active & ~4, active)

    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab_size
    x = tl.load(logits_ptr + entry * logits_stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    if MASKED:
        x = _allowed(x, token, inside, entry, masks_ptr, mask_of_ptr, masks_stride)
    mark = tl.load(marks_ptr + row * marks_stride + token, mask=inside & ((kinds & ~BIASES) != 0), other=0).to(tl.int32)
    x = tl.where((mark & active) != 0, float("-inf"), x)
    if (kinds & BIASES) != 0:
        x += tl.load(bias_ptr + row * bias_stride + token, mask=inside, other=0.0)
    if (kinds & PENALISES) != 0:
        repetition = tl.load(penalties_ptr + row * 3) + tl.zeros_like(x)
        presence = tl.load(penalties_ptr + row * 3 + 1)
        frequency = tl.load(penalties_ptr + row * 3 + 2)
        count = tl.load(counts_ptr + row * counts_stride + token, mask=inside, other=0)
        is_output = count > 0
        repeated = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
        repeated = tl.minimum(tl.maximum(repeated, -LARGEST), LARGEST)
        appeared = (is_output | ((mark & PROMPT) != 0)) & (x > float("-inf")) & (repetition != 1.0)
        x = tl.where(appeared, repeated, x) - count.to(tl.float32) * frequency - tl.where(is_output, presence, 0.0)
    tl.store(result_ptr + entry * vocab_size + token, x, mask=inside)


def _check(
    logits: Tensor, rows: Tensor, positions: Tensor, rules: Tensor, penalties: Tensor, marks: Tensor, counts: Tensor, bias: Tensor,
    masks: Tensor | None = None, mask_of: Tensor | None = None,
) -> None:  # fmt: skip
    device = logits.device
    check_tensor("logits", logits, (None, None), FLOATS, device)
    num_entries, vocab_size = logits.shape
    check_tensor("rows", rows, (num_entries,), torch.int32, device)
    check_tensor("positions", positions, (num_entries,), torch.int32, device)
    check_tensor("rules", rules, (None, len(RULE_FIELDS)), torch.int32, device)
    num_rows = rules.shape[0]
    check_tensor("penalties", penalties, (num_rows, len(PENALTY_FIELDS)), torch.float32, device)
    for name, table, dtype in (
        ("marks", marks, torch.uint8),
        ("counts", counts, torch.int32),
        ("bias", bias, torch.float32),
    ):
        check_tensor(name, table, (num_rows if len(table) else 0, vocab_size), dtype, device)
    if (masks is None) != (mask_of is None):
        raise ShapeError("mask_of", "masks and mask_of together, or neither", "one of them")
    if masks is not None and mask_of is not None:
        check_tensor("masks", masks, (None, None), torch.int32, device)
        check_tensor("mask_of", mask_of, (num_entries,), torch.int32, device)
        if masks.shape[1] * WORD_BITS < vocab_size:
            raise ShapeError("masks", f"at least {cdiv(vocab_size, WORD_BITS)} words a mask", masks.shape[1])


def _new(
    logits: Tensor, rows: Tensor, positions: Tensor, rules: Tensor, penalties: Tensor, marks: Tensor, counts: Tensor, bias: Tensor,
    masks: Tensor | None = None, mask_of: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return logits.new_empty(logits.shape, dtype=torch.float32)


@define_op("adjust_logits", mutates=(), reference=_reference, fake=_new, check=_check)
def adjust_logits(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    rules: Tensor,
    penalties: Tensor,
    marks: Tensor,
    counts: Tensor,
    bias: Tensor,
    masks: Tensor | None = None,
    mask_of: Tensor | None = None,
) -> Tensor:
    """Apply to each entry's logits what its row asks for, in this order.

    1. Its grammar's mask forbids ids: they get -inf.
    2. `ALLOWS` forbids the ids marked `OUTSIDE`, `BANS` those marked `BANNED`, `ENDS` those marked `END` while fewer than
       min_tokens output tokens are there. One that would leave the row no id above -inf is dropped; those before it count.
    3. `BIASES` adds the row's bias.
    4. `PENALISES`: a positive logit of an id in prompt or output is divided by the repetition penalty, another one multiplied,
       within +-1e30; then presence is subtracted from those in the output, and frequency once for each time. -inf stays so.

    Nothing is read back, and the launches are two whatever the number of entries.

    Args:
        logits: [num_entries, vocab_size] fp16, bf16 or fp32. Rows may be strided.
        rows: [num_entries] int32. Row of the tables; -1 copies the logits, padding for one.
        positions: [num_entries] int32. Position of the token being sampled.
        rules: [num_rows, 3] int32, contiguous. See `RULE_FIELDS`; kinds are a sum of what the row asks for, 0 for nothing.
        penalties: [num_rows, 3] fp32, contiguous. See `PENALTY_FIELDS`. Read where a row penalises.
        marks: [num_rows, vocab_size] uint8. What each id is to a row, a sum; read unless a row asks for a bias alone.
        counts: [num_rows, vocab_size] int32. How often each id is in the output; read where a row penalises.
        bias: [num_rows, vocab_size] fp32. Read where a row has one. Of these three, a table that nobody reads may have no rows.
        masks: [num_masks, num_words] int32, or None. Bit i % 32 of word i // 32 allows id i.
        mask_of: [num_entries] int32, or None. Which mask an entry has; -1 for none.

    Returns:
        [num_entries, vocab_size] fp32.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        Nothing.

    Accuracy:
        Exact but for penalties, where a product and a sum may be rounded once instead of twice.

    Source:
        Repetition: Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the sign rule of transformers. The other penalties: the
        OpenAI API's definition. The order is vLLM's. A restriction that leaves nothing: ours, vLLM's documentation has no rule.
    """
    num_entries, vocab_size = logits.shape
    result = torch.empty((num_entries, vocab_size), dtype=torch.float32, device=logits.device)
    if num_entries == 0:
        return result
    found = torch.zeros(num_entries, dtype=torch.int32, device=logits.device)
    grid = (num_entries, cdiv(vocab_size, BLOCK))
    masks_stride = 0 if masks is None else masks.stride(0)
    shared = {"RESTRICTIONS": RESTRICTIONS, "ENDS": ENDS, "MASKED": masks is not None, "BLOCK": BLOCK, "num_warps": 4}
    _find_kernel[grid](
        found, logits, rows, positions, rules, marks, masks, mask_of, vocab_size, logits.stride(0), marks.stride(0), masks_stride,
        **shared,
    )  # fmt: skip
    _adjust_kernel[grid](
        result, logits, rows, positions, rules, penalties, marks, counts, bias, masks, mask_of, found, vocab_size,
        logits.stride(0), marks.stride(0), counts.stride(0), bias.stride(0), masks_stride, BIASES=BIASES, PENALISES=PENALISES, PROMPT=PROMPT, LARGEST=LARGEST, **shared,
    )  # fmt: skip
    return result
