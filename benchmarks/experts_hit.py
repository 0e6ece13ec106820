"""How many experts a decode step really goes to: what a mixture's limit is counted from."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from torch import Tensor

from decoding import decoding
from generate_work import Run
from nanofn import LLM
from nanofn.model import decoder


def experts_hit(llm: LLM, run: Run, num_steps: int) -> dict[int, float]:
    """Count the experts that decode steps of a run choose, on average over layers and steps.

    The engine decodes without graphs from then on: a graph would not show what its router chose.

    Returns:
        The number of sequences to the number of experts of a layer; {} for a dense model.
    """
    _drop_graphs(llm._executor)  # noqa: SLF001  a caller has no use for it, so it has no public name
    with decoding(llm, run), recorded_choices() as chosen:
        num_running = len(llm.state.running)
        for _ in range(num_steps):
            llm.step()
    counts = [ids[:num_running].unique().numel() for ids in chosen]
    return {num_running: fmean(counts)} if counts else {}


@contextmanager
def recorded_choices() -> Iterator[list[Tensor]]:
    """Keep the expert ids of every layer that is routed while the context lasts."""
    chosen: list[Tensor] = []
    route = decoder.route

    def recording(*arguments: Any) -> Any:
        routing = route(*arguments)
        chosen.append(routing.expert_ids)
        return routing

    decoder.route = recording
    try:
        yield chosen
    finally:
        decoder.route = route


def _drop_graphs(executor: Any) -> None:
    if getattr(executor, "_pool", None) is not None:
        executor._pool = None  # noqa: SLF001  as above; without it nothing is captured
        executor._buckets.clear()  # noqa: SLF001
