"""Rotary frequencies, stretched as the checkpoint says."""

import math

import torch
from attrs import frozen
from torch import Tensor

from nanofn.model.config import ModelConfig
from nanofn.model.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling


@frozen(eq=False)
class Rope:
    """All that turns positions into rotations; see `nanofn.model.layers.rope_tables`.

    Attributes:
        inverse_frequencies: [head_dim / 2] fp32, radians per position, whatever the weights' dtype.
        attention_factor: What cosines and sines are multiplied by, so that queries and keys are; 1.0 but for YaRN.
    """

    inverse_frequencies: Tensor
    attention_factor: float = 1.0


def make_rope(config: ModelConfig, device: torch.device | str = "cpu") -> Rope:
    """Compute a model's rotary frequencies.

    Args:
        config: Its head_dim, rope_theta and rope_scaling count.
        device: Where the frequencies lie.

    Returns:
        Frequencies computed in fp32 in transformers' order of operations: at position 40,000 a last bit shows.

    Mutates:
        Nothing.

    Source:
        Su et al. 2021, arXiv:2104.09864, section 3.2.2; for the scalings see `nanofn.model.rope_scaling`.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device="cpu").to(torch.float32) / config.head_dim
    periods = config.rope_theta**exponents
    plain = 1.0 / periods
    match scaling := config.rope_scaling:
        case LinearScaling():
            return Rope((plain / scaling.factor).to(device))
        case Llama3Scaling():
            return Rope(_llama3(plain, scaling).to(device))
        case YarnScaling():
            stretched = 1.0 / (scaling.factor * periods)
            kept = 1 - _yarn_ramp(config, scaling)
            return Rope((stretched * (1 - kept) + plain * kept).to(device), _yarn_attention_factor(scaling))
        case None:
            return Rope(plain.to(device))


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / plain
    length, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
    kept = (length / wavelengths - low) / (high - low)
    blended = (1 - kept) * plain / scaling.factor + kept * plain
    slow = torch.where(wavelengths > length / low, plain / scaling.factor, blended)
    return torch.where(wavelengths < length / high, plain, slow)


def _yarn_ramp(config: ModelConfig, scaling: YarnScaling) -> Tensor:
    """Rise from 0 to 1 between the indexes of the last fast and the first slow frequency: [head_dim / 2] fp32."""

    def index_of(num_turns: float) -> float:
        turn = scaling.original_max_position_embeddings / (num_turns * 2 * math.pi)
        return config.head_dim * math.log(turn) / (2 * math.log(config.rope_theta))

    first, last = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, config.head_dim - 1)
    if first == last:
        last += 0.001
    return ((torch.arange(config.head_dim // 2, dtype=torch.float32, device="cpu") - first) / (last - first)).clamp(
        0, 1
    )


def _yarn_attention_factor(scaling: YarnScaling) -> float:
    def of(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale is not None and scaling.mscale_all_dim is not None:
        return of(scaling.mscale) / of(scaling.mscale_all_dim)
    return of(1.0)
