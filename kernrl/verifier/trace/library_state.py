"""Whether the modules, classes and functions that were there before a candidate are what they were.

All of them are looked at after each candidate, some hundred thousand names in a forked child. So memory is read rather than
objects: whoever takes a reference to an object writes its count, which copies the page that it lies in. A dict has a tag that
is another after each change, and a function's code and defaults are three pointers. Where this Python has neither, the names
themselves are compared.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import types
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from triton.runtime.jit import JITFunction

_WORD = ctypes.sizeof(ctypes.c_void_p)
_TAG = 3 * _WORD
"""Where a dict's tag lies: after the object's head and the number of its keys."""
_CODE = 6 * _WORD
"""Where the pointer to a function's code lies, followed by those to its defaults and to the defaults of its keywords."""
_CALLED = (types.FunctionType, types.BuiltinFunctionType, type, property, classmethod, staticmethod, types.MethodDescriptorType)
"""What others call. The data of a module is its own affair, and so is a new name."""


class LibraryState:
    """What the modules held that were loaded when this was made."""

    def __init__(self) -> None:
        # whoever patches what records it forges a plan, and that must not matter
        self._modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] != "kernrl"}
        self._kernels: list[tuple[JITFunction[Any], str]] = []
        self._table = sys.modules
        self._names = list(_namespaces(self._modules))
        self._tags = _Words([id(one.now) + _TAG for one in self._names], 1) if _dicts_have_tags() else None
        for one in self._names:
            self._kernels += [(value, value.src) for value in one.before.values() if type(value) is JITFunction]
        found = {id(value): value for one in self._names for value in one.before.values() if type(value) is types.FunctionType}
        self._functions = [(f, _parts(f), dict(f.__kwdefaults__ or {})) for f in found.values()]
        self._code = _Words([address + _CODE for address in found], 3) if _code_is_where_it_was() else None
        keywords = [id(f.__kwdefaults__) + _TAG if f.__kwdefaults__ else 0 for f in found.values()]
        self._keywords = _Words(keywords, 1) if self._tags else None
        self._table_tag = self._tag_of_table()

    def add_module(self, name: str, module: types.ModuleType) -> None:
        """Put a candidate's module into `sys.modules`; what is known of the others stays known."""
        known = self._all_in_place()
        sys.modules[name] = module
        if known:
            self._table_tag = self._tag_of_table()

    def _tag_of_table(self) -> bytes:
        return ctypes.string_at(id(self._table) + _TAG, _WORD) if self._tags else b""

    def _all_in_place(self) -> bool:
        """Whether nothing was put into `sys.modules` but by `add_module`. To look at each of them takes 10 ms."""
        return bool(self._tags) and sys.modules is self._table and self._tag_of_table() == self._table_tag

    def replaced(self) -> str | None:
        """The name of something that is replaced, or of a function whose code or defaults are; None if all is as it was."""
        for name, module in () if self._all_in_place() else self._modules.items():
            if sys.modules.get(name) is not module:
                return f"sys.modules[{name!r}]"
        for i in self._tags.changed() if self._tags else range(len(self._names)):
            if found := self._names[i].replaced():
                return found
        for kernel, source in self._kernels:
            if kernel.src != source:
                return f"the source of {kernel.__name__}"
        looked_at = range(len(self._functions))
        for i in self._code.changed() if self._code else looked_at:
            function, before, _ = self._functions[i]
            if any(now is not then for now, then in zip(_parts(function), before, strict=True)):
                return f"the code or the defaults of {function.__module__}.{function.__qualname__}"
        for i in self._keywords.changed() if self._keywords else looked_at:
            function, _, before = self._functions[i]
            if (function.__kwdefaults__ or {}) != before:
                return f"the defaults of {function.__module__}.{function.__qualname__}"
        return None


@dataclass(frozen=True, slots=True)
class _Names:
    """The namespace of a module or a class, now and as it was."""

    place: str
    now: dict[str, Any]
    before: Mapping[str, Any]

    def replaced(self) -> str | None:
        for name, value in self.before.items():
            if isinstance(value, _CALLED) and self.now.get(name) is not value:
                return f"{self.place}.{name}"
        return None


class _Words:
    """Words of memory at many addresses, as they were; 0 is no address."""

    def __init__(self, addresses: Iterable[int], each: int) -> None:
        places = np.fromiter(addresses, np.uint64)
        known = places[places > 0]
        self._first, last = (int(known.min()), int(known.max())) if known.size else (0, 0)
        # as an array of all that lies between, of which only these words are read
        self._count = (last - self._first) // _WORD + each
        offsets = (known[:, None] - np.uint64(self._first)) // _WORD + np.arange(each, dtype=np.uint64)
        self._which, self._offsets = np.flatnonzero(places), offsets.astype(np.int64)
        self._before = self._read()

    def _read(self) -> Any:
        between: Any = (ctypes.c_uint64 * self._count).from_address(self._first)
        return np.frombuffer(between, np.uint64)[self._offsets]

    def changed(self) -> list[int]:
        """Which of them are not what they were."""
        return self._which[(self._read() != self._before).any(1)].tolist() if len(self._which) else []


def _parts(function: types.FunctionType) -> tuple[Any, Any, Any]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _namespaces(modules: Mapping[str, Any]) -> Iterator[_Names]:
    """Those of the modules, and of the classes that they name."""
    seen: set[int] = set()
    for name, module in modules.items():
        if not isinstance(module, types.ModuleType):
            continue
        yield _Names(name, vars(module), dict(vars(module)))
        for value in list(vars(module).values()):
            if issubclass(type(value), type) and id(value) not in seen:
                seen.add(id(value))
                # `vars` shows a class's names, and has no tag
                for inside in (one for one in gc.get_referents(vars(value)) if type(one) is dict):
                    yield _Names(f"{value.__module__}.{value.__qualname__}", inside, dict(inside))


def _dicts_have_tags() -> bool:
    names = {"a": 1}
    before = ctypes.string_at(id(names) + _TAG, _WORD)
    names["a"] = 2
    return ctypes.string_at(id(names) + _TAG, _WORD) != before


def _code_is_where_it_was() -> bool:
    def sample(a: int = 1, *, b: int = 2) -> None: ...

    there = ctypes.string_at(id(sample) + _CODE, 3 * _WORD)
    return there == array("Q", map(id, _parts(sample))).tobytes()
