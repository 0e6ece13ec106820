"""`docs/invariants.md` is complete and true: ids, tests, and what the checks of the core look at."""

import ast
import re

import pytest

from conventions.named_tests import missing_tests, named_tests, table
from conventions.source import ENGINE, ROOT, tree

PAGE = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
ROWS = table(PAGE)
STATED = {cells[0]: cells for cells in ROWS if len(cells) == 5}
GONE = {cells[0]: cells for cells in ROWS if len(cells) == 3}
IDS = [
    f"{kind}{number}"
    for kind, count in {"inv": 56, "safe": 14, "pol": 5, "live": 5, "meta": 13}.items()
    for number in range(1, count + 1)
]
"""Every id that there is; a new one needs a row, and an old one is never given to another fact."""

CHECKS = {"violations": "invariants.py", "step_violations": "step_invariants.py"}


def ids_in(file: str) -> set[str]:
    """The ids that a module of the core gives to its findings."""
    strings = [node.value for node in ast.walk(tree(ENGINE / "state" / file)) if isinstance(node, ast.Constant)]
    return {text for text in strings if isinstance(text, str) and re.fullmatch(r"(inv|safe)\d+", text)}


def test_every_id_has_one_row() -> None:
    """Each invariant and property stands once on the page, with tests or with the reason why it falls away."""
    assert sorted(cells[0] for cells in ROWS) == sorted(IDS)
    assert {cells[1] for cells in STATED.values()} == {"core", "policy", "quality"}
    assert [cells for cells in ROWS if not all(cells)] == []


@pytest.mark.parametrize("name", sorted(STATED))
def test_every_id_names_tests_that_exist(name: str) -> None:
    """At least one test states it."""
    assert named_tests(STATED[name][3]) != []
    assert missing_tests(STATED[name][3]) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    """A wrong name, and a wrong file."""
    assert missing_tests("`core/test_plan.py::test_no_such` `core/test_no_such.py::test_a`") == [
        "core/test_plan.py::test_no_such",
        "core/test_no_such.py::test_a",
    ]


@pytest.mark.parametrize("check", CHECKS)
def test_findings_have_the_ids_of_the_page(check: str) -> None:
    """What `violations` and `step_violations` may find is what the page says they check."""
    assert ids_in(CHECKS[check])
    assert ids_in(CHECKS[check]) == {name for name, cells in STATED.items() if f"`{check}`" in cells[4]}


@pytest.mark.parametrize("name", sorted(set.union(*map(ids_in, CHECKS.values()))))
def test_each_finding_has_a_test_that_plants_its_fault(name: str) -> None:
    """Its row names a test of `invariants/test_what_findings_find.py`."""
    assert "invariants/test_what_findings_find.py" in [file for file, _ in named_tests(STATED[name][3])]
