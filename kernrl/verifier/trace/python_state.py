"""What a module remembers in Python between two calls: counts, flags and lists, wherever they are kept.

Two calls of the same shapes must leave a module as they found it, or a later call may do something else. A number that
modules keep as an attribute may count, as long as nothing depends on it: it is set far ahead before another call. Nothing of a
candidate is called to find out what it keeps.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from kernrl.verifier.trace.object_state import inside, is_library, of_process, own_state

_MOST = 20_000
"""Objects looked at."""

AHEAD = 1_000_003
"""How far counts are set ahead, to see whether anything depends on them."""

_NOTHING = object()
_PLAIN = (int, float, complex, str, bytes, bool, types.NoneType)
_BUILTIN_ITERATORS = tuple(type(iter(one)) for one in (range(0), [], (), {}, {}.items(), set(), ""))
_ITERATORS = (itertools.count, itertools.repeat, itertools.cycle, types.GeneratorType, *_BUILTIN_ITERATORS)
_LOTS = ("_generator", "mtrand", "bit_generator", "_mt19937", "_pcg64", "_philox", "_sfc64")
_NUMPY = frozenset(("numpy", *(f"numpy.random.{name}" for name in _LOTS)))
_NO_STATE = frozenset(("__builtins__", "__annotations__", "__dict__", "__weakref__", "__spec__", "__loader__"))


def sources(module: types.ModuleType | None) -> dict[str, str]:
    """The text of each kernel in a module's namespace."""
    found = vars(module) if module else {}
    return {name: value.src for name, value in found.items() if isinstance(value, JITFunction)}


def remembered(model: torch.nn.Module) -> dict[str, Any]:
    """Path → number, text or length, for all that an object and the module of its class keep, and for the process."""
    home = sys.modules.get(type(model).__module__)
    walk = _Walk(type(model).__module__).walk(model, vars(home) if home else {})
    return dict(of_process()) | dict(itertools.islice(walk, _MOST))


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The paths whose values differ."""
    return [path for path in {**before, **after} if before.get(path, _NOTHING) != after.get(path, _NOTHING)]


def set_ahead(model: torch.nn.Module, paths: Sequence[str], answer: bool | None = None) -> list[str]:
    """Set the counts among `paths` that modules keep as attributes far ahead; the paths that are none of these.

    With an answer, whole numbers become counts that give it to every comparison: so what strikes at one number, or at every
    seventh, strikes.
    """
    left = list(paths)
    for name, part in model.named_modules():
        here = "".join(f"._modules.{step}" for step in name.split(".") if step)
        for key, value in list(vars(part).items()):
            path = f"self{here}.{key}"
            if path in left and isinstance(value, int | float) and type(value) is not bool:
                ahead = value + AHEAD
                vars(part)[key] = ahead if answer is None or isinstance(value, float) else _answering(answer)(ahead)
                left.remove(path)
    return left


@functools.cache
def _answering(answer: bool) -> type[int]:
    """Whole numbers that give one answer to every comparison, and whose sums, products and remainders do as well."""

    def says(self: int, other: object = None) -> bool:
        return answer

    def computed(name: str) -> Any:
        operation = getattr(int, name)

        def compute(self: int, *others: Any) -> Any:
            found = operation(self, *others)
            return kind(found) if isinstance(found, int) else found

        return compute

    compared = dict.fromkeys(("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__"), says)
    names = ("add", "radd", "sub", "rsub", "mul", "rmul", "mod", "rmod", "floordiv", "rfloordiv", "and", "or", "xor", "rshift")
    arithmetic = {f"__{name}__": computed(f"__{name}__") for name in names}
    kind = type("Count", (int,), {**compared, **arithmetic, "__hash__": int.__hash__})
    return kind


class _Walk:
    """Through what is reachable from a candidate's object and its module; no further than into its own classes."""

    def __init__(self, home: str) -> None:
        self._home, self._seen = home, set[int]()

    def walk(self, model: torch.nn.Module, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        yield from self._of("self", model)
        yield from self._names("", names)

    def _names(self, path: str, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in list(names.items()):
            if name not in _NO_STATE and (not name.startswith("__") or type(value) in _PLAIN):
                yield from self._of(f"{path}.{name}" if path else name, value)

    def _of(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        kind = type(value)
        if kind in _PLAIN:
            yield path, repr(value) if kind is float else value  # NaN differs from itself
            return
        if id(value) in self._seen or path.count(".") > 12:
            return
        self._seen.add(id(value))
        if issubclass(kind, torch.Tensor):
            yield f"{path}.shape", tuple(value.shape)
            yield from self._plain(path, vars(value))
            return
        if base := next((one for one in (int, float, complex, str, bytes) if issubclass(kind, one)), None):
            yield path, base.__repr__(value)
        if kind in _ITERATORS:
            yield path, _place(value)
            if kind is types.GeneratorType and value.gi_frame is not None:
                yield from self._names(path, value.gi_frame.f_locals)
        elif issubclass(kind, dict):
            yield f"{path}.len", dict.__len__(value)
            for key, item in list(dict.items(value)):
                yield from self._of(f"{path}.{key if type(key) in _PLAIN else type(key).__name__}", item)
        elif issubclass(kind, list | tuple):
            yield f"{path}.len", (list if issubclass(kind, list) else tuple).__len__(value)
            for i, item in enumerate((list if issubclass(kind, list) else tuple).__iter__(value)):
                yield from self._of(f"{path}.{i}", item)
        elif issubclass(kind, set | frozenset):
            items = (set if issubclass(kind, set) else frozenset).__iter__(value)
            yield f"{path}.items", sorted(repr(one) if type(one) in _PLAIN else type(one).__name__ for one in items)
        elif kind is types.FunctionType:
            yield from self._function(path, value)
        elif kind is types.MethodType:
            yield from self._of(path, value.__func__)
        elif kind is types.CellType:
            yield from self._cell(path, value)
        elif kind is property:
            yield from self._of(path, value.fget)
        elif kind is types.ModuleType:
            if value.__spec__ is None:  # one that the code has made
                yield from self._names(path, vars(value))
        elif is_library(kind) or kind.__module__ in _NUMPY or kind is torch.Generator:
            yield from self._library(path, value)
        elif issubclass(kind, type):
            yield from self._attributes(path, value, value.__module__)
        else:
            yield from self._attributes(path, value, kind.__module__)

    def _function(self, path: str, value: types.FunctionType) -> Iterator[tuple[str, Any]]:
        if value.__module__ != self._home:
            return
        yield f"{path}.code", id(value.__code__)
        yield f"{path}.name", (value.__name__, value.__qualname__, value.__doc__)
        for i, part in enumerate((value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__)):
            yield from self._of(f"{path}.{i}", part)

    def _cell(self, path: str, value: types.CellType) -> Iterator[tuple[str, Any]]:
        try:
            inside = value.cell_contents
        except ValueError:
            return
        yield from self._of(path, inside)

    def _attributes(self, path: str, value: Any, home: str) -> Iterator[tuple[str, Any]]:
        is_class = issubclass(type(value), type)
        try:
            names = (type if is_class else object).__getattribute__(value, "__dict__")
        except AttributeError:
            names = {}
        if home != self._home and not issubclass(type(value), torch.nn.Module):
            if not is_class:
                yield from self._plain(path, names)
            return
        if not is_class:
            yield f"{path}.class", id(type(value))
            yield from self._slots(path, value)
            if not issubclass(type(value), torch.nn.Module) and type(value).__base__ is not object:
                yield from self._library(path, value)
        yield from self._names(path, names)

    def _slots(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        for cls in type(value).__mro__:
            for name, slot in vars(cls).items() if cls.__module__ == self._home else ():
                if type(slot) is types.MemberDescriptorType:
                    try:
                        yield from self._of(f"{path}.{name}", slot.__get__(value))
                    except AttributeError:
                        continue

    @staticmethod
    def _plain(path: str, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Numbers and texts that hang on an object of another library, such as a count on a kernel."""
        for name, item in list(names.items()):
            if type(item) in _PLAIN:
                yield f"{path}.{name}", repr(item)

    def _library(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        for i, part in enumerate(own_state(value)):
            yield f"{path}<{i}>", part
        for i, item in enumerate(inside(value)):
            yield from self._of(f"{path}.{i}", item)


def _place(value: Any) -> str:
    """How far an iterator has come."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        kept = {**(frame.f_locals if frame else {}), "yield from": value.gi_yieldfrom}
        plain = {name: one if type(one) in _PLAIN else _place(one) for name, one in kept.items() if type(one) in _KEPT}
        return f"{frame.f_lasti if frame else 'ended'} {plain}"
    return str(operator.length_hint(value)) if isinstance(value, _BUILTIN_ITERATORS) else repr(value)


_KEPT = frozenset((*_PLAIN, *_ITERATORS))
