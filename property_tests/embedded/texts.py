"""The natural texts of the recipe, where they have been fetched: they are no part of the repository.

`python -m nanofn.embedded.corpora FOLDER` fetches them. Tests look into the folder that NANOFN_TEST_TEXTS names, or
`scratch/texts`.
"""

import os
from pathlib import Path

import pytest

from nanofn.embedded.corpora import Corpus, read_corpora

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("NANOFN_TEST_TEXTS") or ROOT / "scratch" / "texts")


def read_texts() -> tuple[Corpus, ...]:
    """Read them, or skip the test with what to run."""
    if not (FOLDER / "corpora.json").exists():
        pytest.skip(f"no {FOLDER}; make it with `python -m nanofn.embedded.corpora {FOLDER}`")
    return read_corpora(FOLDER)
