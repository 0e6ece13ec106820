"""What a step of the pure core costs: against a mutable scheduler of the same policy, and against size.

Microseconds of decide + plan + commit, medians over the steps of whole runs that take turns. The standard work is 256
requests with prompts and outputs of 100 to 1,024 tokens, a token budget of 16,384, and blocks of 256 or 16 tokens: enough
of them, or 40 %. Flatness is counted in instructions (valgrind), because the machine's noise is larger than what it looks for.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from record import append_record
from schedule_work import POOLS, run_core, run_mutable, standard_limits, standard_work

IS_FULL = os.environ.get("NANOFN_BENCHMARK_SIZE") == "full"
NUM_REPEATS = 5 if IS_FULL else 1
WORK = (256, 1_024) if IS_FULL else (24, 64)
NUM_STEPS = 128
PROGRAM = Path(__file__).parent / "steady_steps.py"


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: f"{pool[0]}-{pool[1]}")
def bench_against_a_mutable_scheduler(benchmark, pool):
    """Same policy, same plans, in turns; the medians over all steps, and the least of each over the repeats."""
    work, limits = standard_work(*WORK), standard_limits(pool[0], POOLS[pool])
    core, mutable = [], []

    def take_turns():
        for _ in range(NUM_REPEATS):
            core.append(run_core(work, limits))
            mutable.append(run_mutable(work, limits))

    benchmark.pedantic(take_turns, rounds=1, iterations=1)
    ours, theirs = ([median(run.nanoseconds) / 1e3 for run in runs] for runs in (core, mutable))
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    prompts = sum(len(prompt) for prompt, _ in work)
    result = {
        "benchmark": "schedule",
        "block_size": pool[0],
        "num_blocks": POOLS[pool],
        "core_us": ours,
        "mutable_us": theirs,
        "ratio": median(ratios),
        "num_steps": len(core[0].plans),
        "num_preemptions": core[0].num_preemptions,
        "prefilled_per_prompt_token": core[0].num_prefilled / prompts,
        "same_plans": core[0].plans == mutable[0].plans,
    }
    benchmark.extra_info.update(result)
    print(
        f"\nblocks of {pool[0]}, {pool[1]}: core {median(ours):.1f} us, mutable {median(theirs):.1f} us a step, ratio "
        f"{result['ratio']:.2f}; {result['num_steps']} steps, {result['num_preemptions']} preemptions, "
        f"{result['prefilled_per_prompt_token']:.3f} prefilled per prompt token"
    )
    if IS_FULL:
        append_record("schedule", result)


def bench_batch_1(benchmark):
    """One sequence: the fixed part of a step, least of the steps."""
    runs = []
    work, limits = [((1,) * 100, 500 if IS_FULL else 20)], standard_limits(256, 1_206)
    benchmark.pedantic(lambda: runs.append(run_core(work, limits)), rounds=NUM_REPEATS, iterations=1)
    least = min(min(run.nanoseconds) for run in runs) / 1e3
    print(f"\nbatch 1: {least:.1f} us a step, least of {sum(len(run.nanoseconds) for run in runs)}")
    if IS_FULL:
        append_record("schedule", {"benchmark": "schedule_batch_1", "least_us": least})


SIZES = {
    "context 1 k": (1_024, 0, 140_000),
    "context 128 k": (131_072, 0, 140_000),
    "1 M waiting": (1_024, 1_000_000, 140_000),
    "pool of 2 k": (1_024, 0, 2_100),
    "pool of 1 M": (1_024, 0, 1_000_000),
}
"""Name to (context, waiting, blocks). The smallest pool that holds 16 sequences of 1 k tokens and a thousand more each."""


@pytest.mark.skipif(shutil.which("callgrind_control") is None, reason="valgrind is not installed")
@pytest.mark.skipif(not IS_FULL, reason="minutes of valgrind; NANOFN_BENCHMARK_SIZE=full runs it")
def bench_instructions(benchmark, tmp_path):
    """Instructions of a steady step of 16 sequences at several sizes, blocks of 16."""
    counts = {}

    def count():
        for name, sizes in SIZES.items():
            counts[name] = (instructions(tmp_path, sizes, NUM_STEPS) - instructions(tmp_path, sizes, 0)) / NUM_STEPS

    benchmark.pedantic(count, rounds=1, iterations=1)
    base = counts["context 1 k"]
    print(
        "\n"
        + "\n".join(f"{name}: {found:,.0f} instructions a step, {found / base:.3f}" for name, found in counts.items())
    )
    append_record("schedule", {"benchmark": "schedule_instructions", "per_step": counts})


def instructions(folder, sizes, num_steps):
    """Count the instructions of some steps."""
    out = folder / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
    command += [sys.executable, str(PROGRAM), *map(str, sizes), str(num_steps)]
    environment = os.environ | {"VALGRIND_TOOL": "callgrind", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])
