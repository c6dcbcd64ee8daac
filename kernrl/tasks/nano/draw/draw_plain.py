"""Plain modules: one layer, and some ops after it, most of them on the last result.

Much of what people write is no more than this, so a share of all Graphs is drawn from the steps here. Beside those of
`draw_wide.py`, which are drawn oftener than elsewhere, there are what follows a single layer: pools over the features of
rows, parameters of any shape that broadcasts, reductions in turn, a value times something of itself, summaries side by side
and over one axis and another, pixels as tokens, and shares of a whole that are weighed.
"""

from __future__ import annotations

from math import prod
from random import Random

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.sample import Draft
from kernrl.tasks.nano.draw import draw_again, draw_rare, draw_space
from kernrl.tasks.nano.draw import draw_wide as wide
from kernrl.tasks.nano.draw.draw_sizes import window

LENGTHS = {2: 1, 3: 2, 4: 3, 5: 3, 6: 3, 7: 2.5, 8: 2, 9: 1}
"""Ops of a plain Graph, its layer included → how often."""

REDUCTIONS = ("sum", "mean", "amax", "amin", "logsumexp", "var", "std", "norm", "prod")
SIGMOIDS = ("sigmoid", "sigmoid", "tanh", "softplus", "hardsigmoid", "relu", "sin", "exp", "erf", "softsign")


def outputs(rng: Random, draft: Draft) -> list[str]:
    """The last value; seldom one of before, too."""
    others = [e for e in dict.fromkeys(draft.earlier[1:]) if e != draft.x]
    return [draft.x, rng.choice(others)] if others and rng.random() < 0.03 else [draft.x]


def pool_of_features(d: Draft) -> str | None:
    """A pool over the features of rows, which are one channel for it or, of tokens, as many as there are."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    if rank not in (2, 3) or d.shape[-1] < 8:
        return None
    k = rng.choice((2, 2, 3, 4, 5, 8, window(rng)))
    stride = k if rng.random() < 0.7 else rng.choice((1, 2, 3))
    padding = k // 2 if rng.random() < 0.25 else 0
    if k > d.shape[-1]:
        return None
    x = b.add("unsqueeze", d.x, dim=(1,)) if rank == 2 else d.x
    numbers = {"kernel_size": (k,), "stride": (stride,), "padding": (padding,)}
    if padding and rng.random() < 0.2:
        found = b.add("avg_pool1d", x, count_include_pad=False, **numbers)
    else:
        found = b.add(rng.choice(("avg_pool1d", "max_pool1d")), x, **numbers)
    return b.add("squeeze", found, dim=(1,)) if rank == 2 and rng.random() < 0.9 else found


def _shape_of_parameter(d: Draft) -> tuple[int, ...]:
    """Any shape that broadcasts to x without its first axis; seldom one of more axes than x has."""
    rng, shape, rank = d.rng, d.shape, len(d.shape)
    kind = rng.choice(("one", "one", "channel", "last", "axis", "all", "some"))
    if rng.random() < 0.06 and 1 < rank < 4 and prod(shape) * shape[1] < 2**28:
        return (shape[1], *(1,) * rng.choice((rank, rank - 1 or 1)))
    if kind == "one":
        return (1,) * rng.choice((0, 0, 1, 1, 1, rank, rank - 1))
    kept = {
        "channel": {1 if rank > 2 else rank - 1},
        "last": {rank - 1},
        "axis": {rng.randrange(1, rank)} if rank > 1 else {0},
        "all": set(range(1, rank)),
        "some": {a for a in range(1, rank) if rng.random() < 0.5},
    }[kind]
    sizes = tuple(n if a in kept else 1 for a, n in enumerate(shape))
    return sizes if rng.random() < 0.3 else sizes[min(kept, default=rank - 1) :]


def any_parameter(d: Draft) -> str | None:
    """Arithmetic with a parameter or a buffer of any shape that broadcasts, as it is or through an op."""
    rng, b = d.rng, d.b
    x = d.x
    p = d.parameter(*_shape_of_parameter(d), kind="buffer" if rng.random() < 0.1 else "parameter")
    if rng.random() < 0.15:
        p = b.add(rng.choice(("exp", "sigmoid", "softplus", "tanh", "abs", "relu")), p)
    if rng.random() < 0.1:
        p = b.add(rng.choice(("add", "mul")), p, wide.free_number(rng))
    op = rng.choice(("add", "add", "sub", "sub", "mul", "mul", "mul", "div", "maximum", "minimum"))
    return b.add(op, *((x, p) if op != "sub" or rng.random() < 0.8 else (p, x)))


def reductions_in_turn(d: Draft) -> str | None:
    """One reduction after another, over what axes are left or over the ones that came of it."""
    rng, b, x = d.rng, d.b, d.x
    for turn in range(rng.choice((2, 2, 3, 4))):
        shape = b.value(x).shape
        rank = len(shape)
        if not rank:
            break
        axes = tuple(a for a in range(rank) if shape[a] > 1 and (a or rng.random() < 0.1))
        kind = rng.choice(("one", "one", "some", "again"))
        if kind == "again" and turn:
            dim = (rng.randrange(rank),)
        elif kind == "some":
            dim = tuple(a for a in axes if rng.random() < 0.6)
        else:
            dim = tuple(rng.sample(axes, min(1, len(axes))))
        if dim:
            x = b.add(rng.choice(REDUCTIONS[:5] if turn else REDUCTIONS), x, dim=dim, keepdim=rng.random() < 0.65)
        if rng.random() < 0.3:
            x = b.add(rng.choice(("relu", "tanh", "sigmoid", "gelu", "silu")), x)
    return x


def of_itself(d: Draft) -> str | None:
    """A value times, plus or over something of itself, often through a number or a parameter."""
    rng, b, x = d.rng, d.b, d.x
    rank = len(d.shape)
    kind = rng.choice(("gate", "gate", "gate", "scaled", "held", "twice", "wave", "shrunk", "saved"))
    if kind == "gate":
        return b.add(rng.choice(("mul", "mul", "mul", "add", "sub")), *rng.sample((x, b.add(rng.choice(SIGMOIDS), x)), 2))
    if kind == "scaled":
        return b.add("mul", x, b.add(rng.choice(SIGMOIDS), b.add(rng.choice(("mul", "add")), x, wide.free_number(rng))))
    held = d.parameter(*rng.choice(((), (1,), (d.shape[1], *(1,) * (rank - 2)) if rank > 1 else (1,))))
    if kind == "held":
        return b.add("mul", x, b.add("sigmoid", b.add("mul", held, x)))
    if kind == "twice":
        return b.add(rng.choice(("add", "mul")), x, x)
    if kind == "wave":
        wave = b.add("square", b.add("sin", b.add("mul", held, x)))
        return b.add("add", x, b.add("div", wave, held if rng.random() < 0.6 else b.add("add", held, wide.eps(rng))))
    if kind == "shrunk":
        size = b.add(
            "add", b.add(rng.choice(("abs", "square", "exp", "softplus")), x), rng.choice((1.0, abs(wide.free_number(rng))))
        )
        return b.add("div", x, b.add("sqrt", size) if rng.random() < 0.3 else size)
    changed = b.add(rng.choice(("add", "sub", "mul")), x, held if rng.random() < 0.6 else wide.free_number(rng))
    for _ in range(rng.choice((0, 0, 1, 2))):
        changed = b.add(rng.choice(("add", "mul", "sub")), changed, x)
    return b.add(rng.choice(("add", "mul", "sub")), changed, x)


def summaries(d: Draft) -> str | None:
    """Two reductions of one value over the same axes, joined; they may come back to it."""
    rng, b = d.rng, d.b
    dim = wide.axes(d) if rng.random() < 0.5 else base._axes(d)
    if not dim or (0 in dim and rng.random() < 0.8):
        return None
    keep = rng.random() < 0.6
    one, other = rng.sample(REDUCTIONS[:7], 2)
    found: list[str] = []
    for op in (one, other):
        x = b.add(rng.choice(("abs", "square", "exp", "sigmoid", "relu")), d.x) if rng.random() < 0.2 else d.x
        x = b.add(op, x, dim=dim, keepdim=keep)
        found.append(b.add("mul", x, wide.free_number(rng)) if rng.random() < 0.25 else x)
    rank = len(b.value(found[0]).shape)
    op = rng.choice(("add", "sub", "sub", "mul", "div", "cat", "maximum"))
    if op == "cat" and rank > 1:
        return b.add("cat", *found, dim=1)
    if op == "div":
        found[1] = b.add("add", b.add("abs", found[1]) if rng.random() < 0.7 else b.add("exp", found[1]), wide.eps(rng))
    joined = b.add("add" if op == "cat" else op, *found)
    return b.add(rng.choice(("mul", "add", "sub")), d.x, joined) if keep and rng.random() < 0.3 else joined


def pixels_as_tokens(d: Draft) -> str | None:
    """Pixels as rows of channels, normed or moved by a place's code; then a summary, or back to where they were."""
    rng, b, shape, rank = d.rng, d.b, d.shape, len(d.shape)
    if rank < 3 or shape[1] < 4 or prod(shape[2:]) < 4:
        return None
    flat = rank == 3 or rng.random() < 0.6
    x = b.add("flatten", d.x, start_dim=2, end_dim=rank - 1) if rank > 3 and flat else d.x
    now = len(b.value(x).shape)
    x = b.add("permute", x, dims=(0, *range(2, now), 1))
    c = shape[1]
    if rng.random() < 0.3:
        whole = b.value(x).shape[1:]
        x = b.add(rng.choice(("add", "add", "mul")), x, d.parameter(*rng.choice((whole, (1, *whole), (c,)))))
    kind = rng.choice(("layer", "layer", "layer", "rms", "softmax", "none"))
    if kind == "layer":
        affine = rng.random() < 0.8
        x = b.add(
            "layer_norm", x, *((d.parameter(c), d.parameter(c)) if affine else (None, None)), dim=(now - 1,), eps=wide.eps(rng)
        )
    elif kind == "rms":
        x = b.add("rms_norm", x, d.parameter(c) if rng.random() < 0.7 else None, dim=(now - 1,), eps=wide.eps(rng))
    elif kind == "softmax":
        x = b.add("softmax", x, dim=(now - 1,))
    if rng.random() < 0.4:
        x = b.add(rng.choice(("gelu", "relu", "silu", "tanh", "sigmoid")), x)
    last = rng.choice(("back", "tokens", "summary", "summary", "two"))
    tokens = tuple(range(1, now - 1))
    if last == "back":
        return b.add("permute", x, dims=(0, now - 1, *range(1, now - 1)))
    if last == "summary":
        return b.add(rng.choice(("mean", "mean", "amax", "sum", "logsumexp")), x, dim=tokens)
    if last == "two":
        one, other = (b.add(op, x, dim=tokens) for op in rng.sample(("mean", "amax", "amin", "sum", "std"), 2))
        other = b.add("mul", other, wide.free_number(rng)) if rng.random() < 0.5 else other
        return b.add(rng.choice(("add", "sub", "mul")), one, other)
    return x


def weighed(d: Draft) -> str | None:
    """Shares of a whole times logarithms or values, summed: entropies, divergences, expectations, soft maxima."""
    rng, b, x = d.rng, d.b, d.x
    dim = base._axes(d)[-1:]
    if not dim:
        return None
    scaled = b.add(rng.choice(("mul", "div")), x, abs(wide.free_number(rng))) if rng.random() < 0.5 else x
    one, other = (scaled, x) if rng.random() < 0.5 else (x, scaled)
    shares = b.add("softmax", one, dim=dim)
    kind = rng.choice(("entropy", "guarded", "divergence", "values", "held"))
    if kind == "entropy":
        values = b.add("log_softmax", other, dim=dim)
    elif kind == "guarded":
        values = b.add("log", b.add("add", shares, wide.eps(rng)))
    elif kind == "divergence":
        values = b.add("sub", b.add("log_softmax", one, dim=dim), b.add("log_softmax", other, dim=dim))
    elif kind == "values":
        values = x
    else:
        axis = dim[0]
        values = d.parameter(d.shape[axis], *(1,) * (len(d.shape) - 1 - axis))
    found = b.add("sum", b.add("mul", *rng.sample((shares, values), 2)), dim=dim, keepdim=rng.random() < 0.5)
    return b.add("neg", found) if kind in ("entropy", "guarded") and rng.random() < 0.6 else found


def marginals(d: Draft) -> str | None:
    """What reductions over one axis and over another leave, joined with each other or with the value."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    wide_axes = [a for a in range(rank) if d.shape[a] > 1 and (a or rng.random() < 0.2)]
    if len(wide_axes) < 2:
        return None
    x = d.x if rng.random() < 0.5 else ""
    for axis in rng.sample(wide_axes, 2 if rng.random() < 0.8 else len(wide_axes)):
        side = b.add(rng.choice(("mean", "mean", "sum", "amax", "amin", "std")), d.x, dim=(axis,), keepdim=True)
        if rng.random() < 0.3:
            side = b.add(rng.choice(("sigmoid", "tanh", "relu", "softplus")), side)
        x = b.add(rng.choice(("mul", "add", "sub", "maximum")), x, side) if x else side
    return x


def shrunk_to_join(d: Draft) -> str | None:
    """A value of before joins by its summary over those axes in which it differs, or over the last."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    alike = [e for e in (*b.inputs, *d.earlier) if e != d.x and len(b.value(e).shape) == rank > 1]
    if not alike:
        return None
    e = rng.choice(alike)
    shape = b.value(e).shape
    dim = tuple(a for a in range(rank) if shape[a] not in (1, d.shape[a]))
    if not dim:
        dim = wide.axes(d) if shape == d.shape else ()
    if dim and (0 not in dim or rng.random() < 0.1):
        e = b.add(rng.choice(("mean", "mean", "sum", "amax", "amin", "norm")), e, dim=dim, keepdim=True)
    if rng.random() < 0.2:
        e = b.add(rng.choice(SIGMOIDS), e)
    return b.add(rng.choice(("add", "add", "sub", "mul", "maximum")), *rng.sample((d.x, e), 2))


def masked(d: Draft) -> str | None:
    """Another number where a further input, of the first axes or of all, says so; shares of what is left come after it."""
    rng, b, shape, rank = d.rng, d.b, d.shape, len(d.shape)
    if rank < 2:
        return None
    kept = rng.choice((rank, rank - 1, max(1, rank - 1), 2, 1))
    mask = b.add(rng.choice(("lt", "gt", "le", "ge")), d.input(*shape[:kept]), rng.choice((0.0, 0.0, 0.5)))
    if kept < rank:
        mask = b.add("unsqueeze", mask, dim=tuple(range(kept, rank)))
    other = rng.choice((0.0, 0.0, -1.0, -1e4, -1e9, wide.free_number(rng)))
    sides = (d.x, other) if rng.random() < 0.5 else (other, d.x)
    x = b.add("where", mask, *sides)
    axes = [a for a in range(1, rank) if shape[a] > 1]
    if not axes or rng.random() < 0.4:
        return x
    return b.add(rng.choice(("softmax", "softmax", "mean", "sum", "amax")), x, dim=(rng.choice(axes),))


NEW: dict[base.Step, float] = {
    pool_of_features: 0.8, any_parameter: 2.0, reductions_in_turn: 0.8, of_itself: 1.2, summaries: 0.7,
    pixels_as_tokens: 0.7, weighed: 0.35, marginals: 0.35, shrunk_to_join: 0.5, masked: 0.25, **draw_rare.STEPS,
}  # fmt: skip
"""Those of this file, and what is rare."""

STEPS: dict[base.Step, float] = {
    wide.unary: 5.0, wide.number: 3.0, base.parameter: 0.6, base.further_input: 0.3, base.earlier: 1.0, wide.reduce: 1.6,
    base.centre: 0.3, wide.softmax: 0.9, wide.norm: 2.2, wide.pool: 1.3, base.view: 0.2, wide.of_parameter: 0.2,
    wide.compare: 0.3, wide.choice: 0.3, wide.rounded: 0.1, wide.nearest: 0.4, wide.shuffle: 0.3, draw_space.of_one: 0.3,
    draw_space.pools_in_a_row: 0.5, draw_space.pooled_into: 0.3, draw_again.modulate: 0.2, draw_again.stretched: 0.2, **NEW,
}  # fmt: skip
"""What may come after the layer, and how often it is drawn."""
