"""Words of the generated texts, likeliest first, and the weighted choice among them."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from attrs import frozen

Choice = TypeVar("Choice")

FALL = 0.6
"""A choice is this much less likely than the one before it. Equal odds would teach the model ties, and with them greedy
texts that change with the last bit of a logit."""

GENTLE_FALL = 0.88
"""For what a text says again later: the less certain it is beforehand, the more there is to learn from looking back."""

EVEN = 1.0
"""For what a user says: the model never has to choose it."""


@frozen
class Person:
    """Who a story is about, with the words that stand for them."""

    name: str
    they: str
    them: str
    their: str
    kind: str


def _girl(name: str) -> Person:
    return Person(name, "she", "her", "her", "girl")


def _boy(name: str) -> Person:
    return Person(name, "he", "him", "his", "boy")


PEOPLE = (
    _girl("Mia"), _boy("Leo"), _girl("Ada"), _boy("Tom"), _girl("Ruby"), _boy("Noah"), _girl("Lena"), _boy("Hugo"),
    _girl("Iris"), _boy("Paul"), _girl("Emma"), _boy("Theo"), _girl("Vera"), _boy("Emil"), _girl("Joan"), _boy("Karl"),
    _girl("Nora"), _boy("Finn"), _girl("Clara"), _boy("Oscar"), _girl("Ivy"), _boy("Jonas"), _girl("Grace"), _boy("Ben"),
)  # fmt: skip
TRAITS = (
    "curious", "kind", "brave", "clever", "shy", "cheerful", "patient", "quiet", "careful", "stubborn", "friendly",
    "gentle",
)  # fmt: skip
HOMES = (
    "in a small house near the sea", "at the edge of a green forest", "in a village between two hills",
    "on a farm by the river", "above a bakery in the old town", "in a tall house near the market",
    "beside a windmill", "at the end of a long road",
)  # fmt: skip
FAMILY = ("grandmother", "father", "mother", "grandfather", "big sister", "uncle", "aunt", "big brother")
ANIMALS = (
    "cat", "dog", "rabbit", "duck", "fox", "owl", "horse", "mouse", "goat", "turtle", "frog", "sheep", "hedgehog", "bear",
    "squirrel", "goose",
)  # fmt: skip
COLOURS = ("red", "blue", "yellow", "green", "white", "brown", "golden", "orange", "black", "purple", "silver", "grey")
THINGS = (
    "ball", "kite", "boat", "hat", "lamp", "drum", "scarf", "bell", "wagon", "basket", "book", "clock", "umbrella", "key",
    "coat", "flute",
)  # fmt: skip
PLACES = (
    "the garden", "the forest", "the market", "the beach", "the old mill", "the park", "the bridge", "the meadow",
    "the school", "the lake", "the library", "the harbour", "the orchard", "the hill",
)  # fmt: skip
_PREPOSITIONS = {
    "the garden": "in", "the forest": "in", "the park": "in", "the meadow": "in", "the library": "in", "the orchard": "in",
    "the beach": "on", "the bridge": "on", "the hill": "on",
}  # fmt: skip
FOODS = (
    "bread",
    "soup",
    "apples",
    "cake",
    "honey",
    "pears",
    "cheese",
    "carrots",
    "plums",
    "pancakes",
    "berries",
    "rice",
)
DISHES = ("bread", "soup", "cake", "pancakes", "rice", "pudding")
WOODEN = ("boat", "wagon", "kite", "table", "drum", "ladder")
BAD_WEATHERS = ("rainy", "windy", "cold", "foggy", "stormy")
WEATHERS = ("sunny", "windy", "rainy", "cold", "warm", "foggy", "snowy")
TIMES = (
    "One morning", "One day", "One afternoon", "Early one morning", "One evening", "After lunch", "On the first day of spring",
    "Late in the summer",
)  # fmt: skip
FEELINGS = ("happy", "proud", "glad", "calm", "grateful")
HIDING_PLACES = ("bush", "bench", "big stone", "tree", "pile of leaves", "wall")
JOBS = ("baker", "fisherman", "gardener", "shoemaker", "painter", "clockmaker", "farmer", "teacher")


def pick(random: Random, choices: Sequence[Choice], fall: float = FALL) -> Choice:
    """Choose one, the earlier the likelier."""
    return random.choices(choices, [fall**rank for rank in range(len(choices))])[0]


def with_article(noun: str) -> str:
    """Put "a" or "an" before a noun or what describes it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def where(place: str) -> str:
    """Put the preposition of being there before a place."""
    return f"{_PREPOSITIONS.get(place, 'at')} {place}"
