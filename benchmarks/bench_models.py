"""Models of published dimensions side by side: 64 sequences at once, and how long their weights take to load from files.

python benchmarks/bench_models.py qwen3-0.6b qwen3-8b qwen3-30b-a3b --files qwen3-0.6b qwen3-8b --folder /dev/shm

One process for all of them, because imports and ceilings cost the same for each. Weights are random: files are written by the
device and read back into it, with nothing beside; engines run on weights that are made on the device. Two lines a model go to
models.jsonl, of which report_generate.py makes tables.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from attrs import asdict, evolve

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "src", "kernels") if str(ROOT / folder) not in sys.path]

import torch

from bench_generate import figures, find_ceilings, table_row
from experts_hit import experts_hit
from model_dimensions import PUBLISHED
from nanofn import LLM
from nanofn.device.checkpoint import load_checkpoint
from random_checkpoint import make_checkpoint
from record import RESULTS, append_record
from roofline import Ceilings, dimensions_of
from timed_runs import measure

WORK = "batch64"
LOAD = "load"
SHARD_BYTES = 1 << 30
"""Of files: small, so that several that are being written do not take much memory."""


def load_figures(folder: Path, device: str, num_repeats: int) -> dict[str, Any]:
    """Load a checkpoint several times, each into memory that nothing else has."""
    seconds, num_bytes = [], 0
    for _ in range(num_repeats):
        start = perf_counter()
        checkpoint = load_checkpoint(folder, device=device)
        _wait()
        seconds.append(perf_counter() - start)
        num_bytes = checkpoint.num_bytes
        del checkpoint
        _give_back()
    return {
        "work": LOAD,
        "variant": "",
        "gb": num_bytes / 1e9,
        "best_seconds": min(seconds),
        "median_seconds": statistics.median(seconds),
        "best_gb_per_s": num_bytes / 1e9 / min(seconds),
        "repeats": seconds,
    }


def run_figures(
    folder: Path, options: dict[str, Any], size: str, num_repeats: int, num_steps: int, ceilings: Ceilings | None
) -> dict[str, Any]:
    """Make an engine on random weights, time the work, and count the experts of some steps."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    start = perf_counter()
    with LLM(folder, **options) as llm:
        ready = perf_counter() - start
        ((run, timings),) = measure(llm, WORK, size, config["vocab_size"], num_repeats)
        hit = experts_hit(llm, run, num_steps) if "num_experts" in config else {}
    dimensions = evolve(dimensions_of(config), experts_hit=hit)
    line = figures(run, timings, dimensions, ceilings) | {"ready_s": ready}
    return line | ({"experts_hit": next(iter(hit.values())), "num_experts": config["num_experts"]} if hit else {})


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _give_back() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure one model after another, print and record each line as soon as it is there."""
    parser = argparse.ArgumentParser(description="Benchmark models side by side.")
    parser.add_argument("models", nargs="+", choices=PUBLISHED)
    parser.add_argument("--files", nargs="*", default=[], choices=PUBLISHED, help="those whose weights are loaded too")
    parser.add_argument("--folder", type=Path, help="where files are, one model's at a time; default: a temporary one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16, help="decode steps whose experts are counted")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=4_096)
    parser.add_argument(
        "--ceilings", type=float, nargs=2, metavar=("GB_PER_S", "TFLOP_PER_S"), help="default: measured"
    )
    parser.add_argument(
        "--out", type=Path, help="where models.jsonl lies; default: results/, or nowhere for a smoke run"
    )
    parser.add_argument("--smoke", action="store_true", help="a few short requests: that everything works")
    given = parser.parse_args(arguments)
    ceilings, size = find_ceilings(given.ceilings), "smoke" if given.smoke else "full"
    names = ("device", "block_size", "max_num_seqs", "max_model_len")
    options = {name: getattr(given, name) for name in names} | {"load_format": "dummy", "seed": 0}
    out = given.out or (None if given.smoke else RESULTS)
    lines: list[dict[str, Any]] = []

    def keep(model: str, line: dict[str, Any]) -> None:
        about = {"benchmark": "models", "model": model, "size": size, "options": options}
        about["ceilings"] = None if ceilings is None else {**asdict(ceilings), "are_given": given.ceilings is not None}
        lines.append(about | line)
        if out is not None:
            append_record("models", lines[-1], out)
        print(f"{model}: {table_row(lines[-1])}", flush=True)

    for model in given.models:
        with tempfile.TemporaryDirectory(dir=given.folder) as passing:
            folder, has_files = Path(passing), model in given.files
            make_checkpoint(model, folder, device=given.device, max_shard_bytes=SHARD_BYTES, with_weights=has_files)
            _give_back()
            if has_files:
                keep(model, load_figures(folder, given.device, given.repeats))
                for file in folder.glob("*.safetensors"):
                    file.unlink()
            keep(model, run_figures(folder, options, size, given.repeats, given.steps, ceilings))
        _give_back()
    return lines


def bench_models(benchmark, tmp_path):
    """A dense model and a mixture at smoke size: lines with a rate, a limit below it, and what loading took."""
    models = ["tiny", "tiny-mixture"]
    arguments = [
        *models,
        "--files",
        *models,
        "--smoke",
        "--repeats",
        "1",
        "--steps",
        "2",
        "--device",
        "cpu",
        "--max-model-len",
        "64",
    ]
    arguments += ["--block-size", "16", "--max-num-seqs", "4", "--ceilings", "100", "1", "--out", str(tmp_path)]
    lines = benchmark.pedantic(main, (arguments,), rounds=1, iterations=1)
    assert [(line["model"], line["work"]) for line in lines] == [(m, work) for m in models for work in (LOAD, WORK)]
    assert len((tmp_path / "models.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    for load, run in (lines[:2], lines[2:]):
        assert load["gb"] > 0 < load["best_gb_per_s"]
        assert 0 < run["share_of_limit"] < 1
        assert run["ready_s"] > 0
    assert "experts_hit" not in lines[1]
    assert 2 <= lines[3]["experts_hit"] <= 4


if __name__ == "__main__":
    main()
