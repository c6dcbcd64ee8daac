"""Functions that refuse a candidate: questions of forward whose answers differ from call to call, and work for later.

A plan shows what one forward did. A module that decides by the calendar, or that sets an alarm, is right in the trace and
wrong in use. A candidate could undo what is installed here: this keeps verdicts on honest modules right, and makes it harder
to cheat. Only for the trace child's process.
"""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import dataclasses
import functools
import importlib
import io
import os
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from kernrl.verifier.trace.state import nondeterminism, other_modes
from kernrl.verifier.trace.state.library_state import namespace
from kernrl.verifier.trace.untraceable import Untraceable

_LATER = {
    "signal": "signal setitimer alarm set_wakeup_fd", "_thread": "start_new_thread",
    "sys": "settrace setprofile addaudithook set_asyncgen_hooks", "sys.monitoring": "use_tool_id register_callback",
    "threading": "settrace setprofile settrace_all_threads setprofile_all_threads",
    "os": "register_at_fork", "posix": "register_at_fork", "codecs": "register register_error",
    "faulthandler": "dump_traceback_later register", "gc": "freeze unfreeze",
    "torch._C": "_dispatch_library", "torch": "set_flush_denormal",
}  # fmt: skip
"""Functions that nothing of a candidate may call."""

_OF_THE_MACHINE = (
    "_asyncio _crypt _csv _curses _curses_panel _lsprof _multiprocessing _posixshmem _posixsubprocess _socket _sqlite3 _ssl"
    " _tkinter _tracemalloc faulthandler fcntl grp nis ossaudiodev pwd readline resource select spwd syslog termios"
)
"""Modules of C whose functions set and tell what belongs to the process or the machine: a log mask, flags of a file, a history
of lines. Nobody needs one to launch a kernel, and each is a place to count in."""
_WITHOUT_EFFECT = frozenset(("getpwuid", "getpwnam"))
"""Functions of these that find somebody's home."""
_TEXTS_OF_LOCALE = "setlocale textdomain bindtextdomain bind_textdomain_codeset gettext dgettext dcgettext"

_VERSION = "Tensor._version"

_HAVE_FRAMES = {
    types.TracebackType: "tb_frame", types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}  # fmt: skip
"""Other objects that have a frame, and where."""
_READERS = ("/inspect.py", "/traceback.py")
"""Files of the standard library through which frames are read."""

_TELL_THREADS_APART = frozenset(id(vars(module)) for module in (threading, dataclasses, sys.modules["_frozen_importlib"]))
"""Names of modules that ask for a thread's number themselves: whoever starts a thread is told so instead, a dataclass has a
repr(), and imports have locks."""

_frame = sys._getframe
_recursion_limit = sys.getrecursionlimit
_lot = random.SystemRandom()
_DEEPER = 500
"""Calls by which it may be deeper; never less deep, since Triton needs it."""

_in_forward = False
_importing = False


def builtins_of_a_candidate() -> dict[str, Any]:
    """Functions that stand for Python's own in a candidate's module: an address in memory is by chance."""

    def of_contents(value: Any) -> int:
        if _in_forward and type(value).__hash__ in (object.__hash__, torch.Tensor.__hash__, str.__hash__, bytes.__hash__):
            raise Untraceable(_sentence("hash() of an object", always=False))
        return hash(value)

    return {"id": _guarded(id, "id()", always=False), "hash": of_contents, "open": _guarded(open, "open()", always=False)}


@contextlib.contextmanager
def inside_forward() -> Iterator[None]:
    """Within, refuse questions whose answer may differ between calls: the time, random numbers, addresses, the process."""
    global _in_forward
    before, _in_forward = _in_forward, True
    # how deep calls may go depends on who calls: whoever finds out gets another answer in each call
    limit = _recursion_limit()
    another = limit + max(0, _lot.randrange(-_DEEPER, _DEEPER))
    sys.setrecursionlimit(another)
    try:
        yield
    finally:
        _in_forward = before
        if _recursion_limit() == another:
            sys.setrecursionlimit(limit)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Within, a candidate's module is executed, which happens once and may set up what it likes."""
    global _importing
    _importing = True
    try:
        yield
    finally:
        _importing = False


def install() -> None:
    """Replace what may not be called, for good. Once, before candidates."""
    _guard_functions(nondeterminism.ASKED, always=False)
    _guard_functions(_LATER, always=True)
    _guard_machine()
    _guard_frames()
    nondeterminism.guard_classes(_guarded)
    _guard_environment()
    _guard_counts()
    _guard_sizes()
    other_modes.install(asked_by_candidate)
    operators = importlib.import_module("torch._ops")
    operators.OperatorBase.py_impl = _guarded(operators.OperatorBase.py_impl, "py_impl", always=True)


def _guard_functions(functions: Mapping[str, str], *, always: bool) -> None:
    """Replace functions, by module; those that this platform has."""
    for module, names in functions.items():
        with contextlib.suppress(ImportError):
            found = importlib.import_module(module)
            for name in names.split():
                function = getattr(found, name, None)
                if function is not None and not hasattr(function, "__wrapped__"):
                    setattr(found, name, _guarded(function, f"{module}.{name}", always=always))


def _guard_machine() -> None:
    """Replace functions of `_OF_THE_MACHINE`, also where Python's own modules have them."""
    named = dict.fromkeys(_OF_THE_MACHINE.split(), "") | {"_locale": _TEXTS_OF_LOCALE}
    guards: dict[int, tuple[Any, Callable[..., Any]]] = {}
    for module, names in named.items():
        with contextlib.suppress(ImportError):
            found = vars(importlib.import_module(module))
            for name in names.split() or found.keys() - _WITHOUT_EFFECT:
                if type(function := found.get(name)) is types.BuiltinFunctionType:
                    guards[id(function)] = function, _of_machine(function, f"{module.lstrip('_')}.{name}")
    for module in [one for name, one in sys.modules.items() if name.partition(".")[0] in sys.stdlib_module_names]:
        for name, value in list(vars(module).items()):
            if id(value) in guards:
                setattr(module, name, guards[id(value)][1])


def _of_machine(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not _importing and asked_by_candidate():
            raise Untraceable(f"{name} sets or tells what belongs to the process, and may change between calls: do without it")
        return function(*args, **kwargs)

    return guarded


def _guarded(function: Callable[..., Any], name: str, *, always: bool) -> Callable[..., Any]:
    tells_threads_apart = name.endswith(".get_ident")

    @functools.wraps(function, updated=())
    def guarded(*args: Any, **kwargs: Any) -> Any:
        inside = tells_threads_apart and id(_frame(1).f_globals) in _TELL_THREADS_APART
        if (always or _in_forward) and not inside and asked_by_candidate():
            raise Untraceable(_sentence(name, always=always))
        return function(*args, **kwargs)

    return guarded


def _sentence(name: str, *, always: bool) -> str:
    if always:
        return f"{name} leaves work for later or for others, which is not traced: call things in order"
    if name == _VERSION:
        return f"forward() calls {name}, which counts writes: compute what is made of weights in every call, without a cache"
    if name == "os.environ":
        return f"forward() calls {name}, which may change from call to call: ask it when the module is imported"
    return f"forward() calls {name}: its work may depend only on shapes and arguments, not on time, chance or the process"


def asked_by_candidate(depth: int = 2) -> bool:
    """Whether a guarded function was called from a candidate's code, perhaps through the standard library. `depth`: frames up
    to its caller."""
    frame = _frame(depth)
    for _ in range(4):
        if frame is None:
            return False
        path = frame.f_code.co_filename
        if path.endswith("candidate.py"):
            return True
        ours = path == nondeterminism.__file__
        if not ours and any(f"/{package}/" in path for package in ("torch", "triton", "kernrl", "numpy")):
            return False
        frame = frame.f_back
    return False


def _guard_frames() -> None:
    """Refuse frames, which tell who has called the code, where a candidate asks for them, itself or through `inspect`. Python
    needs them itself, for named tuples and logging."""

    def check(name: str) -> None:
        file = _frame(2).f_code.co_filename
        if file.endswith("candidate.py") or (file.endswith(_READERS) and asked_by_candidate(3)):
            raise Untraceable(f"the code calls {name}: what it does may not depend on who calls it, nor change that")

    def guarded(name: str, shown: Any) -> property:
        def get(one: Any) -> Any:
            check(name)
            return shown.__get__(one)

        return property(get)

    def getframe(depth: int = 0, /) -> types.FrameType:
        check("sys._getframe")
        return _frame(depth + 1)

    def current_frames() -> dict[int, types.FrameType]:
        check("sys._current_frames")
        return frames()

    if sys._getframe is _frame:
        frames = sys._current_frames
        sys._getframe, sys._current_frames = getframe, current_frames
        for kind, name in _HAVE_FRAMES.items():  # an audit hook would be asked at every id(), too
            names = namespace(kind)
            names[name] = guarded(name, names[name])
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _guard_counts() -> None:
    """What torch and Python count by themselves: hits of a cache, writes to a tensor; and where a tensor's memory lies."""
    cached = functools.lru_cache

    def with_guard(made: Any) -> Any:
        made.cache_info = _guarded(made.cache_info, "cache_info", always=False)
        return made

    @functools.wraps(cached)
    def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
        found = cached(maxsize, typed)
        return with_guard(found) if callable(maxsize) else lambda function: with_guard(found(function))

    if not hasattr(cached, "__wrapped__"):
        functools.lru_cache = lru_cache  # pyright: ignore[reportAttributeAccessIssue]
        python_cached: Any = functools._lru_cache_wrapper
        _guard_methods(python_cached, "cache_info")
        version = torch.Tensor._version
        torch.Tensor._version = property(_guarded(version.__get__, _VERSION, always=False))  # pyright: ignore[reportAttributeAccessIssue]
        address = torch.UntypedStorage.data_ptr
        torch.UntypedStorage.data_ptr = _guarded(address, "the data_ptr() of a storage", always=False)


def _guard_sizes() -> None:
    """What tells how much memory an object has: a list that was longer keeps it. And ctypes, which writes anywhere."""
    for kind in (list, dict, set, bytearray, collections.deque, collections.OrderedDict, array.array, io.BytesIO, io.StringIO):
        _guard_methods(kind, "__sizeof__", "__alloc__")
    for kind in (ctypes.c_int, ctypes.Structure, ctypes.Union, ctypes.c_void_p, ctypes.c_int * 1, ctypes.CFUNCTYPE(None)):
        for cls in type(kind).__mro__[:-2]:
            _guard_methods(cls, "from_address", "in_dll")


def _guard_methods(kind: Any, *names: str) -> None:
    """Guard methods of C; those that a class has itself."""
    inside = namespace(kind)
    for name in names:
        if isinstance(method := inside.get(name), types.MethodDescriptorType):
            inside[name] = _guarded(method, f"{kind.__name__}.{name}", always=False)
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _guard_environment() -> None:
    environment: Any = type(os.environ)
    if not hasattr(environment.__getitem__, "__wrapped__"):
        for name in ("__getitem__", "__iter__", "__len__"):
            setattr(environment, name, _guarded(getattr(environment, name), "os.environ", always=False))
