"""The Graphs that nano learns from: those of `graph/sample.py`, with products first and what people build of several ops.

`sample.py` draws op by op. The steps here draw what comes together in modules: gates, second branches, squeeze and excite,
attention scores, norms spelled out. Weights follow what level-2 tasks are made of.
"""

from __future__ import annotations

from math import prod
from random import Random

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.sample import Draft, sample
from kernrl.tasks.nano.draw import draw_again, draw_plain, draw_reuse, draw_sides, draw_space, draw_weights
from kernrl.tasks.nano.draw import draw_branches as branches
from kernrl.tasks.nano.draw import draw_sizes as sizes
from kernrl.tasks.nano.draw import draw_wide as wide

MOST_ELEMENTS = 2**31
"""Largest tensor drawn to learn from: 8 GiB of float32. Nothing here is computed."""

LENGTHS = {1: 0.4, 2: 0.8, 3: 1.4, 4: 2, 5: 2, 6: 2, 7: 1.8, 8: 1.6, 9: 1.4, 10: 1.2, 11: 1, 12: 0.8}
"""Ops of a Graph → how often."""

PLAIN = 0.3
"""Share of Graphs that are one layer and what follows it."""


def draw_graph(rng: Random, ops: int | None = None, most: int = MOST_ELEMENTS) -> Graph:
    """A random Graph to learn from, of `ops` ops where that is given, with at most so many elements in a tensor."""
    if ops is None and rng.random() < PLAIN:
        return draw_plain_graph(rng, most)
    ops = ops or rng.choices(list(LENGTHS), weights=list(LENGTHS.values()))[0]
    first = wide.product if rng.random() < 0.5 else None
    return sample(rng, ops, start=_start, first=first, steps=STEPS, outputs=branches.outputs, most=most)


def draw_plain_graph(rng: Random, most: int = MOST_ELEMENTS) -> Graph:
    """A random Graph of one layer and what follows it."""
    ops = rng.choices(list(draw_plain.LENGTHS), weights=list(draw_plain.LENGTHS.values()))[0]
    kept, steps = draw_plain.outputs, PLAIN_STEPS
    return sample(rng, ops, start=_start, first=wide.product, steps=steps, outputs=kept, most=most)


def _start(d: Draft) -> None:
    """The first input, at sizes that people use."""
    rng = d.rng
    kind = rng.choice(
        ("rows", "rows", "rows", "image", "image", "image", "tokens", "tokens", "line", "volume", "volume", "heads")
    )
    if kind == "rows":
        shape = (sizes.size(rng, 2, 200_000), sizes.size(rng, 4, 16_384))
    elif kind == "tokens":
        shape = (sizes.batch(rng), sizes.size(rng, 8, 4096), sizes.size(rng, 16, 2048))
    elif kind == "heads":
        shape = (sizes.batch(rng), sizes.size(rng, 2, 16), sizes.size(rng, 16, 2048), sizes.size(rng, 16, 160))
    else:
        rank = {"line": 1, "image": 2, "volume": 3}[kind]
        low, high = {1: (64, 50_000), 2: (8, 512), 3: (6, 128)}[rank]
        side = sizes.size(rng, low, high)
        sides = [side if rng.random() < 0.7 else sizes.size(rng, low, high) for _ in range(rank)]
        shape = (sizes.batch(rng), sizes.size(rng, 1, 256), *sides)
    while prod(shape) > d.most:
        shape = (max(2, shape[0] // 2), *(n if i % 2 or n < 4 else n // 2 for i, n in enumerate(shape[1:])))
    d.x = d.input(*shape)


def _rare(d: Draft) -> str | None:
    """Ops of one operand that need a domain, or are seldom."""
    rng, b, x = d.rng, d.b, d.x
    kind = rng.choice(
        ("sqrt", "log", "log1p", "cos", "atan", "erf", "expm1", "pow", "rsqrt", "threshold", "prelu", "square", "log10", "tan")
    )
    if kind in ("sqrt", "rsqrt"):
        return b.add(kind, b.add("add", b.add("square", x), wide.eps(rng) if rng.random() < 0.7 else 1.0))
    if kind == "tan":
        kind = rng.choice(("atan", "sinh", "cosh", "erfc", "log2")) if rng.random() < 0.5 else "cos"
    if kind in ("log", "log2", "log10"):
        return b.add(
            kind,
            b.add("add", b.add(rng.choice(("abs", "softplus", "sigmoid")), x), wide.eps(rng) if rng.random() < 0.6 else 1.0),
        )
    if kind == "log1p":
        return b.add("log1p", b.add(rng.choice(("abs", "relu", "square")), x))
    if kind == "expm1":
        return b.add("expm1", b.add("clamp", x, min=None, max=rng.choice((0.0, 1.0))))
    if kind == "pow":
        return b.add("pow", x, rng.choice((2.0, 3.0)))
    if kind == "threshold":
        return b.add("threshold", x, threshold=rng.choice((0.0, 0.1, 0.5)), value=rng.choice((0.0, -1.0, 20.0)))
    if kind == "prelu":
        return b.add("prelu", x, d.parameter(d.shape[1] if len(d.shape) > 1 and rng.random() < 0.6 else 1))
    return b.add(kind, x)


def _gate(d: Draft) -> str | None:
    """Halves of an axis, one of which gates the other."""
    rng, b = d.rng, d.b
    axes = [a for a in (1, len(d.shape) - 1) if len(d.shape) > 1 and d.shape[a] % 2 == 0 and d.shape[a] >= 8]
    if not axes:
        return None
    axis = rng.choice(axes)
    one, other = (b.add("chunk", d.x, chunks=2, dim=axis, index=i) for i in range(2))
    return b.add("mul", one, b.add(rng.choice(("sigmoid", "tanh", "gelu", "silu", "relu")), other))


def _branch(d: Draft) -> str | None:
    """A second linear layer beside, from a value before, joined by arithmetic."""
    rng, b = d.rng, d.b
    wide = [e for e in (*b.inputs, *d.earlier) if len(b.value(e).shape) == len(d.shape) > 1]
    wide = [e for e in wide if b.value(e).shape[:-1] == d.shape[:-1] and e != d.x and b.value(e).shape[-1] <= 16384]
    if not wide or d.shape[-1] > 8192:
        return None
    e = rng.choice(wide)
    out, into = d.shape[-1], b.value(e).shape[-1]
    side = b.add("linear", e, d.parameter(out, into), d.parameter(out) if rng.random() < 0.7 else None)
    if rng.random() < 0.5:
        side = b.add(rng.choice(("sigmoid", "tanh", "relu", "gelu", "silu", "softplus")), side)
    return b.add(rng.choice(("add", "mul", "mul", "sub")), d.x, side)


def _excite(d: Draft) -> str | None:
    """Channels weighted by what they hold on average, with or without a layer between."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    if rank < 3 or d.shape[1] > 4096 or prod(d.shape[2:]) == 1:
        return None
    space = tuple(range(2, rank))
    g = b.add(rng.choice(("mean", "mean", "amax")), d.x, dim=space)
    if rng.random() < 0.7:
        g = b.add("linear", g, d.parameter(d.shape[1], d.shape[1]), d.parameter(d.shape[1]) if rng.random() < 0.7 else None)
    g = b.add(rng.choice(("sigmoid", "tanh", "hardsigmoid")), g)
    return b.add("mul", d.x, b.add("unsqueeze", g, dim=space))


def _film(d: Draft) -> str | None:
    """A vector of a further input scales or shifts the channels."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    if rank < 3:
        return None
    axis = 1 if rank > 3 or rng.random() < 0.5 else 2
    vector = d.input(d.shape[0], d.shape[axis])
    if rng.random() < 0.5:
        width = d.shape[axis]
        vector = b.add("linear", vector, d.parameter(width, width), d.parameter(width))
    others = tuple(a for a in range(1, rank) if a != axis)
    return b.add(rng.choice(("mul", "add")), d.x, b.add("unsqueeze", vector, dim=others))


def _scores(d: Draft) -> str | None:
    """Products of rows with rows, with themselves or with a further input, scaled."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    if rank not in (3, 4) or d.shape[-2] > 1024:
        return None
    other = d.x if rng.random() < 0.4 else d.input(*d.shape)
    turned = b.add("permute", other, dims=(*range(rank - 2), rank - 1, rank - 2))
    found = b.add("matmul", d.x, turned)
    if rng.random() < 0.7:
        found = b.add("mul", found, rng.choice((0.125, 0.1, 0.25, 0.088, 0.5, abs(wide.free_number(rng)))))
    return b.add("softmax", found, dim=(rank - 1,)) if rng.random() < 0.6 else found


def _spelled_norm(d: Draft) -> str | None:
    """A norm in single ops: by length, by root mean square, by deviation, or by the largest value."""
    rng, b = d.rng, d.b
    axes = base._axes(d)
    if not axes:
        return None
    kind = rng.choice(("length", "rms", "deviation", "sum", "max"))
    if kind == "length":
        size = b.add("norm", d.x, dim=axes, keepdim=True)
        return b.add("div", d.x, b.add("clamp", size, min=rng.choice((1e-12, 1e-6)), max=None))
    if kind == "rms":
        square = b.add("mean", b.add("square", d.x), dim=axes, keepdim=True)
        return b.add("mul", d.x, b.add("rsqrt", b.add("add", square, rng.choice((1e-6, 1e-5)))))
    if kind == "deviation":
        off = b.add("sub", d.x, b.add("mean", d.x, dim=axes, keepdim=True))
        return b.add("div", off, b.add("add", b.add("std", d.x, dim=axes, keepdim=True), rng.choice((1e-6, 1e-5))))
    if kind == "sum":
        positive = b.add(rng.choice(("exp", "sigmoid", "softplus", "square")), d.x)
        return b.add("div", positive, b.add("add", b.add("sum", positive, dim=axes, keepdim=True), 1e-6))
    return b.add("div", d.x, b.add("add", b.add("amax", b.add("abs", d.x), dim=axes, keepdim=True), 1e-6))


def _blend(d: Draft) -> str | None:
    """`g * x + (1 - g) * y` with a gate, or a weighted sum with a value before."""
    rng, b = d.rng, d.b
    fitting = [e for e in (*b.inputs, *d.earlier) if e != d.x and b.value(e).shape == d.shape]
    if not fitting:
        return None
    y = rng.choice(fitting)
    if rng.random() < 0.5:
        return b.add("add", d.x, b.add("mul", y, wide.free_number(rng)))
    g = b.add("sigmoid", rng.choice((d.x, y)))
    return b.add("add", b.add("mul", g, d.x), b.add("mul", b.add("sub", 1.0, g), y))


def _outer(d: Draft) -> str | None:
    """Every element of a row with every element of another."""
    rng, b = d.rng, d.b
    if len(d.shape) != 2 or prod(d.shape) * d.shape[1] > d.most:
        return None
    column, row = b.add("unsqueeze", d.x, dim=(2,)), b.add("unsqueeze", d.input(*d.shape), dim=(1,))
    return b.add(rng.choice(("mul", "sub", "add", "maximum")), column, row)


def _turn(d: Draft) -> str | None:
    """Axes in another order."""
    rank = len(d.shape)
    if rank < 3:
        return None
    dims = [0, *d.rng.sample(range(1, rank), rank - 1)]
    return d.b.add("permute", d.x, dims=tuple(dims)) if dims != sorted(dims) else None


def _heads(d: Draft) -> str | None:
    """The last axis, or the channels, in pieces as an axis of their own."""
    rng = d.rng
    axis = rng.choice((1, len(d.shape) - 1)) if len(d.shape) in (2, 3, 4) else 0
    pieces = [k for k in (2, 4, 8, 16) if axis and d.shape[axis] % k == 0 and d.shape[axis] >= 4 * k]
    if not pieces:
        return None
    k = rng.choice(pieces)
    wide = d.b.add("unflatten", d.x, dim=axis, sizes=(k, d.shape[axis] // k))
    if rng.random() < 0.5:
        return d.b.add(rng.choice(("mean", "amax", "sum")), wide, dim=(axis + rng.randrange(2),))
    return wide


def _cut(d: Draft) -> str | None:
    """A part of an axis, two values side by side, or a border."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    if rank < 2:
        return None
    axis = rng.randrange(1, rank)
    kind = rng.choice(("select", "half", "cat", "pad", "flatten"))
    if kind == "select":
        return b.add("select", d.x, dim=axis, index=0) if rank > 2 else None
    if kind == "half":
        return b.add("slice", d.x, dim=axis, start=0, stop=d.shape[axis] // 2) if d.shape[axis] % 2 == 0 else None
    if kind == "cat":
        fitting = [e for e in (*b.inputs, *d.earlier) if b.value(e).shape == d.shape]
        return b.add("cat", d.x, rng.choice(fitting), dim=axis) if fitting else None
    if kind == "pad":
        return _padded(d)
    return b.add("flatten", d.x, start_dim=1, end_dim=rank - 1) if rank > 2 else None


def _padded(d: Draft) -> str | None:
    """A border of zeros, of a number, or of what lies beside it."""
    rng, rank = d.rng, len(d.shape) - 2
    if rank not in (1, 2, 3):
        return None
    mode = rng.choice(("constant", "constant", "reflect", "reflect", "replicate", "circular"))
    each = rng.choice((1, 1, 1, 2, 3, rng.randrange(1, 12)))
    padding = (each,) * 2 * rank if rng.random() < 0.7 else tuple(rng.choice((0, each)) for _ in range(2 * rank))
    if max(padding) >= min(d.shape[2:]) or not any(padding):
        return None
    value = wide.free_number(rng) if mode == "constant" and rng.random() < 0.2 else 0.0
    return d.b.add("pad", d.x, padding=padding, mode=mode, value=value)


def _rarely_pooled(d: Draft) -> str | None:
    """Pools of the whole space, or into a few windows."""
    rank = len(d.shape) - 2
    if rank not in (1, 2, 3) or min(d.shape[2:]) < 6:
        return None
    if d.rng.random() < 0.6:
        kind = d.rng.choice(("mean", "amax"))
        return d.b.add(kind, d.x, dim=tuple(range(2, rank + 2)), keepdim=d.rng.random() < 0.5)
    into = [n for n in (2, 4, 7) if all(s % n == 0 and s > n for s in d.shape[2:])]
    kind = d.rng.choice(("avg", "avg", "max"))
    return d.b.add(f"adaptive_{kind}_pool{rank}d", d.x, output_size=(d.rng.choice(into),) * rank) if into else None


STEPS: dict[base.Step, float] = {
    wide.unary: 5.0, wide.number: 3.5, base.parameter: 1.6, base.further_input: 0.8, base.earlier: 1.5, wide.reduce: 1.7,
    base.centre: 0.3, wide.softmax: 0.7, wide.norm: 1.5, wide.pool: 0.8, wide.product: 2.4, base.view: 0.4, _rare: 1.0,
    wide.of_parameter: 0.5, wide.mixed_rows: 0.15, wide.compare: 0.4, wide.shuffle: 0.25, wide.choice: 0.5, wide.rounded: 0.3,
    wide.along: 0.3, wide.with_full: 0.1, wide.cosine: 0.1,
    _gate: 0.4, _branch: 0.9, _excite: 0.35, _film: 0.35, _scores: 0.4, _spelled_norm: 0.5, _blend: 0.5, _outer: 0.25,
    _turn: 0.45, _heads: 0.35, _cut: 0.5, _rarely_pooled: 0.4, **branches.STEPS,
    **draw_again.STEPS, **draw_weights.STEPS, **draw_space.STEPS, **draw_plain.NEW,
    **draw_reuse.STEPS, **draw_sides.STEPS,
}  # fmt: skip
"""What may come next, and how often it is drawn."""

PLAIN_STEPS: dict[base.Step, float] = {
    **draw_plain.STEPS, _rare: 1.2, _excite: 0.2, _spelled_norm: 0.4, _blend: 0.2, _rarely_pooled: 0.6, _padded: 0.1,
    _gate: 0.35, _heads: 0.2, _cut: 0.25,
}  # fmt: skip
"""What may come after the only layer."""
