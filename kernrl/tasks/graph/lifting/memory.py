"""Which calls of an exported program give views of one memory, and what an in-place call leaves in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder


class Memory:
    """Which fx nodes share memory, and what they are after an in-place call on one of them."""

    def __init__(self, b: Builder, env: dict[Any, Any]) -> None:
        """`env`: fx node → name of its value, which in-place calls change."""
        self._b, self._env = b, env
        self._owner: dict[Any, Any] = {}
        """fx node → the node that owns its memory."""
        self._whole: set[Any] = set()
        """fx nodes that are all of their owner's memory in its own order."""
        self._view_of: dict[Any, Any] = {}
        """Every other fx node → the node that it is a view of."""
        self._stale: set[Any] = set()
        """fx nodes of which nobody can say what they are."""

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
            known = self.fresh(up) and isinstance(self._env[up], str)
            above = _written_back(self._b, traced(up), traced(at), self._env[up], now[at]) if known else None
            if above is None:
                break
            now[up], at = above, up
        owner = self._owner[of]
        for node in [n for n, o in self._owner.items() if o is owner]:
            if node in now or (at in self._whole and node in self._whole):
                self._env[node] = now.get(node, now[at])
            else:
                self._stale.add(node)

    def fresh(self, node: Any) -> bool:
        """The value of a node is known; a view whose memory was overwritten is looked at again."""
        up = self._view_of.get(node)
        if node in self._stale and up is not None and self.fresh(up) and isinstance(self._env[up], str):
            seen = _seen(self._b, traced(up), traced(node), self._env[up])
            if seen is not None:
                self._env[node] = seen
                self._stale.remove(node)
        return node not in self._stale


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


@dataclass(frozen=True, slots=True)
class _Slice:
    """A view as a slice along one axis of a tensor, and its axes in another order."""

    sizes: tuple[int, ...]
    """Of the tensor; its own, where one of every so many is taken with that axis in two."""
    axes: tuple[int, ...]
    """Of the tensor, for each axis of the view that has more than one element."""
    box: tuple[int, ...]
    """The view's sizes in the order of the tensor's axes."""
    cut: int
    """The axis that is sliced."""
    start: int


def _slice_of(whole: Tensor, view: Tensor) -> _Slice | None:
    """What a view is of a tensor by their strides; None where it is no slice, such as a diagonal."""
    sizes, strides = list(whole.shape), list(whole.stride())
    for size, stride in zip(view.shape, view.stride(), strict=True):
        spans = enumerate(zip(sizes, strides, strict=True))
        at = next((i for i, (n, s) in spans if size > 1 and s and stride % s == 0 and size * (stride // s) == n > size), None)
        if at is not None:  # every so many: the axis is two
            sizes[at : at + 1], strides[at : at + 1] = [size, stride // strides[at]], [stride, strides[at]]
    axis_of = {stride: axis for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)) if size > 1}
    axes = [axis_of.get(stride, -1) for size, stride in zip(view.shape, view.stride(), strict=True) if size > 1]
    if -1 in axes or len(set(axes)) < len(axes) or not view.numel():
        return None
    box = [1] * len(sizes)
    for axis, size in zip(axes, (n for n in view.shape if n > 1), strict=True):
        box[axis] = size
    cut = [axis for axis, size in enumerate(box) if size < sizes[axis]]
    axis = cut[0] if cut else 0
    start, gap = divmod(int(view.storage_offset() - whole.storage_offset()), strides[axis] or 1) if sizes else (0, 0)
    if len(cut) > 1 or gap or start + box[axis] > sizes[axis]:  # no view that is made at once
        return None
    return _Slice(tuple(sizes), tuple(axes), tuple(box), axis, start)


def _regrouped(whole: Tensor, view: Tensor) -> bool:
    """A view is a tensor's elements, in order."""
    return whole.numel() == view.numel() and whole.is_contiguous() and view.is_contiguous()


def _written_back(b: Builder, whole: Tensor, view: Tensor, old: str, new: str) -> str | None:
    """`old` after its view became `new`; None where nobody can say.

    Args:
        whole: The traced tensor of `old`.
        view: That of `new`.
    """
    if _regrouped(whole, view):
        return b.add("reshape", new, shape=tuple(whole.shape))
    s = _slice_of(whole, view)
    if s is None:
        return None
    part = b.add("reshape", new, shape=tuple(n for n in view.shape if n > 1))
    part = b.add("permute", part, dims=tuple(sorted(range(len(s.axes)), key=s.axes.__getitem__)))
    part = b.add("reshape", part, shape=s.box)
    old, end = b.add("reshape", old, shape=s.sizes), s.start + s.box[s.cut]
    parts = [*_cut(b, old, s.cut, 0, s.start), part, *_cut(b, old, s.cut, end, s.sizes[s.cut])]
    joined = b.add("cat", *parts, dim=s.cut) if len(parts) > 1 else part
    return b.add("reshape", joined, shape=tuple(whole.shape))


def _seen(b: Builder, whole: Tensor, view: Tensor, now: str) -> str | None:
    """What a view is, where its tensor is `now`; None where nobody can say."""
    if _regrouped(whole, view):
        return b.add("reshape", now, shape=tuple(view.shape))
    s = _slice_of(whole, view)
    if s is None:
        return None
    parts = _cut(b, b.add("reshape", now, shape=s.sizes), s.cut, s.start, s.start + s.box[s.cut])
    part, order = b.add("cat", *parts, dim=s.cut) if len(parts) > 1 else parts[0], sorted(s.axes)
    part = b.add("reshape", part, shape=tuple(s.box[axis] for axis in order))
    part = b.add("permute", part, dims=tuple(order.index(axis) for axis in s.axes))
    return b.add("reshape", part, shape=tuple(view.shape))


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
