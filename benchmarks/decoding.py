"""An engine driven by hand to where it only decodes, for what is measured step by step."""

from collections.abc import Iterator
from contextlib import contextmanager

from generate_work import Run
from nanofn import LLM

SETTLING_STEPS = 8


@contextmanager
def decoding(llm: LLM, run: Run) -> Iterator[None]:
    """Begin a run, step until nobody starts or prefills any more, and end it afterwards wherever it is.

    Raises:
        RuntimeError: The run ended before that, or what was done with it took it to its end.
    """
    request_ids = [llm.add_request(prompt, params) for prompt, params in zip(run.prompts, run.params, strict=True)]
    try:
        seen: list[int] = []
        while len(seen) < SETTLING_STEPS or len(set(seen[-SETTLING_STEPS:])) > 1:
            llm.step()
            running = list(llm.state.running)
            seen = [] if any(sequence.is_prefill for sequence in running) else [*seen, len(running)]
            _check_lives(llm, run)
        yield
        _check_lives(llm, run)
    finally:
        for request_id in request_ids:
            llm.abort(request_id)
        while llm.has_unfinished or llm.state.in_flight:
            llm.step()


def _check_lives(llm: LLM, run: Run) -> None:
    if not len(llm.state.running):
        raise RuntimeError(f"{run.name} ended before it was measured: too few output tokens for so many steps")
