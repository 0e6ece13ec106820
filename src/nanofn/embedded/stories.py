"""Short stories for training: own text, grammatical by construction, endless, and the same for the same seed."""

from random import Random

from nanofn.embedded.plots import ENDINGS, FABLES, OPENINGS, PLOTS, Sentence
from nanofn.embedded.words import (
    ANIMALS,
    BAD_WEATHERS,
    COLOURS,
    DISHES,
    FAMILY,
    FEELINGS,
    FOODS,
    GENTLE_FALL,
    HIDING_PLACES,
    HOMES,
    JOBS,
    PEOPLE,
    PLACES,
    THINGS,
    TIMES,
    TRAITS,
    WEATHERS,
    WOODEN,
    Person,
    pick,
    where,
    with_article,
)

ARTICLED = ("animal", "colour", "own_colour", "thing", "trait", "job", "wooden")
"""Slots that have a second form with "a" or "an" before them."""


def story(random: Random, *, animal: str | None = None, hero: Person | None = None, place: str | None = None) -> str:
    """Tell a story about a child.

    Args:
        random: Where choices come from.
        animal: Which animal appears; None leaves it to chance, as with the next two.
        hero: Whom it is about.
        place: Where it happens.
    """
    hero = hero or pick(random, PEOPLE, GENTLE_FALL)
    friend = pick(random, [person for person in PEOPLE if person != hero], GENTLE_FALL)
    plots = [
        plot for plot in PLOTS if (animal is None or _has(plot, "animal}")) and (place is None or _has(plot, "place}"))
    ]
    sentences = (*OPENINGS, *pick(random, plots, GENTLE_FALL), ENDINGS)
    return _tell(random, sentences, _slots(random, hero, friend, animal, place))


def fable(random: Random, *, animal: str | None = None) -> str:
    """Tell a story about two animals."""
    return _tell(random, pick(random, FABLES, GENTLE_FALL), _slots(random, *PEOPLE[:2], animal, None))


def _has(plot: tuple[Sentence, ...], slot: str) -> bool:
    return any(isinstance(sentence, str) and slot in sentence for sentence in plot)


def _tell(random: Random, sentences: tuple[Sentence, ...], slots: dict[str, str]) -> str:
    chosen = (each if isinstance(each, str) else pick(random, each) for each in sentences)
    return " ".join(sentence.format_map(slots) for sentence in chosen)


def _slots(random: Random, hero: Person, friend: Person, animal: str | None, place: str | None) -> dict[str, str]:
    animal = animal or pick(random, ANIMALS, GENTLE_FALL)
    place = place or pick(random, PLACES, GENTLE_FALL)
    other_place = pick(random, [each for each in PLACES if each != place], GENTLE_FALL)
    colour, thing = pick(random, COLOURS, GENTLE_FALL), pick(random, THINGS, GENTLE_FALL)
    slots = {
        "name": hero.name,
        "kind": hero.kind,
        "they": hero.they,
        "They": hero.they.capitalize(),
        "them": hero.them,
        "their": hero.their,
        "friend": friend.name,
        "friend_they": friend.they,
        "friend_them": friend.them,
        "friend_their": friend.their,
        "animal": animal,
        "own_animal": pick(random, [each for each in ANIMALS if each != animal], GENTLE_FALL),
        "other_animal": pick(random, [each for each in ANIMALS if each != animal], GENTLE_FALL),
        "place": place,
        "at_place": where(place),
        "other_place": other_place,
        "at_other_place": where(other_place),
        "trait": pick(random, TRAITS),
        "home": pick(random, HOMES),
        "family": pick(random, FAMILY),
        "colour": colour,
        "thing": thing,
        "own_colour": pick(random, [each for each in COLOURS if each != colour], GENTLE_FALL),
        "own_thing": pick(random, [each for each in THINGS if each != thing], GENTLE_FALL),
        "wooden": pick(random, WOODEN, GENTLE_FALL),
        "food": pick(random, FOODS, GENTLE_FALL),
        "dish": pick(random, DISHES, GENTLE_FALL),
        "bad_weather": pick(random, BAD_WEATHERS),
        "time": _time(random),
        "feeling": pick(random, FEELINGS),
        "hiding_place": pick(random, HIDING_PLACES),
        "job": pick(random, JOBS),
    }
    return slots | {f"a_{name}": with_article(slots[name]) for name in ARTICLED}


def _time(random: Random) -> str:
    return (
        f"{pick(random, TIMES)}, when it was {pick(random, WEATHERS)},"
        if random.random() < 0.3
        else pick(random, TIMES)
    )
