"""A few launches at real size between cudaProfilerStart and cudaProfilerStop, once each: what Nsight Compute measures.

python benchmarks/ncu_launches.py

In this order: 256 sampled rows, the same with top-k, the same with top-p over flat logits, 256 rows of adjusted logits that ask
for everything, a layer's four products of Qwen3-0.6B at 256 rows, decode attention of 1 x 1,024, 16 x 512 and 256 x 512 tokens in
blocks of 64 and of 16.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bench_adjust
import bench_sample
from bench_linear import Layer
from bench_paged_decode import Case, Variant, make_caches
from nanofn_kernels.adjust import adjust_logits
from nanofn_kernels.sample import sample_into

ROWS = 256


def launches() -> list[Callable[[], object]]:
    """Make the data of all launches."""
    logits = (torch.randn(ROWS, bench_sample.VOCAB_SIZE, device="cuda") * 4).bfloat16()
    found: list[Callable[[], object]] = []
    flat = (logits.float() * 0.75).bfloat16()
    for name, of in (("sampled", logits), ("top_k 50", logits), ("top_p 0.9", flat)):
        given, filters = bench_sample.settings(name, ROWS)
        found.append(partial(sample_into, *bench_sample.outputs(ROWS), of, *given, **filters))
    kinds, _ = bench_adjust.KINDS["everything"]
    rows = torch.arange(ROWS, dtype=torch.int32, device="cuda")
    rules = torch.tensor([kinds, 10, 99], dtype=torch.int32, device="cuda").repeat(ROWS, 1)
    asked = bench_adjust.tables(ROWS)
    found.append(partial(adjust_logits, logits, rows, torch.full_like(rows, 20), rules, *asked))
    layer = Layer("Qwen3-0.6B", ROWS)
    found.append(partial(layer.ours, 0, layer.x, None, batch_invariant=False))
    for block_size in (64, 16):
        caches = make_caches(block_size, 2**18)
        for batch, context in ((1, 1024), (16, 512), (256, 512)):
            variant = Variant(batch, context, block_size)
            case = Case(variant, caches)
            found.append(partial(case.attend, 0, variant, case.work(variant.split)))
    return found


def main() -> None:
    """Run each launch twice: once to compile it, once to be measured."""
    todo = launches()
    for launch in todo:
        launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for launch in todo:
        launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
