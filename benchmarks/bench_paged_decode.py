"""Decode attention: microseconds and share of the read ceiling, inside CUDA graphs with a cold L2.

python benchmarks/bench_paged_decode.py OUT.jsonl [--explore]
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "kernels"), str(ROOT / "property_tests" / "ops")]

import offline

import gpu
from nanofn_kernels.norm_rope_store import launch_norm_rope_store
from nanofn_kernels.paged_decode import Launch, decode_split_size, launch_paged_decode, scratch_size
from nanofn_kernels.reference.paged_decode import paged_decode as reference
from nanofn_kernels.work_list import NO_SPLIT, max_item_blocks, max_items, work_list

KV_HEADS, HEAD_DIM = 8, 128
MAX_SEQ_LEN = 40_960
CACHE_TOKENS = 2**21
POINTS = (
    (256, 8192),
    (256, 2048),
    (256, 512),
    (64, 2048),
    (64, 512),
    (16, 2048),
    (16, 512),
    (1, 32768),
    (1, 8192),
    (1, 1024),
    (1, 512),
)
FORMS = ((64, 16), (16, 16), (256, 16), (64, 32))
"""Block sizes and query heads: 16 heads are Qwen3-0.6B's, 32 are Qwen3-8B's."""


@dataclass(frozen=True)
class Variant:
    """What one line of the result is about; split 0 is the rule's, launch None the table's."""

    batch: int
    context: int
    block_size: int = 64
    heads: int = 16
    split: int = 0
    pdl: bool = False
    launch: Launch | None = None
    chain: bool = False
    mixed: bool = False


class Case:
    """A cache, and as many disjoint batches of one shape as fit in it."""

    def __init__(self, variant: Variant, caches: tuple, device: str = "cuda") -> None:
        self.variant, self.device = variant, device
        self.k_cache, self.v_cache = caches
        batch, size = variant.batch, variant.block_size
        lengths = torch.full((batch,), variant.context, dtype=torch.int32)
        if variant.mixed:
            lengths = torch.randint(
                100, 2 * variant.context - 100, (batch,), generator=torch.Generator().manual_seed(0)
            ).int()
        blocks = -(-int(lengths.max()) // size)
        self.rotations = max(1, min(100, self.k_cache.shape[0] // (batch * blocks)))
        order = torch.randperm(self.k_cache.shape[0], device=device)[: self.rotations * batch * blocks]
        order = order.int() if device == "cuda" else torch.zeros(self.rotations * batch * blocks, dtype=torch.int32)
        self.tables = torch.full((self.rotations, batch, MAX_SEQ_LEN // size), -1, dtype=torch.int32, device=device)
        self.tables[:, :, :blocks] = order.view(self.rotations, batch, blocks)
        self.rows = torch.arange(batch, dtype=torch.int32, device=device)
        self.seq_lens = lengths.to(device)
        self.query = torch.randn(batch, variant.heads, HEAD_DIM, device=device, dtype=torch.bfloat16)
        self.read_bytes = 2 * int(lengths.sum()) * KV_HEADS * HEAD_DIM * 2
        self.positions = self.seq_lens - 1
        last = self.positions.long() // size
        self.slots = self.tables[:, self.rows.long(), last].long() * size + self.positions.long() % size
        self.qkv = torch.randn(batch, (variant.heads + 2 * KV_HEADS) * HEAD_DIM, device=device, dtype=torch.bfloat16)
        self.weight = torch.ones(HEAD_DIM, device=device, dtype=torch.bfloat16)
        self.cos_sin = torch.randn(MAX_SEQ_LEN, HEAD_DIM, device=device)

    def work(self, split: int) -> list[tuple]:
        """The work list of every rotation, with scratch and counters, for a split size."""
        batch, heads, size = self.variant.batch, self.variant.heads, self.variant.block_size
        split = split or decode_split_size(batch, KV_HEADS)
        number = max_items(batch, MAX_SEQ_LEN, split, KV_HEADS)
        columns = max_item_blocks(MAX_SEQ_LEN, split, size, KV_HEADS)
        scratch = torch.empty(scratch_size(number, heads, HEAD_DIM), device=self.device)
        arrived = torch.zeros(batch * KV_HEADS, dtype=torch.int32, device=self.device)
        found = []
        for table in self.tables:
            sizes = ((number, 8), (number, columns), (1,))
            items, blocks, count = (torch.zeros(*size, dtype=torch.int32, device=self.device) for size in sizes)
            if self.device != "cpu":
                work_list(table, self.rows, self.seq_lens, split, size, KV_HEADS, items, blocks, count)
            found.append((items, blocks, count, scratch, arrived))
        return found

    def attend(self, index: int, variant: Variant, works: list[tuple]) -> torch.Tensor:
        """One launch on the index-th batch; with `chain`, behind the kernel that makes its query and newest K/V."""
        query = self.query
        if variant.chain:
            query = launch_norm_rope_store(
                self.qkv, self.weight, self.weight, self.cos_sin, self.positions, self.slots[index % self.rotations], self.k_cache,
                self.v_cache, variant.heads, 1e-6, launch_pdl=variant.pdl,
            )  # fmt: skip
        return launch_paged_decode(
            query, self.k_cache, self.v_cache, MAX_SEQ_LEN // variant.block_size, *works[index % self.rotations], HEAD_DIM**-0.5,
            variant.split, launch_pdl=variant.pdl, launch=variant.launch,
        )  # fmt: skip

    def exact(self) -> torch.Tensor:
        """The first batch's result in float32, a few sequences of it."""
        few = slice(0, 4)
        nothing = torch.zeros(0)
        return reference(
            self.query[few].float(), self.k_cache, self.v_cache, self.tables[0], self.rows[few], self.seq_lens[few], nothing, nothing,
            nothing, nothing, nothing, HEAD_DIM**-0.5, NO_SPLIT,
        )  # fmt: skip


def make_caches(block_size: int, tokens: int, device: str = "cuda") -> tuple:
    """K and V caches of random numbers."""
    shape = (tokens // block_size, block_size, KV_HEADS, HEAD_DIM)
    return tuple(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))


def standard() -> list[Variant]:
    """What is recorded: the default with and without dependent launch, a constant split, the chain, mixed lengths."""
    found = []
    for (block_size, heads), (batch, context) in product(FORMS, POINTS):
        plain = Variant(batch, context, block_size, heads)
        found += [plain, Variant(batch, context, block_size, heads, pdl=True)]
        if block_size == 64:
            found.append(Variant(batch, context, block_size, heads, split=256))
    for batch, context in ((1, 1024), (8, 1024), (16, 512), (32, 1024), (64, 512), (256, 512)):
        found += [Variant(batch, context, pdl=pdl, chain=True) for pdl in (False, True)]
    for batch in (8, 16, 32, 64, 130, 256):
        found += [Variant(batch, 900, pdl=pdl, mixed=True) for pdl in (False, True)]
        found += [Variant(batch, 900), Variant(batch, 900, split=256, mixed=True)]
    return found


def explored() -> list[Variant]:
    """What to compare when the table is made: launches for equal and mixed lengths, split sizes for small batches."""
    found = []
    shapes = ((64, 4, 2, 4), (64, 4, 3, 3), (32, 2, 3, 5), (32, 2, 4, 4), (16, 1, 2, 12), (16, 1, 3, 12), (16, 1, 4, 7))
    for batch, shape in product((32, 64, 130, 256), shapes):
        found += [
            Variant(batch, 900, split=split, launch=Launch(*shape), mixed=True) for split in (NO_SPLIT, 1024, 512)
        ]
        found += [Variant(batch, context, launch=Launch(*shape)) for context in (512, 2048)]
    for (batch, context, *splits), heads, shape in product(
        ((16, 900, NO_SPLIT, 1024, 512), (8, 1024, 512, 256), (4, 1024, 256, 128), (1, 8192, 512), (1, 1024, 64, 128)), (16, 32),
        ((64, 4, 3, 1), (64, 4, 4, 1), (32, 2, 4, 2), (64, 2, 3, 1)),
    ):  # fmt: skip
        for split, pdl in product(splits, (False, True)):
            found.append(Variant(batch, context, 64, heads, split, pdl, Launch(*shape), mixed=batch == 16))
    return found


def compile_share(todo: list[Variant], index: int, workers: int) -> None:
    """Compile what the index-th worker has to: one of each kind of launch."""
    unique = {}
    for v in todo:
        split = v.split or decode_split_size(v.batch, KV_HEADS)
        key = (
            v.batch % 16 == 0,
            v.batch == 1,
            v.batch if v.launch is None else 0,
            v.block_size,
            v.heads,
            split == NO_SPLIT,
            v.pdl,
            v.launch,
            v.split > 0,
        )
        unique[key] = v
    with offline.recording():
        for v in gpu.share(list(unique.values()), index, workers):
            case = Case(v, make_caches(v.block_size, 2 * v.block_size, "cpu"), "cpu")
            case.attend(0, v, case.work(v.split))


def time_variant(case: Case, variant: Variant, works: list[tuple]) -> dict[str, float]:
    """Microseconds of one launch, or of the chain."""
    launches = int(min(100, max(4, 2.4e9 / case.read_bytes)))
    launch: Callable[[int], object] = lambda index: case.attend(index, variant, works)  # noqa: E731
    return gpu.time_graph(launch, launches, 7)


def main() -> None:
    """Measure, print a table and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--explore", action="store_true")
    parser.add_argument("--compile", type=int, nargs=2)
    options = parser.parse_args()
    todo = explored() if options.explore else standard()
    if options.compile:
        compile_share(todo, *options.compile)
        return
    gpu.compile_ahead(14, [str(options.out), *(["--explore"] if options.explore else [])])
    limits = gpu.ceilings()
    base = {"kernel": "paged_decode", **gpu.environment(), **limits}
    print(base, flush=True)
    todo.sort(key=lambda v: (v.block_size, v.heads, v.mixed, -v.batch, -v.context))
    for block_size, of_size in groupby(todo, key=lambda v: v.block_size):
        caches = make_caches(block_size, CACHE_TOKENS)
        for _, group in groupby(of_size, key=lambda v: (v.heads, v.mixed, v.batch, v.context)):
            variants = list(group)
            case = Case(variants[0], caches)
            expected, works = case.exact(), {}
            for variant in variants:
                work = works.setdefault(variant.split, case.work(variant.split))
                out = case.attend(0, variant, work)[: expected.shape[0]]
                error = float((out.float() - expected).norm() / expected.norm()) if not variant.chain else None
                found = time_variant(case, variant, work)
                share = case.read_bytes / found["median"] / 1e3 / limits["read_gb_per_s"]
                shown = {key: value for key, value in vars(variant).items() if value or key == "split"}
                print(f"{found['median']:8.2f} us {share:6.1%}", *shown.values(), f"{error or 0:.1e}", flush=True)
                gpu.record(
                    options.out,
                    base | vars(variant) | {"launch": repr(variant.launch), "error": error, "share": share, **found},
                )
        del caches
    for batch, split in ((1, 64), (64, NO_SPLIT), (256, NO_SPLIT), (256, 256)):
        case = Case(Variant(batch, 1024), make_caches(64, 2**18))
        items, blocks, count, *_ = case.work(split)[0]
        found = gpu.time_graph(
            lambda _: work_list(case.tables[0], case.rows, case.seq_lens, split, 64, KV_HEADS, items, blocks, count), 50
        )
        print("work_list", batch, split, f"{found['median']:.2f} us")
        gpu.record(options.out, base | {"kernel": "work_list", "batch": batch, "split": split, **found})


if __name__ == "__main__":
    main()
