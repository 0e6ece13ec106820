"""Capturing a graph on the current stream."""

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import torch
from attrs import frozen

Result = TypeVar("Result")


@frozen(eq=False)
class Captured(Generic[Result]):
    """A graph, and what must live as long as it does.

    Attributes:
        graph: Knows all memory by address alone.
        work: What was recorded: it holds the memory that its kernels were given.
        result: What it returned; its memory belongs to the pool.
    """

    graph: "torch.cuda.CUDAGraph"
    work: Callable[[], Result]
    result: Result

    def replay(self) -> Result:
        """Run the graph, and return the memory in which its result will be."""
        self.graph.replay()
        return self.result


def capture(work: Callable[[], Result], pool: Any) -> Captured[Result]:
    """Record what `work` launches.

    Other threads may go on using the device: kernels are loaded in some while the first graphs are captured, and a caller's
    own ones may copy while a prefill is. Python's collector waits, because a graph that it destroys would break this one;
    `torch.cuda.graph` instead collects, synchronises and empties the cache of memory each time.

    Raises:
        What `work` raises.
    """
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            result = work()
        except BaseException:
            with suppress(RuntimeError):  # it says that the graph is void; what `work` raised says why
                graph.capture_end()
            raise
        graph.capture_end()
    finally:
        if collects:
            gc.enable()
    return Captured(graph, work, result)
