"""Decode attention: microseconds and share of the read ceiling, inside CUDA graphs with a cold L2.

python benchmarks/bench_paged_decode.py OUT.jsonl [--explore]
"""

import argparse
import itertools
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "kernels"), str(ROOT / "property_tests" / "ops")]

import gpu
import offline
from nanofn_kernels.norm_rope_store import launch_norm_rope_store
from nanofn_kernels.paged_decode import Launch, launch_paged_decode, scratch_size
from nanofn_kernels.reference.paged_decode import paged_decode as reference
from nanofn_kernels.work_list import NO_SPLIT, max_item_blocks, max_items, work_list

KV_HEADS, HEAD_DIM = 8, 128
MAX_TOKENS = 256 * 2048
TABLE_TOKENS = 40960


class Case:
    """A cache, and as many disjoint batches of one shape as fit in it."""

    def __init__(self, batch: int, context: int, block_size: int, heads: int, caches: tuple, device: str = "cuda") -> None:
        self.batch, self.context, self.block_size, self.heads, self.device = batch, context, block_size, heads, device
        self.k_cache, self.v_cache = caches
        blocks = context // block_size
        self.rotations = max(1, min(100, self.k_cache.shape[0] // (batch * blocks)))
        order = torch.randperm(self.k_cache.shape[0], device=device)[: self.rotations * batch * blocks].int()
        if device == "cpu":
            order = torch.zeros(self.rotations * batch * blocks, dtype=torch.int32)
        self.tables = torch.full((self.rotations, batch, TABLE_TOKENS // block_size), -1, dtype=torch.int32, device=device)
        self.tables[:, :, :blocks] = order.view(self.rotations, batch, blocks)
        self.rows = torch.arange(batch, dtype=torch.int32, device=device)
        self.seq_lens = torch.full((batch,), context, dtype=torch.int32, device=device)
        self.query = torch.randn(batch, heads, HEAD_DIM, device=device, dtype=torch.bfloat16)
        self.read_bytes = 2 * batch * context * KV_HEADS * HEAD_DIM * 2

    def work(self, split: int) -> list[tuple]:
        """The work list of every rotation, with scratch and counters, for a split size."""
        number = max_items(self.batch, TABLE_TOKENS, split)
        columns = max_item_blocks(TABLE_TOKENS, split, self.block_size)
        scratch = torch.empty(scratch_size(number, self.heads, HEAD_DIM), device=self.device)
        arrived = torch.zeros(self.batch * KV_HEADS, dtype=torch.int32, device=self.device)
        found = []
        for table in self.tables:
            items, blocks, count = (torch.zeros(*size, dtype=torch.int32, device=self.device) for size in ((number, 8), (number, columns), (1,)))
            if self.device != "cpu":
                work_list(table, self.rows, self.seq_lens, split, self.block_size, items, blocks, count)
            found.append((items, blocks, count, scratch, arrived))
        return found

    def run(self, index: int, split: int, works: list[tuple], launch: Launch | None, pdl: bool) -> torch.Tensor:
        """One launch on the index-th batch."""
        work = works[index % self.rotations]
        return launch_paged_decode(
            self.query, self.k_cache, self.v_cache, TABLE_TOKENS // self.block_size, *work, HEAD_DIM**-0.5, split, launch_pdl=pdl, launch=launch
        )


class Chain:
    """The layer's order: norm, rotation and store, then attention on what they made."""

    def __init__(self, case: Case) -> None:
        self.case = case
        width = (case.heads + 2 * KV_HEADS) * HEAD_DIM
        self.qkv = torch.randn(case.batch, width, device=case.device, dtype=torch.bfloat16)
        self.weight = torch.rand(HEAD_DIM, device=case.device, dtype=torch.bfloat16) + 0.5
        self.cos_sin = torch.randn(TABLE_TOKENS, HEAD_DIM, device=case.device)
        self.positions = case.seq_lens - 1
        last = (case.context - 1) // case.block_size
        self.slots = case.tables[:, :, last].long() * case.block_size + (case.context - 1) % case.block_size

    def run(self, index: int, split: int, works: list[tuple], launch: Launch | None, pdl: bool) -> torch.Tensor:
        """Both kernels on the index-th batch."""
        case, slots = self.case, self.slots[index % self.case.rotations]
        query = launch_norm_rope_store(
            self.qkv, self.weight, self.weight, self.cos_sin, self.positions, slots, case.k_cache, case.v_cache, case.heads, 1e-6, launch_pdl=pdl
        )
        work = works[index % case.rotations]
        return launch_paged_decode(
            query, case.k_cache, case.v_cache, TABLE_TOKENS // case.block_size, *work, HEAD_DIM**-0.5, split, launch_pdl=pdl, launch=launch
        )


def chains(limits: dict, base: dict, out: Path) -> None:
    """Time the chain with and without programmatic dependent launch and prefetching."""
    caches = make_caches(64, MAX_TOKENS * 2)
    for batch, context, split, shape in ((1, 1024, 64, (64, 4, 5)), (1, 1024, 128, (64, 4, 5)), (8, 1024, 256, (64, 4, 5)), (16, 512, NO_SPLIT, (64, 4, 5)),
                                         (64, 512, NO_SPLIT, (32, 2, 7)), (256, 512, NO_SPLIT, (32, 2, 7))):  # fmt: skip
        case = Case(batch, context, 64, 16, caches)
        chain, works = Chain(case), case.work(split)
        for pdl, prefetch in ((False, 0), (True, 0), (True, 16), (True, 64)):
            launch = Launch(*shape, prefetch=prefetch)
            found = gpu.time_graph(lambda i: chain.run(i, split, works, launch, pdl), int(min(100, max(8, 4e6 * 600 / case.read_bytes))), 6)
            print("chain", batch, context, split if split < NO_SPLIT else 0, shape, "pdl" if pdl else "", prefetch, f"{found['median']:.2f}", flush=True)
            gpu.record(out, base | {"chain": True, "batch": batch, "context": context, "block_size": 64, "heads": 16, "split": split, "launch": repr(launch), "pdl": pdl, **found})  # fmt: skip


def make_caches(block_size: int, tokens: int, device: str = "cuda") -> tuple:
    """K and V caches of random numbers."""
    shape = (tokens // block_size, block_size, KV_HEADS, HEAD_DIM)
    return tuple(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))


def variants() -> list[tuple]:
    """(batch, context, block size, heads, split, launch, pdl) to measure when exploring."""
    found = []
    big = ((256, 2048), (256, 512), (64, 2048), (64, 512))
    for point, shape in itertools.product(big, ((32, 2, 5), (32, 2, 7), (64, 4, 3), (64, 4, 5), (64, 4, 7), (64, 2, 3), (16, 1, 3), (16, 1, 5), (16, 2, 5), (16, 2, 7))):
        found += [(*point, 64, 16, NO_SPLIT, Launch(*shape), pdl) for pdl in (False, True)]
        if shape in ((32, 2, 5), (64, 4, 7), (16, 1, 3)):
            found.append((*point, 64, 16, NO_SPLIT, Launch(*shape, evict="evict_first"), False))
    middle = ((16, 2048), (16, 512), (8, 1024), (4, 1024))
    for point, shape, split in itertools.product(middle, ((64, 4, 5), (64, 4, 7), (64, 4, 9), (32, 2, 7)), (NO_SPLIT, 1024, 512, 256, 128)):
        if split in (NO_SPLIT, 512) or (split == 1024) == (point == (16, 2048)):
            found += [(*point, 64, 16, split, Launch(*shape, prefetch=prefetch), prefetch > 0) for prefetch in (0, 64)]
    small = ((1, 32768), (1, 8192), (1, 1024), (1, 512))
    for point, shape, split in itertools.product(small, ((64, 4, 3), (64, 4, 5), (64, 4, 7), (32, 2, 5)), (512, 256, 128, 64)):
        if split * 16 >= point[1] // 4 and split <= point[1]:
            found += [(*point, 64, 16, split, Launch(*shape, prefetch=prefetch), prefetch > 0) for prefetch in (0, 64)]
    for size, heads in ((64, 32), (256, 16), (16, 16)):
        for point in (*big, (16, 2048), (16, 512), (1, 8192), (1, 1024)):
            for shape in ((32, 2, 5), (64, 4, 3), (64, 4, 5), (64, 4, 7), (16, 2, 5), (16, 2, 7)):
                found.append((*point, size, heads, NO_SPLIT if point[0] >= 16 else 128, Launch(*shape), False))
    return sorted(found, key=lambda v: v[2:4] + (-v[0], -v[1]))


def main() -> None:
    """Measure, print a table and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--explore", action="store_true")
    parser.add_argument("--compile", type=int, nargs=2)
    options = parser.parse_args()
    todo = variants()
    if options.compile:
        caches = {size: make_caches(size, 2 * size, "cpu") for size in (16, 64, 256)}
        unique = {(batch % 16 == 0, batch == 1, size, heads, split == NO_SPLIT, launch, pdl): (batch, context, size, heads, split, launch, pdl)
                  for batch, context, size, heads, split, launch, pdl in todo}  # fmt: skip
        with offline.recording():
            for batch, context, size, heads, split, launch, pdl in gpu.share(list(unique.values()), *options.compile):
                case = Case(batch, context, size, heads, caches[size], "cpu")
                case.run(0, split, case.work(split), launch, pdl)
        return
    gpu.compile_ahead(14, [str(options.out), "--explore"])
    print(gpu.environment())
    limits = gpu.ceilings()
    print(limits, flush=True)
    base = {"kernel": "paged_decode", **gpu.environment(), **limits}
    chains(limits, base, options.out)
    for (batch, context, size, heads), group in itertools.groupby(todo, key=lambda v: v[:4]):
        if size not in (caches_of := globals().setdefault("_caches", {})):
            caches_of.clear()
            caches_of[size] = make_caches(size, MAX_TOKENS * 2)
        case = Case(batch, context, size, heads, caches_of[size])
        works, results = {}, []
        expected = None
        for _, _, _, _, split, launch, pdl in group:
            work = works.setdefault(split, case.work(split))
            if expected is None:
                few = case.seq_lens
                expected = reference(case.query.float(), case.k_cache, case.v_cache, case.tables[0], case.rows, few, *work[0], HEAD_DIM**-0.5, split) if batch <= 64 else None  # fmt: skip
                if expected is None:
                    expected = case.run(0, NO_SPLIT, case.work(NO_SPLIT), Launch(32, 2, 2), False).float()
            error = ((case.run(0, split, work, launch, pdl).float() - expected).norm() / expected.norm()).item()
            launches = int(min(100, max(4, 4e6 * 600 / case.read_bytes)))
            found = gpu.time_graph(lambda i: case.run(i, split, work, launch, pdl), launches, 6)
            part = case.read_bytes / found["median"] / 1e3 / limits["read_gb_per_s"]
            results.append((found["median"], part, split, launch, pdl, error))
            gpu.record(options.out, base | {"batch": batch, "context": context, "block_size": size, "heads": heads, "split": split,
                       "launch": repr(launch), "pdl": pdl, "error": error, "share": part, **found})  # fmt: skip
        for kind in (False, True):
            for median, part, split, launch, pdl, error in sorted((r for r in results if r[4] == kind), key=lambda r: r[0])[:5]:
                print(batch, context, size, f"{median:.2f} {part:.1%} split {split if split < NO_SPLIT else 0}",
                      (launch.tile, launch.num_warps, launch.num_stages), "pdl" if pdl else "", f"{error:.1e}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
