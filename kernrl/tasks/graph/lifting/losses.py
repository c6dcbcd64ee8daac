"""Losses and distances of PyTorch, in the ops of a Graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernrl.tasks.graph.lifting.aten_shapes import Arguments, Rule

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder


def xlogy(b: Builder, a: Arguments) -> str:
    x, y = a["self"], a["other"]
    return b.add("where", b.add("eq", x, 0.0), 0.0, b.add("mul", x, b.add("log", y)))


def _reduced(b: Builder, each: str, a: Arguments) -> str:
    """As the argument `reduction` says: as they are, their mean, or their sum."""
    return b.add(("mean", "sum")[a["reduction"] - 1], each, dim=None) if a["reduction"] else each


def _loss(op: str) -> Rule:
    return lambda b, a: _reduced(b, b.add(op, b.add("sub", a["self"], a["target"])), a)


def _smooth_l1(b: Builder, a: Arguments) -> str:
    off, beta = b.add("abs", b.add("sub", a["self"], a["target"])), a["beta"]
    if beta == 0:
        return _reduced(b, off, a)
    curve = b.add("mul", b.add("square", off), 0.5 / beta)
    return _reduced(b, b.add("where", b.add("lt", off, beta), curve, b.add("sub", off, 0.5 * beta)), a)


def _huber(b: Builder, a: Arguments) -> str:
    off, delta = b.add("abs", b.add("sub", a["self"], a["target"])), a["delta"]
    line = b.add("mul", b.add("sub", off, 0.5 * delta), delta)
    return _reduced(b, b.add("where", b.add("le", off, delta), b.add("mul", b.add("square", off), 0.5), line), a)


def _kl_div(b: Builder, a: Arguments) -> str:
    target, log_q = a["target"], a["self"]
    if a["log_target"]:
        return _reduced(b, b.add("mul", b.add("exp", target), b.add("sub", target, log_q)), a)
    known = xlogy(b, {"self": target, "other": target})
    return _reduced(b, b.add("sub", known, b.add("mul", target, log_q)), a)


def _cross_entropy_of_shares(b: Builder, a: Arguments) -> str:
    """`binary_cross_entropy`; its logarithms are cut off at −100."""
    x, y = a["self"], a["target"]
    yes = b.add("clamp", b.add("log", x), min=-100.0, max=None)
    no = b.add("clamp", b.add("log1p", b.add("neg", x)), min=-100.0, max=None)
    each = b.add("sub", b.add("mul", b.add("sub", y, 1.0), no), b.add("mul", y, yes))
    return _reduced(b, each if a["weight"] is None else b.add("mul", each, a["weight"]), a)


def _cross_entropy_of_logits(b: Builder, a: Arguments) -> str:
    """`binary_cross_entropy_with_logits`."""
    x, y = a["self"], a["target"]
    log = b.add("log_sigmoid", x)
    if a["pos_weight"] is not None:
        log = b.add("mul", b.add("add", b.add("mul", b.add("sub", a["pos_weight"], 1.0), y), 1.0), log)
    each = b.add("sub", b.add("mul", b.add("sub", 1.0, y), x), log)
    return _reduced(b, each if a["weight"] is None else b.add("mul", each, a["weight"]), a)


def _nll(b: Builder, a: Arguments, log: str) -> str | None:
    """Minus the logarithm of the class that each row names: a sum over classes in which the others are 0."""
    target, shape = a["target"], b.value(log).shape
    if b.value(target).dtype != "int64" or not shape:
        return None
    axis = 1 if len(shape) > 1 else 0
    classes = b.add("arange", end=shape[axis], dtype="int64")
    column = (-1, *[1] * (len(shape) - axis - 1))
    classes = b.add("reshape", classes, shape=column)
    mine = b.add("eq", b.add("unsqueeze", target, dim=(axis,)), classes)
    counted = b.add("ne", target, a["ignore_index"])
    share = b.add("cast", counted, dtype="float32")
    if a["weight"] is not None:
        weight = b.add("reshape", a["weight"], shape=column)
        log = b.add("mul", log, weight)
        share = b.add("mul", share, b.add("sum", b.add("where", mine, weight, 0.0), dim=axis))
    each = b.add("neg", b.add("sum", b.add("where", mine, log, 0.0), dim=axis))
    smoothing = a.get("label_smoothing", 0.0)
    if 0 <= a["ignore_index"] < shape[axis]:  # any other is the class of no column
        each = b.add("where", counted, each, 0.0)
    if smoothing:
        rest = b.add("where", counted, b.add("neg", b.add("mean", log, dim=axis)), 0.0)
        each = b.add("add", b.add("mul", each, 1 - smoothing), b.add("mul", rest, smoothing))
    if a["reduction"] != 1:
        return _reduced(b, each, a)
    return b.add("div", b.add("sum", each, dim=None), b.add("sum", share, dim=None))


def _cross_entropy(b: Builder, a: Arguments) -> str | None:
    log = b.add("log_softmax", a["self"], dim=1 if len(b.value(a["self"]).shape) > 1 else 0)
    if b.value(a["target"]).shape != b.value(log).shape or b.value(a["target"]).dtype == "int64":
        return _nll(b, a, log)
    if a["weight"] is not None or a["label_smoothing"]:
        return None
    each = b.add("neg", b.add("sum", b.add("mul", log, a["target"]), dim=1))  # the target is a share of every class
    if a["reduction"] == 1:
        return b.add("mean", each, dim=None)
    return _reduced(b, each, a)


def _distance(b: Builder, one: str, other: str, a: Arguments, keepdim: bool = False) -> str:
    off = b.add("add", b.add("sub", one, other), a["eps"])
    return b.add("norm", off, dim=-1, keepdim=keepdim, p=a["p"])


def _pairwise_distance(b: Builder, a: Arguments) -> str:
    return _distance(b, a["x1"], a["x2"], a, a["keepdim"])


def _triplet(b: Builder, a: Arguments) -> str | None:
    if a["swap"]:
        return None
    near, far = (_distance(b, a["anchor"], a[name], a) for name in ("positive", "negative"))
    return _reduced(b, b.add("clamp", b.add("add", b.add("sub", near, far), a["margin"]), min=0.0, max=None), a)


def _cosine_embedding(b: Builder, a: Arguments) -> str:
    """How far two rows are from one direction, where the target is 1, and from a margin, where it is −1."""
    one, other, target = a["input1"], a["input2"], a["target"]
    axis = len(b.value(target).shape)

    def total(x: str, y: str) -> str:
        return b.add("sum", b.add("mul", x, y), dim=axis)

    sizes = [b.add("add", total(x, x), 1e-12) for x in (one, other)]
    cosine = b.add("div", total(one, other), b.add("sqrt", b.add("mul", *sizes)))
    far = b.add("where", b.add("eq", target, 1), b.add("sub", 1.0, cosine), 0.0)
    near = b.add("clamp", b.add("sub", cosine, a["margin"]), min=0.0, max=None)
    return _reduced(b, b.add("add", far, b.add("where", b.add("eq", target, -1), near, 0.0)), a)


def _hinge_embedding(b: Builder, a: Arguments) -> str:
    x, target = a["self"], a["target"]
    near = b.add("clamp", b.add("sub", a["margin"], x), min=0.0, max=None)
    near = b.add("where", b.add("ne", target, 1), near, 0.0)
    return _reduced(b, b.add("add", near, b.add("where", b.add("ne", target, -1), x, 0.0)), a)


def _ranking(b: Builder, a: Arguments) -> str:
    wrong = b.add("mul", b.add("neg", a["target"]), b.add("sub", a["input1"], a["input2"]))
    return _reduced(b, b.add("clamp", b.add("add", wrong, a["margin"]), min=0.0, max=None), a)


def _poisson(b: Builder, a: Arguments) -> str | None:
    log, target = a["input"], a["target"]
    if not a["log_input"] or a["full"]:
        return None
    return _reduced(b, b.add("sub", b.add("exp", log), b.add("mul", target, log)), a)


def _soft_margin(b: Builder, a: Arguments) -> str:
    turned = b.add("mul", b.add("neg", a["target"]), a["self"])
    return _reduced(b, b.add("log1p", b.add("exp", turned)), a)


LOSSES: dict[str, Rule] = {
    "mse_loss": _loss("square"),
    "l1_loss": _loss("abs"),
    "smooth_l1_loss": _smooth_l1,
    "huber_loss": _huber,
    "kl_div": _kl_div,
    "binary_cross_entropy": _cross_entropy_of_shares,
    "binary_cross_entropy_with_logits": _cross_entropy_of_logits,
    "cross_entropy_loss": _cross_entropy,
    **dict.fromkeys(("nll_loss", "nll_loss_nd", "nll_loss2d"), lambda b, a: _nll(b, a, a["self"])),
    "pairwise_distance": _pairwise_distance,
    "triplet_margin_loss": _triplet,
    "margin_ranking_loss": _ranking,
    "cosine_embedding_loss": _cosine_embedding,
    "hinge_embedding_loss": _hinge_embedding,
    "poisson_nll_loss": _poisson,
    "soft_margin_loss": _soft_margin,
    "dist": lambda b, a: b.add("norm", b.add("sub", a["self"], a["other"]), dim=None, p=a["p"]),
}
"""Name of an ATen op, without its overload → what it says."""
