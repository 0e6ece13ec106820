"""One JSON line per run, with what a reader needs to judge it."""

import datetime
import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "triton", "transformers", "nanofn")


def append_record(name: str, result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Append a result to `results/NAME.jsonl`, or to NAME.jsonl elsewhere, with commit, date, device and versions."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), **environment(), **result}
    with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def environment() -> dict[str, Any]:
    """Describe where a benchmark ran."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {platform.machine()}"
    return {
        "commit": _commit(),
        "device": device,
        "python": platform.python_version(),
        "versions": {package: found for package in PACKAGES if (found := _version(package))},
    }


def _commit() -> str:
    if named := os.environ.get("NANOFN_COMMIT"):  # where the source travels without its history
        return named
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=RESULTS).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ImportError:
        return None
