"""The text of single tokens: together they are the text, and the one that completes a character has all of it."""

import pytest
from hypothesis import example, given, strategies as st

from nanofn.text.token_text import token_text
from text.test_detokenizer import KINDS, byte_ids

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \ufffd"), max_size=12)


def texts_of(tokenizer, token_ids):
    """Each token's text among those before it."""
    return [token_text(tokenizer, token_id, token_ids[:place]) for place, token_id in enumerate(token_ids)]


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXT)
@example(text="€€")
@example(text="a😀é😀😀b")
def test_texts_of_tokens_join_to_the_text(kind, text):
    """One byte a token, so that every character but ASCII's comes in parts; none of those shows as a replacement."""
    tokenizer = KINDS[kind]
    found = texts_of(tokenizer, byte_ids(tokenizer, text))
    assert "".join(found) == text
    assert [each for each in found if each] == list(text)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_no_text_ends_with_a_part_of_a_character(kind, data):
    """Any ids, also of bytes that are no character, of special tokens and of none at all."""
    tokenizer = KINDS[kind]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=20))
    assert [text for text in texts_of(tokenizer, token_ids) if text.endswith("\ufffd")] == []


@pytest.mark.parametrize("kind", KINDS)
def test_whole_tokens_do_not_depend_on_those_before(kind):
    """Words, special tokens and ids without a token have the text that they have alone, also after half a character."""
    tokenizer = KINDS[kind]
    half = byte_ids(tokenizer, "€")[:2]
    for token_id in [*tokenizer.encode_plain("ab a"), tokenizer.eos_token_id, tokenizer.vocab_size + 3]:
        alone = tokenizer.decode([token_id], skip_special_tokens=False)
        assert [alone] * 3 == [token_text(tokenizer, token_id, earlier) for earlier in ([], half, [token_id] * 5)]


def test_a_token_with_the_end_of_one_character_and_the_beginning_of_the_next():
    """It has the first one's text; the second one's comes with its last token."""

    class Bytes:
        """A token is a run of bytes."""

        def decode(self, token_ids, *, skip_special_tokens):
            return b"".join(token_ids).decode(errors="replace")

        def text_of(self, token_id):
            return self.decode([token_id], skip_special_tokens=False)

    tokens = [b"x\xe2", b"\x82", b"\xac\xf0\x9f", b"\x98\x80y", b"\x80z"]
    assert texts_of(Bytes(), tokens) == ["x", "", "€", "😀y", "\ufffdz"]
