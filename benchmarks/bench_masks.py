"""What grammars' masks cost a step: making them in so many threads, sending them, and advancing by a token.

python benchmarks/bench_masks.py --tokenizer FOLDER [--threads 1 4 12] [--apart 16 64] [--rows 64] [--steps 128] [--out FOLDER]

The grammar is that of the work `sampling`. Tokens are drawn before anything is timed: *uniform* takes any that the grammar
allows, *greedy* the one with the highest of a row's fixed scores, which goes on with one token as long as it may. Between the
steps the host sleeps as it does behind a forward pass. Each line says what one number of threads takes beside one way to send:
*shared* is torch's copy into pinned memory, which threads share and then spin for; *own* is `nanofn.device.tables.send`, which
on a CPU has nothing to do.
"""

import argparse
import json
import sys
import time
from itertools import product
from pathlib import Path
from statistics import mean, median, quantiles
from unittest.mock import patch

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "src", "kernels") if str(ROOT / folder) not in sys.path]

from generate_work import NEVER_COMPLETE
from given_tokenizer import given_tokenizer
from nanofn.device.tables import send
from nanofn.sampling.structured import StructuredOutputsParams
from nanofn.text.grammar import MOST_APART, AllowedIds, Grammars
from record import RESULTS, append_record

WAYS = ("shared", "own")
CHOICES = ("uniform", "greedy")
FORM = StructuredOutputsParams(json=json.dumps(NEVER_COMPLETE), disable_any_whitespace=True)


def drawn_tokens(grammar, choice, num_rows, num_steps, vocab_size):
    """What the rows choose: [num_steps][num_rows] ids."""
    random = np.random.default_rng(0)
    scores = random.random((num_rows, vocab_size), dtype=np.float32)
    matchers, allowed_ids = [grammar.start() for _ in range(num_rows)], AllowedIds()
    tokens = []
    for _ in range(num_steps):
        masks = np.unpackbits(allowed_ids.of(matchers).view(np.uint8), axis=1, bitorder="little")[:, :vocab_size]
        if choice == "uniform":
            scores = random.random(scores.shape, dtype=np.float32)
        tokens.append([int(each) for each in (scores + masks).argmax(axis=1)])
        for matcher, token_id in zip(matchers, tokens[-1], strict=True):
            matcher.advance(token_id)
    return tokens


def send_shared(words, device):
    """As torch does it."""
    tensor = torch.from_numpy(words)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.clone()


def times_of(grammar, tokens, num_threads, way, forward_s):
    """Milliseconds of each step's masks, copy and advance, and of all threads' work in a step."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    matchers, allowed_ids = [grammar.start() for _ in tokens[0]], AllowedIds(num_threads)
    copy = send_shared if way == "shared" else send
    found, worked = {"masks": [], "copy": [], "advance": []}, time.process_time()
    for chosen in tokens:
        began = time.perf_counter()
        words = allowed_ids.of(matchers).view(np.int32)
        made = time.perf_counter()
        copy(words, device)
        sent = time.perf_counter()
        time.sleep(forward_s)
        woken = time.perf_counter()
        for matcher, token_id in zip(matchers, chosen, strict=True):
            matcher.advance(token_id)
        found["advance"].append(1e3 * (time.perf_counter() - woken))
        found["masks"].append(1e3 * (made - began))
        found["copy"].append(1e3 * (sent - made))
    return found, 1e3 * (time.process_time() - worked) / len(tokens)


def measure(tokenizer, given):
    """Print and record a line for every choice, number of matchers apart, number of threads and way."""
    about = {"benchmark": "masks", "rows": given.rows, "steps": given.steps, "forward_ms": given.forward_ms}
    grammars = Grammars(tokenizer, given.vocab_size, (tokenizer.eos_token_id,))
    for choice in CHOICES:
        tokens = drawn_tokens(grammars.compile(FORM), choice, given.rows, given.steps, given.vocab_size)
        for num_apart, num_threads, way in product(given.apart, given.threads, WAYS):
            if way == "shared" and num_apart != given.apart[0]:
                continue  # once is enough
            grammars._latest = None  # noqa: SLF001  matchers that have learnt nothing, the tokenizer as it is
            with patch("nanofn.text.grammar.MOST_APART", num_apart):
                found, work_ms = times_of(grammars.compile(FORM), tokens, num_threads, way, given.forward_ms / 1e3)
            line = {
                "choice": choice,
                "num_apart": num_apart,
                "num_threads": num_threads,
                "way": way,
                "work_ms": work_ms,
            }
            shown = f"{choice:<8} {num_apart:>2} apart {num_threads:>2} threads  {way:<6}"
            for part, each in found.items():
                line[f"{part}_ms"] = figures = {
                    "mean": mean(each),
                    "median": median(each),
                    "p90": quantiles(each, n=10)[-1],
                }
                shown += f"  {part} {figures['mean']:6.2f} ({figures['median']:.2f}, {figures['p90']:.2f})"
            print(f"{shown}  all threads {work_ms:6.2f}", flush=True)
            append_record("masks", about | line, given.out)


def read_arguments(arguments):
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time grammars' masks: means (medians, 9th deciles) in milliseconds.")
    parser.add_argument("--tokenizer", type=Path, help="a folder with one; default: random words")
    parser.add_argument("--vocab-size", type=int, default=151_936)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16])
    parser.add_argument("--apart", type=int, nargs="+", default=[MOST_APART, 64], help="matchers that share nothing")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--forward-ms", type=float, default=3.0, help="how long the host sleeps in a step")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where masks.jsonl lies")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Measure, print and record."""
    given = read_arguments(arguments)
    print(f"torch has {torch.get_num_threads()} threads; means (medians, 9th deciles) of {given.steps} steps, ms")
    measure(given_tokenizer(given.tokenizer, given.vocab_size), given)


def bench_masks(benchmark, tmp_path):
    """Smoke size: that every line has all parts."""
    arguments = [
        "--vocab-size",
        "2000",
        "--threads",
        "1",
        "2",
        "--apart",
        "3",
        "--rows",
        "5",
        "--steps",
        "6",
        "--forward-ms",
        "0",
    ]
    benchmark.pedantic(main, ([*arguments, "--out", str(tmp_path)],), rounds=1, iterations=1)
    lines = [json.loads(line) for line in (tmp_path / "masks.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {(line["choice"], line["num_threads"], line["way"]) for line in lines} == {
        (choice, num_threads, way) for choice in CHOICES for num_threads in (1, 2) for way in WAYS
    }
    assert all(line["masks_ms"]["mean"] > 0 for line in lines)


if __name__ == "__main__":
    main()
