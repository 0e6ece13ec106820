"""The repository speaks of the project alone: it names no machine, no account and no package index."""

import re

import pytest

from conventions.source import label, tracked_files

TEXT = {"", ".cfg", ".jinja", ".jsonl", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
"""Suffixes of files that people write. Weights, vocabularies and recorded results are not among them."""

MAX_BYTES = 1 << 20

# Spelled in parts, so that this file may be read by its own test.
FORBIDDEN = {
    "an absolute path of one machine": r"(?<![\w.~-])/(?:wo"
    r"rk|ro"
    r"ot|ho"
    r"me|Us"
    r"ers|t"
    r"mp|o"
    r"pt|m"
    r"nt)/",
    "a folder beside the repository": r"\.\./sha" r"red\b",
    "a package index": r"py"
    r"pi\.org|pythonhos"
    r"ted\.org|registry\.np"
    r"mjs|download\.pyto"
    r"rch\.org|file:/"
    r"//",
    "a setting of one machine's installer": r"--(?:extra-)?index-" r"url|--find-" r"links|--trusted-" r"host",
}


def offences(text: str) -> list[str]:
    """What a text says that it should not, as `line: what`."""
    return [
        f"{number}: {what}"
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if re.search(pattern, line)
    ]


def test_no_file_names_a_machine_or_an_index() -> None:
    """No text file has a path of someone's machine or the address of a package index in it."""
    found = {}
    for path in tracked_files():
        if path.suffix in TEXT and path.stat().st_size <= MAX_BYTES:
            found[label(path)] = offences(path.read_text(encoding="utf-8"))
    assert len(found) > 0
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("line", ["see /ho" + "me/me/x", "pip install --find-" + "links x", "../sha" + "red/design"])
def test_an_offence_is_found(line: str) -> None:
    """Each kind of forbidden text is recognised, and an ordinary path is not."""
    assert len(offences(line)) == 1
    assert offences("LLM('/models/Qwen3-0.6B'), src/nanofn, a/tmp_path, kernels/") == []
