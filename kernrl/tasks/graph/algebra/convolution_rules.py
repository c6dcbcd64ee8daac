"""Convolutions whose result is summed: sums of what they read times sums of taps."""

from __future__ import annotations

from itertools import product as combinations
from math import prod

from kernrl.tasks.graph.algebra.constant_results import FLOATS
from kernrl.tasks.graph.algebra.sight import Into, Make, Rule, Sight
from kernrl.tasks.graph.graph import Node, Operand

CONVOLUTIONS = tuple(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))
FEW_TERMS = 4
"""Most pairs of a sum of inputs and a sum of taps that are written one by one; more are put into one product."""
MOST_EDGES = 4
"""Most cut indices of a dimension: 2 on each side, as of 3 taps without padding."""
WIDEST_BORDER = 8

Edge = tuple[int, int, int]
"""An index of the input, and the range of taps that fall outside the result from there."""


def _channel_sum(s: Sight, node: Node) -> Make | None:
    """The sum or mean of a convolution's channels is a convolution with one channel."""
    conv = s.sole(node.reads[0], *CONVOLUTIONS) if node.op in ("sum", "mean") else None
    if not conv or 1 not in node["dim"] or conv["groups"] != 1 or node.value.dtype not in FLOATS:
        return None
    rank = len(conv.value.shape)
    if set(node["dim"]) >= set(range(2, rank)) and _borders(s, conv) is not None:
        return None  # less is left when space goes first
    if conv.value.shape[1] == 1:
        return None
    x, weight, bias = (*conv.operands, None)[:3]
    rest = tuple(d for d in node["dim"] if d != 1)

    def make(into: Into) -> str:
        taps = into.add(node.op, into.old(weight), dim=(1 if "transpose" in conv.op else 0,), keepdim=True)
        own: Operand = into.add(node.op, into.old(bias), dim=(0,), keepdim=True) if isinstance(bias, str) else None
        y = into.add(conv.op, into.old(x), taps, own, **dict(conv.attributes))
        return into.shaped(into.add(node.op, y, dim=rest, keepdim=True) if rest else y, node.value)

    return make


def _edges(n: int, out: int, taps: int, stride: int, padding: int, dilation: int, transposed: bool) -> list[Edge] | None:
    """Where a dimension's borders cut taps off; None where they cut in another way than a few ranges."""
    edges: list[Edge] = []
    border = [*range(min(n, WIDEST_BORDER)), *range(max(WIDEST_BORDER, n - WIDEST_BORDER), n)]
    for i in border:
        places = [i * stride - padding + dilation * t if transposed else i + padding - dilation * t for t in range(taps)]
        cut = [t for t, place in enumerate(places) if not 0 <= place < out]
        if not cut:
            continue
        inside = n > 2 * WIDEST_BORDER and WIDEST_BORDER - 1 <= i <= n - WIDEST_BORDER
        if cut != list(range(cut[0], cut[-1] + 1)) or inside:
            return None
        edges.append((i, cut[0], cut[-1] + 1))
    return edges


def _borders(s: Sight, conv: Node) -> list[list[Edge]] | None:
    """For each dimension of space the edges that are subtracted; None where there are too many.

    Summed over all places, input i meets tap t once, unless the place where they meet is cut off. What is cut is subtracted,
    dimension by dimension: the result is the product over dimensions of `all - edges`.
    """
    transposed, rank = "transpose" in conv.op, len(conv.value.shape) - 2
    if conv["groups"] != 1 or (not transposed and any(n != 1 for n in conv["stride"])):
        return None
    x, weight = s.shape(conv.operands[0]), s.shape(conv.operands[1])
    if len(x) != rank + 2:
        return None
    found: list[list[Edge]] = []
    for d in range(rank):
        numbers = (conv["stride"][d], conv["padding"][d], conv["dilation"][d])
        edges = _edges(x[d + 2], conv.value.shape[d + 2], weight[d + 2], *numbers, transposed)
        if edges is None or len(edges) > MOST_EDGES:
            return None
        found.append(edges)
    return found


def _spatial_sum(s: Sight, node: Node) -> Make | None:
    """The sum or mean over all places: every input times every tap, less what the borders cut off."""
    conv = s.sole(node.reads[0], *CONVOLUTIONS) if node.op in ("sum", "mean") else None
    if not conv or node.value.dtype not in FLOATS:
        return None
    rank = len(conv.value.shape)
    space = tuple(range(2, rank))
    if not set(node["dim"]) >= set(space) or (borders := _borders(s, conv)) is None:
        return None
    bias = (*conv.operands, None)[2]
    rest = tuple(d for d in node["dim"] if d not in space)
    sizes = [float(n) for n in conv.value.shape[2:]]
    few = prod(1 + len(edges) for edges in borders) <= FEW_TERMS

    def make(into: Into) -> str:
        y = _term_by_term(into, conv, borders) if few else _at_once(into, conv, borders)
        own = into.old(bias)
        for n in sizes:
            if node.op == "mean":
                y = into.add("div", y, n)
            elif isinstance(own, str):
                own = into.add("mul", own, n)
        y = into.add("add", y, own) if isinstance(own, str) else y
        y = into.shaped(y, (*into.shape(y), *[1] * len(space)))
        return into.shaped(into.add(node.op, y, dim=rest, keepdim=True) if rest else y, node.value)

    return make


def _pairs(into: Into, conv: Node, inputs: str, taps: str) -> str:
    """[batch, out] of sums of inputs [batch, in, ...] and of taps, summed over all but these.

    Not a library product: under TF32 that would round the sums once more.
    """
    batch, channels, *rest = into.shape(inputs)
    n = prod(rest)
    if "transpose" in conv.op:  # [batch, in, 1, n] by [in, out, n]
        first = into.shaped(inputs, (batch, channels, 1, n) if n > 1 else (batch, channels, 1))
        second = into.shaped(taps, (*into.shape(taps)[:2], n) if n > 1 else into.shape(taps)[:2])
        return into.add("sum", into.add("mul", first, second), dim=(1, 3) if n > 1 else (1,), keepdim=False)
    first = into.shaped(inputs, (batch, 1, channels * n))
    second = into.shaped(taps, (into.shape(taps)[0], channels * n))
    return into.add("sum", into.add("mul", first, second), dim=(2,), keepdim=False)


def _term_by_term(into: Into, conv: Node, borders: list[list[Edge]]) -> str:
    """Pairs of sums, added and subtracted."""
    y, space = "", tuple(range(2, len(borders) + 2))
    choices: list[list[Edge | None]] = [[None, *edges] for edges in borders]
    for edges in combinations(*choices):
        inputs, taps = map(into.old, conv.operands[:2])
        for d, edge in enumerate(edges, 2):
            if edge is not None:
                inputs = into.add("slice", inputs, dim=d, start=edge[0], stop=edge[0] + 1, step=1)
                taps = into.add("slice", taps, dim=d, start=edge[1], stop=edge[2], step=1)
        sums = [into.add("sum", v, dim=space, keepdim=True) for v in (inputs, taps)]
        one = _pairs(into, conv, *sums)
        y = one if not y else into.add("sub" if sum(e is not None for e in edges) % 2 else "add", y, one)
    return y


def _at_once(into: Into, conv: Node, borders: list[list[Edge]]) -> str:
    """One dimension after the other becomes (its sum, its edges), of inputs and with a minus of taps; then one product."""
    inputs, taps = map(into.old, conv.operands[:2])
    for d in range(len(borders) + 1, 1, -1):
        edges = borders[d - 2]
        cut = [into.add("slice", inputs, dim=d, start=i, stop=i + 1, step=1) for i, _, _ in edges]
        gone = [into.add("slice", taps, dim=d, start=first, stop=last, step=1) for _, first, last in edges]
        minus = [into.add("neg", into.add("sum", g, dim=(d,), keepdim=True)) for g in gone]
        inputs, taps = (into.add("sum", v, dim=(d,), keepdim=True) for v in (inputs, taps))
        if edges:
            inputs, taps = into.add("cat", inputs, *cut, dim=d), into.add("cat", taps, *minus, dim=d)
    assert isinstance(inputs, str)
    assert isinstance(taps, str)
    return _pairs(into, conv, inputs, taps)


CONVOLUTION_RULES: dict[str, Rule] = {
    "convolution-then-channel-sum": _channel_sum,
    "convolution-then-spatial-sum": _spatial_sum,
}
