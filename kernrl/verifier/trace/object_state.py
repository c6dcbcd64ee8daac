"""What objects of the standard library and of numpy hold: deques, readers, iterators, generators, arrays, a process's counts.

Their state is not in attributes. Where a kind has no reader of its own, the bytes of the object itself tell whether it has
changed: the position of a reader and the place of an iterator are among them.
"""

from __future__ import annotations

import array
import collections
import contextvars
import csv
import ctypes
import decimal
import functools
import gc
import locale
import os
import random
import resource
import socket
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

_LIBRARIES = frozenset((
    *("array", "collections", "contextvars", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq"),
    *("io", "itertools", "mmap", "operator", "queue", "random", "re", "sre", "string", "struct", "thread", "threading"),
    *("threading_local", "types", "weakref", "weakrefset", "builtins"),
))  # fmt: skip
"""Packages whose objects are looked into, without the leading underscore of their C parts."""

_BYTES = 1 << 24
"""Longest array whose contents are looked at."""

_LEFT_ALONE = (types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType, type)


def is_library(kind: type) -> bool:
    """Whether a class is one of the standard library that may hold a count."""
    return kind.__module__.partition(".")[0].lstrip("_") in _LIBRARIES


def own_state(value: Any) -> Iterator[object]:
    """What an object holds in itself: numbers and texts to compare."""
    kind = type(value)  # isinstance would ask a candidate's object for its class
    if kind in (array.array, bytearray, memoryview):
        yield len(value)
        yield hash(bytes(value)) if memoryview(value).nbytes < _BYTES else 0
    elif kind is np.ndarray:
        yield str(value.shape)
        yield hash(value.tobytes()) if value.nbytes < _BYTES and value.dtype.kind in "biufcSU" else 0
    elif kind is np.random.Generator:
        yield str(value.bit_generator.state)
    elif kind is np.random.RandomState:
        yield str(value.get_state(legacy=False))
    elif kind is torch.Generator:
        yield value.initial_seed()
    elif kind is functools._lru_cache_wrapper:
        found = value.cache_info()
        yield f"{found.misses} {found.currsize}"
    elif not issubclass(kind, _LEFT_ALONE) and (library := _base(kind)) is not object:
        yield hash(ctypes.string_at(id(value) + _COUNT_BYTES, library.__basicsize__ - _COUNT_BYTES))


_COUNT_BYTES = ctypes.sizeof(ctypes.c_ssize_t)
"""Of the count of references, which objects begin with."""


def _base(kind: type) -> type:
    """The class written in C that a class of objects derives from."""
    return next((one for one in kind.__mro__ if not one.__flags__ & _HEAP or one.__module__ != "candidate"), object)


_HEAP = 1 << 9


def inside(value: Any) -> Iterator[Any]:
    """Objects that an object of the standard library holds."""
    kind = type(value)
    if kind is contextvars.ContextVar:
        yield value.get(None)
    elif issubclass(kind, collections.deque):
        yield list(collections.deque.__iter__(value))
    elif not issubclass(kind, np.ndarray | np.generic | functools._lru_cache_wrapper):
        yield from (one for one in gc.get_referents(value) if not issubclass(type(one), _LEFT_ALONE))


_SETTINGS: dict[str, Callable[[], object]] = {
    "sys.get_int_max_str_digits()": sys.get_int_max_str_digits, "sys.getdlopenflags()": sys.getdlopenflags,
    "sys.get_coroutine_origin_tracking_depth()": sys.get_coroutine_origin_tracking_depth,
    "csv.field_size_limit()": csv.field_size_limit, "socket.getdefaulttimeout()": socket.getdefaulttimeout,
    "threading.stack_size()": threading.stack_size, "os.getcwd()": os.getcwd, "locale": lambda: locale.setlocale(locale.LC_ALL),
    "numpy.geterr()": lambda: str(np.geterr()), "numpy.getbufsize()": np.getbufsize,
    "numpy.get_printoptions()": lambda: str(np.get_printoptions()),
    "torch.get_num_interop_threads()": torch.get_num_interop_threads,
    "torch's print options": lambda: str(torch._tensor_str.PRINT_OPTS),  # pyright: ignore[reportAttributeAccessIssue]
    "os.getpriority()": lambda: os.getpriority(os.PRIO_PROCESS, 0),
}  # fmt: skip
"""Numbers of the process that may be set, and who says what they are."""
_LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def of_process() -> Iterator[tuple[str, object]]:
    """Numbers that belong to the process, in which a forward could count."""
    yield "sys.getrecursionlimit()", sys.getrecursionlimit()
    yield "sys.getswitchinterval()", sys.getswitchinterval()
    yield "torch.get_num_threads()", torch.get_num_threads()
    yield "os.environ", hash(tuple(sorted(os.environ._data.items())))  # pyright: ignore[reportAttributeAccessIssue]
    decimals = decimal.getcontext()
    yield "decimal.getcontext()", (decimals.prec, decimals.rounding, decimals.Emin, decimals.Emax, decimals.capitals)
    for name, ask in _SETTINGS.items():
        yield name, ask()
    mask = os.umask(0o77)
    os.umask(mask)
    yield "os.umask()", mask
    for name in _LIMITS:
        yield f"resource.{name}", resource.getrlimit(getattr(resource, name))
    yield "random.getstate()", hash(random.getstate())
    yield "numpy.random.get_state()", hash(np.random.get_state()[1].tobytes())  # pyright: ignore[reportArgumentType, reportCallIssue]
    yield "torch.initial_seed()", torch.default_generator.initial_seed()
    yield "gc.get_threshold()", str(gc.get_threshold())
    yield "warnings.filters", len(warnings.filters)
    yield "files", str(sorted(os.listdir(".")))
