"""Timing on a GPU: CUDA graphs over rotating data, ceilings of the same run, and one JSON line a result."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import triton
import triton.language as tl

ROOT = Path(__file__).resolve().parent.parent


def environment() -> dict[str, str]:
    """What a recorded figure depends on."""
    commit = os.environ.get("NANOFN_COMMIT", "")
    if not commit and (ROOT / ".git").exists():
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        commit = done.stdout.strip()
    return {
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
    }


def record(path: Path, line: dict[str, object]) -> None:
    """Append one result to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def time_graph(launch: Callable[[int], object], launches: int, replays: int = 10) -> dict[str, float]:
    """Capture `launch(0) ... launch(launches - 1)` and time the graph's replays.

    Args:
        launch: Runs the subject on its i-th set of data. Data should rotate through more than the L2 holds.
        launches: How many in one graph.
        replays: How many timings. One replay before them is not counted.

    Returns:
        Microseconds a launch: min, median, max over the replays.
    """
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        launch(0)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for index in range(launches):
            launch(index)
    graph.replay()
    times = []
    for _ in range(replays):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / launches)
    return {"min": min(times), "median": statistics.median(times), "max": max(times)}


@triton.jit
def _read_kernel(source_ptr, out_ptr, per_program, BLOCK: tl.constexpr):  # noqa: N803
    """Add up a slice of the source: a read and nothing else."""
    start = tl.program_id(0).to(tl.int64) * per_program
    total = tl.zeros([BLOCK], tl.int32)
    for offset in range(0, per_program, BLOCK):
        total ^= tl.load(source_ptr + start + offset + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


def ceilings() -> dict[str, float]:
    """Measure what the device can do: GB/s of a read and of a copy (read and written), TFLOP/s of a bf16 product."""
    words = torch.randint(-(1 << 30), 1 << 30, (1 << 30,), dtype=torch.int32, device="cuda")
    read = 0.0
    for programs in (132 * 8, 132 * 16, 1 << 13, 1 << 15):
        per_program = words.numel() // programs // 4096 * 4096
        out = torch.empty(programs, dtype=torch.int32, device="cuda")
        for block, warps in ((2048, 4), (4096, 8)):
            found = time_graph(
                lambda _: _read_kernel[(programs,)](words, out, per_program, BLOCK=block, num_warps=warps), 3, 5
            )
            read = max(read, 4 * per_program * programs / found["median"] / 1e3)
    half = words.numel() // 2 - 3 * 4096 - 128
    # Inside a graph a plain copy_ would be a copy-engine node; an addition runs on the multiprocessors.
    copy = 2 * 4 * half / time_graph(lambda _: torch.add(words[:half], 1, out=words[-half:]), 3, 5)["median"] / 1e3
    words = None
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = 2 * 8192**3 / time_graph(lambda _: a @ b, 3, 10)["median"] / 1e6
    return {"read_gb_per_s": read, "copy_gb_per_s": copy, "matmul_tflop_per_s": product}


def cold_sets(set_bytes: int) -> int:
    """How many sets of data a benchmark rotates through, so that none is still in the L2 when its turn comes again."""
    least = 2 * torch.cuda.get_device_properties().L2_cache_size
    return max(2, -(-least // set_bytes), min(64, 400_000_000 // set_bytes))


def compile_ahead(workers: int, arguments: list[str]) -> None:
    """Run this script's `--compile i n` in parallel, so that the measuring process finds its kernels in Triton's cache."""
    running = [
        subprocess.Popen([sys.executable, sys.argv[0], *arguments, "--compile", str(i), str(workers)])
        for i in range(workers)
    ]
    if any(process.wait() for process in running):
        raise SystemExit("a compile worker failed")


def share(items: list, index: int, workers: int) -> Iterator:
    """The items that worker `index` of `workers` takes."""
    return iter(items[index::workers])
