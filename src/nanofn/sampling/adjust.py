"""Adjusting logits before sampling: which ids are allowed, what is added, what repetition costs.

The order is vLLM's, since its users rely on it: allowed ids, bad words, too early ends, bias, penalties. Temperature and
filters follow in `sample`.
"""

import torch
from torch import Tensor

LARGEST = 1e30
"""No number that a caller gives, and no penalised logit, is beyond this: divided by the least temperature it is finite."""


def allow_only(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Forbid every id but some.

    Args:
        logits: [vocab_size] fp32, one row.
        token_ids: [num_allowed] int64.

    Returns:
        [vocab_size] fp32: -inf at all others.

    Mutates:
        Nothing.
    """
    return torch.full_like(logits, -torch.inf).index_copy(0, token_ids, logits[token_ids])


def forbid(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Forbid some ids, unless that would leave none.

    Args:
        logits: [vocab_size] fp32, one row.
        token_ids: [num_forbidden] int64.

    Returns:
        [vocab_size] fp32: -inf at those; the logits as they are, where nothing but -inf would be left.

    Mutates:
        Nothing.

    Source:
        Our own rule for a ban that leaves nothing: vLLM's documentation has none.
    """
    left = logits.index_fill(0, token_ids, -torch.inf)
    return torch.where((left > -torch.inf).any(), left, logits)


def penalise(
    logits: Tensor,
    prompt_ids: Tensor,
    output_ids: Tensor,
    *,
    repetition: float,
    presence: float,
    frequency: float,
) -> Tensor:
    """Make ids that have appeared less likely, or likelier.

    Args:
        logits: [vocab_size] fp32, one row.
        prompt_ids: [num_prompt_tokens] int64. Only the repetition penalty looks at them.
        output_ids: [num_output_tokens] int64.
        repetition: Divides a positive and multiplies a negative logit of every id that has appeared. 1 is off.
        presence: Subtracted where an id is in the output. 0 is off.
        frequency: Subtracted for each time that it is. 0 is off.

    Returns:
        [vocab_size] fp32.

    Mutates:
        Nothing.

    Source:
        Repetition: Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the sign rule of transformers. The others: the
        OpenAI API's definition, `logit - count * frequency - (count > 0) * presence`.
    """
    counts = torch.bincount(output_ids, minlength=logits.shape[0])
    seen = counts.to(torch.bool).index_fill(0, prompt_ids, True)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition).clamp(-LARGEST, LARGEST)
    # What is forbidden stays so.
    adjusted = torch.where(seen & (logits > -torch.inf), repeated, logits) if repetition != 1 else logits
    return adjusted - counts * frequency - (counts > 0).to(logits.dtype) * presence
