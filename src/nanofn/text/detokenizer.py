"""Detokenizer: text as the tokens come, in pieces that join to the whole."""

from collections.abc import Sequence

from nanofn.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
"""What stands for bytes that are no character; at the end of a text, perhaps only not yet."""

MAX_WINDOW = 32
"""Tokens that may wait for a character to become complete; then the certain ones among them are let go."""

NUM_UNCERTAIN = 8
"""Tokens that stay behind at the end of a long window: a character has at most four bytes, a token at least one."""


class Detokenizer:
    """Decodes one output bit by bit; the pieces of `push` and `finish` join to `Tokenizer.decode` of all tokens.

    A character is held back while it may be incomplete. Only a short window of tokens is decoded again: those whose
    text is uncertain, and before them the last ones that had text, since a tokenizer may join words by what precedes.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._ignored = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._window: list[int] = []
        self._num_context = 0
        self._num_given = 0
        self._limit = MAX_WINDOW

    def push(self, token_ids: Sequence[int]) -> str:
        """Take further tokens; returns the text that is certain now."""
        vocab_size, ignored = self._tokenizer.vocab_size, self._ignored
        seen = [token_id for token_id in token_ids if 0 <= token_id < vocab_size and token_id not in ignored]
        self._window += seen
        if not seen or seen[-1] in self._tokenizer.byte_token_ids:
            return ""
        text = self._decode(self._window)
        is_complete = not text.endswith(REPLACEMENT)
        piece = self._give(text, len(text) if is_complete else len(text) - 1)
        if is_complete:
            self._forget_context()
        elif len(self._window) > self._limit:
            self._shorten(text)
        return piece

    def finish(self) -> str:
        """Give out what was held back; nothing can complete it any more."""
        text = self._decode(self._window)
        return self._give(text, len(text))

    def _give(self, text: str, end: int) -> str:
        piece = text[self._num_given : end]
        self._num_given = max(self._num_given, end)
        return piece

    def _forget_context(self) -> None:
        """Let the tokens since the last time be the context of the next ones, if they have text of their own."""
        latest = self._decode(self._window[self._num_context :])
        if latest:
            del self._window[: self._num_context]
            self._num_context, self._num_given = len(self._window), len(latest)

    def _shorten(self, text: str) -> None:
        """Let the first tokens of a long window go where no character lies across the cut."""
        cut = len(self._window) - NUM_UNCERTAIN
        first, rest = self._decode(self._window[:cut]), self._decode(self._window[cut:])
        if first + rest == text and len(first) <= self._num_given:
            del self._window[:cut]
            self._num_context = 0
            self._num_given -= len(first)
        else:
            self._limit *= 2

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
