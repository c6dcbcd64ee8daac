"""Steps of `graph/sample.py` by which values branch and meet: products of what was computed, shared weights, attention.

`sample.py` goes from one value to the next. Modules project one input several ways, multiply what comes of it in turned
or flattened forms, and give several results back.
"""

from __future__ import annotations

from math import prod
from random import Random

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.sample import Draft
from kernrl.tasks.nano.draw.draw_sizes import size
from kernrl.tasks.nano.draw.draw_wide import free_number

GATES = ("sigmoid", "tanh", "relu", "gelu", "silu", "softplus", "exp", "square")


def outputs(rng: Random, draft: Draft) -> list[str]:
    """What is given back: mostly the last value, else two or three in any order; seldom also where the largest one is."""
    others = [e for e in dict.fromkeys(draft.earlier) if e != draft.x and e not in draft.b.inputs]
    if rng.random() < 0.03:
        of = rng.choice([draft.x, *others])
        rank = len(draft.b.value(of).shape)
        if rank > 1 and draft.b.value(of).dtype == "float32":
            where = draft.b.add(rng.choice(("argmax", "argmax", "argmin")), of, dim=rng.choice((1, rank - 1)))
            return [draft.x, where] if rng.random() < 0.8 else [where]
    if rng.random() > 0.16 or not others:
        return [draft.x]
    found = [draft.x, *rng.sample(others, min(len(others), rng.choice((1, 1, 2))))]
    rng.shuffle(found)
    return found


def _wide(d: Draft, rank: int | None = None) -> list[str]:
    """Values to multiply: inputs and values of before, of this rank, whose last axis is no wider than a layer's."""
    found = dict.fromkeys((*d.b.inputs, *d.earlier, d.x))
    shapes = {e: d.b.value(e) for e in found}
    return [
        e
        for e, v in shapes.items()
        if v.dtype == "float32" and len(v.shape) > 1 and 1 < v.shape[-1] <= 16384 and (rank is None or len(v.shape) == rank)
    ]


def _linear(d: Draft, x: str, out: int) -> str:
    weight = d.parameter(out, d.b.value(x).shape[-1])
    return d.b.add("linear", x, weight, d.parameter(out) if d.rng.random() < 0.7 else None)


def _maybe(d: Draft, x: str, often: float = 0.5) -> str:
    """An activation, or nothing."""
    return d.b.add(d.rng.choice(GATES), x) if d.rng.random() < often else x


def _turned(d: Draft, x: str) -> str:
    """The last two axes swapped."""
    rank = len(d.b.value(x).shape)
    return d.b.add("permute", x, dims=(*range(rank - 2), rank - 1, rank - 2))


def _joined(d: Draft, side: str) -> str:
    """A value beside the one to go on from: joined where they fit, else in its place."""
    if base._joins(d.b.value(side).shape, d.shape):
        return d.b.add(d.rng.choice(("add", "mul", "sub", "add", "div", "maximum")), *d.rng.sample((d.x, side), 2))
    return side


def project(d: Draft) -> str | None:
    """Another linear layer of an input or a value of before."""
    found = _wide(d)
    if not found:
        return None
    x = d.rng.choice(found)
    same = d.b.value(x).shape[:-1] == d.shape[:-1] and d.shape[-1] <= 8192
    out = d.shape[-1] if same and d.rng.random() < 0.7 else size(d.rng, 1, 4096)
    d.earlier.append(d.x)
    return _joined(d, _maybe(d, _linear(d, x, out)))


def shared(d: Draft) -> str | None:
    """The same layer over two values: a pair of towers, and what is between them."""
    found = _wide(d)
    if not found:
        return None
    x = d.rng.choice(found)
    shape = d.b.value(x).shape
    alike = [e for e in found if e != x and d.b.value(e).shape == shape]
    other = d.rng.choice(alike) if alike and d.rng.random() < 0.5 else d.input(*shape)
    out = size(d.rng, 1, 2048)
    weight, bias = d.parameter(out, shape[-1]), d.parameter(out) if d.rng.random() < 0.7 else None
    gate = d.rng.choice((*GATES, "", ""))
    towers = [d.b.add("linear", e, weight, bias) for e in (x, other)]
    towers = [d.b.add(gate, t) if gate else t for t in towers]
    if d.rng.random() < 0.4:
        last = d.parameter(size(d.rng, 1, 512), out)
        towers = [d.b.add("linear", t, last) for t in towers]
    kind = d.rng.choice(("sub", "mul", "add", "distance", "product"))
    if kind == "distance":
        return d.b.add("sum", d.b.add(d.rng.choice(("square", "abs")), d.b.add("sub", *towers)), dim=(-1,))
    if kind == "product" and len(shape) < 4:
        return d.b.add("matmul", towers[0], _turned(d, towers[1]))
    return d.b.add("mul" if kind == "product" else kind, *towers)


def attend(d: Draft) -> str | None:
    """Queries, keys and values of one value or of two, with heads or without, and a softmax or none."""
    rng, b = d.rng, d.b
    found = [e for e in _wide(d) if len(b.value(e).shape) in (3, 4) and b.value(e).shape[-2] > 1]
    if not found:
        return None
    x = rng.choice(found)
    *batch, _, width = b.value(x).shape
    second = rng.choice([e for e in found if b.value(e).shape[:-2] == tuple(batch)])
    if rng.random() < 0.3:
        second = d.input(*batch, size(rng, 2, 512), width)
    heads, inner = rng.choice((1, 1, 2, 4, 8)), rng.choice((16, 32, 64, 80, 128))
    plain = rng.random() < 0.4 or len(batch) > 1

    def part(e: str) -> str:
        if plain and b.value(e).shape[-1] == width and rng.random() < 0.5:
            return e
        made = _linear(d, e, inner * (1 if plain else heads))
        if plain or heads == 1:
            return made
        apart = b.add("unflatten", made, dim=2, sizes=(heads, inner))
        return b.add("permute", apart, dims=(0, 2, 1, 3))

    q, k = part(x), part(second)
    if b.value(q).shape[-1] != b.value(k).shape[-1]:
        return None
    kind = rng.choice(("scores", "softmax", "whole", "whole", "linear"))
    scale = rng.choice((b.value(q).shape[-1] ** -0.5, abs(free_number(rng))))
    if kind == "linear":
        q, k = (b.add(rng.choice(("softplus", "relu", "elu", "exp")), e) for e in (q, k))
        found = b.add("matmul", q, b.add("matmul", _turned(d, k), part(second)))
        return found if rng.random() < 0.5 else b.add(rng.choice(("mul", "div")), found, abs(free_number(rng)))
    scores = b.add("matmul", q, _turned(d, k))
    if rng.random() < 0.8:
        scores = b.add("mul", scores, scale) if rng.random() < 0.5 else b.add("div", scores, 1 / scale)
    if rng.random() < 0.2:
        scores = b.add("add", scores, d.input(*b.value(scores).shape[-2:]))
    weights = b.add("softmax", scores, dim=-1) if kind != "scores" or rng.random() < 0.3 else scores
    if kind in ("scores", "softmax"):
        return weights
    out = b.add("matmul", weights, part(second))
    if len(b.value(out).shape) == 4 and rng.random() < 0.7:
        out = b.add("flatten", b.add("permute", out, dims=(0, 2, 1, 3)), start_dim=2, end_dim=3)
    return _joined(d, out)


def across(d: Draft) -> str | None:
    """A product along another axis than the last: tokens mixed, channels mixed, images as rows of pixels."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank not in (3, 4, 5):
        return None
    kind = rng.choice(("left", "turned", "gathered", "pixels", "adjacent"))
    if kind == "left" and shape[-2] <= 4096:
        return b.add("matmul", d.parameter(size(rng, 2, 1024), shape[-2]), d.x)
    if kind == "turned" and shape[-2] <= 4096:
        out = _linear(d, _turned(d, d.x), size(rng, 2, 1024))
        return _turned(d, _maybe(d, out)) if rng.random() < 0.6 else out
    if kind == "gathered" and shape[1] <= 2048:
        rest = tuple(range(2, rank))
        flat = b.add("flatten", b.add("permute", d.x, dims=(1, 0, *rest)), start_dim=1, end_dim=rank - 1)
        mixed = _maybe(d, b.add("matmul", d.parameter(size(rng, 2, 512), shape[1]), flat))
        if rng.random() < 0.3:
            mixed = b.add("matmul", d.parameter(size(rng, 2, 512), b.value(mixed).shape[0]), mixed)
        apart = b.add("unflatten", mixed, dim=1, sizes=(shape[0], *shape[2:]))
        return b.add("permute", apart, dims=(1, 0, *rest))
    if kind == "pixels" and rank > 3:
        flat = b.add("flatten", d.x, start_dim=2, end_dim=rank - 1)
        turned = b.add("permute", flat, dims=(0, 2, 1))
        if rng.random() < 0.5 and shape[1] <= 1024:
            return _maybe(d, _linear(d, turned, size(rng, 2, 1024)))
        gram = b.add("matmul", flat, turned) if shape[1] <= 1024 else None
        return gram and (b.add("div", gram, float(prod(shape[2:]))) if rng.random() < 0.6 else gram)
    if kind == "adjacent" and rank == 3:
        edges = d.input(shape[0], shape[1], shape[1]) if shape[1] <= 4096 else None
        if edges and rng.random() < 0.5:
            found = b.add("matmul", edges, d.x)
            degree = b.add("add", b.add("sum", edges, dim=(2,), keepdim=True), abs(free_number(rng)))
            return b.add("div", found, degree) if rng.random() < 0.5 else found
        return edges and b.add("matmul", edges, d.x)
    return None


def vector(d: Draft) -> str | None:
    """A batch of matrices times a vector of each, or a vector times a held matrix of three axes."""
    rng, b, shape = d.rng, d.b, d.shape
    if len(shape) == 3 and shape[-1] <= 4096:
        if rng.random() < 0.6:
            column = b.add("unsqueeze", d.input(shape[0], shape[2]), dim=(2,))
            return b.add("squeeze", b.add("matmul", d.x, column), dim=(2,))
        row = b.add("unsqueeze", d.input(shape[0], shape[1]), dim=(1,))
        return b.add("squeeze", b.add("matmul", row, d.x), dim=(1,))
    if len(shape) == 2 and shape[-1] <= 1024:
        one, other = size(rng, 2, 64), size(rng, 2, 256)
        flat = b.add("flatten", d.parameter(shape[1], one, other), start_dim=1, end_dim=2)
        apart = b.add("unflatten", _maybe(d, b.add("matmul", d.x, flat)), dim=1, sizes=(one, other))
        if rng.random() < 0.6:
            weights = b.add("unsqueeze", d.input(shape[0], one), dim=(2,))
            turned = b.add("permute", apart, dims=(0, 2, 1))
            return b.add("squeeze", b.add("matmul", turned, weights), dim=(2,))
        return apart
    return None


def pairs(d: Draft) -> str | None:
    """Every row with every other: sums, differences or products of two projections, or scores from both sides."""
    rng, b = d.rng, d.b
    found = [e for e in _wide(d, 3) if b.value(e).shape[1] <= 1024]
    if not found:
        return None
    x = rng.choice(found)
    length = b.value(x).shape[1]
    out = 1 if rng.random() < 0.3 else size(rng, 4, 256)
    one, other = (_maybe(d, _linear(d, x, out), 0.3) for _ in range(2))
    if out == 1:
        row = b.add("reshape", one, shape=(b.value(one).shape[0], 1, length))
        return b.add(rng.choice(("add", "mul", "sub")), row, other)
    sides = b.add("unsqueeze", one, dim=(1,)), b.add("unsqueeze", other, dim=(2,))
    return b.add(rng.choice(("add", "sub", "mul", "maximum")), *sides)


def wave(d: Draft) -> str | None:
    """Halves of the channels after a layer of them, one scaled by the other and shifted, as gates and modulations do."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if not 2 <= rank <= 5 or shape[1] > 2048:
        return None
    if rank == 2:
        both = _linear(d, d.x, 2 * size(rng, 4, 1024))
    else:
        weight, bias = d.parameter(2 * shape[1], shape[1], *(1,) * (rank - 2)), d.parameter(2 * shape[1])
        both = b.add(f"conv{rank - 2}d", d.x, weight, bias)
    first, second = (b.add("chunk", both, chunks=2, dim=1, index=i) for i in rng.sample((0, 1), 2))
    kind = rng.choice(("gate", "modulate", "two"))
    if kind == "gate":
        return b.add("mul", b.add("tanh", first), b.add("sigmoid", second))
    if kind == "two":
        d.earlier.append(_maybe(d, first))
        return _maybe(d, second, 0.8)
    fitting = [e for e in (*b.inputs, *d.earlier) if b.value(e).shape == b.value(first).shape]
    x = rng.choice(fitting) if fitting else d.input(*b.value(first).shape)
    return b.add("add", b.add("mul", x, b.add("add", first, 1.0) if rng.random() < 0.5 else first), second)


STEPS: dict[base.Step, float] = {
    project: 1.0, shared: 0.35, attend: 0.8, across: 0.6, vector: 0.35, pairs: 0.3, wave: 0.4,
}  # fmt: skip
"""What may come next, and how often it is drawn."""
