"""A loop without a model: a fake executor that sees what a device sees, and the tracker behind it."""

from collections import deque
from types import SimpleNamespace

import numpy as np

from nanofn.batch.row_sampling import RowSampling
from nanofn.batch.step_output import StepOutput
from nanofn.lab.shadow import ShadowExecutor
from nanofn.llm.loop import Loop
from nanofn.llm.tracker import Submission, Tracker
from nanofn.policy import fcfs
from nanofn.request import Request, RequestId
from nanofn.sampling.params import SamplingParams
from nanofn.state.effects import Admitted
from nanofn.state.events import RequestArrived


class InjectedError(Exception):
    """What a failing executor raises."""


class FakeExecutor:
    """The shadow memory behind the executor's interface; the calls numbered in `fails_at` raise."""

    def __init__(self, limits, *, fails_at=frozenset(), error=InjectedError):
        self.shadow = ShadowExecutor(limits.block_size)
        self.fails_at, self.error = fails_at, error
        self.num_calls = 0
        self.num_masks = 0
        self.prompts = {}
        self.awaits_masks = None
        self.results = deque()
        self.is_closed = False

    def launch(self, step_plan, starts, *, awaits_masks=False):
        self._count()
        assert self.awaits_masks is None
        by_row = {start.row: start for start in starts}
        started = {
            entry.sequence_id: SimpleNamespace(
                sequence_id=entry.sequence_id,
                row=entry.row,
                child=by_row[entry.row].child,
                request=SimpleNamespace(cache_keys=()),
            )
            for entry in step_plan.entries
            if entry.row in by_row
        }
        rows = {sequence_id: record.row for sequence_id, record in started.items()}
        self.shadow.launch(SimpleNamespace(running=started), step_plan, lambda each: by_row[rows[each]].token_ids)
        token_ids = self.shadow.results.pop()[1].token_ids
        self.prompts |= {start.row: start.num_prompt_tokens for start in starts}
        if awaits_masks:
            self.awaits_masks = step_plan, token_ids
        else:
            self.results.append(token_ids)

    def sample(self, masks):
        """A mask of `FakeMatcher` tells how many output tokens it is for."""
        self._count()
        (step_plan, token_ids), self.awaits_masks = self.awaits_masks, None
        numbers = {
            entry.row: entry.first_position + entry.num_tokens - self.prompts[entry.row]
            for entry in step_plan.entries
            if entry.samples
        }
        assert masks.words.tolist() == [[numbers[row]] for row in masks.rows]
        self.num_masks += len(masks.rows)
        self.results.append(token_ids)

    def collect(self):
        self._count()
        return StepOutput(self.results.popleft())

    def forget(self):
        self.results.clear()
        self.awaits_masks = None

    def is_alive(self):
        return True

    def close(self):
        self.is_closed = True

    def _count(self):
        self.num_calls += 1
        if self.num_calls in self.fails_at:
            raise self.error(f"call {self.num_calls}")


class FakeTokenizer:
    """One letter per token id."""

    def decode(self, token_ids, *, skip_special_tokens=True):
        return "".join(chr(97 + token_id) for token_id in token_ids)


class FakeMatcher:
    """Allows everything; its mask is the number of tokens that it has taken."""

    is_over = has_failed = False

    def __init__(self):
        self.num_tokens = 0

    def advance(self, token_id):
        self.num_tokens += 1


class FakeAllowedIds:
    """Makes masks of `FakeMatcher`s: one word each."""

    def of(self, matchers):
        return np.array([[matcher.num_tokens] for matcher in matchers], dtype=np.uint32)


FREE_FORM = SimpleNamespace(start=FakeMatcher)
"""A grammar of anything."""


class Engine:
    """A loop with its tracker and executor."""

    def __init__(self, limits, *, policy=fcfs, depth=1, fails_at=frozenset(), error=InjectedError):
        self.executor = FakeExecutor(limits, fails_at=fails_at, error=error)
        self.tracker = Tracker(FakeTokenizer(), FakeAllowedIds())
        self.loop = Loop(
            limits,
            self.executor,
            policy,
            depth=depth,
            observer=self.tracker,
        )

    def add(self, request_id, prompt, *, grammar=None, **fields):
        """Queue a request; its result appears in `tracker.finished`."""
        request = Request(RequestId(request_id), tuple(prompt), **fields)
        params = SamplingParams(temperature=0.0, n=request.n)
        (admitted,) = self.loop.apply(RequestArrived(request))
        assert isinstance(admitted, Admitted)
        self.tracker.track(
            Submission(request, None, params, RowSampling(temperature=0.0), 0, False, grammar), admitted.sequence_ids
        )
        return request
