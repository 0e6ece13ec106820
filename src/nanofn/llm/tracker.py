"""The tracker: from effects to results. It owns what the core leaves out: token logs, text, parameters, seeds."""

from collections.abc import Iterable

from attrs import Factory, define, frozen

from nanofn.batch.row_start import RowStart
from nanofn.llm.clock import now_us
from nanofn.llm.output import CompletionOutput, RequestMetrics, RequestOutput, TextDelta
from nanofn.llm.summary import Tally
from nanofn.request import FinishReason, Request, RequestId, SequenceId, TokenId
from nanofn.sampling.params import SamplingParams
from nanofn.state.effects import Finished, Preempted, Started, TokensCommitted
from nanofn.state.engine_state import EngineState
from nanofn.state.events import Effect, Launched
from nanofn.state.sequence import Sequence
from nanofn.text.detokenizer import Detokenizer
from nanofn.text.tokenizer import Tokenizer


@frozen
class Submission:
    """A validated item of a call.

    Attributes:
        request: What the core gets.
        prompt: The prompt, if it was text.
        params: How to sample and how to end.
        seed: The noise's key, drawn if the caller gave none.
        streams: Whether text is wanted as it comes.
    """

    request: Request
    prompt: str | None
    params: SamplingParams
    seed: int
    streams: bool


@define(eq=False)
class Completion:
    """What one child has produced so far: the token log behind its sequence.

    Attributes:
        token_ids: Committed output tokens.
        num_cached_tokens: Prefix hit of its first start.
        num_preemptions: How often its sequence lost its blocks.
        has_started: Whether it ever got a row.
        finish_reason: Set when it ended.
        stop_token_id: What ended it, if a token did.
        detokenizer: Present where text is wanted as it comes.
        num_streamed: Tokens that went into text deltas.
    """

    token_ids: list[TokenId] = Factory(list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    has_started: bool = False
    finish_reason: FinishReason | None = None
    stop_token_id: TokenId | None = None
    detokenizer: Detokenizer | None = None
    num_streamed: int = 0

    @property
    def text_ids(self) -> list[TokenId]:
        """The tokens that make its text: what ended it is not part of it."""
        return self.token_ids if self.stop_token_id is None else self.token_ids[:-1]


@define(eq=False)
class Tracked:
    """A live request: its submission and its children's progress."""

    submission: Submission
    completions: tuple[Completion, ...]
    is_blamed: bool = False
    first_token_us: int | None = None


class Tracker:
    """Follows every live request through the effects, and hands out what is finished.

    Attributes:
        finished: Results not handed out yet, by request, in the order they ended.
        tally: Adds the run up.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.finished: dict[RequestId, RequestOutput] = {}
        self.tally = Tally()
        self._deltas: dict[RequestId, list[TextDelta]] = {}
        self._tokenizer = tokenizer
        self._tracked: dict[RequestId, Tracked] = {}
        self._owners: dict[SequenceId, tuple[Tracked, int]] = {}

    def track(self, submission: Submission, sequence_ids: Iterable[SequenceId]) -> None:
        """Follow a request that the core has just admitted."""
        params, ids = submission.params, tuple(sequence_ids)
        detokenizers = [
            Detokenizer(self._tokenizer, skip_special_tokens=params.skip_special_tokens) if submission.streams else None
            for _ in ids
        ]
        tracked = Tracked(submission, tuple([Completion(detokenizer=each) for each in detokenizers]))
        self._tracked[submission.request.request_id] = tracked
        self._owners |= {sequence_id: (tracked, child) for child, sequence_id in enumerate(ids)}

    def blame(self, request_id: RequestId) -> None:
        """Let a request's coming abort count as finish reason "error"."""
        self._tracked[request_id].is_blamed = True

    def row_start(self, sequence: Sequence) -> RowStart:
        """Say what a started sequence's row must know."""
        tracked, child = self._owners[sequence.sequence_id]
        outputs = tracked.completions[child].token_ids[: sequence.num_output_tokens]
        assert sequence.row is not None
        return RowStart(
            row=sequence.row,
            token_ids=(*sequence.request.prompt_token_ids, *outputs),
            temperature=tracked.submission.params.temperature,
            seed=tracked.submission.seed,
            child=child,
        )

    def absorb(self, state: EngineState, effects: tuple[Effect, ...]) -> None:
        """Take in an event's effects, in order, and the state they led to."""
        touched: dict[SequenceId, tuple[Tracked, int]] = {}
        for effect in effects:
            match effect:
                case TokensCommitted(sequence_ids, token_ids, _):
                    self._append(sequence_ids, token_ids)
                    touched |= {each: self._owners[each] for each in sequence_ids}
                case Started(sequence_id, num_cached_tokens):
                    tracked, child = self._owners[sequence_id]
                    completion = tracked.completions[child]
                    if not completion.has_started:
                        completion.has_started, completion.num_cached_tokens = True, num_cached_tokens
                case Preempted(sequence_id):
                    tracked, child = self._owners[sequence_id]
                    tracked.completions[child].num_preemptions += 1
                    self.tally.num_preemptions += 1
                case Finished(sequence_id):
                    touched[sequence_id] = self._end(effect)
                case Launched(step_plan):
                    self.tally.launched(step_plan, state)
                case _:
                    pass
        if touched:
            self.tally.committed(state)
        for tracked, child in touched.values():
            self._stream(tracked, child)
            if all(completion.finish_reason for completion in tracked.completions):
                request_id = tracked.submission.request.request_id
                if self._tracked.pop(request_id, None):
                    self.finished[request_id] = self.output(tracked)

    def _append(self, sequence_ids: tuple[SequenceId, ...], token_ids: tuple[TokenId, ...]) -> None:
        for sequence_id, token_id in zip(sequence_ids, token_ids, strict=True):
            tracked, child = self._owners[sequence_id]
            tracked.completions[child].token_ids.append(token_id)
            if tracked.first_token_us is None:
                tracked.first_token_us = now_us()

    def _end(self, effect: Finished) -> tuple[Tracked, int]:
        tracked, child = self._owners.pop(effect.sequence_id)
        completion = tracked.completions[child]
        del completion.token_ids[effect.num_output_tokens :]
        completion.finish_reason = "error" if tracked.is_blamed else effect.finish_reason
        completion.stop_token_id = effect.stop_token_id
        return tracked, child

    def _stream(self, tracked: Tracked, child: int) -> None:
        completion, request_id = tracked.completions[child], tracked.submission.request.request_id
        if completion.detokenizer is None:
            return
        text = completion.detokenizer.push(completion.text_ids[completion.num_streamed :])
        if completion.finish_reason is not None:
            text += completion.detokenizer.finish()
        token_ids = tuple(completion.token_ids[completion.num_streamed :])
        completion.num_streamed = len(completion.token_ids)
        delta = TextDelta(request_id, child, text, token_ids, completion.finish_reason)
        self._deltas.setdefault(request_id, []).append(delta)

    def take_deltas(self, request_ids: Iterable[RequestId]) -> list[TextDelta]:
        """Hand out the text that came for some requests since the last time."""
        return [delta for request_id in request_ids for delta in self._deltas.pop(request_id, ())]

    def output(self, tracked: Tracked) -> RequestOutput:
        """Freeze what a request has produced."""
        submission = tracked.submission
        request = submission.request
        return RequestOutput(
            request_id=request.request_id,
            prompt=submission.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=tuple([self._completion_output(tracked, child) for child in range(len(tracked.completions))]),
            finished=all(completion.finish_reason for completion in tracked.completions),
            prompt_logprobs=None,
            num_cached_tokens=tracked.completions[0].num_cached_tokens,
            metrics=RequestMetrics(
                arrival_time=request.arrival_us / 1e6,
                first_token_time=None if tracked.first_token_us is None else tracked.first_token_us / 1e6,
                finished_time=now_us() / 1e6,
                num_preemptions=sum(completion.num_preemptions for completion in tracked.completions),
            ),
        )

    def _completion_output(self, tracked: Tracked, child: int) -> CompletionOutput:
        completion, submission = tracked.completions[child], tracked.submission
        params, stop_token_id = submission.params, completion.stop_token_id
        text = ""
        if params.detokenize:
            text = self._tokenizer.decode(completion.text_ids, skip_special_tokens=params.skip_special_tokens)
        return CompletionOutput(
            index=child,
            text=text,
            token_ids=tuple(completion.token_ids),
            logprobs=None,
            cumulative_logprob=None,
            finish_reason=completion.finish_reason,
            stop_reason=stop_token_id if stop_token_id in (params.stop_token_ids or ()) else None,
            seed=submission.seed,
        )
