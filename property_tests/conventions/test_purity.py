"""The core is pure: what import contracts and types cannot see, a walk over its syntax trees does."""

import ast
from pathlib import Path

import pytest

from conventions.source import PURE, Function, functions, label, modules, names_in, tree

FILES = modules(*PURE)

ALLOWED_IMPORTS = {
    "__future__", "attrs", "bisect", "collections", "collections.abc", "enum", "fractions", "functools", "hashlib", "heapq",
    "itertools", "math", "operator", "struct", "types", "typing",
}  # fmt: skip
"""Modules that neither keep state nor touch the world. Persistent maps have a door of their own: `state/persistent.py`."""

BANNED_CALLS = {
    "hash": "differs from process to process for text",
    "id": "is a memory address",
    "open": "is I/O",
    "print": "is I/O",
    "input": "is I/O",
    "breakpoint": "is I/O",
    "exec": "hides what it does",
    "eval": "hides what it does",
    "compile": "hides what it does",
    "setattr": "changes a value",
    "delattr": "changes a value",
    "globals": "reaches shared state",
    "locals": "reaches shared state",
    "vars": "reaches shared state",
    "__import__": "escapes the import contracts",
}
MUTABLE_MAKERS = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter", "count", "iter"}
MUTABLE_NODES = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
MUTABLE_TYPES = MUTABLE_MAKERS | {
    "MutableMapping",
    "MutableSequence",
    "MutableSet",
    "ndarray",
    "array",
    "List",
    "Dict",
    "Set",
}
RECORD_BASES = {"Protocol", "Enum", "IntEnum", "StrEnum", "NamedTuple", "TypedDict"}
CACHES = {"cache", "lru_cache", "cached_property"}


def stored(node: ast.AST) -> bool:
    """Whether a node stands where something is assigned or deleted."""
    return isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def locals_of(function: Function) -> set[str]:
    """Names that a function binds itself: fresh values, not arguments."""
    bound = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and stored(node)}
    return bound - arguments_of(function)


def arguments_of(function: Function) -> set[str]:
    """Names of a function's arguments."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument is not None}


def impurities(module: ast.Module, name: str = "") -> list[str]:
    """Everything in a module that a pure module does not do, as `line: what`."""
    found: list[tuple[int, str]] = []
    own_hashes = {id(node) for f in functions(module) if f.name == "__hash__" for node in ast.walk(f)}
    for node in ast.walk(module):
        if id(node) in own_hashes and isinstance(node, ast.Call) and names_in(node.func) == {"hash"}:
            continue  # how Python asks for a hash; nothing that is kept or sent depends on its value
        found += [(getattr(node, "lineno", 0), what) for what in impurities_of_node(node, name)]
    for function in functions(module):
        found += impurities_of_function(function, name)
    for body in [module, *(node for node in ast.walk(module) if isinstance(node, ast.ClassDef))]:
        found += [(statement.lineno, "a mutable global") for statement in body.body if is_mutable_global(statement)]
    return [f"{line}: {what}" for line, what in sorted(set(found))]


def impurities_of_node(node: ast.AST, name: str) -> list[str]:
    """What one node does that a pure module does not."""
    match node:
        case ast.Global() | ast.Nonlocal():
            return ["global or nonlocal"]
        case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await():
            return ["async"]
        case ast.Call(func=ast.Name(id=called)) if called in BANNED_CALLS:
            return [f"{called}() {BANNED_CALLS[called]}"]
        case ast.Attribute(attr="__setattr__" | "__delattr__" | "__dict__"):
            return ["a frozen record's back door"]
        case ast.Import(names=imported):
            return [f"import of {alias.name}" for alias in imported if not importable(alias.name, name)]
        case ast.ImportFrom(module=str(source)):
            return [] if importable(source, name) else [f"import of {source}"]
        case ast.For(iter=iterated) | ast.comprehension(iter=iterated) if is_set(iterated):
            return ["iterates a set: its order is not a value"]
        case ast.ClassDef():
            return impurities_of_class(node)
    return []


def impurities_of_function(function: Function, name: str) -> list[tuple[int, str]]:
    """Assignments and calls through which a function would change something that it did not make."""
    fresh, found = locals_of(function), []
    in_exception = function.name == "__init__" and name.endswith("errors.py")
    if any(names_in(decorator) & CACHES for decorator in function.decorator_list):
        found.append((function.lineno, "a cache is shared state"))
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and stored(node) and not in_exception:
            found.append((node.lineno, f"assigns to .{node.attr}"))
        elif isinstance(node, ast.Subscript) and stored(node) and not is_fresh(node.value, fresh):
            found.append((node.lineno, "assigns to an item of something it did not make"))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not in_exception:
            called = node.value.func
            if names_in(called) != {"assert_never"} and not (
                isinstance(called, ast.Attribute) and is_fresh(called.value, fresh)
            ):
                found.append((node.lineno, "a call for its effect on something it did not make"))
    return found


def impurities_of_class(node: ast.ClassDef) -> list[str]:
    """A class is a frozen record, an interface, an enumeration or an exception; its fields are immutable types."""
    bases = set().union(*(names_in(base) for base in node.bases)) if node.bases else set()
    frozen = any("frozen" in names_in(decorator) for decorator in node.decorator_list)
    is_exception = any(base.endswith(("Error", "Exception", "Interrupt", "Warning")) for base in bases)
    found = [] if frozen or bases & RECORD_BASES or is_exception else [f"class {node.name} is not frozen"]
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            mutable = names_in(statement.annotation) & MUTABLE_TYPES
            found += [f"{node.name} has a field of type {kind}" for kind in sorted(mutable)]
    return found


def is_fresh(node: ast.expr, fresh: set[str]) -> bool:
    """Whether an expression is a local container of the function's own, or an item of one."""
    while isinstance(node, ast.Subscript) or method_called(node) == "setdefault":
        node = node.func.value if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in fresh


def method_called(node: ast.expr) -> str | None:
    """The method that an expression calls, if it is a method call."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None


def is_set(node: ast.expr) -> bool:
    """Whether an expression is plainly a set."""
    return isinstance(node, ast.Set | ast.SetComp) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"set", "frozenset"}
    )


def is_mutable_global(statement: ast.stmt) -> bool:
    """Whether a statement in a module's or class's body binds a value that can change."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
        return False
    value = statement.value
    return isinstance(value, MUTABLE_NODES) or (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in MUTABLE_MAKERS
    )


def importable(source: str, name: str) -> bool:
    """Whether the core may import a module."""
    if source.partition(".")[0] == "nanofn" or source in ALLOWED_IMPORTS:
        return True
    return source in {"immutables", "rpds"} and name.endswith("state/persistent.py")


@pytest.mark.parametrize("path", FILES, ids=label)
def test_the_core_is_pure(path: Path) -> None:
    """No module of the core assigns to what it did not make, or reaches anything outside its arguments."""
    assert impurities(tree(path), label(path)) == []


def test_the_core_is_all_there() -> None:
    """The check above sees every module and package of the core."""
    names = {label(path) for path in FILES}
    for name in PURE:
        assert any(f"src/nanofn/{name}.py" == file or file.startswith(f"src/nanofn/{name}/") for file in names), name


PLANTED = {
    "assigns to .waiting": "def f(state):\n    state.waiting = ()",
    "assigns to an item": "def f(table):\n    table[0] = 1",
    "a call for its effect": "def f(table):\n    table.append(1)",
    "global or nonlocal": "def f():\n    global x",
    "async": "async def f():\n    pass",
    "a frozen record's back door": "def f(x):\n    return object.__setattr__",
    "hash() differs": "def f(x):\n    return hash(x)",
    "id() is": "def f(x):\n    return id(x)",
    "open() is": "def f(x):\n    return open(x)",
    "print() is": "def f(x):\n    return print(x)",
    "import of time": "def f():\n    import time",
    "import of random": "from random import random",
    "import of rpds": "import rpds",
    "import of immutables": "from immutables import Map",
    "a mutable global": "seen: dict[int, int] = {}",
    "a cache is": "@cache\ndef f():\n    return 1",
    "iterates a set": "def f(xs):\n    return [x for x in set(xs)]",
    "class C is not frozen": "class C:\n    pass",
    "C has a field of type list": "@frozen\nclass C:\n    x: tuple[list[int], ...]",
}


@pytest.mark.parametrize("finding", PLANTED)
def test_each_rule_finds_its_planted_violation(finding: str) -> None:
    """Every rule above catches the smallest program that breaks it."""
    assert any(finding in what for what in impurities(ast.parse(PLANTED[finding])))


def test_ordinary_pure_code_is_accepted() -> None:
    """Local containers may be filled, and a new value may take an old name."""
    program = """
@frozen
class Pool:
    free: tuple[int, ...] = ()

def take(pool, count):
    taken = []
    for block in pool.free[:count]:
        taken.append(block)
    by_block = {block: 1 for block in taken}
    by_block[0] = 2
    by_block.setdefault(3, []).append(4)
    pool = evolve(pool, free=pool.free[count:])
    return pool, tuple(sorted(by_block))
"""
    assert impurities(ast.parse(program)) == []
