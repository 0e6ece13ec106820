"""Tests that a page names, as `folder/test_file.py::test_name`, and those that there are."""

import ast
import re
from functools import cache

from conventions.source import ROOT, functions, tree

NAMED = re.compile(r"`([\w/]+/test_\w+\.py)::(\w+)`")
RULE_MACHINE = "TestEngine"
"""A rule machine's test is a class that Hypothesis makes."""


def named_tests(text: str) -> list[tuple[str, str]]:
    """Every (file, test) that a text names."""
    return NAMED.findall(text)


def table(text: str) -> list[list[str]]:
    """The cells of every row of a page's tables, heads left out."""
    rows = [line.strip().strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in cells] for cells in rows if cells[0].strip() != "id"]


@cache
def tests_in(file: str) -> frozenset[str]:
    """The names of a test file's tests; none if there is no such file."""
    path = ROOT / "property_tests" / file
    if not path.is_file():
        return frozenset()
    module = tree(path)
    names = {function.name for function in functions(module) if function.name.startswith("test_")}
    assigned = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return frozenset(names | (assigned & {RULE_MACHINE}))


def missing_tests(text: str) -> list[str]:
    """The tests that a text names and that do not exist."""
    return [f"{file}::{name}" for file, name in named_tests(text) if name not in tests_in(file)]
