"""What a decode step costs the host beside the model: log-probabilities, grammars, penalties, at 256 rows.

The loop, the tracker and the grammars are the real ones; an executor without a model answers with tokens that each row may
choose. Its own work is not counted. *Step* is the host's time of a step; *late* is the part of it between the arrival of a
step's tokens and the order to choose the next ones, which is what a device would wait for behind a grammar's masks; *masks* is
the part of that in which masks are made. NANOFN_BENCHMARK_TOKENIZER names a folder with another tokenizer than random words.
"""

import os
from collections import deque
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter_ns

import numpy as np
import pytest
import torch
from attrs import asdict, define, field

from generate_work import VARIANTS, runs_of
from nanofn.batch.masks import NO_MASKS
from nanofn.batch.step_output import NOBODY, StepOutput
from nanofn.config import Limits
from nanofn.device.read_logprobs import Wanted, sampled_logprobs
from nanofn.llm.engine import Engine
from nanofn.llm.facts import Facts
from nanofn.llm.intake import Intake, read_call
from nanofn.policy import fcfs
from nanofn.text.grammar import AllowedIds, Grammars
from random_tokenizer import SPECIAL
from record import append_record

IS_FULL = os.environ.get("NANOFN_BENCHMARK_SIZE") == "full"
VOCAB_SIZE = 151_936 if IS_FULL else 2_000
SIZE = "full" if IS_FULL else "smoke"
FOLDER = os.environ.get("NANOFN_BENCHMARK_TOKENIZER") if IS_FULL else None


@define
class Clock:
    """Nanoseconds of everything but what is taken out.

    Attributes:
        taken_out: So many have been.
    """

    taken_out: int = 0

    def now(self):
        """The time that counts."""
        return perf_counter_ns() - self.taken_out


@define
class Answers:
    """An executor that knows of no model: any token that a row's mask allows, and one report for every step.

    Attributes:
        clock: Stands still while an answer is made up.
        ended_at: When each step's tokens were handed over.
        asked_at: When the tokens that await masks were asked for.
    """

    clock: Clock
    ended_at: list = field(factory=list)
    asked_at: list = field(factory=list)
    _random: Random = field(factory=lambda: Random(0))
    _starts: dict = field(factory=dict)
    _awaits: object = None
    _results: deque = field(factory=deque)
    _report: object = None

    def launch(self, step_plan, starts, *, awaits_masks=False):
        """Answer, or wait for masks."""
        self._starts |= {start.row: start for start in starts}
        if awaits_masks:
            self._awaits = step_plan
        else:
            self._answer(step_plan, NO_MASKS)

    def sample(self, masks):
        """Answer with masks."""
        self.asked_at.append(self.clock.now())
        self._answer(self._awaits, masks)

    def _answer(self, step_plan, masks):
        began = perf_counter_ns()
        rows = [entry.row for entry in step_plan.entries if entry.samples]
        token_ids = [self._random.randrange(VOCAB_SIZE - len(SPECIAL)) for _ in rows]
        for row, words in zip(masks.rows, masks.words, strict=True):
            allowed = np.flatnonzero(
                np.unpackbits(words.view(np.uint8), bitorder="little")[: VOCAB_SIZE - len(SPECIAL)]
            )
            token_ids[rows.index(row)] = int(self._random.choice(allowed))
        if self._report is None and any(start.sampling.logprobs is not None for start in self._starts.values()):
            logits = torch.randn((len(rows), VOCAB_SIZE), generator=torch.Generator().manual_seed(0))
            wanted = {row: Wanted(start.sequence_id, start.sampling.logprobs) for row, start in self._starts.items()}
            self._report = sampled_logprobs(logits, torch.tensor(token_ids), range(len(rows)), rows, wanted)
        self._results.append(token_ids)
        self.clock.taken_out += perf_counter_ns() - began

    def collect(self):
        """Hand the oldest answer over."""
        token_ids = self._results.popleft()
        self.ended_at.append(self.clock.now())
        return StepOutput(tuple(token_ids), self._report.read() if self._report else NOBODY)

    def forget(self):
        """Drop the answers."""
        self._results.clear()

    def is_alive(self):
        """Nothing can be lost."""
        return True

    def close(self):
        """Nothing is held."""


@define
class TimedMasks:
    """Makes masks, and notes how long that took.

    Attributes:
        took_us: Each time.
    """

    took_us: list = field(factory=list)
    _allowed_ids: AllowedIds = field(factory=AllowedIds)

    def of(self, matchers):
        """Make them."""
        began = perf_counter_ns()
        words = self._allowed_ids.of(matchers)
        self.took_us.append((perf_counter_ns() - began) / 1e3)
        return words


@define
class HostTimes:
    """Microseconds of a step, medians, and of what comes once, in milliseconds.

    Attributes:
        step_us: The host's time.
        late_us: From a step's tokens to the order to choose the next ones; None where no masks are awaited.
        masks_us: Of that, making masks.
        last_ms: The step that ends all outputs and makes results of them.
        reading_ms: Reading every log-probability of the results; None where there are none.
    """

    step_us: float
    late_us: float | None
    masks_us: float | None
    last_ms: float
    reading_ms: float | None


def host_times(variant, tokenizer):
    """Run a variant of the benchmark's work `sampling`."""
    (run,) = (each for each in runs_of("sampling", SIZE, VOCAB_SIZE - len(SPECIAL), 0) if each.variant == variant)
    limits = Limits(64, 256 * 17, 256, 16_384, 1_088)
    clock = Clock()
    executor = Answers(clock)
    engine = Engine(limits, executor, fcfs, tokenizer, depth=2)
    masks = engine.tracker._allowed_ids = TimedMasks()  # noqa: SLF001  only a benchmark wants to know
    intake = Intake(
        tokenizer=tokenizer,
        compile_grammar=Grammars(tokenizer, VOCAB_SIZE, (tokenizer.eos_token_id,)).compile,
        limits=limits,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(tokenizer.eos_token_id,),
        draw_seed=lambda: 0,
    )
    facts = [Facts()] * len(run.prompts)
    submissions = read_call(intake, run.prompts, run.params, facts, first_request_id=0, now_us=0, streams=False)
    times = []
    with engine.owning(submissions, [None] * len(run.prompts)) as ids:
        while engine.loop.has_unfinished:
            began = clock.now()
            engine.step()
            times.append(clock.now() - began)
        results = engine.take_finished(ids)
    began = clock.now()
    num_read = sum(
        len(position.values()) for result in results.values() for position in result.outputs[0].logprobs or ()
    )
    reading_ms = (clock.now() - began) / 1e6 if num_read else None
    asked = [at for at in executor.asked_at if at > executor.ended_at[0]]
    late = [at - max(end for end in executor.ended_at if end <= at) for at in asked[1:]]
    return HostTimes(
        step_us=median(times) / 1e3,
        late_us=median(late) / 1e3 if late else None,
        masks_us=median(masks.took_us) if late else None,
        last_ms=max(times[len(times) // 2 :]) / 1e6,
        reading_ms=reading_ms,
    )


@pytest.mark.parametrize("variant", VARIANTS)
def bench_host(benchmark, variant):
    """One variant after the other, in one process."""
    from given_tokenizer import given_tokenizer  # noqa: PLC0415  takes seconds

    tokenizer, found = given_tokenizer(FOLDER and Path(FOLDER), VOCAB_SIZE), []
    benchmark.pedantic(lambda: found.append(host_times(variant, tokenizer)), rounds=3 if IS_FULL else 1, iterations=1)
    print(f"\n{variant}", *found, sep="\n  ")
    if IS_FULL:
        about = {"benchmark": "host", "variant": variant, "tokenizer": "given" if FOLDER else "random"}
        append_record("host", about | {"repeats": [asdict(each) for each in found]})
