"""The sampler: microseconds inside CUDA graphs with a cold L2, against the time of one read of the logits.

python benchmarks/bench_sample.py OUT.jsonl
"""

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "kernels")]

import gpu
from nanofn_kernels.reference.sample import kept, sample as reference
from nanofn_kernels.sample import sample_into

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


def main() -> None:
    """Measure, print a table and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    limits = gpu.ceilings()
    base = {"kernel": "sample", "vocab_size": VOCAB_SIZE, **gpu.environment(), **limits}
    print(limits)
    cases = [(torch.bfloat16, spread, num_rows) for spread in (4.0, 3.0, 1.0) for num_rows in (1, 64, 256)]
    for dtype, spread, num_rows in [*cases, (torch.float32, 4.0, 256)]:
        sets = max(2, 400_000_000 // (num_rows * VOCAB_SIZE * dtype.itemsize))
        logits = [(torch.randn(num_rows, VOCAB_SIZE, device="cuda") * spread).to(dtype) for _ in range(min(sets, 64))]
        seed = torch.randint(-(2**62), 2**62, (num_rows,), device="cuda")
        position = torch.randint(0, 40960, (num_rows,), device="cuda")
        child = torch.zeros(num_rows, dtype=torch.int64, device="cuda")
        token_ids = torch.empty(num_rows, dtype=torch.int32, device="cuda")
        is_undefined = torch.empty(num_rows, dtype=torch.bool, device="cuda")
        for name, values in FILTERS.items():
            temperature = torch.full((num_rows,), 0.0 if name == "greedy" else 1.0, device="cuda")
            types = {"top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
            filters = {
                key: torch.full((num_rows,), value, dtype=types[key], device="cuda") for key, value in values.items()
            }

            def run(i: int) -> None:
                source = logits[i % len(logits)]
                sample_into(token_ids, is_undefined, source, temperature, seed, position, child, **filters)

            run(0)
            wanted, _ = reference(logits[0], temperature, seed, position, child, **filters)
            equal = (token_ids == wanted).float().mean().item()
            num_kept = kept(logits[0], temperature, *(filters.get(key) for key in types)).sum(1).float().mean().item() if filters else VOCAB_SIZE  # fmt: skip
            found = gpu.time_graph(run, min(4 * len(logits), 32))
            limit = num_rows * VOCAB_SIZE * dtype.itemsize / limits["read_gb_per_s"] / 1e3
            line = {
                "dtype": str(dtype),
                "spread": spread,
                "rows": num_rows,
                "filter": name,
                "equal": equal,
                "kept": num_kept,
            }
            gpu.record(options.out, base | line | {"limit": limit, **found})
            print(f"{dtype} x{spread} {num_rows:4} {name:32} {found['median']:8.1f} us, limit {limit:5.1f}, kept {num_kept:8.0f}, equal {equal:.3f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
