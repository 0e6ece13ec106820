"""Times forms and launches of decode attention, of which the table in `decode_launch.py` and the next kernel are made.

python benchmarks/explore/explore_decode.py OUT.jsonl [--list]
"""

import argparse
import sys
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "kernels", "property_tests/ops")]

import offline

import gpu
from bench_paged_decode import CACHE_TOKENS, HEAD_DIM, MAX_SEQ_LEN, Case, Variant, make_caches
from explore.decode_variants import MODES, launch_variant
from nanofn_kernels.decode_launch import Launch
from nanofn_kernels.norm_rope_store import launch_norm_rope_store
from wrong_lines import MAX_ERROR

SMALL = ((64, 4, 3), (64, 2, 3))
LARGE = ((64, 4, 3), (32, 1, 2), (16, 1, 2), (32, 2, 2), (64, 4, 4))
"""Tile, warps and stages for sequences that are split, and for 256 whole ones."""


@dataclass(frozen=True)
class Probe:
    """What one line is about: a line of the benchmark, in one form."""

    variant: Variant
    mode: str = "package"


def probes() -> list[Probe]:
    """What is compared: short sequences in every form, alone and in the chain, and launches at batch 256."""
    found = []
    for (tile, warps, stages), mode in product(SMALL, ("package", *MODES)):
        one, three = Launch(tile, warps, stages), Launch(tile, warps, stages, 3)
        shapes = [Variant(1, *shape, pdl=True, launch=one) for shape in product((512, 1024), (64, 16), (16, 32))]
        shapes += [Variant(8, 1024, heads=heads, pdl=True, launch=three) for heads in (16, 32)]
        shapes += [Variant(batch, 1024, pdl=True, launch=shape, chain=True) for batch, shape in ((1, one), (8, three))]
        found += [Probe(shape, mode) for shape in shapes]
    for shape in LARGE:
        for context, mixed in ((512, False), (2048, False), (900, True)):
            found.append(Probe(Variant(256, context, pdl=True, launch=Launch(*shape), mixed=mixed)))
    return sorted(found, key=lambda probe: (case_of(probe), repr(probe)))


def case_of(probe: Probe) -> tuple:
    """What probes that are timed on the same data have in common; a chain writes to the caches."""
    v = probe.variant
    return v.block_size, v.mixed, v.batch, v.context, v.heads, v.chain


def attend(case: Case, probe: Probe, index: int, works: list[tuple]) -> torch.Tensor:
    """One launch on the index-th batch; what the package has is launched by the package."""
    v, query = probe.variant, case.query
    if probe.mode == "package":
        return case.attend(index, v, works)
    if v.chain:
        query = launch_norm_rope_store(
            case.qkv, case.weight, case.weight, case.cos_sin, case.positions, case.slots[index % case.rotations], case.k_cache,
            case.v_cache, v.heads, 1e-6, launch_pdl=v.pdl,
        )  # fmt: skip
    items, blocks, count, _, arrived = works[index % case.rotations]
    return launch_variant(
        query, case.k_cache, case.v_cache, MAX_SEQ_LEN // v.block_size, items, blocks, count, arrived, HEAD_DIM**-0.5, v.split,
        mode=probe.mode, launch_pdl=v.pdl, launch=v.launch,
    )  # fmt: skip


def compile_share(index: int, workers: int) -> None:
    """Compile what the index-th worker has to: one of each kind of launch."""
    plain = [replace(probe, variant=replace(probe.variant, chain=False)) for probe in probes()]
    unique = {replace(probe, variant=replace(probe.variant, context=0, mixed=False)): probe for probe in plain}
    with offline.recording():
        for probe in gpu.share(list(unique.values()), index, workers):
            v = probe.variant
            case = Case(v, make_caches(v.block_size, 2 * v.block_size, "cpu"), "cpu")
            attend(case, probe, 0, case.work(v.split))


def measure(probe: Probe, case: Case, work: list[tuple], expected: torch.Tensor) -> dict[str, float | None]:
    """Time a probe, and compare its result where it has one.

    Raises:
        RuntimeError: The result is wrong, or counters were not left at zero.
    """
    v = probe.variant
    launches = int(min(100, max(4, 2.4e9 / case.read_bytes)))
    found = gpu.time_graph(lambda index: attend(case, probe, index, work), launches, 7)
    if v.chain or probe.mode == "none":
        return found | {"error": None}
    out = attend(case, probe, 0, work)[: expected.shape[0]]
    error = float((out.float() - expected).norm() / expected.norm())
    # What is not a number is wrong too.
    if not error <= MAX_ERROR["paged_decode"] or bool(work[0][4].any()):
        raise RuntimeError(f"{probe} has an error of {error} or left counters; it may not be timed")
    return found | {"error": error}


def main() -> None:
    """Measure, print a table and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--compile", type=int, nargs=2)
    parser.add_argument("--list", action="store_true", help="say what would be timed")
    options = parser.parse_args()
    if options.list:
        print(*probes(), sep="\n")
        return
    if options.compile:
        compile_share(*options.compile)
        return
    gpu.compile_ahead(14, [str(options.out)])
    limits = gpu.ceilings()
    base = {"kernel": "paged_decode", "exploration": True, **gpu.environment(), **limits}
    for block_size, of_size in groupby(probes(), key=lambda probe: probe.variant.block_size):
        caches = make_caches(block_size, CACHE_TOKENS)
        for _, group in groupby(of_size, key=case_of):
            todo = list(group)
            case = Case(todo[0].variant, caches)
            expected, work = case.exact(), case.work(0)
            for probe in todo:
                v = probe.variant
                found = measure(probe, case, work, expected)
                share = case.read_bytes / found["median"] / 1e3 / limits["read_gb_per_s"]
                about = vars(v) | {"launch": repr(v.launch), "mode": probe.mode}
                gpu.record(options.out, base | about | {"share": share, **found})
                shown = [f"{key}={value}" for key, value in vars(v).items() if value]
                print(f"{found['median']:8.2f} us {share:6.1%}", probe.mode, *shown, flush=True)
        del caches, case


if __name__ == "__main__":
    main()
