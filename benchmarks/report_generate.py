"""A table and a picture of what bench_generate.py recorded, beside other engines on the same kind of device.

python benchmarks/report_generate.py [RESULTS.jsonl] [--device NAME] [--picture docs/generate.svg]
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from record import RESULTS

PEERS = RESULTS / "generate_peers.jsonl"
DRAWN = {"standard": "256 requests of 100 to 1,024 tokens in and out", "batch1": "one request, 128 in, 512 out"}
"""The works that others were measured on, which the picture shows."""

Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """Read a file of JSON lines."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines() if text]


def latest(lines: Sequence[Line], device: str | None) -> list[Line]:
    """Take the last full-size line of each model, work and variant on a device; None is the device of the last line.

    Lines marked "wrong" do not count, nor do those with other options than their model's last line has.
    """
    full = [line for line in lines if line["size"] == "full" and not line.get("wrong")]
    if not full:
        raise ValueError("there is no line of a full run; bench_generate.py without --smoke writes them")
    device = device or full[-1]["device"]
    full = [line for line in full if line["device"] == device]
    options = {line["model"]: line["options"] for line in full}
    found = {
        (line["model"], line["work"], line["variant"]): line
        for line in full
        if line["options"] == options[line["model"]]
    }
    return list(found.values())


def table(lines: Sequence[Line]) -> str:
    """Write a Markdown table of throughput, one of start-up, and say what they were measured on."""
    rows = [
        "| model | work | best | median | limit | share | lost against greedy | prefilled, of the least | idle | host's time, of the device's |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    starts = ["| model | ready with empty caches | with warm ones | first token, warm |", "|---|---:|---:|---:|"]
    for line in lines:
        if line["work"] == "start-up":
            ready, first = line["best_ready_s"], line["best_first_token_s"]
            starts.append(
                f"| {line['model']} | {ready['cold']:.1f} s | {ready['warm']:.1f} s | {first['warm']:.2f} s |"
            )
            continue
        step = line.get("step", {})
        cells = [
            line["model"],
            f"{line['work']} {line['variant']}".strip(),
            f"{line['best_tok_per_s']:,.0f} tok/s",
            f"{line['median_tok_per_s']:,.0f}",
            _shown(line.get("limit_tok_per_s"), ",.0f"),
            _shown(line.get("share_of_limit"), ".1%"),
            _shown(line.get("lost_against_greedy"), ".1%"),
            _shown(line.get("prefilled_over_once"), ".3f"),
            _shown(step.get("idle_share"), ".1%"),
            _shown(step.get("host_share"), ".1%"),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    commits = ", ".join(sorted({line["commit"] for line in lines}))
    about = f"{lines[-1]['device']}, {lines[-1]['date']}, commit {commits}, {json.dumps(lines[-1]['versions'])}."
    return "\n".join([about, *(["", *rows] if len(rows) > 2 else []), *(["", *starts] if len(starts) > 2 else [])])


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def draw(lines: Sequence[Line], peers: Sequence[Line], path: Path) -> None:
    """Draw tokens per second by model, peers beside, and the roofline limit as a line above each."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, (work, title) in zip(figure.subplots(1, len(DRAWN)), DRAWN.items(), strict=True):
        place, ticks = 0.0, []
        for line in (line for line in lines if line["work"] == work):
            others = [peer for peer in peers if (peer["model"], peer["work"]) == (line["model"], work)]
            others = [peer for peer in others if peer["device"] == line["device"]]
            first = place
            for name, rate in [
                ("nanofn", line["best_tok_per_s"]),
                *((p["engine"], p["best_tok_per_s"]) for p in others),
            ]:
                axes.bar(place, rate, color="tab:blue" if name == "nanofn" else "lightgrey")
                axes.annotate(f"{rate:,.0f}", (place, rate), ha="center", va="bottom", fontsize=8)
                ticks.append((place, f"{name}\n{line['model']}".replace(" ", "\n")))
                place += 1
            if "limit_tok_per_s" in line:
                axes.hlines(line["limit_tok_per_s"], first - 0.5, place - 0.5, color="tab:red", linestyle="--")
                axes.annotate("limit", (place - 0.5, line["limit_tok_per_s"]), ha="right", va="bottom", fontsize=8)
            place += 0.5
        axes.set_xticks([tick for tick, _ in ticks], [name for _, name in ticks], fontsize=8)
        axes.set(title=title, ylabel="output tokens per second")
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Print the table, and draw the picture if one is wanted."""
    parser = argparse.ArgumentParser(description="Show what bench_generate.py recorded.")
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS / "generate.jsonl")
    parser.add_argument("--device", help="default: that of the last line")
    parser.add_argument("--picture", type=Path, help="an .svg or .png file to draw; needs matplotlib")
    given = parser.parse_args(arguments)
    lines = latest(read_lines(given.results), given.device)
    print(table(lines))
    if given.picture is not None:
        draw(lines, read_lines(PEERS), given.picture)


if __name__ == "__main__":
    main()
