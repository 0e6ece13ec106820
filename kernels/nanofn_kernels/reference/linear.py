"""Products of a few rows with a weight: RMSNorm before, bias, gate and residual behind."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise rows to unit root mean square in float32, round, then scale.

    Args:
        x: [num_rows, in_features] fp16, bf16 or fp32.
        weight: [in_features] as x.
        eps: Added to the mean square.

    Returns:
        [num_rows, in_features] of x's type, rounded before the weight and after it, as Qwen3 does.

    Mutates:
        Nothing.

    Source:
        Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
    """
    wide = x.to(torch.float32)
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    normed: Tensor | None = None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    is_gated: bool = False,
    batch_invariant: bool = False,
    launch_pdl: bool = False,
) -> Tensor:
    """Compute `epilogue(rms_norm(x) @ weight.T + bias)`.

    The epilogue multiplies silu(gate) with up, the two halves of the product, and adds the residual.

    Args:
        x: [num_rows, in_features] fp16, bf16 or fp32.
        weight: [out_features, in_features] as x. If gated, the first half of the rows makes the gate, the second up.
        bias: [out_features] as x, or None.
        norm_weight: [in_features] as x, or None for no norm.
        normed: No meaning here: it is what the norm gives.
        residual: [num_rows, result_features] as x, or None.
        eps: Added to the mean square.
        is_gated: result_features is out_features / 2, else out_features.
        batch_invariant: No meaning here.
        launch_pdl: No meaning here.

    Returns:
        [num_rows, result_features] of x's type. Everything behind the norm is computed in fp32 and rounded once.

    Mutates:
        Nothing.

    Source:
        Gate: Shazeer 2020, arXiv:2002.05202, section 2.
    """
    del normed, batch_invariant, launch_pdl
    if norm_weight is not None:
        x = rms_norm(x, norm_weight, eps)
    product = x.to(torch.float32) @ weight.to(torch.float32).T
    if bias is not None:
        product = product + bias
    if is_gated:
        gate, up = product.chunk(2, dim=-1)
        product = torch.nn.functional.silu(gate) * up
    if residual is not None:
        product = product + residual
    return product.to(x.dtype)


def linear_norm(
    x: Tensor,
    weight: Tensor,
    next_norm_weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    batch_invariant: bool = False,
    launch_pdl: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute a product and the norm that the next product will ask for.

    Args:
        x: As `linear`.
        weight: As `linear`.
        next_norm_weight: [out_features] as x.
        bias: As `linear`.
        residual: As `linear`.
        eps: Added to the mean square of the result.
        batch_invariant: No meaning here.
        launch_pdl: No meaning here.

    Returns:
        `linear(...)`, and `rms_norm` of it, both [num_rows, out_features] of x's type.

    Mutates:
        Nothing.

    Source:
        As `rms_norm`.
    """
    del batch_invariant, launch_pdl
    result = linear(x, weight, bias=bias, residual=residual)
    return result, rms_norm(result, next_norm_weight, eps)
