"""LLM: the engine as a caller holds it."""

import os
import random
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from nanofn.errors import EngineDeadError, Interrupted, UsageError
from nanofn.llm.assemble import assemble
from nanofn.llm.clock import now_us
from nanofn.llm.engine import Engine
from nanofn.llm.facts import PolicyFacts, per_prompt, read_facts
from nanofn.llm.intake import Intake, PromptLike, read_call, render_conversations, split_prompts
from nanofn.llm.options import OptionNames, read_options
from nanofn.llm.output import RequestOutput, TextDelta
from nanofn.llm.progress import Progress
from nanofn.llm.reasoning import answers
from nanofn.llm.summary import RunSummary
from nanofn.llm.tracker import Submission
from nanofn.request import Hint, RequestId
from nanofn.sampling.params import SamplingParams
from nanofn.state.effects import PrefixCacheCleared
from nanofn.state.engine_state import EngineState
from nanofn.state.events import PrefixCacheReset
from nanofn.text.grammar import Grammars
from nanofn.text.tokenizer import Message, Tokenizer

ParamsLike = SamplingParams | Sequence[SamplingParams] | None
"""For all prompts, or one each; None is the checkpoint's own defaults."""


class LLM:
    """A model, ready to generate; `tokenizer` is its tokenizer.

    Use it as a context manager, or call `close`. It belongs to the thread and the process that made it.
    """

    def __init__(self, model: str | Path | None = None, **options: Unpack[OptionNames]) -> None:
        """Load a model and make room for its K/V cache.

        Args:
            model: A folder, a GGUF file, or `owner/name` on the hub; None is the small model that comes with nanofn.
            options: Keywords, each with its default:
                tokenizer, revision: (None) Another place for the tokenizer; a branch, tag or commit on the hub.
                dtype: ("auto") "float32", "bfloat16" or "float16", of weights and K/V; "auto" is the checkpoint's own
                    on a GPU and float32 on a CPU.
                device: ("auto") "cpu" or "cuda"; "auto" is a GPU if there is one.
                load_format: ("auto") "dummy" makes random weights; a folder with config and tokenizer is enough.
                max_model_len: (None) Most tokens of a sequence, prompt and output together; None is what the model
                    and the memory allow, whichever is less.
                max_num_seqs: (256) Most sequences running at once.
                max_num_batched_tokens: (16384) Most tokens of one step.
                block_size: (64) Tokens per K/V block.
                num_kv_blocks: (None) Blocks of the K/V pool; None is what fits.
                gpu_memory_utilization: (0.9) Share of the GPU's memory that may be in use, by other processes too.
                enable_prefix_caching: (True) Whether computed prefixes are kept for reuse.
                enforce_eager: (False) Never capture graphs.
                seed: (None) Makes the seeds drawn for requests without one repeatable.
                depth: (2) Most steps in flight.
                policy: (fcfs) Decides who runs; see `nanofn.policy`.
                record: (None) A file for the event log of everything that happens; `nanofn replay` repeats it.
                tensor_parallel_size, deterministic: Not built yet.

        Raises:
            TypeError: An option is unknown.
            ConfigError: An option is wrong or does not fit, or the checkpoint cannot be loaded.
        """
        chosen = read_options({"model": model, **options})
        parts = assemble(chosen)
        self.tokenizer: Tokenizer = parts.tokenizer
        self._owner = (os.getpid(), threading.get_ident())
        self._is_closed = False
        self._executor = parts.executor
        self._default_params = parts.default_params
        self._log = parts.log
        self._engine = Engine(
            parts.limits, parts.executor, chosen.policy, parts.tokenizer, depth=chosen.depth, log=self._log
        )
        seeds = random.Random(chosen.seed)  # noqa: S311  seeds need no secrecy
        self._intake = Intake(
            tokenizer=parts.tokenizer,
            compile_grammar=Grammars(parts.tokenizer, parts.vocab_size, parts.eos_token_ids).compile,
            limits=parts.limits,
            vocab_size=parts.vocab_size,
            eos_token_ids=parts.eos_token_ids,
            draw_seed=lambda: seeds.getrandbits(64),
        )
        self._next_request_id = 0

    @property
    def state(self) -> EngineState:
        """The engine's state: a value, safe to keep and to look at."""
        return self._engine.loop.state

    @property
    def has_unfinished(self) -> bool:
        """Whether any request lives, or `step` has a result to hand out."""
        return self._engine.has_unfinished

    @property
    def is_usable(self) -> bool:
        """Whether it is neither closed nor has lost its device."""
        return not self._is_closed and not self._engine.is_dead

    def summary(self) -> RunSummary:
        """Sum up what the engine has done so far: rates, batch sizes, K/V use."""
        return self._engine.tracker.tally.summary()

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of a call that gives none: the checkpoint's own, as far as they are built."""
        return self._default_params

    def get_tokenizer(self) -> Any:
        """The tokenizer as transformers has it, for chat templates and all else that it can do."""
        return self.tokenizer.inner

    def generate(
        self,
        prompts: PromptLike | Iterable[PromptLike],
        sampling_params: ParamsLike = None,
        *,
        use_tqdm: bool = True,
        **facts: Unpack[PolicyFacts],
    ) -> list[RequestOutput]:
        """Generate text for one prompt or many.

        Args:
            prompts: Text, token ids or {"prompt_token_ids": ids}; or an iterable of such.
            sampling_params: For all prompts, or one each; None uses `get_default_sampling_params()`.
            use_tqdm: Show progress, if stderr is a terminal.
            facts: What to tell the policy; see `PolicyFacts`.

        Returns:
            One result per prompt, in order; a single prompt gives a list of one.

        Raises:
            RequestError: A prompt or its parameters are wrong. Every bad one is listed, and nothing was queued.
            Interrupted: Ctrl-C. It carries the results so far, and the engine is ready for the next call.
            EngineDeadError: The device is lost. It carries the results so far.
        """
        submissions, hints = self._read(split_prompts(prompts), sampling_params, facts, streams=False)
        order = [submission.request.request_id for submission in submissions]
        results: dict[RequestId, RequestOutput] = {}
        with Progress(len(order), is_wanted=use_tqdm) as progress, self._engine.owning(submissions, hints) as ids:
            try:
                while len(results) < len(order):
                    self._engine.step_patiently()
                    results |= self._engine.take_finished(ids)
                    progress.update(len(results), self.summary())
            except KeyboardInterrupt as interrupt:
                self._engine.abort(ids)
                results |= self._engine.take_finished(ids)
                raise Interrupted(tuple([results[request_id] for request_id in order])) from interrupt
            except EngineDeadError as error:
                results |= self._engine.take_finished(ids)
                raise error.with_outputs(tuple([results[request_id] for request_id in order])) from error.__cause__
        return [results[request_id] for request_id in order]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: ParamsLike = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **facts: Unpack[PolicyFacts],
    ) -> list[RequestOutput]:
        """Answer one conversation or many.

        Args:
            messages: One conversation, a list of {"role": ..., "content": ...}; or a list of conversations.
            sampling_params: As for `generate`.
            use_tqdm: As for `generate`.
            chat_template: A Jinja template; None is the tokenizer's own.
            add_generation_prompt: End the prompt with the words that open the answer.
            chat_template_kwargs: What else the template reads, such as {"enable_thinking": False} for Qwen3.
            facts: As for `generate`.

        Returns:
            One result per conversation; its text is the answer alone.

        Raises:
            ChatTemplateError: There is no template, or it does not take these messages.
            RequestError: As for `generate`.
        """
        self._check_usable()
        options: dict[str, Any] = {"chat_template": chat_template, "add_generation_prompt": add_generation_prompt}
        options |= chat_template_kwargs or {}
        prompts = render_conversations(self.tokenizer, messages, options)
        outputs = self.generate(prompts, sampling_params, use_tqdm=use_tqdm, **facts)
        return answers(self.tokenizer, outputs, chat_template, sampling_params)

    def stream(
        self,
        prompts: PromptLike | Iterable[PromptLike],
        sampling_params: ParamsLike = None,
        **facts: Unpack[PolicyFacts],
    ) -> Generator[TextDelta, None, None]:
        """Generate like `generate`, and hand out text as it comes.

        Closing the iterator aborts what is unfinished. Nothing is queued before the first piece is asked for. A piece's
        request_id counts up from that of the first prompt, in order.
        """
        return self._deltas(*self._read(split_prompts(prompts), sampling_params, facts, streams=True))

    def _deltas(self, submissions: list[Submission], hints: list[Hint | None]) -> Generator[TextDelta, None, None]:
        num_finished = 0
        with self._engine.owning(submissions, hints) as ids:
            while num_finished < len(ids):
                self._check_usable()
                self._engine.step_patiently()
                # Both before the caller goes on: whatever other calls do meanwhile counts the next time.
                num_finished += len(self._engine.take_finished(ids))
                yield from self._engine.take_deltas(ids)

    def add_request(
        self, prompt: PromptLike, sampling_params: SamplingParams | None = None, **facts: Unpack[PolicyFacts]
    ) -> int:
        """Queue one prompt for `step`.

        Returns:
            The request's number, as `abort` and results name it.
        """
        return self._engine.submit(*self._read([prompt], sampling_params, facts, streams=False))[0]

    def step(self) -> list[RequestOutput]:
        """Run one step: launch what fits, wait for the oldest result, take it in.

        Returns:
            The results of hand-added requests that have finished since the last call. An idle engine returns [].

        Raises:
            StepError: It failed; its requests are still live, and the next call goes on.
            EngineDeadError: It failed, and the device is lost. It carries the results so far.
        """
        self._check_usable()
        self._engine.step()
        return list(self._engine.take_finished().values())

    def abort(self, request_id: int) -> None:
        """End a request now, with the text so far and finish reason "abort". Twice is once."""
        self._check_usable()
        self._engine.abort([RequestId(request_id)])

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix, as after a change of weights; False, and nothing changed, while anything runs."""
        self._check_usable()
        return any(
            isinstance(effect, PrefixCacheCleared) for effect in self._engine.loop.apply(PrefixCacheReset(False))
        )

    def close(self) -> None:
        """Give all memory back. Twice is once; live requests are lost."""
        if not self._is_closed:
            self._is_closed = True
            self._executor.close()
            if self._log is not None:
                self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(
        self, prompts: list[Any], sampling_params: ParamsLike, facts: Mapping[str, Any], *, streams: bool
    ) -> tuple[list[Submission], list[Hint | None]]:
        """Validate a call whole."""
        self._check_usable()
        count = len(prompts)
        params = self._default_params if sampling_params is None else sampling_params
        told = read_facts(facts, count)
        submissions = read_call(
            self._intake,
            prompts,
            per_prompt(list(params) if isinstance(params, Sequence) else params, count, "SamplingParams"),
            told,
            first_request_id=self._next_request_id,
            now_us=now_us(),
            streams=streams,
        )
        self._next_request_id += count
        return submissions, [fact.hint for fact in told]

    def _check_usable(self) -> None:
        if self._is_closed:
            raise UsageError("this LLM is closed; make a new one")
        if self._engine.is_dead:
            raise UsageError("this LLM's device is lost; close it and make a new one, on a GPU in a new process")
        process, thread = self._owner
        if process != os.getpid():
            raise UsageError("this LLM was made before the process forked; make one in the child")
        if thread != threading.get_ident():
            raise UsageError("this LLM was made in another thread; call it there, or hand prompts over through a queue")
