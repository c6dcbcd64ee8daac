"""Steps of `graph/sample.py` in which values of different axes meet: numbers a row and a column, a layer of another input
that scales and shifts, weights that are a single share, and pieces of an axis."""

from __future__ import annotations

from math import prod

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.sample import Draft
from kernrl.tasks.nano.draw.draw_sizes import size
from kernrl.tasks.nano.draw.draw_wide import eps, free_number, norm, reduce

SQUASHED = ("relu", "gelu", "silu", "tanh", "sigmoid", "elu", "softplus")


def _layer(d: Draft, x: str, out: int) -> str:
    """A linear layer over the last axis."""
    return d.b.add("linear", x, d.parameter(out, d.b.value(x).shape[-1]), d.parameter(out) if d.rng.random() < 0.6 else None)


def _maybe(d: Draft, x: str, often: float = 0.5) -> str:
    return d.b.add(d.rng.choice(SQUASHED), x) if d.rng.random() < often else x


def _side(d: Draft, x: str, *, column: bool) -> str:
    """A number for each row of x, as a column or as a row of a matrix."""
    rng, b = d.rng, d.b
    rank = len(b.value(x).shape)
    held = x not in b.inputs and x.startswith("p")
    kind = rng.choice(("layer", "layer", "squares", "mean", "largest"))
    if kind == "layer" and not held:
        found = _layer(d, x, 1)
        if column:
            return found
        if rng.random() < 0.5:
            return b.add("permute", found, dims=(*range(rank - 2), rank - 1, rank - 2))
        return b.add("reshape", found, shape=(*b.value(x).shape[:-2], 1, b.value(x).shape[-2]))
    if kind == "squares" or held:
        found = b.add("sum", b.add("square", x), dim=(rank - 1,), keepdim=column)
    else:
        found = b.add("mean" if kind == "mean" else "amax", x, dim=(rank - 1,), keepdim=column)
    return found if column or rank == 2 else b.add("unsqueeze", found, dim=(rank - 2,))


def sides(d: Draft) -> str | None:
    """A matrix of a number for each row and one for each column, often with the products of rows beside them."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank not in (2, 3) or shape[-1] > 4096 or prod(shape[:-1]) * shape[-2] > d.most:
        return None
    one, other = d.x, d.x
    if rng.random() < 0.5:
        inner = size(rng, 8, 512)
        one, other = (_maybe(d, _layer(d, d.x, inner)) for _ in range(2))
    elif rank == 2 or rng.random() < 0.3:
        other = d.parameter(size(rng, 4, 4096), shape[-1])
    if rank == 2 and other == d.x:
        other = d.input(*shape)
    column, row = _side(d, one, column=True), _side(d, other, column=False)
    found = b.add(rng.choice(("add", "add", "add", "sub", "mul")), *rng.sample((column, row), 2))
    if rng.random() < 0.7:
        last = len(b.value(other).shape)
        if b.value(other).shape[0] != shape[0] or rank == 2:
            scores = b.add("linear", one, other) if last == 2 else None
        else:
            scores = b.add("matmul", one, b.add("permute", other, dims=(0, 2, 1)))
        if scores is None:
            return None
        if rng.random() < 0.8:
            scores = b.add(rng.choice(("mul", "div")), scores, rng.choice((2.0, 8.0, 16.0, 0.5, abs(free_number(rng)))))
        found = b.add(rng.choice(("add", "sub")), *rng.sample((found, scores), 2))
    kind = rng.choice(("as it is", "softmax", "log_softmax", "exp", "sigmoid", "tanh"))
    if kind in ("softmax", "log_softmax"):
        return b.add(kind, found, dim=(rank - 1,))
    if kind == "exp":
        return b.add("exp", b.add("mul", found, -abs(free_number(rng))))
    return found if kind == "as it is" else b.add(kind, found)


def by_another(d: Draft) -> str | None:
    """A value, often normed, is scaled and shifted by the halves of a layer of another input or of a value of before."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank < 2 or max(shape[1], shape[-1]) > 2048:
        return None
    x = norm(d) or d.x if rng.random() < 0.7 else d.x
    if rank in (3, 4, 5) and rng.random() < 0.7:
        axis, k = 1, rng.choice((1, 3, 3))
        if min(shape[2:]) < k:
            return None
        inner = size(rng, 1, 128)
        y = d.input(shape[0], inner, *shape[2:])
        weight = d.parameter(2 * shape[1], inner, *(k,) * (rank - 2))
        both = b.add(f"conv{rank - 2}d", y, weight, d.parameter(2 * shape[1]), padding=(k // 2,) * (rank - 2))
    else:
        axis = rank - 1
        fitting = [e for e in d.earlier if b.value(e).shape[:-1] == shape[:-1] and 1 < b.value(e).shape[-1] <= 2048]
        y = rng.choice(fitting) if fitting and rng.random() < 0.4 else d.input(*shape[:-1], size(rng, 2, 512))
        both = _layer(d, y, 2 * shape[-1])
    scale, shift = (b.add("chunk", both, chunks=2, dim=axis, index=i) for i in rng.sample((0, 1), 2))
    scale = b.add("add", scale, 1.0) if rng.random() < 0.4 else _maybe(d, scale, 0.7)
    found = b.add("mul", *rng.sample((scale, x), 2))
    return b.add("add", found, shift) if rng.random() < 0.85 else found


def weight_of_one(d: Draft) -> str | None:
    """A number for each row, often a softmax over itself alone, times a layer of the row."""
    rng, b, shape = d.rng, d.b, d.shape
    if len(shape) < 2 or not 2 <= shape[-1] <= 4096:
        return None
    gate = _layer(d, d.x, 1)
    kind = rng.choice(("softmax", "softmax", "sigmoid", "tanh", "exp", "softplus"))
    gate = b.add("softmax", gate, dim=(len(shape) - 1,)) if kind == "softmax" else b.add(kind, gate)
    value = _maybe(d, _layer(d, d.x, size(rng, 2, 2048))) if rng.random() < 0.7 else d.x
    return b.add("mul", *rng.sample((gate, value), 2))


def flat(d: Draft) -> str | None:
    """A softmax, norm or activation, and then arithmetic with a parameter for each element of a sample."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    if rank < 3 or prod(d.shape[1:]) > 1 << 20:
        return None
    start = rng.choice((1, 1, rank - 2))
    x = d.x
    if rng.random() < 0.6:
        x = b.add(rng.choice(("softmax", "log_softmax")), x, dim=(rank - 1,))
    elif rng.random() < 0.5:
        x = norm(d) or x
    x = b.add("flatten", _maybe(d, x, 0.3), start_dim=start, end_dim=rank - 1)
    return b.add(rng.choice(("add", "add", "mul", "sub", "maximum")), x, d.parameter(b.value(x).shape[-1]))


def pieces(d: Draft) -> str | None:
    """An axis cut in pieces; each is normed, scaled by numbers of its own, and often one number is left of it."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    axis = rng.choice((1, rank - 1))
    counts = [k for k in (2, 3, 4, 6, 8, 12, 16, 32, 64, 128) if rank > 1 and shape[axis] % k == 0 and shape[axis] >= 4 * k]
    if not counts or rank > 4:
        return None
    k = rng.choice(counts)
    inner = shape[axis] // k
    x = b.add("unflatten", d.x, dim=axis, sizes=(k, inner) if rng.random() < 0.7 else (inner, k))
    k = b.value(x).shape[axis]
    over = axis + rng.choice((1, 1, 1, 0))
    if over == rank and rng.random() < 0.5:
        x = b.add(rng.choice(("layer_norm", "rms_norm")), x, None, dim=(over,), eps=rng.choice((1e-5, 1e-6)))
    elif rng.random() < 0.6:
        x = b.add("sub", x, b.add("mean", x, dim=(over,), keepdim=True))
    else:
        x = b.add("div", x, b.add("add", b.add("norm", x, dim=(over,), keepdim=True), eps(rng)))
    if rng.random() < 0.6:
        x = b.add(rng.choice(("mul", "mul", "add")), x, d.parameter(k, *(1,) * (rank - axis)))
    x = _maybe(d, x)
    if rng.random() < 0.5:
        op = rng.choice(("mean", "sum", "amax", "logsumexp"))
        return b.add(op, x, dim=(over,))
    return b.add("flatten", x, start_dim=axis, end_dim=axis + 1) if rng.random() < 0.6 else x


def one_number_each(d: Draft) -> str | None:
    """A reduction that keeps its axes, and what it came from or a layer beside, joined again."""
    rng, b, x = d.rng, d.b, d.x
    found = reduce(d)
    if found is None:
        return None
    found = _maybe(d, b.add(rng.choice(("mul", "add")), found, free_number(rng)) if rng.random() < 0.5 else found, 0.4)
    if not base._joins(b.value(found).shape, b.value(x).shape):
        return found
    return b.add(rng.choice(("mul", "sub", "add", "div")), *((x, found) if rng.random() < 0.7 else (found, x)))


STEPS: dict[base.Step, float] = {
    sides: 0.6, by_another: 0.5, weight_of_one: 0.35, flat: 0.4, pieces: 0.5, one_number_each: 0.3,
}  # fmt: skip
"""What may come next, and how often it is drawn."""
