"""Short stories for training: own text, grammatical by construction, endless, and the same for the same seed."""

from random import Random

from nanofn.embedded.stand_in.words import (
    ANIMALS,
    COLOURS,
    FAMILY,
    FEELINGS,
    FOODS,
    GENTLE_FALL,
    HIDING_PLACES,
    HOMES,
    PEOPLE,
    PLACES,
    THINGS,
    TIMES,
    TRAITS,
    WEATHERS,
    Person,
    pick,
)

Sentence = str | tuple[str, ...]
"""A sentence with slots, or several to choose from."""

OPENINGS: tuple[Sentence, ...] = (
    (
        "Once upon a time there was a {trait} {kind} named {name}.",
        "There once was a {trait} {kind} called {name}.",
        "{name} was a {trait} {kind}.",
    ),
    ("{They} lived {home} with {their} {family}.", "{name} and {their} {family} lived {home}."),
    (
        "{They} had a {colour} {thing} that {they} took everywhere.",
        "{They} had a little {animal} that slept beside {their} bed.",
        "{They} liked nothing more than a day at {place}.",
    ),
)

PLOTS: tuple[tuple[Sentence, ...], ...] = (
    (
        "{time} {they} went to {place} with {their} {colour} {thing}.",
        (
            "A strong wind came and carried the {thing} away.",
            "{They} put it down, and when {they} looked again it was gone.",
        ),
        "{name} looked everywhere and could not find it.",
        '"Do not cry," said {their} {family}. "We will look together."',
        "They searched {place}, and then they searched {other_place}.",
        "At last they saw something {colour} behind a {hiding_place}.",
        "It was the {thing}, and {name} held it tight all the way home.",
    ),
    (
        "{time} {they} found a {animal} near {place}.",
        (
            "The {animal} was hungry and very tired.",
            "The {animal} had hurt its leg.",
            "The {animal} was lost and afraid.",
        ),
        '"You can come home with me," said {name}.',
        "{They} gave it some {food} and made it a bed of straw.",
        "After three days the {animal} was well again.",
        "It could have gone home, but it stayed with {name}.",
    ),
    (
        "{time} {name} wanted to make {food} for {their} {family}.",
        ("But there was no salt in the house.", "But there was no wood for the fire.", "But there was no milk left."),
        "So {they} walked to {place} and asked {friend} for help.",
        '"I have more than I need," said {friend}. "Take some of mine."',
        "They cooked together, and they sang while they cooked.",
        'In the evening {name} put the {food} on the table and said, "This is for you."',
    ),
    (
        "{time} {they} heard a strange sound from {place}.",
        "{name} was afraid, but {they} wanted to know what it was.",
        "{They} walked closer, one small step at a time.",
        "Behind a {hiding_place} sat a {animal} with a {colour} {thing}.",
        ("It looked at {name} and rang like a bell.", "The {animal} was as afraid as {name} was."),
        "{name} began to laugh, and {they} was not afraid any more.",
    ),
    (
        "{time} {name} met {friend} at {place}.",
        "{friend} had a new {colour} {thing}, and {name} wanted one too.",
        '"May I play with it?" asked {name}.',
        (
            '"No, it is mine," said {friend}, and both of them were sad.',
            '"Only if I may play with yours," said {friend}.',
        ),
        'Then {friend} said, "We can share it. You go first."',
        "They played until the sun went down, and they were friends from that day on.",
    ),
    (
        "{time} {name} put a small seed into the ground near {place}.",
        "{They} gave it water every day, but nothing grew.",
        '"Be patient," said {their} {family}. "Good things need time."',
        "The rain came, and the sun came, and {name} waited.",
        "When summer came there was a tall plant with {colour} flowers.",
        "{name} gave the first flower to {their} {family}.",
    ),
    (
        '{time} {their} {family} said, "Please take this {food} to {friend}, and come back before dark."',
        "On the way {they} saw children playing at {place}.",
        "{name} wanted to stop, but {they} remembered {their} promise.",
        "{They} walked on to {other_place} and gave the {food} to {friend}.",
        '"You kept your word," said {friend}. "Thank you, {name}."',
        "Then {they} ran back and played until the first star came out.",
    ),
    (
        "{time} it was so {weather} that nobody went outside.",
        "{name} sat at the window and did not know what to do.",
        '"Once I was lost at {place}," said {their} {family}, "and a {animal} showed me the way."',
        ('"Is that true?" asked {name}.', '"What did it look like?" asked {name}.'),
        '"It had a {colour} {thing}," said {their} {family}, and smiled.',
        "{name} asked for the story again, and again, until {they} fell asleep.",
    ),
    (
        "{time} {name} and {friend} built a {thing} out of old wood.",
        "The first one broke, and the second one broke too.",
        '"Let us stop," said {friend}, but {name} shook {their} head.',
        "They tried once more, slowly, and this time it held.",
        "They painted it {colour} and carried it to {place}.",
        'Everybody asked, "Who made this?" and the two of them said, "We did!"',
    ),
)

ENDINGS: Sentence = (
    "That night {name} slept very well.",
    "{name} was {feeling}, and so was everybody else.",
    "It was the best day of the whole year.",
    "And that is the end of the story.",
)

FABLES: tuple[tuple[Sentence, ...], ...] = (
    (
        "The {animal} was hungry.",
        "It looked for {food} at {place}, but there was none.",
        'Then it met the {other_animal}. "I have some {food}," said the {other_animal}.',
        '"Will you share it with me?" asked the {animal}.',
        "They sat down and ate together, and both had enough.",
        "From that day on they shared everything.",
    ),
    (
        "The {animal} and the {other_animal} wanted to know who was faster.",
        "They ran from {place} to {other_place}.",
        "The {other_animal} ran ahead, and then it lay down and slept.",
        "The {animal} was slow, but it did not stop.",
        "When the {other_animal} woke up, the {animal} was already there.",
    ),
    (
        "The {animal} lived {home}.",
        "Every evening it looked at the moon and thought it was a {thing}.",
        '"I will climb up and get it," said the {animal}.',
        'It climbed onto the roof, but the moon was still far away. "You can look at it from here," said the {other_animal}.',
        "So they sat on the roof and looked at the moon all night.",
    ),
)


def story(random: Random, *, animal: str | None = None) -> str:
    """Tell a story about a child.

    Args:
        random: Where choices come from.
        animal: Which animal appears; None leaves it to chance.
    """
    hero = pick(random, PEOPLE, GENTLE_FALL)
    friend = pick(random, [person for person in PEOPLE if person != hero], GENTLE_FALL)
    sentences = (*OPENINGS, *pick(random, PLOTS, GENTLE_FALL), ENDINGS)
    return _tell(random, sentences, _slots(random, hero, friend, animal))


def fable(random: Random, *, animal: str | None = None) -> str:
    """Tell a story about two animals."""
    return _tell(random, pick(random, FABLES), _slots(random, *PEOPLE[:2], animal))


def _tell(random: Random, sentences: tuple[Sentence, ...], slots: dict[str, str]) -> str:
    chosen = (each if isinstance(each, str) else pick(random, each) for each in sentences)
    return " ".join(sentence.format_map(slots) for sentence in chosen)


def _slots(random: Random, hero: Person, friend: Person, animal: str | None) -> dict[str, str]:
    animal = animal or pick(random, ANIMALS, GENTLE_FALL)
    place = pick(random, PLACES, GENTLE_FALL)
    return {
        "name": hero.name,
        "kind": hero.kind,
        "they": hero.they,
        "They": hero.they.capitalize(),
        "them": hero.them,
        "their": hero.their,
        "friend": friend.name,
        "animal": animal,
        "other_animal": pick(random, [each for each in ANIMALS if each != animal], GENTLE_FALL),
        "place": place,
        "other_place": pick(random, [each for each in PLACES if each != place], GENTLE_FALL),
        "trait": pick(random, TRAITS),
        "home": pick(random, HOMES),
        "family": pick(random, FAMILY),
        "colour": pick(random, COLOURS, GENTLE_FALL),
        "thing": pick(random, THINGS, GENTLE_FALL),
        "food": pick(random, FOODS, GENTLE_FALL),
        "weather": pick(random, WEATHERS),
        "time": _time(random),
        "feeling": pick(random, FEELINGS),
        "hiding_place": pick(random, HIDING_PLACES),
    }


def _time(random: Random) -> str:
    return (
        f"{pick(random, TIMES)}, when it was {pick(random, WEATHERS)},"
        if random.random() < 0.3
        else pick(random, TIMES)
    )
