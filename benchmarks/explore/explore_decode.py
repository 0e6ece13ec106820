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
from explore.decode_variants import launch_variant, prepare
from nanofn_kernels.decode_launch import Launch
from nanofn_kernels.norm_rope_store import launch_norm_rope_store
from wrong_lines import MAX_ERROR

MERGED = ("counter", "kernel", "poll")
"""Forms with right results."""

SMALL = (Launch(64, 4, 3), Launch(64, 2, 3), Launch(64, 4, 2), Launch(32, 4, 3))
LARGE = (
    *((64, 4, 3), (16, 1, 2), (16, 1, 3), (16, 2, 2), (16, 2, 3), (16, 2, 4), (32, 1, 2)),
    *((32, 1, 3), (32, 2, 2), (32, 2, 3), (32, 4, 3), (64, 8, 2), (64, 8, 3)),
)
"""Launches for one sequence, and tile, warps and stages for 256."""

Works = dict[int, list[tuple]]
"""Split size to the work list of every rotation."""


@dataclass(frozen=True)
class Probe:
    """What one line is about: a line of the benchmark, in one form."""

    variant: Variant
    mode: str = "counter"
    early_ids: bool = False


def probes() -> list[Probe]:
    """What is compared: one short sequence in every form, then longer ones, the chain, and many launches at batch 256."""
    early, short = (False, True), Variant(1, 1024, split=64, pdl=True)
    found = [Probe(replace(short, launch=shape), *form) for *form, shape in product((*MERGED, "none"), early, SMALL)]
    for mode, shape in product(MERGED, SMALL[:2]):
        found.append(Probe(replace(short, pdl=False, launch=shape), mode))
        found.append(Probe(replace(short, split=128, launch=shape), mode, early_ids=True))
    for mode, ids, shape in product(MERGED, early, (*SMALL[:2], Launch(32, 2, 4, 2))):
        found.append(Probe(replace(short, heads=32, launch=shape), mode, ids))
    for (batch, context), mode, ids in product(((1, 512), (1, 8192), (1, 32768), (8, 1024)), MERGED, early):
        found.append(Probe(Variant(batch, context, pdl=True), mode, ids))
    for batch, mode, ids in product((1, 8), MERGED, early):
        found.append(Probe(Variant(batch, 1024, pdl=True, chain=True), mode, ids))
    for chain, ids in product((False, True), early):
        found.append(Probe(Variant(16, 512, pdl=True, chain=chain), early_ids=ids))
    for shape in LARGE:
        found += [Probe(Variant(256, context, launch=Launch(*shape))) for context in (512, 2048)]
        found.append(Probe(Variant(256, 900, launch=Launch(*shape), mixed=True)))
    for batch, ids in product((64, 256), early):
        found.append(Probe(Variant(batch, 512, pdl=True), early_ids=ids))
    for (batch, context), pdl, ids in product(((256, 512), (64, 2048)), (False, True), early):
        found.append(Probe(Variant(batch, context, split=256, pdl=pdl), early_ids=ids))
    return sorted(found, key=lambda probe: (case_of(probe), repr(probe)))


def case_of(probe: Probe) -> tuple:
    """What probes that are timed on the same data have in common; a chain writes to the caches."""
    v = probe.variant
    return v.mixed, v.batch, v.context, v.heads, v.chain


def attend(case: Case, probe: Probe, index: int, works: list[tuple]) -> torch.Tensor:
    """One launch on the index-th batch; what the package has is launched by the package."""
    v, query = probe.variant, case.query
    if probe.mode == "counter" and not probe.early_ids:
        return case.attend(index, v, works)
    if v.chain:
        query = launch_norm_rope_store(
            case.qkv, case.weight, case.weight, case.cos_sin, case.positions, case.slots[index % case.rotations], case.k_cache,
            case.v_cache, v.heads, 1e-6, launch_pdl=v.pdl,
        )  # fmt: skip
    return launch_variant(
        query, case.k_cache, case.v_cache, MAX_SEQ_LEN // v.block_size, *works[index % case.rotations], HEAD_DIM**-0.5, v.split,
        launch_pdl=v.pdl, launch=v.launch, mode=probe.mode, early_ids=probe.early_ids,
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


def measure(probe: Probe, case: Case, works: Works, expected: torch.Tensor) -> dict[str, float | None]:
    """Time a probe, and compare its result where it has one.

    Raises:
        RuntimeError: The result is wrong, or counters were not left at zero.
    """
    v, work = probe.variant, works[probe.variant.split]
    prepare(work[0][3], probe.mode)
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
    caches = make_caches(64, CACHE_TOKENS)
    for _, group in groupby(probes(), key=case_of):
        todo = list(group)
        case = Case(todo[0].variant, caches)
        expected = case.exact()
        works = {split: case.work(split) for split in {probe.variant.split for probe in todo}}
        for probe in todo:
            v = probe.variant
            found = measure(probe, case, works, expected)
            share = case.read_bytes / found["median"] / 1e3 / limits["read_gb_per_s"]
            about = vars(v) | {"launch": repr(v.launch), "mode": probe.mode, "early_ids": probe.early_ids}
            gpu.record(options.out, base | about | {"share": share, **found})
            shown = [f"{key}={value}" for key, value in vars(v).items() if value]
            print(f"{found['median']:8.2f} us {share:6.1%}", probe.mode, "early" * probe.early_ids, *shown, flush=True)


if __name__ == "__main__":
    main()
