"""quick_turns: threads that do much by themselves and little in Python get their turns soon, beside one that hogs it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

TURN_S = 5e-4
"""Python's own is ten times as long. Beside imports, 0.6B's weights then came in 1.4 s instead of 2.3 (two cores, fp32), and
both ended sooner."""


@contextmanager
def quick_turns() -> Iterator[None]:
    """Let a thread that wants to go on in Python wait `TURN_S` at most, as long as the context lasts.

    A thread gives its turn away at every read, copy and operation of torch, hundreds to thousands in a load.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(TURN_S, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
