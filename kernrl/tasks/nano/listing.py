"""nano's prompt: the Graph's listing in a compact form.

    fp32 A=128 B=64 C=512
    x0 A B
    p0 C B
    p1 C
    v0 = linear(x0, p0, p1) A C
    v1 = mul(v0, 0.5) A C
    v2 = sum(v1, dim=1) A 1
    return v2

Every axis has a letter, whose size the first line gives; a number is a size that is fixed. Names are the reply's own:
kernels call `v1` v1, and the pointer to it v1_ptr. Nothing of the task's source is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernrl.tasks.graph.graph import Graph, Node, Operand
from kernrl.tasks.graph.ops import OPS, REQUIRED
from kernrl.tasks.nano.axes import axis_letters, shapes_of
from kernrl.tasks.solutions.from_graph.lowering.pointwise_text import literal
from kernrl.tasks.solutions.from_graph.lowering.sizes import Size

FAST = "fast"
"""Second word of a prompt that asks for the fastest style."""

IN_THE_SHAPE = {"reshape": ("shape",), "unflatten": ("sizes",), "expand": ("shape",), "full": ("shape", "dtype")}
"""Op → attributes that its result's shape and dtype say already."""


def words_of(graphs: Sequence[Graph]) -> dict[str, list[str]]:
    """Name of a value → its shape in the listing's words: letters, and numbers where a size is fixed."""
    letters = axis_letters(graphs)
    return {name: [letters.get(size, str(size[0])) for size in shape] for name, shape in shapes_of(graphs).items()}


def write_listing(graphs: Sequence[Graph], precision: str = "fp32", *, fast: bool = False) -> str:
    """The prompt for a Graph, as `at_distinct_sizes` gives it; no newline at the end."""
    graph, shapes, letters = graphs[0], words_of(graphs), axis_letters(graphs)
    sizes = [f"{letter}={size[0]}" for size, letter in letters.items()]
    lines = [" ".join([precision, *([FAST] if fast else []), *sizes])]

    def shown(name: str) -> str:
        dtype = graph.values[name].dtype
        return " ".join([*([dtype] if dtype != "float32" else []), *shapes[name]])

    held = [x.value.name for x in graph.inputs] + [p.value.name for p in graph.parameters]
    lines += [f"{name} {shown(name)}".rstrip() for name in held]
    for at, node in enumerate(graph.nodes):
        same = [g.nodes[at] for g in graphs]
        results = ", ".join(r.name for r in node.results)
        lines.append(f"{results} = {_call(same, letters)} {shown(node.value.name)}".rstrip())
    returned = ", ".join(_operand(o) for o in graph.outputs)
    return "\n".join([*lines, f"return {returned}"])


def _call(nodes: Sequence[Node], letters: dict[Size, str]) -> str:
    node = nodes[0]
    words = [_operand(o) for o in node.operands]
    while words and words[-1] == "None":
        words.pop()
    defaults = OPS[node.op].attributes if node.op in OPS else {}
    for name, value in node.attributes:
        if name in IN_THE_SHAPE.get(node.op, ()) or (defaults.get(name, REQUIRED) == value) or "%" in str(value):
            continue
        at_all: Any = tuple(n[name] for n in nodes)
        varies = len(set(at_all)) > 1
        words.append(f"{name}={letters.get(at_all, value) if varies else _short(value)}")
    return f"{node.op}({', '.join(words)})"


def _operand(operand: Operand) -> str:
    return operand if isinstance(operand, str) else literal(operand)


def _short(value: Any) -> str:
    """`1` for `(1, 1)`, `(2, 3)` as `2,3`."""
    if isinstance(value, tuple) and value:
        return str(value[0]) if len(set(value)) == 1 else ",".join(map(str, value))
    return literal(value) if isinstance(value, float) else str(value)
