"""What objects of the standard library and of numpy hold: deques, readers, iterators, generators, arrays, a process's counts.

Their state is not in attributes. Where a kind has no reader of its own, the bytes of the object itself tell whether it has
changed: the position of a reader and the place of an iterator are among them.
"""

from __future__ import annotations

import abc
import array
import atexit
import collections
import contextvars
import csv
import ctypes
import decimal
import functools
import gc
import io
import locale
import mmap
import os
import random
import resource
import signal
import socket
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from kernrl.verifier.base.compat import no_dispatch, no_torch_functions
from kernrl.verifier.trace.recorder import Recorder

_LIBRARIES = frozenset((
    *("array", "collections", "contextvars", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq"),
    *("io", "itertools", "mmap", "operator", "queue", "random", "re", "sre", "string", "struct", "thread", "threading"),
    *("threading_local", "types", "typing", "weakref", "weakrefset", "builtins"),
))  # fmt: skip
"""Packages whose objects are looked into, without the leading underscore of their C parts."""

_WITHOUT_STATE = frozenset(("abc", "struct"))
"""Packages of C whose objects hold nothing that code can set, or show it in their bytes."""

_LEFT_ALONE = (types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType, type)
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
"""Flags of classes: made at run time, and by C."""


def is_library(kind: type) -> bool:
    """Whether a class is one of the standard library that may hold a count."""
    return kind.__module__.partition(".")[0].lstrip("_") in _LIBRARIES


def made_in_c(cls: type) -> bool:
    """Whether a class is none of Python's `class` statement, so that its objects hold more than attributes."""
    flags = cls.__flags__
    by_python = vars(cls).keys() & {"__dict__", "__weakref__", "__slots__"} or cls.__base__ is not object
    return not flags & _HEAP or bool(flags & _IMMUTABLE) or not by_python


def hides_state(kind: type) -> bool:
    """Whether objects of a class hold what cannot be looked into: those of C parts of the standard library or of torch."""
    if kind is weakref.ProxyType or kind is weakref.CallableProxyType or kind is np.nditer:
        return True
    if type(kind).__name__ == "pybind11_type":
        return not hasattr(kind, "__members__")
    for cls in kind.__mro__:
        root = cls.__module__.partition(".")[0].lstrip("_")
        known = root in _LIBRARIES or root in _WITHOUT_STATE or root not in _STANDARD
        if cls is not object and not known and made_in_c(cls):
            return True
    return hasattr(kind, "next_functions")  # a node of autograd's graph


_STANDARD = frozenset(name.lstrip("_") for name in sys.stdlib_module_names)

_CONTENTS: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (array.array, array.array.tobytes),
    (bytearray, bytearray.copy),
    (memoryview, memoryview.tobytes),
    (mmap.mmap, lambda value: mmap.mmap.__getitem__(value, slice(None))),
    # `getbuffer` would move it in memory where something else holds its bytes; these know their hash, of whatever they held
    (io.BytesIO, lambda value: memoryview(io.BytesIO.getvalue(value)).tobytes()),
    (io.StringIO, io.StringIO.getvalue),
)
"""Classes whose objects keep their contents elsewhere in memory, and how to read them whatever a subclass says."""


_ARRAY_FLAGS: Any = np.ndarray.flags.__get__  # pyright: ignore[reportFunctionMemberAccess]


def own_state(value: Any) -> Iterator[object]:
    """What an object holds in itself: numbers and texts to compare."""
    kind = type(value)  # isinstance would ask a candidate's object for its class
    for cls, read in _CONTENTS:
        if issubclass(kind, cls):
            try:
                found = read(value)
            except ValueError:  # closed
                return
            yield hash(bytes(found) if isinstance(found, bytearray) else found)
    if issubclass(kind, np.ndarray):
        plain, base = np.ndarray.view(value, np.ndarray), np.ndarray.base.__get__(value)
        yield str((plain.shape, plain.dtype, plain.dtype.metadata, _ARRAY_FLAGS(value).num, plain.strides))
        yield plain.ctypes.data - base.ctypes.data if type(base) is np.ndarray else 0
        yield 0 if plain.dtype.hasobject else hash(plain.tobytes())
    elif kind is np.random.Generator:
        yield str(value.bit_generator.state)
    elif kind is np.random.RandomState:
        yield str(value.get_state(legacy=False))
    elif kind is torch.Generator:
        yield of_generator(value)
    elif kind is types.BuiltinFunctionType:
        yield f"{value.__module__}.{value.__qualname__}"
    elif kind is functools._lru_cache_wrapper:
        found = value.cache_info()
        yield f"{found.misses} {found.currsize}"
    elif not issubclass(kind, (*_LEFT_ALONE, memoryview)) and (library := _base(kind)) is not object:
        yield hash(ctypes.string_at(id(value) + _COUNT_BYTES, library.__basicsize__ - _COUNT_BYTES))


def of_tensor(value: torch.Tensor) -> Iterator[object]:
    """What a tensor holds: its view of its memory, that memory where it is real, the length of its history in autograd."""
    with no_torch_functions():
        yield id(type(value)), value.layout, value.is_conj(), value.is_neg(), value.retains_grad
        if value.layout is torch.strided:
            storage = value.untyped_storage()
            recorder = Recorder.current
            extent = recorder.extent(value) if recorder is not None else (value.storage_offset(), storage.nbytes())
            yield tuple(value.shape), value.stride(), extent
            yield _is_on_host(value)
            if value.device.type == "cpu":
                yield hash(ctypes.string_at(storage.data_ptr(), storage.nbytes()))
        yield tuple(value.shape), value.dtype, value.requires_grad
        yield _length_of_history(value.grad_fn)


def _is_on_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor would be in host memory in a real run."""
    return Recorder.current is not None and Recorder.current.is_cpu(tensor)


def _length_of_history(last: Any) -> int:
    seen, left = set[Any](), [last]
    while left and len(seen) < _LONGEST_HISTORY:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions]
    return len(seen)


_LONGEST_HISTORY = 10_000


def of_generator(generator: torch.Generator) -> int:
    """The state of torch's generator of random numbers."""
    with no_torch_functions(), no_dispatch():
        return hash(generator.get_state().numpy().tobytes())


_COUNT_BYTES = ctypes.sizeof(ctypes.c_ssize_t)
"""Of the count of references, which objects begin with."""


@functools.cache
def how_shown(kind: type) -> Callable[[Any], object] | None:
    """How objects of C that belong to torch, numpy or another library tell their value: a dtype, a device."""
    if issubclass(kind, np.dtype):
        return lambda value: f"{value} {value.metadata}"
    if issubclass(kind, torch.UntypedStorage):
        return torch.UntypedStorage.nbytes
    if type(kind).__name__ == "pybind11_type":
        return int if hasattr(kind, "__int__") else None
    return _text if type(kind.__repr__) is types.WrapperDescriptorType and kind.__repr__ is not object.__repr__ else None


def _text(value: Any) -> str:
    text = repr(value)
    return "" if " at 0x" in text else text


@functools.cache
def slots(kind: type) -> tuple[tuple[str, types.MemberDescriptorType], ...]:
    """The attributes that objects of a library's class keep outside a dict."""
    named = ((name, slot) for cls in kind.__mro__ for name, slot in vars(cls).items())
    return tuple((name, slot) for name, slot in named if type(slot) is types.MemberDescriptorType)


def _base(kind: type) -> type:
    """The class written in C that a class of objects derives from."""
    return next((one for one in kind.__mro__ if not one.__flags__ & _HEAP or one.__module__ != "candidate"), object)


def inside(value: Any) -> Iterator[Any]:
    """Objects that an object of the standard library holds."""
    kind = type(value)
    if kind is contextvars.ContextVar:
        yield value.get(None)
    elif issubclass(kind, weakref.ReferenceType):
        yield weakref.ReferenceType.__call__(value)
    elif issubclass(kind, collections.deque):
        yield list(collections.deque.__iter__(value))
    elif issubclass(kind, np.ndarray):
        plain = np.ndarray.view(value, np.ndarray)
        yield plain.tolist() if plain.dtype.hasobject else None
        yield np.ndarray.base.__get__(value)
    elif kind is functools._lru_cache_wrapper:
        yield from _results(value)
    elif not issubclass(kind, np.generic):
        yield from (one for one in gc.get_referents(value) if not _is_of_library(one))


def _results(cache: Any) -> Iterator[Any]:
    """What an lru_cache keeps: keys and results, or a dict of them where it has no limit."""
    for held in gc.get_referents(cache):
        if not _is_of_library(held):
            yield [one for one in held.values() if type(one).__name__ != "_lru_list_elem"] if type(held) is dict else held


def _is_of_library(one: Any) -> bool:
    """Whether nothing of a candidate hangs on an object that others hold: frames, classes and modules of libraries."""
    if issubclass(type(one), type):
        return made_in_c(one)
    return issubclass(type(one), types.FrameType | types.CodeType) or (
        issubclass(type(one), types.ModuleType) and one.__spec__ is not None
    )


_SETTINGS: dict[str, Callable[[], object]] = {
    "sys.get_int_max_str_digits()": sys.get_int_max_str_digits, "sys.getdlopenflags()": sys.getdlopenflags,
    "sys.get_coroutine_origin_tracking_depth()": sys.get_coroutine_origin_tracking_depth,
    "csv.field_size_limit()": csv.field_size_limit, "socket.getdefaulttimeout()": socket.getdefaulttimeout,
    "threading.stack_size()": threading.stack_size, "os.getcwd()": os.getcwd, "locale": lambda: locale.setlocale(locale.LC_ALL),
    "numpy.geterr()": lambda: f"{np.geterr()} {id(np.geterrcall())}", "numpy.getbufsize()": np.getbufsize,
    "numpy.get_printoptions()": lambda: str(np.get_printoptions()),
    "torch.get_num_interop_threads()": torch.get_num_interop_threads,
    "torch's print options": lambda: str(torch._tensor_str.PRINT_OPTS),  # pyright: ignore[reportAttributeAccessIssue]
    "the number of threads made": lambda: repr(getattr(vars(threading).get("_counter"), "__self__", None)),
    "os.getpriority()": lambda: os.getpriority(os.PRIO_PROCESS, 0),
}  # fmt: skip
"""Numbers of the process that may be set, and who says what they are."""
_NO_SETTING = ("_mode", "_trace", "_metadata", "_state", "_group")
_OF_TORCH: list[Callable[[], object]] = [
    *(
        ask
        for name, ask in vars(torch._C).items()
        if name.startswith("_get_") and f"_s{name[2:]}" in vars(torch._C) and not name.endswith(_NO_SETTING)
    ),
    *(torch.is_autocast_cache_enabled, torch.is_warn_always_enabled, torch.is_anomaly_check_nan_enabled),
]
_CASTING = [
    name for name in ("cpu", "cuda", "xpu", "mps", "hpu", "xla", "mtia", "maia") if torch.amp.is_autocast_available(name)
]
"""Kinds of devices for which autocast has a dtype."""
_LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def of_process() -> Iterator[tuple[str, object]]:
    """Numbers that belong to the process, in which a forward could count."""
    yield "sys.getrecursionlimit()", sys.getrecursionlimit()
    yield "sys.getswitchinterval()", sys.getswitchinterval()
    yield "torch.get_num_threads()", torch.get_num_threads()
    yield "os.environ", hash(tuple(sorted(os.environ._data.items())))  # pyright: ignore[reportAttributeAccessIssue]
    contexts = decimal.getcontext(), decimal.DefaultContext, decimal.BasicContext, decimal.ExtendedContext
    yield "decimal's contexts", [repr(context) for context in contexts]
    yield "torch's settings", [ask() for ask in _OF_TORCH]
    yield "torch.get_autocast_dtype()", [torch.get_autocast_dtype(device) for device in _CASTING]
    yield "torch.autocast_increment_nesting()", (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting())
    yield "atexit", atexit._ncallbacks()
    yield "contextvars.copy_context()", len(contextvars.copy_context())
    yield "ctypes.get_errno()", ctypes.get_errno()
    yield "gc.get_debug()", (gc.get_debug(), gc.isenabled())
    for name, ask in _SETTINGS.items():
        yield name, ask()
    mask = os.umask(0o77)
    os.umask(mask)
    yield "os.umask()", mask
    for name in _LIMITS:
        yield f"resource.{name}", resource.getrlimit(getattr(resource, name))
    yield "random.getstate()", hash(random.getstate())
    kind, numbers, *rest = np.random.get_state()
    yield "numpy.random.get_state()", (kind, hash(numbers.tobytes()), *rest)  # pyright: ignore[reportAttributeAccessIssue]
    yield "torch's default generator", of_generator(torch.default_generator)
    yield "gc.get_threshold()", str(gc.get_threshold())
    yield "warnings.filters", len(warnings.filters)
    yield "signal.pthread_sigmask()", sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    yield "abc.get_cache_token()", abc.get_cache_token()
    yield "files", str(sorted(_files(".")))


def _files(folder: str) -> Iterator[tuple[object, ...]]:
    """What is below a folder, and when it was last changed: that time cannot be set."""
    for found in os.scandir(folder):
        about = found.stat(follow_symlinks=False)
        yield found.path, about.st_ino, about.st_size, about.st_ctime_ns
        if found.is_dir(follow_symlinks=False):
            yield from _files(found.path)
