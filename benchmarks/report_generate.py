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

NOTHING = "–"

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
    """Write Markdown tables of throughput, start-up and loading, and say what they were measured on."""
    tables: dict[str, list[dict[str, str]]] = {"rates": [], "start-up": [], "load": []}
    for line in lines:
        kind = line["work"] if line["work"] in tables else "rates"
        tables[kind].append({"model": line["model"], **_CELLS[kind](line)})
    commits = ", ".join(sorted({line["commit"] for line in lines}))
    about = f"{lines[-1]['device']}, {lines[-1]['date']}, commit {commits}, {json.dumps(lines[-1]['versions'])}."
    return "\n".join([about, *(text for rows in tables.values() if rows for text in ("", *_markdown(rows)))])


def _rates(line: Line) -> dict[str, str]:
    step = line.get("step", {})
    return {
        "work": f"{line['work']} {line['variant']}".strip(),
        "best": f"{line['best_tok_per_s']:,.0f} tok/s",
        "median": f"{line['median_tok_per_s']:,.0f}",
        "limit": _shown(line.get("limit_tok_per_s"), ",.0f"),
        "share": _shown(line.get("share_of_limit"), ".1%"),
        "experts a step": _experts(line),
        "lost against greedy": _shown(line.get("lost_against_greedy"), ".1%"),
        "prefilled, of the least": _shown(line.get("prefilled_over_once"), ".3f"),
        "idle": _shown(step.get("idle_share"), ".1%"),
        "host's time, of the device's": _shown(step.get("host_share"), ".1%"),
        "ready after": _shown(line.get("ready_s"), ".1f") + " s" * ("ready_s" in line),
    }


def _experts(line: Line) -> str:
    return f"{line['experts_hit']:.1f} of {line['num_experts']}" if "experts_hit" in line else NOTHING


def _start_up(line: Line) -> dict[str, str]:
    ready, first = line["best_ready_s"], line["best_first_token_s"]
    return {
        "ready with empty caches": f"{ready['cold']:.1f} s",
        "with warm ones": f"{ready['warm']:.1f} s",
        "first token, warm": f"{first['warm']:.2f} s",
    }


def _load(line: Line) -> dict[str, str]:
    return {
        "weights": f"{line['gb']:.2f} GB",
        "loaded in": f"{line['best_seconds']:.2f} s",
        "rate": f"{line['best_gb_per_s']:.2f} GB/s",
    }


_CELLS = {"rates": _rates, "start-up": _start_up, "load": _load}


def _markdown(rows: Sequence[dict[str, str]]) -> list[str]:
    """Write a table; columns in which no row has anything are left out."""
    columns = [name for name in rows[0] if any(row[name] != NOTHING for row in rows)]
    marks = ["---" if name in {"model", "work"} else "---:" for name in columns]
    body = [f"| {' | '.join(row[name] for name in columns)} |" for row in rows]
    return [f"| {' | '.join(columns)} |", f"|{'|'.join(marks)}|", *body]


def _shown(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


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
