"""How long an engine takes to be ready: in fresh processes, after their imports, with the weights in the page cache.

As a program, `start_up.py FOLDER OPTIONS`, it is one such process and prints its times as JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Variables that name where compiled code is kept."""


def start_up_times(folder: Path, options: dict[str, Any], num_repeats: int) -> dict[str, list[dict[str, float]]]:
    """Start engines one after another: in each repeat one with empty caches, then one with the caches it has filled.

    Returns:
        "cold" and "warm" to each repeat's `imports_s`, `ready_s`, and `first_token_s` and `second_token_s` of two calls
        after that: whatever is put off until it is needed shows in the first.
    """
    times: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(num_repeats):
        with tempfile.TemporaryDirectory() as caches:
            for state in ("cold", "warm"):
                read_all(folder)
                times[state].append(fresh_start(Path(__file__), folder, options, Path(caches)))
    return times


def read_all(folder: Path) -> None:
    """Bring a folder's files into the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            while file.read(1 << 26):
                pass


def fresh_start(program: Path, folder: Path, options: dict[str, Any], caches: Path) -> dict[str, Any]:
    """Run a program, this one or another, on a checkpoint in a process of its own; its last line is what it found."""
    environment = os.environ | {name: str(caches / name.lower()) for name in CACHES}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, str(program), str(folder), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"the engine did not start:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Be the process that is timed."""
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    start = time.perf_counter()
    from transformers import AutoTokenizer  # noqa: F401, PLC0415  imports are timed apart

    from nanofn import LLM, SamplingParams  # noqa: PLC0415

    imported = time.perf_counter()
    llm = LLM(folder, **options)
    ready = time.perf_counter()
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    llm.generate([[7] * 16], params)
    first = time.perf_counter()
    llm.generate([[8] * 16], params)
    second = time.perf_counter()
    llm.close()
    times = {
        "imports_s": imported - start,
        "ready_s": ready - imported,
        "first_token_s": first - ready,
        "second_token_s": second - first,
    }
    print(json.dumps(times))


if __name__ == "__main__":
    main()
