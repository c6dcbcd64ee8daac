"""Tensors of one element whose number is known: a scale kept as a buffer is the number that the author wrote."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder


class Scalar:
    """A tensor of one element whose number is known: arithmetic takes the number, any other op the tensor."""

    def __init__(self, number: bool | int | float, shape: tuple[int, ...], parameter: Callable[[], str] | None = None) -> None:
        self.number, self.shape, self.parameter = number, shape, parameter

    def as_tensor(self) -> Tensor:
        """The tensor itself."""
        return torch.tensor(self.number).reshape(self.shape)

    def tensor(self, b: Builder) -> str:
        """The name of a value that holds it: the module's, or one that is made."""
        if self.parameter:
            return self.parameter()
        dtype = "bool" if isinstance(self.number, bool) else "int64" if isinstance(self.number, int) else "float32"
        return b.add("full", self.number, shape=self.shape, dtype=dtype)


def computed(target: torch._ops.OpOverload, arguments: dict[str, Any]) -> Scalar | None:
    """The number that a call makes of known numbers alone."""
    given = [item for item in arguments.values() if isinstance(item, Scalar)]
    if not given or any(isinstance(item, str | list) for item in arguments.values()):
        return None
    made = {k: v.as_tensor() if isinstance(v, Scalar) else v for k, v in arguments.items()}
    flags = {a.name: a.kwarg_only for a in target._schema.arguments}
    positional = [v for name, v in made.items() if not flags[name]]
    out = target(*positional, **{name: v for name, v in made.items() if flags[name]})
    return Scalar(as_written(out), tuple(out.shape)) if isinstance(out, Tensor) and not out.is_complex() else None


def real(tensor: Any) -> Tensor | None:
    """The numbers of a small constant, which a fake tensor may keep."""
    kept = getattr(tensor, "constant", None) if type(tensor).__name__ == "FakeTensor" else tensor
    return kept if isinstance(kept, Tensor) and kept.numel() <= 4096 else None


def as_written(number: Tensor) -> bool | int | float:
    """The number that an author wrote: 0.1, where float32 holds 0.10000000149."""
    value = number.detach().reshape(()).item()
    if number.dtype != torch.float32 or not math.isfinite(value):
        return value
    short = float(f"{value:.7g}")
    return short if torch.tensor(short).item() == value else value
