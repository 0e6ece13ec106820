"""The rotary table of every position, as the kernels read it."""

import torch
from torch import Tensor


def cos_sin_table(inverse_frequencies: Tensor, num_positions: int) -> Tensor:
    """Compute each position's cosines and sines.

    Args:
        inverse_frequencies: [head_dim / 2] fp32, radians per position.
        num_positions: From 0.

    Returns:
        [num_positions, head_dim] fp32: cosines, then sines.

    Mutates:
        Nothing.

    Accuracy:
        As `rope_tables`, whose numbers these are.

    Source:
        Su et al. 2021, arXiv:2104.09864, equation 34.
    """
    positions = torch.arange(num_positions, dtype=torch.float32, device=inverse_frequencies.device)
    angles = positions.unsqueeze(1) * inverse_frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=1)
