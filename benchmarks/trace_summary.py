"""What a Chrome trace of some steps says: kernels per step, time by kernel, and how long nothing ran."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
DEVICE_WORK = COPIES | {"kernel"}
"""Categories of torch.profiler's events that take a GPU's time."""

HOST_WORK = frozenset({"cpu_op"})
"""The category that stands in where there is no GPU."""


@frozen
class KernelTime:
    """A kernel's share.

    Attributes:
        name: As the profiler has it.
        num_per_step: Launches.
        us_per_step: Their time.
        share: Of all kernels' time.
    """

    name: str
    num_per_step: float
    us_per_step: float
    share: float


@frozen
class TraceSummary:
    """Some steps, summed up.

    Attributes:
        subject: "kernels", or "operations" where there is no GPU.
        num_steps: How many.
        num_per_step: Kernels a step, copies and fills not counted.
        num_copies_per_step: Copies and fills.
        span_us_per_step: From the first start to the last end.
        busy_us_per_step: The part of it in which anything ran.
        longest_gap_us: The longest time in which nothing did.
        times: By name, the longest first.
    """

    subject: str
    num_steps: int
    num_per_step: float
    num_copies_per_step: float
    span_us_per_step: float
    busy_us_per_step: float
    longest_gap_us: float
    times: tuple[KernelTime, ...]

    @property
    def idle_share(self) -> float:
        """Share of the span in which nothing ran, the profiler's own delays included."""
        return 1 - self.busy_us_per_step / self.span_us_per_step

    def table(self, num_rows: int = 20) -> str:
        """Show the figures and the longest kernels."""
        copies = f" and {self.num_copies_per_step:.1f} copies" if self.num_copies_per_step else ""
        head = (
            f"{self.num_per_step:.1f} {self.subject}{copies} a step, {self.busy_us_per_step:.1f} of "
            f"{self.span_us_per_step:.1f} us busy, idle {self.idle_share:.1%}, longest gap {self.longest_gap_us:.1f} us"
        )
        rows = [
            f"{each.us_per_step:10.1f} us {each.share:6.1%} {each.num_per_step:7.1f} x  {each.name:.80}"
            for each in self.times[:num_rows]
        ]
        return "\n".join([head, *rows])


def summarize(events: Iterable[Mapping[str, Any]], num_steps: int) -> TraceSummary:
    """Sum up the events of a trace of `num_steps` steps.

    Raises:
        ValueError: The trace has no kernels and no operations.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    work = [event for event in complete if event.get("cat") in DEVICE_WORK]
    subject = "kernels" if work else "operations"
    if not work:
        work = _outermost([event for event in complete if event.get("cat") in HOST_WORK])
    if not work:
        raise ValueError(f"the trace has {len(complete)} events, and neither kernels nor operations among them")
    busy, longest_gap = _covered([(float(event["ts"]), float(event["dur"])) for event in work])
    by_name = defaultdict[str, list[float]](list)
    for event in work:
        by_name[event["name"]].append(float(event["dur"]))
    total = sum(map(sum, by_name.values()))
    times = [
        KernelTime(name, len(found) / num_steps, sum(found) / num_steps, sum(found) / total)
        for name, found in by_name.items()
    ]
    num_copies = sum(event["cat"] in COPIES for event in work)
    span = max(event["ts"] + event["dur"] for event in work) - min(event["ts"] for event in work)
    return TraceSummary(
        subject=subject,
        num_steps=num_steps,
        num_per_step=(len(work) - num_copies) / num_steps,
        num_copies_per_step=num_copies / num_steps,
        span_us_per_step=span / num_steps,
        busy_us_per_step=busy / num_steps,
        longest_gap_us=longest_gap,
        times=tuple(sorted(times, key=lambda each: -each.us_per_step)),
    )


def _outermost(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out operations that ran inside others of their thread."""
    found, ends = [], dict[Any, float]()
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        thread = event.get("tid")
        if event["ts"] >= ends.get(thread, float("-inf")):
            ends[thread] = event["ts"] + event["dur"]
            found.append(event)
    return found


def _covered(intervals: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Measure the union of (start, length) intervals; returns its length and the longest gap in it."""
    total = longest_gap = 0.0
    end: float | None = None
    for start, length in sorted(intervals):
        if end is None or start > end:
            longest_gap = max(longest_gap, 0.0 if end is None else start - end)
            total, end = total + length, start + length
        elif start + length > end:
            total, end = total + start + length - end, start + length
    return total, longest_gap
