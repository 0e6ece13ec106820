"""Prefill attention: TFLOP/s of whole prompts, causal, inside CUDA graphs.

python benchmarks/bench_paged_prefill.py OUT.jsonl [--explore]
"""

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "kernels"), str(ROOT / "property_tests" / "ops")]

import offline

import gpu
from nanofn_kernels.paged_prefill import Launch, choose_launch, launch_paged_prefill

KV_HEADS, HEAD_DIM = 8, 128
POINTS = ((4, 4096), (16, 1024), (1, 16384))
LAUNCHES = (
    Launch(64, 64, 4, 3), Launch(64, 64, 4, 2), Launch(128, 64, 8, 3), Launch(128, 64, 8, 2), Launch(128, 32, 8, 4), Launch(128, 32, 8, 3),
    Launch(64, 32, 4, 3), Launch(64, 32, 4, 4),
)  # fmt: skip


def run(chunks: int, context: int, block_size: int, heads: int, caches: tuple, launch: Launch, device: str = "cuda"):
    """A function that launches the kernel on whole prompts, with its arguments."""
    blocks = context // block_size
    table = torch.randperm(caches[0].shape[0], device=device)[: chunks * blocks].int().view(chunks, blocks) if device == "cuda" else torch.zeros(chunks, blocks, dtype=torch.int32)  # fmt: skip
    rows = torch.arange(chunks, dtype=torch.int32, device=device)
    bounds = torch.arange(chunks + 1, dtype=torch.int32, device=device) * context
    seq_lens = torch.full((chunks,), context, dtype=torch.int32, device=device)
    query = torch.randn(chunks * context, heads, HEAD_DIM, dtype=torch.bfloat16, device=device)

    def once(_: int = 0) -> torch.Tensor:
        return launch_paged_prefill(query, *caches, table, rows, bounds, seq_lens, HEAD_DIM**-0.5, launch=launch)

    return once, query, table


def main() -> None:
    """Measure, print a table and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--explore", action="store_true")
    parser.add_argument("--compile", type=int, nargs=2)
    options = parser.parse_args()
    sizes = (64, 16)
    heads_of = (16,) if options.explore else (16, 32)
    todo = [
        (*p, size, heads, launch)
        for size in sizes
        for heads in heads_of
        for p in POINTS
        for launch in (LAUNCHES if options.explore else (choose_launch(HEAD_DIM, size, 2),))
    ]
    if options.compile:
        with offline.recording():
            for chunks, context, size, heads, launch in gpu.share(todo, *options.compile):
                caches = tuple(torch.zeros(2, size, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16) for _ in range(2))
                run(chunks, context, size, heads, caches, launch, "cpu")[0]()
        return
    gpu.compile_ahead(12, [str(options.out), *(["--explore"] if options.explore else [])])
    limits = gpu.ceilings()
    base = {"kernel": "paged_prefill", **gpu.environment(), **limits}
    print(limits)
    for size in sizes:
        caches = tuple(
            torch.randn(2 * 16384 // size, size, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
            for _ in range(2)
        )
        for chunks, context, block_size, heads, launch in todo:
            if block_size != size:
                continue
            once, query, table = run(chunks, context, size, heads, caches, launch)
            group = heads // KV_HEADS
            keys, values = (
                cache[table[0].long()].flatten(0, 1).repeat_interleave(group, 1).transpose(0, 1) for cache in caches
            )
            wanted = torch.nn.functional.scaled_dot_product_attention(query[:context].transpose(0, 1)[None], keys[None], values[None], is_causal=True)[0].transpose(0, 1)  # fmt: skip
            mine = once()[:context]
            error = ((mine.float() - wanted.float()).norm() / wanted.float().norm()).item()
            found = gpu.time_graph(once, 4, 6)
            flops = 4 * heads * HEAD_DIM * chunks * context * (context + 1) / 2
            rate = flops / found["median"] / 1e6
            gpu.record(options.out, base | {"chunks": chunks, "context": context, "block_size": size, "heads": heads, "launch": repr(launch), "error": error, "tflop_per_s": rate, **found})  # fmt: skip
            print(
                chunks,
                context,
                size,
                heads,
                (launch.block_rows, launch.tile, launch.num_warps, launch.num_stages),
                f"{found['median']:.0f} us {rate:.0f} TFLOP/s {error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
