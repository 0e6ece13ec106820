"""Detokenizer: text as the tokens come, in pieces that join to the whole."""

from collections.abc import Sequence

from nanofn.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Decodes one output bit by bit.

    A piece is held back while it ends in a character that further bytes may complete; `finish` gives out the rest.
    What a token adds is the difference of two decodings that share a few tokens of context, so that tokenizers which
    join words with blanks, or split characters over tokens, come out as in one decoding of everything.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._token_ids: list[int] = []
        self._start = 0
        self._given = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Take further tokens; returns the text that is certain now."""
        self._token_ids.extend(token_ids)
        before, after = self._decode(self._given), self._decode(len(self._token_ids))
        if len(after) <= len(before) or after.endswith(REPLACEMENT):
            return ""
        self._start, self._given = self._given, len(self._token_ids)
        return after[len(before) :]

    def finish(self) -> str:
        """Give out what was held back; nothing can complete it any more."""
        before, after = self._decode(self._given), self._decode(len(self._token_ids))
        self._start = self._given = len(self._token_ids)
        return after[len(before) :]

    def _decode(self, end: int) -> str:
        return self._tokenizer.decode(self._token_ids[self._start : end], skip_special_tokens=self._skip_special_tokens)
