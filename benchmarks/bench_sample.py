"""The sampler: microseconds inside CUDA graphs with a cold L2, against the time of one read of the logits.

python benchmarks/bench_sample.py OUT.jsonl
"""

import argparse
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "kernels"), str(ROOT / "property_tests" / "ops")]

import offline

import gpu
from nanofn_kernels.reference.sample import kept, sample as reference
from nanofn_kernels.sample import KEY_SHIFT, sample_into
from nanofn_kernels.sample_few import launch_few

VOCAB_SIZE = 151_936
FILTERS = {
    "greedy": {},
    "sampled": {},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "top_k 20, top_p 0.95": {"top_k": 20, "top_p": 0.95},
    "top_k 50, top_p 0.9, min_p 0.05": {"top_k": 50, "top_p": 0.9, "min_p": 0.05},
}


TYPES = {"top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
ROWS = (1, 64, 256)
CASES = [*product((torch.bfloat16,), (4.0, 3.0, 1.0), ROWS), (torch.float32, 4.0, 256)]
"""Type, standard deviation and number of rows."""


def outputs(num_rows: int, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """What is written: token ids and flags."""
    return (
        torch.empty(num_rows, dtype=torch.int32, device=device),
        torch.empty(num_rows, dtype=torch.bool, device=device),
    )


def settings(name: str, num_rows: int, device: str = "cuda") -> tuple[list[Tensor], dict[str, Tensor]]:
    """Temperature, seed, position, child; and the filters of a name."""
    temperature = torch.full((num_rows,), 0.0 if name == "greedy" else 1.0, device=device)
    seed = torch.randint(-(2**62), 2**62, (num_rows,), device=device)
    position = torch.randint(0, 40960, (num_rows,), device=device)
    filters = {
        key: torch.full((num_rows,), value, dtype=TYPES[key], device=device) for key, value in FILTERS[name].items()
    }
    return [temperature, seed, position, torch.zeros_like(seed)], filters


PATHS = {0: "not filtered", 1: "short way", 2: "search", 4: "bounds alone"}
"""How a row is sampled, by the state that `sample_few` leaves it in."""


def paths(logits: Tensor, given: list[Tensor], filters: dict[str, Tensor]) -> str:
    """The paths that the rows took, those of most rows first, with the number of rows."""
    temperature, *noise = given
    chosen = [filters.get(key) for key in TYPES]
    few = launch_few(*outputs(len(logits)), logits, temperature, *chosen, *noise, None, KEY_SHIFT[logits.dtype], False)
    found = Counter(few.state[: len(logits)].tolist())
    return ", ".join(f"{PATHS[state]} {count}" for state, count in found.most_common())


def compile_share(index: int, workers: int) -> None:
    """Compile what the index-th worker has to. One row is a case of its own: its buffers are aligned otherwise."""
    # The launching function itself: on a CPU the op would run its reference.
    launch = sample_into._init_fn.__wrapped__  # noqa: SLF001
    todo = list(product((torch.bfloat16, torch.float32), (1, 64), FILTERS))
    with offline.recording():
        for dtype, num_rows, name in gpu.share(todo, index, workers):
            given, filters = settings(name, num_rows, "cpu")
            launch(*outputs(num_rows, "cpu"), torch.zeros(num_rows, VOCAB_SIZE, dtype=dtype), *given, **filters)


def main() -> None:
    """Measure, print a table and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--compile", type=int, nargs=2)
    options = parser.parse_args()
    if options.compile:
        compile_share(*options.compile)
        return
    gpu.compile_ahead(14, [str(options.out)])
    limits = gpu.ceilings()
    base = {"kernel": "sample", "vocab_size": VOCAB_SIZE, **gpu.environment(), **limits}
    print(limits)
    for dtype, spread, num_rows in CASES:
        sets = gpu.cold_sets(num_rows * VOCAB_SIZE * dtype.itemsize)
        logits = [(torch.randn(num_rows, VOCAB_SIZE, device="cuda") * spread).to(dtype) for _ in range(sets)]
        token_ids, is_undefined = outputs(num_rows)
        for name in FILTERS:
            given, filters = settings(name, num_rows)

            def run(i: int) -> None:
                sample_into(token_ids, is_undefined, logits[i % sets], *given, **filters)

            run(0)
            wanted, _ = reference(logits[0], *given, **filters)
            equal = (token_ids == wanted).float().mean().item()
            num_kept = kept(logits[0], given[0], *(filters.get(key) for key in TYPES)).sum(1).float().mean().item() if filters else VOCAB_SIZE  # fmt: skip
            path = paths(logits[0], given, filters) if filters else PATHS[0]
            found = gpu.time_graph(run, max(32, sets))
            limit = num_rows * VOCAB_SIZE * dtype.itemsize / limits["read_gb_per_s"] / 1e3
            line = {
                "dtype": str(dtype),
                "spread": spread,
                "rows": num_rows,
                "filter": name,
                "sets": sets,
                "equal": equal,
                "kept": num_kept,
                "path": path,
            }
            gpu.record(options.out, base | line | {"limit": limit, **found})
            print(f"{dtype} x{spread} {num_rows:4} {name:32} {found['median']:8.1f} us, limit {limit:5.1f}, kept {num_kept:8.0f}, equal {equal:.3f}, {path}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
