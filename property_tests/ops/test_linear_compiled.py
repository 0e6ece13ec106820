"""Small-batch products as an H200 would run them: no spills, wide loads, and weights requested before the wait.

Run as a program, in a process without TRITON_INTERPRET, it compiles every case and prints one JSON line each.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parents[1]
WAIT, LAUNCH = "ACQBULK", "PREEXIT"
"""The wait for the kernel in front, and the permission for the one behind."""


@dataclass(frozen=True)
class Recorded:
    """Registers of a thread and KiB of a program at most; requests for weights before the wait, of 16 bytes or tiles."""

    registers: int
    shared_kib: float
    early: int
    products: int = 0


RECORDED = {
    "row 1024x4096": Recorded(112, 1, 12),
    "row 2048x1024": Recorded(72, 1, 8),
    "row 1024x3072 gated": Recorded(128, 1, 20),
    "row 3072x1024": Recorded(64, 1, 6),
    "row 4096x6144": Recorded(160, 1, 20),
    "row 4096x4096": Recorded(32, 1, 2),
    "row 4096x12288 gated": Recorded(128, 1, 20),
    "row 12288x4096": Recorded(64, 1, 6),
    "held 1024x4096 at 64": Recorded(120, 161, 6, 64),
    "held 2048x1024 at 64": Recorded(64, 129, 4, 32),
    "held 1024x3072 gated at 64": Recorded(118, 161, 5, 64),
    "held 3072x1024 at 64": Recorded(82, 145, 6, 48),
    "held 1024x4096 at 256": Recorded(192, 145, 8, 128),
    "held 2048x1024 at 256": Recorded(64, 97, 8, 32),
    "held 1024x3072 gated at 256": Recorded(144, 177, 6, 64),
    "held 3072x1024 at 256": Recorded(104, 201, 10, 48),
    "held 1024x4096 at 128": Recorded(192, 145, 8, 128),
    "held 2048x1024 at 128": Recorded(48, 57, 8, 32),
    "held 1024x3072 gated at 128": Recorded(120, 105, 9, 64),
    "held 3072x1024 at 128": Recorded(72, 105, 9, 48),
    "held 4096x4096 at 16": Recorded(56, 97, 4, 16),
    "held 1024x3072 gated at 64 fp16": Recorded(118, 161, 5, 64),
    "tile bf16": Recorded(56, 36, 0, 64),
    "tile fp32": Recorded(64, 12, 0),
    "norm": Recorded(32, 1, 1),
    "sum": Recorded(32, 0, 0),
    "sum and norm": Recorded(32, 1, 0),
    "gate": Recorded(32, 0, 0),
}
"""What Triton 3.6.0 and 3.7.1 made of them, the larger of the two."""


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor of which only type, strides and alignment matter."""
    return torch.zeros(shape, dtype=dtype)


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    """A name and a launch each."""
    from nanofn_kernels import linear_held, linear_library, linear_plan, linear_row, linear_tile

    def row(wide: int, outputs: int, is_gated: bool) -> None:
        weight = zeros(outputs * (1 + is_gated), wide)
        is_normed = wide in (1024, 4096) and outputs != wide
        vector, result = zeros(wide), zeros(1, outputs)
        launch = linear_plan.row_launch(wide, outputs, is_gated)
        linear_row.row_product(
            result, zeros(1, wide), weight, None, vector if is_normed else None, None if is_normed else result, 1e-6, is_gated,
            launch, True,
        )  # fmt: skip

    def held(rows: int, wide: int, outputs: int, is_gated: bool, dtype: torch.dtype = torch.bfloat16) -> None:
        launch = linear_plan.held_launch(rows, wide, outputs, is_gated)
        split = launch.splits > 1
        out = zeros(launch.splits, rows, outputs, dtype=torch.float32) if split else zeros(rows, outputs, dtype=dtype)
        weight, x = zeros(outputs * (1 + is_gated), wide, dtype=dtype), zeros(rows, wide, dtype=dtype)
        linear_held.held_product(out, x, weight, None, None, outputs, is_gated, launch, True)

    def tile(dtype: torch.dtype) -> None:
        launch = linear_plan.tile_launch(16, 1024, 4096, False, dtype)
        x, weight, out = zeros(16, 1024, dtype=dtype), zeros(4096, 1024, dtype=dtype), zeros(16, 4096, dtype=dtype)
        linear_tile.tile_product(out, x, weight, None, None, 4096, False, launch, True)

    def add(is_normed: bool) -> None:
        out, parts = zeros(8, 1024), zeros(4, 8, 1024, dtype=torch.float32)
        linear_tile.sum_splits(out, out if is_normed else None, parts, None, out, zeros(1024), 1e-6)

    for wide, outputs, is_gated in linear_plan.ROW:
        name = f"{wide}x{outputs}{' gated' if is_gated else ''}"
        yield f"row {name}", lambda shape=(wide, outputs, is_gated): row(*shape)
    for rows in (64, 128, 256):
        for wide, outputs, is_gated in linear_plan.FEW:
            name = f"held {wide}x{outputs}{' gated' if is_gated else ''} at {rows}"
            yield name, lambda shape=(rows, wide, outputs, is_gated): held(*shape)
    yield "held 4096x4096 at 16", lambda: held(16, 4096, 4096, is_gated=False)
    yield "held 1024x3072 gated at 64 fp16", lambda: held(64, 1024, 3072, is_gated=True, dtype=torch.float16)
    yield "tile bf16", lambda: tile(torch.bfloat16)
    yield "tile fp32", lambda: tile(torch.float32)
    yield "norm", lambda: linear_tile.norm_rows(zeros(8, 1024), zeros(1024), 1e-6, True)
    yield "sum", lambda: add(is_normed=False)
    yield "sum and norm", lambda: add(is_normed=True)
    yield (
        "gate",
        lambda: linear_library._gate_kernel[(8, 3)](zeros(8, 3072), zeros(8, 6144), 3072, BLOCK=1024, PDL=True),
    )


def reports(module: str, first_on_path: str) -> dict[str, dict[str, int]]:
    """Every case's figures, from a process with this folder first on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    parts = (first_on_path, str(TESTS), environment.get("PYTHONPATH"))
    environment["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
    done = subprocess.run([sys.executable, "-m", module], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {figures["case"]: figures for figures in map(json.loads, done.stdout.splitlines())}


def old_triton(variable: str | None) -> str:
    """The folder that a variable names, or a skip."""
    folder = "" if variable is None else os.environ.get(variable, "")
    if variable and not folder:
        pytest.skip(f"{variable} names no folder with the old Triton")
    return folder


def figures_of(compiled: object) -> dict[str, int]:
    """What the assembler made of a kernel, and which requests stand before its wait."""
    from ops import offline

    found = vars(offline.report(compiled))
    sass = found.pop("sass")
    before = sass[: sass.index(WAIT)]
    return found | {
        "early_loads": before.count("LDG"),
        "early_wide_loads": before.count("LDG.E.128"),
        "early_tiles": before.count("UTMALDG"),
        "launches_first": int(before.index(LAUNCH) < min(before.find(word) % len(sass) for word in ("LDG", "UTMALDG"))),
        "stores_before_wait": before.count("STG"),
        "waits": sass.count(WAIT),
    }


@pytest.mark.parametrize("variable", [None, "NANOFN_OLD_TRITON"], ids=["installed", "old"])
def test_compiled_products_are_as_good_as_recorded(variable: str | None) -> None:
    """With the installed Triton and with the oldest supported one, for sm_90; and nothing but weights before the wait."""
    found = reports("ops.test_linear_compiled", old_triton(variable))
    assert set(found) == set(RECORDED)
    for case, limit in RECORDED.items():
        figures = found[case]
        assert figures["spill_bytes"] == 0, case
        assert figures["narrow_copies"] == 0, case
        assert figures["registers"] <= limit.registers, (case, figures["registers"])
        assert figures["shared_bytes"] <= min(limit.shared_kib, 227) * 1024, (case, figures["shared_bytes"])
        assert figures["wgmma"] + figures["mma"] >= limit.products, case
        assert figures["early_wide_loads"] + figures["early_tiles"] >= limit.early, (case, figures)
        assert figures["launches_first"], case
        assert figures["stores_before_wait"] == 0, case
        assert figures["waits"] == 1, case


def main() -> None:
    """Compile every case and print its figures."""
    from ops import offline

    with offline.recording() as found:
        for name, launch in cases():
            launch()
            print(json.dumps({"case": name, **figures_of(found[-1])}), flush=True)


if __name__ == "__main__":
    main()
