"""Products of at most a few hundred rows with a weight: one op with the norm in front of it and all that follows it."""

import torch
from torch import Tensor

from nanofn_kernels import linear_held, linear_row, linear_tile
from nanofn_kernels._dispatch import FLOATS, INTERPRETED, check_tensor, define_op
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.linear_library import library_product
from nanofn_kernels.linear_plan import (
    LIBRARY,
    Launch,
    Library,
    held_launch,
    norms_ahead,
    prefers_library,
    row_launch,
    tile_launch,
)
from nanofn_kernels.reference.linear import linear as _reference, linear_norm as _reference_norm

__all__ = ["choose", "launch_linear", "linear", "linear_norm"]


def choose(
    x: Tensor, weight: Tensor, *, has_bias: bool = False, is_gated: bool = False, batch_invariant: bool = False
) -> Launch:
    """Choose kernel and launch from the static tables.

    Args:
        x: [num_rows, in_features]. Size, type, strides and alignment count.
        weight: [out_features, in_features]. The same.
        has_bias: The product has a bias.
        is_gated: The weight's halves make gate and up.
        batch_invariant: A row's bits may not depend on the other rows.

    Returns:
        A launch of one of the kernels, or `LIBRARY`.
    """
    num_rows, in_features = x.shape
    num_outputs = weight.shape[0] // (2 if is_gated else 1)
    shape = (in_features, num_outputs, is_gated)
    row = row_launch(*shape)
    if num_rows == 1 and not batch_invariant and linear_row.fits(in_features, row):
        return row
    if not INTERPRETED and not batch_invariant and not has_bias and prefers_library(num_rows, *shape):
        return LIBRARY
    held = held_launch(num_rows, *shape)
    return held if linear_held.fits(x, weight, held) else tile_launch(num_rows, *shape, x.dtype)


def launch_linear(
    x: Tensor,
    weight: Tensor,
    *,
    launch: Launch,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    normed: Tensor | None = None,
    residual: Tensor | None = None,
    next_norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    is_gated: bool = False,
    launch_pdl: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Run a product with a given launch: `linear` and `linear_norm` without checks and without the choice.

    Args:
        x: As `linear`.
        weight: As `linear`.
        launch: What `choose` returned, or another one that fits.
        bias: As `linear`.
        norm_weight: As `linear`.
        normed: Rows to use instead of norming x.
        residual: As `linear`.
        next_norm_weight: Norm the result too.
        eps: As `linear`.
        is_gated: As `linear`.
        launch_pdl: As `linear`.

    Returns:
        The result, and the normed result or None.
    """
    num_rows, num_outputs = x.shape[0], weight.shape[0] // (2 if is_gated else 1)
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    ahead = None if next_norm_weight is None else torch.empty_like(out)
    if num_rows == 0:
        return out, ahead
    if isinstance(launch, linear_row.RowLaunch):
        linear_row.row_product(out, x, weight, bias, norm_weight, residual, eps, is_gated, launch, launch_pdl)
    else:
        if normed is not None:
            x = normed
        elif norm_weight is not None:
            x, launch_pdl = linear_tile.norm_rows(x, norm_weight, eps, launch_pdl), True
        if isinstance(launch, Library):
            library_product(out, x, weight, residual, is_gated)
        else:
            splits = launch.splits
            target = out if splits == 1 else x.new_empty((splits, num_rows, num_outputs), dtype=torch.float32)
            _split_product(
                target,
                x,
                weight,
                bias if splits == 1 else None,
                residual if splits == 1 else None,
                is_gated=is_gated,
                launch=launch,
                launch_pdl=launch_pdl,
            )
            if splits > 1:
                linear_tile.sum_splits(out, ahead, target, bias, residual, next_norm_weight, eps)
                return out, ahead
    if next_norm_weight is not None:
        ahead = linear_tile.norm_rows(out, next_norm_weight, eps, launch_pdl=not isinstance(launch, Library))
    return out, ahead


def _split_product(
    target: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    *,
    is_gated: bool,
    launch: linear_held.HeldLaunch | linear_tile.TileLaunch,
    launch_pdl: bool,
) -> None:
    num_outputs = target.shape[-1]
    if isinstance(launch, linear_held.HeldLaunch):
        linear_held.held_product(target, x, weight, bias, residual, num_outputs, is_gated, launch, launch_pdl)
    else:
        linear_tile.tile_product(target, x, weight, bias, residual, num_outputs, is_gated, launch, launch_pdl)


def _check(
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
) -> None:
    del eps, batch_invariant, launch_pdl
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_tensor("weight", weight, (None, x.shape[1]), x.dtype, x.device)
    if is_gated and weight.shape[0] % 2:
        raise ShapeError("weight", "an even number of rows: gate, then up", weight.shape[0])
    num_outputs = weight.shape[0] // (2 if is_gated else 1)
    for name, vector, size in (
        ("bias", bias, weight.shape[0]),
        ("norm_weight", norm_weight, x.shape[1]),
    ):
        if vector is not None:
            check_tensor(name, vector, (size,), x.dtype, x.device)
    if normed is not None:
        check_tensor("normed", normed, tuple(x.shape), x.dtype, x.device)
    if residual is not None:
        check_tensor("residual", residual, (x.shape[0], num_outputs), x.dtype, x.device)


def _fake(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, norm_weight: Tensor | None = None, normed: Tensor | None = None,
    residual: Tensor | None = None, eps: float = 1e-6, is_gated: bool = False, batch_invariant: bool = False,
    launch_pdl: bool = False,
) -> Tensor:  # fmt: skip
    return x.new_empty((x.shape[0], weight.shape[0] // (2 if is_gated else 1)))


@define_op("linear", mutates=(), reference=_reference, fake=_fake, check=_check)
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
    """Compute `residual + gate(rms_norm(x) @ weight.T + bias)`, fast for few rows.

    `gate(y)` is silu(first half of y) * (second half of y), or y where the product is not gated. Kernel and shape come
    from a static table by number of rows and shape of the weight; nothing is tuned while running.

    Args:
        x: [num_rows, in_features] fp16, bf16 or fp32. Rows may be strided. Measured up to 256 rows; more work.
        weight: [out_features, in_features] as x. Rows may be strided. If gated, the rows of the gate, then those of up.
        bias: [out_features] as x, or None.
        norm_weight: [in_features] as x, or None for no norm.
        normed: [num_rows, in_features] as x. What `linear_norm` returned beside this x for this norm_weight, eps and
            batch_invariant: saves norming x. None is always right.
        residual: [num_rows, result_features] as x, or None. Rows may be strided.
        eps: Added to the mean square.
        is_gated: result_features is out_features / 2, else out_features.
        batch_invariant: A row's bits do not depend on the other rows nor on their number. Slower for one row and for
            large weights; without it the bits change between one row and several, and where the library takes over.
        launch_pdl: Launch while the kernel in front still runs. The weights (weight, bias, norm_weight) must have been
            complete before that kernel was launched; x, normed and residual may be its product.

    Returns:
        [num_rows, result_features] of x's type. Norm, sums and epilogue in fp32, rounded once; the normed x is rounded to
        x's type before and after its weight. The library rounds a gated product once more, before the gate.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        Nothing.

    Accuracy:
        Relative error in norm against float64 on the same rounded inputs: 1e-6 fp32, 6e-4 fp16, 3e-3 bf16.

    Source:
        Ours. Norm: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4. Gate: Shazeer 2020, arXiv:2002.05202, section 2.
    """
    launch = choose(x, weight, has_bias=bias is not None, is_gated=is_gated, batch_invariant=batch_invariant)
    return launch_linear(
        x,
        weight,
        launch=launch,
        bias=bias,
        norm_weight=norm_weight,
        normed=normed if norm_weight is not None and norms_ahead(x.shape[0], batch_invariant) else None,
        residual=residual,
        eps=eps,
        is_gated=is_gated,
        launch_pdl=launch_pdl,
    )[0]


def _check_norm(
    x: Tensor, weight: Tensor, next_norm_weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None,
    eps: float = 1e-6, batch_invariant: bool = False, launch_pdl: bool = False,
) -> None:  # fmt: skip
    del eps, batch_invariant, launch_pdl
    _check(x, weight, bias, residual=residual)
    check_tensor("next_norm_weight", next_norm_weight, (weight.shape[0],), x.dtype, x.device)


def _fake_norm(
    x: Tensor, weight: Tensor, next_norm_weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None,
    eps: float = 1e-6, batch_invariant: bool = False, launch_pdl: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return x.new_empty((x.shape[0], weight.shape[0])), x.new_empty((x.shape[0], weight.shape[0]))


@define_op("linear_norm", mutates=(), reference=_reference_norm, fake=_fake_norm, check=_check_norm)
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
    """Compute `residual + x @ weight.T + bias`, and ahead of time the norm that the next product will ask for.

    The second result is for `linear(result, ..., norm_weight=next_norm_weight, normed=second)` and for nothing else: where
    that product norms faster by itself (one row, not batch-invariant) it is not written.

    Args:
        x: [num_rows, in_features] fp16, bf16 or fp32. Rows may be strided.
        weight: [out_features, in_features] as x. Rows may be strided.
        next_norm_weight: [out_features] as x.
        bias: [out_features] as x, or None.
        residual: [num_rows, out_features] as x, or None. Rows may be strided.
        eps: Added to the mean square of the result.
        batch_invariant: As `linear`.
        launch_pdl: As `linear`.

    Returns:
        The result and the normed result, [num_rows, out_features] of x's type, rounded as in `linear`.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        Nothing.

    Accuracy:
        As `linear`.

    Source:
        As `linear`.
    """
    launch = choose(x, weight, has_bias=bias is not None, batch_invariant=batch_invariant)
    is_ahead = norms_ahead(x.shape[0], batch_invariant)
    result, normed = launch_linear(
        x,
        weight,
        launch=launch,
        bias=bias,
        residual=residual,
        next_norm_weight=next_norm_weight if is_ahead else None,
        eps=eps,
        launch_pdl=launch_pdl,
    )
    return result, torch.empty_like(result) if normed is None else normed
