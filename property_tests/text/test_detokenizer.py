"""Pieces of text join to the whole, whatever the tokens are and however they arrive."""

from functools import cache

import pytest
from hypothesis import example, given, strategies as st
from tokenizers import pre_tokenizers

from nanofn.text.detokenizer import MAX_WINDOW, Detokenizer
from text.tokenizers_for_tests import byte_fallback, byte_level

KINDS = {"byte level": byte_level(), "byte fallback": byte_fallback()}


def pieces_of(tokenizer, batches, *, skip_special_tokens=True):
    """What each batch of tokens gives, and at last what was held back."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(batch) for batch in batches), detokenizer.finish()]


def byte_ids(tokenizer, text):
    """The ids of a text's bytes, one token each."""
    if tokenizer.byte_token_ids:
        first = min(tokenizer.byte_token_ids)
        return [first + byte for byte in text.encode()]
    return [token_id for char in text.encode() for token_id in byte_level_ids(char)]


@cache
def byte_level_ids(byte):
    """The id of one byte in the byte-level vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [value for value in range(256) if value not in printable]
    char = chr(byte) if byte in printable else chr(256 + rest.index(byte))
    return [alphabet.index(char)]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.booleans())
def test_pieces_join_to_the_whole(kind, data, skip):
    """Any ids, padding ids among them, in batches of any size: the pieces are `decode` of all, and none raises."""
    tokenizer = KINDS[kind]
    ids = st.integers(0, tokenizer.vocab_size + 5)
    batches = data.draw(st.lists(st.lists(ids, max_size=4), max_size=60))
    whole = tokenizer.decode([token_id for batch in batches for token_id in batch], skip_special_tokens=skip)
    assert "".join(pieces_of(tokenizer, batches, skip_special_tokens=skip)) == whole


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=40))
@example(text="a€b😀é")
def test_characters_split_over_tokens_come_whole(kind, text):
    """One byte a token: no piece holds a replacement character that the text does not have."""
    tokenizer = KINDS[kind]
    pieces = pieces_of(tokenizer, [[token_id] for token_id in byte_ids(tokenizer, text)])
    assert "".join(pieces) == tokenizer.decode(byte_ids(tokenizer, text))
    assert all("\ufffd" in text or "\ufffd" not in piece for piece in pieces)


@given(text=st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_a_character_comes_with_its_last_byte(text):
    """Byte-level text is given out as soon as it is certain, character by character."""
    detokenizer = Detokenizer(KINDS["byte level"])
    for char in text:
        *first, last = byte_ids(KINDS["byte level"], char)
        assert detokenizer.push(first) == ""
        assert detokenizer.push([last]) == char


@given(st.binary(min_size=3 * MAX_WINDOW, max_size=4 * MAX_WINDOW))
def test_bytes_that_are_no_characters_do_not_pile_up(drawn):
    """Endless invalid bytes come out as replacement characters, and only a short window of tokens is kept."""
    detokenizer = Detokenizer(KINDS["byte level"])
    ids = [byte_level_ids(byte | 128)[0] for byte in drawn]
    given_out = "".join(detokenizer.push([token_id]) for token_id in ids)
    assert len(detokenizer._window) <= 2 * MAX_WINDOW
    assert given_out + detokenizer.finish() == KINDS["byte level"].decode(ids)
    assert len(given_out) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_skipped_tokens_do_not_pile_up(kind):
    """A long run of special and padding ids leaves no trace in the window."""
    tokenizer = KINDS[kind]
    detokenizer = Detokenizer(tokenizer)
    for _ in range(1000):
        assert detokenizer.push([tokenizer.eos_token_id, tokenizer.vocab_size]) == ""
    assert detokenizer._window == []


def test_blanks_between_words_survive_skipped_tokens():
    """A tokenizer that strips the first blank strips no other, even after a special token."""
    tokenizer = KINDS["byte fallback"]
    ids = [*tokenizer.encode("a b"), tokenizer.eos_token_id, *tokenizer.encode("b a")]
    assert "".join(pieces_of(tokenizer, [[token_id] for token_id in ids])) == tokenizer.decode(ids) == "a b b a"


def test_a_run_of_byte_tokens_waits_for_its_end():
    """A further byte may make a run invalid as a whole, so nothing of it is given out before the run ends."""
    tokenizer = KINDS["byte fallback"]
    euro, stray = byte_ids(tokenizer, "€"), min(tokenizer.byte_token_ids) + 0xFF
    assert pieces_of(tokenizer, [euro, tokenizer.encode("b")]) == ["", "€ b", ""]
    assert pieces_of(tokenizer, [euro, [stray]]) == ["", "", "\ufffd" * 4]
