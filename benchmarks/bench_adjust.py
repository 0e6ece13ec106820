"""Adjusted logits and log-probabilities: microseconds inside CUDA graphs with a cold L2, against the time of their traffic.

python benchmarks/bench_adjust.py OUT.jsonl
"""

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / folder) for folder in ("benchmarks", "kernels", "src")]

import gpu
from nanofn.sampling.logprobs import token_logprobs
from nanofn_kernels.adjust import ALLOWS, BANS, BIASES, END, ENDS, OUTSIDE, PENALISES, PROMPT, adjust_logits
from nanofn_kernels.reference.adjust import adjust_logits as reference

VOCAB_SIZE = 151_936
KINDS = {
    "nothing": (0, 6),
    "min_tokens": (ENDS, 10),
    "penalties": (PENALISES, 11),
    "penalties, min_tokens": (PENALISES | ENDS, 14),
    "everything": (ALLOWS | BANS | ENDS | BIASES | PENALISES, 18),
}
"""What all rows ask for, and bytes an id with bf16 logits: read for both kernels, and written."""


def tables(num_rows: int) -> list[torch.Tensor]:
    """Penalties, marks, counts and biases of rows half of whose ids have appeared."""
    shape = (num_rows, VOCAB_SIZE)
    marks = torch.zeros(shape, dtype=torch.uint8, device="cuda")
    marks[:, : VOCAB_SIZE // 2] |= PROMPT
    marks[:, -99:] |= OUTSIDE
    marks[:, 7] |= END
    counts = torch.randint(-3, 4, shape, dtype=torch.int32, device="cuda").clamp(min=0)
    penalties = torch.tensor([1.1, 0.2, 0.1], device="cuda").repeat(num_rows, 1)
    return [penalties, marks, counts, torch.randn(shape, device="cuda")]


def main() -> None:
    """Measure, print a table and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    limits = gpu.ceilings()
    base = {"kernel": "adjust", "vocab_size": VOCAB_SIZE, **gpu.environment(), **limits}
    for num_rows in (1, 64, 256):
        sets = gpu.cold_sets(num_rows * VOCAB_SIZE * 2)
        launches = max(32, sets)
        logits = [(torch.randn(num_rows, VOCAB_SIZE, device="cuda") * 4).bfloat16() for _ in range(sets)]
        # Tables have nine bytes an id: rows take turns too, where few of them would stay in the L2.
        turns = gpu.cold_sets(num_rows * VOCAB_SIZE * 9)
        asked = tables(num_rows * turns)
        rows = torch.arange(num_rows * turns, dtype=torch.int32, device="cuda").view(turns, num_rows)
        positions = torch.full_like(rows[0], 20)
        for name, (kinds, id_bytes) in KINDS.items():
            rules = torch.tensor([kinds, 10, 99], dtype=torch.int32, device="cuda").repeat(num_rows * turns, 1)

            def adjust(i: int) -> torch.Tensor:
                return adjust_logits(logits[i % sets], rows[i % turns], positions, rules, *asked)

            wanted = reference(logits[0], rows[0], positions, rules, *asked)
            mine = adjust(0)
            is_same = torch.equal(mine.isinf(), wanted.isinf())
            error = (mine - wanted).nan_to_num(0.0).abs().max().item()
            found = gpu.time_graph(adjust, launches)
            limit = num_rows * VOCAB_SIZE * id_bytes / limits["read_gb_per_s"] / 1e3
            line = {"rows": num_rows, "asked": name, "sets": sets, "error": error, "forbids_the_same": is_same}
            gpu.record(options.out, base | line | {"limit": limit, **found})
            print(
                f"{num_rows:4} {name:24} {found['median']:8.1f} us, limit {limit:6.1f}, error {error:.1e}", flush=True
            )
        token_ids = rows[0].long()
        for num_top in (0, 5, 20):
            found = gpu.time_graph(lambda i: token_logprobs(logits[i % sets], token_ids, num_top), launches)
            limit = num_rows * VOCAB_SIZE * 2 / limits["read_gb_per_s"] / 1e3
            line = {"rows": num_rows, "asked": f"logprobs={num_top}", "sets": sets}
            gpu.record(options.out, base | line | {"limit": limit, **found})
            print(f"{num_rows:4} logprobs={num_top:<15} {found['median']:8.1f} us, limit {limit:6.1f}", flush=True)


if __name__ == "__main__":
    main()
