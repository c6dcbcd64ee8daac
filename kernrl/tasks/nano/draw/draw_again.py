"""Steps of `graph/sample.py` that repeat what was done: an op beside one of its kind, a chain once more, values that meet late.

`draw_branches.py` projects rows several ways. Here convolutions, pools, norms and reductions have a second one beside them,
and what is small (a number a sample, a weight a channel, a gate a branch) scales what is large.
"""

from __future__ import annotations

from random import Random

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.graph import Attribute, Node, Operand
from kernrl.tasks.graph.sample import Draft
from kernrl.tasks.nano.draw.draw_wide import eps, free_number

SIBLINGS = (
    ("amax", "amin", "mean", "sum"),
    *((f"avg_pool{n}d", f"max_pool{n}d") for n in (1, 2, 3)),
    ("sigmoid", "tanh", "relu", "silu", "softplus", "exp", "sin", "cos", "abs", "square"),
    ("add", "sub", "mul"),
)
"""Ops that take each other's operands and attributes, and stand beside each other in modules."""

SMALL = ("sigmoid", "tanh", "exp", "sin", "cos", "softplus", "square", "abs")
LONGEST_CHAIN = 5


def _held(d: Draft, name: str) -> str:
    """A new tensor of the module, of the kind and shape of another."""
    held = d.b.held(name)
    return d.parameter(*held.value.shape, kind=held.kind)


def _sibling(rng: Random, op: str) -> str:
    return rng.choice(next((kin for kin in SIBLINGS if op in kin), (op,)))


def _attributes(node: Node, op: str) -> dict[str, Attribute]:
    """Those of a node, for this op: pools of either kind have a window in common and little else."""
    given = dict(node.attributes)
    if op == node.op:
        return given
    return {k: v for k, v in given.items() if k in ("dim", "keepdim", "kernel_size", "stride", "padding")}


def _met(d: Draft, one: str, other: str) -> str:
    """Two values of shapes that join, by arithmetic; seldom one gates the other."""
    rng, b = d.rng, d.b
    kind = rng.choice(("add", "add", "mul", "sub", "sub", "div", "maximum", "minimum", "gate", "cat"))
    if kind == "gate":
        return b.add("mul", b.add(rng.choice(("sigmoid", "tanh", "softplus", "exp")), one), other)
    if kind == "div":
        return b.add("div", one, b.add("add", b.add(rng.choice(("abs", "softplus", "exp")), other), eps(rng)))
    if kind == "cat":
        shape = b.value(one).shape
        if len(shape) < 2 or shape != b.value(other).shape:
            return b.add("add", one, other)
        return b.add("cat", one, other, dim=rng.choice((1, len(shape) - 1)))
    return b.add(kind, *rng.sample((one, other), 2))


def again(d: Draft) -> str | None:
    """An op of before beside itself: with other tensors of the module, over another value, or as its sibling; mostly joined."""
    rng, b = d.rng, d.b
    done = [e for e in dict.fromkeys((*d.earlier, d.x)) if b.node(e)]
    if not done:
        return None
    first = rng.choice(done)
    node = b.node(first)
    assert node is not None
    read = next((o for o in node.operands if isinstance(o, str)), None)
    if read is None:
        return None
    alike = [e for e in (*b.inputs, *d.earlier, d.x) if e != first and b.value(e).shape == b.value(read).shape]
    value = rng.choice(alike) if alike and rng.random() < 0.4 else read
    if rng.random() < 0.15:
        value = b.add(rng.choice(("square", "abs", "tanh", "relu", "neg")), value)
    fresh = rng.random() < 0.75
    operands = [
        value if o == read else _held(d, o) if fresh and isinstance(o, str) and b.is_parameter(o) else o for o in node.operands
    ]
    op = _sibling(rng, node.op)
    second = b.add(op, *operands, **_attributes(node, op))
    if second == first:
        return None
    d.earlier.append(second)
    if rng.random() < 0.4:
        second = b.add(rng.choice(SMALL), second)
    for other in rng.sample((first, d.x), 2):
        if other != second and base._joins(b.value(other).shape, b.value(second).shape):
            return _met(d, other, second)
    return second


def repeat(d: Draft) -> str | None:
    """What led from an earlier value of this shape to this one, once more: iterations, and blocks of one kind."""
    rng, b = d.rng, d.b
    fitting = [e for e in (*b.inputs, *d.earlier[-LONGEST_CHAIN:]) if e != d.x and b.value(e).shape == d.shape]
    if not fitting:
        return None
    begin = rng.choice(fitting)
    fresh = rng.random() < 0.5
    copies: dict[str, str] = {begin: d.x}

    def depends(name: str) -> bool:
        node = b.node(name)
        return name == begin or (node is not None and any(depends(o) for o in node.operands if isinstance(o, str)))

    def copy(operand: Operand) -> Operand:
        if not isinstance(operand, str):
            return operand
        if operand not in copies:
            node = b.node(operand)
            if node and depends(operand):
                copies[operand] = b.add(node.op, *(copy(o) for o in node.operands), **dict(node.attributes))
            else:
                copies[operand] = _held(d, operand) if fresh and b.is_parameter(operand) else operand
        return copies[operand]

    if not depends(d.x) or _depth(d, d.x, begin) > LONGEST_CHAIN:
        return None
    found = copy(d.x)
    assert isinstance(found, str)
    return found


def _depth(d: Draft, name: str, begin: str) -> int:
    """Ops between two values, on the longest way."""
    node = d.b.node(name)
    if name == begin or node is None:
        return 0
    return 1 + max((_depth(d, o, begin) for o in node.operands if isinstance(o, str)), default=0)


def modulate(d: Draft) -> str | None:
    """A number a sample, an entry of a small input or a weight a channel, through an activation, scales or shifts x."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    if rank < 2:
        return None
    kind = rng.choice(("sample", "entries", "channel"))
    small = d.input(d.shape[0], rng.choice((2, 2, 3, 4, 6, 8))) if kind == "entries" else ""
    vector = d.input(d.shape[0]) if kind == "sample" else ""
    x = d.x
    for _ in range(rng.choice((1, 1, 2))):
        if kind == "channel":
            side = d.parameter(d.shape[1], *(1,) * (rank - 2)) if rank > 2 else d.parameter(d.shape[1])
        else:
            side = b.add("select", small, dim=1, index=rng.randrange(b.value(small).shape[1])) if small else vector
        if rng.random() < (1.0 if kind == "channel" else 0.5):
            side = b.add(rng.choice(SMALL), side)
        if rng.random() < 0.25:
            side = b.add(rng.choice(("add", "mul")), side, free_number(rng))
        if kind != "channel":
            side = b.add("unsqueeze", side, dim=tuple(range(1, rank)))
        if rng.random() < 0.15:
            x = b.add("div", x, b.add("add", b.add("abs", side), eps(rng)))
        else:
            x = b.add(rng.choice(("mul", "mul", "add", "sub")), *rng.sample((x, side), 2))
    return x


def meet(d: Draft) -> str | None:
    """A value of before with fewer axes joins this one along those that they share."""
    rng, b, shape = d.rng, d.b, d.shape
    sides: list[str] = []
    for e in dict.fromkeys((*b.inputs, *d.earlier)):
        has = b.value(e).shape
        if e == d.x or not 0 < len(has) < len(shape):
            continue
        if has == shape[: len(has)]:
            sides.append(b.add("unsqueeze", e, dim=tuple(range(len(has), len(shape)))))
        elif has[0] == shape[0] and has[1:] == shape[len(shape) - len(has) + 1 :]:
            sides.append(b.add("unsqueeze", e, dim=tuple(range(1, len(shape) - len(has) + 1))))
    return _met(d, d.x, rng.choice(sides)) if sides else None


def experts(d: Draft) -> str | None:
    """Two or three layers of one value, weighted by gates of it."""
    rng, b = d.rng, d.b
    rank = len(d.shape)
    if rank not in (2, 3) or d.shape[-1] > 8192:
        return None
    count, x = rng.choice((2, 2, 3)), d.x
    out = rng.choice((d.shape[-1], 16 * rng.randrange(1, 64)))
    gates = b.add("linear", x, d.parameter(count, d.shape[-1]), d.parameter(count) if rng.random() < 0.6 else None)
    gates = b.add("softmax", gates, dim=rank - 1) if rng.random() < 0.7 else b.add("sigmoid", gates)
    found = ""
    for i in range(count):
        layer = b.add("linear", x, d.parameter(out, d.shape[-1]), d.parameter(out) if rng.random() < 0.6 else None)
        if rng.random() < 0.6:
            layer = b.add(rng.choice(("relu", "gelu", "silu", "tanh", "softplus")), layer)
        part = b.add("mul", b.add("slice", gates, dim=rank - 1, start=i, stop=i + 1), layer)
        found = b.add("add", found, part) if found else part
    return found


def stretched(d: Draft) -> str | None:
    """Values put between their smallest and largest, or measured by their mean distance from the mean."""
    rng, b = d.rng, d.b
    axes = base._axes(d)
    if not axes:
        return None
    small = rng.choice((eps(rng), abs(free_number(rng))))
    if rng.random() < 0.5:
        low, high = (b.add(op, d.x, dim=axes, keepdim=True) for op in ("amin", "amax"))
        return b.add("div", b.add("sub", d.x, low), b.add("add", b.add("sub", high, low), small))
    off = b.add("sub", d.x, b.add("mean", d.x, dim=axes, keepdim=True))
    size = b.add("mean", b.add(rng.choice(("abs", "square")), off), dim=axes, keepdim=True)
    size = b.add("add", size, small)
    d.earlier.append(size)
    return b.add("div", off, b.add("sqrt", size) if rng.random() < 0.4 else size)


STEPS: dict[base.Step, float] = {
    again: 1.6, repeat: 0.5, modulate: 0.6, meet: 0.6, experts: 0.15, stretched: 0.25,
}  # fmt: skip
"""What may come next, and how often it is drawn."""
