"""Dicts, lists, sets and objects that names of libraries stand for: levels of logging, a cache, a table of functions.

A candidate may count in any of them, and replace the functions that they hold. As in `library_state`, memory is read rather
than objects: the tag of a dict, and where a list or a set keeps its items, and how many.
"""

from __future__ import annotations

import collections
import ctypes
import importlib
import threading
import types
from collections.abc import Iterable, Mapping
from typing import Any

from triton.runtime.jit import JITFunction

from kernrl.verifier.trace.state.library_state import Attributes, Dicts, Words, attributes_of

_WORD = ctypes.sizeof(ctypes.c_void_p)
_HEAD = 2 * _WORD
"""Of an object; what is counted follows it."""
_DEEPEST = 3
"""How far below the name of a module or of a class is looked: `logging.Logger.manager.loggerDict` is at the third."""
_COUNTED: dict[type, int] = {list: 3, set: 4, collections.deque: 6, bytearray: 3}
"""How many words tell how many items there are and where they lie. An item that is put in another's place is not seen."""
_VALUES = (int, float, str, bytes, bool, types.NoneType)
_LEFT_ALONE = (
    *_VALUES,
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType),
    *(type, property, classmethod, staticmethod),
)
_OF_FORKS = ("filelock._api._FORK_STATE",)
"""Set when the process of a candidate is forked."""
_LAST_REGISTERED = "torch.utils._pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE['NO_SERIALIZED_TYPE_NAME_FOUND']"
"""The class that was registered last without a name for files, which nobody looks up."""
_OF_IMPORTS = ("_frozen_importlib", "_frozen_importlib_external")
_LOCKS = frozenset(
    id(vars(importlib.import_module("importlib._bootstrap")).get(name)) for name in ("_module_locks", "_blocking_on")
)
"""Tables (by id) in which an import has an entry while it lasts, whether it fails or not."""


class LibraryTables:
    """What those held that were there when this was made. `whole`: the names themselves are looked at, too."""

    def __init__(self, namespaces: Iterable[tuple[str, Mapping[str, Any]]], *, whole: bool = False) -> None:
        self._tables: list[tuple[str, dict[Any, Any], dict[Any, Any]]] = []
        """Where each is, as it is now and as it was."""
        self._counted: dict[type, list[tuple[str, Any]]] = {kind: [] for kind in _COUNTED}
        owners: list[tuple[str, Any]] = []
        seen: set[int] = set()
        left: list[tuple[str, Any, int]] = []
        for place, names in namespaces:
            left += [(place, names, 0)] if whole else [(f"{place}.{name}", value, 1) for name, value in names.items()]
        while left:
            place, value, depth = left.pop()
            kind = type(value)
            if id(value) in seen or issubclass(kind, _LEFT_ALONE) or kind.__module__ in _OF_IMPORTS or place in _OF_FORKS:
                continue
            seen.add(id(value))
            if kind in self._counted:
                self._counted[kind].append((place, value))
                continue
            inside = value if issubclass(kind, dict) else attributes_of(value)
            if inside is None or (inside is not value and id(inside) in seen):
                continue
            seen.add(id(inside))
            if inside is not value and not issubclass(kind, threading.local):
                owners.append((place, value))
            self._tables.append((place, inside, dict(inside)))
            if depth < _DEEPEST:
                left += [(f"{place}[{key!r}]" if type(key) is str else place, one, depth + 1) for key, one in inside.items()]
        self._dicts = Dicts({i: now for i, (_, now, _) in enumerate(self._tables)})
        self._owners = owners
        self._of_owners = Attributes([one for _, one in owners])
        self._words = {
            kind: Words([id(one) + _HEAD for _, one in found], _COUNTED[kind]) for kind, found in self._counted.items()
        }

    def changed(self) -> tuple[dict[str, object], dict[str, object]]:
        """What is another after code changes one of them, even if it changes it back, and the objects that were put into the
        dicts; nothing where dicts have no tags."""
        if not self._dicts.have_tags:
            return {}, {}
        found: dict[str, object] = {}
        added: dict[str, object] = {}
        for i, tag in self._dicts.tags():
            place, now, before = self._tables[i]
            if id(now) in _LOCKS and dict.keys(now) == before.keys():
                continue
            found[place] = tag
            for key, value in list(dict.items(now)):
                if type(key) is str and type(value) not in _VALUES and before.get(key, self) is not value:
                    added[f"{place}[{key!r}]"] = value
        for kind, words in self._words.items():
            for i in words.changed():
                place, one = self._counted[kind][i]
                found[place] = ctypes.string_at(id(one) + _HEAD, _COUNTED[kind] * _WORD)
        return found, added

    def replaced(self) -> str | None:
        """Where a function or a class was put in another's place, or all attributes of an object; None if nowhere."""
        for i in self._dicts.changed():
            place, now, before = self._tables[i]
            for key, value in before.items():
                called = callable(value) and type(value) is not JITFunction
                if called and dict.get(now, key, value) is not value and (found := f"{place}[{key!r}]") != _LAST_REGISTERED:
                    return found
        moved = self._of_owners.moved()
        return f"the attributes of {self._owners[moved[0]][0]}" if moved else None
