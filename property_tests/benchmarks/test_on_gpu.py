"""The parts of `on_gpu.sh`: which there are, and what those of kernels do where there is no GPU."""

import os
import re
import subprocess

import pytest

from record import RESULTS

FOLDER = RESULTS.parent
SCRIPT = FOLDER / "on_gpu.sh"
KERNEL_PARTS = (
    "ops", "sample", "adjust", "decode", "linear", "prefill", "store", "sanitize", "ncu", "explore", "explore-specialised",
)  # fmt: skip


def on_gpu(folder, *parts, **variables):
    """Run parts: status and output."""
    environment = os.environ | {"OUT": str(folder), "WEIGHTS": str(folder / "weights")} | variables
    done = subprocess.run(["bash", SCRIPT, *parts], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_part_has_its_line():
    """The README's table names each part of the script."""
    parts = re.findall(r"^        ([a-z-]+)\) ", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    table = [line for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(parts) == len(set(parts)) >= 20
    assert [part for part in parts if not any(f"`{part}`" in line.rpartition("| ")[0] for line in table)] == []


def test_parts_of_kernels_need_a_gpu(tmp_path):
    """A smoke run says so of each and succeeds."""
    status, said = on_gpu(tmp_path, *KERNEL_PARTS, SMOKE="1")
    assert status == 0
    assert re.findall(r"^== (\S+): needs a GPU$", said, re.MULTILINE) == list(KERNEL_PARTS)


@pytest.mark.parametrize("names", ["", "sample linear"])
def test_kernels_run_by_themselves_before_they_run_under_a_tool(tmp_path, names):
    """An interpreter that only repeats its arguments shows what would run."""
    status, said = on_gpu(tmp_path, "sanitize", "ncu", PYTHON="echo", KERNELS=names)
    assert status == 0
    behind = f" {names}" if names else ""
    assert re.findall(r"^benchmarks/.*$", said, re.MULTILINE) == [
        f"benchmarks/sanitize.py --apart{behind}",
        f"benchmarks/cuda_tools.py sanitize {tmp_path}{behind}",
        "benchmarks/ncu_launches.py",
        f"benchmarks/cuda_tools.py ncu {tmp_path}",
    ]


def test_what_fails_under_a_tool_is_named_and_ends_nothing(tmp_path):
    """A wrong result ends a run, a finding does not."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho "$PYTORCH_NO_CUDA_MEMORY_CACHING $*"\ncase $1 in *cuda_tools.py) exit 1;; esac\n'
    )
    python.chmod(0o755)
    status, said = on_gpu(tmp_path, "sanitize", "ncu", PYTHON=str(python))
    assert status == 1
    assert "1 benchmarks/sanitize.py" in said
    assert "\n benchmarks/ncu_launches.py" in said  # with torch's own allocator again
    assert "cut or failed: sanitize ncu" in said


def test_kernels_tests_run_side_by_side(tmp_path):
    """All files whose tests choose the device, and a failure in one ends the run."""
    status, said = on_gpu(tmp_path, "ops", PYTHON="echo")
    assert status == 0
    found = re.findall(r"^-m pytest .* (property_tests/ops/test_\w+\.py)$", said, re.MULTILINE)
    assert {"test_sample.py", "test_paged_decode.py", "test_linear.py"} <= {name.rpartition("/")[2] for name in found}
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *test_linear.py) exit 1;; esac\n')
    python.chmod(0o755)
    assert on_gpu(tmp_path, "ops", PYTHON=str(python))[0] == 1


def test_a_part_that_is_none_ends_the_run(tmp_path):
    """With a status of its own."""
    assert on_gpu(tmp_path, "sanitise")[0] == 2
