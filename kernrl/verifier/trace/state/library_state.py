"""Whether the modules, classes and functions that were there before a candidate are what they were.

All of them are looked at after each candidate, some hundred thousand names in a forked child. So memory is read rather than
objects: whoever takes a reference to an object writes its count, which copies the page that it lies in. A dict has a tag that
is another after each change, and a function's code and defaults are three pointers. Where this Python has neither, the names
themselves are compared.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import itertools
import sys
import threading
import types
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from triton.runtime.jit import JITFunction

_WORD = ctypes.sizeof(ctypes.c_void_p)
_TAG = 3 * _WORD
"""Where a dict's tag lies: after the object's head and the number of its keys."""
_CODE = 6 * _WORD
"""Where the pointer to a function's code lies, followed by those to its defaults and to the defaults of its keywords."""
_MANAGED = -3 * _WORD
"""Where the pointer to the dict of an object's attributes lies, as seen from the object, if Python manages it."""
_OFTEN_SET = frozenset((
    *("sys", "__main__", "__mp_main__", "torch.utils._python_dispatch", "torch._library.fake_impl"),
    "kernrl.verifier.trace.launch.fake_cuda._NoGrad",
))  # fmt: skip
"""Modules and classes whose names each call sets, and sets back."""
_AT_ONCE = 1 << 10
"""Objects whose memory is compared at a time."""
_PLAIN = (int, float, str, bytes, bool)
_ACCESSORS = (property, classmethod, staticmethod)
"""What functions of a class lie in."""
_CELL = 2 * _WORD
"""Where the pointer to a cell's contents lies."""

K = TypeVar("K")


class LibraryState:
    """What the modules held that were loaded when this was made."""

    def __init__(self) -> None:
        # whoever patches what records it forges a plan, and that must not matter
        self._modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] != "kernrl"}
        self._table = sys.modules
        self._names = list(_namespaces(self._modules))
        self._dicts = Dicts({i: one.now for i, one in enumerate(self._names)})
        self._often_set = [one for one in self._names if one.place in _OFTEN_SET]
        self._steady_names = [one for one in self._names if one.place not in _OFTEN_SET]
        steady = [id(one.now) + _TAG for one in self._steady_names]
        self._steady = Words(steady, 1) if self._dicts.have_tags else None
        kernels = {id(value): value for one in self._names for value in one.before.values() if type(value) is JITFunction}
        self._kernels = [(kernel, kernel.src) for kernel in kernels.values()]
        self._in_kernels = Dicts({i: vars(kernel) for i, kernel in enumerate(kernels.values())})
        found = _functions(value for one in self._names for value in one.before.values())
        self._functions = [(f, _parts(f), dict(f.__kwdefaults__ or {})) for f in found.values()]
        self._code = Words([address + _CODE for address in found], 3) if _code_is_where_it_was() else None
        keywords = [id(f.__kwdefaults__) + _TAG if f.__kwdefaults__ else 0 for f in found.values()]
        cells = {id(cell): cell for f in found.values() for cell in f.__closure__ or () if _closes_over_function(cell)}
        self._cells = [(cell, cell.cell_contents) for cell in cells.values()]
        self._contents = Words([address + _CELL for address in cells], 1) if _contents_are_where_they_were() else None
        self._keywords = Words(keywords, 1) if self._dicts.have_tags else None
        self._table_tag = self._tag_of_table()
        self._own = set[str]()
        """Candidates' modules."""
        self._loaded = len(sys.modules)

    def namespaces(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Names of each module and class, but `sys.modules`."""
        return [(one.place, {n: v for n, v in one.before.items() if v is not self._table}) for one in self._names]

    def of_new_modules(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Names of modules that were loaded since this was asked last, and of their classes."""
        count = len(sys.modules) - self._loaded
        self._loaded += count
        new = list(itertools.islice(reversed(sys.modules), max(count, 0)))  # to look at all of them copies their pages
        modules = {name: sys.modules[name] for name in new if name not in self._modules and name not in self._own}
        return [(one.place, one.now) for one in _namespaces(modules)]

    def add_module(self, name: str, module: types.ModuleType) -> None:
        """Put a candidate's module into `sys.modules`; what is known of the others stays known."""
        known = self._all_in_place()
        self._own.add(name)
        sys.modules[name] = module
        if known:
            self._table_tag = self._tag_of_table()

    def names(self) -> tuple[dict[str, object], dict[str, object]]:
        """What is another after code sets a name of a module or a class, and the objects that names stand for which stood for
        none or for others; nothing where dicts have no tags."""
        if self._steady is None:
            return {}, {}
        found: dict[str, object] = {}
        added: dict[str, object] = {}
        for one in self._often_set:
            changed = one.changed()
            found[one.place] = [*one.now], [(name, type(v), v) for name, v in changed if type(v) in _PLAIN]
            added.update((f"{one.place}.{name}", v) for name, v in changed if type(v) not in _PLAIN)
        for one in map(self._steady_names.__getitem__, self._steady.changed()):
            changed = one.changed()
            told = [(name, repr(v) if type(v) in _PLAIN else id(v)) for name, v in changed]
            found[one.place] = [*one.now], told  # others may have been set and set back, as `warnings.catch_warnings` does
            added.update((f"{one.place}.{name}", v) for name, v in changed if type(v) not in _PLAIN)
        return found, added

    def _tag_of_table(self) -> bytes:
        return ctypes.string_at(id(self._table) + _TAG, _WORD) if self._dicts.have_tags else b""

    def _all_in_place(self) -> bool:
        """Whether nothing was put into `sys.modules` but by `add_module`. To look at each of them takes 10 ms."""
        return self._dicts.have_tags and sys.modules is self._table and self._tag_of_table() == self._table_tag

    def replaced(self) -> str | None:
        """The name of something that is replaced, or of a function whose code or defaults are; None if all is as it was."""
        for name, module in () if self._all_in_place() else self._modules.items():
            if sys.modules.get(name) is not module:
                return f"sys.modules[{name!r}]"
        for i in self._dicts.changed():
            if found := self._names[i].replaced():
                return found
        for i in self._in_kernels.changed():
            kernel, source = self._kernels[i]
            if kernel.src != source:
                return f"the source of {kernel.__name__}"
        looked_at = range(len(self._functions))
        for i in self._code.changed() if self._code else looked_at:
            function, before, _ = self._functions[i]
            if any(now is not then for now, then in zip(_parts(function), before, strict=True)):
                return f"the code or the defaults of {function.__module__}.{function.__qualname__}"
        for i in self._contents.changed() if self._contents else range(len(self._cells)):
            cell, before = self._cells[i]
            if _contents(cell) is not before:
                return f"what {getattr(before, '__qualname__', 'a function')} is called by"
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
    behind: tuple[Mapping[str, Any], ...]
    """Where a name is looked for that is not there: a new one would hide it."""

    def changed(self) -> list[tuple[str, Any]]:
        """Those that stand for something else than before, and what for."""
        before = self.before
        return [(name, value) for name, value in [*self.now.items()] if before.get(name, before) is not value]

    def replaced(self) -> str | None:
        for name, value in self.before.items():
            if _is_called(value) and self.now.get(name) is not value:
                return f"{self.place}.{name}"
        for name, value in list(self.now.items()):
            if name not in self.before and callable(value) and any(name in names for names in self.behind):
                return f"{self.place}.{name}"
        return None


class Dicts(Generic[K]):
    """Dicts by name, and which of them may hold something else than when this was made."""

    def __init__(self, dicts: Mapping[K, dict[Any, Any]]) -> None:
        self._dicts, self._keys = dicts, list(dicts)
        self._tags = Words([id(one) + _TAG for one in dicts.values()], 1) if _dicts_have_tags() else None

    @property
    def have_tags(self) -> bool:
        """Whether this Python tells which dicts have changed; otherwise each may have."""
        return self._tags is not None

    def changed(self) -> list[K]:
        """The names of those that have."""
        return self._keys if self._tags is None else [self._keys[i] for i in self._tags.changed()]

    def tags(self) -> list[tuple[K, bytes]]:
        """The names of those, and what is another after each change."""
        names = self.changed()
        return [(name, ctypes.string_at(id(self._dicts[name]) + _TAG, _WORD)) for name in names]


class Attributes:
    """What hangs on functions and other objects that keep their attributes in a dict."""

    def __init__(self, owners: Sequence[Any]) -> None:
        dicts = [vars(owner) for owner in owners]  # gives each a dict
        self._all, self._dicts = list(range(len(owners))), Dicts(dict(enumerate(dicts)))
        places = [id(owner) + _place_of_dict(type(owner)) for owner in owners]
        known = all(_word(place) == id(one) for place, one in zip(places, dicts, strict=True))
        self._places = Words(places, 1) if known else None

    def changed(self) -> list[int]:
        """Which of them may hold something else than when this was made."""
        if self._places is None:
            return self._all
        return sorted({*self._places.changed(), *self._dicts.changed()})

    def moved(self) -> list[int]:
        """Which of them keep their attributes in another dict."""
        return self._places.changed() if self._places else []


def attributes_of(owner: Any) -> dict[Any, Any] | None:
    """The dict in which an object keeps its attributes, for this thread; None where it has none, or where that is not known."""
    kind = type(owner)
    if issubclass(kind, threading.local):
        return vars(owner)
    if not kind.__dictoffset__ or kind.__getattribute__ is not object.__getattribute__:
        return None
    found = getattr(owner, "__dict__", None)
    return found if type(found) is dict and _word(id(owner) + _place_of_dict(kind)) == id(found) else None


class Words:
    """Words of memory at many addresses, as they were; 0 is no address. Once this is made, nothing that a candidate may have
    replaced is called: no name of Python's builtins, of numpy or of ctypes."""

    def __init__(self, addresses: Iterable[int], each: int) -> None:
        places = np.fromiter(addresses, np.uint64)
        # in the order of memory, in which it is read faster
        which = np.argsort(places, kind="stable")[np.count_nonzero(places == 0) :]
        known = places[which]
        first, last = (int(known[0]), int(known[-1])) if known.size else (0, 0)
        # as an array of all that lies between, of which only these words are read
        between: Any = (ctypes.c_uint64 * ((last - first) // _WORD + each)).from_address(first)
        self._memory = np.frombuffer(between, np.uint64)
        offsets = ((known[:, None] - np.uint64(first)) // _WORD + np.arange(each, dtype=np.uint64)).astype(np.int64)
        spans = [slice(i, i + _AT_ONCE) for i in range(0, len(offsets), _AT_ONCE)]
        self._spans = [(which[span].tolist(), offsets[span], self._memory.take(offsets[span]).tobytes()) for span in spans]
        self._row_bytes = each * _WORD

    def now(self) -> Iterator[bytes]:
        """What they are."""
        for _, offsets, _ in self._spans:
            yield self._memory.take(offsets).tobytes()

    def changed(self) -> list[int]:
        """Which of them are not what they were."""
        found: list[int] = []
        for which, offsets, before in self._spans:
            self._add_changed(which, self._memory.take(offsets).tobytes(), before, found)
        found.sort()
        return found

    def _add_changed(self, which: list[int], now: bytes, before: bytes, found: list[int]) -> None:
        if now == before:
            return
        count = which.__len__()
        if count == 1:
            found.append(which[0])
            return
        half = count // 2
        at = half * self._row_bytes
        self._add_changed(which[:half], now[:at], before[:at], found)
        self._add_changed(which[half:], now[at:], before[at:], found)


def _is_called(value: object) -> bool:
    """Whether it is what others call. The data of a module is its own affair, and so is a new name."""
    return isinstance(value, _ACCESSORS) or callable(value)


def _functions(values: Iterable[object]) -> dict[int, types.FunctionType]:
    """Functions by id: these, and those behind properties, decorators and closures."""
    found: dict[int, types.FunctionType] = {}
    left = list(values)
    while left:
        value: Any = left.pop()
        if type(value).__name__ == "_ArrayFunctionDispatcher":  # of numpy
            left.append(value._implementation)
        elif type(value) is property:
            left += [value.fget, value.fset, value.fdel]
        elif type(value) in (classmethod, staticmethod):
            left.append(value.__func__)
        elif type(value) is types.FunctionType and id(value) not in found:
            found[id(value)] = value
            left += map(_contents, value.__closure__ or ())
    return found


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _closes_over_function(cell: types.CellType) -> bool:
    return isinstance(_contents(cell), types.FunctionType | types.BuiltinFunctionType)


def _parts(function: types.FunctionType) -> tuple[Any, Any, Any]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _namespaces(modules: Mapping[str, Any]) -> Iterator[_Names]:
    """Those of the modules, and of the classes that they name."""
    seen: set[int] = set()
    for name, module in modules.items():
        if not isinstance(module, types.ModuleType):
            continue
        yield _Names(name, vars(module), dict(vars(module)), (vars(builtins),))
        for value in list(vars(module).values()):
            if issubclass(type(value), type) and id(value) not in seen:
                seen.add(id(value))
                inside = namespace(value)
                behind = tuple(vars(base) for base in value.__mro__[1:])
                yield _Names(f"{value.__module__}.{value.__qualname__}", inside, dict(inside), behind)


def namespace(owner: Any) -> dict[str, Any]:
    """The dict in which a module or a class keeps its names. `vars` only shows that of a class."""
    shown = vars(owner)
    return shown if isinstance(shown, dict) else next(one for one in gc.get_referents(shown) if isinstance(one, dict))


def _dicts_have_tags() -> bool:
    names = {"a": 1}
    before = ctypes.string_at(id(names) + _TAG, _WORD)
    names["a"] = 2
    return ctypes.string_at(id(names) + _TAG, _WORD) != before


def _place_of_dict(kind: type) -> int:
    """Where objects of a class keep the pointer to the dict of their attributes: Python says so, or manages it itself."""
    return place if (place := kind.__dictoffset__) > 0 else _MANAGED


def _word(address: int) -> int:
    return int.from_bytes(ctypes.string_at(address, _WORD), sys.byteorder)


def _code_is_where_it_was() -> bool:
    def sample(a: int = 1, *, b: int = 2) -> None: ...

    there = ctypes.string_at(id(sample) + _CODE, 3 * _WORD)
    return there == array("Q", map(id, _parts(sample))).tobytes()


def _contents_are_where_they_were() -> bool:
    cell = types.CellType(_parts)
    return ctypes.string_at(id(cell) + _CELL, _WORD) == array("Q", [id(_parts)]).tobytes()
