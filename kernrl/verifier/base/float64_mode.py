"""Runs a module that is written for float32 in float64: the true result, against which others are judged."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base.precision import COMPUTE_DTYPE


def narrow_dtypes(precision: str) -> frozenset[torch.dtype]:
    """The dtypes that a float64 run replaces by float64: float32, and the policy's own. Others are there to round."""
    return frozenset((torch.float32, COMPUTE_DTYPE[precision]))


def widened_call(
    func: Any, args: Any, kwargs: Any, narrow: frozenset[torch.dtype], wide: torch.dtype = torch.float64
) -> tuple[list[Any], dict[str, Any]]:
    """A call's arguments with `wide` for what is narrow: a dtype that is named, as by `x.float()`, and tensors that it reads.

    Tensors that it writes to stay, and so do those of views, which are other names of the same memory.
    """
    if isinstance(kwargs.get("dtype"), torch.dtype):
        kwargs = {**kwargs, "dtype": _wide_dtype(kwargs["dtype"], narrow, wide)}
    if func.is_view:
        return list(args), kwargs
    written = written_arguments(func)
    read = {name: value if name in written else _widened(value, narrow, wide) for name, value in kwargs.items()}
    return [value if i in written else _widened(value, narrow, wide) for i, value in enumerate(args)], read


@cache
def written_arguments(func: Any) -> frozenset[int | str]:
    """Positions and names of the arguments that an op writes to."""
    found = [(i, a.name) for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return frozenset(key for pair in found for key in pair)


def _wide_dtype(dtype: torch.dtype, narrow: frozenset[torch.dtype], wide: torch.dtype) -> torch.dtype:
    """`wide` for what is narrow, its complex numbers for complex ones of what is narrow."""
    if dtype.is_complex:
        return wide.to_complex() if dtype.to_real() in narrow else dtype
    return wide if dtype in narrow else dtype


def _widened(value: Any, narrow: frozenset[torch.dtype], wide: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(_wide_dtype(value.dtype, narrow, wide))
    return [_widened(item, narrow, wide) for item in value] if isinstance(value, (list, tuple)) else value


class Float64Mode(TorchDispatchMode):
    """Within, ops compute in float64 what a policy computes in its own dtype, also where that is named, as by `x.float()`."""

    def __init__(self, precision: str):
        super().__init__()
        self._narrow = narrow_dtypes(precision)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = widened_call(func, args, kwargs or {}, self._narrow)
        return func(*args, **kwargs)
