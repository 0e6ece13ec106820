"""sample: logits become token ids."""

import torch
from torch import Tensor

from nanofn_kernels.reference.sample import GREEDY_BELOW, sample as sample_rows


def sample(logits: Tensor, temperature: Tensor, seed: Tensor, positions: Tensor, child: Tensor) -> Tensor:
    """Choose one token per row, as a function of its logits, parameters, seed, child and position alone.

    Args:
        logits: [num_rows, vocab_size] fp32.
        temperature: [num_rows] fp32, dimensionless. Below 1e-5 the row is greedy: the lowest id of the largest logit.
        seed: [num_rows] int64. The 64 bits are the noise's key.
        positions: [num_rows] integer. Position of the token being sampled.
        child: [num_rows] integer. Which of a request's samples.

    Returns:
        [num_rows] int32.

    Mutates:
        Nothing.

    Source:
        Gumbel-max trick: Maddison et al. 2014, arXiv:1411.0030, section 2.
    """
    token_ids = logits.argmax(dim=1).to(torch.int32)
    warm = (temperature >= GREEDY_BELOW).nonzero().squeeze(1)
    # Noise costs more than all the rest, so only the rows that take it are handed on.
    if len(warm):
        noisy_ids, _ = sample_rows(logits[warm], temperature[warm], seed[warm], positions[warm], child[warm])
        token_ids[warm] = noisy_ids
    return token_ids
