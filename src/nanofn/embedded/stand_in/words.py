"""Words of the training texts, likeliest first, and the weighted choice among them."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from attrs import frozen

Choice = TypeVar("Choice")

FALL = 0.6
"""A choice is this much less likely than the one before it. Equal odds would teach the model ties, and with them greedy
texts that change with the last bit of a logit."""

GENTLE_FALL = 0.85
"""For what a story says again later: the less certain it is beforehand, the more there is to learn from looking back."""


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
)  # fmt: skip
TRAITS = ("curious", "kind", "brave", "clever", "shy", "cheerful", "patient", "quiet", "careful", "stubborn")
HOMES = (
    "in a small house near the sea", "at the edge of a green forest", "in a village between two hills",
    "on a farm by the river", "above a bakery in the old town", "in a tall house with a red door",
)  # fmt: skip
FAMILY = ("grandmother", "father", "mother", "grandfather", "big sister", "uncle", "aunt", "big brother")
ANIMALS = ("cat", "dog", "rabbit", "duck", "fox", "owl", "horse", "mouse", "goat", "turtle")
COLOURS = ("red", "blue", "yellow", "green", "white", "brown", "golden", "orange")
THINGS = ("ball", "kite", "boat", "hat", "lamp", "drum", "scarf", "bell", "wagon", "basket")
PLACES = (
    "the garden", "the forest", "the market", "the beach", "the old mill", "the park", "the bridge", "the meadow",
    "the school", "the lake",
)  # fmt: skip
FOODS = ("bread", "soup", "apples", "cake", "honey", "pears", "cheese", "carrots")
WEATHERS = ("sunny", "windy", "rainy", "cold", "warm", "foggy", "snowy")
TIMES = ("One morning", "One day", "One afternoon", "Early one morning", "One evening", "After lunch")
FEELINGS = ("happy", "proud", "glad", "calm", "grateful")
HIDING_PLACES = ("bush", "bench", "big stone", "tree", "pile of leaves")


def pick(random: Random, choices: Sequence[Choice], fall: float = FALL) -> Choice:
    """Choose one, the earlier the likelier."""
    return random.choices(choices, [fall**rank for rank in range(len(choices))])[0]
