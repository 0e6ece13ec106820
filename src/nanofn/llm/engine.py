"""Engine: requests in, results out. The loop and the tracker, and who owns which request."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nanofn.config import Limits
from nanofn.device.executor import Executor
from nanofn.errors import EngineDeadError, StepError
from nanofn.event_log import LogWriter
from nanofn.llm.interrupts import held_back
from nanofn.llm.loop import Loop
from nanofn.llm.output import RequestOutput, TextDelta
from nanofn.llm.tracker import Submission, Tracker
from nanofn.request import Hint, RequestId
from nanofn.state.decision import Policy
from nanofn.state.effects import Admitted
from nanofn.state.events import Effect, Event, HintChanged, RequestAborted, RequestArrived, StopStringMatched
from nanofn.state.persistent import sorted_items
from nanofn.text.tokenizer import Tokenizer

logger = logging.getLogger("nanofn")


class Engine:
    """Runs validated requests, those of calls and those added by hand side by side.

    Attributes:
        loop: Holds the state.
        tracker: Holds texts and results.
        is_dead: Whether the device is lost.
    """

    def __init__(
        self,
        limits: Limits,
        executor: Executor,
        policy: Policy[Any],
        tokenizer: Tokenizer,
        *,
        depth: int,
        log: LogWriter | None = None,
    ) -> None:
        """Start with nothing. Executor and log stay the caller's to close."""
        self.tracker = Tracker(tokenizer)
        self.is_dead = False
        self._executor = executor
        self.loop = Loop(
            limits,
            executor,
            policy,
            depth=depth,
            observer=self.tracker,
            record=None if log is None else _recorder(log),
        )
        self._owned: set[RequestId] = set()
        self._failed: frozenset[int] = frozenset()

    @property
    def has_unfinished(self) -> bool:
        """Whether any request lives, or has a result that `take_finished` would hand out."""
        return self.loop.has_unfinished or any(each not in self._owned for each in self.tracker.finished)

    def submit(self, submissions: Sequence[Submission], hints: Sequence[Hint | None]) -> tuple[RequestId, ...]:
        """Queue validated requests, each with what a predictor says of its children."""
        for submission, hint in zip(submissions, hints, strict=True):
            (admitted,) = self.loop.apply(RequestArrived(submission.request))
            assert isinstance(admitted, Admitted), admitted
            self.tracker.track(submission, admitted.sequence_ids)
            if hint is not None:
                for sequence_id in admitted.sequence_ids:
                    self.loop.apply(HintChanged(sequence_id, hint))
        return tuple([submission.request.request_id for submission in submissions])

    @contextmanager
    def owning(self, submissions: Sequence[Submission], hints: Sequence[Hint | None]) -> Iterator[frozenset[RequestId]]:
        """Queue the requests of one call, and leave nothing of them behind, whatever happens."""
        ids = frozenset([submission.request.request_id for submission in submissions])
        self._owned |= ids
        try:
            self.submit(submissions, hints)
            yield ids
        finally:
            self.abort(ids)
            self.take_finished(ids)
            self.take_deltas(ids)
            self._owned -= ids

    def step(self) -> None:
        """Run one step. Ctrl-C waits for its end.

        Raises:
            StepError: It failed; its requests are still live.
            EngineDeadError: It failed, and the device is lost. It carries every result that nobody has taken.
        """
        try:
            with held_back():
                self.loop.step()
                for sequence_id, num_output_tokens in self.tracker.take_matches():
                    self.loop.apply(StopStringMatched(sequence_id, num_output_tokens))
        except StepError as error:
            if self._executor.is_alive():
                raise
            self.is_dead = True
            state = self.loop.state
            self._give_up([request_id for request_id, _ in sorted_items(state.by_request)])
            cause = error.__cause__ or error
            raise EngineDeadError(state, tuple(self.tracker.finished.values()), cause) from cause

    def _give_up(self, request_ids: Iterable[RequestId]) -> None:
        """End live requests with finish reason "error" and the text they have."""
        for request_id in sorted(request_ids):
            self.tracker.blame(request_id)
            self.abort([request_id])

    def step_patiently(self) -> None:
        """Run one step; after a failure go on, but end with "error" what two failed steps in a row have named."""
        try:
            self.step()
        except StepError as error:
            named = frozenset(error.request_ids)
            again = sorted(named & self._failed)
            logger.warning("%s%s", error, f"; failed twice in a row, and given up: {again}" if again else "")
            self._give_up(map(RequestId, again))
            self._failed = named - self._failed
        else:
            self._failed = frozenset()

    def abort(self, request_ids: Collection[RequestId]) -> None:
        """End requests; those that are not live are passed over."""
        for request_id in sorted(request_ids):
            if request_id in self.loop.state.by_request:
                self.loop.apply(RequestAborted(request_id))

    def take_finished(self, request_ids: Collection[RequestId] | None = None) -> dict[RequestId, RequestOutput]:
        """Hand out finished results: those of some requests, or all that no call owns."""
        finished = self.tracker.finished
        taken = [
            request_id
            for request_id in finished
            if (request_id not in self._owned if request_ids is None else request_id in request_ids)
        ]
        return {request_id: finished.pop(request_id) for request_id in taken}

    def take_deltas(self, request_ids: Collection[RequestId]) -> list[TextDelta]:
        """Hand out the text that came for some requests since the last time."""
        return self.tracker.take_deltas(request_ids)


def _recorder(log: LogWriter) -> Callable[[Event, tuple[Effect, ...]], None]:
    """Write events to a log, as long as that is possible. No method of the engine's: the loop's hold on it would be a cycle."""
    is_written = True

    def record(event: Event, effects: tuple[Effect, ...]) -> None:
        nonlocal is_written
        if not is_written:
            return
        try:
            log.append(event, effects)
        except Exception:
            logger.warning("%s cannot be written: the log ends here, the run goes on", log.path, exc_info=True)
            is_written = False

    return record
