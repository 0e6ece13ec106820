"""How much of a decode step the device is idle, and what the host spends on it.

A profiler slows down what it looks at, so idleness is found from two times without one: how long steps take in a run, and
how long the last of them takes when its graphs are replayed back to back, with no host between.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

from attrs import frozen

from nanofn import LLM

WINDOWS = 4
"""Parts that steps are timed in. 32 steps of batch 1 are 19 ms: one pause of 9 ms would double what the host seems to take."""


@frozen
class StepTimes:
    """Of some decode steps, the median of the means of their windows.

    Attributes:
        period_us: From one step to the next, in the run.
        host_us: The part of it in which the host did not wait for the device.
        replay_us: A step's graphs, replayed back to back; None without a replay.
    """

    period_us: float
    host_us: float
    replay_us: float | None

    @property
    def idle_share(self) -> float | None:
        """Share of the period in which the device has nothing to do."""
        return None if self.replay_us is None else 1 - self.replay_us / self.period_us

    @property
    def host_share(self) -> float | None:
        """The host's time over the device's."""
        return None if self.replay_us is None else self.host_us / self.replay_us


def step_times(
    step: Callable[[], object],
    replay_step: Callable[[], object] | None,
    waited_s: Callable[[], float],
    *,
    num_steps: int,
    synchronize: Callable[[], object] = lambda: None,
) -> StepTimes:
    """Time steps in the run, then replays of the last one.

    Args:
        step: Runs one step of an engine that is decoding, as `LLM.step`.
        replay_step: Launches the graphs of the latest step once more and returns without waiting. It must leave nothing that
            a later step reads changed; a step that is repeated writes what it wrote before.
        waited_s: Seconds that the host has waited for the device so far.
        num_steps: How many steps, in windows of a quarter of them, and how many replays.
        synchronize: Waits for the device.
    """
    in_window = max(1, num_steps // WINDOWS)
    periods, host_times = [], []
    for _ in range(num_steps // in_window):
        started, waited = perf_counter(), waited_s()
        for _ in range(in_window):
            step()
        periods.append((perf_counter() - started) / in_window)
        host_times.append(periods[-1] - (waited_s() - waited) / in_window)
    replay = None
    if replay_step is not None:
        synchronize()
        started = perf_counter()
        for _ in range(num_steps):
            replay_step()
        synchronize()
        replay = 1e6 * (perf_counter() - started) / num_steps
    return StepTimes(1e6 * median(periods), 1e6 * median(host_times), replay)


def replay_hook(llm: LLM) -> Callable[[], object] | None:
    """Find what replays the graphs of the latest step; None where the executor has no graphs."""
    return getattr(_executor(llm), "replay_last_step", None)


@contextmanager
def waiting_clock(llm: LLM) -> Iterator[Callable[[], float]]:
    """Add up, while the context lasts, how long the executor's `collect` takes: there the host waits for results.

    Reading them is counted as waiting, so the host's own share comes out too small by that: a few microseconds a step.
    """
    executor, total = _executor(llm), 0.0
    collect = executor.collect

    def timed() -> Any:
        nonlocal total
        started = perf_counter()
        try:
            return collect()
        finally:
            total += perf_counter() - started

    executor.collect = timed
    try:
        yield lambda: total
    finally:
        del executor.collect


def _executor(llm: LLM) -> Any:
    return llm._executor  # noqa: SLF001  a caller has no use for it, so it has no public name
