"""Calls of PyTorch for the ops that an answer leaves to the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.ops import OPS
from kernrl.tasks.solutions.from_graph.calls_by_name import call_by_name, constant
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError, Names

ONE_DIMENSION = ("argmax", "argmin", "prod", "softmax", "log_softmax")
OF_FUNCTIONAL = ("silu", "mish", "hardswish", "hardsigmoid", "softsign", "tanhshrink", "leaky_relu", "elu", "gelu")
OF_FUNCTIONAL += ("softplus", "softshrink", "hardshrink", "threshold")
PLAIN_CALLS = {
    # kernels write them, but not of every dtype
    **{op: f"torch.{op}" for op, known in OPS.items() if known.kind in ("pointwise", "reduction", "scan")},
    **{op: f"{{F}}.{op}" for op in OF_FUNCTIONAL},
    "log_sigmoid": "{F}.logsigmoid",
    **{op: f"torch.{op}" for op in ("softmax", "log_softmax", "flip", "roll", "tril", "triu")},
    **{f"{kind}_pool{n}d": f"{{F}}.{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{n}d": f"{{F}}.adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)},
}
"""Op → the call that takes its attributes by name."""
SIGNS = {"sub": "-", "div": "/", "pow": "**", "remainder": "%"}
"""Op → how it is written where a number comes first, which its call does not take."""


def library_call(
    op: Op, operands: list[str], graphs: Sequence[Graph], names: Names, functional: str, host: Mapping[str, str]
) -> str:
    """A call of PyTorch that computes an op. Raises CannotWriteError where there is no rule.

    Args:
        operands: Python of each operand.
        graphs: The task's, one for each input set.
        functional: How the file calls `torch.nn.functional`.
        host: Value in memory → Python of it.
    """
    node = graphs[0].nodes[op.node]
    a: dict[str, Any] = dict(node.attributes)
    f = functional
    if node.kind == "unknown":
        return call_by_name(node, op.node, operands, graphs, names, next(iter(host.values())))
    if node.op == "matmul":
        return f"torch.matmul({', '.join(operands)})"
    if node.op in ("gather", "index_select"):
        return f"torch.{node.op}({operands[0]}, {a['dim']}, {operands[1]})"
    if node.op == "cast":
        return f"{operands[0]}.to(torch.{a['dtype']})"
    if node.op == "embedding":
        return f"{f}.embedding({operands[1]}, {operands[0]})"
    if node.op == "einsum":
        return f"torch.einsum({a['equation']!r}, {', '.join(operands)})"
    if node.op == "cat":
        return f"torch.cat(({', '.join(operands)}), dim={a['dim']})"
    if node.kind in ("product", "convolution"):
        shown = keyword_arguments(op, graphs, names)
        return f"{f}.{node.op}({', '.join([*operands, *shown])})"
    if node.op == "arange":
        rows: list[dict[str, Any]] = [dict(g.nodes[op.node].attributes) for g in graphs]
        ends, steps = (tuple(r[k] for r in rows) for k in ("end", "step"))
        end, step = (repr(n[0]) if len(set(n)) == 1 else names.expression(n) for n in (ends, steps))
        device = next(iter(host.values()))
        return f"torch.arange({a['start']!r}, {end}, {step}, dtype=torch.{a['dtype']}, device={device}.device)"
    if node.op == "full":
        axes = zip(*(g.nodes[op.node]["shape"] for g in graphs), strict=True)
        shape = ", ".join(names.expression(n) for n in axes)
        device = next(iter(host.values()))
        return f"torch.full([{shape}], {operands[0]}, dtype=torch.{a['dtype']}, device={device}.device)"
    if node.op == "pad":
        value = f", value={constant(a['value'])}" if a["mode"] == "constant" and a["value"] else ""
        return (
            f"{f}.pad({operands[0]}, {a['padding']!r}" + (f", mode={a['mode']!r}" if a["mode"] != "constant" else value) + ")"
        )
    if node.op in SIGNS and not isinstance(op.operands[0], str) and not a.get("rounding_mode"):
        return f"{operands[0]} {SIGNS[node.op]} {operands[1]}"
    if node.op in PLAIN_CALLS:
        single = node.op in ONE_DIMENSION
        if single and len(a["dim"]) > 1:
            raise CannotWriteError(f"torch.{node.op} takes one dimension")
        if node.kind == "pool":  # avg_pool1d has no divisor_override, even of its default
            a = {k: v for k, v in a.items() if v != OPS[node.op].attributes[k]}
        called = {"dim": "dims"} if node.op in ("flip", "roll") else {}
        shown = [f"{called.get(k, k)}={constant(v[0] if single and k == 'dim' else v)}" for k, v in a.items()]
        return f"{PLAIN_CALLS[node.op].format(F=f)}({', '.join([*operands, *shown])})"
    raise CannotWriteError(f"no rule for {node.op}")


def keyword_arguments(op: Op, graphs: Sequence[Graph], names: Names) -> list[str]:
    """Keyword arguments of a call; a number that differs between the sets is a size."""
    rows: list[dict[str, Any]] = [dict(g.nodes[op.node].attributes) for g in graphs]
    shown = []
    for k, v in rows[0].items():
        values = [row[k] for row in rows]
        if any(x != values[0] for x in values) and isinstance(v, int):
            shown.append(f"{k}={names.expression(tuple(values))}")
        elif v != OPS[graphs[0].nodes[op.node].op].attributes[k]:
            shown.append(f"{k}={_short(v)}")
    return shown


def _short(value: Any) -> str:
    return repr(value[0]) if isinstance(value, tuple) and len(set(value)) == 1 and isinstance(value[0], int) else repr(value)
