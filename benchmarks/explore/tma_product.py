"""A product in plain Triton whose operands both come by the copy engine, if asked for with warps that only fetch."""

from dataclasses import dataclass

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from nanofn_kernels._dispatch import INTERPRETED, cdiv, jit, tl


@dataclass(frozen=True)
class TmaLaunch:
    """How the product is shaped: as `TileLaunch`, and whether Triton gives fetching to warps of its own."""

    rows: int
    outputs: int
    tile: int
    splits: int
    num_warps: int
    num_stages: int
    is_specialised: bool = False


@jit
def _tma_kernel(
    out_ptr, x_desc, w_desc, residual_ptr, num_rows, num_outputs, residual_stride, out_stride,
    IN: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    RESIDUAL: tl.constexpr, GATED: tl.constexpr, SPECIAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[s, r, o] = sum over the s-th run of columns of x[r, c] w[o, c]; program (i, j, s) does one tile of it."""
    column = tl.program_id(0) * OUTPUTS
    row = tl.program_id(1) * ROWS
    first = tl.program_id(2) * (IN // SPLITS)
    acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    up = tl.zeros([ROWS, OUTPUTS], tl.float32)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for t in tl.range(0, IN // SPLITS // TILE, num_stages=STAGES, warp_specialize=SPECIAL):
        x = x_desc.load([row, first + t * TILE])
        acc = tl.dot(x, tl.trans(w_desc.load([column, first + t * TILE])), acc)
        if GATED:
            up = tl.dot(x, tl.trans(w_desc.load([num_outputs + column, first + t * TILE])), up)
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * up
    rows = row + tl.arange(0, ROWS)
    outputs = column + tl.arange(0, OUTPUTS)
    mask = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    if RESIDUAL:
        residual = tl.load(residual_ptr + rows[:, None] * residual_stride + outputs[None, :], mask=mask, other=0.0)
        acc += residual.to(tl.float32)
    place = tl.program_id(2) * num_rows + rows
    tl.store(out_ptr + place[:, None] * out_stride + outputs[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


def tma_product(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    num_outputs: int,
    is_gated: bool,
    launch: TmaLaunch,
) -> None:
    """As `held_product`, without a bias and always launched early.

    Mutates:
        out.
    """
    num_rows, in_features = x.shape
    x_desc = TensorDescriptor(x, list(x.shape), [x.stride(0), 1], [launch.rows, launch.tile])
    w_desc = TensorDescriptor(weight, list(weight.shape), [weight.stride(0), 1], [launch.outputs, launch.tile])
    _tma_kernel[cdiv(num_outputs, launch.outputs), cdiv(num_rows, launch.rows), launch.splits](
        out, x_desc, w_desc, residual, num_rows, num_outputs, 0 if residual is None else residual.stride(0), out.stride(-2),
        IN=in_features, ROWS=launch.rows, OUTPUTS=launch.outputs, TILE=launch.tile, SPLITS=launch.splits, STAGES=launch.num_stages,
        RESIDUAL=residual is not None, GATED=is_gated, SPECIAL=launch.is_specialised, PDL=not INTERPRETED,
        num_warps=launch.num_warps, num_stages=launch.num_stages, launch_pdl=not INTERPRETED,
    )  # fmt: skip
