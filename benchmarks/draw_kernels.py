"""One picture a kernel of what its benchmark recorded, beside limits, targets and other libraries.

python benchmarks/draw_kernels.py [NAME ...]     # into docs/kernels/NAME.svg; needs matplotlib
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from record import RESULTS
from report_generate import Line, read_lines

PAGES = RESULTS.parents[1] / "docs" / "kernels"
PEERS = RESULTS / "attention_peers.jsonl"
COLOURS = ("tab:blue", "tab:cyan", "darkgrey", "lightgrey", "gainsboro")
"""Ours come first in every panel."""

KV_BYTES = 2 * 8 * 128 * 2
"""K and V of a token in the decode benchmark: 8 heads of 128 in bf16."""

Values = list[float | None]


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a bar for every series of every group.

    Attributes:
        title: What was measured.
        unit: What a bar's height means.
        groups: Names along the axis.
        series: Heights by name, one for every group; None where nothing was recorded.
        limit: Heights of what cannot be passed.
        target: Heights of what was asked for.
    """

    title: str
    unit: str
    groups: list[str]
    series: dict[str, Values]
    limit: Values = field(default_factory=list)
    target: Values = field(default_factory=list)


def latest(lines: Sequence[Line], keys: Sequence[str]) -> dict[tuple, Line]:
    """Take the last line of each combination of keys; explorations and lines marked "wrong" do not count."""
    counted = [line for line in lines if not line.get("exploration") and not line.get("wrong")]
    return {tuple(line.get(key) for key in keys): line for line in counted}


def paged_decode(lines: Sequence[Line], peers: Sequence[Line]) -> list[Panel]:
    """Share of the read ceiling of its run at every batch and context, 16 query and 8 K/V heads of 128, bf16.

    The target is a share or a time where one was set, and else a first plain Triton kernel, 2% being noise.
    """
    mine = latest(lines, ("kernel", "batch", "context", "block_size", "heads", "split", "pdl", "chain", "mixed"))
    other = latest(peers, ("kernel", "library", "batch", "context"))
    points = [key[1:3] for key in mine if key[0] == "paged_decode" and key[3:] == (64, 16, 0, True, False, False)]
    points.sort(key=lambda point: (-point[0], -point[1]))
    ours: dict[bool, list[Line]] = {
        pdl: [mine["paged_decode", *point, 64, 16, 0, pdl, False, False] for point in points] for pdl in (False, True)
    }
    ceiling = ours[False][0]["read_gb_per_s"]

    def share(point: tuple, us: float, gb_per_s: float = ceiling) -> float:
        return KV_BYTES * point[0] * point[1] / us / 1e3 / gb_per_s

    def of(library: str) -> Values:
        found = [other.get(("paged_decode", library, *point)) for point in points]
        return [
            share(point, line["median"], line["read_gb_per_s"]) if line else None
            for point, line in zip(points, found, strict=True)
        ]

    asked = {(256, 2048): 0.96, (256, 512): 0.92, (64, 512): 0.84, (1, 1024): share((1, 1024), 5.5)}
    first = [height and height / 1.02 for height in of("a first Triton kernel")]
    series: dict[str, Values] = {
        "nanofn": [line["share"] for line in ours[False]],
        "nanofn, dependent launch": [line["share"] for line in ours[True]],
        "FA3": of("FA3"),
        "FlashInfer 0.6.14": of("FlashInfer 0.6.14"),
    }
    names = [f"{batch} ×\n{context:,}" for batch, context in points]
    target = [asked.get(point, height) for point, height in zip(points, first, strict=True)]
    return [Panel("Decode attention, batch × context", "share of the read ceiling", names, series, target=target)]


def norm_rope_store(lines: Sequence[Line], _: Sequence[Line]) -> list[Panel]:
    """Microseconds of few tokens, and share of the copy ceiling of many."""
    mine = latest(lines, ("heads", "tokens", "pdl"))
    panels = []
    for title, unit, key, target, points in (
        ("Norm, rotation and store: decode", "µs", "median", 2.5, [(16, 1), (16, 8), (16, 32), (32, 1), (32, 32)]),
        ("Prefill", "share of the copy ceiling", "share", 0.7, [(16, 16384), (32, 16384)]),
    ):
        names = [f"{heads} heads\n{tokens:,}" for heads, tokens in points]
        series: dict[str, Values] = {
            name: [mine[*point, pdl][key] for point in points]
            for name, pdl in (("nanofn", False), ("nanofn, dependent launch", True))
        }
        panels.append(Panel(title, unit, names, series, target=[target] * len(points)))
    return panels


def paged_prefill(lines: Sequence[Line], peers: Sequence[Line]) -> list[Panel]:
    """TFLOP/s of whole causal prompts."""
    mine = latest(lines, ("chunks", "context", "block_size", "heads"))
    other = latest(peers, ("kernel", "library", "chunks", "context"))
    points = ((4, 4096), (16, 1024), (1, 16384))
    series: dict[str, Values] = {
        f"nanofn, blocks of {size}": [mine[*point, size, 16]["tflop_per_s"] for point in points] for size in (64, 16)
    }
    series["FA3"] = [other["paged_prefill", "FA3", *point]["tflop_per_s"] for point in points]
    target = [0.6 * height if height else None for height in series["FA3"][:2]] + [None]
    names = [f"{chunks} × {context:,}" for chunks, context in points]
    ceiling = mine[*points[0], 64, 16]["matmul_tflop_per_s"]
    return [Panel("Prefill attention, prompts × tokens", "TFLOP/s", names, series, [ceiling] * 3, target)]


def linear(lines: Sequence[Line], _: Sequence[Line]) -> list[Panel]:
    """Microseconds of a layer's four products by number of rows."""
    targets = {("Qwen3-0.6B", 1): 15.0, ("Qwen3-0.6B", 64): 19.0, ("Qwen3-0.6B", 256): 23.0, ("Qwen3-8B", 1): 100.0}
    mine = latest(lines, ("model", "rows", "subject", "batch_invariant", "product"))
    panels = []
    for model in ("Qwen3-0.6B", "Qwen3-8B"):
        rows = sorted({key[1] for key in mine if key[0] == model and key[1] is not None})
        alone = [
            [mine[model, n, "library product", None, product]["median"] for product in ("qkv", "out", "up", "down")]
            for n in rows
        ]
        series: dict[str, Values] = {
            "nanofn": [mine[model, n, "layer", False, None]["median"] for n in rows],
            "nanofn, batch-invariant": [mine[model, n, "layer", True, None]["median"] for n in rows],
            "cuBLAS, norms and gates apart": [mine[model, n, "library layer", None, None]["median"] for n in rows],
            "cuBLAS's products alone": [sum(each) for each in alone],
        }
        limit: Values = [mine[model, n, "layer", False, None]["limit"] for n in rows]
        target = [targets.get((model, n)) for n in rows]
        panels.append(Panel(f"{model}: a layer's products", "µs", [f"{n} rows" for n in rows], series, limit, target))
    return panels


def sample(lines: Sequence[Line], _: Sequence[Line]) -> list[Panel]:
    """Microseconds at 256 rows of 151,936 bf16 logits of standard deviation 4."""
    targets = {"greedy": 30.0, "sampled": 75.0}
    mine = latest(lines, ("dtype", "spread", "rows", "filter"))
    found = {key[3]: line for key, line in mine.items() if key[:3] == ("torch.bfloat16", 4.0, 256)}
    names = [name.replace(", ", ",\n") for name in found]
    limit: Values = [line["limit"] for line in found.values()]
    target: Values = [targets.get(name, 150.0) for name in found]
    series: dict[str, Values] = {"nanofn": [line["median"] for line in found.values()]}
    return [Panel("Sampler, 256 × 151,936 logits", "µs", names, series, limit, target)]


def adjust(lines: Sequence[Line], _: Sequence[Line]) -> list[Panel]:
    """Microseconds at 256 rows of 151,936 bf16 logits, by what all rows ask for."""
    mine = latest(lines, ("rows", "asked"))
    found = {asked: line for (rows, asked), line in mine.items() if rows == 256}
    names = [asked.replace(", ", ",\n").replace("=", "\n= ") for asked in found]
    limit: Values = [line["limit"] for line in found.values()]
    series: dict[str, Values] = {"nanofn": [line["median"] for line in found.values()]}
    return [Panel("Adjusted logits and log-probabilities, 256 × 151,936", "µs", names, series, limit)]


DRAWN: dict[str, Callable[[Sequence[Line], Sequence[Line]], list[Panel]]] = {
    function.__name__: function for function in (paged_decode, norm_rope_store, paged_prefill, linear, sample, adjust)
}
"""What makes the panels of `docs/kernels/NAME.svg` out of the lines of `results/NAME.jsonl` and of the peers."""


def recorded() -> list[str]:
    """Name the kernels that have records: the others have no picture yet."""
    return [name for name in DRAWN if (RESULTS / f"{name}.jsonl").exists()]


def panels_of(name: str) -> list[Panel]:
    """Make a kernel's panels out of what is recorded."""
    return DRAWN[name](read_lines(RESULTS / f"{name}.jsonl"), read_lines(PEERS))


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels beside each other. The same panels give the same file."""
    from matplotlib import rc_context  # noqa: PLC0415  an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    widths = [len(panel.groups) for panel in panels]
    with rc_context({"svg.hashsalt": "nanofn", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(9, 3), layout="constrained")
        grid = figure.add_gridspec(1, len(panels), width_ratios=widths)
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(grid[0, place])
            _draw_panel(axes, panel)
            if place == 0:
                figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=6, frameon=False)
        figure.savefig(path, metadata={"Date": None})


def _draw_panel(axes, panel: Panel) -> None:
    width = 0.8 / len(panel.series)
    for number, (name, heights) in enumerate(panel.series.items()):
        places = [group - 0.4 + (number + 0.5) * width for group in range(len(heights))]
        axes.bar(places, [height or 0.0 for height in heights], width, color=COLOURS[number], label=name)
        if number == 0:
            for at, height in zip(places, heights, strict=True):
                if height is not None:
                    text = f"{height:.0%}" if "share" in panel.unit else f"{height:,.3g}"
                    axes.annotate(text, (at, height), ha="center", va="bottom", fontsize=6)
    for name, style, heights in (("limit", "--", panel.limit), ("target", "-", panel.target)):
        known = [(group, height) for group, height in enumerate(heights) if height is not None]
        if known:
            starts, stops = [group - 0.45 for group, _ in known], [group + 0.45 for group, _ in known]
            axes.hlines([height for _, height in known], starts, stops, color="tab:red", linestyle=style, label=name)
    axes.set_xticks(range(len(panel.groups)), panel.groups)
    axes.set(title=panel.title, ylabel=panel.unit)
    axes.spines[["top", "right"]].set_visible(False)


def main(arguments: list[str] | None = None) -> None:
    """Draw the named kernels, or all that are recorded."""
    parser = argparse.ArgumentParser(description="Draw what the kernels' benchmarks recorded.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(DRAWN)}; default: all that are recorded"
    )
    parser.add_argument("--folder", type=Path, default=PAGES)
    given = parser.parse_args(arguments)
    for name in given.names or recorded():
        draw(panels_of(name), given.folder / f"{name}.svg")


if __name__ == "__main__":
    main()
