"""Completion: what one child of a request has produced so far, and its text as it comes."""

from collections.abc import Mapping

from attrs import Factory, define

from nanofn.llm.logprobs import Logprob, Logprobs
from nanofn.llm.output import CompletionOutput
from nanofn.request import FinishReason, SequenceId, TokenId
from nanofn.sampling.params import SamplingParams
from nanofn.text.detokenizer import Detokenizer
from nanofn.text.stop_strings import StopStrings
from nanofn.text.tokenizer import Tokenizer


@define(eq=False)
class Completion:
    """The token log behind a sequence, and its text.

    Attributes:
        index: Which child.
        sequence_id: Its sequence.
        params: How it is sampled and ended.
        tokenizer: For its text.
        detokenizer: Present where text is wanted as it comes: for a stream, or to look for stop strings in it.
        stop_strings: Looks for them; without any it only keeps the text.
        token_ids: Committed output tokens.
        logprobs: A record each, if asked for.
        num_cached_tokens: Prefix hit of its first start.
        num_preemptions: How often its sequence lost its blocks.
        has_started: Whether it ever got a row.
        finish_reason: Set when it ended.
        stop_token_id: What ended it, if a token did.
        num_streamed: Tokens that went into text deltas.
        num_streamed_characters: Characters that did.
    """

    index: int
    sequence_id: SequenceId
    params: SamplingParams
    tokenizer: Tokenizer
    detokenizer: Detokenizer | None
    stop_strings: StopStrings
    token_ids: list[TokenId] = Factory(list)
    logprobs: list[bytes] = Factory(list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    has_started: bool = False
    finish_reason: FinishReason | None = None
    stop_token_id: TokenId | None = None
    num_streamed: int = 0
    num_streamed_characters: int = 0
    _num_read: int = 0

    def read_text(self) -> bool:
        """Decode what is new; returns whether the text has just come to a stop string."""
        if self.detokenizer is None or self.stop_strings.found is not None:
            return False
        count = len(self.token_ids)
        piece = self.detokenizer.push(self._ids_of_text()[self._num_read :])
        self._num_read = count
        return self.stop_strings.push(piece, may_stop=count > self.params.min_tokens)

    def end(self, finish_reason: FinishReason, stop_token_id: TokenId | None, num_output_tokens: int) -> None:
        """End it with so many tokens. A stop string that the last text completes counts, whatever else ended it."""
        del self.token_ids[num_output_tokens:]
        del self.logprobs[num_output_tokens:]
        self.finish_reason, self.stop_token_id = finish_reason, stop_token_id
        if self.detokenizer is not None and self.stop_strings.found is None:
            self.read_text()
            may_stop = len(self.token_ids) > self.params.min_tokens
            self.stop_strings.push(self.detokenizer.finish(), may_stop=may_stop)
        if self.stop_strings.found is not None and finish_reason in ("stop", "length"):
            self.finish_reason, self.stop_token_id = "stop", None

    def next_piece(self) -> str:
        """Hand out the text that is certain by now and was not handed out before."""
        search = self.stop_strings
        if search.found is not None:
            end = search.end
        else:
            end = len(search.text) if self.finish_reason is not None else search.num_certain
        piece = search.text[self.num_streamed_characters : end]
        self.num_streamed_characters = max(end, self.num_streamed_characters)
        return piece

    def output(self, seed: int) -> CompletionOutput:
        """Freeze it."""
        params, stop_token_id = self.params, self.stop_token_id
        stop_reason: int | str | None = self.stop_strings.found
        if stop_reason is None and stop_token_id in (params.stop_token_ids or ()):
            stop_reason = stop_token_id
        logprobs: Logprobs[Mapping[int, Logprob]] | None = None
        if params.logprobs is not None:
            logprobs = Logprobs(self.tokenizer, self.logprobs)
        return CompletionOutput(
            index=self.index,
            text=self._text(),
            token_ids=tuple(self.token_ids),
            logprobs=logprobs,
            cumulative_logprob=None if logprobs is None else logprobs.total,
            finish_reason=self.finish_reason,
            stop_reason=stop_reason,
            seed=seed,
        )

    def _text(self) -> str:
        if not self.params.detokenize:
            return ""
        if self.stop_strings.found is not None:
            return self.stop_strings.text[: self.stop_strings.end]
        return self.tokenizer.decode(self._ids_of_text(), skip_special_tokens=self.params.skip_special_tokens)

    def _ids_of_text(self) -> list[TokenId]:
        """Leave out the token that ended the sequence, unless what ends it is wanted."""
        is_whole = self.stop_token_id is None or self.params.include_stop_str_in_output
        return self.token_ids if is_whole else self.token_ids[:-1]
