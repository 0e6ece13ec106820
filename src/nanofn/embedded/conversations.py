"""Short conversations for training: wishes for stories, simple questions, and looking back at what was said."""

from collections.abc import Callable, Iterator
from random import Random

from nanofn.embedded.facts import (
    ANSWERS,
    COLOURED,
    FEELINGS,
    GREETINGS,
    HOBBIES,
    OPPOSITES,
    OWN_ANSWERS,
    SOUNDS,
    TOPICS,
)
from nanofn.embedded.markup import END_OF_TEXT, write_turns
from nanofn.embedded.stories import fable, story
from nanofn.embedded.words import (
    ANIMALS,
    COLOURS,
    EVEN,
    FOODS,
    PEOPLE,
    PLACES,
    THINGS,
    pick,
    where,
    with_article,
)

Turn = tuple[str, str]
"""What the user says, and the answer."""

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WISHES = (
    "Tell me a story.", "Please tell me a short story.", "Can you tell me a story?", "I would like to hear a story.",
    "Tell me another story, please.", "Do you know a story?",
)  # fmt: skip
STORY_SHARE = 0.35
"""Of generated documents, those that are a story or a fable without a wish for it."""


def generated(seed: int) -> Iterator[str]:
    """Write training texts without end: stories, fables and conversations, each ended by a token."""
    random = Random(seed)  # noqa: S311  nothing secret
    while True:
        if random.random() < STORY_SHARE:
            yield (story(random) if random.random() < 0.75 else fable(random)) + END_OF_TEXT
        else:
            yield conversation(random)


def conversation(random: Random) -> str:
    """Write exchanges of one or more kinds, in the chat template's form."""
    exchanges: list[Turn] = []
    kinds: list[Callable[[Random], list[Turn]]] = []
    while len(exchanges) < 3 and (not exchanges or random.random() < 0.4):
        kind = random.choices(KINDS, WEIGHTS)[0]
        if kind not in kinds:  # nobody has two names
            kinds.append(kind)
            exchanges += kind(random)
    roles = [(role, said) for exchange in exchanges for role, said in zip(("user", "assistant"), exchange, strict=True)]
    return write_turns(roles) + END_OF_TEXT


def _wish(random: Random) -> list[Turn]:
    return [(pick(random, WISHES, EVEN), story(random))]


def _wish_for(random: Random) -> list[Turn]:
    begin = pick(random, ("Tell me a story about", "Please tell me a story about", "I want a story about"), EVEN)
    what = random.random()
    if what < 0.4:
        animal = pick(random, ANIMALS, EVEN)
        return [(f"{begin} {with_article(animal)}.", fable(random, animal=animal))]
    if what < 0.6:
        animal = pick(random, ANIMALS, EVEN)
        return [
            (
                f"{begin} {pick(random, ('a girl', 'a boy'), EVEN)} and {with_article(animal)}.",
                story(random, animal=animal),
            )
        ]
    if what < 0.8:
        hero = pick(random, PEOPLE, EVEN)
        return [(f"{begin} {with_article(hero.kind)} called {hero.name}.", story(random, hero=hero))]
    place = pick(random, PLACES, EVEN)
    return [(f"{begin} {place}.", story(random, place=place))]


def _greeting(random: Random) -> list[Turn]:
    return [
        (
            pick(random, GREETINGS, EVEN),
            pick(random, ("Hello! I am well. What can I do for you?", "Hello! Would you like to hear a story?")),
        )
    ]


def _fact(random: Random) -> list[Turn]:
    questions, answer = pick(random, ANSWERS, EVEN)
    return [(pick(random, questions, EVEN), answer)]


def _self(random: Random) -> list[Turn]:
    questions, answer = pick(random, OWN_ANSWERS, EVEN)
    return [(pick(random, questions, EVEN), answer)]


def _opposite(random: Random) -> list[Turn]:
    pair = pick(random, OPPOSITES, EVEN)
    first, second = pair if random.random() < 0.5 else pair[::-1]
    asked = pick(random, ("What is the opposite of {}?", "Can you tell me the opposite of {}?"), EVEN)
    return [(asked.format(first), f"The opposite of {first} is {second}.")]


def _colour(random: Random) -> list[Turn]:
    subject, verb, colour = pick(random, COLOURED, EVEN)
    return [(f"What colour {verb} {subject}?", f"{subject[0].upper()}{subject[1:]} {verb} {colour}.")]


def _sound(random: Random) -> list[Turn]:
    animal, sound = pick(random, SOUNDS, EVEN)
    return [(f"What does {with_article(animal)} say?", f"{with_article(animal).capitalize()} says {sound}.")]


def _order(random: Random) -> list[Turn]:
    names = pick(random, (NUMBERS, DAYS, MONTHS), EVEN)
    place = random.randrange(len(names) - 1)
    if random.random() < 0.5:
        return [(f"What comes after {names[place]}?", f"After {names[place]} comes {names[place + 1]}.")]
    return [(f"What comes before {names[place + 1]}?", f"Before {names[place + 1]} comes {names[place]}.")]


def _counting(random: Random) -> list[Turn]:
    last = random.randint(2, 10)
    return [(f"Please count to {NUMBERS[last - 1]}.", f"{', '.join(NUMBERS[:last]).capitalize()}.")]


def _recall(random: Random) -> list[Turn]:
    colour, thing = pick(random, COLOURS, EVEN), pick(random, (*THINGS, *ANIMALS), EVEN)
    described = with_article(f"{colour} {thing}")
    name, place, food = pick(random, PEOPLE, EVEN).name, pick(random, PLACES, EVEN), pick(random, FOODS, EVEN)
    return [
        pick(
            random,
            (
                (f"I have {described}. What do I have?", f"You have {described}."),
                (f"I have {described}. What colour is my {thing}?", f"Your {thing} is {colour}."),
                (f"{name} is {where(place)}. Where is {name}?", f"{name} is {where(place)}."),
                (f"{name} likes {food}. What does {name} like?", f"{name} likes {food}."),
                (f"{name} has {described}. Who has {described}?", f"{name} has {described}."),
            ),
            EVEN,
        )
    ]


def _name(random: Random) -> list[Turn]:
    name = pick(random, PEOPLE, EVEN).name
    told = (
        pick(random, ("My name is {}.", "I am {}.", "Hello, my name is {}."), EVEN).format(name),
        f"Nice to meet you, {name}!",
    )
    between = random.choice((_opposite, _colour, _hobby, _order))(random) if random.random() < 0.5 else []
    return [told, *between, ("What is my name?", f"Your name is {name}.")]


def _hobby(random: Random) -> list[Turn]:
    hobby, answer = pick(random, HOBBIES, EVEN)
    return [
        (pick(random, ("I like {}.", "I love {}.", "Today I was {}.", "Do you like {}?"), EVEN).format(hobby), answer)
    ]


def _feeling(random: Random) -> list[Turn]:
    feelings, answer = pick(random, FEELINGS, EVEN)
    feeling = pick(random, feelings, EVEN)
    return [(pick(random, ("I am {}.", "I am so {} today.", "I feel {}."), EVEN).format(feeling), answer)]


def _unknown(random: Random) -> list[Turn]:
    topic = pick(random, TOPICS, EVEN)
    asked = pick(
        random,
        ("What do you think about {}?", "Tell me about {}.", "What do you know about {}?", "Can you explain {}?"),
        EVEN,
    )
    return [(asked.format(topic), f"I do not know much about {topic}. But I can tell you a story, if you like.")]


KINDS: tuple[Callable[[Random], list[Turn]], ...] = (
    _wish, _wish_for, _greeting, _fact, _self, _opposite, _colour, _sound, _order, _counting, _recall, _name, _hobby,
    _feeling, _unknown,
)  # fmt: skip
WEIGHTS = (4, 8, 3, 5, 3, 3, 3, 2, 3, 1, 5, 3, 3, 3, 3)
"""How often each kind of exchange comes: long ones often, or answers would be all that is learned."""
