"""A profile of decode steps: a Chrome trace, and a summary of it as a table and in JSON."""

import json
from pathlib import Path

import torch
from attrs import asdict
from torch.profiler import ProfilerActivity, profile

from decoding import decoding
from generate_work import Run
from nanofn import LLM
from trace_summary import TraceSummary, summarize


def profile_decode(llm: LLM, run: Run, folder: Path, num_steps: int) -> TraceSummary:
    """Profile steps of a run in which nobody prefills; writes NAME.trace.json and NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"{run.name}.trace.json"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with decoding(llm, run):
        _synchronize()
        with profile(activities=activities) as profiler:
            for _ in range(num_steps):
                llm.step()
            _synchronize()
    profiler.export_chrome_trace(str(trace))
    summary = summarize(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"], num_steps)
    figures = {"run": run.name, **asdict(summary), "idle_share": summary.idle_share}
    (folder / f"{run.name}.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return summary


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
