"""The command line, as a shell sees it."""

import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nanofn.cli import main

ROOT = Path(__file__).resolve().parents[2]
STORY = "Once upon a time"


def test_a_prompt_is_continued_on_stdout(capsys):
    """Prompt and text on stdout, what was chosen on stderr."""
    assert main([STORY, "--max-tokens", "8", "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(STORY)
    assert len(out) > len(STORY) + 5
    assert err.startswith("nanofn: the embedded model")


def test_json_is_one_object_per_prompt(capsys):
    """Ready for jq."""
    assert main([STORY, "The cat", "--max-tokens", "5", "--seed", "3", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [STORY, "The cat"] == [line["prompt"] for line in lines]
    assert all(line["outputs"][0]["seed"] == 3 for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["", "--max-tokens", "3"], "empty"),
        (["a", "--max-tokens", "0"], "max_tokens is 0"),
        (["a", "--temperature", "-1"], "temperature is -1"),
        (["a", "--model", "/no/such/folder"], "/no/such/folder is not a folder"),
    ],
)
def test_an_error_is_one_line_and_status_1(arguments, message, capsys):
    """No traceback for what the caller can mend."""
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_chat_remembers_resets_and_ends(capsys, monkeypatch):
    """Lines are answered; /reset forgets; the end of the input ends the program."""
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello!\n\n/help\n/reset\nHello!\n"))
    assert main(["chat", "--max-tokens", "12", "--temperature", "0", "--stats"]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first == second
    assert "/reset" in err
    assert "tok/s" in err


def test_it_runs_as_a_module_and_a_closed_pipe_is_no_error():
    """`nanofn ... | head` must not print a traceback."""
    command = f"{sys.executable} -m nanofn '{STORY}' '{STORY}' --max-tokens 30 | head -c 5"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, env=os.environ, timeout=120
    )
    assert STORY[:5] == done.stdout
    assert "Traceback" not in done.stderr


on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="shown is what comes in float32, on a CPU")


@on_a_cpu
def test_the_readme_shows_what_its_command_prints(capsys):
    """The first text of the README is the embedded model's, word for word."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command, shown = re.search(
        r"^python .* && nanofn (.+)\n```\n\n```text\n(.+?)```", readme, re.MULTILINE | re.DOTALL
    ).groups()
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out.split() == shown.split()


@on_a_cpu
def test_the_picture_shows_what_the_conversation_is():
    """The drawn terminal, held again: the same words from the first line that is typed on."""
    terminal = runpy.run_path(str(ROOT / "docs" / "terminal.py"))
    shown = terminal["read_drawn"]((ROOT / "docs" / "terminal.svg").read_text(encoding="utf-8"))
    again = terminal["record"]()
    assert all(f"> {line}\n" in again for line in terminal["TYPED"])
    assert shown[shown.index("> ") :].split() == again[again.index("> ") :].split()
