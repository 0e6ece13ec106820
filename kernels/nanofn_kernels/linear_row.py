"""One row times a weight: every warp streams a few weight rows through its registers, all of them before it waits."""

from dataclasses import dataclass

from torch import Tensor

from nanofn_kernels._dispatch import INTERPRETED, cdiv, jit, tl

TILE = 256
"""Weight columns that a warp reads at once: 32 lanes of 16 bytes."""

MAX_TILES = 16
"""Tiles of a weight row that a program may hold in registers."""


@dataclass(frozen=True)
class RowLaunch:
    """How `row_product` is shaped.

    Attributes:
        outputs: Results a program computes.
        slices: Parts a weight row is cut into; different warps take them and their sums are added in order.
        num_warps: Warps a program.
    """

    outputs: int
    slices: int
    num_warps: int


@jit
def _row_kernel(
    out_ptr, x_ptr, weight_ptr, bias_ptr, norm_ptr, residual_ptr, eps, weight_stride, num_outputs,
    IN: tl.constexpr, OUTPUTS: tl.constexpr, SLICES: tl.constexpr, TILE: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr,
    RESIDUAL: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """out = residual + gate(norm(x) @ weight.T + bias) for one row x.

    Program p computes outputs [p * OUTPUTS, (p + 1) * OUTPUTS); line i of its tiles is slice i % SLICES of output i // SLICES.
    Traffic: element_bytes * IN * num_outputs, twice that if gated; x and the norm's weight come out of L2.
    """
    LINES: tl.constexpr = OUTPUTS * SLICES
    WIDTH: tl.constexpr = IN // SLICES
    compute: tl.constexpr = tl.float32 if UPCAST else x_ptr.dtype.element_ty
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    line = tl.arange(0, LINES)
    first = tl.program_id(0).to(tl.int64) * OUTPUTS
    # Lines past the end repeat the last output; they are not stored.
    output = tl.minimum(first + line // SLICES, num_outputs - 1)[:, None]
    column = ((line % SLICES) * WIDTH)[:, None] + tl.arange(0, TILE)[None, :]
    rows = weight_ptr + output * weight_stride + column
    up_rows = weight_ptr + (output + num_outputs) * weight_stride + column
    weights = ()
    ups = ()
    scales = ()
    for t in tl.static_range(WIDTH // TILE):
        weights += (tl.load(rows + t * TILE),)
    if GATED:
        for t in tl.static_range(WIDTH // TILE):
            ups += (tl.load(up_rows + t * TILE),)
    if NORM:
        for t in tl.static_range(WIDTH // TILE):
            scales += (tl.load(norm_ptr + column + t * TILE),)
    if PDL:
        tl.extra.cuda.gdc_wait()

    xs = ()
    for t in tl.static_range(WIDTH // TILE):
        xs += (tl.load(x_ptr + column + t * TILE),)
    result = first + tl.arange(0, OUTPUTS)
    is_result = result < num_outputs
    if RESIDUAL:
        residual = tl.load(residual_ptr + result, mask=is_result, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.zeros([LINES, TILE], tl.float32)
        for t in tl.static_range(WIDTH // TILE):
            squares += xs[t].to(tl.float32) * xs[t].to(tl.float32)
        square = tl.sum(squares, 1)
        if SLICES > 1:
            square = tl.sum(tl.reshape(square, [OUTPUTS, SLICES]), 1)
            square = tl.reshape(tl.broadcast_to(square[:, None], [OUTPUTS, SLICES]), [LINES])
        inverse = tl.rsqrt(square / IN + eps)[:, None]
    sums = tl.zeros([LINES, TILE], tl.float32)
    up_sums = tl.zeros([LINES, TILE], tl.float32)
    for t in tl.static_range(WIDTH // TILE):
        x = xs[t].to(tl.float32)
        if NORM:
            x = (x * inverse).to(compute).to(tl.float32) * scales[t].to(tl.float32)
            x = x.to(compute).to(tl.float32)
        sums += weights[t].to(tl.float32) * x
        if GATED:
            up_sums += ups[t].to(tl.float32) * x
    y = tl.sum(sums, 1)
    if SLICES > 1:
        y = tl.sum(tl.reshape(y, [OUTPUTS, SLICES]), 1)
    if BIAS:
        y += tl.load(bias_ptr + result, mask=is_result, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(up_sums, 1)
        if SLICES > 1:
            up = tl.sum(tl.reshape(up, [OUTPUTS, SLICES]), 1)
        if BIAS:
            up += tl.load(bias_ptr + num_outputs + result, mask=is_result, other=0.0).to(tl.float32)
        y = y / (1.0 + tl.exp(-y)) * up
    if RESIDUAL:
        y += residual
    tl.store(out_ptr + result, y.to(out_ptr.dtype.element_ty), mask=is_result)


def fits(in_features: int, launch: RowLaunch) -> bool:
    """Say whether a launch's slices are whole tiles that the registers hold."""
    width = in_features // launch.slices
    return in_features % (launch.slices * TILE) == 0 and width // TILE <= MAX_TILES


def row_product(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor | None,
    residual: Tensor | None,
    eps: float,
    is_gated: bool,
    launch: RowLaunch,
    launch_pdl: bool,
) -> None:
    """Launch the row kernel on `x` [1, in_features]; `fits` must hold. Mutates out."""
    num_outputs = out.shape[1]
    _row_kernel[(cdiv(num_outputs, launch.outputs),)](
        out,
        x,
        weight,
        bias,
        norm_weight,
        residual,
        eps,
        weight.stride(0),
        num_outputs,
        IN=x.shape[1],
        OUTPUTS=launch.outputs,
        SLICES=launch.slices,
        TILE=TILE,
        BIAS=bias is not None,
        NORM=norm_weight is not None,
        RESIDUAL=residual is not None,
        GATED=is_gated,
        PDL=not INTERPRETED,
        UPCAST=INTERPRETED,
        num_warps=launch.num_warps,
        **({"launch_pdl": True} if launch_pdl else {}),
    )
