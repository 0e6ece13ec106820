"""Attention and its neighbours as an H200 would run them: no spills, 16-byte copies, and no more than was recorded."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Recorded:
    """Registers of a thread and KiB of a program at most; 16-byte copies and matrix instructions at least."""

    registers: int
    shared_kib: float
    copies: int
    products: int = 0


RECORDED = {
    # One warp; nine programs a multiprocessor.
    "decode 256": Recorded(224, 20, 64, 64),
    "decode 64 page 16": Recorded(160, 54, 64, 32),
    "decode 16 page 16": Recorded(128, 134, 80, 32),
    "decode 16 group 4": Recorded(128, 134, 80, 32),
    "decode 8": Recorded(240, 54, 64, 32),
    "decode 8 group 4": Recorded(240, 54, 64, 32),
    "decode 8 page 16 pdl": Recorded(248, 54, 64, 32),
    "decode 1 page 16 pdl": Recorded(168, 70, 48, 32),
    "decode 1 pdl": Recorded(168, 70, 48, 32),
    # One program a multiprocessor may have 255, to hold four heads' partial results of 16 splits.
    "decode 1 group 4": Recorded(224, 70, 48, 32),
    "decode 64 split 256": Recorded(168, 70, 48, 32),
    "decode 64 head 80 fp16": Recorded(168, 54, 64, 32),
    "decode 64 head 256": Recorded(160, 73, 48, 32),
    "decode 4 fp32": Recorded(112, 26, 16),
    "prefill": Recorded(192, 112, 96, 24),
    "prefill page 16 group 4": Recorded(128, 81, 24, 20),
    "prefill head 64 fp16": Recorded(128, 56, 48, 16),
    "store": Recorded(72, 1, 0),
    "store pdl": Recorded(72, 1, 0),
    "work list": Recorded(32, 1, 0),
    "decode inputs": Recorded(32, 0, 0),
    "prefill inputs": Recorded(24, 0, 0),
    "sampling inputs": Recorded(32, 0, 0),
    "store tokens": Recorded(32, 2, 0),
}
"""What Triton 3.6.0 and 3.7.1 made of them, the larger of the two; prefill's products are Hopper's."""


def reports(first_on_path: str) -> dict[str, dict[str, int]]:
    """Every case's figures, from a process with this folder first on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(
        part for part in (first_on_path, str(TESTS), environment.get("PYTHONPATH")) if part
    )
    done = subprocess.run(
        [sys.executable, "-m", "ops.compiled_attention"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {figures["case"]: figures for figures in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("variable", [None, "NANOFN_OLD_TRITON"], ids=["installed", "old"])
def test_compiled_kernels_are_as_good_as_recorded(variable: str | None) -> None:
    """With the installed Triton and with the oldest supported one, for sm_90."""
    folder = "" if variable is None else os.environ.get(variable, "")
    if variable and not folder:
        pytest.skip(f"{variable} names no folder with the old Triton")
    found = reports(folder)
    assert set(found) == set(RECORDED)
    for case, limit in RECORDED.items():
        figures = found[case]
        assert figures["spill_bytes"] == 0, case
        assert figures["narrow_copies"] == 0, case
        assert figures["registers"] <= limit.registers, case
        assert figures["shared_bytes"] <= limit.shared_kib * 1024, case
        assert figures["async_copies"] >= limit.copies, case
        assert (figures["wgmma"] if case.startswith("prefill") else figures["mma"]) >= limit.products, case


def test_what_does_not_depend_on_the_kernel_in_front_comes_before_the_wait() -> None:
    """Every kernel that may be launched early waits, and its items, slots and tables are requested first."""
    from ops import offline

    source = TESTS.parent / "kernels" / "nanofn_kernels"
    for name in ("paged_decode", "paged_prefill", "norm_rope_store"):
        body = (source / f"{name}.py").read_text(encoding="utf-8")
        assert body.count("gdc_wait()") >= 1, name
        assert body.index("gdc_wait()") < body.index("gdc_launch_dependents()"), name
    assert offline.SHARED_LIMIT_BYTES == 227 * 1024
