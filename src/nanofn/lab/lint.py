"""lint: what can be read off a policy's source: imports, globals and calls through which it would not be a pure function."""

import ast
from collections.abc import Iterator

IMPORTS = frozenset({
    "__future__", "abc", "attr", "attrs", "bisect", "collections", "dataclasses", "enum", "fractions",
    "functools", "heapq", "itertools", "math", "nanofn", "operator", "statistics", "types", "typing",
})  # fmt: skip
"""Modules that neither keep state nor touch the world."""

CALLS = frozenset({
    "open", "print", "input", "breakpoint", "exec", "eval", "compile", "setattr", "delattr", "globals", "vars",
    "__import__", "id",
})  # fmt: skip
CACHES = frozenset({"cache", "lru_cache", "cached_property"})
CHANGES = frozenset({
    "append", "extend", "insert", "remove", "pop", "popleft", "appendleft", "clear", "sort", "reverse", "add",
    "discard", "update", "setdefault", "popitem",
})  # fmt: skip
"""Methods that change a list, dict, set or deque in place."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def impurities(source: str) -> tuple[str, ...]:
    """List what a pure policy does not do, as `line N: what`.

    Args:
        source: A Python file's text, of valid syntax.
    """
    module = ast.parse(source)
    shared = {name for statement in module.body for name in _bound(statement)}
    found = [(getattr(node, "lineno", 0), what) for node in ast.walk(module) for what in _of_node(node)]
    for function in [node for node in ast.walk(module) if isinstance(node, _Function)]:
        found += _of_function(function, shared)
    return tuple([f"line {line}: {what}" for line, what in sorted(set(found))])


def _bound(statement: ast.stmt) -> Iterator[str]:
    """List the names of values that a module's own statement binds."""
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


def _of_node(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield from _of_import(alias.name)
        case ast.ImportFrom(module=name):
            yield from _of_import(str(name))
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield f"{', '.join(names)} is bound from within a function; keep it in the policy state"
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield f"{name}() reaches outside the arguments"
        case ast.Attribute(attr="__setattr__" | "__dict__"):
            yield "a frozen record's back door"
        case ast.For(iter=iterated) | ast.comprehension(iter=iterated) if _is_set(iterated):
            yield "iterates a set, whose order is not a value; sort it"


def _of_import(name: str) -> Iterator[str]:
    if name.partition(".")[0] not in IMPORTS:
        yield f"imports {name}: a decision depends on the policy state and the view alone (the time is view.now_us)"


def _is_set(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Set | ast.SetComp) or (
        isinstance(called, ast.Name) and called.id in {"set", "frozenset"}
    )


def _of_function(function: _Function, shared: set[str]) -> Iterator[tuple[int, str]]:
    """List assignments and calls through which a function would change something that outlives the call."""
    decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
    if any(name in CACHES for each in decorators for name in _names(each)):
        yield function.lineno, "a cache is shared state"
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.lineno, f"assigns to .{node.attr}: return a new policy state instead"
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            root = _root(node)
            if root in shared - own:
                yield node.lineno, f"changes the global {root}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            root = _root(node.func)
            if root in shared - own:
                yield node.lineno, f"changes the global {root}"
            if root == "self":
                yield node.lineno, f"changes itself by .{node.func.attr}(): return a new policy state instead"


def _root(node: ast.expr) -> str:
    """Name what an expression begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
