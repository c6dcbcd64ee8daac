"""Steps of `graph/sample.py` over a wider range of numbers: any constant, window, stride, group count, and axis.

What a reply copies or computes from a number must have been seen at many numbers, or nano learns the few by heart.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from random import Random

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.sample import Draft
from kernrl.tasks.nano.draw import draw_sizes as sizes


def free_number(rng: Random) -> float:
    """A constant as people write them: round, of a few digits, a power of two, small, or negative."""
    kind = rng.random()
    if kind < 0.3:
        found = rng.choice(base.NUMBERS)
    elif kind < 0.5:
        found = round(rng.uniform(0.01, 2), rng.choice((1, 2, 2, 3, 4)))
    elif kind < 0.6:
        found = round(rng.uniform(1, 100), rng.choice((0, 0, 1, 2)))
    elif kind < 0.75:
        found = float(rng.choice((2, 4, 6, 7, 8, 12, 16, 20, 32, 64, 100, 128, 256, 512, 768, 1000, 1024, 4096, 10000)))
    elif kind < 0.85:
        found = float(rng.randrange(2, 20000))
    elif kind < 0.93:
        found = rng.choice((0.044715, 0.7978845608, 0.70710678, 0.17677669, 0.08838835, 1.4142135, 0.3989, 1.702, 0.693147))
        found = round(found * rng.choice((1, 1, 2, 3)), 10)
    else:
        found = float(f"{rng.randrange(1, 10)}e-{rng.randrange(2, 8)}")
    found = found or 1.0
    return -found if rng.random() < 0.12 else found


def eps(rng: Random) -> float:
    """A small number that keeps a root or a quotient finite."""
    return rng.choice((1e-5, 1e-5, 1e-6, 1e-6, 1e-8, 1e-12, 1e-4, 1e-3, 0.01, 0.001))


def number(d: Draft) -> str:
    """Arithmetic with a number."""
    rng = d.rng
    op, n = rng.choice(("add", "sub", "mul", "div", "mul", "mul", "maximum", "minimum")), free_number(rng)
    turned = op in ("sub", "div") and rng.random() < 0.2
    return d.b.add(op, n, d.b.add("exp", d.x) if op == "div" else d.x) if turned else d.b.add(op, d.x, n)


def unary(d: Draft) -> str | None:
    """An activation of free numbers, or another op of one operand."""
    rng = d.rng
    if rng.random() < 0.6:
        return base.unary(d)
    kind = rng.choice(("leaky_relu", "elu", "celu", "gelu", "softplus", "clamp", "clamp", "softshrink", "hardshrink"))
    low, high = sorted((round(rng.uniform(-10, 10), rng.randrange(3)), round(rng.uniform(-10, 10), rng.randrange(3))))
    share = round(rng.uniform(0.01, 1), rng.choice((1, 2, 3))) or 0.1
    numbers: dict[str, dict[str, object]] = {
        "leaky_relu": {"negative_slope": share},
        "elu": {"alpha": 2 * share},
        "celu": {"alpha": 2 * share},
        "gelu": {"approximate": rng.choice(("none", "tanh"))},
        "softplus": {"beta": rng.choice((0.5, 1.0, 1.5, 2.0, 3.0, share)), "threshold": rng.choice((20.0, 20.0, 10.0, 15.0))},
        "clamp": {"min": low, "max": high + 1} if rng.random() < 0.6 else {"min": low, "max": None},
        "softshrink": {"lambd": share},
        "hardshrink": {"lambd": share},
    }
    return d.b.add(kind, d.x, **numbers[kind])


def of_parameter(d: Draft) -> str | None:
    """Arithmetic with something made of a parameter: its exponential, its length, its share of ones."""
    rng, b = d.rng, d.b
    p = d.parameter(*base._broadcastable(d))
    rank = len(b.value(p).shape)
    kind = rng.choice(("sigmoid", "exp", "softplus", "tanh", "square", "abs", "relu", "norm", "softmax", "number"))
    if kind in ("norm", "softmax") and rank and b.value(p).shape[-1] > 1:
        side = (
            b.add("div", p, b.add("norm", p, dim=(rank - 1,), keepdim=True))
            if kind == "norm"
            else b.add("softmax", p, dim=(rank - 1,))
        )
    elif kind == "number":
        side = b.add(rng.choice(("mul", "add")), p, free_number(rng))
    else:
        side = b.add(kind if kind not in ("norm", "softmax") else "exp", p)
    return b.add(rng.choice(("mul", "mul", "add", "sub", "div")), d.x, side)


def mixed_rows(d: Draft) -> str | None:
    """A product from the left: a mixing of rows, as graphs and token mixers have it."""
    rng, b, shape = d.rng, d.b, d.shape
    if len(shape) < 2 or shape[-2] > 2048:
        return None
    square = d.parameter(shape[-2], shape[-2])
    weight = b.add(rng.choice(("sigmoid", "tanh", "relu")), square) if rng.random() < 0.4 else square
    return b.add("matmul", weight, d.x)


def product(d: Draft) -> str | None:
    """A product, with convolutions of any window."""
    shape, rank = d.shape, len(d.shape)
    if rank in (3, 4, 5) and shape[1] <= 1024 and min(shape[2:]) > 3 and d.rng.random() < (0.8 if rank > 3 else 0.6):
        return convolution(d)
    if rank >= 2 and shape[-1] <= 8192 and d.rng.random() < 0.3:
        out = sizes.size(d.rng, 1, 16384)
        return d.b.add("linear", d.x, d.parameter(out, shape[-1]), d.parameter(out) if d.rng.random() < 0.75 else None)
    return base.product(d)


def _each(rank: int, draw: Callable[[], int], same: bool) -> tuple[int, ...]:
    """A number of each axis of space, all alike or each its own."""
    return (draw(),) * rank if same else tuple(draw() for _ in range(rank))


def _or_one(rng: Random, often: float) -> Callable[[], int]:
    """Draws one, and `often` something else."""
    return lambda: sizes.step(rng) if rng.random() < often else 1


def convolution(d: Draft) -> str:
    """A convolution of any kind: depthwise, grouped, dilated, patches, windows that differ by axis."""
    rng, channels, rank = d.rng, d.shape[1], len(d.shape) - 2
    same = rank == 1 or rng.random() < 0.8
    out = rng.choice((1, 3, 8, 12, 16, 20, 24, 30, 32, 40, 48, 64, 72, 96, 128, 192)) if rng.random() < 0.5 else 0
    out = out or sizes.size(rng, 2, 512)
    k = _each(rank, lambda: sizes.window(rng), same)
    if not same and rng.random() < 0.5:  # along one axis, or over all of another
        k = tuple(1 if rng.random() < 0.5 else n for n in k)
    elif rng.random() < 0.03:
        k = (d.shape[2], *(1 for _ in k[1:]))
    stride, dilation = _each(rank, _or_one(rng, 0.4), same), _each(rank, _or_one(rng, 0.25), same)
    padding = tuple(n // 2 * e for n, e in zip(k, dilation, strict=True)) if rng.random() < 0.6 else ()
    padding = padding or _each(rank, lambda: rng.choice((0, 0, 0, 1, 2, 3, rng.randrange(12))), same)
    patches = [p for p in range(2, 33) if all(n % p == 0 for n in d.shape[2:])]
    if rng.random() < 0.08 and patches:
        k = stride = (rng.choice(patches),) * rank
        padding, dilation = (0,) * rank, (1,) * rank
    depthwise = rng.random() < 0.2
    groups = rng.choice([1, 1, 1, *(g for g in (2, 3, 4, 6, 8, 16) if channels % g == 0 and out % g == 0)])
    if depthwise:
        groups, out = channels, channels * rng.choice((1, 1, 1, 2))
    numbers = {"stride": stride, "padding": padding, "dilation": dilation}
    bias = d.parameter(out) if rng.random() < 0.7 else None
    if rng.random() < 0.33 and rank + 2 == len(d.shape):
        if rng.random() < 0.3:  # doubles every side
            k, numbers = (4,) * rank, {"stride": (2,) * rank, "padding": (1,) * rank, "dilation": (1,) * rank}
        room = [min(s, 2) if s > 1 else 0 for s in numbers["stride"]]
        output_padding = tuple(int(r > 0 and rng.random() < 0.3) for r in room)
        if same:
            output_padding = (output_padding[0],) * rank
        weight = d.parameter(channels, out // groups, *k)
        return d.b.add(f"conv_transpose{rank}d", d.x, weight, bias, groups=groups, output_padding=output_padding, **numbers)
    weight = d.parameter(out, channels // groups, *k)
    return d.b.add(f"conv{rank}d", d.x, weight, bias, groups=groups, **numbers)


def norm(d: Draft) -> str | None:
    """A normalization: any group count, any eps, with a weight alone."""
    rng, shape, rank, b = d.rng, d.shape, len(d.shape), d.b
    if rank < 2 or prod(shape[1:]) < 8 or rng.random() < 0.35:
        return base.norm(d)
    kind = rng.choice(("layer", "rms", "group", "group", "eval", "batch", "instance"))
    if kind in ("layer", "rms"):
        dim = tuple(range(rng.choice((rank - 1, rank - 1, *range(1, rank))), rank))
        sizes = [shape[a] for a in dim]
        weight = d.parameter(*sizes) if rng.random() < 0.7 else None
        if kind == "rms":
            return b.add("rms_norm", d.x, weight, dim=dim, eps=eps(rng))
        bias = d.parameter(*sizes) if weight and rng.random() < 0.7 else None
        return b.add("layer_norm", d.x, weight, bias, dim=dim, eps=eps(rng))
    weight, bias = (d.parameter(shape[1]), d.parameter(shape[1])) if rng.random() < 0.75 else (None, None)
    if kind == "group":
        groups = [g for g in range(1, 129) if shape[1] % g == 0 and (g < shape[1] or rank > 2)]
        return b.add("group_norm", d.x, weight, bias, num_groups=rng.choice(groups), eps=eps(rng)) if groups else None
    if kind == "instance":
        return b.add("instance_norm", d.x, weight, bias, eps=eps(rng)) if prod(shape[2:]) > 8 else None
    running = (d.parameter(shape[1], kind="buffer"), d.parameter(shape[1], kind="buffer"))
    if kind == "eval":
        return b.add("batch_norm_eval", d.x, *running, weight, bias, eps=eps(rng))
    momentum = rng.choice((0.1, 0.1, 0.01, 0.05, 0.2, 0.03))
    return b.add("batch_norm", d.x, weight, bias, *running, momentum=momentum, eps=eps(rng)) if rank < 6 else None


def pool(d: Draft) -> str | None:
    """A pool of any window."""
    rng, rank = d.rng, len(d.shape) - 2
    if rank not in (1, 2, 3) or min(d.shape[2:]) < 4:
        return None
    same = rank == 1 or rng.random() < 0.85
    k = _each(rank, lambda: rng.choice((2, 2, 2, 3, 3, 4, sizes.window(rng))), same)
    if not same and rng.random() < 0.5:
        k = tuple(1 if rng.random() < 0.5 else n for n in k)
    stride = k if rng.random() < 0.55 else _each(rank, _or_one(rng, 0.7), same)
    padding = tuple(n // 2 for n in k) if rng.random() < 0.3 else (0,) * rank
    kind, window = rng.choice(("avg", "max")), {"kernel_size": k, "stride": stride, "padding": padding}
    extra = {"count_include_pad": False} if kind == "avg" and any(padding) and rng.random() < 0.4 else {}
    return d.b.add(f"{kind}_pool{rank}d", d.x, **window, **extra)


def axes(d: Draft) -> tuple[int, ...]:
    """One axis, or neighbours."""
    rng, rank = d.rng, len(d.shape)
    wide = [a for a in range(rank) if d.shape[a] > 1]
    if not wide:
        return ()
    first = rng.choice(wide[1:] or wide) if rng.random() < 0.9 else wide[0]
    last = first if rng.random() < 0.6 else rng.randrange(first, rank)
    return tuple(range(first, last + 1))


def reduce(d: Draft) -> str | None:
    """A reduction, over any axes."""
    rng = d.rng
    found = axes(d) if rng.random() < 0.6 else base._axes(d)
    op = rng.choice(("sum", "sum", "mean", "mean", "amax", "amin", "logsumexp", "var", "std", "norm", "prod"))
    numbers = {"correction": rng.choice((0.0, 1.0))} if op in ("var", "std") else {}
    if op == "norm":
        numbers = {"p": rng.choice((2.0, 2.0, 2.0, 1.0))}
    return d.b.add(op, d.x, dim=found, keepdim=rng.random() < 0.5, **numbers) if found else None


def softmax(d: Draft) -> str | None:
    """A softmax or its logarithm, over any axis or several."""
    found = axes(d) if d.rng.random() < 0.4 else base._axes(d)[:1]
    if not found:
        return None
    if len(found) > 1 and d.rng.random() < 0.7:
        found = found[-1:]
    return d.b.add(d.rng.choice(("softmax", "softmax", "log_softmax")), d.x, dim=found)


def compare(d: Draft) -> str | None:
    """The larger or smaller of two values."""
    fitting = [e for e in (*d.b.inputs, *d.earlier) if e != d.x and base._joins(d.b.value(e).shape, d.shape)]
    return d.b.add(d.rng.choice(("maximum", "minimum", "div")), d.x, d.rng.choice(fitting)) if fitting else None


def shuffle(d: Draft) -> str | None:
    """Pixels of channels, or a part of an axis."""
    rng, rank = d.rng, len(d.shape)
    if rank == 4 and rng.random() < 0.5:
        fitting = [r for r in (2, 3, 4) if d.shape[1] % (r * r) == 0]
        return d.b.add("pixel_shuffle", d.x, upscale_factor=rng.choice(fitting)) if fitting else None
    axis = rng.randrange(1, rank) if rank > 1 else 0
    if not axis or d.shape[axis] < 4:
        return None
    if rank > 2 and rng.random() < 0.4:
        return d.b.add("select", d.x, dim=axis, index=rng.choice((0, 1, d.shape[axis] - 1)))
    half = d.shape[axis] // 2
    start, stop = rng.choice(((0, half), (half, d.shape[axis]), (1, d.shape[axis]), (0, d.shape[axis] - 1)))
    return d.b.add("slice", d.x, dim=axis, start=start, stop=stop)


def choice(d: Draft) -> str | None:
    """One value or another by a comparison, or by a mask of ones and zeros."""
    rng, b, x = d.rng, d.b, d.x
    fitting = [e for e in (*b.inputs, *d.earlier) if e != x and b.value(e).shape == d.shape]
    if fitting and rng.random() < 0.25:
        other = rng.choice(fitting)
        return b.add("where", b.add(rng.choice(("gt", "lt", "ge", "le")), x, other), x, other)
    mask = b.add(rng.choice(("gt", "gt", "lt", "ge", "le")), x, 0.0 if rng.random() < 0.5 else free_number(rng))
    kind = rng.choice(("scaled", "number", "number", "ones", "ones", "exp"))
    if kind == "ones":
        return b.add("mul", x, b.add("cast", mask, dtype="float32"))
    if kind == "number":
        sides = (x, 0.0 if rng.random() < 0.5 else free_number(rng))
        return b.add("where", mask, *(sides if rng.random() < 0.5 else sides[::-1]))
    other = b.add("mul", x, free_number(rng)) if kind == "scaled" else b.add(rng.choice(("tanh", "exp", "sin", "square")), x)
    return b.add("where", mask, x, other)


def rounded(d: Draft) -> str:
    """Ops that jump: signs, whole parts, remainders; and powers of two."""
    rng, b, x = d.rng, d.b, d.x
    kind = rng.choice(("floor", "ceil", "round", "trunc", "sign", "root", "fraction", "remainder", "exp2"))
    if kind == "root":
        return b.add("mul", b.add("sign", x), b.add("sqrt", b.add("abs", x)))
    if kind == "fraction":
        return b.add("sub", x, b.add("floor", x))
    return b.add(kind, x, abs(free_number(rng))) if kind == "remainder" else b.add(kind, x)


def along(d: Draft) -> str | None:
    """Sums so far, elements in another order, a triangle, or elements several times."""
    rng, b, shape, rank = d.rng, d.b, d.shape, len(d.shape)
    if rank < 2:
        return None
    kind, axis = rng.choice(("cumsum", "flip", "roll", "triangle", "times", "nearest", "nearest")), rng.randrange(1, rank)
    if kind == "cumsum":
        return b.add("cumsum", d.x, dim=axis)
    if kind == "flip":
        return b.add("flip", d.x, dim=(axis,))
    if kind == "roll":
        return b.add("roll", d.x, shifts=(rng.choice((1, 1, 2, -1)),), dim=(axis,))
    if kind == "triangle":
        return b.add(rng.choice(("tril", "triu")), d.x, diagonal=rng.choice((0, 0, 1, -1)))
    if kind == "times":
        apart = b.add("unsqueeze", d.x, dim=(axis,))
        return b.add("expand", apart, shape=(*shape[:axis], rng.choice((2, 3, 4, 8)), *shape[axis:]))
    return nearest(d)


def nearest(d: Draft) -> str | None:
    """Every pixel several times along each axis."""
    rng, b, shape, rank = d.rng, d.b, d.shape, len(d.shape)
    if rank < 3:
        return None
    times = _each(rank - 2, lambda: rng.choice((2, 2, 3, 4)), same=rng.random() < 0.8)
    apart = b.add("unsqueeze", d.x, dim=tuple(range(3, 2 * rank - 2, 2)))
    wide = [n for pair in zip(shape[2:], times, strict=True) for n in pair]
    repeated = b.add("expand", apart, shape=(*shape[:2], *wide))
    return b.add("reshape", repeated, shape=(*shape[:2], *(s * t for s, t in zip(shape[2:], times, strict=True))))


def with_full(d: Draft) -> str:
    """Arithmetic with a tensor of one number, made on the spot."""
    number = d.b.add("full", free_number(d.rng), shape=(), dtype="float32")
    return d.b.add(d.rng.choice(("minimum", "maximum", "minimum", "maximum", "mul", "add")), d.x, number)


def cosine(d: Draft) -> str | None:
    """How much two values point the same way, along an axis."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    if rank < 2:
        return None
    fitting = [e for e in (*b.inputs, *d.earlier) if e != d.x and b.value(e).shape == d.shape]
    other = rng.choice(fitting) if fitting and rng.random() < 0.6 else d.input(*d.shape)
    axis, least = rng.choice((1, rank - 1)), rng.choice((1e-8, 1e-8, 1e-6))
    sizes = [b.add("clamp", b.add("norm", x, dim=(axis,)), min=least, max=None) for x in (d.x, other)]
    return b.add("div", b.add("sum", b.add("mul", d.x, other), dim=(axis,)), b.add("mul", *sizes))
