"""The rotary table of every position, as the kernels read it."""

import torch
from torch import Tensor

from nanofn.model.rope import Rope


def cos_sin_table(rope: Rope, max_position: int) -> Tensor:
    """Compute each position's cosines and sines.

    Args:
        rope: The model's frequencies; any scaling is in them.
        max_position: Positions, from 0.

    Returns:
        [max_position, head_dim] fp32: cosines, then sines, times the attention factor.

    Mutates:
        Nothing.

    Accuracy:
        As `rope_tables`, whose numbers these are.

    Source:
        Su et al. 2021, arXiv:2104.09864, equation 34.
    """
    positions = torch.arange(max_position, dtype=torch.float32, device=rope.inverse_frequencies.device)
    angles = positions.unsqueeze(1) * rope.inverse_frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=1).mul_(rope.attention_factor)
