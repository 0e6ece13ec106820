"""The library's product, and the gate behind it as a kernel."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import INTERPRETED, cdiv, jit, tl


@jit
def _gate_kernel(out_ptr, product_ptr, num_outputs, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """out = silu(gate) * up.

    Program (i, j) does BLOCK outputs of row i. Traffic: 3 * element_bytes an output.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = output < num_outputs
    gate = tl.load(product_ptr + row * 2 * num_outputs + output, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(product_ptr + (row * 2 + 1) * num_outputs + output, mask=mask, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * num_outputs + output, y.to(out_ptr.dtype.element_ty), mask=mask)


def library_product(out: Tensor, x: Tensor, weight: Tensor, residual: Tensor | None, is_gated: bool) -> None:
    """Let the library multiply, and gate or add the residual. Mutates out."""
    if residual is not None:
        torch.addmm(residual, x, weight.T, out=out)
    elif not is_gated:
        torch.mm(x, weight.T, out=out)
    else:
        product = x @ weight.T
        grid = (out.shape[0], cdiv(out.shape[1], 1024))
        _gate_kernel[grid](out, product, out.shape[1], BLOCK=1024, PDL=not INTERPRETED, num_warps=4)
