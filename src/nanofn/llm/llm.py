"""LLM: the engine as a caller holds it."""

import random
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, Unpack

from nanofn.errors import StepError, UsageError
from nanofn.llm.assemble import assemble
from nanofn.llm.clock import now_us
from nanofn.llm.intake import Facts, Intake, PromptLike, per_prompt, read_call, split_prompts
from nanofn.llm.loop import Loop
from nanofn.llm.options import OptionNames, read_options
from nanofn.llm.output import RequestOutput, TextDelta
from nanofn.llm.progress import Progress
from nanofn.llm.tracker import Submission, Tracker
from nanofn.request import Hint, RequestId
from nanofn.sampling.params import SamplingParams
from nanofn.state.effects import Admitted
from nanofn.state.engine_state import EngineState
from nanofn.state.events import HintChanged, RequestAborted, RequestArrived
from nanofn.text.tokenizer import Tokenizer


class LLM:
    """A model, ready to generate.

    Use it as a context manager, or call `close`. It belongs to the thread that made it.
    """

    def __init__(self, model: str | Path | None = None, **options: Unpack[OptionNames]) -> None:
        """Load a model and make room for its K/V cache.

        Args:
            model: A folder with a checkpoint; None is the small model that comes with nanofn.
            options: Keywords, each with its default:
                tokenizer: (None) Another folder for the tokenizer.
                dtype: ("auto") "float32", "bfloat16" or "float16", of weights and K/V; "auto" is the checkpoint's own on a
                    GPU and float32 on a CPU.
                device: ("auto") "cpu" or "cuda"; "auto" is a GPU if there is one.
                max_model_len: (None) Most tokens of a sequence, prompt and output together; None is what the model and
                    the memory allow, whichever is less.
                max_num_seqs: (256) Most sequences running at once.
                max_num_batched_tokens: (16384) Most tokens of one step.
                block_size: (64) Tokens per K/V block.
                num_kv_blocks: (None) Blocks of the K/V pool; None is what fits.
                gpu_memory_utilization: (0.9) Share of the GPU's memory that weights and K/V may take.
                enable_prefix_caching: (True) Whether computed prefixes are kept for reuse.
                enforce_eager: (False) Never capture graphs.
                seed: (None) Makes the seeds drawn for requests without one repeatable.
                depth: (2) Most steps in flight.
                policy: (fcfs) Decides who runs; see `nanofn.policy`.
                revision, record, tensor_parallel_size, deterministic: Not built yet.

        Raises:
            TypeError: An option is unknown.
            ConfigError: An option is wrong or does not fit, or the checkpoint cannot be loaded.
        """
        chosen = read_options({"model": model, **options})
        parts = assemble(chosen)
        self._thread = threading.get_ident()
        self._is_closed = False
        self._executor = parts.executor
        self._default_params = parts.default_params
        self.tokenizer: Tokenizer = parts.tokenizer
        self._tracker = Tracker(parts.tokenizer)
        self._loop = Loop(
            parts.limits,
            parts.executor,
            chosen.policy,
            depth=chosen.depth,
            row_start=self._tracker.row_start,
            deliver=self._tracker.absorb,
        )
        seeds = random.Random(chosen.seed)  # noqa: S311  seeds need no secrecy
        self._intake = Intake(
            encode=parts.tokenizer.encode,
            limits=parts.limits,
            vocab_size=parts.vocab_size,
            eos_token_ids=parts.eos_token_ids,
            draw_seed=lambda: seeds.getrandbits(64),
        )
        self._next_request_id = 0
        self._owned: set[RequestId] = set()
        self._failed: frozenset[int] = frozenset()

    @property
    def state(self) -> EngineState:
        """The engine's state: a value, safe to keep and to look at."""
        return self._loop.state

    @property
    def has_unfinished(self) -> bool:
        """Whether any request lives."""
        return self._loop.has_unfinished

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of a call that gives none: the checkpoint's own, as far as they are built."""
        return self._default_params

    def generate(
        self,
        prompts: PromptLike | Iterable[PromptLike],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | list[int] = 0,
        client: str | list[str] = "",
        deadline: float | list[float] | None = None,
        hint: Hint | list[Hint] | None = None,
    ) -> list[RequestOutput]:
        """Generate text for one prompt or many.

        Args:
            prompts: Text, token ids or {"prompt_token_ids": ids}; or an iterable of such.
            params: For all prompts, or one each; None uses `get_default_sampling_params()`.
            use_tqdm: Show progress, if stderr is a terminal.
            priority: For the policy: one value, or a list with one per prompt. So are the others.
            client: Whom to account the service to.
            deadline: Wanted completion, in seconds from now.
            hint: A predictor's word about each prompt's children.

        Returns:
            One result per prompt, in order; a single prompt gives a list of one.

        Raises:
            RequestError: A prompt or its parameters are wrong. Every bad one is listed, and nothing was queued.
        """
        facts = {"priority": priority, "client": client, "deadline": deadline, "hint": hint}
        submissions, hints = self._read(prompts, params, facts, streams=False)
        results: dict[RequestId, RequestOutput] = {}
        with Progress(len(submissions), is_wanted=use_tqdm) as progress, self._owning(submissions, hints) as ids:
            while len(results) < len(ids):
                self._step_patiently()
                results |= self._take_finished(ids)
                progress.update(len(results), self._tracker.num_prefilled_tokens, self._tracker.num_output_tokens)
        return [results[request_id] for request_id in ids]

    def stream(
        self,
        prompts: PromptLike | Iterable[PromptLike],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | list[int] = 0,
        client: str | list[str] = "",
        deadline: float | list[float] | None = None,
        hint: Hint | list[Hint] | None = None,
    ) -> Iterator[TextDelta]:
        """Generate like `generate`, and yield text as it comes. Closing the iterator aborts what is unfinished.

        Yields:
            Pieces of text; `request_id` counts up from the first prompt's.
        """
        facts = {"priority": priority, "client": client, "deadline": deadline, "hint": hint}
        return self._deltas(*self._read(prompts, params, facts, streams=True))

    def _deltas(self, submissions: list[Submission], hints: list[Hint | None]) -> Iterator[TextDelta]:
        with self._owning(submissions, hints) as ids:
            num_finished = 0
            while num_finished < len(ids):
                self._check_usable()
                self._step_patiently()
                yield from self._tracker.take_deltas(ids)
                num_finished += len(self._take_finished(ids))

    def add_request(
        self,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        client: str = "",
        deadline: float | None = None,
        hint: Hint | None = None,
    ) -> int:
        """Queue one prompt for `step`.

        Returns:
            The request's number, as `abort` and results name it.
        """
        facts = {"priority": priority, "client": client, "deadline": deadline, "hint": hint}
        submissions, hints = self._read([prompt], params, facts, streams=False)
        return self._submit(submissions, hints)[0]

    def step(self) -> list[RequestOutput]:
        """Run one step: launch what fits, wait for the oldest result, take it in.

        Returns:
            The results of hand-added requests that have finished since the last call. An idle engine returns [].

        Raises:
            StepError: The step failed; its requests are still live.
        """
        self._check_usable()
        self._loop.step()
        return list(self._take_finished(self._tracker.finished.keys() - self._owned).values())

    def abort(self, request_id: int) -> None:
        """End a request now; its result has finish reason "abort" and the text so far. Twice is once."""
        self._check_usable()
        self._loop.apply(RequestAborted(RequestId(request_id)))

    def close(self) -> None:
        """Give all memory back. Twice is once; live requests are lost."""
        if not self._is_closed:
            self._is_closed = True
            self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, submissions: list[Submission], hints: list[Hint | None]) -> list[RequestId]:
        for submission, hint in zip(submissions, hints, strict=True):
            (admitted,) = self._loop.apply(RequestArrived(submission.request))
            assert isinstance(admitted, Admitted), admitted
            self._tracker.track(submission, admitted.sequence_ids)
            if hint is not None:
                for sequence_id in admitted.sequence_ids:
                    self._loop.apply(HintChanged(sequence_id, hint))
        return [submission.request.request_id for submission in submissions]

    @contextmanager
    def _owning(self, submissions: list[Submission], hints: list[Hint | None]) -> Iterator[tuple[RequestId, ...]]:
        """Queue the requests of one call, and leave nothing of them behind whatever happens."""
        ids = tuple(self._submit(submissions, hints))
        self._owned |= set(ids)
        try:
            yield ids
        finally:
            for request_id in ids:
                self._loop.apply(RequestAborted(request_id))
            self._take_finished(ids)
            self._tracker.take_deltas(ids)
            self._owned -= set(ids)

    def _take_finished(self, request_ids: Container[RequestId]) -> dict[RequestId, RequestOutput]:
        finished = self._tracker.finished
        taken = [request_id for request_id in tuple(finished) if request_id in request_ids]
        return {request_id: finished.pop(request_id) for request_id in taken}

    def _read(
        self, prompts: Any, params: Any, facts: dict[str, Any], *, streams: bool
    ) -> tuple[list[Submission], list[Hint | None]]:
        self._check_usable()
        items = split_prompts(prompts)
        if isinstance(params, Sequence):
            params = list(params)
        per_item = per_prompt(self._default_params if params is None else params, len(items), "SamplingParams")
        columns = [per_prompt(value, len(items), name) for name, value in facts.items()]
        told = [Facts(*values) for values in zip(*columns, strict=True)]
        first = self._next_request_id
        submissions = read_call(
            self._intake, items, per_item, told, first_request_id=first, now_us=now_us(), streams=streams
        )
        self._next_request_id += len(items)
        return submissions, [fact.hint for fact in told]

    def _step_patiently(self) -> None:
        """Step; after a failure go on, but end with "error" what two failed steps in a row have named."""
        try:
            self._loop.step()
        except StepError as error:
            named = frozenset(error.request_ids)
            for request_id in map(RequestId, sorted(named & self._failed)):
                self._tracker.blame(request_id)
                self._loop.apply(RequestAborted(request_id))
            self._failed = named - self._failed
        else:
            self._failed = frozenset()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise UsageError("this LLM is closed; make a new one")
        if threading.get_ident() != self._thread:
            raise UsageError(
                "this LLM was made in another thread; call it from there, or pass prompts to that thread through a queue"
            )
