"""Streaming with tokenizers of published models: pieces join to the final text, whatever the ids."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import example, given, settings, strategies as st

from nanofn.text.detokenizer import REPLACEMENT, Detokenizer
from text.real_material import NAMES, real_tokenizer

NUM_SEQUENCES, NUM_SLOW_SEQUENCES = 300, 5000


@cache
def fragments(name):
    """Ids whose own text is no character: a part of one, or stray bytes."""
    tokenizer = real_tokenizer(name)
    ids = range(min(tokenizer.vocab_size, 30_000))
    return [token_id for token_id in ids if REPLACEMENT in tokenizer.decode([token_id])]


@st.composite
def sequences(draw, name):
    """Ids in the batches they come in: any, fragments of characters, special ones, padding, and those of real text."""
    tokenizer = real_tokenizer(name)
    any_id = st.integers(0, tokenizer.vocab_size + 5)
    special = st.sampled_from(sorted(tokenizer.special_token_ids))
    of_text = st.text(max_size=12).map(tokenizer.encode)
    runs = st.one_of(
        st.lists(any_id, max_size=12),
        st.lists(st.sampled_from(fragments(name)), max_size=12),
        st.lists(special, max_size=3),
        of_text,
    )
    ids = [token_id for run in draw(st.lists(runs, max_size=8)) for token_id in run]
    cuts = (
        sorted(draw(st.sets(st.integers(0, len(ids)), max_size=len(ids)))) if draw(st.booleans()) else range(len(ids))
    )
    edges = [0, *cuts, len(ids)]
    return [ids[first:last] for first, last in pairwise(edges)]


def assert_pieces_join(name, batches, *, skip):
    """Nothing is lost, repeated or altered: what has come is a prefix of the final text, and at the end all of it."""
    tokenizer = real_tokenizer(name)
    final = tokenizer.decode([token_id for batch in batches for token_id in batch], skip_special_tokens=skip)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    text = ""
    for batch in batches:
        text += detokenizer.push(batch)
        assert final.startswith(text)
    assert text + detokenizer.finish() == final


def check_sequences(name, max_examples):
    """Draw so many id sequences, cut into batches anywhere."""
    real_tokenizer(name)

    @settings(max_examples=max_examples)
    @given(batches=sequences(name), skip=st.booleans())
    def check(batches, skip):
        assert_pieces_join(name, batches, skip=skip)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_pieces_of_any_ids_join_to_the_final_text(name):
    """A few hundred id sequences, cut into batches anywhere."""
    check_sequences(name, NUM_SEQUENCES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_pieces_of_thousands_of_sequences_join_to_the_final_text(name):
    """The same for 5,000 id sequences of each tokenizer."""
    check_sequences(name, NUM_SLOW_SEQUENCES)


@pytest.mark.parametrize("name", NAMES)
def test_no_piece_of_real_text_has_a_broken_character(name):
    """Characters that are split over tokens come whole, and the text comes back as the tokenizer normalises it."""
    tokenizer = real_tokenizer(name)

    @given(text=st.text(max_size=40))
    @example("naïve café €5 日本語 👩‍👩‍👧 \U0001f9d1\u200d\U0001f680")
    def check(text):
        ids = tokenizer.encode(text)
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        pieces = [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.finish()]
        final = tokenizer.decode(ids, skip_special_tokens=False)
        assert "".join(pieces) == final
        # A vocabulary may lack a byte (SmolLM2's does): then the final text has the replacement too.
        assert all(REPLACEMENT in final or REPLACEMENT not in piece for piece in pieces)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_these_tokenizers_split_characters(name):
    """Each has tokens that are parts of characters, so that the properties above are about something."""
    tokenizer = real_tokenizer(name)
    assert len(fragments(name)) > 50
    assert any(token_id in set(fragments(name)) for token_id in tokenizer.encode("𐍈"))
