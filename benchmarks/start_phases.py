"""Where the time of a start goes: phases of `LLM(...)` in fresh processes, with empty caches of compiled code, then filled ones.

python benchmarks/start_phases.py --model qwen3-0.6b [--checkpoints FOLDER] [--tokenizer FOLDER] [--out FOLDER]

Phases of several threads overlap. As `start_phases.py FOLDER OPTIONS` it is one such process, after its imports.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "src", "kernels") if str(ROOT / folder) not in sys.path]

import torch
from transformers import AutoTokenizer  # noqa: F401  imports are not a phase

from model_dimensions import PUBLISHED
from nanofn import LLM
from random_checkpoint import make_checkpoint
from record import append_record
from start_up import CACHES, fresh_start, read_all

PHASES = {
    "nanofn.llm.assemble": (
        "load_checkpoint",
        "wake_compiler",
        "load_tokenizer_of",
        "request_kernels",
        "working_bytes",
        "FusedExecutor",
    ),
    "nanofn.device.trial": ("kept_results", "_run"),
}
"""What is timed, by the module that calls it."""

MAX_MODEL_LEN = 4096

Phase = tuple[str, float, float]
"""Name, begin and end in seconds."""


@contextmanager
def noted(phases: Mapping[str, tuple[str, ...]], found: list[Phase]) -> Iterator[None]:
    """Note begin and end of every call of the named functions, in whatever thread; seconds from here.

    Raises:
        AttributeError: A module has no such function any more.
    """
    start = perf_counter()

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            begin = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                found.append((name, begin - start, perf_counter() - start))

        return called

    with ExitStack() as undone:
        for module, names in phases.items():
            for name in names:
                owner = import_module(module)
                undone.enter_context(patch.object(owner, name, noting(name, getattr(owner, name))))
        start = perf_counter()
        yield


def start(folder: str, options: dict[str, Any]) -> None:
    """Be the process that is timed."""
    phases: list[Phase] = []
    with noted(PHASES, phases):
        begin = perf_counter()
        llm = LLM(folder, **options)
        ready = perf_counter() - begin
    llm.close()
    print(json.dumps({"ready_s": ready, "phases": phases}))


def main(arguments: list[str] | None = None) -> None:
    """Start twice, print the phases and record them."""
    parser = argparse.ArgumentParser(description="Show where the time of a start goes.")
    parser.add_argument("--model", default="qwen3-0.6b", help="a folder, or random weights as for bench_generate.py")
    parser.add_argument("--checkpoints", type=Path, help="where random weights are kept; default: nowhere")
    parser.add_argument("--tokenizer", type=Path, help="a folder with one for random weights; default: random words")
    parser.add_argument("--out", type=Path, help="where start_phases.jsonl lies; default: nowhere")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as passing:
        folder = _checkpoint(given, Path(passing) / "checkpoint")
        options = {"max_model_len": min(MAX_MODEL_LEN, _longest(folder)), "seed": 0}
        for state in ("cold", "warm"):
            read_all(folder)
            found = fresh_start(Path(__file__), folder, options, Path(passing))
            kernels = Path(passing) / CACHES[0].lower()
            found["triton_entries"] = len(list(kernels.iterdir())) if kernels.exists() else 0
            for name, begin, end in found["phases"]:
                print(f"{state}  {name:<20} {begin:6.2f} to {end:6.2f} s")
            print(f"{state}  ready after {found['ready_s']:.2f} s, {found['triton_entries']} entries of Triton's cache")
            if given.out is not None:
                line = {"benchmark": "start_phases", "model": given.model, "options": options, "caches": state}
                append_record("start_phases", line | found, given.out)


def _checkpoint(given: argparse.Namespace, passing: Path) -> Path:
    if given.model not in PUBLISHED:
        return Path(given.model)
    folder = passing if given.checkpoints is None else given.checkpoints / given.model
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made = make_checkpoint(given.model, folder, tokenizer=given.tokenizer, device=device)
    torch.cuda.empty_cache()
    return made


def _longest(folder: Path) -> int:
    config: dict[str, int] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config["max_position_embeddings"]


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].startswith("-"):
        start(sys.argv[1], json.loads(sys.argv[2]))
    else:
        main()
