"""Mutants: every small change of a source file that could be a mistake, as a patch for `core.seeding.planted`.

Changed are comparisons, arithmetic, `and`/`or`, conditions, integers, booleans, `min`/`max`, `any`/`all`, orders, slices,
optional arguments, items beside a starred one, returned values and whole statements. Left alone, by rule: what the type
checker would find (a required argument, a value that the annotation forbids, the only binding of a name), annotations,
decorators, overloads, declarations of fields and of type variables, `strict=`, and texts: docstrings, messages, names.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from attrs import evolve, frozen

OPERATORS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
TRANSPARENT = ("reversed", "sorted", "frozenset", "set", "dict.fromkeys")
OPTIONAL = ("min", "max", "range", "islice", "next")
"""Functions that take fewer arguments as well; elsewhere only keyword arguments are dropped."""
FOR_TYPES = ("NewType", "TypeVar", "_fact", "field", "cast")


@frozen
class Mutant:
    """One change of one file.

    Attributes:
        file: Path below `src/nanofn`.
        name: What tells it from all others, whatever else changes: the file, the function, the statement before and after.
        number: Which of the file's changes, as `_changes` lists them.
    """

    file: str
    name: str
    number: int

    def apply(self, text: str) -> str:
        """Make the change."""
        tree = ast.parse(text)
        for number, (_, _, put, new) in enumerate(_changes(tree.body)):
            if number == self.number:
                put(new)
                return ast.unparse(ast.fix_missing_locations(tree))
        raise ValueError(f"no mutant {self.name}")


def mutants(file: str, text: str) -> list[Mutant]:
    """List the mutants of a file. Changes of one statement that read the same are one."""
    tree, found, alike = ast.parse(text), list[Mutant](), dict[tuple[str, str], list]()
    for number, (place, statement, put, new) in enumerate(_changes(tree.body)):
        before, old = _head(statement), put(new)
        after = "nothing" if isinstance(new, ast.Pass) else _head(statement)
        put(old)
        seen = alike.setdefault((place, before), [])
        if not seen or seen[-1][0] is not statement:
            seen.append((statement, {before}))
        if after not in seen[-1][1]:
            seen[-1][1].add(after)
            again = f" ({len(seen)})" if len(seen) > 1 else ""
            found.append(Mutant(file, f"{file} {place}{again}: {before} -> {after}", number))
    return found


def all_mutants(source: Path, *folders: str) -> list[Mutant]:
    """The mutants of every file in some folders, in order."""
    files = [path for folder in folders for path in sorted((source / folder).glob("*.py"))]
    return [each for path in files for each in mutants(path.relative_to(source).as_posix(), path.read_text("utf-8"))]


def _head(statement: ast.stmt) -> str:
    """A statement's text; of one with a body, the line that begins it."""
    return ast.unparse(statement).partition("\n")[0] if hasattr(statement, "body") else ast.unparse(statement)


@frozen
class _Place:
    name: str = "module"
    returns: str = ""
    bound: frozenset[str] = frozenset()

    def inside(self, node: ast.FunctionDef | ast.ClassDef) -> "_Place":
        arguments = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        name = node.name if self.name == "module" else f"{self.name}.{node.name}"
        returns = ast.unparse(node.returns) if isinstance(node, ast.FunctionDef) and node.returns else ""
        return _Place(name, returns, self.bound | arguments)


MODULE = _Place()


def _changes(block: list[ast.stmt], place: _Place = MODULE) -> Iterator:
    """List what can be changed: (place, statement, function that puts a node there and returns the old one, new node)."""
    for index, statement in enumerate(block):
        if _is_text(statement) or isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert):
            continue
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            if not any("overload" in ast.unparse(each) for each in statement.decorator_list):
                yield from _changes(statement.body, place.inside(statement))
            continue
        names = [each for each in ast.walk(statement) if isinstance(each, ast.Name)]
        stored = {each.id for each in names if isinstance(each.ctx, ast.Store)}
        is_kept = isinstance(statement, ast.Return | ast.Match | ast.Pass) or place.name == "module"
        binds = isinstance(statement, ast.Assign | ast.AnnAssign) and not stored <= place.bound
        is_declaration = isinstance(statement, ast.AnnAssign) and statement.value is None
        if not (is_kept or binds or is_declaration):
            yield place.name, statement, _putter(block, index), ast.Pass()
        yield from _in_expression(statement, statement, place)
        place = evolve(place, bound=place.bound | stored)
        cases = [case.body for case in statement.cases] if isinstance(statement, ast.Match) else []
        for inner in (*[getattr(statement, name, []) for name in ("body", "orelse")], *cases):
            yield from _changes(inner, place)


def _is_text(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    says = isinstance(value, ast.Constant) and (isinstance(value.value, str) or value.value is ...)
    return says or (isinstance(value, ast.Yield) and isinstance(value.value, ast.JoinedStr))


def _in_expression(node: ast.AST, statement: ast.stmt, place: _Place) -> Iterator:
    for name, value in ast.iter_fields(node):
        if (
            name == "annotation"
            or (node is statement and name in ("body", "orelse", "cases", "exc"))
            or _is_check(node)
        ):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            is_declared = isinstance(child, ast.Call) and ast.unparse(child.func).partition("[")[0] in FOR_TYPES
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and not is_declared:
                put = _putter(node, name) if index is None else _putter(value, index)
                yield from ((place.name, statement, put, new) for new in _variants(child, node, name, place.returns))
                yield from _in_expression(child, statement, place)


def _is_check(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _putter(owner, key):
    def put(new):
        old = owner[key] if isinstance(owner, list) else getattr(owner, key)
        owner.__setitem__(key, new) if isinstance(owner, list) else setattr(owner, key, new)
        return old

    return put


def _variants(node: ast.AST, parent: ast.AST, field: str, returns: str) -> Iterator[ast.AST]:
    """What a mistake could make of a node."""
    if type(node) in OPERATORS:
        yield OPERATORS[type(node)]()
    is_value = isinstance(parent, ast.Return) and not isinstance(node, ast.Constant)
    if field in ("test", "ifs") or (is_value and returns == "bool"):
        yield ast.UnaryOp(ast.Not(), node)
    if is_value and "None" in returns:
        yield ast.Constant(None)
    match node:
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Slice(lower, upper, step):
            yield from [ast.Slice(None, upper, step)] * bool(lower) + [ast.Slice(lower, None, step)] * bool(upper)
        case ast.Call(func, args):
            name = ast.unparse(func)
            yield from [_with(node, func=ast.Name(SWAPPED[name], ast.Load()))] if name in SWAPPED else []
            yield from args[:1] if name in TRANSPARENT else []
            yield from _each_dropped(node, "keywords")
            yield from _each_dropped(node, "args") if len(args) > 1 and name in OPTIONAL else []
        case ast.Tuple(items, ast.Load()) | ast.List(items, ast.Load()):
            yield from _each_dropped(node, "elts") if any(isinstance(each, ast.Starred) for each in items) else []


def _with(node: ast.AST, **values) -> ast.AST:
    return type(node)(**dict(ast.iter_fields(node)) | values)


def _each_dropped(node: ast.AST, field: str) -> list[ast.AST]:
    """Copies of a node, each without another one of its items."""
    items = getattr(node, field)
    places = [place for place, item in enumerate(items) if not _is_check(item)]
    return [_with(node, **{field: items[:place] + items[place + 1 :]}) for place in places]
