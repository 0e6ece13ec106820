"""The tracker: from effects to results. It owns what the core leaves out: token logs, text, parameters, seeds."""

from collections.abc import Iterable, Mapping

from attrs import Factory, define, frozen

from nanofn.batch.masks import Masks
from nanofn.batch.row_sampling import RowSampling
from nanofn.batch.row_start import RowStart
from nanofn.batch.step_output import NOBODY, StepOutput
from nanofn.llm.clock import now_us
from nanofn.llm.completion import Completion
from nanofn.llm.logprobs import Logprob, Logprobs
from nanofn.llm.output import RequestMetrics, RequestOutput, TextDelta
from nanofn.llm.summary import Tally
from nanofn.request import Request, RequestId, Row, SequenceId, TokenId
from nanofn.sampling.params import SamplingParams
from nanofn.state.effects import Finished, Preempted, Started, TokensCommitted
from nanofn.state.engine_state import EngineState
from nanofn.state.events import Effect, Launched
from nanofn.state.sequence import Sequence
from nanofn.state.step_plan import StepPlan
from nanofn.text.detokenizer import Detokenizer
from nanofn.text.grammar import AllowedIds, Grammar, Matcher
from nanofn.text.stop_strings import StopStrings
from nanofn.text.tokenizer import Tokenizer


@frozen
class Submission:
    """A validated item of a call.

    Attributes:
        request: What the core gets.
        prompt: The prompt, if it was text.
        params: How to sample and how to end.
        sampling: What a device row gets of them.
        seed: The noise's key, drawn if the caller gave none.
        streams: Whether text is wanted as it comes.
        grammar: What the output must follow.
    """

    request: Request
    prompt: str | None
    params: SamplingParams
    sampling: RowSampling
    seed: int
    streams: bool
    grammar: Grammar | None = None


@define(eq=False)
class Tracked:
    """A live request: its submission and its children's progress."""

    submission: Submission
    completions: tuple[Completion, ...]
    prompt_logprobs: dict[int, bytes] = Factory(dict)
    is_blamed: bool = False
    first_token_us: int | None = None


class Tracker:
    """Follows every live request through the effects, and hands out what is finished.

    Attributes:
        finished: Results not handed out yet, by request, in the order they ended.
        tally: Adds the run up.
    """

    def __init__(self, tokenizer: Tokenizer, allowed_ids: AllowedIds | None = None) -> None:
        self.finished: dict[RequestId, RequestOutput] = {}
        self.tally = Tally()
        self._deltas: dict[RequestId, list[TextDelta]] = {}
        self._matches: list[tuple[SequenceId, int]] = []
        self._tokenizer = tokenizer
        self._tracked: dict[RequestId, Tracked] = {}
        self._owners: dict[SequenceId, tuple[Tracked, Completion]] = {}
        self._matchers: dict[SequenceId, Matcher] = {}
        self._allowed_ids = allowed_ids or AllowedIds()
        self._logprobs: Mapping[SequenceId, bytes] = NOBODY
        # Sequences whose text is read as it comes; the others are looked at when they end.
        self._read_at_once: set[SequenceId] = set()
        # Those that have got tokens, or ended, since texts were last read.
        self._touched: dict[SequenceId, tuple[Tracked, Completion]] = {}

    def track(self, submission: Submission, sequence_ids: Iterable[SequenceId]) -> None:
        """Follow a request that the core has just admitted."""
        completions = tuple([self._completion(submission, *each) for each in enumerate(sequence_ids)])
        tracked = Tracked(submission, completions)
        self._tracked[submission.request.request_id] = tracked
        self._owners |= {completion.sequence_id: (tracked, completion) for completion in completions}
        if submission.grammar is not None:
            self._matchers |= {each.sequence_id: submission.grammar.start() for each in completions}
        if submission.grammar is not None or submission.streams or submission.params.stop:
            self._read_at_once |= {each.sequence_id for each in completions}

    def _completion(self, submission: Submission, index: int, sequence_id: SequenceId) -> Completion:
        params, detokenizer = submission.params, None
        if params.detokenize and (submission.streams or params.stop):
            detokenizer = Detokenizer(self._tokenizer, skip_special_tokens=params.skip_special_tokens)
        search = StopStrings(params.stop or (), is_included=params.include_stop_str_in_output)
        return Completion(index, sequence_id, params, self._tokenizer, detokenizer, search)

    def blame(self, request_id: RequestId) -> None:
        """Let a request's coming abort count as finish reason "error"."""
        self._tracked[request_id].is_blamed = True

    def row_start(self, sequence: Sequence) -> RowStart:
        """Say what a started sequence's row must know."""
        tracked, completion = self._owners[sequence.sequence_id]
        outputs = completion.token_ids[: sequence.num_output_tokens]
        assert sequence.row is not None
        return RowStart(
            row=sequence.row,
            sequence_id=sequence.sequence_id,
            token_ids=(*sequence.request.prompt_token_ids, *outputs),
            num_prompt_tokens=sequence.request.num_prompt_tokens,
            sampling=tracked.submission.sampling,
            seed=tracked.submission.seed,
            child=completion.index,
        )

    def awaits_masks(self, step_plan: StepPlan) -> bool:
        """Tell whether any row that samples follows a grammar."""
        return bool(self._matchers) and bool(self._followers(step_plan))

    def masks(self, step_plan: StepPlan) -> Masks:
        """Say which ids may come next where an output follows a grammar. What comes after its end is dropped anyway."""
        going_on = {row: matcher for row, matcher in self._followers(step_plan).items() if not matcher.is_over}
        return Masks(tuple(going_on), self._allowed_ids.of(list(going_on.values())))

    def _followers(self, step_plan: StepPlan) -> dict[Row, Matcher]:
        entries = step_plan.entries
        sampled = zip(entries.sequence_id, entries.row, entries.samples, strict=True)
        return {row: self._matchers[key] for key, row, samples in sampled if samples and key in self._matchers}

    def read(self, output: StepOutput) -> None:
        """Take log-probabilities; those of tokens that are not committed next are dropped."""
        self._logprobs = output.logprobs
        for each in output.prompt_logprobs:
            if each.sequence_id in self._owners:
                tracked, _ = self._owners[each.sequence_id]
                tracked.prompt_logprobs |= dict(enumerate(each.records, each.first_position))

    def absorb(self, state: EngineState, effects: tuple[Effect, ...]) -> None:
        """Take in an event's effects, in order, and the state they led to."""
        touched = self._touched
        for effect in effects:
            match effect:
                case TokensCommitted(sequence_ids, token_ids, _):
                    self._append(sequence_ids, token_ids)
                    self.tally.committed(state)
                    if self._read_at_once:
                        touched |= {each: self._owners[each] for each in sequence_ids if each in self._read_at_once}
                case Started(sequence_id, num_cached_tokens):
                    _, completion = self._owners[sequence_id]
                    if not completion.has_started:
                        completion.has_started, completion.num_cached_tokens = True, num_cached_tokens
                case Preempted(sequence_id):
                    self._owners[sequence_id][1].num_preemptions += 1
                    self.tally.num_preemptions += 1
                case Finished(sequence_id):
                    touched[sequence_id] = self._end(effect)
                    self.tally.committed(state)
                case Launched(step_plan):
                    self.tally.launched(step_plan, state)
                case _:
                    pass

    def deliver(self) -> None:
        """Make texts, streams and results of all that was absorbed."""
        touched, self._touched = self._touched, {}
        for tracked, completion in touched.values():
            self._settle(tracked, completion)

    def _settle(self, tracked: Tracked, completion: Completion) -> None:
        """Bring text, stream and result up to date with the tokens."""
        matcher = self._matchers.get(completion.sequence_id)
        is_over = matcher is not None and matcher.is_over
        if completion.finish_reason is None and (completion.read_text() or is_over):
            # An event that the loop has yet to apply.
            self._matches.append((completion.sequence_id, len(completion.token_ids)))
        if tracked.submission.streams:
            self._stream(tracked, completion)
        request_id = tracked.submission.request.request_id
        if all(each.finish_reason for each in tracked.completions) and request_id in self._tracked:
            del self._tracked[request_id]
            self.finished[request_id] = self.output(tracked)

    def _append(self, sequence_ids: tuple[SequenceId, ...], token_ids: tuple[TokenId, ...]) -> None:
        owners, matchers, logprobs = self._owners, self._matchers, self._logprobs
        for sequence_id, token_id in zip(sequence_ids, token_ids, strict=True):
            tracked, completion = owners[sequence_id]
            completion.token_ids.append(token_id)
            if tracked.first_token_us is None:
                tracked.first_token_us = now_us()
        if matchers:
            for sequence_id, token_id in zip(sequence_ids, token_ids, strict=True):
                if sequence_id in matchers:
                    matchers[sequence_id].advance(token_id)
        if logprobs:
            for sequence_id in sequence_ids:
                if sequence_id in logprobs:
                    owners[sequence_id][1].logprobs.append(logprobs[sequence_id])

    def _end(self, effect: Finished) -> tuple[Tracked, Completion]:
        tracked, completion = self._owners.pop(effect.sequence_id)
        matcher = self._matchers.pop(effect.sequence_id, None)
        self._read_at_once.discard(effect.sequence_id)
        has_failed = tracked.is_blamed or (matcher is not None and matcher.has_failed)
        reason = "error" if has_failed else effect.finish_reason
        completion.end(reason, effect.stop_token_id, effect.num_output_tokens)
        return tracked, completion

    def take_matches(self) -> list[tuple[SequenceId, int]]:
        """Hand out which sequences have come to a stop string, each with its number of output tokens."""
        matches, self._matches = self._matches, []
        return matches

    def _stream(self, tracked: Tracked, completion: Completion) -> None:
        request_id = tracked.submission.request.request_id
        token_ids = tuple(completion.token_ids[completion.num_streamed :])
        completion.num_streamed = len(completion.token_ids)
        delta = TextDelta(request_id, completion.index, completion.next_piece(), token_ids, completion.finish_reason)
        self._deltas.setdefault(request_id, []).append(delta)

    def take_deltas(self, request_ids: Iterable[RequestId]) -> list[TextDelta]:
        """Hand out the text that came for some requests since the last time."""
        return [delta for request_id in request_ids for delta in self._deltas.pop(request_id, ())]

    def output(self, tracked: Tracked) -> RequestOutput:
        """Freeze what a request has produced."""
        submission, completions = tracked.submission, tracked.completions
        request = submission.request
        return RequestOutput(
            request_id=request.request_id,
            prompt=submission.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=tuple([completion.output(submission.seed) for completion in completions]),
            finished=all(completion.finish_reason for completion in completions),
            prompt_logprobs=self._prompt_logprobs(tracked),
            num_cached_tokens=completions[0].num_cached_tokens,
            metrics=RequestMetrics(
                arrival_time=request.arrival_us / 1e6,
                first_token_time=None if tracked.first_token_us is None else tracked.first_token_us / 1e6,
                finished_time=now_us() / 1e6,
                num_preemptions=sum(completion.num_preemptions for completion in completions),
            ),
        )

    def _prompt_logprobs(self, tracked: Tracked) -> Logprobs[Mapping[int, Logprob] | None] | None:
        """Report what is known: of a prompt that was cut short, its first positions."""
        if tracked.submission.params.prompt_logprobs is None:
            return None
        found, prompt = tracked.prompt_logprobs, tracked.submission.request.prompt_token_ids
        return Logprobs(self._tokenizer, [found[position] for position in sorted(found)], unknown=prompt[:1])
