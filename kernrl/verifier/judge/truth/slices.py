"""Slices of a large task's inputs, on which its float64 reference runs one after another (`find_slices.py` says where)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernrl.verifier.base.compat import called_directly, storage_key
from kernrl.verifier.base.float64_mode import written_arguments


@dataclass(frozen=True, slots=True)
class Slices:
    """How a reference's inputs are cut, and its outputs put together."""

    size: int
    """Of the axis."""
    length: int
    """Indices in a slice; the last slice may have fewer."""
    inputs: tuple[int | None, ...]
    """For each of forward's tensors, flattened, which of its axes it is; None for a tensor that every slice gets whole."""
    outputs: tuple[int, ...]
    """Which axis of each output it is."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(first index, number of indices) of each slice."""
        for start in range(0, self.size, self.length):
            yield start, min(self.length, self.size - start)

    def cut(self, leaves: Sequence[Any], start: int, length: int) -> list[Any]:
        """A slice of forward's arguments, flattened. Tensors are copied: a module may write to them."""
        axes = iter(self.inputs)
        return [_cut(x, next(axes), start, length) if isinstance(x, Tensor) else x for x in leaves]

    def put(self, made: Sequence[Tensor], outputs: list[Tensor], start: int, length: int) -> bool:
        """Put a slice's outputs where they belong in the whole ones, which the first slice adds; False if they do not fit."""
        if len(made) != len(self.outputs):
            return False
        if not outputs:
            outputs += [self._whole(y, axis) for y, axis in zip(made, self.outputs, strict=True) if axis < y.dim()]
        for y, whole, axis in zip(made, outputs, self.outputs, strict=False):
            into = whole.narrow(axis, start, length)
            if y.shape != into.shape:
                return False
            into.copy_(y)
        return len(outputs) == len(made)

    def _whole(self, part: Tensor, axis: int) -> Tensor:
        """Memory for an output of which a slice is given, with its order of axes."""
        order = sorted(range(part.dim()), key=lambda i: -part.stride(i))
        shape = [self.size if i == axis else part.shape[i] for i in order]
        return part.new_empty(shape).permute([order.index(i) for i in range(part.dim())])


def _cut(x: Tensor, axis: int | None, start: int, length: int) -> Tensor:
    return (x if axis is None else x.narrow(axis, start, length)).clone()


@called_directly
class StateWatch(TorchDispatchMode):
    """Sees what a slice leaves changed for the next one: a tensor of the module that is written to, and anything that a part of
    it holds in the place of something else."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self._module, self._before = module, _held(module)
        self._watched = {storage_key(x) for x in self._before if isinstance(x, Tensor)}
        self._written = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = written_arguments(func)
        given = [x for i, x in enumerate(args) if i in written] + [x for name, x in kwargs.items() if name in written]
        self._written |= any(storage_key(x) in self._watched for x in tree_leaves(given) if isinstance(x, Tensor))
        return func(*args, **kwargs)

    def changed(self) -> bool:
        """Whether anything has, so far."""
        now = _held(self._module)
        return self._written or len(now) != len(self._before) or any(a is not b for a, b in zip(now, self._before, strict=True))


def _held(module: nn.Module) -> list[Any]:
    return tree_leaves([vars(part) for part in module.modules()])
