"""Our kernels under NVIDIA's tools, where a machine has them and they work: one line says so if not.

python benchmarks/cuda_tools.py sanitize OUT [NAME ...]   # sanitize.py under compute-sanitizer: OUT/sanitizer.jsonl
python benchmarks/cuda_tools.py ncu OUT                   # ncu_launches.py under Nsight Compute: OUT/ncu.jsonl

Run the scripts without the tools before: what compiles under a tool takes its time.
"""

import argparse
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from record import append_record

FOLDER = Path(__file__).resolve().parent
PLACES = ("usr/local/cuda*/bin", "usr/local/cuda*/compute-sanitizer", "opt/nvidia/nsight-compute/*")
LIMIT_S = {"memcheck": 90, "racecheck": 180, "ncu": 90}
"""Of one run under a tool; racecheck is said to take many times as long as memcheck."""

FOUND = 9
"""What a sanitizer shall return if it finds something in a program that succeeds; 0 would be its default."""

SANITIZERS = {
    # Torch asks the driver for functions that it may lack; a call that fails in earnest is an exception anyway.
    "memcheck": ["--report-api-errors", "no", "--padding", "4096"],
    "racecheck": [],
}
SUMMARY = re.compile(
    r"ERROR SUMMARY: (\d+) errors?\b(?! were not)|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warn"
)
"""Behind memcheck's there may be a second line: so many "were not printed", which the first one counts."""

UNSUPPORTED = re.compile("not supported|failed to initialize|unable to find|before first instrumented", re.IGNORECASE)
"""What a tool says that cannot watch a program, which may run all the same; it has no summary then."""

SECTIONS = ("SpeedOfLight", "Occupancy", "WarpStateStats", "SchedulerStats", "LaunchStats")
MAX_LAUNCHES = 60
"""More than `ncu_launches.py` has; ncu says a few KB about each."""

SHARES = {
    "dram_pct": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "matrix_unit_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "warps_active_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "issue_active_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
}
"""What is kept of ncu's hundreds of metrics, beside times and sizes; "sm" is the busiest part of a multiprocessor."""

LIMITS = ("registers", "shared_mem", "warps", "blocks", "barriers")
"""What limits how many programs one multiprocessor holds."""

STALL = re.compile(r"issue_stalled_(\w+)_per_issue_active\.ratio")
"""How many warps wait for something whenever one issues: their shares of the sum are shares of the warps' time; the three largest are kept."""

US = {"ns": 1e-3, "us": 1.0, "ms": 1e3}
"""Microseconds in the units that ncu may print times in."""


def find_tool(name: str) -> str | None:
    """Return the tool's path: from PATH, else from where CUDA is installed as a rule, the default one first."""
    return shutil.which(name) or max((str(path) for place in PLACES for path in Path("/").glob(f"{place}/{name}")), default=None)  # fmt: skip


def version_of(tool: str) -> str:
    """Return the version that a tool names."""
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
    return (re.findall(r"[Vv]ersion ([\d.]+)", said) or ["unknown"])[-1]


def run_tool(command: list[str], seconds: float) -> tuple[int, str]:
    """Run a command for at most so long: its status, 124 if it was cut, and all that it said."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=seconds)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return 124, process.communicate()[0]
    finally:  # a tool that is killed leaves the program that it runs
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def judge(status: int, said: str) -> dict[str, object]:
    """Read a sanitizer's output: which kernels came through, what was found, and in which functions."""
    counts = [tuple(int(number or 0) for number in found) for found in SUMMARY.findall(said)]
    errors = sum(memory + race for memory, race, _ in counts) if counts else None
    warnings = sum(warned for *_, warned in counts) if counts else None
    right = re.findall(r"^(\w+): right$", said, re.MULTILINE)
    remarks = [line for line in said.splitlines() if line.startswith("=========")]
    if status == 124:
        verdict = "cut"
    elif not counts and UNSUPPORTED.search("\n".join(remarks)):
        verdict, right = "unsupported", []
    elif errors or status == FOUND:
        verdict = "found"
    else:
        verdict = "clean" if status == 0 and errors == 0 else "failed"
    functions = {name for line in remarks for name in re.findall(r"\b_\w+_kernel\b", line)}
    return {"status": verdict, "kernels": right, "errors": errors, "warnings": warnings, "found_in": sorted(functions)}


def sanitize(out: Path, names: list[str], limit: float | None = None) -> bool:
    """Run `sanitize.py` under each tool and record what it found; say whether that is nothing."""
    tool = find_tool("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer is not on this machine")
        return True
    is_good = True
    for name, options in SANITIZERS.items():
        begin = time.perf_counter()
        # Python alone: nothing that Triton may start, such as a compiler, runs on the GPU.
        command = [tool, "--tool", name, "--target-processes", "application-only", "--error-exitcode", str(FOUND)]
        command += ["--print-limit", "20", *options, sys.executable, str(FOLDER / "sanitize.py"), *names]
        status, said = run_tool(command, limit or LIMIT_S[name])
        found = judge(status, said)
        seconds = round(time.perf_counter() - begin, 1)
        append_record("sanitizer", {"tool": name, "tool_version": version_of(tool), **found, "seconds": seconds}, out)
        if found["status"] == "unsupported":
            print(f"compute-sanitizer does not work here: {complaint(said)}")
            break
        print(said)
        print(f"{name}: {found}, {seconds} s")
        is_good &= found["status"] == "clean"
    return is_good


def ncu(out: Path, limit: float = LIMIT_S["ncu"]) -> bool:
    """Run `ncu_launches.py` under Nsight Compute and record its launches; say whether all, where ncu works at all."""
    tool = find_tool("ncu")
    if tool is None:
        print("ncu is not on this machine")
        return True
    command = [tool, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    # Our functions begin with an underscore, torch's do not.
    command += ["--kernel-name", "regex:^_.*_kernel$", "--launch-count", str(MAX_LAUNCHES)]
    command += [part for section in SECTIONS for part in ("--section", section)]
    status, said = run_tool([*command, sys.executable, str(FOLDER / "ncu_launches.py")], limit)
    rows = [line for line in said.splitlines() if line.startswith('"') and line.endswith('"')]
    if rows:
        launches, version = read_launches(rows), version_of(tool)
        for launch in launches:
            append_record("ncu", {"tool_version": version, **launch}, out)
        print(f"ncu {version}: {len(launches)} launches in ncu.jsonl")
        if status != 0:
            print(f"not all of them, status {status}: {complaint(said)}")
        return status == 0
    if status != 124:
        print(f"ncu does not work here: {complaint(said)}")
    return status != 124


def read_launches(table: Sequence[str]) -> list[dict[str, Any]]:
    """Take from ncu's CSV what is worth a record: one dict a launch, in their order.

    Args:
        table: A line of names, one of units, one a launch. A line that was cut is left out.

    Raises:
        KeyError: A metric is missing, or a time has an unknown unit.
    """
    units, *rows = list(csv.DictReader(table)) or [{}]
    return [_launch(row, units) for row in rows if None not in row.values()]


def _launch(row: dict[str, str], units: dict[str, str]) -> dict[str, Any]:
    def number(name: str) -> float:
        return float(row[name].replace(",", ""))

    time_ = "gpu__time_duration.sum"
    stalls = {found[1]: number(name) for name in row if (found := STALL.search(name))}
    longest = sorted(stalls, key=lambda what: -stalls[what])[:3]
    return {
        "launch": int(row["ID"]),
        "kernel": row["Kernel Name"],
        "grid": [int(size) for size in re.findall(r"\d+", row["Grid Size"])],
        "threads": int(number("launch__block_size")),
        "registers": int(number("launch__registers_per_thread")),
        "us": round(number(time_) * US[units[time_]], 3),
        **{name: number(metric) for name, metric in SHARES.items()},
        "programs_by": {what: int(number(f"launch__occupancy_limit_{what}")) for what in LIMITS},
        "stalls_pct": {what: round(100 * stalls[what] / sum(stalls.values()), 1) for what in longest},
    }


def complaint(said: str) -> str:
    """Return the first line that looks like an error, else the last one."""
    lines = [line.strip("= ") for line in said.splitlines() if line.strip("= ")] or ["it said nothing"]
    return next((line for line in lines if re.search("error|not supported|failed", line, re.IGNORECASE)), lines[-1])


def main(arguments: list[str]) -> None:
    """Run what is named; fail if a tool found something or was cut."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", choices=("sanitize", "ncu"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    if not (sanitize(options.out, options.names) if options.tool == "sanitize" else ncu(options.out)):
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
