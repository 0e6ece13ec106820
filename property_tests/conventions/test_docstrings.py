"""Tensor functions say what they take, what they change and where they come from, in the words of `docs/shapes.md`.

That public things have docstrings at all, and that sections are well formed, is ruff's part (rules D).
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from conventions.source import ENGINE, KERNELS, ROOT, Function, is_kernel, label, names_in, tree

TENSOR_FILES = [
    path
    for root in (KERNELS, ENGINE / "model", ENGINE / "sampling")
    for path in sorted(root.rglob("*.py"))
    if not path.stem.startswith("_")  # private modules
]
AXES = re.compile(r"\[([^\[\]]*)\]")
WORD = re.compile(r"[A-Za-z_]\w*")


def tensor_functions(module: ast.Module) -> list[Function]:
    """Public functions of a module that take or return tensors; kernel bodies are no functions of tensors."""
    return [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and not is_kernel(node)
        and "Tensor" in annotations(node)
    ]


def annotations(function: Function) -> set[str]:
    """Identifiers in a function's signature."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    nodes = [argument.annotation for argument in arguments] + [function.returns]
    return set().union(*(names_in(node) for node in nodes if node is not None))


def is_alias(function: Function, docstring: str) -> bool:
    """Whether a function has nothing of its own to say: one expression, or a reference that names what it mirrors."""
    body = function.body[1:]
    return (len(body) == 1 and isinstance(body[0], ast.Return)) or bool(re.search(r"\b[Ss]ee `|\bAs `", docstring))


def missing_sections(function: Function, *, is_inner: bool = False) -> list[str]:
    """Sections that a tensor function's docstring lacks.

    An op has all of them, and stands for what it is made of: a function inside the kernel package (`is_inner`) that
    returns nothing only says what it mutates. So does its reference, unless it refers to the op.
    """
    docstring = ast.get_docstring(function) or ""
    is_op = any("define_op" in names_in(decorator) for decorator in function.decorator_list)
    if not is_op and docstring and is_alias(function, docstring):
        return []
    if not is_op and is_inner:
        returns_nothing = isinstance(function.returns, ast.Constant) and function.returns.value is None
        only_raises = function.name.startswith("check")
        return ["Mutates"] if returns_nothing and not only_raises and "Mutates" not in docstring else []
    wanted = ["Mutates", "Accuracy", "Source"] if is_op else ["Mutates", "Source"]
    return [section for section in wanted if not re.search(rf"^{section}:", docstring, re.MULTILINE)]


def axes_in(docstring: str) -> set[str]:
    """Axis words at the head of an argument's or a result's description."""
    found: set[str] = set()
    for line in docstring.splitlines():
        head = re.match(r"\s*(?:\w+:?\s+)?\[([^\[\]]*)\] ?(?:\w|,|\.|$)", line)
        if head:
            found |= set(WORD.findall(head.group(1)))
    return found


@cache
def axis_words() -> frozenset[str]:
    """Words that `docs/shapes.md` defines: the first cell of each row of its tables."""
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "shapes.md").read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(rows)


@pytest.mark.parametrize("path", TENSOR_FILES, ids=label)
def test_tensor_functions_say_what_they_change_and_where_they_come_from(path: Path) -> None:
    """Public tensor functions have the sections Mutates and Source; an op has Accuracy as well."""
    is_inner = KERNELS in path.parents
    lacking = {
        function.name: missing_sections(function, is_inner=is_inner) for function in tensor_functions(tree(path))
    }
    assert {name: sections for name, sections in lacking.items() if sections} == {}


@pytest.mark.parametrize("path", TENSOR_FILES, ids=label)
def test_axis_words_are_defined(path: Path) -> None:
    """Every axis word in a tensor function's docstring stands in docs/shapes.md."""
    used = {name for f in tensor_functions(tree(path)) for name in axes_in(ast.get_docstring(f) or "")}
    ordinary = {"at", "least", "more", "than", "same", "any"}
    assert sorted(used - axis_words() - ordinary) == []


def test_the_checks_see_tensor_functions() -> None:
    """The two checks above look at something in each of the packages they are for."""
    for root in (KERNELS, KERNELS / "reference", ENGINE / "model", ENGINE / "sampling"):
        assert any(tensor_functions(tree(path)) for path in TENSOR_FILES if root in path.parents), label(root)


def test_a_missing_section_is_found() -> None:
    """A planted function without Mutates and Source is reported."""
    planted = ast.parse('def f(x: Tensor) -> Tensor:\n    """Do it."""\n    y = x + 1\n    return y')
    assert missing_sections(tensor_functions(planted)[0]) == ["Mutates", "Source"]
    assert missing_sections(tensor_functions(planted)[0], is_inner=True) == []
    assert axes_in("Args:\n    x: [num_rows, vocab_size // 4] fp32.\n    y: a list.") == {"num_rows", "vocab_size"}
