"""Sums and means moved to where there is less to do: out of affine maps, and into the weights of products."""

from __future__ import annotations

from kernrl.tasks.graph.algebra.constant_results import FLOATS, count
from kernrl.tasks.graph.algebra.sight import Into, Make, Rule, Sight
from kernrl.tasks.graph.graph import Node, Operand


def _affine_outside_sum(s: Sight, node: Node) -> Make | None:
    """`sum(y * c + d)` is `sum(y) * c + n d` where c and d do not vary along the axes."""
    if node.op not in ("sum", "mean"):
        return None
    inner = s.sole(node.reads[0], "mul", "div", "add", "sub", "neg")
    if not inner or dict(inner.attributes).get("rounding_mode") or node.value.dtype not in FLOATS:
        return None
    shape, dims = inner.value.shape, node["dim"]
    at = next((i for i, o in enumerate(inner.operands) if isinstance(o, str) and s.shape(o) == shape), None)
    if at is None or (inner.op == "div" and at == 1):
        return None
    others = [o for i, o in enumerate(inner.operands) if i != at]
    if any(not s.constant_along(o, dims, len(shape)) for o in others):
        return None
    n = float(count(s, node.reads[0], dims))

    def make(into: Into) -> str:
        y = into.add(node.op, into.old(inner.operands[at]), dim=dims, keepdim=True)
        if not others:
            return into.shaped(into.add(inner.op, y), node.value)
        other = into.old(others[0])
        if inner.op in ("add", "sub") and node.op == "sum":
            other = into.add("mul", other, n) if isinstance(other, str) else other * n  # pyright: ignore[reportOptionalOperand]
        pair = (y, other) if at == 0 else (other, y)
        return into.shaped(into.add(inner.op, *pair), node.value)

    return make


def _product_then_sum(s: Sight, node: Node) -> Make | None:
    """The sum or mean of a product's features is a product with the summed weight: one number a row."""
    product = s.sole(node.reads[0], "linear", "matmul") if node.op in ("sum", "mean") else None
    if not product:
        return None
    x, weight, *rest = product.operands
    rank, other = len(product.value.shape), len(s.shape(weight))
    if rank - 1 not in node["dim"] or len(s.shape(x)) != rank or (product.op == "matmul" and other not in (2, rank)):
        return None
    over = tuple(d for d in node["dim"] if d != rank - 1)

    def make(into: Into) -> str:
        features = 0 if product.op == "linear" else other - 1
        w = into.add(node.op, into.old(weight), dim=(features,), keepdim=True)
        if product.op == "matmul":  # [..., K, 1] laid along K
            sizes = into.shape(w)
            w = into.shaped(w, [*sizes[:-2], 1, sizes[-2]])
        y = into.add("sum", into.add("mul", into.old(x), w), dim=(-1,), keepdim=True)
        if rest and rest[0] is not None:
            y = into.add("add", y, into.add(node.op, into.old(rest[0]), dim=(0,), keepdim=True))
        if over:
            y = into.add(node.op, y, dim=over, keepdim=True)
        return into.shaped(y, node.value)

    return make


def _sum_before_product(s: Sight, node: Node) -> Make | None:
    """The sum or mean over rows of a linear layer is the layer of the rows' sum."""
    product = s.sole(node.reads[0], "linear") if node.op in ("sum", "mean") else None
    if not product:
        return None
    x, weight, bias = (*product.operands, None)[:3]
    rank = len(product.value.shape)
    if rank - 1 in node["dim"] or len(s.shape(x)) != rank:
        return None
    n = float(count(s, node.reads[0], node["dim"]))

    def make(into: Into) -> str:
        total = into.add(node.op, into.old(x), dim=node["dim"], keepdim=True)
        own = into.old(bias)
        if isinstance(own, str) and node.op == "sum":
            own = into.add("mul", own, n)
        return into.shaped(into.add("linear", total, into.old(weight), own), node.value)

    return make


def _scale_into_product(s: Sight, node: Node) -> Make | None:
    """A number in front of a layer that no kernel follows goes into its weight and bias, which are smaller than its result."""
    if node.op not in ("mul", "div") or not isinstance(node.operands[1], float) or node.value.name not in s.graph.outputs:
        return None
    product = s.sole(node.operands[0], "linear")
    if not product or dict(node.attributes).get("rounding_mode") or node.operands[1] == 0:
        return None
    x, weight, bias = (*product.operands, None)[:3]
    if weight not in {p.value.name for p in s.graph.parameters}:
        return None

    def make(into: Into) -> str:
        scaled: list[Operand] = [
            into.add(node.op, into.old(o), node.operands[1]) if isinstance(o, str) else None for o in (weight, bias)
        ]
        return into.add("linear", into.old(x), *scaled)

    return make


def _product_then_pool(s: Sight, node: Node) -> Make | None:
    """Means of neighbouring features are features of the means of the weight's rows."""
    view = s.sole(node.reads[0], "unsqueeze") if node.op == "avg_pool1d" and node["stride"][0] > 1 else None
    product = s.sole(view.reads[0], "linear") if view and view["dim"] == (1,) else None
    if not product or len(product.value.shape) != 2:
        return None
    x, weight, bias = (*product.operands, None)[:3]
    attributes = dict(node.attributes)

    def make(into: Into) -> str:
        w = into.add("avg_pool1d", into.add("permute", into.old(weight), dims=(1, 0)), **attributes)
        y = into.add("matmul", into.old(x), w)
        if isinstance(bias, str):
            y = into.add("add", y, into.add("avg_pool1d", into.add("unsqueeze", into.old(bias), dim=(0,)), **attributes))
        return into.shaped(y, node.value)

    return make


PRODUCT_RULES: dict[str, Rule] = {
    "affine-outside-sum": _affine_outside_sum,
    "product-then-sum": _product_then_sum,
    "sum-before-product": _sum_before_product,
    "scale-into-product": _scale_into_product,
    "product-then-pool": _product_then_pool,
}
