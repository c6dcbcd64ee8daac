"""Steps of `graph/sample.py` for images, volumes and what is left of them.

Several windows side by side, pools in a row, weights over pixels, channels in another order or laid out as pixels, halves
that are turned by an angle, and reductions of a single element.
"""

from __future__ import annotations

from math import prod

from kernrl.tasks.graph import sample as base
from kernrl.tasks.graph.sample import Draft
from kernrl.tasks.nano.draw.draw_sizes import size
from kernrl.tasks.nano.draw.draw_wide import axes

SQUASHED = ("relu", "gelu", "silu", "tanh", "sigmoid", "elu", "softplus")


def _space(d: Draft, least: int = 4) -> int:
    """How many axes of space there are; 0 where they are too short, or where there are none."""
    rank = len(d.shape) - 2
    return rank if rank in (1, 2, 3) and min(d.shape[2:]) >= least else 0


def _layer(d: Draft, x: str, out: int) -> str:
    """A layer over the channels of every pixel."""
    channels, rank = d.b.value(x).shape[1], len(d.b.value(x).shape) - 2
    bias = d.parameter(out) if d.rng.random() < 0.6 else None
    return d.b.add(f"conv{rank}d", x, d.parameter(out, channels, *(1,) * rank), bias)


def of_one(d: Draft) -> str | None:
    """Reductions over axes that hold a single element, as they stand behind one that keeps its axes."""
    rng, b, x = d.rng, d.b, d.x
    ones = tuple(a for a, n in enumerate(d.shape) if n == 1)
    if not ones:
        ones = axes(d)
        if not ones:
            return None
        x = b.add(rng.choice(("sum", "mean", "amax", "amin", "logsumexp")), x, dim=ones, keepdim=True)
    for _ in range(rng.choice((1, 1, 2, 3))):
        x = b.add(rng.choice(("sum", "mean", "amax", "amin", "logsumexp")), x, dim=ones, keepdim=True)
    if rng.random() < 0.3:
        return b.add(rng.choice(("sum", "mean", "amax")), x, dim=ones)
    return x


def several_windows(d: Draft) -> str | None:
    """Convolutions of different windows over one value, side by side, and often a layer over all their channels."""
    rng, b = d.rng, d.b
    rank = _space(d, 6)
    if not rank or d.shape[1] > 256:
        return None
    out, found = size(rng, 4, 128), []
    for _ in range(rng.choice((2, 3, 3, 4))):
        k, dilation = rng.choice((1, 3, 3, 5, 7)), rng.choice((1, 1, 1, 2, 4))
        if k > 1 and (k // 2) * dilation >= min(d.shape[2:]):
            return None
        numbers = {"padding": ((k // 2) * dilation,) * rank, "dilation": (dilation if k > 1 else 1,) * rank}
        bias = d.parameter(out) if rng.random() < 0.7 else None
        branch = b.add(f"conv{rank}d", d.x, d.parameter(out, d.shape[1], *(k,) * rank), bias, **numbers)
        found.append(b.add(rng.choice(SQUASHED), branch) if rng.random() < 0.6 else branch)
    if rng.random() < 0.2:
        found.append(d.x)
    side = b.add("cat", *found, dim=1)
    return _layer(d, side, size(rng, 4, 128)) if rng.random() < 0.6 else side


def pools_in_a_row(d: Draft) -> str | None:
    """Two pools, one after the other, often of shares of the channels."""
    rng, b = d.rng, d.b
    rank = _space(d, 6)
    if not rank:
        return None
    x = b.add("softmax", d.x, dim=(1,)) if rng.random() < 0.5 and d.shape[1] > 1 else d.x
    for _ in range(rng.choice((1, 2, 2))):
        n = rng.choice((2, 2, 2, 3))
        k = (n,) * rank if rng.random() < 0.7 else tuple(rng.choice((1, n)) for _ in range(rank))
        x = b.add(f"{rng.choice(('avg', 'max'))}_pool{rank}d", x, kernel_size=k, stride=k)
    return x


def pooled_into(d: Draft) -> str | None:
    """A pool into windows of any number along each axis, which need not divide it."""
    rng, rank = d.rng, _space(d)
    if not rank:
        return None
    sizes = tuple(n if rng.random() < 0.25 else rng.choice((1, 2, 3, 4, 5, 7, 8)) for n in d.shape[2:])
    if sizes == d.shape[2:] or set(sizes) == {1} or any(s > n for s, n in zip(sizes, d.shape[2:], strict=True)):
        return None
    return d.b.add(f"adaptive_{rng.choice(('avg', 'avg', 'max'))}_pool{rank}d", d.x, output_size=sizes)


def weighted_pixels(d: Draft) -> str | None:
    """Sums of all pixels by weights of a layer and a softmax over space; often they come back to every pixel."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = _space(d)
    if not rank or prod(shape[2:]) < 16 or shape[1] > 1024:
        return None
    maps = rng.choice((1, 1, 1, 2, 4, 8))
    weights = b.add("softmax", b.add("flatten", _layer(d, d.x, maps), start_dim=2, end_dim=-1), dim=(-1,))
    flat = b.add("flatten", d.x, start_dim=2, end_dim=-1)
    found = b.add("matmul", flat, b.add("permute", weights, dims=(0, 2, 1)))
    if maps > 1:
        return found
    found = b.add("reshape", found, shape=(*shape[:2], *(1,) * rank))
    if rng.random() < 0.5:
        found = _layer(d, b.add(rng.choice(SQUASHED), _layer(d, found, size(rng, 4, 64))), shape[1])
    return b.add(rng.choice(("add", "add", "mul")), d.x, found) if rng.random() < 0.7 else found


def scaled_and_shifted(d: Draft) -> str | None:
    """Channels scaled and shifted by two halves of a layer of their means."""
    rng, b, shape = d.rng, d.b, d.shape
    rank = _space(d, 2)
    if not rank or shape[1] > 1024:
        return None
    space = tuple(range(2, rank + 2))
    means = b.add("mean", d.x, dim=space)
    if rng.random() < 0.5:
        inner = size(rng, 4, 128)
        means = b.add(rng.choice(SQUASHED), b.add("linear", means, d.parameter(inner, shape[1]), d.parameter(inner)))
    both = b.add("linear", means, d.parameter(2 * shape[1], b.value(means).shape[1]), d.parameter(2 * shape[1]))
    scale, shift = (b.add("chunk", both, chunks=2, dim=1, index=i) for i in rng.sample((0, 1), 2))
    scale = b.add("sigmoid", scale) if rng.random() < 0.6 else b.add("add", scale, 1.0)
    scale, shift = (b.add("unsqueeze", part, dim=space) for part in (scale, shift))
    return b.add("add", b.add("mul", scale, d.x), shift)


def channels_in_turn(d: Draft) -> str | None:
    """One channel of each group after the other."""
    rng, b, rank = d.rng, d.b, len(d.shape)
    groups = [g for g in (2, 2, 3, 4, 8) if rank > 1 and d.shape[1] % g == 0 and d.shape[1] > g]
    if not groups:
        return None
    g = rng.choice(groups)
    apart = b.add("unflatten", d.x, dim=1, sizes=(g, d.shape[1] // g))
    turned = b.add("permute", apart, dims=(0, 2, 1, *range(3, rank + 1)))
    return b.add("flatten", turned, start_dim=1, end_dim=2)


def finer_pixels(d: Draft) -> str | None:
    """A convolution to several channels for each pixel, laid out as pixels side by side: often of a single channel."""
    rng, b = d.rng, d.b
    times = rng.choice((2, 2, 2, 3, 4, 4, 8))
    if _space(d) != 2 or d.shape[1] > 512:
        return None
    out = times**2 * rng.choice((1, 1, 1, 2, 3, 3, size(rng, 4, 64)))
    if d.shape[0] * out * prod(d.shape[2:]) > d.most:
        return None
    k = rng.choice((1, 3, 3, 3, 5))
    bias = d.parameter(out) if rng.random() < 0.6 else None
    wide = b.add("conv2d", d.x, d.parameter(out, d.shape[1], k, k), bias, padding=(k // 2,) * 2)
    if rng.random() < 0.3:
        wide = b.add(rng.choice(SQUASHED), wide)
    return b.add("pixel_shuffle", wide, upscale_factor=times)


def halves_turned(d: Draft) -> str | None:
    """Two halves of the last axis as the sides of an angle that the module holds: places in a sequence are marked so."""
    rng, b, shape = d.rng, d.b, d.shape
    if len(shape) not in (2, 3, 4) or shape[-1] % 2 or shape[-1] < 8:
        return None
    half = shape[-1] // 2
    table = (shape[-2], half) if len(shape) > 2 else (half,)
    cos, sin = (d.parameter(*table, kind="buffer") for _ in range(2))
    one, other = (b.add("chunk", d.x, chunks=2, dim=len(shape) - 1, index=i) for i in range(2))
    first = b.add("sub", b.add("mul", one, cos), b.add("mul", other, sin))
    second = b.add("add", b.add("mul", one, sin), b.add("mul", other, cos))
    return b.add("cat", *((first, second) if rng.random() < 0.8 else (second, first)), dim=len(shape) - 1)


def shares_of_a_plane(d: Draft) -> str | None:
    """A softmax over several axes at once."""
    rank = len(d.shape)
    if rank < 3:
        return None
    dims = tuple(range(d.rng.choice((1, rank - 2)), rank))
    found = d.b.add(d.rng.choice(("softmax", "softmax", "log_softmax")), d.x, dim=dims)
    return d.b.add("mul", found, d.x) if d.rng.random() < 0.3 else found


STEPS: dict[base.Step, float] = {
    of_one: 0.5, several_windows: 0.45, pools_in_a_row: 0.5, pooled_into: 0.25, weighted_pixels: 0.3,
    scaled_and_shifted: 0.25, channels_in_turn: 0.25, finer_pixels: 0.8, halves_turned: 0.25, shares_of_a_plane: 0.2,
}  # fmt: skip
"""What may come next, and how often it is drawn."""
