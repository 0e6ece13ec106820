"""Loading beside an import: threads that need little of Python get it soon, and afterwards all is as before."""

import sys
import threading
from time import perf_counter

import pytest

from nanofn.llm.quick_turns import TURN_S, quick_turns


def test_turns_are_shorter_inside_and_as_before_afterwards():
    """After an error too; turns that are shorter still are left alone."""
    before = sys.getswitchinterval()
    with quick_turns():
        assert sys.getswitchinterval() == pytest.approx(TURN_S)
    with pytest.raises(ValueError, match="inside"), quick_turns():
        raise ValueError("inside")
    assert sys.getswitchinterval() == before
    sys.setswitchinterval(1e-5)
    try:
        with quick_turns():
            assert sys.getswitchinterval() == pytest.approx(1e-5)
    finally:
        sys.setswitchinterval(before)


def test_those_that_overlap_leave_the_turns_that_the_first_one_found():
    """Two engines that start in two threads: the first to come is the first to go."""
    before, first, second = sys.getswitchinterval(), quick_turns(), quick_turns()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(TURN_S), "one is inside still"
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before


def hundred_turns():
    """Seconds that a thread takes which gives its turn away a hundred times, beside one that never does."""
    is_over = threading.Event()

    def hog():
        while not is_over.is_set():
            sum(range(100))

    beside = threading.Thread(target=hog)
    beside.start()
    start = perf_counter()
    taken = threading.Lock()
    taken.acquire()
    for _ in range(100):
        taken.acquire(timeout=1e-6)
    took = perf_counter() - start
    is_over.set()
    beside.join()
    return took


def test_a_thread_waits_less_for_its_turn():
    """A hundred waits beside a thread that computes take at most half the time. Measured: a seventh."""
    usual = min(hundred_turns() for _ in range(3))
    with quick_turns():
        assert min(hundred_turns() for _ in range(3)) < usual / 2
