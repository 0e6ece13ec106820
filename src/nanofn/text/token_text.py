"""token_text: the text of one token among others."""

from collections.abc import Sequence

from nanofn.text.detokenizer import REPLACEMENT
from nanofn.text.tokenizer import Tokenizer

MOST_EARLIER = 3
"""Tokens that a character can have begun in: it has at most four bytes, and a token at least one."""


def token_text(tokenizer: Tokenizer, token_id: int, earlier: Sequence[int]) -> str:
    """Say what text a token is.

    Its text alone, as a rule. Where that has parts of characters in it, what it adds to the text of the tokens before it: the
    token that completes a character has all of it, those before have nothing. So the texts of an output's tokens join to the
    output's text, but for blanks that a tokenizer drops at the beginning of a text, and for bytes that are no character.

    Args:
        tokenizer: Decodes.
        token_id: The token, known to the tokenizer or not.
        earlier: Those before it; the last few are looked at.
    """
    alone = tokenizer.text_of(token_id)
    if REPLACEMENT not in alone:
        return alone
    for count in range(1, min(len(earlier), MOST_EARLIER) + 1):
        context = list(earlier[-count:])
        before = _certain(tokenizer, context)
        whole = _certain(tokenizer, [*context, token_id])
        # A context that begins inside a character shows as a replacement: the next one begins earlier.
        if REPLACEMENT not in whole and whole.startswith(before) and len(whole) > len(before):
            return whole[len(before) :]
    return alone.rstrip(REPLACEMENT)


def _certain(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Decode all but a character that is incomplete at the end."""
    return tokenizer.decode(token_ids, skip_special_tokens=False).rstrip(REPLACEMENT)
