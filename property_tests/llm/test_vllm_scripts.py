"""Offline scripts for vLLM's documented interface run here with no change but their import."""

import runpy
import sys
from pathlib import Path

import pytest

from nanofn.llm.locate import embedded_model

SCRIPTS = sorted((Path(__file__).parent / "vllm_scripts").glob("*.py"))


def test_there_are_ten_scripts():
    """A folder that moved would leave the test below with nothing to run."""
    assert len(SCRIPTS) == 10


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_runs_after_a_change_of_its_import(script, tmp_path, monkeypatch, capsys):
    """`from vllm import` becomes `from nanofn import`; its own assertions hold, and it prints what it found."""
    text = script.read_text(encoding="utf-8")
    assert text.count("from vllm import LLM, SamplingParams\n") == 1
    changed = tmp_path / script.name
    changed.write_text(text.replace("from vllm import", "from nanofn import"), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(changed), str(embedded_model())])
    names = runpy.run_path(str(changed), run_name="__main__")
    if "llm" in names:
        names["llm"].close()
    assert capsys.readouterr().out.count("\n") >= 2
