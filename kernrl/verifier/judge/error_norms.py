"""Figures of a large error, of some of its elements at a time, so that what is made on the way does not grow with it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

AT_ONCE = 1 << 24
"""Elements that are compared at a time: what is made of them, in float64, takes 128 MiB a tensor. Figures of larger outputs
are put together from their parts', which in a sum of squares is another order of rounding in float64, and else the same."""


def parts(*tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The same places of tensors of one shape, `AT_ONCE` elements or less at a time where they can be had without a copy."""
    given = [x for x in tensors if x is not None]
    if given[0].numel() <= AT_ONCE:
        yield tensors
        return
    if all(x.is_contiguous() for x in given):
        tensors = tuple(x if x is None else x.view(-1) for x in tensors)
        lines = AT_ONCE
    else:
        lines = max(1, AT_ONCE * given[0].shape[0] // given[0].numel())
    yield from zip(*(itertools.repeat(x) if x is None else x.split(lines) for x in tensors), strict=False)


def norms(errors: Iterable[tuple[Tensor, Tensor | None]], count: int) -> list[Tensor]:
    """[RMS, max, relative RMS] of a float64 error of `count` elements that comes in parts, each with its weights. No sync."""
    rms, largest, relative = zip(*(_norms_of_part(error, weights) for error, weights in errors), strict=True)
    root = math.sqrt(max(count, 1))
    return [_norm(rms) / root, functools.reduce(torch.maximum, largest), _norm(relative) / root]


def _norms_of_part(error: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(2-norm, max, 2-norm of the relative error)."""
    norm = torch.linalg.vector_norm(error)
    largest = torch.linalg.vector_norm(error, ord=math.inf) if error.numel() else norm
    return norm, largest, torch.linalg.vector_norm(error * weights) if weights is not None else norm.new_zeros(())


def _norm(norms: Sequence[Tensor]) -> Tensor:
    """The norm of the whole from those of its parts."""
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(list(norms)))
