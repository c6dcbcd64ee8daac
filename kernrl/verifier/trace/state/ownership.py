"""What is the candidate's and what was there before it, wherever classes and functions say that they are from."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

from kernrl.verifier.trace.state.object_state import is_library, made_in_c

libraries: dict[int, Any] = {}
"""Namespaces (by id) of the modules that were there before the candidate, and what a walk calls them."""
known_ids: dict[int, object] = {}
"""Classes, functions and their code (by id) that were there, too: what others say of themselves, such as a module's name, they
may say of their own accord."""
of_kernels: set[str] = set()
"""Attributes that Triton itself gives its kernels, and what belongs to these."""


def know_libraries() -> None:
    """Once, before candidates: what there is now is none of theirs."""
    names = [id(vars(module)) for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    libraries.update(zip(names, names, strict=True))
    gc.unfreeze()  # the process that this one is a fork of may have hidden its own; the fork server freezes them again
    for one in gc.get_objects():
        if issubclass(type(one), type | types.FunctionType):
            known_ids[id(one)] = one
        if str(type(one).__module__).startswith("triton.runtime."):
            of_kernels.update(getattr(one, "__dict__", ()))
        if type(one) is types.FunctionType:
            known_ids.update((id(code), code) for code in codes(one.__code__))


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions which it makes."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from codes(one)


def was_there(function: object) -> bool:
    """Whether a function of Python was there before the candidate."""
    return type(function) is types.FunctionType and id(function) in known_ids


def is_own(cls: type, home: str) -> bool:
    """Whether a class is the candidate's, wherever it says that it is from."""
    if cls.__module__ == home:
        return True
    if known_ids:
        return id(cls) not in known_ids and not made_in_c(cls)
    found: Any = sys.modules.get(cls.__module__)
    for step in cls.__qualname__.split("."):
        found = vars(found).get(step) if isinstance(found, type | types.ModuleType) else None
    return found is not cls and not is_library(cls)


def is_own_function(function: types.FunctionType, home: str) -> bool:
    """Whether a function is the candidate's, wherever it says that it is from."""
    known = id(function.__globals__) in libraries and id(function.__code__) in known_ids
    return function.__module__ == home or (bool(libraries) and not known)
