"""What is worked out of traces and clocks, on ones that were made up."""

import json

import pytest

import idle
from idle import StepTimes, step_times
from report_generate import latest, read_lines, table
from trace_summary import summarize


def event(cat, name, ts, dur, **more):
    """A complete event of a Chrome trace."""
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **more}


def test_kernels_of_a_trace():
    """Two steps of which one kernel overlaps another: 10 + 6 + 4 of 30 us are busy, and the copy is no kernel."""
    found = summarize(
        [
            event("kernel", "attend", 100, 8),
            event("kernel", "norm", 106, 4),
            event("kernel", "attend", 115, 6),
            event("gpu_memcpy", "copy", 126, 4),
            event("cpu_op", "aten::mm", 0, 500),
            {"ph": "i", "cat": "kernel", "name": "no interval", "ts": 0},
        ],
        num_steps=2,
    )
    assert (found.subject, found.num_per_step, found.num_copies_per_step) == ("kernels", 1.5, 0.5)
    assert (found.span_us_per_step, found.busy_us_per_step, found.longest_gap_us) == (15, 10, 5)
    assert found.idle_share == pytest.approx(1 / 3)
    assert [(each.name, each.num_per_step, each.us_per_step) for each in found.times[:1]] == [("attend", 1, 7)]
    assert sum(each.share for each in found.times) == pytest.approx(1)
    assert "idle 33.3%" in found.table()


def test_operations_stand_in_for_kernels():
    """Without a GPU the outermost operations of each thread count."""
    found = summarize(
        [
            event("cpu_op", "aten::linear", 0, 10, tid=1),
            event("cpu_op", "aten::mm", 2, 7, tid=1),
            event("cpu_op", "aten::add", 10, 2, tid=1),
            event("cpu_op", "aten::copy_", 4, 20, tid=2),
        ],
        num_steps=1,
    )
    assert found.subject == "operations"
    assert [each.name for each in found.times] == ["aten::copy_", "aten::linear", "aten::add"]
    assert (found.span_us_per_step, found.busy_us_per_step) == (24, 24)


def test_an_empty_trace_is_an_error():
    """A trace of nothing says so."""
    with pytest.raises(ValueError, match="has 1 events"):
        summarize([event("python_function", "f", 0, 1)], num_steps=1)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.now = self.waited = 0.0

    def step(self):
        """The host works 3 ms and waits 7."""
        self.now += 0.010
        self.waited += 0.007

    def replay(self):
        """A replay takes the device 8 ms, which synchronizing waits for."""
        self.now += 0.008


def test_idleness_and_the_hosts_part(monkeypatch):
    """A step of 10 ms, of which the host waits 7, and whose graphs take 8: a fifth is idle, the host needs 3 of 8."""
    clock = Clock()
    monkeypatch.setattr(idle, "perf_counter", lambda: clock.now)
    found = step_times(clock.step, clock.replay, lambda: clock.waited, num_steps=4)
    assert (found.period_us, found.host_us, found.replay_us) == pytest.approx((10_000, 3_000, 8_000))
    assert found.idle_share == pytest.approx(0.2)
    assert found.host_share == pytest.approx(3 / 8)


def test_a_pause_counts_in_one_window_only(monkeypatch):
    """A step that takes 90 ms more, as for garbage, does not change what the others take."""
    clock, steps = Clock(), iter(range(16))
    monkeypatch.setattr(idle, "perf_counter", lambda: clock.now)

    def step():
        clock.step()
        clock.now += 0.09 * (next(steps) == 5)

    found = step_times(step, None, lambda: clock.waited, num_steps=16)
    assert (found.period_us, found.host_us, found.replay_us) == (pytest.approx(10_000), pytest.approx(3_000), None)


def test_without_graphs_idleness_is_unknown():
    """Where nothing can be replayed there is no share, and no invented one."""
    found = StepTimes(10, 3, None)
    assert found.idle_share is None
    assert found.host_share is None


def line(**more):
    """A recorded line."""
    base = {
        "size": "full",
        "device": "X",
        "date": "2026-01-01",
        "commit": "c",
        "versions": {},
        "options": {},
        "model": "m",
    }
    return base | {"work": "standard", "variant": "", "best_tok_per_s": 1.0, "median_tok_per_s": 1.0} | more


def test_a_report_takes_the_last_full_run(tmp_path):
    """Smoke runs, wrong runs and other devices do not count; the last line of a work does."""
    lines = [
        line(best_tok_per_s=1_111.0),
        line(best_tok_per_s=2_222.0),
        line(best_tok_per_s=3_333.0, wrong="two processes on the device"),
        line(best_tok_per_s=4_444.0, size="smoke"),
        line(best_tok_per_s=5_555.0, device="Y"),
        line(work="batch1", share_of_limit=0.5, limit_tok_per_s=2.0, step={"idle_share": 0.03, "host_share": None}),
    ]
    path = tmp_path / "generate.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    shown = table(latest(read_lines(path), None))
    assert "2,222" in shown
    assert not any(other in shown for other in ("1,111", "3,333", "4,444", "5,555"))
    assert "| m | batch1 | 1 tok/s | 1 | 2 | 50.0% | 3.0% |" in shown


def test_a_report_of_nothing_is_an_error():
    """Without a full run there is nothing to show."""
    with pytest.raises(ValueError, match="no line of a full run"):
        latest([line(size="smoke")], None)
