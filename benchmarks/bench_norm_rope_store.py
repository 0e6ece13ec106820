"""Norm, rotation and store: microseconds, and share of the copy ceiling, inside CUDA graphs with a cold L2.

python benchmarks/bench_norm_rope_store.py OUT.jsonl
"""

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "kernels")]

import gpu
from nanofn_kernels.norm_rope_store import LAUNCH, Launch, launch_norm_rope_store
from nanofn_kernels.reference.norm_rope_store import norm_rope_store as reference

KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 64


def main() -> None:
    """Measure, print a table and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--explore", action="store_true")
    options = parser.parse_args()
    limits = gpu.ceilings()
    base = {"kernel": "norm_rope_store", **gpu.environment(), **limits}
    launches = [Launch(h, w) for h, w in ((8, 1), (4, 1), (8, 4), (16, 4), (32, 4))] if options.explore else [LAUNCH]
    print(limits)
    for heads, tokens in ((16, 1), (16, 8), (16, 32), (16, 256), (16, 16384), (32, 1), (32, 32), (32, 16384)):
        width = (heads + 2 * KV_HEADS) * HEAD_DIM
        sets = 1 + (600_000_000 // (tokens * width * 4) if tokens > 1000 else 63)
        qkv = torch.randn(min(sets, 64), tokens, width, device="cuda", dtype=torch.bfloat16)
        q_weight, k_weight = (torch.rand(HEAD_DIM, device="cuda", dtype=torch.bfloat16) + 0.5 for _ in range(2))
        angles = torch.rand(40960, HEAD_DIM // 2, device="cuda") * 6.28
        cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
        positions = torch.arange(tokens, dtype=torch.int32, device="cuda")
        cache = torch.zeros(
            2,
            2 * qkv.shape[0] * tokens // BLOCK_SIZE + 2,
            BLOCK_SIZE,
            KV_HEADS,
            HEAD_DIM,
            device="cuda",
            dtype=torch.bfloat16,
        )
        slots = torch.randperm(cache.shape[1] * BLOCK_SIZE, device="cuda")[: qkv.shape[0] * tokens].view(
            qkv.shape[0], tokens
        )
        # Positions of a token in a pack are neighbours: so are their slots, block by block.
        blocks = torch.randperm(cache.shape[1], device="cuda")
        slots = (blocks[torch.arange(slots.numel(), device="cuda") // BLOCK_SIZE] * BLOCK_SIZE + torch.arange(slots.numel(), device="cuda") % BLOCK_SIZE).view_as(slots)  # fmt: skip
        moved = 2 * tokens * width * 2
        for launch in launches:
            for pdl in (False, True):

                def run(i: int) -> torch.Tensor:
                    i %= qkv.shape[0]
                    return launch_norm_rope_store(qkv[i], q_weight, k_weight, cos_sin, positions, slots[i], cache[0], cache[1], heads, 1e-6, launch_pdl=pdl, launch=launch)  # fmt: skip

                mine = run(0)
                theirs = reference(qkv[0].float(), q_weight.float(), k_weight.float(), cos_sin, positions, slots[0], cache[0].float(), cache[1].float(), heads, 1e-6)  # fmt: skip
                error = ((mine.float() - theirs).norm() / theirs.norm()).item()
                found = gpu.time_graph(run, 64 if tokens < 1000 else 8)
                part = moved / found["median"] / 1e3 / limits["copy_gb_per_s"]
                gpu.record(options.out, base | {"heads": heads, "tokens": tokens, "launch": repr(launch), "pdl": pdl, "error": error, "share": part, **found})  # fmt: skip
                print(
                    heads,
                    tokens,
                    (launch.heads, launch.num_warps),
                    "pdl" if pdl else "   ",
                    f"{found['median']:.2f} us {part:.1%} {error:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
