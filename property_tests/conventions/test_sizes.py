"""Files and functions stay small enough to be read whole."""

import ast
from pathlib import Path

import pytest

from conventions.source import KERNELS, Function, functions, is_kernel, label, product_files, tree

MAX_FILE_LINES = 300
MAX_KERNEL_FILE_LINES = 400
"""A kernel's file holds its body, its reduction, its launch and the longest docstrings of the project."""

MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 120
"""A kernel is one function by nature: Triton inlines what it calls, and a reader follows one tile through it."""


def length(path: Path, function: Function) -> int:
    """A function's lines from signature to end; in the kernel package without the docstring, which has a fixed form."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if KERNELS in path.parents and ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", product_files(), ids=label)
def test_files_and_functions_are_short(path: Path) -> None:
    """No file has more than 300 lines (a kernel's: 400), no function more than 60, no kernel body more than 120."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= (MAX_KERNEL_FILE_LINES if KERNELS in path.parents else MAX_FILE_LINES)
    too_long = {
        function.name: length(path, function)
        for function in functions(tree(path))
        if length(path, function) > (MAX_KERNEL_LINES if is_kernel(function) else MAX_FUNCTION_LINES)
    }
    assert too_long == {}


def test_no_module_is_named_for_nothing() -> None:
    """A module is named for its noun or verb, so none is a drawer for everything else."""
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
    assert [label(path) for path in product_files() if path.stem in drawers] == []
