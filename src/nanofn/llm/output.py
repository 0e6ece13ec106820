"""What a caller gets back. Frozen: a result once returned never changes."""

from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from nanofn.llm.logprobs import Logprob, Logprobs
from nanofn.request import FinishReason


def _no_items(record: object, key: object) -> Any:
    name = type(record).__name__
    attributes = ", ".join(type(record).__annotations__)
    hint = f"write output.{key}" if isinstance(key, str) and hasattr(record, key) else f"it has {attributes}"
    raise TypeError(f"{name} has attributes, not items: {hint}; or use to_dict()")


@frozen
class CompletionOutput:
    """One generated text.

    Attributes:
        index: Which of the request's n.
        text: The new text only, without special tokens and without what ended it, unless asked for.
        token_ids: The new token ids, a stop token included.
        logprobs: One dict per token from token id to `Logprob`, the token itself first, then the likeliest ones; None unless
            `SamplingParams.logprobs` asks for it. A sequence that makes each dict when it is read.
        cumulative_logprob: The tokens' log-probabilities added up; None unless asked for.
        finish_reason: "stop", "length", "abort" or "error"; None while it is not finished.
        stop_reason: The stop string, or the id of the stop token, if the caller named it; None for EOS and other reasons.
        seed: The 64-bit seed its noise came from: given again, it gives this text again.
        reasoning: In a conversation, what the model thought before it answered, if its template has marks for that; `text` is
            then the answer alone.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: Logprobs[Mapping[int, Logprob]] | None
    cumulative_logprob: float | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    seed: int
    reasoning: str | None = None

    __getitem__ = _no_items


@frozen
class RequestMetrics:
    """When things happened to a request, in seconds of the engine's clock, which starts anywhere.

    Attributes:
        arrival_time: It was queued.
        first_token_time: The first token of any child was known; None if there was none.
        finished_time: The last child ended.
        num_preemptions: How often its sequences lost their blocks.
    """

    arrival_time: float
    first_token_time: float | None
    finished_time: float
    num_preemptions: int


@frozen
class RequestOutput:
    """What came of one prompt.

    Attributes:
        request_id: Its number.
        prompt: The prompt, if it was text.
        prompt_token_ids: The prompt as the model saw it.
        outputs: One per child, in order.
        finished: Whether all of them ended.
        prompt_logprobs: As `CompletionOutput.logprobs`, for the prompt; None for its first token, which nothing precedes.
            None altogether unless asked for.
        num_cached_tokens: Prompt tokens of the first child that were found in the prefix cache.
        metrics: When things happened.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    prompt_logprobs: Logprobs[Mapping[int, Logprob] | None] | None
    num_cached_tokens: int
    metrics: RequestMetrics

    __getitem__ = _no_items

    @property
    def text(self) -> str:
        """The text of the only output.

        Raises:
            ValueError: There are several: name one with `outputs[i].text`.
        """
        if len(self.outputs) != 1:
            raise ValueError(f"this request has {len(self.outputs)} outputs; use outputs[i].text")
        return self.outputs[0].text

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain dicts, lists and numbers, ready for JSON."""
        lists = tuple, Logprobs
        return asdict(self, value_serializer=lambda _, __, value: list(value) if isinstance(value, lists) else value)


@frozen
class TextDelta:
    """A piece of text as it comes.

    Attributes:
        request_id: The request.
        index: Which of its n.
        text: New text; all pieces of one output joined are its text.
        token_ids: The new token ids behind it.
        finish_reason: Set in the last piece of an output.
    """

    request_id: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
