"""Searches launches of a Qwen3-0.6B layer's products at 128 and 256 rows, of which the tables in `linear_plan.py` are made.

python benchmarks/explore/explore_linear.py OUT.jsonl [--rows 256] [--seconds 60] [--specialised] [--list]

What counts is the time of the whole chain, because a launch that is fast alone may leave nothing for the next one to begin
early with. One product after another takes the launch that makes the chain fastest, twice.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "kernels", "property_tests/ops")]

import offline
from triton.runtime.errors import OutOfResources

import gpu
from bench_linear import Layer, chain
from explore.linear_candidates import PRODUCTS, Candidate, candidates
from explore.tma_product import TmaLaunch, tma_product
from nanofn_kernels import linear_tile
from nanofn_kernels.linear import launch_linear
from nanofn_kernels.linear_held import held_product
from nanofn_kernels.linear_plan import LIBRARY, held_launch
from nanofn_kernels.reference import linear as reference
from wrong_lines import MAX_ERROR

MODEL = "Qwen3-0.6B"

ORDER = ("up", "qkv", "down", "out")
"""Products, the longest first."""

SHORTLIST = 8
"""Launches of a product that the second turn tries again."""

Launches = dict[str, Candidate]
"""Product to its launch."""


def run_product(
    name: str,
    x: Tensor,
    weight: Tensor,
    launch: Candidate,
    *,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    normed: Tensor | None = None,
    next_norm_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run a product of the layer as `launch_linear`, which knows only what the package has."""
    is_gated = PRODUCTS[name][2]
    if not isinstance(launch, TmaLaunch):
        return launch_linear(
            x, weight, launch=launch, norm_weight=norm_weight, normed=normed, residual=residual, next_norm_weight=next_norm_weight,
            is_gated=is_gated, launch_pdl=True,
        )  # fmt: skip
    outputs = PRODUCTS[name][1]
    if normed is not None:
        x = normed
    elif norm_weight is not None:
        x = linear_tile.norm_rows(x, norm_weight, 1e-6, launch_pdl=True)
    out = torch.empty((x.shape[0], outputs), dtype=x.dtype, device=x.device)
    ahead = None if next_norm_weight is None else torch.empty_like(out)
    if launch.splits == 1:
        tma_product(out, x, weight, residual, outputs, is_gated, launch)
        if next_norm_weight is not None:
            ahead = linear_tile.norm_rows(out, next_norm_weight, 1e-6, launch_pdl=True)
        return out, ahead
    parts = x.new_empty((launch.splits, x.shape[0], outputs), dtype=torch.float32)
    tma_product(parts, x, weight, None, outputs, is_gated, launch)
    linear_tile.sum_splits(out, ahead, parts, None, residual, next_norm_weight, 1e-6)
    return out, ahead


def run_layer(layer: Layer, launches: Launches, index: int, hidden: Tensor, normed: Tensor | None) -> tuple:
    """As `Layer.ours`, with given launches."""
    weights, norm = layer.weights[index % layer.count], layer.norms[index % layer.count]
    following = layer.norms[(index + 1) % layer.count][0]
    qkv, _ = run_product("qkv", hidden, weights["qkv"], launches["qkv"], norm_weight=norm[0], normed=normed)
    hidden, normed = run_product(
        "out", qkv[:, : layer.query], weights["out"], launches["out"], residual=hidden, next_norm_weight=norm[1]
    )
    gated, _ = run_product("up", hidden, weights["up"], launches["up"], norm_weight=norm[1], normed=normed)
    return run_product("down", gated, weights["down"], launches["down"], residual=hidden, next_norm_weight=following)


def exact(layer: Layer) -> Tensor:
    """The first layer's result, products in float32."""
    weights, norm = layer.weights[0], layer.norms[0]
    qkv = reference.linear(layer.x, weights["qkv"], norm_weight=norm[0])
    hidden = reference.linear(qkv[:, : layer.query], weights["out"], residual=layer.x)
    gated = reference.linear(hidden, weights["up"], norm_weight=norm[1], is_gated=True)
    return reference.linear(gated, weights["down"], residual=hidden).float()


def search(
    choices: Mapping[str, Sequence[Candidate]],
    start: Launches,
    measure: Callable[[Launches], float],
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[Launches, float]:
    """Change one product's launch at a time, for as long as that makes the chain faster.

    Args:
        choices: Launches of every product.
        start: Where to begin.
        measure: Microseconds of a chain; infinite where it cannot run or is wrong.
        is_over: Whether there is no time to try another one.

    Returns:
        The best launches, and their microseconds. Half a percent is no gain.
    """
    best, least = start, measure(start)
    print(f"the table: {least:.2f} us", flush=True)
    for turn in (1, 2):
        near: dict[str, list[Candidate]] = {}
        for name in ORDER:
            tried: list[tuple[float, Candidate]] = []
            for launch in choices[name]:
                if is_over():
                    break
                if launch == best[name]:
                    continue
                found = measure(best | {name: launch})
                tried.append((found, launch))
                if found < least * 0.995:
                    best, least = best | {name: launch}, found
            tried.sort(key=lambda pair: pair[0])
            near[name] = [launch for found, launch in tried[:SHORTLIST] if found < float("inf")]
            for found, launch in tried[:4]:
                print(f"  turn {turn} {name:4} {found:.2f} us {launch}", flush=True)
        choices = near
    return best, least


def compile_share(rows: Sequence[int], index: int, workers: int, *, are_specialised: bool) -> None:
    """Compile what the index-th worker has to."""
    todo = {
        (name, launch): num_rows
        for num_rows in rows
        for name, launches in candidates(num_rows, are_specialised=are_specialised).items()
        for launch in launches
        if launch != LIBRARY
    }
    with offline.recording():
        for (name, launch), num_rows in gpu.share(list(todo.items()), index, workers):
            compile_product(name, launch, num_rows)


def compile_product(name: str, launch: Candidate, num_rows: int) -> None:
    """Compile one launch; what the compiler refuses is refused again, and left out, while measuring."""
    in_features, outputs, is_gated = PRODUCTS[name]
    splits = launch.splits
    out = torch.zeros((splits, num_rows, outputs) if splits > 1 else (num_rows, outputs), dtype=torch.bfloat16)
    out = out.float() if splits > 1 else out
    residual = torch.zeros_like(out) if name in {"out", "down"} and splits == 1 else None
    weight = torch.zeros(outputs * (2 if is_gated else 1), in_features, dtype=torch.bfloat16)
    # Attention's output is a part of a wider tensor.
    x = torch.zeros(num_rows, 4096 if name == "out" else in_features, dtype=torch.bfloat16)[:, :in_features]
    try:
        if isinstance(launch, TmaLaunch):
            tma_product(out, x, weight, residual, outputs, is_gated, launch)
        else:
            held_product(out, x, weight, None, residual, outputs, is_gated, launch, launch_pdl=True)
    except RuntimeError as error:
        print("refused", name, launch, repr(error)[:160], flush=True)


def explore(num_rows: int, base: dict[str, Any], options: argparse.Namespace) -> None:
    """Search at one number of rows, and record every chain."""
    layer = Layer(MODEL, num_rows)
    wanted = exact(layer)

    def measure(launches: Launches) -> float:
        try:
            mine, _ = run_layer(layer, launches, 0, layer.x, None)
        except (OutOfResources, RuntimeError) as refusal:
            if "CUDA" in str(refusal):  # of the device and not of the compiler
                raise
            print("refused", launches, refusal, flush=True)
            return float("inf")
        error = ((mine.float() - wanted).norm() / wanted.norm()).item()
        step = lambda index, state: run_layer(layer, launches, index, *state)  # noqa: E731
        found = gpu.time_graph(chain(step, (layer.x, None)), 2 * layer.count, 7)
        is_right = error <= MAX_ERROR["linear"]
        shown = {name: repr(launch) for name, launch in launches.items()}
        about = {"rows": num_rows, "launches": shown, "error": error} | ({} if is_right else {"wrong": "its result"})
        gpu.record(options.out, base | about | found)
        if not is_right:
            print("wrong", error, launches, flush=True)
        return found["median"] if is_right else float("inf")

    until = time.monotonic() + options.seconds / len(options.rows)
    start: Launches = {name: held_launch(num_rows, *shape) for name, shape in PRODUCTS.items()}
    choices = candidates(num_rows, are_specialised=options.specialised)
    best, least = search(choices, start, measure, lambda: time.monotonic() > until)
    again = [measure(best) for _ in range(3)]
    print(f"{num_rows} rows: {least:.2f} us, again {again}", *best.values(), sep="\n    ", flush=True)


def main() -> None:
    """Search, print the best and record what was tried."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--compile", type=int, nargs=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 128], choices=(128, 256))
    parser.add_argument("--seconds", type=float, default=60, help="for the search, after compiling")
    parser.add_argument(
        "--specialised",
        action="store_true",
        help="only launches with warps that fetch: these may hang, and Triton 3.7.1 compiles none",
    )
    parser.add_argument("--list", action="store_true", help="say what would be tried")
    options = parser.parse_args()
    if options.list:
        print({rows: candidates(rows, are_specialised=options.specialised) for rows in options.rows})
        return
    if options.compile:
        compile_share(options.rows, *options.compile, are_specialised=options.specialised)
        return
    given = ["--rows", *map(str, options.rows), *(["--specialised"] if options.specialised else [])]
    gpu.compile_ahead(15, [str(options.out), *given])
    limits = gpu.ceilings()
    base = {"kernel": "linear", "subject": "exploration of the chain", "model": MODEL, "exploration": True}
    for num_rows in options.rows:
        explore(num_rows, base | gpu.environment() | limits, options)


if __name__ == "__main__":
    main()
