"""Calls of generate(), timed and checked."""

from time import perf_counter

from attrs import frozen

from generate_work import Run, runs_of
from nanofn import LLM
from nanofn.llm.output import RequestOutput


@frozen
class Timing:
    """One call.

    Attributes:
        seconds: From prompts to texts.
        decode_seconds: Of that, after the last first token.
        num_steps: Steps launched.
        num_prefilled_tokens: Prompt tokens computed, recomputed ones included.
        num_cached_tokens: Prompt tokens found in the prefix cache.
        num_preemptions: How often a sequence lost its blocks.
    """

    seconds: float
    decode_seconds: float
    num_steps: int
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_preemptions: int


def time_run(llm: LLM, run: Run) -> Timing:
    """Time one call and check that it gave what was asked for."""
    before = llm.summary()
    start = perf_counter()
    outputs = llm.generate(run.prompts, run.params, use_tqdm=False)
    seconds = perf_counter() - start
    after = llm.summary()
    wanted = [num_output for _, num_output in run.requests]
    if (given := [len(output.outputs[0].token_ids) for output in outputs]) != wanted:
        raise RuntimeError(f"{run.name}: outputs have {given} tokens and should have {wanted}")
    computed = sum(getattr(after, name) - getattr(before, name) for name in ("num_prefill_tokens", "num_decode_tokens"))
    return Timing(
        seconds=seconds,
        decode_seconds=decode_seconds(outputs),
        num_steps=after.num_steps - before.num_steps,
        # The last token of an output is never computed.
        num_prefilled_tokens=computed - (run.num_output_tokens - len(outputs)),
        num_cached_tokens=sum(output.num_cached_tokens for output in outputs),
        num_preemptions=after.num_preemptions - before.num_preemptions,
    )


def decode_seconds(outputs: list[RequestOutput]) -> float:
    """Measure from when every output had a token to when the last one had its text."""
    firsts = [output.metrics.first_token_time for output in outputs]
    return max(output.metrics.finished_time for output in outputs) - max(time for time in firsts if time is not None)


def measure(llm: LLM, work: str, size: str, vocab_size: int, num_repeats: int) -> list[tuple[Run, list[Timing]]]:
    """Time a work's runs in turns, after one turn that does not count."""
    timings: dict[str, list[Timing]] = {}
    runs: list[Run] = []
    for shift in range(num_repeats + 1):
        runs = runs_of(work, size, vocab_size, shift)
        for run in runs:
            timing = time_run(llm, run)
            if timing.num_cached_tokens and work != "shared-prefix":
                raise RuntimeError(
                    f"{run.name}: {timing.num_cached_tokens} prompt tokens were found in the prefix cache"
                )
            timings.setdefault(run.name, []).append(timing)
    return [(run, timings[run.name][1:]) for run in runs]
