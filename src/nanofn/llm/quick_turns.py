"""quick_turns: threads that do much by themselves and little in Python get their turns soon, beside one that hogs it."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define

TURN_S = 5e-4
"""Python's own is ten times as long. Beside imports, 0.6B's weights came in 1.4 to 1.6 s instead of 2.3 to 3.0 (two cores), and
both ended sooner."""


@define
class _Inside:
    """Who is inside, in any thread: Python has one interval for all.

    Attributes:
        number: How many.
        before: The interval that the first one found, in seconds.
    """

    number: int = 0
    before: float = 0.0


_inside = _Inside()
_lock = threading.Lock()


@contextmanager
def quick_turns() -> Iterator[None]:
    """Let a thread that wants to go on in Python wait `TURN_S` at most, until the last of those inside leaves.

    A thread gives its turn away at every read, copy and operation of torch, hundreds to thousands in a load.
    """
    with _lock:
        if _inside.number == 0:
            _inside.before = sys.getswitchinterval()
            sys.setswitchinterval(min(TURN_S, _inside.before))
        _inside.number += 1
    try:
        yield
    finally:
        with _lock:
            _inside.number -= 1
            if _inside.number == 0:
                sys.setswitchinterval(_inside.before)
