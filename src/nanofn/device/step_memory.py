"""The device memory that steps share: tables, staging, rotary table and K/V cache."""

import torch
from attrs import frozen
from torch import Tensor

from nanofn.config import Limits
from nanofn.device.staging import Staging, allocate_staging
from nanofn.device.tables import DeviceTables, allocate_tables
from nanofn.model.kv_cache import KVCache, allocate_kv_cache
from nanofn.model.params import ModelParams
from nanofn.model.rotations import cos_sin_table


@frozen(eq=False)
class StepMemory:
    """Allocated once; graphs know it by address.

    Attributes:
        tables: The rows' tables.
        staging: What travels to the device and back.
        kv_cache: The cache.
        cos_sin: [max_model_len, head_dim] fp32. A position's cosines, then its sines.
    """

    tables: DeviceTables
    staging: Staging
    kv_cache: KVCache
    cos_sin: Tensor


def allocate_step_memory(
    params: ModelParams, limits: Limits, device: torch.device, *, depth: int, num_blocks: int
) -> StepMemory:
    """Allocate for a model, its bounds, so many steps under way and so many blocks, which a trial has fewer of."""
    return StepMemory(
        allocate_tables(limits, device),
        allocate_staging(limits.max_num_seqs, depth, device),
        allocate_kv_cache(params.config, num_blocks, limits.block_size, dtype=params.embedding.dtype, device=device),
        cos_sin_table(params.rope, limits.max_model_len),
    )
