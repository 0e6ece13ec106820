"""SamplingParams: how to choose tokens and when to stop. Names and meanings are vLLM's."""

import math
from collections.abc import Mapping
from numbers import Real
from operator import index
from typing import Any, Self

from attrs import evolve, field, fields, frozen

from nanofn.errors import ParameterError
from nanofn.sampling.structured import StructuredOutputsParams

UNBUILT = (
    "logprob_token_ids",
    "flat_logprobs",
    "thinking_token_budget",
    "repetition_detection",
)
"""Fields that are checked and refused: a value other than the default would be ignored."""

FLAGS = (
    "ignore_eos",
    "skip_special_tokens",
    "detokenize",
    "include_stop_str_in_output",
    "flat_logprobs",
    "spaces_between_special_tokens",
)

MAX_N = 16_384
"""Most samples of one request: each costs a record before any of them runs."""


def _as_whole(value: Any) -> Any:
    """Make Python's integer of another library's; leave everything else for the check."""
    if isinstance(value, bool):
        return value
    try:
        return index(value)
    except TypeError:
        return value


def _as_number(value: Any) -> Any:
    """Make Python's number of another library's, such as numpy's fp32; leave everything else for the check."""
    if isinstance(value, (int, float)):  # bool among them
        return value
    return float(value) if isinstance(value, Real) else value


def _as_seed(value: Any) -> Any:
    """Read -1 as vLLM does: no seed."""
    value = _as_whole(value)
    return None if _is_whole(value) and value == -1 else value


def _as_tuple(value: Any) -> Any:
    """Freeze what callers give as a list; a single text is a tuple of one."""
    if value is None or isinstance(value, tuple):
        return value
    if isinstance(value, Mapping):
        pairs = [(_as_whole(key), _as_number(item)) for key, item in value.items()]
        # Keys that are no integers cannot be ordered among others: they are left for the check.
        return tuple(sorted(pairs) if all(_is_whole(key) for key, _ in pairs) else pairs)
    if isinstance(value, str):
        return (value,)
    try:
        return tuple([_as_whole(item) for item in value])
    except TypeError:
        return value  # what is no list at all is left for the check


def _as_form(value: Any) -> Any:
    """Take a dict for the record that it fills."""
    if not isinstance(value, Mapping):
        return value
    try:
        return StructuredOutputsParams(**value)
    except TypeError as error:
        expected = f"a dict of the fields of StructuredOutputsParams ({error})"
        raise ParameterError("structured_outputs", value, expected) from error


@frozen(kw_only=True)
class SamplingParams:
    """How to sample one request. Frozen; every value is checked when it is made.

    Attributes:
        n: Number of samples, at most 16,384; each is a sequence of its own.
        temperature: 0 (anything below 1e-5) always takes the likeliest token; 1 samples from the model's own
            distribution.
        max_tokens: Most output tokens; None is as many as `max_model_len` allows. vLLM's default is 16.
        seed: 64 bits; None or -1 draws one, which the output records.
        ignore_eos: Go on after the end-of-sequence token.
        stop_token_ids: Further token ids that end the output.
        skip_special_tokens: Leave special tokens out of the text.
        detokenize: False leaves the text empty.
        top_p: Sample from the likeliest ids that together have this probability; 1 is off.
        top_k: Sample from this many likeliest ids; 0 or -1 is off.
        min_p: Sample from ids at least this likely relative to the likeliest; 0 is off.
        min_tokens: Output tokens before anything may stop it: no end token is sampled, no stop string counts.
        stop: Texts that end the output, also where they lie across tokens; the one that is complete first counts.
        include_stop_str_in_output: Keep the stop text, and the text of a stop token.
        presence_penalty: Subtracted from the logits of tokens in the output; 0 is off.
        frequency_penalty: Subtracted for each time that a token is in the output; 0 is off.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
        logit_bias: Token id to what is added to its logit.
        allowed_token_ids: The only ids that may be sampled.
        bad_words: Words whose tokens may not appear in the output, at its beginning or after a blank. Where nothing
            else is left to sample, a bad word or an early end may come all the same.
        logprobs: How many likeliest tokens to report at each position besides the sampled one; -1 is all.
        prompt_logprobs: The same for the prompt; it is then computed whole, whatever the prefix cache holds.
        truncate_prompt_tokens: Keep only so many last prompt tokens; -1 is as many as leave room for one more.
        skip_reading_prefix_cache: Compute the whole prompt.
        structured_outputs: The form of the output: `StructuredOutputsParams`, or a dict of its fields.
        spaces_between_special_tokens: False joins special tokens without blanks, as most tokenizers do anyway; refused in a
            call for those that do not.
        logprob_token_ids: Not built yet, like all that follow.
        flat_logprobs: Report in one flat record.
        thinking_token_budget: Most tokens of thinking.
        repetition_detection: When to end an output that repeats itself.

    Raises:
        ParameterError: A value is out of its range.
    """

    n: int = field(default=1, converter=_as_whole)
    temperature: float = field(default=1.0, converter=_as_number)
    max_tokens: int | None = field(default=256, converter=_as_whole)
    seed: int | None = field(default=None, converter=_as_seed)
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] | None = field(default=None, converter=_as_tuple)
    skip_special_tokens: bool = True
    detokenize: bool = True
    top_p: float = field(default=1.0, converter=_as_number)
    top_k: int = field(default=0, converter=_as_whole)
    min_p: float = field(default=0.0, converter=_as_number)
    min_tokens: int = field(default=0, converter=_as_whole)
    stop: tuple[str, ...] | None = field(default=None, converter=_as_tuple)
    include_stop_str_in_output: bool = False
    presence_penalty: float = field(default=0.0, converter=_as_number)
    frequency_penalty: float = field(default=0.0, converter=_as_number)
    repetition_penalty: float = field(default=1.0, converter=_as_number)
    logit_bias: tuple[tuple[int, float], ...] | None = field(default=None, converter=_as_tuple)
    allowed_token_ids: tuple[int, ...] | None = field(default=None, converter=_as_tuple)
    bad_words: tuple[str, ...] | None = field(default=None, converter=_as_tuple)
    logprobs: int | None = field(default=None, converter=_as_whole)
    prompt_logprobs: int | None = field(default=None, converter=_as_whole)
    logprob_token_ids: tuple[int, ...] | None = field(default=None, converter=_as_tuple)
    flat_logprobs: bool = False
    truncate_prompt_tokens: int | None = field(default=None, converter=_as_whole)
    structured_outputs: StructuredOutputsParams | None = field(default=None, converter=_as_form)
    spaces_between_special_tokens: bool = True
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = field(default=None, converter=_as_whole)
    repetition_detection: Any = None

    def __attrs_post_init__(self) -> None:
        self._check_flags()
        _whole("n", self.n, 1)
        if self.n > MAX_N:
            raise ParameterError("n", self.n, f"at most {MAX_N}")
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, excludes_least=True)
        _whole("top_k", self.top_k, -1)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, excludes_least=True)
        _whole("min_tokens", self.min_tokens, 0)
        for name, least in (
            ("max_tokens", 1),
            ("logprobs", -1),
            ("prompt_logprobs", -1),
            ("truncate_prompt_tokens", -1),
            ("thinking_token_budget", -1),
        ):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), least)
        if self.truncate_prompt_tokens == 0:
            raise ParameterError("truncate_prompt_tokens", 0, "an integer of at least 1, -1, or None")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")
        if self.seed is not None and not (_is_whole(self.seed) and -(2**63) <= self.seed < 2**64):
            raise ParameterError("seed", self.seed, "an integer of 64 bits, or None")
        if not isinstance(self.structured_outputs, (StructuredOutputsParams, type(None))):
            raise ParameterError("structured_outputs", self.structured_outputs, "StructuredOutputsParams(...), or None")
        if self.stop and not self.detokenize:
            raise ParameterError("detokenize", False, "True where `stop` is given, which is looked for in the text")
        self._check_lists()
        if self.allowed_token_ids == ():
            raise ParameterError("allowed_token_ids", [], "a list of at least one id, or None")

    def _check_flags(self) -> None:
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(name, getattr(self, name), "True or False")
        if self.skip_reading_prefix_cache is not None and not isinstance(self.skip_reading_prefix_cache, bool):
            raise ParameterError("skip_reading_prefix_cache", self.skip_reading_prefix_cache, "True, False or None")

    def _check_lists(self) -> None:
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            for token_id in _listed(name, getattr(self, name)):
                _whole(name, token_id, 0)
        for name in ("stop", "bad_words"):
            for text in _listed(name, getattr(self, name)):
                if not isinstance(text, str) or not text:
                    raise ParameterError(name, text, "a text of at least one character, or a list of such")
                if not _is_unicode(text):
                    raise ParameterError(name, text, "valid text: it has a lone surrogate, which no output can have")
        for pair in _listed("logit_bias", self.logit_bias):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise ParameterError("logit_bias", pair, "a dict from token id to bias")
            if not _is_whole(pair[0]) or pair[0] < 0:
                raise ParameterError("logit_bias", pair[0], "a dict whose keys are integers of at least 0")
            if not _is_finite(pair[1]):
                raise ParameterError("logit_bias", pair[1], "a dict whose values are finite numbers")

    def replace(self, **changes: Any) -> Self:
        """Copy with some fields changed."""
        return evolve(self, **changes)


def unbuilt_fields(params: SamplingParams) -> tuple[str, ...]:
    """Name the fields that are set and that nothing carries out yet."""
    defaults = {attribute.name: attribute.default for attribute in fields(SamplingParams)}
    given = {name: getattr(params, name) for name in UNBUILT}
    # An empty list says nothing either. Fields that take anything are not compared: some values have no truth.
    return tuple([name for name, value in given.items() if value is not defaults[name] and not _is_empty(value)])


def _is_empty(value: Any) -> bool:
    return isinstance(value, tuple) and not value


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, tuple):
        raise ParameterError(name, value, "a list, or None")
    return value or ()


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(name: str, value: Any, least: int) -> None:
    if not _is_whole(value) or value < least:
        raise ParameterError(name, value, f"an integer of at least {least}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(name: str, value: Any, least: float, most: float, *, excludes_least: bool = False) -> None:
    if not _is_finite(value) or not least <= value <= most or (excludes_least and value == least):
        kind = "a finite number" if most == math.inf else "a number"
        above = f"above {least:g}" if excludes_least else f"of at least {least:g}"
        raise ParameterError(name, value, f"{kind} {above}" + (f" and at most {most:g}" if most < math.inf else ""))
