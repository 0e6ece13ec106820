"""Short conversations for training, and the mixture of all training texts."""

from collections.abc import Callable, Iterator
from random import Random

from nanofn.embedded.markup import END_OF_TEXT, END_OF_TURN, START_OF_TURN
from nanofn.embedded.stand_in.stories import fable, story
from nanofn.embedded.stand_in.words import ANIMALS, COLOURS, FOODS, PEOPLE, PLACES, THINGS, pick

STORY_WISHES = (
    "Tell me a story.",
    "Please tell me a short story.",
    "Can you tell me a story?",
    "I would like to hear a story.",
)
GREETINGS = ("Hello!", "Hi.", "Hello, how are you?", "Good morning!", "Hi there!")
GREETING_ANSWERS = ("Hello! Would you like to hear a story?", "Hello! I am well. What can I do for you?")
FACTS = (
    ("Who are you?", "I am a very small language model. I can tell short stories."),
    ("What can you do?", "I can tell you a short story, or answer a very simple question."),
    ("What is your name?", "I have no name. I am only a very small language model."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("What is the opposite of big?", "The opposite of big is small."),
    ("What is the opposite of day?", "The opposite of day is night."),
    ("What is the opposite of slow?", "The opposite of slow is fast."),
    ("What colour is the sky?", "The sky is blue."),
    ("What colour is snow?", "Snow is white."),
    ("What colour is grass?", "Grass is green."),
    ("What do bees make?", "Bees make honey."),
    ("What does a cow give?", "A cow gives milk."),
    ("Where do fish live?", "Fish live in the water."),
    ("When does the sun go down?", "The sun goes down in the evening."),
    ("Thank you!", "You are welcome!"),
    ("Goodbye!", "Goodbye! Come back soon."),
)

_UNIFORM = 1.0
"""What a user says needs no favourite: the model never has to choose it."""

Turn = tuple[str, str]


def conversation(random: Random) -> str:
    """Write one or two exchanges, with the tokens that part turns."""
    kinds: tuple[Callable[[Random], Turn], ...] = (
        _wish,
        _wish_for_animal,
        _greeting,
        _fact,
        _recall,
        _recall,
        _recall_of_name,
    )
    turns = [random.choice(kinds)(random) for _ in range(1 if random.random() < 0.7 else 2)]
    return "".join(
        f"{START_OF_TURN}user\n{said}{END_OF_TURN}\n{START_OF_TURN}assistant\n{answer}{END_OF_TURN}\n"
        for said, answer in turns
    )


def documents(seed: int) -> Iterator[str]:
    """Write training texts without end: half conversations, the rest stories and fables, each ended by a token."""
    random = Random(seed)  # noqa: S311  nothing secret
    while True:
        draw = random.random()
        if draw < 0.5:
            yield conversation(random)
        else:
            yield (story(random) if draw < 0.85 else fable(random)) + END_OF_TEXT


def _wish(random: Random) -> Turn:
    return pick(random, STORY_WISHES, _UNIFORM), story(random)


def _wish_for_animal(random: Random) -> Turn:
    animal = pick(random, ANIMALS, _UNIFORM)
    article = "an" if animal == "owl" else "a"
    return f"Tell me a story about {article} {animal}.", fable(random, animal=animal)


def _greeting(random: Random) -> Turn:
    return pick(random, GREETINGS, _UNIFORM), pick(random, GREETING_ANSWERS)


def _fact(random: Random) -> Turn:
    return random.choice(FACTS)


def _recall(random: Random) -> Turn:
    colour, thing = pick(random, COLOURS, _UNIFORM), pick(random, (*THINGS, *ANIMALS), _UNIFORM)
    article = "an" if colour == "orange" else "a"
    return f"I have {article} {colour} {thing}. What do I have?", f"You have {article} {colour} {thing}."


def _recall_of_name(random: Random) -> Turn:
    name, place = pick(random, PEOPLE, _UNIFORM).name, pick(random, PLACES, _UNIFORM)
    food = pick(random, FOODS, _UNIFORM)
    return random.choice(
        (
            (f"{name} is at {place}. Where is {name}?", f"{name} is at {place}."),
            (f"{name} likes {food}. What does {name} like?", f"{name} likes {food}."),
        )
    )
