"""Sampling by the Gumbel-max trick, with top-k, top-p and min-p by a stable sort."""

import torch
from torch import Tensor

from nanofn_kernels.reference.noise import gumbel_noise

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy."""


def sample(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    child: Tensor,
    *,
    is_valid: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample one token id per row: the lowest id of the largest `logits / temperature + noise` among the kept ids.

    The noise is `gumbel_noise(seed, position, child)`; a greedy row has none. Filters apply to the tempered
    distribution in the order top-k, top-p, min-p (see `kept`) and never change a greedy row.

    Args:
        logits: [num_rows, vocab_size] bf16, fp16 or fp32. -inf forbids an id.
        temperature: [num_rows] fp32, dimensionless. Below 1e-5 the row is greedy.
        seed: [num_rows] int64. The 64 bits are the noise's key.
        position: [num_rows] integer. Position of the token being sampled.
        child: [num_rows] integer. Which of a request's samples.
        is_valid: [num_rows] bool. False marks padding; None means every row is valid.
        top_k: [num_rows] integer. Keep this many ids; at most 0 or at least vocab_size is off.
        top_p: [num_rows] fp32. Keep the smallest set with at least this mass; at least 1 is off.
        min_p: [num_rows] fp32. Keep ids at least this likely relative to the likeliest; at most 0 is off.

    Returns:
        token_ids [num_rows] int32: -1 for padding, 0 where undefined.
        is_undefined [num_rows] bool: the row has a NaN, an infinite maximum, or nothing but -inf.

    Mutates:
        Nothing.

    Source:
        Gumbel-max trick: Maddison et al. 2014, arXiv:1411.0030, section 2. Top-p: Holtzman et al. 2019,
        arXiv:1904.09751, section 3.1. Min-p: Nguyen et al. 2024, arXiv:2407.01082, section 3.
    """
    vocab_size = logits.shape[1]
    is_sampled = temperature >= GREEDY_BELOW
    inverse = torch.where(is_sampled, 1.0 / temperature, 1.0).to(torch.float32).unsqueeze(1)
    scores = logits.to(torch.float32) * inverse
    is_undefined = ~torch.isfinite(scores.amax(dim=1))
    if bool(is_sampled.any()):
        filters = [
            _active(top_k, top_k is not None and top_k > 0),
            _active(top_p, top_p is not None and top_p < 1),
            _active(min_p, min_p is not None and min_p > 0),
        ]
        noisy = scores + gumbel_noise(seed, position, child, vocab_size)
        if any(values is not None for values in filters):
            noisy = noisy.masked_fill(~kept(logits, temperature, *filters), -torch.inf)
        scores = torch.where(is_sampled.unsqueeze(1), noisy, scores)
    token_ids = torch.where(is_undefined, 0, scores.argmax(dim=1)).to(torch.int32)
    if is_valid is None:
        return token_ids, is_undefined
    return torch.where(is_valid, token_ids, -1), is_undefined & is_valid


def kept(
    logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None
) -> Tensor:
    """Mark the ids that the filters keep: a prefix of the ids ordered by falling logit, lower ids first on ties.

    Top-k keeps exactly k. Top-p renormalises what top-k left and keeps an id while the mass before it is below
    p, so the id that crosses p stays. Min-p compares with the likeliest id. The first id always stays.

    Args:
        logits: [num_rows, vocab_size] bf16, fp16 or fp32.
        temperature: [num_rows] fp32. Below 1e-5 counts as 1.
        top_k: [num_rows] integer, or None.
        top_p: [num_rows] fp32, or None.
        min_p: [num_rows] fp32, or None.

    Returns:
        [num_rows, vocab_size] bool. Masses are summed in float64.

    Mutates:
        Nothing.

    Source:
        As `sample`. The order is that of Hugging Face transformers.
    """
    ordered, ids = torch.sort(logits.to(torch.float32), dim=1, descending=True, stable=True)
    inverse = torch.where(temperature >= GREEDY_BELOW, 1.0 / temperature, 1.0).to(torch.float32).unsqueeze(1)
    tempered = (ordered - ordered[:, :1]) * inverse
    ranks = torch.arange(logits.shape[1], device=logits.device)
    keep = torch.ones_like(tempered, dtype=torch.bool)
    if top_k is not None:
        keep &= (ranks < top_k.unsqueeze(1)) | (top_k.unsqueeze(1) <= 0)
    if top_p is not None:
        mass = torch.exp(tempered).to(torch.float64) * keep
        before = mass.cumsum(dim=1) - mass
        keep &= (before < top_p.unsqueeze(1) * mass.sum(dim=1, keepdim=True)) | (top_p.unsqueeze(1) >= 1)
    if min_p is not None:
        keep &= tempered >= torch.log(min_p.clamp(0, 1)).unsqueeze(1)
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter_(1, ids, keep)


def _active(values: Tensor | None, is_on: Tensor | bool) -> Tensor | None:
    """Drop a filter that no row uses."""
    return values if isinstance(is_on, Tensor) and bool(is_on.any()) else None


def sample_into(
    token_ids: Tensor,
    is_undefined: Tensor,
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    child: Tensor,
    is_valid: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    launch_pdl: bool = False,
) -> None:
    """Write what `sample` returns, except for padding.

    Args:
        token_ids: [num_rows] int32. Written where valid.
        is_undefined: [num_rows] bool. Written where valid.
        logits: As `sample`, like all the others.
        temperature: [num_rows] fp32.
        seed: [num_rows] int64.
        position: [num_rows] integer.
        child: [num_rows] integer.
        is_valid: [num_rows] bool, or None.
        top_k: [num_rows] integer, or None.
        top_p: [num_rows] fp32, or None.
        min_p: [num_rows] fp32, or None.
        launch_pdl: No meaning here.

    Mutates:
        token_ids, is_undefined.

    Source:
        As `sample`.
    """
    del launch_pdl
    new_ids, new_undefined = sample(
        logits, temperature, seed, position, child, is_valid=is_valid, top_k=top_k, top_p=top_p, min_p=min_p
    )
    if is_valid is not None:
        new_ids = torch.where(is_valid, new_ids, token_ids)
        new_undefined = torch.where(is_valid, new_undefined, is_undefined)
    token_ids.copy_(new_ids)
    is_undefined.copy_(new_undefined)
