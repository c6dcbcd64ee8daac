"""Tells a plain mistake from a candidate that is made for the task's own sizes, where the interpreter saw derived ones alone.

A task fixes its sizes, so a candidate may write them out as numbers, and may leave out masks that they do not need.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from kernrl.syntax import parse_python
from kernrl.tasks.task import FULL, SMALL
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.interpret.interpret_server import Judged
from kernrl.verifier.plan.plan import TensorSpec, TraceSpec

LEAST_SIZE = 8
"""Smaller numbers are everywhere in a source, and derived sets do not change them."""

MOST = 1 << 63
"""No size is larger."""

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def plain_mistake(judged: Judged, source: str, specs: Sequence[TraceSpec]) -> bool:
    """Whether a failure at a derived set is one at the full sizes, too, as far as the source tells.

    Only the small set can show that, since it divides by 16 wherever the full one does. A wrong number there is a plain
    mistake unless the source writes out a size of the full set. An access out of bounds, or a race, is one unless the source
    holds a number that divides a size of the full set and not the small one's: a block without a mask.
    """
    rejection, by_name = judged.rejection, {spec.input_set: spec for spec in specs}
    if rejection is None or judged.input_set != SMALL:
        return False
    full, small, numbers = by_name[FULL], by_name[SMALL], set(numbers_in(source))
    is_a_wrong_number = any(record["excess"] > 1 for record in judged.errors)
    if is_a_wrong_number or rejection.status is Status.TIMEOUT:
        return not numbers & (_sizes(full) - _sizes(small))
    if rejection.status not in (Status.WRONG, Status.CRASH):
        return False
    pairs = zip(_dimensions(full), _dimensions(small), strict=False)
    changed = [(large, little) for large, little in pairs if large != little]
    steps = [n for n in numbers if LEAST_SIZE <= n <= max(large for large, _ in changed)] if changed else []
    return not any(large % n == 0 and little % n for n in steps for large, little in changed)


def _tensors(spec: TraceSpec) -> Iterator[TensorSpec]:
    yield from (arg for arg in spec.inputs if isinstance(arg, TensorSpec))
    yield from spec.state.values()


def _dimensions(spec: TraceSpec) -> list[int]:
    return [size for tensor in _tensors(spec) for size in tensor.shape]


def _sizes(spec: TraceSpec) -> set[float]:
    """What a candidate may write out: axes of the tensors, products of neighbouring axes, and one over each."""
    found = {
        size
        for tensor in _tensors(spec)
        for first in range(len(tensor.shape))
        for size in accumulate(tensor.shape[first:], operator.mul)
        if size >= LEAST_SIZE
    }
    return found | {1 / size for size in found}


def numbers_in(source: str) -> Iterator[float]:
    """The numbers in a source, and those that two of them make (`4 * 1024`)."""
    known: dict[ast.AST, float | None] = {}
    # inner nodes come after outer ones in a walk, so backwards each node is worked out once, from its parts
    for node in reversed(list(ast.walk(parse_python(source)))):
        known[node] = number = _number(node, known)
        if number is not None:
            yield number


def _number(node: ast.AST, known: Mapping[ast.AST, float | None]) -> float | None:
    """The number that an expression stands for; `known` has those of its parts."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value if abs(node.value) < MOST else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right, operation = known.get(node.left), known.get(node.right), type(node.op)
    if left is None or right is None:
        return None
    found: float | None = None
    if operation in _OPERATORS and not (operation is ast.FloorDiv and not right):
        found = _OPERATORS[operation](left, right)
    elif operation is ast.LShift and isinstance(left, int) and isinstance(right, int) and 0 <= right < 64:
        found = left << right
    elif operation is ast.Pow and abs(left) <= 16 and 0 <= right <= 32 and (left > 0 or isinstance(right, int)):
        found = left**right
    elif operation is ast.Div and right:
        found = left / right
    return found if found is not None and abs(found) < MOST else None
