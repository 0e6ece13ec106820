"""Generated texts: the same for the same seed, grammatical in what can be checked, and varied."""

import re
from collections import Counter
from itertools import islice
from random import Random

import pytest

from nanofn.embedded.conversations import generated
from nanofn.embedded.markup import END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS, START_OF_TURN
from nanofn.embedded.plots import FABLES, PLOTS
from nanofn.embedded.stories import fable, story
from nanofn.embedded.words import ANIMALS, PEOPLE, PLACES, pick, where, with_article

TEXTS = list(islice(generated(3), 3000))
STORIES = [story(Random(seed)) for seed in range(1500)]
FABLES_TOLD = [fable(Random(seed)) for seed in range(500)]


def bare(text):
    """A text without its tokens."""
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "\n")
    return text


def test_texts_depend_on_the_seed_alone():
    """The same seed writes the same texts, another seed others."""
    assert TEXTS == list(islice(generated(3), 3000))
    assert TEXTS[:50] != list(islice(generated(4), 50))


def test_each_text_is_one_document():
    """It ends with the end token, which comes nowhere else; turns are opened and ended in pairs."""
    for text in TEXTS:
        assert text.endswith(END_OF_TEXT)
        assert text.count(END_OF_TEXT) == 1
        assert text.count(START_OF_TURN) == text.count(END_OF_TURN)


def test_users_and_assistants_take_turns():
    """A conversation is user, assistant, user, assistant, and not long."""
    for text in TEXTS:
        roles = re.findall(re.escape(START_OF_TURN) + r"(\w+)\n", text)
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert len(roles) <= 10


def test_nobody_has_two_names():
    """A conversation in which the user tells a name has that one name, and the answer to the question is it."""
    for text in TEXTS:
        told = re.findall(r"Nice to meet you, (\w+)!", text)
        assert re.findall(r"Your name is (\w+)\.", text) == told
        assert len(told) <= 1


def test_articles_fit_what_follows():
    """Before a vowel stands "an", and "a" before the rest."""
    for text in map(bare, (*TEXTS, *STORIES, *FABLES_TOLD)):
        wrong = re.findall(r"\b[Aa] [aeio]\w*|\b[Aa]n [^aeiou\W]\w*", text)
        assert [found for found in wrong if found.split()[1] != "one"] == []


def test_sentences_begin_and_end():
    """Every sentence of a story begins with a capital or a quotation mark, and the story ends with a full stop."""
    for text in (*STORIES, *FABLES_TOLD):
        assert re.fullmatch(r"[A-Z].*[.!?\"]", text)
        assert re.findall(r"(?<!\")[.!?] [a-z]", text) == []
        assert text.count('"') % 2 == 0


def test_no_slot_stays_open():
    """No brace is left, and no blank is doubled or stands before a full stop."""
    assert [text for text in (*TEXTS, *STORIES, *FABLES_TOLD) if re.search(r"[{}]|  | [.,!?]", text)] == []


def test_pronouns_are_of_the_hero():
    """Where nobody but a girl and an animal appears, nobody is "he", and the other way round."""
    pronouns = {"girl": {"he", "him", "his"}, "boy": {"she", "her"}}
    for text in STORIES:
        names = {person for person in PEOPLE if re.search(rf"\b{person.name}\b", text)}
        kinds = {person.kind for person in names}
        if len(kinds) == 1:
            words = set(re.findall(r"[a-z]+", text.lower()))
            assert words & pronouns[kinds.pop()] == set()


def test_every_plot_and_every_word_is_told():
    """All plots and fables come, and so do all people, animals and places."""
    whole = " ".join((*STORIES, *FABLES_TOLD, *TEXTS))
    for word in (*(person.name for person in PEOPLE), *ANIMALS, *PLACES):
        assert re.search(rf"\b{word}\b", whole), word
    for plot in (*PLOTS, *FABLES):
        fixed = [sentence for sentence in plot if isinstance(sentence, str) and "{" not in sentence]
        slotted = [sentence for sentence in plot if isinstance(sentence, str) and "{" in sentence]
        pattern = re.escape(fixed[0]) if fixed else re.sub(r"\\\{\w+\\\}", ".+", re.escape(slotted[-1]))
        assert re.search(pattern, whole), plot


def test_a_wish_is_granted():
    """An animal, a hero or a place that was asked for is in the story."""
    for seed in range(100):
        random = Random(seed)
        animal, hero, place = pick(random, ANIMALS, 1.0), pick(random, PEOPLE, 1.0), pick(random, PLACES, 1.0)
        assert animal in fable(random, animal=animal)
        assert animal in story(random, animal=animal)
        assert hero.name in story(random, hero=hero)
        assert place in story(random, place=place)


def test_hardly_any_story_comes_twice():
    """Of 1,500 stories, at least 1,490 are different; of the conversations, short ones repeat."""
    assert len(set(STORIES)) >= 1490
    assert len(set(TEXTS)) > 0.7 * len(TEXTS)


@pytest.mark.parametrize("fall", [0.6, 0.88])
def test_earlier_words_are_likelier(fall):
    """The first choice leads the second by the given factor, so that greedy text has no near-ties at its slots."""
    random = Random(1)
    counts = Counter(pick(random, "abcdef", fall) for _ in range(20_000))
    assert counts["b"] / counts["a"] == pytest.approx(fall, abs=0.05)
    assert sorted(counts, key=counts.__getitem__, reverse=True) == list("abcdef")


def test_places_and_articles_have_their_forms():
    """In the garden, on the beach, at the lake; an owl, a fox."""
    assert [where(f"the {place}") for place in ("garden", "beach", "lake")] == [
        "in the garden",
        "on the beach",
        "at the lake",
    ]
    assert [with_article(noun) for noun in ("owl", "fox", "orange ball")] == ["an owl", "a fox", "an orange ball"]
