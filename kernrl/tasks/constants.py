"""The numbers that a task's source assigns at its top level, and the same source with others in their place.

`N = 128`, `N: int = 128`, `N = 4 * 32`, `SHAPE = (3, 64, 64)`, `H = W = 128` and `H, W = 64, 96` are constants: a number,
or a tuple of numbers. What is computed from names (`N = HEADS * DIM`) is none, and follows. So are those that one name holds
together, as `CFG.width`: `CFG = {"width": 64}`, `CFG = dict(width=64)`, `CFG = Config(width=64)`, and `width: int = 64` in
`class CFG`. Whole numbers that are written out in `get_inputs` and `get_init_inputs` have a name by their place there:
`get_inputs.0`, `get_inputs.1`.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernrl.errors import UsageError
from kernrl.syntax import parse_python

WRITTEN_OUT = ("get_inputs", "get_init_inputs")
"""Functions whose whole numbers are constants without a name in the source."""

Constant = int | float | tuple[int | float, ...]
"""What one name is assigned. Numbers that are not whole can be overridden too; input sets change whole ones."""


@dataclass(frozen=True, slots=True)
class _Assignment:
    """One name, assigned at top level or held by another."""

    value: Constant
    span: ast.expr
    """The expression to replace."""
    chain: ast.Assign | None
    """The statement, where it gives several names one number."""


def module_constants(source: str) -> dict[str, Constant]:
    """Name → value of every constant, in the order of the source. The last assignment of a name counts."""
    return {name: found.value for name, found in _assignments(source).items()}


def with_tuples(constants: Mapping[str, Any]) -> dict[str, Constant]:
    """Constants that were read from JSON, which has lists in place of tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in constants.items()}


def sizes_in_words(source: str, constants: Mapping[str, Constant]) -> str:
    """The values of an input set as people read them: `ROWS=3, 512 as 13`, the latter for a number that is written out.

    Numbers that stay are left out. One that becomes several others is told apart by its place: `get_inputs.1=13`.
    """
    known = module_constants(source)
    changed = {name: value for name, value in constants.items() if known.get(name) != value} or constants
    becomes: dict[Constant, set[Constant]] = {}
    for name, value in changed.items():
        if name in known and name.partition(".")[0] in WRITTEN_OUT:
            becomes.setdefault(known[name], set()).add(value)
    said = (
        f"{known[name]} as {value}"
        if name in known and name.partition(".")[0] in WRITTEN_OUT and len(becomes[known[name]]) == 1
        else f"{name}={value}"
        for name, value in changed.items()
    )
    return ", ".join(dict.fromkeys(said))


def names_in_the_model(source: str) -> set[str]:
    """Names of the top level that `Model` reads, other than in `forward`, and all that these are made of."""
    read: dict[str, set[str]] = {}
    for scope in symtable.symtable(_without_annotations(source), "task", "exec").get_children():
        read.setdefault(scope.get_name(), set()).update(_globals_of(scope))
    for statement in parse_python(source).body:
        for name, expression, _ in _assigned(statement):
            read.setdefault(name, set()).update(n.id for n in ast.walk(expression) if isinstance(n, ast.Name))
    for statement in parse_python(source).body:
        if isinstance(statement, ast.ClassDef):
            bases = {n.id for base in statement.bases for n in ast.walk(base) if isinstance(n, ast.Name)}
            read[statement.name] |= bases
    found, more = set[str](), {"Model"}
    while more:
        found |= more
        more = {name for known in more for name in read.get(known, ())} - found
    return found


def _without_annotations(source: str) -> str:
    """The source without the types of arguments and results: a class that is named there is not read."""
    tree = parse_python(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.unparse(tree)


def _globals_of(scope: symtable.SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global() and symbol.is_referenced())
    for inner in scope.get_children():
        if (scope.get_type(), inner.get_name()) != ("class", "forward"):
            yield from _globals_of(inner)


def override_constants(source: str, constants: Mapping[str, Constant], *, where: str = "task") -> str:
    """The source with the given values for its constants. Raises UsageError as `edits` does."""
    raw = source.encode()
    for start, end, text in reversed(edits(source, constants, where=where)):
        raw = raw[:start] + text.encode() + raw[end:]
    return raw.decode()


def edits(source: str, constants: Mapping[str, Constant], *, where: str = "task") -> list[tuple[int, int, str]]:
    """What changes in the source, in its order: (first byte, byte behind the last, what stands there).

    Raises UsageError when a name is not assigned a number there, or a tuple has another length.
    """
    if not constants:
        return []
    found = _assignments(source)
    changes: dict[tuple[int, int], str] = {}
    at = _offsets(source)
    for name, value in constants.items():
        if name not in found:
            raise UsageError(f"{where}: an input set names {name!r}, but the source assigns no number to it at top level.")
        held = found[name]
        if _length(value) != _length(held.value):
            raise UsageError(f"{where}: an input set gives {name!r} the value {value!r}, but the source has {held.value!r}.")
        if held.chain and len({constants.get(n, held.value) for n in _names(held.chain)}) > 1:
            values = [(n, constants.get(n, held.value)) for n in _names(held.chain)]
            span, text = held.chain, "; ".join(f"{n} = {v!r}" for n, v in values)
        else:
            span = held.span
            text = repr(list(value) if isinstance(span, ast.List) and isinstance(value, tuple) else value)
        changes[at(span)] = text
    return [(*place, text) for place, text in sorted(changes.items())]


def _assignments(source: str) -> dict[str, _Assignment]:
    found: dict[str, _Assignment] = {}
    for statement in parse_python(source).body:
        for name, expression, chain in _assigned(statement):
            for old in [old for old in found if old == name or old.startswith(f"{name}.")]:
                del found[old]
            value = _value(expression)
            if value is not None:
                found[name] = _Assignment(value, expression, chain)
            for key, entry in _entries(expression):
                if (value := _value(entry)) is not None:
                    found[f"{name}.{key}"] = _Assignment(value, entry, None)
        for key, entry in _fields(statement):
            if (value := _value(entry)) is not None:
                found[key] = _Assignment(value, entry, None)
        if isinstance(statement, ast.FunctionDef) and statement.name in WRITTEN_OUT:
            for place, (value, expression) in enumerate(_written_out(statement)):
                found[f"{statement.name}.{place}"] = _Assignment(value, expression, None)
    return found


def _written_out(node: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    """The whole numbers in a function's body and defaults, in the order of the source; `4 * 32` is one number."""
    value = _number(node) if isinstance(node, ast.expr) else None
    if isinstance(value, int) and isinstance(node, ast.expr):
        yield value, node
        return
    for inner in ast.iter_child_nodes(node):
        yield from _written_out(inner)


def _entries(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What a dict, or a call by keywords, holds by name."""
    if isinstance(node, ast.Call):
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value


def _fields(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """What a class holds by name."""
    if isinstance(statement, ast.ClassDef):
        for inner in statement.body:
            yield from ((f"{statement.name}.{name}", expression) for name, expression, chain in _assigned(inner) if not chain)


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr, ast.Assign | None]]:
    """The names that a statement assigns, each with its expression."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        yield statement.target.id, statement.value, None
    if not isinstance(statement, ast.Assign):
        return
    targets, value = statement.targets, statement.value
    for target in targets:
        if isinstance(target, ast.Name):
            several = len(targets) > 1 and all(isinstance(t, ast.Name) for t in targets)
            yield target.id, value, statement if several else None
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for part, expression in zip(target.elts, value.elts, strict=True):
                if isinstance(part, ast.Name):
                    yield part.id, expression, None


def _names(chain: ast.Assign) -> list[str]:
    return [target.id for target in chain.targets if isinstance(target, ast.Name)]


def _value(node: ast.expr) -> Constant | None:
    """The number, or tuple of numbers, that an expression of literals is."""
    if isinstance(node, ast.Tuple | ast.List):
        parts = [_number(part) for part in node.elts]
        return tuple(p for p in parts if p is not None) if parts and None not in parts else None
    return _number(node)


def _number(node: ast.expr) -> int | float | None:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # pyright: ignore[reportReturnType]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _number(node.operand)
        return None if number is None else -number
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None:
        return None
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv() if right:
            return left // right
        case ast.Pow() if 0 <= right <= 64 and abs(left) <= 64:
            return left**right
        case ast.LShift() if isinstance(left, int) and isinstance(right, int) and 0 <= right <= 64:
            return left << right
    return None


def _length(value: Constant) -> int:
    return len(value) if isinstance(value, tuple) else -1


def _offsets(source: str) -> Callable[[ast.expr | ast.stmt], tuple[int, int]]:
    """A function that gives the first and last byte of a node; `col_offset` counts UTF-8 bytes."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end_column

    return span
