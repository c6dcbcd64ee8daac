"""How a program that is as good as eager under a 16-bit policy may round: in the same places, to numbers beside eager's.

Each op's result is rounded to 16 bits on a grid of its own, `round(c · y) / c` with a random c. It is then off by a rounding,
as eager's is, but equal numbers stay equal, as they do in every program: independent noise would make deviations in rows that
have none, and accept whatever a norm makes of those.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base.compat import called_directly


@called_directly
class OtherRoundings(TorchDispatchMode):
    """Runs a float32 reference with results rounded to `dtype`, on other grids each time."""

    def __init__(self, dtype: torch.dtype, rounds: Callable[[Any], bool]):
        """`rounds` says whether an operator's result is rounded at all."""
        super().__init__()
        self._dtype, self._rounds = dtype, rounds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._rounds(func):
            for y in result if isinstance(result, tuple) else (result,):
                if isinstance(y, Tensor) and y.dtype == torch.float32:
                    factor = random.uniform(1.0, 2.0)
                    y.mul_(factor).copy_(y.to(self._dtype)).div_(factor)
        return result
