"""Small-batch products against float64, and what may not change their bits."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels import linear_plan, linear_row
from nanofn_kernels.errors import DtypeError, ShapeError, StrideError
from nanofn_kernels.linear import choose, launch_linear, linear, linear_norm
from nanofn_kernels.reference import linear as reference
from ops.paged import DEVICE, error

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
TOLERANCE = {F32: 1e-6, F16: 1.2e-3, BF16: 2e-2}
"""Of the norm of the difference, for as few as 8 outputs. Of many it is half of that, and on a GPU, which rounds bf16 where
the interpreter truncates, a quarter."""


class Case:
    """Random arguments; rows of x, weight and residual are strided."""

    def __init__(self, rows: int, wide: int, outputs: int, dtype: torch.dtype, *, is_gated=False, bias=True, norm=True, residual=True, seed=0):  # fmt: skip
        random = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random).to(dtype).to(DEVICE)

        makers = outputs * (2 if is_gated else 1)
        self.x = draw(rows, wide + 16)[:, :wide]
        self.weight = (draw(makers, wide + 16) * wide**-0.5)[:, :wide]
        self.options = {
            "bias": draw(makers) if bias else None,
            "norm_weight": draw(wide).abs() + 0.5 if norm else None,
            "residual": draw(rows, outputs + 8)[:, :outputs] if residual else None,
            "is_gated": is_gated,
        }

    def exact(self) -> torch.Tensor:
        """The result in float64 behind a norm that rounds as the kernel's."""
        norm_weight, bias, residual = (self.options[name] for name in ("norm_weight", "bias", "residual"))
        x = self.x if norm_weight is None else reference.rms_norm(self.x, norm_weight, 1e-6)
        y = x.double() @ self.weight.double().T + (0 if bias is None else bias.double())
        if self.options["is_gated"]:
            gate, up = y.chunk(2, dim=1)
            y = torch.nn.functional.silu(gate) * up
        return y + (0 if residual is None else residual.double())


@settings(max_examples=12)
@given(
    rows=st.sampled_from([1, 2, 15, 16, 17]), wide=st.sampled_from([8, 96, 130, 256]), outputs=st.integers(8, 40),
    dtype=st.sampled_from([F16, BF16, F32]), is_gated=st.booleans(), bias=st.booleans(), norm=st.booleans(),
    residual=st.booleans(), batch_invariant=st.booleans(),
)  # fmt: skip
def test_it_equals_float64(rows, wide, outputs, dtype, is_gated, bias, norm, residual, batch_invariant) -> None:
    """For any shape, type and combination of what surrounds the product."""
    case = Case(rows, wide, outputs, dtype, is_gated=is_gated, bias=bias, norm=norm, residual=residual)
    y = linear(case.x, case.weight, batch_invariant=batch_invariant, **case.options)
    assert y.shape == (rows, outputs)
    assert error(y, case.exact()) < TOLERANCE[dtype]


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("slices", [1, 2])
def test_the_row_kernel_equals_float64(is_gated: bool, slices: int) -> None:
    """Slices of a weight row, and outputs that do not fill the last program."""
    case = Case(1, 1024, 11, F32, is_gated=is_gated)
    launch = linear_row.RowLaunch(outputs=4 // slices, slices=slices, num_warps=4)
    y, _ = launch_linear(case.x, case.weight, launch=launch, **case.options)
    assert error(y, case.exact()) < TOLERANCE[F32]


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_split_sums_equal_float64(splits: int) -> None:
    """Also where a split is short or has no columns at all."""
    case = Case(3, 200, 40, F32)
    launch = linear_plan.TileLaunch(rows=16, outputs=32, tile=16, splits=splits)
    y, _ = launch_linear(case.x, case.weight, launch=launch, **case.options)
    assert error(y, case.exact()) < TOLERANCE[F32]


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_a_row_does_not_depend_on_its_mates(dtype: torch.dtype) -> None:
    """Alone, in 17 and in 40 rows: to one rounding of the result here, where a tile's product is the host library's.

    That library's bits depend on the machine and on the number of rows; to the bit it is tested on a GPU, below.
    """
    case = Case(40, 512, 64, dtype, bias=False)
    whole = linear(case.x, case.weight, batch_invariant=True, **case.options)
    for some in (slice(0, 1), slice(16, 33), slice(32, 40)):
        options = case.options | {"residual": case.options["residual"][some]}
        part = linear(case.x[some], case.weight, batch_invariant=True, **options)
        torch.testing.assert_close(part, whole[some], rtol=torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("shape", [(512, 64, False), (1024, 3072, True), (3072, 1024, False)])
def test_the_reduction_is_cut_the_same_way_for_every_batch(dtype: torch.dtype, shape: tuple[int, int, bool]) -> None:
    """Splits and columns of a tile are functions of the weight: what makes a row's bits independent of its mates."""
    launches = [linear_plan.tile_launch(rows, *shape, dtype) for rows in (1, 2, 16, 17, 64, 65, 256)]
    assert len({(launch.splits, launch.tile, launch.outputs) for launch in launches}) == 1
    assert linear_plan.num_splits(512, 64, is_gated=False) > 1


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_norm_made_ahead_is_the_norm(rows: int, batch_invariant: bool) -> None:
    """linear_norm's second result changes nothing about the product that takes it."""
    first, second = Case(rows, 512, 256, F32, norm=False), Case(rows, 256, 48, F32, bias=False)
    norm_weight = second.options["norm_weight"]
    options = {name: first.options[name] for name in ("bias", "residual")}
    hidden, normed = linear_norm(
        first.x, first.weight, norm_weight, batch_invariant=batch_invariant, **options
    )  # fmt: skip
    assert error(hidden, first.exact()) < TOLERANCE[F32]
    second.x = hidden
    y = linear(hidden, second.weight, normed=normed, batch_invariant=batch_invariant, **second.options)
    assert error(y, second.exact()) < TOLERANCE[F32]
    if linear_plan.norms_ahead(rows, batch_invariant):
        assert error(normed, reference.rms_norm(hidden, norm_weight, 1e-6).double()) < TOLERANCE[F32]


def test_columns_behind_the_weight_are_not_read() -> None:
    """NaN beside x and the weight, and in rows that follow them, changes nothing."""
    case = Case(3, 96, 33, F32, bias=False, residual=False)
    wide_x, wide_weight = torch.full((20, 112), float("nan")), torch.full((70, 112), float("nan"))
    wide_x[:3, :96], wide_weight[:33, :96] = case.x.cpu(), case.weight.cpu()
    y = linear(wide_x.to(DEVICE)[:3, :96], wide_weight.to(DEVICE)[:33, :96], **case.options)
    assert error(y, case.exact()) < TOLERANCE[F32]


def test_no_rows_give_no_rows() -> None:
    """An empty batch runs nothing."""
    assert linear(torch.zeros(0, 32, device=DEVICE), torch.zeros(8, 32, device=DEVICE)).shape == (0, 8)


def test_wrong_arguments_are_named() -> None:
    """Each raises the error of its kind, with the argument's name."""
    x, weight = torch.zeros(2, 32, device=DEVICE), torch.zeros(8, 32, device=DEVICE)
    for kind, name, options in (
        (ShapeError, "bias", {"bias": weight[0]}),
        (ShapeError, "residual", {"residual": x}),
        (DtypeError, "norm_weight", {"norm_weight": weight[0].half()}),
        (ShapeError, "normed", {"normed": weight}),
    ):
        with pytest.raises(kind) as caught:
            linear(x, weight, **options)
        assert caught.value.name == name
    with pytest.raises(ShapeError, match="weight"):
        linear(x, weight[:, :16])
    with pytest.raises(ShapeError, match="even"):
        linear(x, weight[:7], is_gated=True)
    with pytest.raises(StrideError):
        linear(x, weight.T.contiguous().T)


def test_the_op_is_well_formed() -> None:
    """Schema, fake and aliasing hold, and a compiled caller traces it once."""
    case = Case(3, 64, 16, F32)
    positional = (
        case.x,
        case.weight,
        case.options["bias"],
        case.options["norm_weight"],
        None,
        case.options["residual"],
    )
    torch.library.opcheck(linear, positional, test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(linear_norm, (case.x, case.weight, case.options["bias"]), test_utils=("test_schema", "test_faketensor"))  # fmt: skip


@pytest.mark.parametrize("shape", sorted(linear_plan.ROW))
def test_tables_agree_with_the_kernels(shape: tuple[int, int, bool]) -> None:
    """Every tabled launch fits its shape, and splits are the same for every number of rows."""
    assert linear_row.fits(shape[0], linear_plan.row_launch(*shape))
    splits = {linear_plan.held_launch(rows, *shape).splits for rows in (1, 16, 64, 65, 256)}
    splits |= {linear_plan.tile_launch(rows, *shape, BF16).splits for rows in (1, 16, 64, 65, 256)}
    assert len(splits) == 1
    for rows in (1, 64, 65, 256):
        launch = linear_plan.held_launch(rows, *shape)
        assert shape[0] // launch.splits // launch.tile >= max(launch.held, launch.staged)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 64, 65, 128, 256])
@pytest.mark.parametrize("shape", sorted(linear_plan.FEW))
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_tabled_shapes_equal_float64_and_keep_their_bits(rows: int, shape: tuple[int, int, bool], dtype) -> None:
    """On the GPU, with and without invariance, and twice the same; a row alone has the bits it has here."""
    wide, outputs, is_gated = shape
    case = Case(rows, wide, outputs, dtype, is_gated=is_gated, bias=False)
    for batch_invariant in (False, True):
        y = linear(case.x, case.weight, batch_invariant=batch_invariant, **case.options)
        assert error(y, case.exact()) < 3e-3
        assert torch.equal(y, linear(case.x, case.weight, batch_invariant=batch_invariant, **case.options))
    options = case.options | {"residual": case.options["residual"][-1:]}
    alone = linear(case.x[-1:], case.weight, batch_invariant=True, **options)
    assert torch.equal(alone, linear(case.x, case.weight, batch_invariant=True, **case.options)[-1:])
    assert choose(case.x, case.weight, is_gated=is_gated, batch_invariant=True) == linear_plan.held_launch(rows, *shape)


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from nanofn_kernels import _dispatch
from nanofn_kernels.linear import linear, linear_norm
from nanofn_kernels.sample import sample

assert not _dispatch.HAS_TRITON
x, weight, ones = torch.randn(2, 32), torch.randn(32, 32), torch.ones(32)
hidden, normed = linear_norm(x, weight, ones, residual=x)
assert torch.equal(linear(hidden, weight, None, ones, normed), linear(hidden, weight, norm_weight=ones))
ids = torch.arange(2)
tokens, _ = sample(hidden, torch.ones(2), ids, ids, ids, top_k=ids + 1)
assert tokens[0] == hidden[0].argmax()
"""


def test_products_and_sampler_run_without_triton() -> None:
    """The modules import, and the ops compute their references on the CPU."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
