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

from kernrl.verifier.trace.object_state import inside, is_library, of_process, own_state
from kernrl.verifier.trace.recorder import Untraceable

_MOST = 100_000
"""Objects looked at; a list of plain values is one."""

_DEEPEST = 64
"""How far into one another objects may nest. Both limits refuse: where nobody looks, a count can hide."""

AHEAD = 1_000_003
"""How far counts are set ahead, to see whether anything depends on them."""

_NOTHING = object()
_PLAIN = (int, float, complex, str, bytes, bool, types.NoneType)
_BUILTIN_ITERATORS = tuple(type(iter(one)) for one in (range(0), [], (), {}, {}.items(), set(), ""))
_ITERATORS = (itertools.count, itertools.repeat, itertools.cycle, types.GeneratorType, *_BUILTIN_ITERATORS)
_LOTS = ("_generator", "mtrand", "bit_generator", "_mt19937", "_pcg64", "_philox", "_sfc64")
_NUMPY = frozenset(("numpy", *(f"numpy.random.{name}" for name in _LOTS)))
_NO_STATE = frozenset(("__builtins__", "__annotations__", "__dict__", "__weakref__", "__spec__", "__loader__"))
_CONTAINERS = (dict, list, tuple, set, frozenset)
_LATER = frozenset(("__del__",))
_COPYING = frozenset(("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"))

_libraries: set[int] = set()
"""Namespaces (by id) of the modules that were there before the candidate, whatever its functions say where they are from."""


def know_libraries() -> None:
    """Once, before candidates: functions of the modules that are loaded now are none of theirs."""
    _libraries.update(id(vars(module)) for module in list(sys.modules.values()) if isinstance(module, types.ModuleType))


def is_own(cls: type, home: str) -> bool:
    """Whether a class is the candidate's: its module is `home`, or the module that it names has no such class."""
    if cls.__module__ == home:
        return True
    found: Any = sys.modules.get(cls.__module__)
    for step in cls.__qualname__.split("."):
        found = vars(found).get(step) if isinstance(found, type | types.ModuleType) else None
    return found is not cls and not is_library(cls)


def is_own_function(function: types.FunctionType, home: str) -> bool:
    """Whether a function is the candidate's, wherever it says that it is from."""
    return function.__module__ == home or (bool(_libraries) and id(function.__globals__) not in _libraries)


def remembered(model: torch.nn.Module) -> dict[str, Any]:
    """Path → number, text or length, for all that an object and the module of its class keep, and for the process.

    Raises Untraceable if that is too much to be looked through."""
    return dict(of_process()) | kept(model)


def kept(model: torch.nn.Module) -> dict[str, Any]:
    """The same, without the process."""
    home = sys.modules.get(type(model).__module__)
    return dict(_Walk(type(model).__module__).walk(model, vars(home) if home else {}))


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


def set_names_ahead(model: torch.nn.Module, paths: Sequence[str]) -> list[str]:
    """Set the counts among `paths` far ahead that are names of the module's file or attributes of its class; those left."""
    cls, home = type(model), sys.modules.get(type(model).__module__)
    left = []
    for path in paths:
        owner, _, name = path.rpartition(".")
        place = cls if owner == cls.__name__ else home if not owner else None
        value = vars(place).get(name) if place else None
        if type(value) not in (int, itertools.count):
            left.append(path)
        else:
            setattr(place, name, value + AHEAD if isinstance(value, int) else itertools.count(AHEAD))
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
        self._home, self._seen, self._depth = home, set(_libraries), 0

    def walk(self, model: torch.nn.Module, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        self._seen.add(id(names))  # kernels hold it, too
        yield from self._of("self", model)
        yield from self._names("", names)

    def _names(self, path: str, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in list(names.items()):
            if name not in _NO_STATE:
                yield from self._of(f"{path}.{name}" if path else name, value)

    def _of(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if type(value) in _PLAIN:
            yield path, _exact(value)
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if len(self._seen) > _MOST + len(_libraries) or self._depth >= _DEEPEST:
            raise Untraceable(
                "the code keeps so many objects, or such deeply nested ones, that a count could hide among them: keep less"
            )
        self._depth += 1
        yield from self._inside(path, value)
        self._depth -= 1

    def _inside(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            yield f"{path}<shape>", tuple(value.shape)
            yield from self._names(path, vars(value))
            return
        if base := next((one for one in (int, float, complex, str, bytes) if issubclass(kind, one)), None):
            yield path, base.__repr__(value)
        if kind in _ITERATORS:
            yield path, _place(value)
            if kind is types.GeneratorType and value.gi_frame is not None:
                yield from self._names(path, value.gi_frame.f_locals)
        elif issubclass(kind, _CONTAINERS):
            yield from self._container(path, value)
            if kind not in _CONTAINERS:
                yield from self._attributes(path, value, self._is_own(kind))
        elif kind is types.FunctionType:
            yield from self._function(path, value)
        elif kind is types.MethodType:
            yield from self._of(path, value.__func__)
            yield from self._of(f"{path}<self>", value.__self__)
        elif kind is types.CellType:
            yield from self._cell(path, value)
        elif kind is property:
            for name in ("fget", "fset", "fdel"):
                yield from self._of(f"{path}<{name}>", getattr(value, name))
        elif kind is types.ModuleType:
            if value.__spec__ is None:  # one that the code has made
                yield from self._names(path, vars(value))
        elif issubclass(kind, type):
            yield from self._attributes(path, value, self._is_own(value))
        elif is_library(kind) or kind.__module__ in _NUMPY or kind is torch.Generator:
            yield from self._library(path, value)
        else:
            yield from self._attributes(path, value, self._is_own(kind))

    def _container(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Contents of a dict, list, tuple or set, under a path of its own for each."""
        kind: Any = next(one for one in _CONTAINERS if issubclass(type(value), one))
        yield f"{path}<len>", kind.__len__(value)
        items = list(kind.items(value) if kind is dict else kind.__iter__(value))
        if kind is dict:
            for i, (key, item) in enumerate(items):
                named = type(key) is str and key.isalnum()
                place = f"{path}.{key}" if named or (type(key) is str and key.isidentifier()) else f"{path}[{_key(key, i)}]"
                if type(key) not in _PLAIN:
                    yield from self._of(f"{place}<key>", key)
                yield from self._of(place, item)
        elif all(type(item) in _PLAIN for item in items):
            found = [_exact(item) for item in items]
            yield f"{path}<items>", found if kind in (list, tuple) else frozenset(found)
        else:
            if kind in (set, frozenset):
                items.sort(key=lambda item: type(item) in _PLAIN)  # objects first, which stay in their order
                yield f"{path}<items>", frozenset(_exact(item) for item in items if type(item) in _PLAIN)
                items = [item for item in items if type(item) not in _PLAIN]
            for i, item in enumerate(items):
                yield from self._of(f"{path}.{i}", item)

    def _function(self, path: str, value: types.FunctionType) -> Iterator[tuple[str, Any]]:
        if not is_own_function(value, self._home):
            return
        yield f"{path}<code>", id(value.__code__)
        yield f"{path}<name>", (value.__name__, value.__qualname__, value.__doc__)
        for i, part in enumerate((value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__)):
            yield from self._of(f"{path}.{i}", part)

    def _cell(self, path: str, value: types.CellType) -> Iterator[tuple[str, Any]]:
        try:
            inside = value.cell_contents
        except ValueError:
            return
        yield from self._of(path, inside)

    def _is_own(self, cls: type) -> bool:
        return is_own(cls, self._home)

    def _attributes(self, path: str, value: Any, own: bool) -> Iterator[tuple[str, Any]]:
        is_class = issubclass(type(value), type)
        try:
            names = (type if is_class else object).__getattribute__(value, "__dict__")
        except AttributeError:
            names = {}
        if not own and not issubclass(type(value), torch.nn.Module):
            yield from self._on_library(path, names)
            return
        if not is_class:
            self._check_methods(path, type(value))
            yield f"{path}<class>", id(type(value))
            yield from self._slots(path, value)
            if not issubclass(type(value), (torch.nn.Module, *_CONTAINERS)) and type(value).__base__ is not object:
                yield from self._library(path, value)
        yield from self._names(path, names)

    def _check_methods(self, path: str, kind: type) -> None:
        """What is done when an object dies, or when the module that holds it is copied, is not seen in a trace."""
        taken = _LATER if not path.startswith("self.") or issubclass(kind, torch.nn.Module) else _LATER | _COPYING
        for cls in kind.__mro__:
            if self._is_own(cls) and (found := sorted(taken & vars(cls).keys())):
                raise Untraceable(
                    f"{kind.__name__} has a method {found[0]} of its own, which is not traced: do the work in forward()"
                )

    def _slots(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        for cls in type(value).__mro__:
            for name, slot in vars(cls).items() if self._is_own(cls) else ():
                if type(slot) is types.MemberDescriptorType:
                    try:
                        yield from self._of(f"{path}.{name}", slot.__get__(value))
                    except AttributeError:
                        continue

    def _on_library(self, path: str, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """What of a candidate may hang on an object of another library, such as a count on a kernel: values and containers."""
        for name, item in list(names.items()):
            if type(item) in _PLAIN:
                yield f"{path}.{name}", _exact(item)
            elif type(item) in _CONTAINERS and id(item) not in self._seen:
                self._seen.add(id(item))
                yield f"{path}.{name}<len>", len(item)
                inside = item.items() if type(item) is dict else enumerate(item)
                yield from self._on_library(f"{path}.{name}", {_key(k, i): v for i, (k, v) in enumerate(inside)})
            elif self._is_own(type(item)) or type(item) in _WALKED or type(item).__module__.startswith("triton.runtime."):
                yield from self._of(f"{path}.{name}", item)

    def _library(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        for i, part in enumerate(own_state(value)):
            yield f"{path}<{i}>", part
        for i, item in enumerate(inside(value)):
            yield from self._of(f"{path}.{i}", item)


def _exact(value: Any) -> Any:
    """A plain value as it is compared: 0, 0.0, -0.0 and False are four, and NaN is itself."""
    return type(value).__name__, repr(value) if isinstance(value, float | complex) else value


def _key(key: Any, place: int) -> str:
    """A name for a key that no other key of its dict has; one that holds objects goes by its place."""
    plain = type(key) in _PLAIN or (type(key) is tuple and all(type(part) in _PLAIN for part in key))
    return f"{key!r}" if plain else f"#{place}"


def _place(value: Any) -> str:
    """How far an iterator has come."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        kept = {**(frame.f_locals if frame else {}), "yield from": value.gi_yieldfrom}
        plain = {name: one if type(one) in _PLAIN else _place(one) for name, one in kept.items() if type(one) in _KEPT}
        return f"{frame.f_lasti if frame else 'ended'} {plain}"
    return str(operator.length_hint(value)) if isinstance(value, _BUILTIN_ITERATORS) else repr(value)


_WALKED = (types.FunctionType, types.MethodType, property)
_KEPT = frozenset((*_PLAIN, *_ITERATORS))
