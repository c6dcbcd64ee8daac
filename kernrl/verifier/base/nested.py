"""How tensors nest in what a module takes and returns: lists, tuples, dicts and dataclasses. One answer for trace and judge."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def named_parts(value: Any) -> Mapping[str, Any] | None:
    """What a dict or a dataclass instance holds, by name; None for anything else.

    Fields of a dataclass that are None count as absent, as they do in the output classes of transformers.
    """
    if isinstance(value, dict):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: part for name, part in fields.items() if part is not None}
    return None


def flatten(value: Any) -> list[Any]:
    """The leaves of nested lists, tuples, dicts and dataclasses, in order."""
    named = named_parts(value)
    if named is not None:
        value = list(named.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flatten(item)]
    return [value]


def rebuild(value: Any, leaves: list[Any]) -> Any:
    """`value` with its leaves replaced, in order, by `leaves` (consumed)."""
    named = named_parts(value)
    if named is not None:
        parts = {name: rebuild(part, leaves) for name, part in named.items()}
        if isinstance(value, dict):
            return parts
        made = copy.copy(value)
        for name, part in parts.items():
            object.__setattr__(made, name, part)  # a frozen dataclass, too
        return made
    if isinstance(value, (list, tuple)):
        items = [rebuild(v, leaves) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return leaves.pop(0)


def nesting(value: Any) -> str:
    """How tensors are nested, such as `(tensor, {a: tensor})`.

    Lists and tuples count as the same, and so do a dict and a dataclass with the same names.
    """
    if isinstance(value, Tensor):
        return "tensor"
    named = named_parts(value)
    if named is not None:
        return "{" + ", ".join(f"{name}: {nesting(part)}" for name, part in named.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(nesting(part) for part in value) + ")"
    return type(value).__name__
