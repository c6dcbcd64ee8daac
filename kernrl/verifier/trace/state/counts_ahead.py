"""Counts that a module keeps are set far ahead before another call, to see whether anything depends on them."""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch

from kernrl.verifier.trace.recorder import exact

_BITS = ((6, 12), (12, 20), (20, 31))
"""How far counts are set ahead, to see whether anything depends on them: once by a number of each of these lengths."""


def aheads() -> list[int]:
    """Numbers of calls to set counts ahead by, by chance: a module must not know between which of them it is seen."""
    return [int(2 ** random.SystemRandom().uniform(*bits)) for bits in _BITS]


def set_ahead(model: torch.nn.Module, paths: Sequence[str], ahead: int, answer: bool | None = None) -> list[str]:
    """Set the counts among `paths` that modules keep as attributes far ahead; the paths that are none of these.

    With an answer, they become counts that give it to every comparison: so what strikes at one number, or at every seventh,
    strikes.
    """
    left = list(paths)
    for name, part in model.named_modules():
        here = "".join(f"._modules.{step}" for step in name.split(".") if step)
        for key, value in list(vars(part).items()):
            path = f"self{here}.{key}"
            if path in left and isinstance(value, int | float) and type(value) is not bool:
                kind = float if isinstance(value, float) else int
                ahead_of_it = exact(value) + ahead
                vars(part)[key] = ahead_of_it if answer is None else _answering(kind, answer)(ahead_of_it)
                left.remove(path)
    return left


def set_names_ahead(model: torch.nn.Module, paths: Sequence[str], ahead: int) -> list[str]:
    """Set the counts among `paths` far ahead that are names of the module's file or attributes of its class; those left."""
    cls, home = type(model), sys.modules.get(type(model).__module__)
    left = []
    for path in paths:
        owner, _, name = path.rpartition(".")
        place = cls if owner in (cls.__name__, "self<class>.0") else home if not owner else None
        value = vars(place).get(name) if place else None
        if type(value) not in (int, itertools.count):
            left.append(path)
        else:
            setattr(place, name, value + ahead if isinstance(value, int) else itertools.count(ahead))
    return left


@functools.cache
def _answering(base: type[int] | type[float], answer: bool) -> type[Any]:
    """Numbers that give one answer to every comparison, and whose sums, products and remainders do as well."""

    def says(self: object, other: object = None) -> bool:
        return answer

    def computed(name: str) -> Any:
        operation = getattr(base, name)

        def compute(self: Any, *others: Any) -> Any:
            found = operation(self, *others)
            return kind(found) if isinstance(found, base) else found

        return compute

    compared = dict.fromkeys(("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__"), says)
    names = ("add", "radd", "sub", "rsub", "mul", "rmul", "mod", "rmod", "floordiv", "rfloordiv", "and", "or", "xor", "rshift")
    arithmetic = {f"__{name}__": computed(f"__{name}__") for name in names if hasattr(base, f"__{name}__")}
    kind = type("Count", (base,), {**compared, **arithmetic, "__hash__": base.__hash__})
    return kind
