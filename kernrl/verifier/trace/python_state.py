"""What a module remembers in Python between two calls: counts, flags and lists, wherever they are kept.

Two calls of the same shapes must leave a module as they found it, or a later call may do something else. A number that
modules keep as an attribute may count, as long as nothing depends on it: it is set far ahead before another call. Nothing of a
candidate is called to find out what it keeps.
"""

from __future__ import annotations

import itertools
import operator
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from triton.runtime.jit import JITFunction

_MOST = 20_000
"""Objects looked at."""

AHEAD = 1_000_003
"""How far counts are set ahead, to see whether anything depends on them."""

_NOTHING = object()
_PLAIN = (int, float, complex, str, bytes, bool, types.NoneType)
_BUILTIN_ITERATORS = tuple(type(iter(one)) for one in (range(0), [], (), {}, {}.items(), set(), ""))
_ITERATORS = (itertools.count, itertools.repeat, itertools.cycle, types.GeneratorType, *_BUILTIN_ITERATORS)


def sources(module: types.ModuleType | None) -> dict[str, str]:
    """The text of each kernel in a module's namespace."""
    found = vars(module) if module else {}
    return {name: value.src for name, value in found.items() if isinstance(value, JITFunction)}


def remembered(model: torch.nn.Module) -> dict[str, Any]:
    """Path → number, text or length, for all that an object and the module of its class keep."""
    home = sys.modules.get(type(model).__module__)
    return dict(itertools.islice(_Walk(type(model).__module__).walk(model, vars(home) if home else {}), _MOST))


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The paths whose values differ."""
    return [path for path in {**before, **after} if before.get(path, _NOTHING) != after.get(path, _NOTHING)]


def set_ahead(model: torch.nn.Module, paths: Sequence[str]) -> list[str]:
    """Set the counts among `paths` that modules keep as attributes far ahead; the paths that are none of these."""
    left = list(paths)
    for name, part in model.named_modules():
        here = "".join(f"._modules.{step}" for step in name.split(".") if step)
        for key, value in list(vars(part).items()):
            path = f"self{here}.{key}"
            if path in left and type(value) in (int, float):
                vars(part)[key] = value + AHEAD
                left.remove(path)
    return left


class _Walk:
    """Through what is reachable from a candidate's object and its module; no further than into its own classes."""

    def __init__(self, home: str) -> None:
        self._home, self._seen = home, set[int]()

    def walk(self, model: torch.nn.Module, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        yield from self._of("self", model)
        for name, value in list(names.items()):
            if not name.startswith("__"):
                yield from self._of(name, value)

    def _of(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        kind = type(value)
        if kind in _PLAIN:
            yield path, repr(value) if kind is float else value  # NaN differs from itself
            return
        if id(value) in self._seen or path.count(".") > 12:
            return
        self._seen.add(id(value))
        if issubclass(kind, torch.Tensor):
            return
        if kind in _ITERATORS:
            yield path, _place(value)
        elif issubclass(kind, dict):
            yield f"{path}.len", dict.__len__(value)
            for key, item in list(dict.items(value)):
                yield from self._of(f"{path}.{key if type(key) in _PLAIN else type(key).__name__}", item)
        elif issubclass(kind, list | tuple):
            yield f"{path}.len", (list if issubclass(kind, list) else tuple).__len__(value)
            for i, item in enumerate((list if issubclass(kind, list) else tuple).__iter__(value)):
                yield from self._of(f"{path}.{i}", item)
        elif issubclass(kind, set | frozenset):
            yield f"{path}.len", (set if issubclass(kind, set) else frozenset).__len__(value)
        elif kind is types.FunctionType:
            yield from self._function(path, value)
        elif kind is types.MethodType:
            yield from self._of(path, value.__func__)
        elif kind is types.CellType:
            yield from self._cell(path, value)
        elif kind is property:
            yield from self._of(path, value.fget)
        elif issubclass(kind, type):
            yield from self._attributes(path, value, value.__module__)
        else:
            yield from self._attributes(path, value, kind.__module__)

    def _function(self, path: str, value: types.FunctionType) -> Iterator[tuple[str, Any]]:
        if value.__module__ != self._home:
            return
        yield f"{path}.code", id(value.__code__)
        for i, part in enumerate((value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__)):
            yield from self._of(f"{path}.{i}", part)

    def _cell(self, path: str, value: types.CellType) -> Iterator[tuple[str, Any]]:
        try:
            inside = value.cell_contents
        except ValueError:
            return
        yield from self._of(path, inside)

    def _attributes(self, path: str, value: Any, home: str) -> Iterator[tuple[str, Any]]:
        if home != self._home and not issubclass(type(value), torch.nn.Module):
            return
        try:
            names = (type if issubclass(type(value), type) else object).__getattribute__(value, "__dict__")
        except AttributeError:
            return
        if not issubclass(type(value), type):
            yield f"{path}.class", id(type(value))
        for name, item in list(names.items()):
            if not name.startswith("__"):
                yield from self._of(f"{path}.{name}", item)


def _place(value: Any) -> str:
    """How far an iterator has come."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        kept = {**(frame.f_locals if frame else {}), "yield from": value.gi_yieldfrom}
        plain = {name: one if type(one) in _PLAIN else _place(one) for name, one in kept.items() if type(one) in _KEPT}
        return f"{frame.f_lasti if frame else 'ended'} {plain}"
    return str(operator.length_hint(value)) if isinstance(value, _BUILTIN_ITERATORS) else repr(value)


_KEPT = frozenset((*_PLAIN, *_ITERATORS))
