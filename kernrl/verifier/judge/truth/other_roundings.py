"""How a program that is as good as eager under a 16-bit policy may round: in the same places, to numbers beside eager's.

Each op's result is rounded to 16 bits on a grid of its own, `round(c · y) / c` with a random c. It is then off by a rounding,
as eager's is, but equal numbers stay equal, as they do in every program: independent noise would make deviations in rows that
have none, and accept whatever a norm makes of those. What 16 bits hold exactly, such as a whole number or half of an input, is
rounded by no program, and stays; and so do results that eager has in float32, since the reference asks for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base.compat import called_directly
from kernrl.verifier.base.float64_mode import widened_call
from kernrl.verifier.judge.truth.unit_operands import in_range

Rounded = tuple[Any, list[bool]]
"""An operator, and which of its results are rounded."""


def _results(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple) else (result,)


@called_directly
class EagerRoundings(TorchDispatchMode):
    """Notes what an eager run rounds to `dtype`, in order."""

    def __init__(self, dtype: torch.dtype, rounds: Callable[[Any], bool]):
        """`rounds` says whether an operator's result is rounded at all."""
        super().__init__()
        self._dtype, self._rounds = dtype, rounds
        self.noted: list[Rounded] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._rounds(func):
            self.noted.append((func, [isinstance(y, Tensor) and y.dtype == self._dtype for y in _results(result)]))
        return result


@called_directly
class OtherRoundings(TorchDispatchMode):
    """Runs a float32 reference with results rounded to `dtype`, on other grids each time."""

    def __init__(self, dtype: torch.dtype, rounds: Callable[[Any], bool], eager: Sequence[Rounded]):
        """`eager` is what `EagerRoundings` has noted with the same `rounds`."""
        super().__init__()
        self._dtype, self._rounds, self._eager = dtype, rounds, eager
        self._next: Iterator[Rounded] = iter(())

    def __enter__(self) -> OtherRoundings:
        self._next = iter(self._eager)  # a reference in slices is called several times
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # a reference that names the dtype, as by `x.to(torch.bfloat16)`, would mix it with float32
        args, kwargs = widened_call(func, args, kwargs or {}, frozenset((self._dtype,)), torch.float32)
        result = func(*in_range(func.overloadpacket.__name__, args), **kwargs)
        if self._rounds(func):
            results = _results(result)
            noted, rounded = next(self._next, (None, []))
            if noted is not func:  # a reference may do otherwise in another dtype
                rounded = [True] * len(results)
            for y, is_rounded in zip(results, rounded, strict=True):
                if is_rounded and isinstance(y, Tensor) and y.dtype == torch.float32:
                    self._round(y)
        return result

    def _round(self, y: Tensor) -> None:
        factor, exact = random.uniform(1.0, 2.0), y.to(self._dtype) == y
        moved = (y * factor).to(self._dtype).float().div_(factor)
        torch.where(exact, y, moved, out=y)
