"""Steps of `graph/sample.py` that hardly any module has, but some plain ones do: rare ops, pools and norms, places as numbers.

A model that has never seen an attribute leaves it out, so each is drawn now and then.
"""

from __future__ import annotations

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.sample import Draft
from kernrl.tasks.nano.draw import draw_wide as wide


def by_place(d: Draft) -> str | None:
    """Arithmetic with the number of the place along an axis; running means are of this kind."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    if rank < 2:
        return None
    axis = rng.randrange(1, rank)
    start, dtype = rng.choice((0, 0, 1)), rng.choice(("int64", "float32", "float32"))
    x, place = d.x, b.add("arange", start=start, end=d.shape[axis] + start, dtype=dtype)
    if axis < rank - 1:
        place = b.add("unsqueeze", place, dim=tuple(range(1, rank - axis)))
    op = rng.choice(("mul", "add", "sub", "div" if start else "mul"))
    if start and rng.random() < 0.4:
        x, op = b.add("cumsum", x, dim=axis), "div"
    elif rng.random() < 0.6:
        factor = d.parameter(*rng.choice(((), (1,)))) if rng.random() < 0.4 else abs(wide.free_number(rng))
        place = b.add("mul", place, factor) if rng.random() < 0.7 else b.add("div", place, factor)
        place = b.add("neg", place) if rng.random() < 0.3 else place
        place = b.add(rng.choice(("exp", "sin", "cos", "sigmoid")), place) if rng.random() < 0.5 else place
    return b.add(op, x, place)


def rare_pool(d: Draft) -> str | None:
    """A pool whose last window may stand out, whose window has gaps, or whose sums are over a number of their own."""
    rng, b, rank = d.rng, d.b, len(d.shape) - 2
    if rank not in (1, 2, 3) or min(d.shape[2:]) < 6:
        return None
    k = rng.choice((2, 3, 3, 3, 4, 5))
    numbers = {"kernel_size": (k,) * rank, "stride": (rng.choice((2, 2, 3, k)),) * rank}
    if rng.random() < 0.3:
        numbers["padding"] = (k // 2,) * rank
    kind = rng.choice(("ceil", "ceil", "gaps", "number"))
    if kind == "gaps":
        return b.add(f"max_pool{rank}d", d.x, dilation=(rng.choice((2, 2, 3)),) * rank, **numbers)
    if kind == "number" and rank > 1:
        return b.add(f"avg_pool{rank}d", d.x, divisor_override=rng.choice((1, 2, k, rng.randrange(1, 30))), **numbers)
    return b.add(f"{rng.choice(('avg', 'max'))}_pool{rank}d", d.x, ceil_mode=True, **numbers)


def response_norm(d: Draft) -> str | None:
    """A value over a power of the mean square of the channels around its own."""
    rng, b, shape, rank = d.rng, d.b, d.shape, len(d.shape)
    if rank not in (3, 4, 5) or shape[1] < 8:
        return None
    x = b.add("flatten", d.x, start_dim=3, end_dim=4) if rank == 5 else d.x
    n = rng.choice((2, 3, 3, 5, 5, 7))
    space = min(rank, 4) - 2
    around = b.add("unsqueeze", b.add("square", x), dim=(1,))
    around = b.add("pad", around, padding=(*(0, 0) * space, n // 2, (n - 1) // 2))
    ones = (1,) * space
    around = b.add(f"avg_pool{space + 1}d", around, kernel_size=(n, *ones), stride=(1, *ones))
    around = b.add("add", b.add("mul", around, rng.choice((1e-4, 1e-3, 0.1, 0.5, 1.0))), rng.choice((1.0, 1.0, 2.0)))
    around = b.add("pow", around, rng.choice((0.75, 0.75, 0.5, 0.6)))
    around = b.add("squeeze", around, dim=(1,))
    return b.add("div", d.x, b.add("unflatten", around, dim=3, sizes=shape[3:]) if rank == 5 else around)


def rows_as_images(d: Draft) -> str | None:
    """Rows that are given axes of one, for an op that wants images, and mostly lose them again."""
    rng, b, x = d.rng, d.b, d.x
    if len(d.shape) != 2 or d.shape[1] < 8:
        return None
    features = d.shape[1]
    if rng.random() < 0.5:  # one row of pixels
        dims: tuple[int, ...] = (1, 2)
        x, k = b.add("unsqueeze", x, dim=dims), rng.choice((2, 2, 3, 4, 5))
        kind = rng.choice(("instance", "instance", "pool", "number"))
        if kind == "instance":
            affine = (d.parameter(1), d.parameter(1)) if rng.random() < 0.3 else (None, None)
            x = b.add("instance_norm", x, *affine, eps=wide.eps(rng))
        elif kind == "pool":
            x = b.add(f"{rng.choice(('avg', 'max'))}_pool2d", x, kernel_size=(1, k), stride=(1, k))
        else:
            x = b.add(rng.choice(("add", "mul")), x, d.parameter(*rng.choice(((1, 1, 1), (1, 1, features), (1,)))))
    else:  # as many channels of one pixel
        dims = (2, 3)
        x = b.add("unsqueeze", x, dim=dims)
        kind = rng.choice(("group", "batch", "number", "softmax"))
        affine = (d.parameter(features), d.parameter(features)) if rng.random() < 0.7 else (None, None)
        groups = [g for g in (2, 3, 4, 8, 16) if features % g == 0 and g < features]
        if kind == "group" and groups:
            x = b.add("group_norm", x, *affine, num_groups=rng.choice(groups), eps=wide.eps(rng))
        elif kind == "batch":
            x = b.add("batch_norm", x, *affine, None, None)
        elif kind == "softmax":
            x = b.add("softmax", x, dim=(1,))
        else:
            x = b.add(rng.choice(("add", "sub", "mul")), x, d.parameter(features, 1, 1))
    if rng.random() < 0.3:
        x = b.add(rng.choice(("relu", "tanh", "gelu", "silu")), x)
    return b.add("squeeze", x, dim=dims) if rng.random() < 0.8 else x


def rare_op(d: Draft) -> str | None:
    """Ops that hardly anybody takes, where they are defined."""
    rng, b, x = d.rng, d.b, d.x
    kind = rng.choice(("arc", "arc", "hyper", "tan", "angle", "log2", "between", "largest", "unshuffle", "cumprod"))
    if kind == "arc":
        return b.add(rng.choice(("asin", "acos")), b.add(rng.choice(("tanh", "sin", "softsign")), x))
    if kind == "hyper":
        return b.add(rng.choice(("sinh", "cosh", "tan", "expm1")), b.add("clamp", x, min=-1.0, max=1.0))
    if kind == "tan":
        return b.add("tan", b.add(rng.choice(("tanh", "sigmoid")), x))
    if kind == "angle":
        alike = [e for e in (*b.inputs, *d.earlier) if e != x and b.value(e).shape == d.shape]
        return b.add("atan2", x, rng.choice(alike) if alike else b.add("add", b.add("abs", x), wide.eps(rng)))
    if kind == "log2":
        return b.add("log2", b.add("add", b.add(rng.choice(("exp", "abs", "square")), x), 1.0))
    if kind == "between":
        low = rng.choice((-1.0, -0.5, 0.0, wide.free_number(rng)))
        above, below = b.add("gt", x, low), b.add("lt", x, low + rng.choice((0.5, 1.0, 2.0)))
        inside = b.add(rng.choice(("logical_and", "logical_and", "logical_or")), above, below)
        return b.add("where", inside, x, 0.0) if rng.random() < 0.5 else b.add("mul", x, b.add("cast", inside, dtype="float32"))
    if kind == "largest":
        if len(d.shape) < 2:
            return None
        axis = rng.randrange(1, len(d.shape))
        same = b.add("ge", x, b.add("amax", x, dim=(axis,), keepdim=True))
        return b.add("where", same, x, rng.choice((0.0, -1.0)))
    if kind == "cumprod":
        return b.add("cumprod", b.add("sigmoid", x), dim=len(d.shape) - 1) if d.shape else None
    fitting = [n for n in (2, 3, 4) if len(d.shape) == 4 and all(s % n == 0 and s > n for s in d.shape[2:])]
    return b.add("pixel_unshuffle", x, downscale_factor=rng.choice(fitting)) if fitting else None


STEPS: dict[base.Step, float] = {
    by_place: 0.3, rare_pool: 0.4, response_norm: 0.2, rows_as_images: 0.8, rare_op: 0.5,
}  # fmt: skip
"""What may come next, and how often it is drawn."""
