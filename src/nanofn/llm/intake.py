"""intake: a call's prompts and parameters become validated submissions, all of them or none."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from numbers import Integral
from typing import Any

from attrs import frozen

from nanofn.config import Limits
from nanofn.errors import ChatTemplateError, GrammarError, ParameterError, RequestError
from nanofn.llm.facts import Facts, checked_facts
from nanofn.llm.row_sampling import row_sampling
from nanofn.llm.tracker import Submission
from nanofn.request import Request, RequestId, TokenId
from nanofn.sampling.params import SamplingParams, unbuilt_fields
from nanofn.sampling.structured import StructuredOutputsParams
from nanofn.text.grammar import Grammar
from nanofn.text.tokenizer import Tokenizer

PromptLike = str | Sequence[int] | Mapping[str, Any]
"""One prompt: text, token ids, or {"prompt": text} or {"prompt_token_ids": ids}."""


@frozen
class Intake:
    """What validation needs to know of the engine.

    Attributes:
        tokenizer: Encodes prompts and words.
        compile_grammar: Makes a grammar of a form, or raises `GrammarError`.
        limits: The bounds.
        vocab_size: Rows of the embedding.
        eos_token_ids: What ends a sequence unless `ignore_eos`.
        draw_seed: A fresh 64-bit seed.
    """

    tokenizer: Tokenizer
    compile_grammar: Callable[[StructuredOutputsParams], Grammar]
    limits: Limits
    vocab_size: int
    eos_token_ids: tuple[TokenId, ...]
    draw_seed: Callable[[], int]


class _BadPromptError(Exception):
    """Carries a prompt's problem to the list of all of them."""


def split_prompts(prompts: Any) -> list[Any]:
    """Part a call's argument into prompts: one text, one list of ids and one dict are one prompt each."""
    if hasattr(prompts, "tolist"):
        prompts = prompts.tolist()
    if isinstance(prompts, (str, bytes, bytearray, Mapping, AbstractSet)):
        return [prompts]
    if not isinstance(prompts, Iterable):
        return [prompts]
    items = list(prompts)
    return [items] if items and all(_is_integer(item) for item in items) else items


def read_call(
    intake: Intake,
    prompts: list[Any],
    params: list[SamplingParams],
    facts: list[Facts],
    *,
    first_request_id: int,
    now_us: int,
    streams: bool,
) -> list[Submission]:
    """Validate a call whole.

    Args:
        intake: What the engine allows.
        prompts: From `split_prompts`.
        params: One per prompt.
        facts: One per prompt.
        first_request_id: Number of the first request; the others follow.
        now_us: Arrival of them all.
        streams: Whether text is wanted as it comes.

    Returns:
        One submission per prompt, in order.

    Raises:
        RequestError: With every bad index and what is wrong there.
    """
    problems: list[tuple[int, str]] = []
    submissions: list[Submission] = []
    for place, (prompt, each, told) in enumerate(zip(prompts, params, facts, strict=True)):
        try:
            fact = _facts(told)
            text, token_ids = _token_ids(intake, prompt)
            _check_params(intake, each)
            token_ids = _truncated(intake, token_ids, each.truncate_prompt_tokens)
            _check_length(intake, token_ids)
            request = _request(intake, RequestId(first_request_id + place), token_ids, each, fact, now_us)
            seed = intake.draw_seed() if each.seed is None else each.seed
            sampling = row_sampling(each, request, intake.vocab_size, intake.tokenizer.encode_plain)
            submissions.append(Submission(request, text, each, sampling, seed, streams, _grammar(intake, each)))
        except _BadPromptError as problem:
            problems.append((place, str(problem)))
    if problems:
        raise RequestError(tuple(problems))
    return submissions


def _token_ids(intake: Intake, prompt: Any) -> tuple[str | None, tuple[TokenId, ...]]:
    if isinstance(prompt, Mapping):
        keys = [key for key in ("prompt_token_ids", "prompt") if key in prompt]
        unknown = [key for key in prompt if key not in ("prompt_token_ids", "prompt")]
        if not keys or unknown:
            raise _BadPromptError(f"a dict with {_short(list(prompt))}; its one key is prompt_token_ids or prompt")
        prompt = prompt[keys[0]]
    if isinstance(prompt, str):
        return prompt, _encoded(intake, prompt)
    if hasattr(prompt, "tolist"):
        prompt = prompt.tolist()
    is_sequence = isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray))
    # The types first: looking at each of 100,000 items takes as long as a decode step.
    if not is_sequence or not (set(map(type, prompt)) <= {int} or all(_is_integer(item) for item in prompt)):
        raise _BadPromptError(
            f"{_short(prompt)} is no prompt; give text, a list of token ids, or prompt_token_ids in a dict"
        )
    token_ids = tuple(map(TokenId, map(int, prompt)))
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < intake.vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < intake.vocab_size)
        raise _BadPromptError(f"token id {wrong} is outside the vocabulary; ids go from 0 to {intake.vocab_size - 1}")
    return None, token_ids


def _encoded(intake: Intake, text: str) -> tuple[TokenId, ...]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _BadPromptError(f"it is no valid text: a lone surrogate stands at character {error.start}") from error
    token_ids = tuple(map(TokenId, intake.tokenizer.encode(text)))
    if max(token_ids, default=0) >= intake.vocab_size:
        raise _BadPromptError(
            f"the tokenizer makes token id {max(token_ids)} of it, and the model has {intake.vocab_size} ids: they do not "
            "belong together; pass tokenizer=FOLDER"
        )
    return token_ids


def _truncated(intake: Intake, token_ids: tuple[TokenId, ...], count: int | None) -> tuple[TokenId, ...]:
    """Keep the last tokens; -1 is as many as leave room for one more."""
    if count is None:
        return token_ids
    return token_ids[-(intake.limits.max_model_len - 1 if count == -1 else count) :]


def _check_length(intake: Intake, token_ids: tuple[TokenId, ...]) -> None:
    max_model_len = intake.limits.max_model_len
    if not token_ids:
        raise _BadPromptError("it is empty; give at least one token")
    if len(token_ids) >= max_model_len:
        raise _BadPromptError(
            f"it has {len(token_ids)} tokens, and max_model_len {max_model_len} leaves room for {max_model_len - 1}; "
            "shorten it or raise max_model_len"
        )


def _check_params(intake: Intake, params: Any) -> None:
    if not isinstance(params, SamplingParams):
        raise _BadPromptError(f"its parameters are {_short(params)}; give SamplingParams(...)")
    unbuilt = unbuilt_fields(params)
    if unbuilt:
        raise _BadPromptError(f"SamplingParams field {unbuilt[0]} is not built yet; leave it at its default")
    joins = params.spaces_between_special_tokens or params.skip_special_tokens or intake.tokenizer.joins_special_tokens
    if params.detokenize and not joins:
        raise _BadPromptError(
            "spaces_between_special_tokens is False, and this tokenizer puts them there; leave it at True, or take the text "
            "from token_ids"
        )
    ids = {
        "stop_token_ids": params.stop_token_ids or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "logit_bias": [token_id for token_id, _ in params.logit_bias or ()],
    }
    for name, token_ids in ids.items():
        for token_id in token_ids:
            if not 0 <= token_id < intake.vocab_size:
                raise _BadPromptError(f"{name} has {token_id}; ids go from 0 to {intake.vocab_size - 1}")
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is not None and count > intake.vocab_size:
            raise _BadPromptError(
                f"{name} is {count}, and the vocabulary has {intake.vocab_size} ids; -1 is all of them"
            )


def _facts(facts: Facts) -> Facts:
    try:
        return checked_facts(facts)
    except ParameterError as error:
        raise _BadPromptError(str(error)) from error


def _request(
    intake: Intake,
    request_id: RequestId,
    token_ids: tuple[TokenId, ...],
    params: SamplingParams,
    facts: Facts,
    now_us: int,
) -> Request:
    stops = {*(params.stop_token_ids or ()), *(() if params.ignore_eos else intake.eos_token_ids)}
    deadline_us = None if facts.deadline is None else now_us + round(facts.deadline * 1e6)
    return Request(
        request_id=request_id,
        prompt_token_ids=token_ids,
        # None means: up to max_model_len.
        max_tokens=params.max_tokens or intake.limits.max_model_len,
        min_tokens=params.min_tokens,
        n=params.n,
        stop_token_ids=tuple(sorted(map(TokenId, stops))),
        reads_prefix_cache=params.prompt_logprobs is None and not params.skip_reading_prefix_cache,
        arrival_us=now_us,
        priority=facts.priority,
        client=facts.client,
        deadline_us=deadline_us,
    )


def _grammar(intake: Intake, params: SamplingParams) -> Grammar | None:
    if params.structured_outputs is None:
        return None
    try:
        return intake.compile_grammar(params.structured_outputs)
    except GrammarError as error:
        raise _BadPromptError(str(error)) from error


def _is_integer(item: Any) -> bool:
    return isinstance(item, Integral) and not isinstance(item, bool)


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def render_conversations(tokenizer: Tokenizer, messages: Any, options: Mapping[str, Any]) -> list[list[int]]:
    """Turn a call's conversations into prompts; a list of messages is one conversation.

    Raises:
        ChatTemplateError: With every bad conversation's number.
    """
    items = list(messages) if isinstance(messages, Iterable) and not isinstance(messages, str) else [messages]
    if items and all(isinstance(item, Mapping) for item in items):
        items = [items]
    prompts, problems = [], []
    for place, conversation in enumerate(items):
        try:
            prompts.append(tokenizer.render_chat(conversation, **options))
        except ChatTemplateError as error:
            problems.append(f"conversation {place}: {error}")
    if problems:
        raise ChatTemplateError("; ".join(problems))
    return prompts
