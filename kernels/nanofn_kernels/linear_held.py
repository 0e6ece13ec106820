"""Rows times a weight on Hopper: the weight's tiles are in shared memory before the kernel in front has finished."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nanofn_kernels._dispatch import HAS_TRITON, INTERPRETED, cdiv, kernel_of, tl

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonJITFunction
    from triton.experimental.gluon.language.nvidia.hopper import (
        async_copy,
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    HAS_GLUON = HAS_TRITON and not INTERPRETED
    _jit = gluon.jit if INTERPRETED else partial(kernel_of, GluonJITFunction)
except ImportError:
    HAS_GLUON = False
    gl = tl

    def _jit(function: object) -> object:
        return function


MAX_UNROLLED = gl.constexpr(24)
"""Steps up to which the loop is unrolled, which is faster; code would grow without an end."""


@dataclass(frozen=True)
class HeldLaunch:
    """How `held_product` is shaped. Only `splits` changes a bit of the result.

    Attributes:
        rows: Rows of x that a program takes.
        outputs: Results a program computes.
        tile: Columns of x and the weight that one matrix step takes.
        splits: Programs that share the columns; their sums are added in order by another kernel.
        held: Weight tiles in shared memory, all requested before the wait.
        staged: Tiles of x in shared memory.
        num_warps: Warps a program; 4 do 64 rows of a matrix instruction.
        x_by_tma: Fetch x with the copy engine, which is slow where rows are missing.
    """

    rows: int
    outputs: int
    tile: int
    splits: int
    held: int
    staged: int
    num_warps: int = 4
    x_by_tma: bool = False


@_jit
def _fetch_weight(weight_desc, full, slots, slot, output, column, BYTES: gl.constexpr, GATED: gl.constexpr):
    mbarrier.expect(full.index(slot), BYTES)
    if GATED:
        tma.async_copy_global_to_shared(weight_desc, [0, output, column], full.index(slot), slots.index(slot))
    else:
        tma.async_copy_global_to_shared(weight_desc, [output, column], full.index(slot), slots.index(slot))


@_jit
def _await(
    weight_full, x_full, t, HELD: gl.constexpr, STAGED: gl.constexpr, PENDING: gl.constexpr, X_BY_TMA: gl.constexpr
):
    mbarrier.wait(weight_full.index(t % HELD), (t // HELD) & 1)
    if X_BY_TMA:
        mbarrier.wait(x_full.index(t % STAGED), (t // STAGED) & 1)
    else:
        # Each thread makes its own copies visible to the matrix unit before all of them meet.
        async_copy.wait_group(PENDING)
        fence_async_shared()
        tl.debug_barrier()


@_jit
def _transposed(tile, COLUMNS: gl.constexpr, TILE: gl.constexpr, GATED: gl.constexpr):
    if GATED:
        tile = tile.reshape((COLUMNS, TILE))
    return tile.permute((1, 0))


@_jit
def _step(
    acc, t, weights, xs, weight_full, x_full, weight_desc, x_desc, x_ptrs, x_mask, row, output, column,
    STEPS: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr, HELD: gl.constexpr, STAGED: gl.constexpr,
    W_BYTES: gl.constexpr, X_BYTES: gl.constexpr, GATED: gl.constexpr, X_BY_TMA: gl.constexpr,
):  # fmt: skip
    """Add tile t to the sum; the step before is then done with its slots, so fill them again."""
    _await(weight_full, x_full, t, HELD, STAGED, STAGED - 2, X_BY_TMA)
    b = _transposed(weights.index(t % HELD), COLUMNS, TILE, GATED)
    acc = warpgroup_mma(xs.index(t % STAGED), b, acc, is_async=True)
    acc = warpgroup_mma_wait(num_outstanding=1, deps=[acc])
    if t - 1 + STAGED < STEPS:
        offset = (t - 1 + STAGED) * TILE
        slot = (t - 1) % STAGED
        if X_BY_TMA:
            mbarrier.expect(x_full.index(slot), X_BYTES)
            tma.async_copy_global_to_shared(x_desc, [row, column + offset], x_full.index(slot), xs.index(slot))
        else:
            async_copy.async_copy_global_to_shared(xs.index(slot), x_ptrs + offset, mask=x_mask)
    if not X_BY_TMA:
        async_copy.commit_group()
    if t - 1 + HELD < STEPS:
        _fetch_weight(
            weight_desc, weight_full, weights, (t - 1) % HELD, output, column + (t - 1 + HELD) * TILE, W_BYTES, GATED
        )
    return acc


@_jit
def _held_kernel(
    out_ptr, x_desc, weight_desc, x_ptr, bias_ptr, residual_ptr, num_rows, num_outputs, x_stride, residual_stride, out_stride,
    IN: gl.constexpr, ROWS: gl.constexpr, OUTPUTS: gl.constexpr, TILE: gl.constexpr, SPLITS: gl.constexpr, HELD: gl.constexpr,
    STAGED: gl.constexpr, BIAS: gl.constexpr, RESIDUAL: gl.constexpr, GATED: gl.constexpr, X_BY_TMA: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """out = residual + gate(x @ weight.T + bias), or one split's part of x @ weight.T in float32.

    Program (i, j, s) computes rows [j * ROWS, ...), outputs [i * OUTPUTS, ...) over the s-th of SPLITS equal runs of columns.
    Traffic: the weight once from memory, num_outputs / OUTPUTS times x and num_rows / ROWS times the weight from L2.
    """
    STEPS: gl.constexpr = IN // SPLITS // TILE
    COLUMNS: gl.constexpr = OUTPUTS * 2 if GATED else OUTPUTS
    W_BYTES: gl.constexpr = COLUMNS * TILE * 2
    X_BYTES: gl.constexpr = ROWS * TILE * 2
    VECTORS: gl.constexpr = TILE // 8
    element: gl.constexpr = x_ptr.dtype.element_ty
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, COLUMNS, 16])
    half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, OUTPUTS, 16])
    flat: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    deep: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    lanes: gl.constexpr = gl.BlockedLayout([1, 8], [32 // VECTORS, VECTORS], [WARPS, 1], [1, 0])
    tl.extra.cuda.gdc_launch_dependents()
    if GATED:
        weights = gl.allocate_shared_memory(element, [HELD, 2, OUTPUTS, TILE], deep)
    else:
        weights = gl.allocate_shared_memory(element, [HELD, OUTPUTS, TILE], flat)
    xs = gl.allocate_shared_memory(element, [STAGED, ROWS, TILE], flat)
    weight_full = gl.allocate_shared_memory(gl.int64, [HELD, 1], mbarrier.MBarrierLayout())
    x_full = gl.allocate_shared_memory(gl.int64, [STAGED, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(HELD):
        mbarrier.init(weight_full.index(i), count=1)
    for i in gl.static_range(STAGED):
        mbarrier.init(x_full.index(i), count=1)
    fence_async_shared()

    output = gl.program_id(0) * OUTPUTS
    row = gl.program_id(1) * ROWS
    column = gl.program_id(2) * (IN // SPLITS)
    for i in gl.static_range(HELD):
        _fetch_weight(weight_desc, weight_full, weights, i, output, column + i * TILE, W_BYTES, GATED)
    tl.extra.cuda.gdc_wait()

    x_row = row + gl.arange(0, ROWS, gl.SliceLayout(1, lanes))
    x_column = column + gl.arange(0, TILE, gl.SliceLayout(0, lanes))
    x_ptrs = x_ptr + x_row.to(gl.int64)[:, None] * x_stride + x_column[None, :]
    x_mask = (x_row < num_rows)[:, None] & (x_column < IN)[None, :]
    for i in gl.static_range(STAGED):
        if X_BY_TMA:
            mbarrier.expect(x_full.index(i), X_BYTES)
            tma.async_copy_global_to_shared(x_desc, [row, column + i * TILE], x_full.index(i), xs.index(i))
        else:
            async_copy.async_copy_global_to_shared(xs.index(i), x_ptrs + i * TILE, mask=x_mask)
            async_copy.commit_group()
    acc = gl.zeros((ROWS, COLUMNS), gl.float32, mma)
    _await(weight_full, x_full, 0, HELD, STAGED, STAGED - 1, X_BY_TMA)
    acc = warpgroup_mma(xs.index(0), _transposed(weights.index(0), COLUMNS, TILE, GATED), acc, is_async=True)
    acc = warpgroup_mma_wait(num_outstanding=0 if STEPS == 1 else 1, deps=[acc])
    if STEPS <= MAX_UNROLLED:
        for t in gl.static_range(1, STEPS):
            acc = _step(acc, t, weights, xs, weight_full, x_full, weight_desc, x_desc, x_ptrs, x_mask, row, output, column,
                        STEPS, TILE, COLUMNS, HELD, STAGED, W_BYTES, X_BYTES, GATED, X_BY_TMA)  # fmt: skip
    else:
        for t in range(1, STEPS):
            acc = _step(acc, t, weights, xs, weight_full, x_full, weight_desc, x_desc, x_ptrs, x_mask, row, output, column,
                        STEPS, TILE, COLUMNS, HELD, STAGED, W_BYTES, X_BYTES, GATED, X_BY_TMA)  # fmt: skip
    acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])

    rows = (row + gl.arange(0, ROWS, gl.SliceLayout(1, half)))[:, None]
    outputs = output + gl.arange(0, OUTPUTS, gl.SliceLayout(0, half))
    mask = (rows < num_rows) & (outputs < num_outputs)[None, :]
    if GATED:
        gate, up = gl.split(acc.reshape((ROWS, 2, OUTPUTS)).permute((0, 2, 1)))
        gate = gl.convert_layout(gate, half)
        up = gl.convert_layout(up, half)
        if BIAS:
            gate += gl.load(bias_ptr + outputs, mask=outputs < num_outputs, other=0.0).to(gl.float32)[None, :]
            up += gl.load(bias_ptr + num_outputs + outputs, mask=outputs < num_outputs, other=0.0).to(gl.float32)[
                None, :
            ]
        y = gate / (1.0 + gl.exp(-gate)) * up
    else:
        y = acc
        if BIAS:
            y += gl.load(bias_ptr + outputs, mask=outputs < num_outputs, other=0.0).to(gl.float32)[None, :]
    if RESIDUAL:
        y += gl.load(residual_ptr + rows.to(gl.int64) * residual_stride + outputs[None, :], mask=mask, other=0.0).to(
            gl.float32
        )
    place = gl.program_id(2).to(gl.int64) * num_rows + rows
    gl.store(out_ptr + place * out_stride + outputs[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


def fits(x: Tensor, weight: Tensor, launch: HeldLaunch) -> bool:
    """Say whether these tensors can be fetched so: 16-bit elements, 16-byte rows, whole tiles, and a Hopper GPU."""
    steps, rest = divmod(x.shape[1], launch.splits * launch.tile)
    return (
        HAS_GLUON
        and x.is_cuda
        and x.element_size() == 2
        and rest == 0
        and steps >= max(launch.held, launch.staged)
        and all(t.data_ptr() % 16 == 0 and t.stride(0) % 8 == 0 for t in (x, weight))
        and torch.cuda.get_device_capability(x.device)[0] == 9
    )


def held_product(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    num_outputs: int,
    is_gated: bool,
    launch: HeldLaunch,
    launch_pdl: bool,
) -> None:
    """Launch the held kernel; `fits` must hold. `out` is the result, or [splits, num_rows, num_outputs] fp32. Mutates out."""
    num_rows, in_features = x.shape
    flat = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    x_desc = TensorDescriptor(x, [num_rows, in_features], [x.stride(0), 1], [launch.rows, launch.tile], flat)
    if is_gated:
        deep = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
        shape, strides = [2, num_outputs, in_features], [num_outputs * weight.stride(0), weight.stride(0), 1]
        weight_desc = TensorDescriptor(weight, shape, strides, [2, launch.outputs, launch.tile], deep)
    else:
        strides = [weight.stride(0), 1]
        weight_desc = TensorDescriptor(weight, [num_outputs, in_features], strides, [launch.outputs, launch.tile], flat)
    grid = (cdiv(num_outputs, launch.outputs), cdiv(num_rows, launch.rows), launch.splits)
    _held_kernel[grid](
        out,
        x_desc,
        weight_desc,
        x,
        bias,
        residual,
        num_rows,
        num_outputs,
        x.stride(0),
        residual.stride(0) if residual is not None else 0,
        out.stride(-2),
        IN=in_features,
        ROWS=launch.rows,
        OUTPUTS=launch.outputs,
        TILE=launch.tile,
        SPLITS=launch.splits,
        HELD=launch.held,
        STAGED=launch.staged,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        GATED=is_gated,
        X_BY_TMA=launch.x_by_tma,
        WARPS=launch.num_warps,
        num_warps=launch.num_warps,
        **({"launch_pdl": True} if launch_pdl else {}),
    )
