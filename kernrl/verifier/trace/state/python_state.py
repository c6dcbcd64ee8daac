"""What a module remembers in Python between two calls: counts, flags and lists, wherever they are kept.

Two calls of the same shapes must leave a module as they found it, or a later call may do something else. A number that
modules keep as an attribute may count, as long as nothing depends on it (`counts_ahead`). Nothing of a candidate is called to
find out what it keeps.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import operator
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from kernrl.verifier.base.compat import no_torch_functions
from kernrl.verifier.trace.state.object_state import (
    hides_state,
    how_shown,
    inside,
    is_library,
    of_process,
    of_tensor,
    own_state,
    slots,
)
from kernrl.verifier.trace.state.ownership import codes, is_own, is_own_function, known_ids, libraries, of_kernels
from kernrl.verifier.trace.untraceable import Untraceable

_MOST = 100_000
"""Objects looked at; a list of plain values is one."""

_DEEPEST = 64
"""How far into one another objects may nest. Both limits refuse: where nobody looks, a count can hide."""

_NOTHING = object()
_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)
_BUILTIN_ITERATORS = tuple(type(iter(one)) for one in (range(0), [], (), {}, {}.items(), set(), ""))
_LOTS = ("_generator", "mtrand", "bit_generator", "_mt19937", "_pcg64", "_philox", "_sfc64")
_NUMPY = frozenset(("numpy", *(f"numpy.random.{name}" for name in _LOTS)))
_NO_STATE = frozenset(("__builtins__", "__dict__", "__weakref__"))
_OF_A_FILE = frozenset(("__spec__", "__loader__"))
"""What a candidate's module lacks: only one that is recorded outside a sandbox has a loader."""
_RECORDING = ("launch.launches", "recorder", "record_aten", "look_like_cuda", "untraceable")
_NOT_LOOKED_INTO = ("torch._ops", *(f"kernrl.verifier.trace.{name}" for name in _RECORDING))
"""Modules of objects that a launch or an operator holds: the recording itself, and tables that `aten_operators` looks at."""
_CONTAINERS = (dict, list, tuple, set, frozenset)
# by id: a candidate's class may say that it equals any other
_PLAIN = frozenset(map(id, (*_NUMBERS_AND_TEXTS, bool, types.NoneType)))
_ITERATORS = frozenset(map(id, (itertools.count, itertools.repeat, itertools.cycle, types.GeneratorType, *_BUILTIN_ITERATORS)))
_HOLDERS = frozenset(map(id, _CONTAINERS))
_WALKED = frozenset(map(id, (types.FunctionType, types.MethodType, property)))
_LATER = frozenset(("__del__",))
_QUALNAME = vars(type)["__qualname__"].__get__
_SHOWS_ATTRIBUTES = (types.NoneType, types.GetSetDescriptorType, types.MemberDescriptorType)
_COPYING = frozenset(("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"))

_hiding: dict[int, bool] = {}
"""Whether objects of a class hide a state (`hides_state`), by the id of the class, of those in `known_ids`."""
_most_subclasses: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()


def remembered(model: torch.nn.Module) -> dict[str, Any]:
    """Path → number, text or length, for all that an object and the module of its class keep, and for the process.

    Raises Untraceable if that is too much to be looked through."""
    return dict(of_process()) | kept(model)


def kept(model: torch.nn.Module) -> dict[str, Any]:
    """The same, without the process."""
    home = sys.modules.get(type(model).__module__)
    with no_torch_functions():
        return _Walk(type(model).__module__).walk(model, vars(home) if home else {})


def hung(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same of values that code has put into libraries."""
    kinds = (*_CONTAINERS, torch.Tensor, np.ndarray)
    mine = {
        path: value
        for path, value in values.items()
        if not path.startswith("linecache.cache") or type(value) is not tuple
        if issubclass(kind := type(value), kinds) or is_library(kind) or (id(kind) not in known_ids and is_own(kind, ""))
    }
    with no_torch_functions():
        return _Walk("").on_libraries(mine) if mine else {}


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The paths whose values differ."""
    if before == after:
        return []
    return [path for path in {**before, **after} if before.get(path, _NOTHING) != after.get(path, _NOTHING)]


class _Walk:
    """Through what is reachable from a candidate's object and its module; no further than into its own classes."""

    def __init__(self, home: str) -> None:
        self._home, self._depth = home, 0
        self._seen: dict[int, Any] = {}
        """Objects by id, and the path at which each was met first. Those of `libraries` are known besides: to copy it would
        write to each namespace, and so copy the pages of a thousand modules."""
        self._found: dict[str, Any] = {}
        self._alive: list[list[Any]] = []
        self._own: dict[int, tuple[type, bool]] = {}
        """Whether a class is the candidate's, by id; the class is kept, so that no other gets its id."""

    def walk(self, model: torch.nn.Module, names: Mapping[str, Any]) -> dict[str, Any]:
        self._seen[id(names)] = ""  # kernels hold it, too
        self._of("self", model)
        self._names("", names)
        return self._found

    def on_libraries(self, values: Mapping[str, Any]) -> dict[str, Any]:
        for path, value in values.items():
            self._on_library("", {path: value})
        return self._found

    def _names(self, path: str, names: Mapping[str, Any]) -> None:
        self._found[f"{path}<names>"] = tuple(names)
        for name, value in list(names.items()):
            if name == "__annotations__" and type(value) is dict:
                self._annotations(path, value)
            elif name not in _NO_STATE and (known_ids or name not in _OF_A_FILE):
                self._of(f"{path}.{name}" if path else name, value)

    def _annotations(self, path: str, names: Mapping[str, Any]) -> None:
        """The classes among them are others', mostly."""
        self._found[f"{path}<annotations>"] = [(name, id(type(value))) for name, value in names.items()]
        for name, value in list(names.items()):
            if not issubclass(type(value), type):
                self._of(f"{path}<annotations>.{name}", value)

    def _of(self, path: str, value: Any) -> None:
        if id(type(value)) in _PLAIN:
            self._found[path] = _exact(value)
            return
        met = self._seen if id(value) in self._seen else libraries
        if id(value) in met:
            self._found[f"{path}<is>"] = met[id(value)]  # which of two like objects lies here may be a count, too
            return
        self._seen[id(value)] = path
        if len(self._seen) > _MOST or self._depth >= _DEEPEST:
            raise Untraceable(
                "the code keeps so many objects, or such deeply nested ones, that a count could hide among them: keep less"
            )
        self._depth += 1
        self._inside(path, value)
        self._depth -= 1

    def _inside(self, path: str, value: Any) -> None:
        kind = type(value)
        if id(kind) in _HOLDERS:  # the usual case, of which there are hundreds
            self._container(path, value)
            return
        if kind is OrderedDict and not value and not vars(value):  # a module has a dozen, for hooks
            self._found[f"{path}<len>"] = 0
            return
        if issubclass(kind, torch.Tensor):
            self._found[f"{path}<tensor>"] = tuple(of_tensor(value))
            self._names(path, vars(value))
            if value.is_leaf and value.grad is not None:  # torch warns where one that is no leaf is asked for it
                self._of(f"{path}.grad", value.grad)
            if value.layout is torch.strided:
                self._names(f"{path}<storage>", vars(value.untyped_storage()))
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
            self._attributes(path, value, self._is_own(kind))
            self._held(path, value)  # such as what a defaultdict makes its values by
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
            self._of(f"{path}<doc>", value.__doc__)
        elif kind is types.ModuleType:
            self._found[f"{path}<is>"] = id(value)
            if value.__spec__ is None:  # one that the code has made
                self._names(path, vars(value))
        elif kind is types.CodeType:
            self._found[f"{path}<is>"] = id(value)
        elif issubclass(kind, type):
            self._found[f"{path}<is>"] = id(value)
            self._attributes(path, value, self._is_own(value))
        elif self._hides_state(kind):
            raise Untraceable(
                f"the code keeps a {kind.__name__} ({path}), in which a count could hide: keep plain values and tensors"
            )
        elif is_library(kind) or kind.__module__ in _NUMPY or kind is torch.Generator:
            self._library(path, value)
        else:
            self._attributes(path, value, self._is_own(kind))
            if issubclass(kind, np.ndarray):
                self._library(path, value)

    def _container(self, path: str, value: Any) -> None:
        """Contents of a dict, list, tuple or set, under a path of its own for each."""
        kind: Any = type(value)
        if id(kind) not in _HOLDERS:
            kind = next(one for one in _CONTAINERS if issubclass(kind, one))
        count = self._found[f"{path}<len>"] = kind.__len__(value)
        if not count:
            return
        items = list(kind.items(value) if kind is dict else kind.__iter__(value))
        if kind is dict:
            keys = OrderedDict.__iter__(value) if issubclass(type(value), OrderedDict) else (key for key, _ in items)
            self._found[f"{path}<order>"] = tuple(_exact(key) if id(type(key)) in _PLAIN else id(key) for key in keys)
            for i, (key, item) in enumerate(items):
                named = type(key) is str and key.isalnum()
                place = f"{path}.{key}" if named or (type(key) is str and key.isidentifier()) else f"{path}[{_key(key, i)}]"
                if id(type(key)) not in _PLAIN:
                    self._of(f"{place}<key>", key)
                self._of(place, item)
        elif all(id(type(item)) in _PLAIN for item in items):
            found = [_exact(item) for item in items]
            self._found[f"{path}<items>"] = found
        else:
            if kind in (set, frozenset):
                items.sort(key=lambda item: id(type(item)) in _PLAIN)  # objects first, which stay in their order
                self._found[f"{path}<items>"] = [_exact(item) for item in items if id(type(item)) in _PLAIN]
                items = [item for item in items if id(type(item)) not in _PLAIN]
            for i, item in enumerate(items):
                self._of(f"{path}.{i}", item)

    def _function(self, path: str, value: types.FunctionType) -> None:
        if id(value) in known_ids or (not known_ids and not is_own_function(value, self._home)):
            self._found[f"{path}<is>"] = id(value)
            return
        self._found[f"{path}<code>"] = id(value.__code__)
        self._found[f"{path}<name>"] = (value.__name__, value.__qualname__, value.__doc__)
        for i, part in enumerate((value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__)):
            self._of(f"{path}.{i}", part)
        for part in gc.get_referents(value):
            if type(part) is dict and part is not value.__globals__ and part is not value.__builtins__:
                self._annotations(path, part)
        for i, code in enumerate(codes(value.__code__)):
            for j, one in enumerate(code.co_consts):
                if id(type(one)) not in _PLAIN and type(one) is not types.CodeType:
                    self._of(f"{path}<constants>.{i}.{j}", one)

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

    def _hides_state(self, kind: type) -> bool:
        known = _hiding.get(id(kind))
        if known is None:
            known = hides_state(kind)
            if id(kind) in known_ids:  # which stays
                _hiding[id(kind)] = known
        return known

    def _attributes(self, path: str, value: Any, own: bool) -> None:
        is_class = issubclass(type(value), type)
        if own and not is_class:
            self._check_methods(path, type(value))
        try:
            names = (type if is_class else object).__getattribute__(value, "__dict__")
        except AttributeError:
            names = {}
        if not own and not issubclass(type(value), torch.nn.Module):
            self._of_a_library(path, value, names)
            return
        if not is_class:
            self._found[f"{path}<class>"] = id(type(value))
            self._slots(path, value)
            if not issubclass(type(value), (torch.nn.Module, *_CONTAINERS)) and type(value).__base__ is not object:
                self._library(path, value)
        else:
            # those that die are not counted less, as Python's garbage collector decides when
            _most_subclasses[value] = max(len(type.__subclasses__(value)), _most_subclasses.get(value, 0))
            self._found[f"{path}<subclasses>"] = _most_subclasses[value]
            self._found[f"{path}<name>"] = _QUALNAME(value)
        for i, cls in enumerate((*type(value).__mro__, *(value.__mro__ if is_class else ()))):
            if self._is_own(cls):  # perhaps no name stands for it
                self._of(f"{path}<class>.{i}", cls)
        self._names(path, names)

    def _of_a_library(self, path: str, value: Any, names: Mapping[str, Any]) -> None:
        kind = type(value)
        if (value if issubclass(kind, type) else kind).__module__ in _NOT_LOOKED_INTO:
            return
        if not issubclass(kind, type):
            show = how_shown(kind)
            self._found[f"{path}<shown>"] = id(kind), show and show(value)
            if found := slots(kind):
                names = {**names, **dict(_set_slots(value, found))}
        self._on_library(path, names, of_kernel=kind.__module__.startswith("triton.runtime."))

    def _check_methods(self, path: str, kind: type) -> None:
        """What is done when an object dies, or when the module that holds it is copied, is not seen in a trace; nor is what an
        object keeps whose class says that its attributes are elsewhere."""
        taken = _LATER if not path.startswith("self.") or issubclass(kind, torch.nn.Module) else _LATER | _COPYING
        for cls in kind.__mro__:
            if type(vars(cls).get("__dict__")) not in _SHOWS_ATTRIBUTES:
                raise Untraceable(
                    f"{kind.__name__} has a __dict__ of its own, behind which a count could hide: leave it to Python"
                )
            found = sorted(name for name in taken & vars(cls).keys() if not _copies_slots(cls, name))
            if found and self._is_own(cls):
                raise Untraceable(
                    f"{kind.__name__} has a method {found[0]} of its own, which is not traced: do the work in forward()"
                )

    def _slots(self, path: str, value: Any) -> None:
        for cls in type(value).__mro__:
            own = vars(cls).items() if self._is_own(cls) else ()
            for name, item in _set_slots(value, ((n, slot) for n, slot in own if type(slot) is types.MemberDescriptorType)):
                self._of(f"{path}.{name}", item)

    def _on_library(self, path: str, names: Mapping[str, Any], *, of_kernel: bool = False) -> None:
        """What of a candidate may hang on an object of another library, such as a count on a kernel. Of what Triton's own hold
        by themselves, only values and containers may be a candidate's."""
        for name, item in list(names.items()):
            if id(type(item)) in _PLAIN:
                self._found[f"{path}.{name}"] = _exact(item)
            elif id(type(item)) in _HOLDERS and id(item) not in self._seen and id(item) not in libraries:
                self._seen[id(item)] = f"{path}.{name}"
                self._found[f"{path}.{name}<len>"] = len(item)
                if type(item) is not dict and all(id(type(one)) in _PLAIN for one in item):  # such as a kernel's lines
                    self._found[f"{path}.{name}<items>"] = [_exact(one) for one in item]
                    continue
                inside = item.items() if type(item) is dict else enumerate(item)
                self._on_library(f"{path}.{name}", {_key(k, i): v for i, (k, v) in enumerate(inside)})
            elif of_kernel and name in of_kernels and not self._may_hold_own(type(item)):
                continue
            elif not (".nargs" in path and issubclass(type(item), torch.Tensor)):  # an autotuner keeps its latest ones
                self._of(f"{path}.{name}", item)

    def _may_hold_own(self, kind: type) -> bool:
        return self._is_own(kind) or id(kind) in _WALKED or kind.__module__.startswith("triton.runtime.")

    def _library(self, path: str, value: Any) -> None:
        for i, part in enumerate(own_state(value)):
            self._found[f"{path}<{i}>"] = part
        self._held(path, value)

    def _held(self, path: str, value: Any) -> None:
        items = list(inside(value))
        self._alive.append(items)  # some are made here, and another object must not get the id of one
        for i, item in enumerate(items):
            if not issubclass(type(item), type) or self._is_own(item):
                self._of(f"{path}.{i}", item)


def _set_slots(value: object, found: Iterable[tuple[str, types.MemberDescriptorType]]) -> Iterator[tuple[str, Any]]:
    """What lies in those of an object's slots in which something lies."""
    for name, slot in found:
        try:
            item = slot.__get__(value)
        except AttributeError:
            continue
        yield name, item


def _copies_slots(cls: type, name: str) -> bool:
    """Whether a method is one that `dataclasses` gives a frozen class with slots, and copies these alone."""
    if vars(cls)[name] is not vars(dataclasses).get(f"_dataclass_{name.strip('_')}") or not dataclasses.is_dataclass(cls):
        return False
    found = (next((vars(c)[f.name] for c in cls.__mro__ if f.name in vars(c)), None) for f in dataclasses.fields(cls))
    return all(type(slot) is types.MemberDescriptorType for slot in found)


def _exact(value: Any) -> Any:
    """A plain value as it is compared: 0, 0.0, -0.0 and False are four, and NaN is itself."""
    kind = type(value)
    return kind, repr(value) if kind is float or kind is complex else value


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
