"""Capturing a graph on the current stream."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def capture(work: Callable[[], Result], pool: Any) -> tuple["torch.cuda.CUDAGraph", Result]:
    """Record what `work` launches, and return the graph beside its result, whose memory belongs to the pool.

    Other threads may go on using the device: kernels are loaded in some while the first graphs are captured, and a caller's
    own ones may copy while a prefill is.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        result = work()
    return graph, result
