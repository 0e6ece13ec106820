"""The repository as text and as syntax trees, for the tests of this folder."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "src" / "nanofn"
KERNELS = ROOT / "kernels" / "nanofn_kernels"
PURE = ("errors", "config", "request", "state", "schedule", "policy")
"""The pure core: modules and packages of nanofn."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(*names: str) -> list[Path]:
    """The files of modules or packages of nanofn, in order."""
    single = [ENGINE / f"{name}.py" for name in names]
    return sorted(
        [path for path in single if path.exists()] + [p for name in names for p in (ENGINE / name).rglob("*.py")]
    )


def product_files() -> list[Path]:
    """Every Python file that a wheel ships."""
    return sorted([*ENGINE.rglob("*.py"), *KERNELS.rglob("*.py")])


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that git tracks and that is still there."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (ROOT / name for name in listing.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


@cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def label(path: Path) -> str:
    """A file's name as test output shows it."""
    return path.relative_to(ROOT).as_posix()


def functions(module: ast.AST) -> Iterator[Function]:
    """Every function and method, inner ones too."""
    return (node for node in ast.walk(module) if isinstance(node, Function))


def is_kernel(function: Function) -> bool:
    """Whether a function is the body of a Triton kernel: it has a decorator of a name such as `jit`."""
    return any("jit" in name for decorator in function.decorator_list for name in names_in(decorator))


def names_in(node: ast.AST) -> set[str]:
    """Every identifier in an expression: names, attributes, and those in quoted annotations."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                found |= names_in(ast.parse(part.value, mode="eval"))
            except SyntaxError:
                continue
    return found
