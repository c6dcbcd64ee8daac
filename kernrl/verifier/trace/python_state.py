"""What a module remembers in Python between two calls: counts, flags and lists, wherever they are kept.

Two calls of the same shapes must leave a module as they found it, or a later call may do something else. A number that
modules keep as an attribute may count, as long as nothing depends on it: it is set far ahead before another call. Nothing of a
candidate is called to find out what it keeps.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import sys
import types
from collections.abc import Mapping, Sequence
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
_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)
_BUILTIN_ITERATORS = tuple(type(iter(one)) for one in (range(0), [], (), {}, {}.items(), set(), ""))
_LOTS = ("_generator", "mtrand", "bit_generator", "_mt19937", "_pcg64", "_philox", "_sfc64")
_NUMPY = frozenset(("numpy", *(f"numpy.random.{name}" for name in _LOTS)))
_NO_STATE = frozenset(("__builtins__", "__annotations__", "__dict__", "__weakref__", "__spec__", "__loader__"))
_CONTAINERS = (dict, list, tuple, set, frozenset)
# by id: a candidate's class may say that it equals any other
_PLAIN = frozenset(map(id, (*_NUMBERS_AND_TEXTS, bool, types.NoneType)))
_ITERATORS = frozenset(map(id, (itertools.count, itertools.repeat, itertools.cycle, types.GeneratorType, *_BUILTIN_ITERATORS)))
_HOLDERS = frozenset(map(id, _CONTAINERS))
_WALKED = frozenset(map(id, (types.FunctionType, types.MethodType, property)))
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
    return _Walk(type(model).__module__).walk(model, vars(home) if home else {})


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The paths whose values differ."""
    if before == after:
        return []
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
        self._found: dict[str, Any] = {}
        self._own: dict[int, tuple[type, bool]] = {}
        """Whether a class is the candidate's, by id; the class is kept, so that no other gets its id."""

    def walk(self, model: torch.nn.Module, names: Mapping[str, Any]) -> dict[str, Any]:
        self._seen.add(id(names))  # kernels hold it, too
        self._of("self", model)
        self._names("", names)
        return self._found

    def _names(self, path: str, names: Mapping[str, Any]) -> None:
        for name, value in list(names.items()):
            if name not in _NO_STATE:
                self._of(f"{path}.{name}" if path else name, value)

    def _of(self, path: str, value: Any) -> None:
        if id(type(value)) in _PLAIN:
            self._found[path] = _exact(value)
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if len(self._seen) > _MOST + len(_libraries) or self._depth >= _DEEPEST:
            raise Untraceable(
                "the code keeps so many objects, or such deeply nested ones, that a count could hide among them: keep less"
            )
        self._depth += 1
        self._inside(path, value)
        self._depth -= 1

    def _inside(self, path: str, value: Any) -> None:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            self._found[f"{path}<shape>"] = tuple(value.shape)
            self._names(path, vars(value))
            return
        if issubclass(kind, _NUMBERS_AND_TEXTS):
            base = next(one for one in _NUMBERS_AND_TEXTS if issubclass(kind, one))
            self._found[path] = base.__repr__(value)
        if id(kind) in _ITERATORS:
            self._found[path] = _place(value)
            if kind is types.GeneratorType and value.gi_frame is not None:
                self._names(path, value.gi_frame.f_locals)
        elif issubclass(kind, _CONTAINERS):
            self._container(path, value)
            if id(kind) not in _HOLDERS:
                self._attributes(path, value, self._is_own(kind))
        elif kind is types.FunctionType:
            self._function(path, value)
        elif kind is types.MethodType:
            self._of(path, value.__func__)
            self._of(f"{path}<self>", value.__self__)
        elif kind is types.CellType:
            self._cell(path, value)
        elif kind is property:
            for name in ("fget", "fset", "fdel"):
                self._of(f"{path}<{name}>", getattr(value, name))
        elif kind is types.ModuleType:
            if value.__spec__ is None:  # one that the code has made
                self._names(path, vars(value))
        elif issubclass(kind, type):
            self._attributes(path, value, self._is_own(value))
        elif is_library(kind) or kind.__module__ in _NUMPY or kind is torch.Generator:
            self._library(path, value)
        else:
            self._attributes(path, value, self._is_own(kind))

    def _container(self, path: str, value: Any) -> None:
        """Contents of a dict, list, tuple or set, under a path of its own for each."""
        kind: Any = next(one for one in _CONTAINERS if issubclass(type(value), one))
        self._found[f"{path}<len>"] = kind.__len__(value)
        items = list(kind.items(value) if kind is dict else kind.__iter__(value))
        if kind is dict:
            for i, (key, item) in enumerate(items):
                named = type(key) is str and key.isalnum()
                place = f"{path}.{key}" if named or (type(key) is str and key.isidentifier()) else f"{path}[{_key(key, i)}]"
                if id(type(key)) not in _PLAIN:
                    self._of(f"{place}<key>", key)
                self._of(place, item)
        elif all(id(type(item)) in _PLAIN for item in items):
            found = [_exact(item) for item in items]
            self._found[f"{path}<items>"] = found if kind in (list, tuple) else frozenset(found)
        else:
            if kind in (set, frozenset):
                items.sort(key=lambda item: id(type(item)) in _PLAIN)  # objects first, which stay in their order
                self._found[f"{path}<items>"] = frozenset(_exact(item) for item in items if id(type(item)) in _PLAIN)
                items = [item for item in items if id(type(item)) not in _PLAIN]
            for i, item in enumerate(items):
                self._of(f"{path}.{i}", item)

    def _function(self, path: str, value: types.FunctionType) -> None:
        if not is_own_function(value, self._home):
            return
        self._found[f"{path}<code>"] = id(value.__code__)
        self._found[f"{path}<name>"] = (value.__name__, value.__qualname__, value.__doc__)
        for i, part in enumerate((value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__)):
            self._of(f"{path}.{i}", part)

    def _cell(self, path: str, value: types.CellType) -> None:
        try:
            inside = value.cell_contents
        except ValueError:
            return
        self._of(path, inside)

    def _is_own(self, cls: type) -> bool:
        known = self._own.get(id(cls))
        if known is None:
            known = self._own[id(cls)] = cls, is_own(cls, self._home)
        return known[1]

    def _attributes(self, path: str, value: Any, own: bool) -> None:
        is_class = issubclass(type(value), type)
        try:
            names = (type if is_class else object).__getattribute__(value, "__dict__")
        except AttributeError:
            names = {}
        if not own and not issubclass(type(value), torch.nn.Module):
            self._on_library(path, names)
            return
        if not is_class:
            self._check_methods(path, type(value))
            self._found[f"{path}<class>"] = id(type(value))
            self._slots(path, value)
            if not issubclass(type(value), (torch.nn.Module, *_CONTAINERS)) and type(value).__base__ is not object:
                self._library(path, value)
        self._names(path, names)

    def _check_methods(self, path: str, kind: type) -> None:
        """What is done when an object dies, or when the module that holds it is copied, is not seen in a trace."""
        taken = _LATER if not path.startswith("self.") or issubclass(kind, torch.nn.Module) else _LATER | _COPYING
        for cls in kind.__mro__:
            found = sorted(name for name in taken & vars(cls).keys() if not _copies_slots(cls, name))
            if found and self._is_own(cls):
                raise Untraceable(
                    f"{kind.__name__} has a method {found[0]} of its own, which is not traced: do the work in forward()"
                )

    def _slots(self, path: str, value: Any) -> None:
        for cls in type(value).__mro__:
            for name, slot in vars(cls).items() if self._is_own(cls) else ():
                if type(slot) is types.MemberDescriptorType:
                    try:
                        self._of(f"{path}.{name}", slot.__get__(value))
                    except AttributeError:
                        continue

    def _on_library(self, path: str, names: Mapping[str, Any]) -> None:
        """What of a candidate may hang on an object of another library, such as a count on a kernel: values and containers."""
        for name, item in list(names.items()):
            if id(type(item)) in _PLAIN:
                self._found[f"{path}.{name}"] = _exact(item)
            elif id(type(item)) in _HOLDERS and id(item) not in self._seen:
                self._seen.add(id(item))
                self._found[f"{path}.{name}<len>"] = len(item)
                inside = item.items() if type(item) is dict else enumerate(item)
                self._on_library(f"{path}.{name}", {_key(k, i): v for i, (k, v) in enumerate(inside)})
            elif self._is_own(type(item)) or id(type(item)) in _WALKED or type(item).__module__.startswith("triton.runtime."):
                self._of(f"{path}.{name}", item)

    def _library(self, path: str, value: Any) -> None:
        for i, part in enumerate(own_state(value)):
            self._found[f"{path}<{i}>"] = part
        for i, item in enumerate(inside(value)):
            self._of(f"{path}.{i}", item)


def _copies_slots(cls: type, name: str) -> bool:
    """Whether a method is one that `dataclasses` gives a frozen class with slots, and copies these alone."""
    if vars(cls)[name] is not vars(dataclasses).get(f"_dataclass_{name.strip('_')}") or not dataclasses.is_dataclass(cls):
        return False
    found = (next((vars(c)[f.name] for c in cls.__mro__ if f.name in vars(c)), None) for f in dataclasses.fields(cls))
    return all(type(slot) is types.MemberDescriptorType for slot in found)


def _exact(value: Any) -> Any:
    """A plain value as it is compared: 0, 0.0, -0.0 and False are four, and NaN is itself."""
    kind = type(value)
    return kind.__name__, repr(value) if kind is float or kind is complex else value


def _key(key: Any, place: int) -> str:
    """A name for a key that no other key of its dict has; one that holds objects goes by its place."""
    plain = id(type(key)) in _PLAIN or (type(key) is tuple and all(id(type(part)) in _PLAIN for part in key))
    return f"{key!r}" if plain else f"#{place}"


def _place(value: Any) -> str:
    """How far an iterator has come."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        kept = {**(frame.f_locals if frame else {}), "yield from": value.gi_yieldfrom}
        shown = {name: one for name, one in kept.items() if id(type(one)) in _PLAIN | _ITERATORS}
        plain = {name: one if id(type(one)) in _PLAIN else _place(one) for name, one in shown.items()}
        return f"{frame.f_lasti if frame else 'ended'} {plain}"
    return str(operator.length_hint(value)) if isinstance(value, _BUILTIN_ITERATORS) else repr(value)
