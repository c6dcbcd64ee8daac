"""`einsum` of one or two operands as sums, products and views, so that it is the same Graph as their other spellings."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder


def add_einsum(b: Builder, equation: str, operands: Sequence[str]) -> str:
    """The name of what `torch.einsum(equation, *operands)` gives."""
    equation = equation.replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    letters = left.replace(",", "")
    if not arrow:
        out = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    # a buffer of one element is a number here, whatever its shape
    terms = [term if b.value(x).shape or "." in term else "" for term, x in zip(terms, operands, strict=True)]
    left = ",".join(terms)
    plain = "." not in equation and all(len(set(t)) == len(t) for t in terms)
    if not plain or len(terms) > 2:
        return b.add("einsum", *operands, equation=_renamed(f"{left}->{out}"))
    parts = []
    for i, (term, x) in enumerate(zip(terms, operands, strict=True)):
        alone = [c for c in term if c not in out and not any(c in t for j, t in enumerate(terms) if j != i)]
        summed = b.add("sum", x, dim=tuple(term.index(c) for c in alone)) if alone else x
        parts.append(("".join(c for c in term if c not in alone), summed))
    if len(parts) == 1:
        term, x = parts[0]
        return _broadcast(b, x, term, out)
    return _product(b, parts[0], parts[1], out)


def _renamed(equation: str) -> str:
    """Letters in the order of their first use, so that `bij,bjk->bik` and `nxy,nyz->nxz` are one."""
    order = {c: chr(ord("a") + i) for i, c in enumerate(dict.fromkeys(c for c in equation if c.isalpha()))}
    return "".join(order.get(c, c) for c in equation)


def _permuted(b: Builder, x: str, term: str, out: str) -> str:
    return b.add("permute", x, dims=tuple(term.index(c) for c in out)) if out else x


def _product(b: Builder, one: tuple[str, str], other: tuple[str, str], out: str) -> str:
    """A product of two: batch letters are in both and in the result, contracted ones in both alone."""
    (first, x), (second, y) = one, other
    contracted = "".join(c for c in first if c in second and c not in out)
    if not contracted:
        return b.add("mul", _broadcast(b, x, first, out), _broadcast(b, y, second, out))
    batch = "".join(c for c in first if c in second and c in out)
    rows = "".join(c for c in first if c not in second)
    columns = "".join(c for c in second if c not in first)
    if not rows and not columns:
        product = b.add("mul", x, _permuted(b, y, second, first))
        total = b.add("sum", product, dim=tuple(first.index(c) for c in contracted))
        return _permuted(b, total, batch, out)
    sizes = dict(zip(first, b.value(x).shape, strict=True)) | dict(zip(second, b.value(y).shape, strict=True))

    def shaped(name: str, term: str, *groups: str) -> str:
        turned = _permuted(b, name, term, batch + "".join(groups))
        shape = [sizes[c] for c in batch] + [prod(sizes[c] for c in group) for group in groups]
        return b.add("reshape", turned, shape=tuple(shape))

    if not batch and len(contracted) == 1 and len(columns) == 1:  # a matmul takes any number of axes of rows
        product = b.add("matmul", _permuted(b, x, first, rows + contracted), _permuted(b, y, second, contracted + columns))
    else:
        product = b.add("matmul", shaped(x, first, rows, contracted), shaped(y, second, contracted, columns))
        product = b.add("reshape", product, shape=tuple(sizes[c] for c in batch + rows + columns))
    return _permuted(b, product, batch + rows + columns, out)


def _broadcast(b: Builder, x: str, term: str, out: str) -> str:
    """x with its axes in the order of `out`, and axes of size 1 for the letters that it lacks."""
    turned = _permuted(b, x, term, "".join(c for c in out if c in term))
    missing = tuple(i for i, c in enumerate(out) if c not in term)
    return b.add("unsqueeze", turned, dim=missing) if missing else turned
