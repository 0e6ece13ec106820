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

    Each step is done for the entries that ask for it alone: the others cost their copy.
    """
    result = logits.to(torch.float32, copy=True)
    row = rows.to(torch.int64)
    kinds = torch.where(row >= 0, rules[row, 0], 0)
    if masks is not None and mask_of is not None:
        masked = _places(mask_of >= 0)
        result[masked] = result[masked].masked_fill(~_allowed(masks, mask_of[masked], result.shape[1]), -torch.inf)
    is_early = positions - rules[row, 1] < rules[row, 2]
    for kind in (ALLOWS, BANS, ENDS):
        at = _places((kinds & kind != 0) & (is_early | (kind != ENDS)))
        result[at] = _restricted(result[at], marks[row[at]] & kind != 0)
    biased = _places(kinds & BIASES != 0)
    result[biased] += bias[row[biased]]
    at = _places(kinds & PENALISES != 0)
    result[at] = _penalised(result[at], marks[row[at]], counts[row[at]], penalties[row[at]])
    return result


def _places(wanted: Tensor) -> Tensor:
    return wanted.nonzero().squeeze(1)


def _allowed(masks: Tensor, mask_of: Tensor, vocab_size: int) -> Tensor:
    """Unpack the entries' masks: [num_entries, vocab_size] bool."""
    bits = masks[mask_of.to(torch.int64)].unsqueeze(2) >> torch.arange(WORD_BITS, device=masks.device)
    return (bits & 1).flatten(1)[:, :vocab_size].to(torch.bool)


def _restricted(x: Tensor, is_forbidden: Tensor) -> Tensor:
    """Forbid ids, but for rows that would have nothing left."""
    left = x.masked_fill(is_forbidden, -torch.inf)
    return torch.where((left > -torch.inf).any(dim=1, keepdim=True), left, x)


def _penalised(x: Tensor, mark: Tensor, counts: Tensor, penalties: Tensor) -> Tensor:
    """Repetition by sign for what is in prompt or output, then presence and frequency. What is forbidden stays so."""
    repetition, presence, frequency = penalties.unsqueeze(2).unbind(1)
    is_output = counts > 0
    repeated = torch.where(x > 0, x / repetition, x * repetition).clamp(-LARGEST, LARGEST)
    appeared = (is_output | (mark & PROMPT != 0)) & (x > -torch.inf) & (repetition != 1)
    result = torch.where(appeared, repeated, x)
    result -= counts * frequency
    result -= is_output * presence
    return result
