"""The paged K/V cache: one pair of tensors per layer."""

import torch
from attrs import frozen
from torch import Tensor

from nanofn.model.config import ModelConfig
from nanofn.model.params import local_heads


@frozen(eq=False)
class KVCache:
    """Keys and values of every layer. `forward` writes it; unwritten slots are never read, whatever they hold.

    Attributes:
        k: num_layers tensors [num_blocks, block_size, num_kv_heads, head_dim]. Rotated keys.
        v: num_layers tensors of the same shape.
    """

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.k[0].shape[1]


def allocate_kv_cache(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    num_ranks: int = 1,
) -> KVCache:
    """Allocate a cache without filling it."""
    shape = (num_blocks, block_size, local_heads(config, num_ranks).num_kv_heads, config.head_dim)
    k, v = (tuple(torch.empty(shape, dtype=dtype, device=device) for _ in range(config.num_layers)) for _ in range(2))
    return KVCache(k, v)


def block_bytes(config: ModelConfig, block_size: int, *, dtype: torch.dtype, num_ranks: int = 1) -> int:
    """Count the bytes that one block takes on one rank, over all layers, keys and values."""
    heads = local_heads(config, num_ranks).num_kv_heads
    return 2 * config.num_layers * block_size * heads * config.head_dim * dtype.itemsize
