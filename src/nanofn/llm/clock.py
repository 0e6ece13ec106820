"""The loop's clock: the only one whose readings enter the core."""

import time


def now_us() -> int:
    """Read microseconds from an arbitrary start, never going back."""
    return time.monotonic_ns() // 1000
