"""Which calls of an exported program give views of one memory, and what an in-place call leaves in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder


class Memory:
    """Of fx nodes. Those that an in-place call leaves as nobody can say are `stale`."""

    def __init__(self, b: Builder, env: dict[Any, Any]) -> None:
        """`env`: fx node → name of its value, which in-place calls change."""
        self._b, self._env = b, env
        self._owner: dict[Any, Any] = {}
        """fx node → the node that owns its memory."""
        self._whole: set[Any] = set()
        """fx nodes that are all of their owner's memory in its own order."""
        self._view_of: dict[Any, Any] = {}
        """Every other fx node → the node that it is a view of."""
        self.stale: set[Any] = set()

    def add(self, node: Any, read: Sequence[Any] = ()) -> None:
        """A node gives a view of one of those it reads, or memory of its own: the traced tensors tell."""
        of = next((r for r in read if same_memory(traced(r), traced(node))), node)
        self.share(node, of, whole=of is node or place(traced(of)) == place(traced(node)))

    def share(self, node: Any, of: Any, *, whole: bool) -> None:
        """A node lies in the memory of `of`, and is all of it where `whole`."""
        self._owner[node] = self._owner.get(of, of)
        if node is of or (whole and of in self._whole):
            self._whole.add(node)
        else:
            self._view_of[node] = of

    def overwrite(self, of: Any, result: Any) -> None:
        """Every node of the same memory is what is there now, or stale."""
        now, at = {of: result}, of
        while at not in self._whole:
            up = self._view_of[at]
            known = up not in self.stale and isinstance(self._env[up], str)
            above = _written_back(self._b, traced(up), traced(at), self._env[up], now[at]) if known else None
            if above is None:
                break
            now[up], at = above, up
        owner = self._owner[of]
        for node in [n for n, o in self._owner.items() if o is owner]:
            if node in now or (at in self._whole and node in self._whole):
                self._env[node] = now.get(node, now[at])
            else:
                self.stale.add(node)


def traced(node: Any) -> Any:
    """The fake tensor that a node gave while the module was traced."""
    return node.meta.get("val")


def same_memory(one: Any, other: Any) -> bool:
    """Both are tensors of one storage."""
    tensors = isinstance(one, Tensor) and isinstance(other, Tensor)
    return tensors and one.untyped_storage()._cdata == other.untyped_storage()._cdata


def place(tensor: Tensor) -> tuple[Any, ...]:
    """Which elements of its memory a tensor is, and in which order."""
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _written_back(b: Builder, whole: Tensor, view: Tensor, old: str, new: str) -> str | None:
    """`old` after its view became `new`; None where the view is no slice of it, or turns more than axes.

    Args:
        whole: The traced tensor of `old`, for its strides.
        view: That of `new`.
    """
    if whole.numel() == view.numel() and whole.is_contiguous() and view.is_contiguous():
        return b.add("reshape", new, shape=tuple(whole.shape))
    sizes, strides = list(whole.shape), list(whole.stride())
    for size, stride in zip(view.shape, view.stride(), strict=True):
        spans = enumerate(zip(sizes, strides, strict=True))
        at = next((i for i, (n, s) in spans if size > 1 and s and stride % s == 0 and size * (stride // s) == n > size), None)
        if at is not None:  # every so many: the axis is two
            sizes[at : at + 1], strides[at : at + 1] = [size, stride // strides[at]], [stride, strides[at]]
    axes = {stride: axis for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)) if size > 1}
    found = {i: axes.get(view.stride(i), -1) for i, size in enumerate(view.shape) if size > 1}
    if -1 in found.values() or len(set(found.values())) < len(found):
        return None
    order = sorted(range(view.dim()), key=lambda i: found.get(i, -1))
    box = [1] * len(sizes)
    for i, axis in found.items():
        box[axis] = view.shape[i]
    part = b.add("reshape", b.add("permute", new, dims=tuple(order)), shape=tuple(box))
    cut = [axis for axis, size in enumerate(box) if size < sizes[axis]]
    if cut:
        axis, skipped = cut[0], int(view.storage_offset() - whole.storage_offset())
        start, gap = divmod(skipped, strides[axis])
        if len(cut) > 1 or gap or start + box[axis] > sizes[axis]:  # no view that is made at once
            return None
        old, end = b.add("reshape", old, shape=tuple(sizes)), start + box[axis]
        parts = [*_cut(b, old, axis, 0, start), part, *_cut(b, old, axis, end, sizes[axis])]
        part = b.add("cat", *parts, dim=axis)
    return b.add("reshape", part, shape=tuple(whole.shape))


def _cut(b: Builder, value: str, axis: int, start: int, stop: int) -> list[str]:
    """What lies there along an axis: the parts of a `cat`, if it is one, and what is left of those that are cut."""
    node = b.node(value, "cat")
    found, at = [], 0
    for part in node.reads if node and node["dim"] == axis else (value,):
        size = b.value(part).shape[axis]
        low, high = max(start - at, 0), min(stop - at, size)
        if low < high:
            found.append(b.add("slice", part, dim=axis, start=low, stop=high))
        at += size
    return found
