"""Steps of `graph/sample.py` with weights that are computed, products along any axes, and values against their surroundings.

Modules may hold a layer's weight in parts: a direction and a length, a matrix and its mask, two thin matrices. They measure
distances to rows that they hold, name the axes of a product by letters, and compare a value with those around it.
"""

from __future__ import annotations

from random import Random

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.lifting.einsum import add_einsum
from kernrl.tasks.graph.sample import Draft
from kernrl.tasks.nano.draw.draw_sizes import size, step
from kernrl.tasks.nano.draw.draw_wide import eps, free_number


def _scaled(d: Draft, w: str, sizes: tuple[int, ...], over: tuple[int, ...]) -> str:
    """A weight of a length of its own: `g * v / |v|`, in any order."""
    rng, b = d.rng, d.b
    length = b.add("norm", w, dim=over, keepdim=True)
    if rng.random() < 0.3:
        length = b.add(rng.choice(("add", "maximum")), length, eps(rng))
    elif rng.random() < 0.2:
        length = b.add("clamp", length, min=eps(rng), max=None)
    if rng.random() < 0.3:
        return b.add("div", w, length)
    g = d.parameter(*(1 if a in over else n for a, n in enumerate(sizes)))
    order = rng.randrange(3)
    if order == 0:
        return b.add("div", b.add("mul", *rng.sample((g, w), 2)), length)
    if order == 1:
        return b.add("mul", b.add("div", g, length), w)
    return b.add("mul", *rng.sample((g, b.add("div", w, length)), 2))


def _standard(d: Draft, w: str, over: tuple[int, ...]) -> str:
    """A weight less its mean, over its deviation."""
    rng, b = d.rng, d.b
    off = b.add("sub", w, b.add("mean", w, dim=over, keepdim=True))
    if rng.random() < 0.3:
        return off
    deviation = b.add("std", w, dim=over, keepdim=True, correction=rng.choice((0.0, 1.0)))
    return b.add("div", off, b.add("add", deviation, eps(rng)))


def weight(d: Draft, *sizes: int) -> str:
    """Something of this shape that is computed from what the module holds."""
    rng, b = d.rng, d.b
    rank = len(sizes)
    w = d.parameter(*sizes)
    over = rng.choice((tuple(range(1, rank)), tuple(range(1, rank)), (0,), tuple(range(rank))))
    square = rank == 2 and sizes[0] == sizes[1]
    kind = rng.choice(("length", "length", "length", "standard", "mask", "squash", "sum", "scale", "thin", "shares", "square"))
    if kind == "length":
        return _scaled(d, w, sizes, over)
    if kind == "standard":
        return _standard(d, w, over)
    if kind == "mask":
        return b.add("mul", w, d.parameter(*sizes, kind="buffer"))
    if kind == "squash":
        return b.add(rng.choice(("tanh", "sigmoid", "softplus", "abs", "relu", "exp", "sign", "sin")), w)
    if kind == "sum":
        return b.add(rng.choice(("add", "sub", "mul")), w, d.parameter(*sizes))
    if kind == "scale":
        number = d.parameter(*rng.choice(((), (1,), (sizes[0], *(1,) * (rank - 1)))))
        if rng.random() < 0.5:
            number = b.add(rng.choice(("exp", "sigmoid", "softplus")), number)
        return b.add(rng.choice(("mul", "mul", "div")), w, number)
    if kind == "thin" and rank == 2:
        inner = rng.choice((2, 4, 8, 16))
        more = b.add("matmul", d.parameter(sizes[0], inner), d.parameter(inner, sizes[1]))
        return b.add("add", w, more if rng.random() < 0.5 else b.add("mul", more, abs(free_number(rng))))
    if kind == "shares":
        return b.add("softmax", w, dim=(rng.randrange(rank),))
    if square:
        turned = b.add("permute", w, dims=(1, 0))
        found = b.add(rng.choice(("add", "sub", "sub")), w, turned)
        return b.add("mul", found, 0.5) if rng.random() < 0.4 else found
    return b.add("mul", w, free_number(rng))


def computed_weight(d: Draft) -> str | None:
    """A layer or a convolution whose weight is computed."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank > 2 and rank < 6 and shape[1] <= 512 and min(shape[2:]) > 8 and rng.random() < 0.6:
        space = rank - 2
        k = (rng.choice((1, 2, 3, 3, 4, 5, 7)),) * space
        out = shape[1] if rng.random() < 0.4 else size(rng, 2, 256)
        bias = d.parameter(out) if rng.random() < 0.6 else None
        stride, dilation = (step(rng) if rng.random() < 0.2 else 1,) * space, (rng.choice((1, 1, 1, 2, 3)),) * space
        padding = tuple(rng.choice((0, n // 2 * e)) for n, e in zip(k, dilation, strict=True))
        numbers = {"stride": stride, "padding": (padding[0],) * space}
        if rng.random() < 0.2:
            return b.add(f"conv_transpose{space}d", d.x, weight(d, shape[1], out, *k), bias, **numbers)
        return b.add(f"conv{space}d", d.x, weight(d, out, shape[1], *k), bias, dilation=dilation, **numbers)
    if rank < 2 or shape[-1] > 8192:
        return None
    out = shape[-1] if rng.random() < 0.4 else size(rng, 1, 4096)
    if rng.random() < 0.6:
        return b.add("linear", d.x, weight(d, out, shape[-1]), d.parameter(out) if rng.random() < 0.5 else None)
    return b.add("matmul", d.x, weight(d, shape[-1], out))


def distances(d: Draft) -> str | None:
    """How far rows are from rows that the module holds, or from those of a further input; often made a likeness."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if rank not in (2, 3) or shape[-1] > 8192:
        return None
    count = size(rng, 2, 8192)
    y = d.parameter(count, shape[-1]) if rank == 3 or rng.random() < 0.7 else d.input(count, shape[-1])
    squares = [b.add("sum", b.add("square", e), dim=(len(b.value(e).shape) - 1,), keepdim=e == d.x) for e in (d.x, y)]
    product = b.add("linear", d.x, y)
    twice = b.add("mul", product, 2.0)
    far = b.add("add", *squares)
    far = b.add("sub", far, twice) if rng.random() < 0.7 else b.add("add", b.add("sub", squares[0], twice), squares[1])
    if rng.random() < 0.4:
        far = b.add("sqrt", b.add("clamp", far, min=eps(rng), max=None))
    kind = rng.choice(("far", "near", "near", "shares", "inverse", "log"))
    if kind == "near":
        return b.add("exp", b.add("mul", far, -abs(free_number(rng))))
    if kind == "shares":
        return b.add("softmax", b.add("neg", far), dim=(rank - 1,))
    if kind == "inverse":
        return b.add("div", 1.0, b.add("add", b.add("abs", far), 1.0))
    return b.add("log1p", b.add("abs", far)) if kind == "log" else far


def _equation(rng: Random, rank: int, held: bool) -> tuple[str, str, str]:
    """Letters of x, of what it is multiplied by, and of the result."""
    first = "abcde"[:rank]
    summed = rng.choice(first[1:])
    rest = [c for c in first if c != summed]
    batch = [c for c in rest if rng.random() < (0.15 if held else 0.5)]
    if not held and first[0] not in batch:
        batch.insert(0, first[0])
    new = "" if rng.random() < 0.15 else "z"
    second = [*batch, summed, *new]
    rng.shuffle(second)
    out = [*rest, *new]
    if rng.random() < 0.7 and new:  # where the sum was, or in another order
        out = [new if c == summed else c for c in first]
    elif rng.random() < 0.3:
        rng.shuffle(out)
    return first, "".join(second), "".join(out)


def contracted(d: Draft) -> str | None:
    """A product along any axis, with any axes in common, of a held tensor, of a further input or of a value of before."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = len(shape)
    if not 2 <= rank <= 4 or max(shape[1:]) > 4096:
        return None
    held = rng.random() < 0.5
    first, second, out = _equation(rng, rank, held)
    alike = [e for e in (*b.inputs, *d.earlier) if e != d.x and b.value(e).shape == shape]
    if alike and not held and rng.random() < 0.6:  # `abc,adc->abd` and the like, where both have the same axes
        apart = rng.choice(first[1:])
        common = [c for c in first if c != apart]
        out = [c for c in common if c != rng.choice(common[1:] or common)]
        return add_einsum(b, f"{first},{first.replace(apart, 'z')}->{''.join([*out, apart, 'z'])}", (d.x, rng.choice(alike)))
    sizes = dict(zip(first, shape, strict=True)) | {"z": size(rng, 2, 512)}
    sides = [sizes[c] for c in second]
    other = d.parameter(*sides) if held else d.input(*sides)
    return add_einsum(b, f"{first},{second}->{out}", (d.x, other))


def surroundings(d: Draft) -> str | None:
    """A value against the mean or the largest of what lies around it."""
    rng, b, rank = d.rng, d.b, len(d.shape) - 2
    if rank not in (1, 2, 3) or min(d.shape[2:]) < 4:
        return None
    k = rng.choice((3, 3, 5, 7, 9, 2 * rng.randrange(1, 20) + 1))
    if k // 2 >= min(d.shape[2:]):
        return None
    kind = rng.choice(("avg", "avg", "avg", "max"))
    extra = {"count_include_pad": False} if kind == "avg" and rng.random() < 0.25 else {}
    around = b.add(f"{kind}_pool{rank}d", d.x, kernel_size=(k,) * rank, stride=(1,) * rank, padding=(k // 2,) * rank, **extra)
    d.earlier.append(around)
    joined = rng.choice(("sub", "sub", "sub", "mul", "add", "div"))
    if joined == "div":
        return b.add("div", d.x, b.add("add", b.add("abs", around), eps(rng)))
    return b.add(joined, *((d.x, around) if rng.random() < 0.8 else (around, d.x)))


def shrunk_volume(d: Draft) -> str | None:
    """A pool of frames or voxels, in space alone, in time alone, or in both."""
    rng, shape = d.rng, d.shape
    if len(shape) != 5 or min(shape[3:]) < 2:
        return None
    n = rng.choice((2, 2, 2, 3, 4))
    k = rng.choice(((1, n, n), (1, n, n), (n, 1, 1), (n, n, n), (n, n, n), (2, n, n)))
    if any(a > s for a, s in zip(k, shape[2:], strict=True)):
        return None
    padding = tuple(a // 2 for a in k) if rng.random() < 0.15 else (0, 0, 0)
    return d.b.add(f"{rng.choice(('avg', 'max'))}_pool3d", d.x, kernel_size=k, stride=k, padding=padding)


STEPS: dict[base.Step, float] = {
    computed_weight: 0.55, distances: 0.25, contracted: 0.6, surroundings: 0.3, shrunk_volume: 1.0,
}  # fmt: skip
"""What may come next, and how often it is drawn."""
