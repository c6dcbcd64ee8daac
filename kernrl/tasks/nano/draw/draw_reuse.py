"""Steps of `graph/sample.py` that read one value several times: along both its axes, turned, or through statistics of its own.

What is read twice has to be computed in each kernel that reads it, or be stored between them. Replies that forget both use
a variable that their kernel never defines, so each kind is drawn often enough to be learnt.
"""

from __future__ import annotations

from math import prod

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.sample import Draft
from kernrl.tasks.nano.draw import draw_weights
from kernrl.tasks.nano.draw.draw_sizes import size
from kernrl.tasks.nano.draw.draw_wide import eps, free_number

SQUASHED = ("relu", "gelu", "silu", "tanh", "sigmoid", "elu", "softplus", "mish")
SCALES = ("exp", "sigmoid", "softplus", "tanh", "square")


def _layer(d: Draft, x: str, out: int) -> str:
    """A linear layer over the last axis."""
    bias = d.parameter(out) if d.rng.random() < 0.6 else None
    return d.b.add("linear", x, d.parameter(out, d.b.value(x).shape[-1]), bias)


def _maybe(d: Draft, x: str, often: float = 0.5) -> str:
    return d.b.add(d.rng.choice(SQUASHED), x) if d.rng.random() < often else x


def _turned(d: Draft, x: str) -> str:
    """The last two axes swapped."""
    rank = len(d.b.value(x).shape)
    return d.b.add("permute", x, dims=(*range(rank - 2), rank - 1, rank - 2))


def _square(d: Draft) -> str | None:
    """A value with as many rows as columns: the current one if it is square, else products of its rows or of projections."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank >= 2 and shape[-1] == shape[-2]:
        return d.x
    if rank not in (2, 3) or prod(shape[:-1]) * shape[-2] > d.most or shape[-1] > 8192:
        return None
    one = d.x if rng.random() < 0.5 else _layer(d, d.x, size(rng, 8, 256))
    other = one if rng.random() < 0.5 or b.value(one).shape != shape else d.input(*shape)
    found = b.add("matmul", one, _turned(d, other)) if rank == 3 else b.add("linear", one, other)
    return b.add("mul", found, abs(free_number(rng))) if rng.random() < 0.6 else found


def both_ways(d: Draft) -> str | None:
    """A value made shares along one axis and along another, both at once or in turn."""
    rng, b = d.rng, d.b
    rank = len(d.shape)
    if rank not in (2, 3, 4):
        return None
    x = (_square(d) or d.x) if rng.random() < 0.5 else d.x
    rank = len(b.value(x).shape)
    first, second = rng.sample((rank - 1, rank - 2), 2)
    kind = rng.choice(("at once", "at once", "in turn", "in turn", "sums"))
    if kind == "at once":
        op = rng.choice(("softmax", "softmax", "log_softmax"))
        one, other = (b.add(op, x, dim=(axis,)) for axis in (first, second))
        joined = b.add(rng.choice(("minimum", "mul", "add", "maximum", "sub")), *rng.sample((one, other), 2))
        return b.add("sqrt", joined) if op == "softmax" and rng.random() < 0.1 else joined
    if kind == "sums":
        x = b.add(rng.choice(("exp", "sigmoid", "softplus")), x)
    for axis in (first, second) * rng.choice((1, 1, 2)):
        if kind == "sums":
            x = b.add("div", x, b.add("add", b.add("sum", x, dim=(axis,), keepdim=True), eps(rng)))
        else:
            x = b.add("sub", x, b.add("logsumexp", x, dim=(axis,), keepdim=True))
    return b.add("exp", x) if kind == "in turn" and rng.random() < 0.6 else x


def with_turned(d: Draft) -> str | None:
    """A matrix joined with itself turned, as a value or as a layer's weight."""
    rng, b = d.rng, d.b
    width = d.shape[-1] if len(d.shape) > 1 else 0
    if rng.random() < 0.5 and 8 <= width <= 4096:
        w = draw_weights.weight(d, width, width) if rng.random() < 0.7 else d.parameter(width, width)
        whole = b.add(rng.choice(("sub", "sub", "add", "mul")), *rng.sample((w, _turned(d, w)), 2))
        if rng.random() < 0.3:
            whole = b.add("mul", whole, rng.choice((0.5, abs(free_number(rng)))))
        out = b.add("matmul", d.x, whole) if rng.random() < 0.6 else b.add("linear", d.x, whole, d.parameter(width))
        if rng.random() < 0.4:
            out = b.add("sub", out, b.add("mul", d.x, abs(free_number(rng))))
        return out
    x = _square(d)
    if x is None:
        return None
    found = b.add(rng.choice(("add", "sub", "mul", "maximum", "minimum")), *rng.sample((x, _turned(d, x)), 2))
    return b.add("mul", found, 0.5) if rng.random() < 0.4 else found


def undone(d: Draft) -> str | None:
    """Centre and scale are taken from rows, and given back behind a layer, often by weights of their own."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank not in (2, 3) or not 8 <= shape[-1] <= 8192:
        return None
    last = (rank - 1,)
    centre = b.add("mean", d.x, dim=last, keepdim=True)
    off = b.add("sub", d.x, centre)
    spread = b.add("mean", b.add(rng.choice(("abs", "square")), off), dim=last, keepdim=True)
    spread = b.add("sqrt", b.add("add", spread, eps(rng))) if rng.random() < 0.4 else b.add("add", spread, eps(rng))
    out = shape[-1] if rng.random() < 0.3 else size(rng, 4, 2048)
    y = _maybe(d, _layer(d, b.add("div", off, spread), out), 0.3)
    for op, side in (("mul", spread), ("add", centre)):
        if rng.random() < 0.8:
            if rng.random() < 0.4:
                side = b.add("mul", side, d.parameter(out))
            y = b.add(op, *rng.sample((y, side), 2))
    d.earlier.append(spread)
    return y


def expectation(d: Draft) -> str | None:
    """The mean of held places by shares along an axis, and how far they lie apart: a soft argmax."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank < 2:
        return None
    axis = rng.randrange(1, rank)
    if not 2 <= shape[axis] <= 8192:
        return None
    shares = b.add("softmax", d.x, dim=(axis,))
    places = d.parameter(shape[axis], *(1,) * (rank - 1 - axis), kind=rng.choice(("buffer", "parameter")))
    mean = b.add("sum", b.add("mul", shares, places), dim=(axis,), keepdim=True)
    if rng.random() < 0.4:
        return mean if rng.random() < 0.3 else b.add("squeeze", mean, dim=(axis,))
    apart = b.add("square", b.add("sub", *rng.sample((places, mean), 2)))
    found = b.add("sum", b.add("mul", *rng.sample((apart, shares), 2)), dim=(axis,))
    d.earlier.append(b.add("squeeze", mean, dim=(axis,)))
    return b.add("sqrt", found) if rng.random() < 0.5 else found


def moments(d: Draft) -> str | None:
    """Several statistics of one value over the same axes, side by side or as results of their own."""
    rng, b = d.rng, d.b
    axes = base._axes(d)
    if not axes:
        return None
    x = d.x if rng.random() < 0.5 else b.add(rng.choice(SQUASHED), d.x)
    mean = b.add("mean", x, dim=axes, keepdim=True)
    if rng.random() < 0.5:
        other = b.add("mean", b.add("square", b.add("sub", x, mean)), dim=axes)
        other = b.add("sqrt", b.add("add", other, eps(rng))) if rng.random() < 0.6 else other
    else:
        other = b.add(rng.choice(("amax", "amin", "std", "logsumexp", "sum")), x, dim=axes)
    flat = b.add("squeeze", mean, dim=axes)
    d.earlier += [x, flat]
    rank = len(b.value(flat).shape)
    if rng.random() < 0.4 and rank > 1:
        return b.add("cat", *rng.sample((flat, other), 2), dim=rng.choice((1, rank - 1)))
    return b.add(rng.choice(("add", "sub", "mul")), flat, other) if rng.random() < 0.3 else other


def energy(d: Draft) -> str | None:
    """What rows sum to by one function, joined with what a layer of them sums to by another."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank not in (2, 3) or not 4 <= shape[-1] <= 16384:
        return None
    last, keep = (rank - 1,), rng.random() < 0.5
    sides = []
    for x in rng.sample((d.x, _layer(d, d.x, size(rng, 4, 4096))), 2):
        if rng.random() < 0.4:
            x = b.add(rng.choice(("sub", "add", "mul")), x, d.parameter(b.value(x).shape[-1]))
        x = b.add(rng.choice(("square", "softplus", "abs", "tanh", "relu", "square")), x)
        side = b.add(rng.choice(("sum", "sum", "mean", "amax")), x, dim=last, keepdim=keep)
        for _ in range(rng.choice((0, 1, 1, 2))):
            side = b.add(rng.choice(("mul", "div")), side, abs(free_number(rng)))
        sides.append(side)
    found = b.add(rng.choice(("sub", "sub", "add", "mul")), *sides)
    return b.add("squeeze", found, dim=last) if keep and rng.random() < 0.5 else found


def one_axis_at_a_time(d: Draft) -> str | None:
    """Images whose windows lie along one axis: short ones, a pool of them, or one that spans the whole axis."""
    rng, b, shape = d.rng, d.b, d.shape
    if len(shape) != 4 or shape[1] > 256 or min(shape[2:]) < 6:
        return None
    axis, out = rng.randrange(2), size(rng, 2, 96)
    kind = rng.choice(("short", "whole", "pool"))
    if kind == "pool":
        k = rng.choice((2, 3, 4, 5, 8, rng.randrange(2, 60)))
        stride = k if rng.random() < 0.5 else rng.randrange(1, k + 1)
        if k > shape[2 + axis]:
            return None
        ones = (1, 1)
        window = tuple(k if a == axis else 1 for a in range(2))
        strides = tuple(stride if a == axis else ones[a] for a in range(2))
        return b.add(f"{rng.choice(('avg', 'avg', 'max'))}_pool2d", d.x, kernel_size=window, stride=strides)
    k = shape[2 + axis] if kind == "whole" else rng.choice((3, 5, 7, 9, 2 * rng.randrange(4, 24) + 1))
    if (kind == "whole" and (k > 256 or k * shape[1] * out > 4_000_000)) or k > shape[2 + axis]:
        return None
    window = tuple(k if a == axis else 1 for a in range(2))
    padding = tuple(n // 2 if kind == "short" and rng.random() < 0.5 else 0 for n in window)
    bias = d.parameter(out) if rng.random() < 0.6 else None
    y = _maybe(d, b.add("conv2d", d.x, d.parameter(out, shape[1], *window), bias, padding=padding), 0.6)
    return b.add("squeeze", y, dim=(2 + axis,)) if kind == "whole" and rng.random() < 0.7 else y


def smoothed(d: Draft) -> str | None:
    """Each channel by the same few weights, which are shares, held, or given a sign."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape) - 2
    if rank not in (1, 2) or min(shape[2:]) < 12 or shape[1] < 2:
        return None
    k = (rng.choice((3, 5, 5, 7, 9, 11)),) * rank
    weights = d.parameter(1, 1, *k, kind=rng.choice(("parameter", "buffer")))
    if rng.random() < 0.6:
        weights = b.add("softmax", weights, dim=tuple(range(2, rank + 2)) if rank > 1 and rng.random() < 0.7 else (rank + 1,))
    weights = b.add("expand", weights, shape=(shape[1], 1, *k))
    padding = (k[0] // 2 if rng.random() < 0.7 else 0,) * rank
    found = b.add(f"conv{rank}d", d.x, weights, None, padding=padding, groups=shape[1])
    if padding[0] and rng.random() < 0.4:
        return b.add("sub", d.x, found)
    return found


def quadratic(d: Draft) -> str | None:
    """Rows times a matrix that a layer makes of rows: forms of two, mixtures, weights of a sample's own."""
    rng, b, shape = d.rng, d.b, d.shape
    if len(shape) != 2 or shape[1] > 4096:
        return None
    small = shape[1] if shape[1] <= 64 else 0
    n, m = (small or rng.randrange(2, 48)), rng.randrange(2, 48)
    m = n if rng.random() < 0.5 else m
    vector = d.x if small and rng.random() < 0.5 else d.input(shape[0], n)
    x = b.add(rng.choice((*SQUASHED, "sin")), _layer(d, d.x, size(rng, 8, 256))) if rng.random() < 0.5 else d.x
    matrix = b.add("unflatten", _layer(d, x, n * m), dim=1, sizes=(n, m))
    found = b.add("matmul", b.add("unsqueeze", vector, dim=(1,)), matrix)
    kind = rng.choice(("form", "rows", "length"))
    if kind == "rows" or (kind == "form" and n != m):
        return b.add("squeeze", found, dim=(1,))
    if kind == "form":
        return b.add("squeeze", b.add("matmul", found, b.add("unsqueeze", vector, dim=(2,))), dim=(1, 2))
    long = b.add("sum", b.add("square", found), dim=(2,), keepdim=True)
    long = b.add("mul", long, 0.5) if rng.random() < 0.6 else b.add("sqrt", long)
    return b.add("squeeze", long, dim=(1, 2))


def sandwich(d: Draft) -> str | None:
    """Two convolutions with something between, joined with what went in, by a number a channel or by none."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape) - 2
    if rank not in (1, 2, 3) or not 2 <= shape[1] <= 512 or min(shape[2:]) < 6:
        return None
    inner, y = size(rng, 2, 128), d.x
    for into, out in ((shape[1], inner), (inner, shape[1])):
        k = rng.choice((1, 1, 3, 5))
        y = b.add(
            f"conv{rank}d", y, d.parameter(out, into, *(k,) * rank), d.parameter(out) if rng.random() < 0.7 else None,
            padding=(k // 2,) * rank,
        )  # fmt: skip
        if out == inner:
            y = b.add("prelu", y, d.parameter(inner)) if rng.random() < 0.2 else _maybe(d, y, 0.9)
    if rng.random() < 0.6:
        amount = d.parameter(shape[1], *(1,) * rank) if rng.random() < 0.7 else d.parameter(1)
        y = b.add("mul", *rng.sample((y, b.add(rng.choice(SCALES), amount) if rng.random() < 0.6 else amount), 2))
    return b.add(rng.choice(("add", "sub", "mul")), d.x, y)


def mixed_by_angle(d: Draft) -> str | None:
    """A value and another, by the cosine and the sine of a number a sample; often drawn together afterwards."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank < 2:
        return None
    alike = [e for e in (*b.inputs, *d.earlier) if e != d.x and b.value(e).shape == shape]
    other = rng.choice(alike) if alike and rng.random() < 0.5 else d.input(*shape)
    angle, parts = d.input(shape[0]), []
    for op, x in zip(rng.choice((("cos", "sin"), ("sin", "cos"), ("sigmoid", "exp"))), (d.x, other), strict=True):
        side = b.add("unsqueeze", b.add(op, angle), dim=tuple(range(1, rank)))
        parts.append(b.add("mul", *rng.sample((side, x), 2)))
    mixed = b.add(rng.choice(("add", "sub")), *rng.sample(parts, 2))
    if rng.random() < 0.3:
        return b.add("mul", b.add("rsqrt", b.add("add", b.add("square", mixed), 1.0)), mixed)
    return mixed


def neighbours(d: Draft) -> str | None:
    """Each row with several rows of its own, weighted by what lies between, and one value of them all."""
    rng, b, shape = d.rng, d.b, d.shape
    if len(shape) != 2 or not 8 <= shape[1] <= 1024:
        return None
    count, width = rng.randrange(2, 40), shape[1]
    if prod(shape) * count > d.most:
        return None
    near = d.input(shape[0], count, width)
    here = b.add("unsqueeze", _layer(d, d.x, width), dim=(1,))
    found = _maybe(d, b.add(rng.choice(("add", "mul", "sub")), here, _layer(d, near, width)), 0.7)
    if rng.random() < 0.6:
        bond = d.input(shape[0], count, size(rng, 2, 64)) if rng.random() < 0.6 else near
        gate = _layer(d, bond, rng.choice((1, width, width)))
        if rng.random() < 0.4:
            gate = b.add("exp", b.add("neg", b.add("softplus", gate)))
        else:
            gate = b.add("softmax", gate, dim=(1,)) if rng.random() < 0.4 else b.add("sigmoid", gate)
        found = b.add("mul", *rng.sample((gate, found), 2))
    whole = b.add(rng.choice(("mean", "sum", "amax")), found, dim=(1,))
    return b.add("add", whole, d.x) if rng.random() < 0.5 else whole


def planes(d: Draft) -> str | None:
    """Products of planes, one a channel, where channels come last: the axes are turned before and back behind."""
    rng, b, shape = d.rng, d.b, d.shape
    if len(shape) != 4 or shape[3] > 512 or not 2 <= shape[1] <= 512 or not 2 <= shape[2] <= 512:
        return None
    width = size(rng, 2, 128)
    both = _layer(d, d.x, 2 * width)
    one, other = (b.add("chunk", both, chunks=2, dim=3, index=i) for i in rng.sample((0, 1), 2))
    one, other = (b.add("permute", _maybe(d, e, 0.4), dims=(0, 3, 1, 2)) for e in (one, other))
    if shape[1] != shape[2]:
        other = _turned(d, other)
    found = b.add("matmul", one, other)
    found = b.add("div", found, float(b.value(one).shape[-1])) if rng.random() < 0.6 else found
    return b.add("permute", found, dims=(0, 2, 3, 1)) if rng.random() < 0.8 else found


def judged_by_two(d: Draft) -> str | None:
    """Channels weighted by two small layers of their mean and of their largest."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank < 3 or not 2 <= shape[1] <= 2048 or prod(shape[2:]) == 1:
        return None
    space = tuple(range(2, rank))
    summaries = [b.add(op, d.x, dim=space) for op in rng.sample(("mean", "amax"), 2)]
    joined = b.add("cat", *summaries, dim=1) if rng.random() < 0.6 else b.add("add", *summaries)
    inner = _layer(d, joined, size(rng, 2, 128))
    gate = _layer(d, b.add(rng.choice((*SQUASHED, "softsign")), inner), shape[1])
    gate = b.add(rng.choice(("sigmoid", "tanh", "hardsigmoid")), gate)
    gate = b.add("add", gate, 1.0) if rng.random() < 0.4 else gate
    return b.add("mul", *rng.sample((d.x, b.add("unsqueeze", gate, dim=space)), 2))


STEPS: dict[base.Step, float] = {
    both_ways: 0.5, with_turned: 0.5, undone: 0.35, expectation: 0.35, moments: 0.5, energy: 0.4, one_axis_at_a_time: 0.7,
    smoothed: 0.3, quadratic: 0.3, sandwich: 0.4, mixed_by_angle: 0.3, neighbours: 0.3, planes: 0.3, judged_by_two: 0.3,
}  # fmt: skip
"""What may come next, and how often it is drawn."""
