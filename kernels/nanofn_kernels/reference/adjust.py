"""What sequences ask of their logits, in plain torch: see `nanofn_kernels.adjust`."""

import torch
from torch import Tensor

LARGEST = 1e30
"""No number that a caller gives, and no penalised logit, is beyond this: divided by the least temperature it is finite."""

RULE_FIELDS = ("kinds", "num_prompt_tokens", "min_tokens")
"""What the columns of an array of rules are."""

PENALTY_FIELDS = ("repetition", "presence", "frequency")
"""What the columns of an array of penalties are."""

ALLOWS, BANS, ENDS, BIASES, PENALISES = 1, 2, 4, 8, 16
"""What a row asks for, as bits of its kinds: only some ids, no banned ones, no early end, a bias, penalties."""

OUTSIDE, BANNED, END, PROMPT = 1, 2, 4, 8
"""What an id is to a row, as bits of its mark. The first three are what the kinds of the same numbers are about."""

RESTRICTIONS = ALLOWS | BANS | ENDS
WORD_BITS = 32
"""Ids of a grammar's mask that are in one word, the lowest bit first."""


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
    """Apply what rows ask for, all entries together: see `nanofn_kernels.adjust`.

    Tables are looked up for the entries that ask for something alone, so that the others cost their copy.
    """
    result = logits.to(torch.float32, copy=True)
    row = rows.to(torch.int64)
    kinds = torch.where(row >= 0, rules[row, 0], 0)
    is_masked = torch.zeros_like(kinds, dtype=torch.bool) if mask_of is None else mask_of >= 0
    wanted = ((kinds != 0) | is_masked).nonzero().squeeze(1)
    if not len(wanted):
        return result
    row, kinds, x = row[wanted], kinds[wanted].unsqueeze(1), result[wanted]
    if masks is not None and mask_of is not None:
        x = x.masked_fill(~_allowed(masks, mask_of[wanted], x.shape[1]), -torch.inf)
    num_outputs = positions[wanted] - rules[row, 1]
    active = torch.where(num_outputs < rules[row, 2], RESTRICTIONS, ALLOWS | BANS).unsqueeze(1) & kinds
    mark = marks[row] if len(marks) else torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    x = _restricted(x, mark, active)
    if len(bias):
        x = torch.where(kinds & BIASES != 0, x + bias[row], x)
    if len(counts):
        x = torch.where(kinds & PENALISES != 0, _penalised(x, mark, counts[row], penalties[row]), x)
    result[wanted] = x
    return result


def _allowed(masks: Tensor, mask_of: Tensor, vocab_size: int) -> Tensor:
    """Unpack the entries' masks: [num_entries, vocab_size] bool, all true where an entry has none."""
    bits = masks[mask_of.to(torch.int64)].unsqueeze(2) >> torch.arange(WORD_BITS, device=masks.device)
    return (bits & 1).flatten(1)[:, :vocab_size].to(torch.bool) | (mask_of < 0).unsqueeze(1)


def _restricted(x: Tensor, mark: Tensor, active: Tensor) -> Tensor:
    """Forbid in order; a restriction that would leave a row nothing is dropped for it."""
    left, is_forbidden = x > -torch.inf, torch.zeros_like(x, dtype=torch.bool)
    for kind in (ALLOWS, BANS, ENDS):
        hits = (mark & active & kind) != 0
        still_left = left & ~hits
        holds = still_left.any(dim=1, keepdim=True)
        left = torch.where(holds, still_left, left)
        is_forbidden |= hits & holds
    return x.masked_fill(is_forbidden, -torch.inf)


def _penalised(x: Tensor, mark: Tensor, counts: Tensor, penalties: Tensor) -> Tensor:
    """Repetition by sign for what is in prompt or output, then presence and frequency. What is forbidden stays so."""
    repetition, presence, frequency = penalties.unsqueeze(2).unbind(1)
    is_output = counts > 0
    repeated = torch.where(x > 0, x / repetition, x * repetition).clamp(-LARGEST, LARGEST)
    appeared = (is_output | (mark & PROMPT != 0)) & (x > -torch.inf) & (repetition != 1)
    return torch.where(appeared, repeated, x) - counts * frequency - is_output * presence
