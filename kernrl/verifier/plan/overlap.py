"""Where views lie in memory: the bytes they reach over, and whether elements of them share a place."""

from __future__ import annotations

from kernrl.verifier.plan.plan import ITEM_BYTES, TensorRef, TensorSpec


def span_bytes(spec: TensorSpec) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if 0 in spec.shape:
        return 0
    return (sum((n - 1) * st for n, st in zip(spec.shape, spec.stride, strict=True)) + 1) * ITEM_BYTES[spec.dtype]


def share(a: TensorRef, b: TensorRef) -> bool:
    """Whether two views may share an element. Parts of one buffer do not, whether consecutive or interleaved."""
    if a.storage != b.storage or not a.numel or not b.numel:
        return False
    first, last = ([r.offset * ITEM_BYTES[r.dtype] for r in (a, b)], [_end_bytes(r) for r in (a, b)])
    if last[0] <= first[1] or last[1] <= first[0]:
        return False
    return a.dtype != b.dtype or not _apart(*sorted((a, b), key=lambda ref: ref.offset))


def _apart(a: TensorRef, b: TensorRef) -> bool:
    """Whether two views, of which `b` begins behind `a`, are different parts of one that does not overlap, such as columns.

    Of the axes that have the same strides in both, outermost first, some are axes of that view. All that is inside these is a
    stretch of memory of each.
    """
    inner_a, inner_b = (
        sorted(((st, n) for n, st in zip(ref.shape, ref.stride, strict=True) if n > 1), reverse=True) for ref in (a, b)
    )
    strides, shape = list[int](), list[int]()
    behind, apart = b.offset - a.offset, False
    while True:
        reach_a, reach_b = (sum(st * (n - 1) for st, n in inner) for inner in (inner_a, inner_b))
        whole = TensorRef(a.storage, a.dtype, (*shape, max(reach_a, behind + reach_b) + 1), (*strides, 1))
        if (apart or behind > reach_a) and not overlaps(whole):
            return True
        if not inner_a or not inner_b or inner_a[0][0] != inner_b[0][0] or inner_a[0][0] == 0:
            return False
        (stride, n), (_, m) = inner_a.pop(0), inner_b.pop(0)
        start, behind = divmod(behind, stride)
        apart = apart or start >= n
        strides.append(stride)
        shape.append(max(n, start + m))


def _end_bytes(ref: TensorRef) -> int:
    reach = sum((n - 1) * st for n, st in zip(ref.shape, ref.stride, strict=True))
    return (ref.offset + reach + 1) * ITEM_BYTES[ref.dtype]


def overlaps(ref: TensorRef) -> bool:
    """Whether two elements of a view may share a place in memory: each stride must step over the dimensions inside it."""
    reach = 0
    for stride, size in sorted((st, n) for n, st in zip(ref.shape, ref.stride, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
