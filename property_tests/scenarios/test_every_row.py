"""`docs/scenarios.md` is complete and true: every report has its row, and every row its tests or its reason."""

import ast
from collections import Counter
from functools import cache

import pytest

from conventions.named_tests import missing_tests, named_tests, table
from conventions.source import ROOT, functions, tree

NUMBERS = {
    "A": (*range(1, 9), *range(10, 13)),
    "B": (1, 2, 4, 5, *range(7, 12)),
    "C": (*range(1, 14), 15, 16),
    "D": range(1, 6),
    "E": (*range(1, 6), *range(7, 14)),
    "F": (1, 2, 4, 5, *range(7, 15)),
    "G": (*range(2, 10), 12),
    "H": (*range(1, 9), 12),
    "I": range(1, 5),
    "J": (8,),
    "N": (1, 2),
    "T": (2, 3),
    "R": (*range(1, 9), *range(10, 34)),
    "L": (*range(1, 12), *range(13, 26), 27),
}
IDS = [f"{letter}{number}" for letter, numbers in NUMBERS.items() for number in numbers]
"""Every report about core, sampling and text that was collected. One that is added here needs a row."""

PAGE = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
ROWS = {cells[0]: cells for cells in table(PAGE)}


@cache
def marked() -> dict[str, set[str]]:
    """Row id to the tests of this folder that are marked with it."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "property_tests" / "scenarios").glob("test_*.py")):
        for function in functions(tree(path)):
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name):
                    for argument in decorator.args if decorator.func.id == "row" else []:
                        assert isinstance(argument, ast.Constant)
                        found.setdefault(str(argument.value), set()).add(f"{path.name}::{function.name}")
    return found


def test_every_report_has_one_row() -> None:
    """The page's rows are the ids, each once, with a link, a fact, and tests or a reason."""
    assert [row for row, count in Counter(cells[0] for cells in table(PAGE)).items() if count > 1] == []
    assert sorted(ROWS) == sorted(IDS)
    assert [row for row, cells in ROWS.items() if len(cells) != 4 or "https://" not in cells[1] or not cells[2]] == []
    assert [row for row, cells in ROWS.items() if len(cells[3]) < 20] == []


def test_every_test_that_a_row_names_exists() -> None:
    """Here and in other folders."""
    assert missing_tests(PAGE) == []


@pytest.mark.parametrize("row", IDS)
def test_marks_and_page_agree(row: str) -> None:
    """A test of this folder is marked with a row if and only if the row names it."""
    named = {f"{file.removeprefix('scenarios/')}::{name}" for file, name in named_tests(ROWS[row][3])}
    here = {name for name in named if "/" not in name}
    assert here == marked().get(row, set())


def test_no_mark_is_unknown() -> None:
    """A mark with an id that is not listed is a slip of the pen."""
    assert sorted(set(marked()) - set(IDS)) == []
