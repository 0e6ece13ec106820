"""generate() as a whole: throughput, latency, shared prefixes, long contexts, sampling, start-up; profiles and idleness.

python benchmarks/bench_generate.py standard batch1 --model qwen3-0.6b [--idle] [--profile FOLDER] [--out FOLDER]

Each work has one warm-up call, then repeats in the same process; detokenization is part of a call. A line a run goes to
generate.jsonl, with the best and the median repeat, and the share of the roofline limit that the best one reached.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from attrs import asdict, evolve

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "src", "kernels") if str(ROOT / folder) not in sys.path]

import torch

from decoding import decoding
from generate_work import GREEDY, WORKS, Run
from idle import StepTimes, replay_hook, step_times, waiting_clock
from model_dimensions import PUBLISHED
from nanofn import LLM
from planned_steps import planned_steps
from profile_decode import profile_decode
from random_checkpoint import make_checkpoint
from record import RESULTS, append_record
from roofline import Ceilings, Dimensions, dimensions_of, least_seconds
from start_up import start_up_times
from timed_runs import Timing, measure

START_UP = "start-up"


def figures(run: Run, timings: list[Timing], dimensions: Dimensions, ceilings: Ceilings | None) -> dict[str, Any]:
    """Work out what is recorded of a run."""
    in_decode, steps = run.work == "sampling", planned_steps(run.requests)
    if in_decode:
        steps = [step for step in steps if all(entry.num_tokens == 1 for entry in step)]
    num_tokens = sum(map(len, steps)) if in_decode else run.num_output_tokens
    rates = [num_tokens / (each.decode_seconds if in_decode else each.seconds) for each in timings]
    result = {
        "work": run.work,
        "variant": run.variant,
        "num_requests": len(run.requests),
        "prompt_tokens": run.num_prompt_tokens,
        "output_tokens": run.num_output_tokens,
        "measured": "decode" if in_decode else "call",
        "best_tok_per_s": max(rates),
        "median_tok_per_s": statistics.median(rates),
        "best_seconds": min(each.seconds for each in timings),
        "repeats": [asdict(each) for each in timings],
    }
    if ceilings is not None:
        result["limit_tok_per_s"] = num_tokens / least_seconds(dimensions, ceilings, steps)
        result["share_of_limit"] = max(rates) / result["limit_tok_per_s"]
    if run.work == "shared-prefix":
        # The least: what all prompts begin with once, and what each goes on with.
        shared = next(place for place, ids in enumerate(zip(*run.prompts, strict=True)) if len(set(ids)) > 1)
        once = run.num_prompt_tokens - shared * (len(run.requests) - 1)
        result["prefilled_over_once"] = max(each.num_prefilled_tokens for each in timings) / once
    return result


def idle_figures(llm: LLM, run: Run, num_steps: int, *, has_graphs: bool) -> StepTimes:
    """Time decode steps of a run, and their graphs if there are some for the whole step."""
    with decoding(llm, run), waiting_clock(llm) as waited_s:
        return step_times(
            llm.step,
            replay_hook(llm) if has_graphs and run.is_captured else None,
            waited_s,
            num_steps=num_steps,
            synchronize=torch.cuda.synchronize if torch.cuda.is_available() else lambda: None,
        )


def find_ceilings(given: list[float] | None) -> Ceilings | None:
    """Take given ceilings, or measure the GPU's; a CPU has none."""
    if given is not None:
        return Ceilings(1e9 * given[0], 1e12 * given[1])
    if not torch.cuda.is_available():
        return None
    import gpu  # noqa: PLC0415  needs Triton

    found = gpu.ceilings()
    torch.cuda.empty_cache()
    return Ceilings(1e9 * found["read_gb_per_s"], 1e12 * found["matmul_tflop_per_s"])


def table_row(line: dict[str, Any]) -> str:
    """Show a recorded line."""
    name = f"{line['work']} {line['variant']}".strip()
    if line["work"] == START_UP:
        found = [
            f"{state} caches {line['best_ready_s'][state]:.1f} s, first token after {line['best_first_token_s'][state]:.2f} s"
            for state in ("cold", "warm")
        ]
        return f"{name:<24} ready with {'; '.join(found)}"
    if line["work"] == "load":
        return f"{name:<24} {line['gb']:.2f} GB in {line['best_seconds']:.2f} s, {line['best_gb_per_s']:.2f} GB/s"
    shown = f"{name:<24} {line['best_tok_per_s']:>9,.0f} best {line['median_tok_per_s']:>9,.0f} median tok/s"
    if "share_of_limit" in line:
        shown += f"  {line['share_of_limit']:6.1%} of {line['limit_tok_per_s']:,.0f}"
    if line["num_requests"] == 1:
        shown += f"  {1e3 * line['best_seconds'] / line['output_tokens']:.2f} ms a token"
    if "experts_hit" in line:
        shown += f"  {line['experts_hit']:.1f} of {line['num_experts']} experts a step"
    if "ready_s" in line:
        shown += f"  ready in {line['ready_s']:.1f} s"
    if "prefilled_over_once" in line:
        shown += f"  prefilled {line['prefilled_over_once']:.3f} times the least"
    if "lost_against_greedy" in line:
        shown += f"  {line['lost_against_greedy']:.1%} lost against greedy"
    if "step" in line:
        shown += f"\n{'':<24} " + ", ".join(
            f"{key} {value:.3g}" for key, value in line["step"].items() if value is not None
        )
    return shown


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Benchmark generate().")
    parser.add_argument("works", nargs="+", choices=[*WORKS, START_UP])
    parser.add_argument("--model", default="qwen3-0.6b", help=f"a folder, or random weights: {', '.join(PUBLISHED)}")
    parser.add_argument("--checkpoints", type=Path, help="where random weights are kept; default: nowhere")
    parser.add_argument("--tokenizer", type=Path, help="a folder with one for random weights; default: random words")
    parser.add_argument(
        "--load-format", default="auto", choices=("auto", "dummy"), help="dummy: random weights through no files"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument(
        "--ceilings", type=float, nargs=2, metavar=("GB_PER_S", "TFLOP_PER_S"), help="default: measured"
    )
    parser.add_argument("--idle", action="store_true", help="also time single decode steps and the host's part in them")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="also profile decode steps; writes traces there")
    parser.add_argument("--steps", type=int, default=32, help="how many decode steps --idle and --profile look at")
    parser.add_argument(
        "--out", type=Path, help="where generate.jsonl lies; default: results/, or nowhere for a smoke run"
    )
    parser.add_argument("--smoke", action="store_true", help="a few short requests: that everything works")
    return parser.parse_args(arguments)


def engine_options(given: argparse.Namespace) -> dict[str, Any]:
    """What `LLM` gets."""
    names = ("device", "dtype", "depth", "enforce_eager", "block_size", "max_num_seqs", "max_model_len")
    options = {name: getattr(given, name) for name in names} | {"seed": 0}
    return options | ({} if given.load_format == "auto" else {"load_format": given.load_format})


def run_works(given: argparse.Namespace, folder: Path, ceilings: Ceilings | None) -> list[dict[str, Any]]:
    """Measure, profile and record what is asked for."""
    options, size = engine_options(given), "smoke" if given.smoke else "full"
    about = {"benchmark": "generate", "model": given.model, "size": size, "options": options}
    about["ceilings"] = None if ceilings is None else {**asdict(ceilings), "are_given": given.ceilings is not None}
    lines: list[dict[str, Any]] = []
    out = given.out or (None if given.smoke else RESULTS)

    def keep(line: dict[str, Any]) -> None:
        lines.append(about | line)
        if out is not None:
            append_record("generate", lines[-1], out)
        print(table_row(line), flush=True)

    if START_UP in given.works:
        times = start_up_times(folder, options, given.repeats)
        best = {
            f"best_{name}": {state: min(each[name] for each in found) for state, found in times.items()}
            for name in ("ready_s", "first_token_s")
        }
        keep({"work": START_UP, "variant": "", **best, "repeats": times})
    works = [work for work in given.works if work != START_UP]
    if not works:
        return lines
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {} if given.dtype == "auto" else {"dtype": given.dtype}
    with LLM(folder, **options) as llm:
        for work in works:
            greedy_rate = None
            for run, timings in measure(llm, work, size, config["vocab_size"], given.repeats):
                line = figures(run, timings, dimensions_of(config), ceilings)
                if run.variant == GREEDY:
                    greedy_rate = line["best_tok_per_s"]
                elif greedy_rate is not None:
                    line["lost_against_greedy"] = 1 - line["best_tok_per_s"] / greedy_rate
                again = evolve(
                    run, requests=run.requests[: given.max_num_seqs], params=run.params[: given.max_num_seqs]
                )
                if given.idle:
                    found = idle_figures(llm, again, given.steps, has_graphs=not given.enforce_eager)
                    line["step"] = {**asdict(found), "idle_share": found.idle_share, "host_share": found.host_share}
                keep(line)
                if given.profile is not None:
                    print(profile_decode(llm, again, given.profile, given.steps).table(), flush=True)
    return lines


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print a table and record it."""
    given = read_arguments(arguments)
    ceilings = None if given.works == [START_UP] else find_ceilings(given.ceilings)
    if given.model not in PUBLISHED:
        return run_works(given, Path(given.model), ceilings)
    with tempfile.TemporaryDirectory() as passing:
        folder = (given.checkpoints or Path(passing)) / given.model
        device = "cuda" if torch.cuda.is_available() and given.device != "cpu" else "cpu"
        with_weights = given.load_format == "auto"
        make_checkpoint(given.model, folder, tokenizer=given.tokenizer, device=device, with_weights=with_weights)
        torch.cuda.empty_cache()
        return run_works(given, folder, ceilings)


def bench_generate(benchmark, tmp_path):
    """Every work at smoke size: that each gives a line with a rate and a limit, that steps are timed and profiled."""
    arguments = [*WORKS, START_UP, "--smoke", "--model", "tiny", "--repeats", "1", "--steps", "2", "--idle"]
    arguments += ["--device", "cpu", "--block-size", "16", "--max-model-len", "512", "--ceilings", "100", "1"]
    arguments += ["--profile", str(tmp_path), "--out", str(tmp_path)]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other take most of such short steps
    try:
        lines = benchmark.pedantic(main, (arguments,), rounds=1, iterations=1)
    finally:
        torch.set_num_threads(num_threads)
    assert {line["work"] for line in lines} == {*WORKS, START_UP}
    assert len((tmp_path / "generate.jsonl").read_text(encoding="utf-8").splitlines()) == len(lines)
    for line in lines[1:]:
        assert 0 < line["share_of_limit"] < 1
        assert 0 < line["step"]["host_us"] <= line["step"]["period_us"]
    assert len(list(tmp_path.glob("*.trace.json"))) == len(lines) - 1


if __name__ == "__main__":
    main()
