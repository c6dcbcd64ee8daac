"""Ways to get a Triton solution wrong: each operator turns its syntax tree into mutants, one place at a time."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

Change = Callable[[], None]
"""Changes the tree in place."""


@dataclass(frozen=True)
class Mutant:
    """A solution with one change."""

    operator: str
    line: str
    """The changed line before the change."""
    source: str


@dataclass
class _Place:
    """A function of a solution that is mutated, and its constexpr parameters."""

    function: ast.FunctionDef
    kernel: bool

    @property
    def blocks(self) -> list[str]:
        return [a.arg for a in self.function.args.args if isinstance(a.annotation, ast.Attribute) and a.arg.isupper()]


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a solution, by operator. The text is as `ast.unparse` prints it."""
    base = ast.unparse(ast.parse(source))
    for name in OPERATORS:
        yield from filter(None, (_changed(base, name, number) for number in range(_changes(base, name))))


def drawn(source: str, each: int, rng: random.Random) -> Iterator[Mutant]:
    """Of each operator at most `each` mutants, at places drawn from all."""
    base = ast.unparse(ast.parse(source))
    for name in OPERATORS:
        count = _changes(base, name)
        yield from filter(None, (_changed(base, name, number) for number in rng.sample(range(count), min(each, count))))


def _changes(base: str, operator: str) -> int:
    return sum(1 for place in _places(ast.parse(base)) for _ in OPERATORS[operator](place))


def _changed(base: str, operator: str, number: int) -> Mutant | None:
    """The mutant of one of an operator's changes; None if it changes nothing."""
    tree = ast.parse(base)
    node, change = next(islice((found for place in _places(tree) for found in OPERATORS[operator](place)), number, None))
    line = base.splitlines()[getattr(node, "lineno", 1) - 1].strip()
    change()
    changed = ast.unparse(ast.fix_missing_locations(tree))
    return Mutant(operator, line, changed) if changed != base else None


def _places(tree: ast.Module) -> Iterator[_Place]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            kernel = any("jit" in ast.unparse(d) for d in node.decorator_list)
            if kernel or node.name == "forward":
                yield _Place(node, kernel)


def _calls(place: _Place, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(place.function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            yield node


def _become(node: ast.AST, other: ast.AST) -> Change:
    """Replace a node where it stands, by taking on the other's fields."""

    def change() -> None:
        taken = copy.deepcopy(other)
        node.__class__ = taken.__class__
        node.__dict__ = taken.__dict__

    return change


def _set(node: ast.AST, field: str, value: object) -> Change:
    return lambda: setattr(node, field, value)


Found = Iterator[tuple[ast.AST, Change]]
_POINTWISE = tuple(f"tl.{n}" for n in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "abs", "sigmoid", "erf", "sin", "cos"))
_BUILTINS = ("range", "len", "int", "float")
_REDUCTIONS = ("tl.sum", "tl.max", "tl.min")


def dropped_op(place: _Place) -> Found:
    if place.kernel:
        for node in _calls(place, *_POINTWISE):
            yield node, _become(node, node.args[0])


def dropped_helper(place: _Place) -> Found:
    """A call of one of the solution's own functions, such as `gelu(x)`."""
    if place.kernel:
        for node in ast.walk(place.function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in _BUILTINS and node.args:
                yield node, _become(node, node.args[0])


def wrong_axis(place: _Place) -> Found:
    for node in _calls(place, *_REDUCTIONS):
        axes = [k.value for k in node.keywords if k.arg == "axis"] + node.args[1:2]
        for axis in axes:
            if isinstance(axis, ast.Constant) and axis.value in (0, 1):
                yield node, _set(axis, "value", 1 - axis.value)


def mask_off_by_one(place: _Place) -> Found:
    if place.kernel:
        for node in ast.walk(place.function):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
                limit = node.comparators[0]
                yield node, _become(limit, ast.BinOp(copy.deepcopy(limit), ast.Sub(), ast.Constant(1)))


def mask_missing(place: _Place) -> Found:
    """A store or load that is made everywhere."""
    for node in _calls(place, "tl.store", "tl.load"):
        rest = [k for k in node.keywords if k.arg not in ("mask", "other")]
        if len(rest) < len(node.keywords):
            yield node, _set(node, "keywords", rest)


def tail_unwritten(place: _Place) -> Found:
    """A grid rounded down."""
    if not place.kernel:
        for node in _calls(place, "triton.cdiv"):
            yield node, _become(node, ast.BinOp(node.args[0], ast.FloorDiv(), node.args[1]))


def stale_statistics(place: _Place) -> Found:
    """What should be added up is the last part alone."""
    if place.kernel:
        for node in ast.walk(place.function):
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                yield node, _become(node, ast.Assign([copy.deepcopy(node.target)], node.value, lineno=node.lineno))


def wrong_eps(place: _Place) -> Found:
    for node, value in _numbers(place):
        if 0 < value < 0.02:
            yield node, _set(node, "value", value * 100)


def wrong_constant(place: _Place) -> Found:
    for node, value in _numbers(place):
        if abs(value) >= 0.02 and value != float("inf"):
            yield node, _set(node, "value", value * 1.05)


def _numbers(place: _Place) -> Iterator[tuple[ast.Constant, float]]:
    for node in ast.walk(place.function):
        if place.kernel and isinstance(node, ast.Constant) and isinstance(node.value, float):
            yield node, node.value


def swapped_operands(place: _Place) -> Found:
    if place.kernel:
        for node in ast.walk(place.function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div):
                yield node, _become(node, ast.BinOp(node.right, node.op, node.left))


def lower_precision(place: _Place) -> Found:
    """fp16 before a store, TF32 in a product."""
    for node in _calls(place, "tl.store"):
        value = node.args[1]
        call = f"({ast.unparse(value)} + 0.0).to(tl.float16)"
        yield node, _become(value, ast.parse(call, mode="eval").body)
    for node in _calls(place, "tl.dot"):
        for k in node.keywords:
            if k.arg == "input_precision":
                yield node, _set(k, "value", ast.Constant("tf32"))


def missing_max(place: _Place) -> Found:
    """exp without its shift, a running maximum that is not one."""
    if place.kernel:
        for node in ast.walk(place.function):
            argument = node.args[0] if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.exp" else None
            if isinstance(argument, ast.BinOp) and isinstance(argument.op, ast.Sub):
                yield node, _become(argument, argument.left)


def other_extreme(place: _Place) -> Found:
    swap = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max"}
    for node in _calls(place, *(f"tl.{n}" for n in swap)):
        if isinstance(node.func, ast.Attribute):
            yield node, _set(node.func, "attr", swap[node.func.attr])


def wrong_broadcast(place: _Place) -> Found:
    """`[:, None]` for `[None, :]`."""
    for node in ast.walk(place.function):
        if place.kernel and isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
            yield node, _set(node.slice, "elts", node.slice.elts[::-1])


def missing_term(place: _Place) -> Found:
    """A bias or a residual left out: a sum's part that was loaded."""
    if place.kernel:
        for node in ast.walk(place.function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and "tl.load" in ast.unparse(node.right):
                yield node, _become(node, node.left)


def wrong_stride(place: _Place) -> Found:
    """A row length that is one too long."""
    for call in _calls(place, "tl.load", "tl.store"):
        for node in ast.walk(call.args[0]):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Name):
                yield node, _become(node.right, ast.BinOp(ast.Name(node.right.id), ast.Add(), ast.Constant(1)))


def padded_length(place: _Place) -> Found:
    """A mean over the tile's length instead of the row's."""
    if place.kernel and place.blocks:
        for node in ast.walk(place.function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Name):
                for block in place.blocks[:1]:
                    yield node, _set(node, "right", ast.Name(block))


def wrong_filler(place: _Place) -> Found:
    """Masked lanes that hold 1 where 0 or −∞ is meant."""
    for node in _calls(place, "tl.load", "tl.where"):
        for k in node.keywords:
            if k.arg == "other":
                yield node, _set(k, "value", ast.Constant(1.0))


def constant_argument(place: _Place) -> Found:
    """A weight that is loaded at its first element alone."""
    for node in _calls(place, "tl.load"):
        pointer = node.args[0]
        if isinstance(pointer, ast.BinOp) and isinstance(pointer.op, ast.Add):
            yield node, _become(pointer.right, ast.BinOp(ast.Constant(0), ast.Mult(), copy.deepcopy(pointer.right)))


def dropped_statement(place: _Place) -> Found:
    """An assignment to a name that exists already."""
    if place.kernel:
        seen: set[str] = set()
        for node in ast.walk(place.function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name in seen:
                    yield node, _set(node, "value", ast.Name(name))
                seen.add(name)


OPERATORS: dict[str, Callable[[_Place], Found]] = {
    operator.__name__.replace("_", " "): operator
    for operator in (
        dropped_op, dropped_helper, dropped_statement, wrong_axis, mask_off_by_one, mask_missing, tail_unwritten,
        stale_statistics, wrong_eps, wrong_constant, swapped_operands, lower_precision, missing_max, other_extreme,
        wrong_broadcast, missing_term, wrong_stride, padded_length, wrong_filler, constant_argument,
    )
}  # fmt: skip
