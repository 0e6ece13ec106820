"""Head norms, rotary embedding and the cache store, in plain torch: see `nanofn_kernels.norm_rope_store`."""

import torch
from torch import Tensor


def normalise(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Divide by the root mean square over the last axis and multiply by the weight; nothing without a weight."""
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pair (x[i], x[i + head_dim / 2]) by its angle."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def norm_rope_store(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    eps: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    launch_pdl: bool = False,
) -> Tensor:
    """Normalise and rotate queries and keys, store keys and values; float32 inside, float64 for float64 inputs."""
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    compute = torch.promote_types(qkv.dtype, torch.float32)
    heads = qkv.unflatten(1, (num_heads + 2 * num_kv_heads, head_dim)).to(compute)
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    real = slot_mapping >= 0
    cos, sin = cos_sin[torch.where(real, positions, 0).long()].to(compute).unsqueeze(1).chunk(2, dim=-1)
    query = rotate(normalise(query, q_weight, eps), cos, sin)
    key = rotate(normalise(key, k_weight, eps), cos, sin)
    slots = slot_mapping[real]
    blocks, inside = slots // block_size, slots % block_size
    k_cache[blocks, inside] = (key[real] / k_scale).to(k_cache.dtype)
    v_cache[blocks, inside] = (value[real] / v_scale).to(v_cache.dtype)
    return torch.where(real[:, None, None], query, 0).to(qkv.dtype)
