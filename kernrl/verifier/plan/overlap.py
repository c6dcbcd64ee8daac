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
    alike = (a.dtype, a.shape, a.stride) == (b.dtype, b.shape, b.stride)
    pair = TensorRef(a.storage, a.dtype, (2, *a.shape), (abs(a.offset - b.offset), *a.stride))
    return not alike or overlaps(pair)


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
