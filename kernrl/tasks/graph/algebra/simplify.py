"""Apply rules of algebra to a Graph until none fits.

Every rule holds in exact arithmetic for all finite inputs and parameters. In floating point the result rounds otherwise, and is
not that of the Graph as written where an input or parameter is infinite or NaN, where one of the two overflows, or where what a
rule subtracts is far larger than what is left (docs/explanation/graph.md has an example of each). Nothing is decided by sizes
other than 1, so that a task's input sets are rewritten alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernrl.tasks.graph.algebra.constant_results import CONSTANT_RULES
from kernrl.tasks.graph.algebra.convolution_rules import CONVOLUTION_RULES
from kernrl.tasks.graph.algebra.norms import NORM_RULES
from kernrl.tasks.graph.algebra.pools import POOL_RULES
from kernrl.tasks.graph.algebra.sight import Into, Make, Rule, Sight
from kernrl.tasks.graph.algebra.sums import PRODUCT_RULES
from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.canonical.rewrites import rewrite
from kernrl.tasks.graph.costs import kernels, node_flops
from kernrl.tasks.graph.graph import Graph, Node
from kernrl.tasks.graph.ops import OPS

RULES: dict[str, Rule] = {**CONSTANT_RULES, **PRODUCT_RULES, **CONVOLUTION_RULES, **NORM_RULES, **POOL_RULES}
"""Name → rule, in the order in which they are tried."""

MOST_STEPS = 40


ROUNDED = (
    "sum-before-product",
    "product-then-pool",
    "convolution-then-channel-sum",
    "scale-into-product",
    "batch-norm-into-weights",
)
"""Rules that give a library call an operand that is made first, which half precision would round."""


def simplify(graph: Graph, *, half: bool = False) -> tuple[Graph, tuple[str, ...]]:
    """The Graph with less to do, and the names of the rules that were applied, in order; itself where there are none.

    Args:
        half: The task is in bfloat16 or float16: rules that round once more to that are left out.
    """
    applied: list[str] = []
    rules = {name: rule for name, rule in RULES.items() if not (half and name in ROUNDED)}
    while len(applied) < MOST_STEPS and (step := _step(graph, rules)):
        name, graph = step
        applied.append(name)
    return graph, tuple(applied)


def apply(graph: Graph, name: str) -> Graph | None:
    """One rule, once, where it first fits."""
    sight = Sight(graph)
    for node in graph.nodes:
        if node.op in OPS and (make := RULES[name](sight, node)):
            return _rebuilt(graph, node, make)
    return None


def _step(graph: Graph, rules: Mapping[str, Rule]) -> tuple[str, Graph] | None:
    sight = Sight(graph)
    for node in graph.nodes:
        if node.op not in OPS:
            continue
        for name, rule in rules.items():
            if make := rule(sight, node):
                return name, _rebuilt(graph, node, make)
    return None


def _rebuilt(graph: Graph, at: Node, make: Make) -> Graph:
    """The Graph with another form of one node."""
    b, names = Builder(rewrite), {}
    for i in graph.inputs:
        names[i.value.name] = b.input(i.value.shape, i.value.dtype, i.place, i.argument, i.stride)
    for p in graph.parameters:
        names[p.value.name] = b.parameter(p.value.shape, p.value.dtype, p.kind, p.path, p.data)
    into = Into(b, names)
    for node in graph.nodes:
        b.line = node.line
        operands = tuple(into.old(o) for o in node.operands)
        if node is at:
            names[node.value.name] = make(into)
        elif node.op in OPS:
            names[node.value.name] = b.add(node.op, *operands, **dict(node.attributes))
        else:
            made = b.unknown(node.op, operands, dict(node.attributes), [(r.shape, r.dtype) for r in node.results])
            names.update(zip((r.name for r in node.results), made, strict=True))
    return b.finish([into.old(o) for o in graph.outputs], graph.structure)


def flops(graph: Graph) -> int:
    """Floating-point operations of a Graph as it is written."""
    return sum(node_flops(graph, node) for node in graph.nodes)


def saves(before: Graph, after: Graph) -> bool:
    """A twentieth of the operations or of the bytes is gone: less is not worth another way to write a task."""
    return flops(after) < 0.95 * flops(before) or _moved(after) < 0.95 * _moved(before)


def _moved(graph: Graph) -> int:
    """Bytes, where a product comes from a library, whose result a kernel behind it reads and writes once more."""
    total = 0
    for kernel in kernels(graph):
        total += kernel.nbytes
        if any(node.kind == "pointwise" for node in kernel.nodes):
            total += sum(2 * node.value.nbytes for node in kernel.nodes if node.kind == "product")
    return total
