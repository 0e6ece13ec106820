"""Rows times a weight anywhere, for any shape and type; and the kernels around a product: norm in front, sum of splits behind."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nanofn_kernels._dispatch import INTERPRETED, cdiv, jit, next_power_of_2, tl


@dataclass(frozen=True)
class TileLaunch:
    """How `tile_product` is shaped. Only `splits` changes a bit of the result.

    Attributes:
        rows: Rows of x that a program takes, at least 16.
        outputs: Results a program computes, at least 16.
        tile: Columns a step, at least 16.
        splits: Programs that share the columns; their sums are added in order by `sum_splits`.
        num_warps: Warps a program.
        num_stages: Triton's pipeline depth.
    """

    rows: int
    outputs: int
    tile: int
    splits: int
    num_warps: int = 4
    num_stages: int = 4


@jit
def _prefetch(ptrs):
    """Ask for one cache line a pointer in L2. Only behind a constexpr: the interpreter has no assembly."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [ptrs], dtype=tl.int32, is_pure=False, pack=1
    )


@jit
def _tile_kernel(
    out_ptr, x_ptr, weight_ptr, bias_ptr, residual_ptr, num_rows, num_outputs, x_stride, weight_stride, residual_stride,
    out_stride,
    IN: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """out = residual + gate(x @ weight.T + bias), or one split's part of x @ weight.T in float32.

    Program (i, j, s) computes rows [j * ROWS, ...), outputs [i * OUTPUTS, ...) over the s-th of SPLITS runs of columns.
    Traffic: the weight once from memory, num_outputs / OUTPUTS times x and num_rows / ROWS times the weight from L2.
    """
    compute: tl.constexpr = tl.float32 if UPCAST else x_ptr.dtype.element_ty
    WIDTH: tl.constexpr = ((IN + SPLITS - 1) // SPLITS + TILE - 1) // TILE * TILE
    STEPS: tl.constexpr = WIDTH // TILE
    WHOLE: tl.constexpr = WIDTH * SPLITS == IN
    LINE: tl.constexpr = 128 // (weight_ptr.dtype.element_ty.primitive_bitwidth // 8)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    output = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(2) * WIDTH
    is_output = output < num_outputs
    is_row = row < num_rows
    # Rows past the end of the weight repeat its last one; what they give is not stored.
    known = tl.minimum(output, num_outputs - 1)[:, None]
    weight_rows = weight_ptr + known * weight_stride
    up_rows = weight_ptr + (known + num_outputs) * weight_stride
    if PDL and WHOLE and WIDTH % (4 * LINE) == 0:
        for t in tl.static_range(WIDTH // (4 * LINE)):
            line = first + (t * 4 + tl.arange(0, 4)) * LINE
            _prefetch(weight_rows + line[None, :])
            if GATED:
                _prefetch(up_rows + line[None, :])
    if PDL:
        tl.extra.cuda.gdc_wait()

    x_rows = x_ptr + tl.minimum(row, num_rows - 1)[:, None] * x_stride
    acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    up_acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for t in tl.range(0, STEPS, num_stages=STAGES):
        column = (first + t * TILE + tl.arange(0, TILE))[None, :]
        in_x = is_row[:, None] & (column < IN)
        if WHOLE:
            x = tl.load(x_rows + column, mask=is_row[:, None], other=0.0).to(compute)
            w = tl.load(weight_rows + column).to(compute)
        else:
            x = tl.load(x_rows + column, mask=in_x, other=0.0).to(compute)
            w = tl.load(weight_rows + column, mask=column < IN, other=0.0).to(compute)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
        if GATED:
            if WHOLE:
                w = tl.load(up_rows + column).to(compute)
            else:
                w = tl.load(up_rows + column, mask=column < IN, other=0.0).to(compute)
            up_acc = tl.dot(x, tl.trans(w), up_acc, input_precision="ieee")

    if BIAS:
        acc += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if BIAS:
            up_acc += tl.load(bias_ptr + num_outputs + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
        acc = acc / (1.0 + tl.exp(-acc)) * up_acc
    mask = is_row[:, None] & is_output[None, :]
    if RESIDUAL:
        from_residual = residual_ptr + row[:, None] * residual_stride + output[None, :]
        acc += tl.load(from_residual, mask=mask, other=0.0).to(tl.float32)
    place = tl.program_id(2).to(tl.int64) * num_rows + row
    tl.store(out_ptr + place[:, None] * out_stride + output[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


@jit
def _norm_kernel(
    out_ptr, x_ptr, norm_ptr, eps, x_stride, out_stride,
    IN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """out = norm_weight * round(x * rsqrt(mean(x^2) + eps)).

    Program p does row p. Traffic: 2 * element_bytes * IN a row.
    """
    compute: tl.constexpr = tl.float32 if UPCAST else x_ptr.dtype.element_ty
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    scale = tl.load(norm_ptr + column, mask=column < IN, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + row * x_stride + column, mask=column < IN, other=0.0).to(tl.float32)
    x = (x * tl.rsqrt(tl.sum(x * x) / IN + eps)).to(compute).to(tl.float32) * scale
    tl.store(out_ptr + row * out_stride + column, x.to(out_ptr.dtype.element_ty), mask=column < IN)


@jit
def _sum_kernel(
    out_ptr, normed_ptr, parts_ptr, bias_ptr, residual_ptr, norm_ptr, num_rows, num_outputs, eps, residual_stride, out_stride,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, NORM: tl.constexpr,
    PDL: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """out = residual + bias + parts[0] + parts[1] + ..., in this order; normed = norm(out) beside it.

    Program (i, j) does row i and BLOCK outputs, all of them if there is a norm.
    Traffic: (4 * SPLITS + 2 * element_bytes) * num_outputs a row, out of L2.
    """
    compute: tl.constexpr = tl.float32 if UPCAST else out_ptr.dtype.element_ty
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = output < num_outputs
    if NORM:
        scale = tl.load(norm_ptr + output, mask=mask, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    parts = ()
    for s in tl.static_range(SPLITS):
        parts += (tl.load(parts_ptr + (s * num_rows + row) * num_outputs + output, mask=mask, other=0.0),)
    y = tl.zeros([BLOCK], tl.float32)
    for s in tl.static_range(SPLITS):
        y += parts[s]
    if BIAS:
        y += tl.load(bias_ptr + output, mask=mask, other=0.0).to(tl.float32)
    if RESIDUAL:
        y += tl.load(residual_ptr + row * residual_stride + output, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride + output, y.to(out_ptr.dtype.element_ty), mask=mask)
    if NORM:
        x = y.to(compute).to(tl.float32)
        x = (x * tl.rsqrt(tl.sum(x * x) / num_outputs + eps)).to(compute).to(tl.float32) * scale
        tl.store(normed_ptr + row * num_outputs + output, x.to(normed_ptr.dtype.element_ty), mask=mask)


def _pdl(launch_pdl: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if launch_pdl else {}


def tile_product(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    num_outputs: int,
    is_gated: bool,
    launch: TileLaunch,
    launch_pdl: bool,
) -> None:
    """Launch the tile kernel. `out` is the result, or [splits, num_rows, num_outputs] fp32. Mutates out."""
    num_rows, in_features = x.shape
    grid = (cdiv(num_outputs, launch.outputs), cdiv(num_rows, launch.rows), launch.splits)
    _tile_kernel[grid](
        out,
        x,
        weight,
        bias,
        residual,
        num_rows,
        num_outputs,
        x.stride(0),
        weight.stride(0),
        residual.stride(0) if residual is not None else 0,
        out.stride(-2),
        IN=in_features,
        ROWS=launch.rows,
        OUTPUTS=launch.outputs,
        TILE=launch.tile,
        SPLITS=launch.splits,
        STAGES=launch.num_stages,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        GATED=is_gated,
        PDL=not INTERPRETED,
        UPCAST=INTERPRETED,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **_pdl(launch_pdl),
    )


def norm_rows(x: Tensor, norm_weight: Tensor, eps: float, launch_pdl: bool) -> Tensor:
    """Return `norm_weight * rms_norm(x)` for every row, with one kernel whatever their number."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = next_power_of_2(x.shape[1])
    _norm_kernel[(x.shape[0],)](
        out,
        x,
        norm_weight,
        eps,
        x.stride(0),
        out.stride(0),
        IN=x.shape[1],
        BLOCK=block,
        PDL=not INTERPRETED,
        UPCAST=INTERPRETED,
        num_warps=8 if block >= 4096 else 4,
        **_pdl(launch_pdl),
    )
    return out


def sum_splits(
    out: Tensor,
    normed: Tensor | None,
    parts: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    eps: float,
) -> None:
    """Add the parts of a product in order, the bias and the residual; norm the sum too if asked. Mutates out and normed."""
    splits, num_rows, num_outputs = parts.shape
    block = min(512, next_power_of_2(num_outputs)) if normed is None else next_power_of_2(num_outputs)
    _sum_kernel[(num_rows, cdiv(num_outputs, block))](
        out,
        normed,
        parts,
        bias,
        residual,
        norm_weight,
        num_rows,
        num_outputs,
        eps,
        residual.stride(0) if residual is not None else 0,
        out.stride(0),
        BLOCK=block,
        SPLITS=splits,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        NORM=normed is not None,
        PDL=not INTERPRETED,
        UPCAST=INTERPRETED,
        num_warps=8 if normed is not None else 4,
        **_pdl(True),
    )
