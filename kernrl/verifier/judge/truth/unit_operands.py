"""Operands that modelled rounding has moved out of [0, 1], put back: there PyTorch raises, and on a GPU ends the process."""

from __future__ import annotations

from typing import Any

_OPERANDS = {"binary_cross_entropy": 2}
"""Operators that take numbers from 0 to 1 alone → how many of their first arguments those are."""


def in_range(name: str, args: Any) -> Any:
    """The arguments of an operator, those within its range that have to be."""
    count = _OPERANDS.get(name, 0)
    return (*(x.clamp(0.0, 1.0) for x in args[:count]), *args[count:]) if count else args
