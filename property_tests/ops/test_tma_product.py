"""The product that `benchmarks/explore` times beside the package's computes the same."""

import pytest
import torch

from explore.tma_product import TmaLaunch, tma_product
from nanofn_kernels._dispatch import INTERPRETED
from nanofn_kernels.reference.linear import linear as reference
from ops.paged import DEVICE, error

MEASURED = 2.5e-4
"""Relative error in norm of an fp16 result, rounding included: 2.1e-4 at most. The interpreter has no products of bf16."""

IS_HOPPER = DEVICE.type == "cuda" and torch.cuda.get_device_capability(DEVICE)[0] == 9


@pytest.mark.skipif(not (INTERPRETED or IS_HOPPER), reason="needs the copy engine of sm_90, or the interpreter")
@pytest.mark.parametrize(("splits", "is_gated"), [(1, False), (2, False), (1, True)])
def test_the_product_is_the_references(splits, is_gated):
    """Rows and outputs that fill no tile, with a residual where a program has the whole sum."""
    random = torch.Generator().manual_seed(0)
    x, weight, residual = (torch.randn(*shape, generator=random).half().to(DEVICE) for shape in ((17, 128), (80, 128), (17, 80)))  # fmt: skip
    outputs = 40 if is_gated else 80
    added = residual if splits == 1 and not is_gated else None
    out = torch.full(
        (splits, 17, outputs), float("nan"), dtype=torch.float32 if splits > 1 else torch.float16, device=DEVICE
    )
    tma_product(out, x, weight, added, outputs, is_gated, TmaLaunch(64, 32, 64, splits, 4, 3))
    wanted = reference(
        x.double(), weight.double(), residual=added if added is None else added.double(), is_gated=is_gated
    )
    assert error(out.sum(0), wanted) < MEASURED
