"""sample: logits become token ids."""

import torch
from torch import Tensor

from nanofn_kernels.reference.sample import GREEDY_BELOW, sample as sample_rows


def sample(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    positions: Tensor,
    child: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """Choose one token per row, as a function of its logits, parameters, seed, child and position alone.

    Filters apply to the tempered distribution in the order top-k, top-p, min-p; a greedy row has none.

    Args:
        logits: [num_rows, vocab_size] fp32. -inf forbids an id.
        temperature: [num_rows] fp32, dimensionless. Below 1e-5 the row is greedy: the lowest id of the largest logit.
        seed: [num_rows] int64. The 64 bits are the noise's key.
        positions: [num_rows] integer. Position of the token being sampled.
        child: [num_rows] integer. Which of a request's samples.
        top_k: [num_rows] integer, or None. Keep this many ids; at most 0 is off.
        top_p: [num_rows] fp32, or None. Keep the smallest set with at least this mass; at least 1 is off.
        min_p: [num_rows] fp32, or None. Keep ids at least this likely relative to the likeliest; at most 0 is off.

    Returns:
        [num_rows] int32.

    Mutates:
        Nothing.

    Source:
        Gumbel-max trick: Maddison et al. 2014, arXiv:1411.0030, section 2. Top-p: Holtzman et al. 2019, arXiv:1904.09751,
        section 3.1. Min-p: Nguyen et al. 2024, arXiv:2407.01082, section 3.
    """
    token_ids = logits.argmax(dim=1).to(torch.int32)
    warm = (temperature >= GREEDY_BELOW).nonzero().squeeze(1)
    # Noise costs more than all the rest, so only the rows that take it are handed on.
    if len(warm):
        filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
        given = {name: values[warm] for name, values in filters.items() if values is not None}
        noisy_ids, _ = sample_rows(logits[warm], temperature[warm], seed[warm], positions[warm], child[warm], **given)
        token_ids[warm] = noisy_ids
    return token_ids
