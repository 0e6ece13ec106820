"""The mutator makes the changes it says, its list of equivalents is true to the source, and a mutant that matters dies."""

import ast

import pytest

from core.seeding import SOURCE, Bug
from mutation.checks import explorations
from mutation.mutants import all_mutants, mutants
from mutation.run import FOLDERS, SURVIVED, equivalents, place_in_sample, verdicts

SNIPPET = '''
def half(items: list[int], most: int = 0) -> int | None:
    """Docstring."""
    rest = min(len(items), most)
    rest = rest - 1
    if rest < 0 and items:
        raise ValueError(f"{rest} is less than 0")
    return sum(items[:rest])
'''


def changes(text):
    """The mutants of a text, without file and function."""
    return {each.name.partition(": ")[2] for each in mutants("file.py", text)}


def test_a_small_function_has_these_mutants() -> None:
    """All of them, so that a change of the rules is seen here."""
    test = "if rest < 0 and items: -> "
    assert changes(SNIPPET) == {
        "rest = min(len(items), most) -> rest = max(len(items), most)",
        "rest = min(len(items), most) -> rest = min(most)",
        "rest = min(len(items), most) -> rest = min(len(items))",
        "rest = rest - 1 -> nothing",
        "rest = rest - 1 -> rest = rest + 1",
        "rest = rest - 1 -> rest = rest - 2",
        "rest = rest - 1 -> rest = rest - 0",
        test + "nothing",
        test + "if not (rest < 0 and items):",
        test + "if rest < 0 or items:",
        test + "if rest <= 0 and items:",
        test + "if rest < 1 and items:",
        test + "if rest < -1 and items:",
        "raise ValueError(f'{rest} is less than 0') -> nothing",
        "return sum(items[:rest]) -> return None",
        "return sum(items[:rest]) -> return sum(items[:])",
    }


@pytest.mark.parametrize(
    "text",
    [
        "from a import b",
        "def f(a: int = 0) -> int:\n    return a",
        "for one in zip(a, b, strict=True):\n    'Text.'",
        "def f(a):\n    b = g(a, 'text')\n    return b",
        "class A:\n    b: tuple[int, ...]\n    '''Text.'''",
        "def f(a):\n    a: int",
        "T = TypeVar('T', bound=1)",
        "def f():\n    yield f'{1 + 1}'",
        "@overload\ndef f():\n    return 1 + 1",
    ],
)
def test_what_the_rules_leave_alone_has_no_mutants(text: str) -> None:
    """Imports, annotations and defaults of arguments, only bindings, declarations, messages, overloads."""
    assert changes(text) == set()


def test_each_mutant_is_another_program_and_can_be_told_from_the_others() -> None:
    """Applied to its file it changes it as its name says, and no two have one name."""
    listed = mutants("schedule/finish.py", (SOURCE / "schedule/finish.py").read_text("utf-8"))
    text = (SOURCE / "schedule/finish.py").read_text("utf-8")
    programs = {each.apply(text) for each in listed}
    assert len(programs) == len(listed) == len({each.name for each in listed}) > 30
    assert ast.unparse(ast.parse(text)) not in programs


def test_what_is_listed_as_equivalent_is_a_mutant() -> None:
    """An entry whose place in the source has changed is an error, and each has its reason."""
    assert set(equivalents()) <= {each.name for each in all_mutants(SOURCE, *FOLDERS)}
    assert all(len(reason) > 10 for reason in equivalents().values())


def test_a_sample_is_part_of_every_larger_one() -> None:
    """The place of a mutant in the order depends on its name alone."""
    listed = all_mutants(SOURCE, "schedule")
    assert {place_in_sample(each) for each in listed} == set(range(100))


def test_a_mutant_dies_and_the_source_lives() -> None:
    """One that leaks a row, beside none."""
    name = "schedule/finish.py finish: rows = (*rows, sequence.row) -> nothing"
    leak = next(each for each in all_mutants(SOURCE, "schedule") if each.name == name)
    none = Bug("none", "state/invariants.py", "@frozen", "@frozen")
    assert dict(verdicts([none, leak], (explorations,))) == {none: SURVIVED, leak: "explorations"}
