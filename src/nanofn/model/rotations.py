"""The rotary table of every position, as the kernels read it."""

import torch
from torch import Tensor

from nanofn.model.rope import Rope


def cos_sin_table(rope: Rope, num_positions: int) -> Tensor:
    """Compute each position's cosines and sines.

    Args:
        rope: The model's frequencies; any scaling is in them.
        num_positions: From 0.

    Returns:
        [num_positions, head_dim] fp32: cosines, then sines, times the attention factor.

    Mutates:
        Nothing.

    Accuracy:
        As `rope_tables`, whose numbers these are.

    Source:
        Su et al. 2021, arXiv:2104.09864, equation 34.
    """
    positions = torch.arange(num_positions, dtype=torch.float32, device=rope.inverse_frequencies.device)
    angles = positions.unsqueeze(1) * rope.inverse_frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=1).mul_(rope.attention_factor)
