"""What a module must leave alone: clocks and random numbers in forward, work for later, and the modules of others.

A plan shows what one forward did. A module that decides by the calendar, that sets an alarm, or that replaces
`torch.allclose` is right in the trace and wrong in use. A candidate could undo what is installed here: this keeps verdicts on
honest modules right, and makes it harder to cheat. Only for the trace child's process.
"""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import copyreg
import ctypes
import dataclasses
import functools
import gc
import importlib
import io
import operator
import os
import random
import select
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from kernrl.verifier.base import compat
from kernrl.verifier.trace.state import nondeterminism, other_modes, ownership, python_state
from kernrl.verifier.trace.state.library_state import Attributes, Dicts, LibraryState, namespace
from kernrl.verifier.trace.state.library_tables import LibraryTables
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

_FOREIGN = (
    *("builtins", "time", "random", "os", "math", "inspect", "gc", "statistics", "numpy", "numpy.testing"),
    *("torch", "torch.nn", "torch.nn.functional", "torch.nn.modules.module", "torch.nn.parameter", "torch.nn.init"),
    *("torch.cuda", "torch.testing", "torch.autograd", "torch.utils", "torch.linalg", "torch.overrides", "torch.backends"),
    *("triton", "triton.testing", "triton.language", "triton.language.core", "triton.language.math"),
    *("triton.language.standard", "triton.runtime", "triton.runtime.jit", "triton.runtime.autotuner", "triton.compiler"),
    *("sys", "copy", "copyreg", "torch.testing._comparison", "torch.utils.benchmark", "torch.utils.benchmark.utils.timer"),
    *("torch.profiler", "torch.autograd.profiler", "torch.autograd.grad_mode", "torch.optim", "torch.serialization"),
)
_OWN_NAMES = frozenset(("sys", "builtins", "math", "torch", "torch.nn", "torch.nn.functional", "triton", "triton.language"))
"""Modules on which a candidate may not leave names of its own, either."""
_CLASSES = (
    *("torch.testing._comparison:TensorLikePair", "torch.testing._comparison:NumberPair", "torch._ops:OpOverload"),
    *("torch.utils.benchmark.utils.timer:Timer", "torch.autograd.profiler:profile", "torch.profiler:profile"),
    *("torch:Tensor", "torch.nn:Module", "torch.nn:Linear", "triton.runtime.jit:JITFunction", "torch.cuda:Event"),
)
_HOOKS = tuple(f"_global_{name}_hooks" for name in ("forward", "forward_pre", "backward", "parameter_registration"))

_ATEN = "torch.ops.aten"
_VERSION = "Tensor._version"
_CALLED = frozenset(("_op", "_op_dk"))
"""Attributes of operators in which the functions of C are that they call."""
_FOUND_LATER = frozenset(("_dispatch_cache", "_lazy_handle", "is_view", "__annotations__"))
"""Attributes of operators that torch sets when they are first needed."""
_BODIES = ("py_kernels", "python_key_table", "functorch_table", "_dispatch_cache")
"""Tables of operators by which torch finds what they call under a mode."""
_NOT_OPERATORS = frozenset(("name",))
"""Names of `torch.ops.aten` that are no operators."""

_OVERLOAD = torch._ops.OpOverload

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
_settings: dict[str, Any] = {}
"""Torch's settings as they were."""
_before: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
"""Names of each module and class: as they are now, and as they were."""
_dicts: Dicts[str] | None = None
"""These names, torch's operators and the dicts of `_tables`. One that has not changed is not looked through."""
_knobs: dict[str, Any] = {}
"""Triton's settings as they were."""
_inherited: dict[str, frozenset[str]] = {}
_tables: list[tuple[str, Any, list[Any]]] = []
"""Name, object and contents of lists and dicts that decide how others import, copy and compute."""
_libraries: LibraryState | None = None
"""Everything that was loaded, as it was."""
_in_libraries: list[LibraryTables] = []
"""What the names of libraries stand for, as it was; after the first, of modules that a candidate has loaded."""
_added: dict[str, object] = {}
"""What a candidate has put there."""
_forked: dict[str, object] = {}
"""What forking has put there."""
_attributes: dict[int, frozenset[str]] = {}
"""Names that hang on each function of `_OWN_NAMES`."""
_on_functions: Attributes | None = None
_operators: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {}
"""Torch's operators and their overloads by name (`_named_operators`), and the attributes of each."""
_on_operators: Attributes | None = None
_bodies: Dicts[tuple[tuple[str, str], str]] | None = None
"""Their tables (`_BODIES`)."""


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
    another = limit + _lot.choice((0, _lot.randrange(_DEEPER)))
    sys.setrecursionlimit(another)
    try:
        yield
    finally:
        _in_forward = before
        if _recursion_limit() == another:
            sys.setrecursionlimit(limit)


def install() -> None:
    """Replace what may not be called, for good, and remember what modules hold. Once, before candidates."""
    global _libraries, _dicts, _on_functions, _on_operators, _bodies
    _guard_functions(nondeterminism.ASKED, always=False)
    _guard_functions(_LATER, always=True)
    _guard_frames()
    nondeterminism.guard_classes(_guarded)
    _guard_environment()
    _guard_counts()
    _guard_sizes()
    other_modes.install(asked_by_candidate)
    _fill_in()
    _knobs.update(compat.knobs())
    _settings.update(compat.torch_settings())
    for name in _FOREIGN:
        names = vars(sys.modules[name])
        _before[name] = names, dict(names)
    for one in _CLASSES:
        module, _, name = one.partition(":")
        _remember_class(f"{module}.{name}", getattr(sys.modules[module], name))
    for name, cls in vars(torch.nn).items():
        if isinstance(cls, type) and f"torch.nn.{name}" not in _before:
            _remember_class(f"torch.nn.{name}", cls)
    decompositions = importlib.import_module("torch._decomp").decomposition_table
    others = importlib.import_module("torch._decomp").global_decomposition_table
    tables = {
        "sys.meta_path": sys.meta_path, "sys.path_hooks": sys.path_hooks, "copyreg.dispatch_table": copyreg.dispatch_table,
        "torch._decomp.decomposition_table": decompositions, "copy._deepcopy_dispatch": vars(copy)["_deepcopy_dispatch"],
        "copy._copy_dispatch": vars(copy)["_copy_dispatch"],
        **{f"torch._decomp's table {name!r}": table for name, table in others.items() if table is not decompositions},
    }  # fmt: skip
    on = [value for place in _OWN_NAMES for value in _before[place][1].values() if type(value) is types.FunctionType]
    _attributes.update((id(value), frozenset(vars(value))) for value in on)
    _tables.extend((name, table, _contents(table)) for name, table in tables.items())
    operators = importlib.import_module("torch._ops")
    operators.OperatorBase.py_impl = _guarded(operators.OperatorBase.py_impl, "py_impl", always=True)
    ownership.know_libraries()
    _libraries = LibraryState()
    _in_libraries.append(LibraryTables(_libraries.namespaces()))
    names = {place: now for place, (now, _) in _before.items()}
    _dicts = Dicts({**names, _ATEN: vars(torch.ops.aten), **{n: one for n, one in tables.items() if isinstance(one, dict)}})
    _on_functions = Attributes(on)
    _operators.update((name, (one, dict(vars(one)))) for name, one in _named_operators())
    _on_operators = Attributes([one for one, _ in _operators.values()])
    _bodies = Dicts(
        {(n, table): vars(one)[table] for n, (one, _) in _operators.items() for table in _BODIES if table in vars(one)}
    )


def _fill_in() -> None:
    """Have libraries set what they set when it is first needed: it would seem to be replaced by the candidate who needs it."""
    for name in ("_strptime", *_FOREIGN, *(one.partition(":")[0] for one in _CLASSES)):  # the first sets `time.tzname`
        importlib.import_module(name)
    with torch.profiler.record_function("first"):
        pass
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            operator, _, overload = name.removeprefix("aten::").partition(".")
            with contextlib.suppress(AttributeError):  # some are for TorchScript alone
                getattr(getattr(torch.ops.aten, operator), overload or "default")


def _remember_class(place: str, cls: Any) -> None:
    if isinstance(cls, type):
        names = namespace(cls)
        _before[place] = names, dict(names)
        _inherited[place] = frozenset(attribute for base in cls.__mro__[1:] for attribute in vars(base))


def _contents(table: Any) -> list[Any]:
    return list(table.items()) if isinstance(table, dict) else list(table)


def add_module(name: str, module: types.ModuleType) -> None:
    """Put a candidate's module where others import it from."""
    if _libraries is None:
        sys.modules[name] = module
    else:
        _libraries.add_module(name, module)


def check_untouched(*, at_end: bool = False) -> None:
    """Raise Untraceable if anything that was there before the candidate is replaced, or is hooked. `at_end`: also in tables."""
    for name, value in compat.torch_settings().items() if _settings else ():
        if value != _settings[name]:
            raise Untraceable(f"the code changes torch's {name}: leave torch's settings as they are")
    changed = _dicts.changed() if _dicts else []
    for place in changed:
        now, before = _before.get(place, ({}, {}))
        if _same_objects(now, before):
            continue
        for name, value in now.items():
            # a new name of a class may hide one that it inherits
            if value is not before.get(name, value if name not in _inherited.get(place, ()) else None):
                raise Untraceable(f"the code replaces {place}.{name}: leave other modules as they are")
            if name not in before and (place in _OWN_NAMES or place in _inherited) and _is_data(value):
                raise Untraceable(f"the code leaves {place}.{name}: leave other modules as they are")
    if _on_functions is not None:
        _check_functions(_OWN_NAMES if _on_functions.changed() else _OWN_NAMES.intersection(changed))
    for name, value in vars(torch.ops.aten).items() if _ATEN in changed else ():
        if not name.startswith("_") and type(value) is not torch._ops.OpOverloadPacket and name not in _NOT_OPERATORS:
            raise Untraceable(f"the code replaces torch.ops.aten.{name}: leave other modules as they are")
    if _on_operators is not None and ((some := _on_operators.changed()) or _ATEN in changed):
        _check_operators(some)
    if _bodies is not None:
        _check_bodies(_bodies.changed())
    if _libraries is not None and (replaced := _libraries.replaced()):
        raise Untraceable(f"the code replaces {replaced}: leave other modules as they are")
    for one in _in_libraries[:1] if at_end else ():
        if replaced := one.replaced():
            raise Untraceable(f"the code replaces {replaced}: leave other modules as they are")
    for name, table, contents in _tables:
        if isinstance(table, dict) and name not in changed:
            continue
        now = _contents(table)
        if len(now) != len(contents) or any(a is not b and a != b for a, b in zip(now, contents, strict=True)):
            raise Untraceable(f"the code changes {name}: leave other modules as they are")
    for name, value in compat.knobs().items() if _knobs else ():
        if value != _knobs.get(name):
            raise Untraceable(f"the code changes triton.knobs.{name}: leave Triton's settings as they are")
    for name in _HOOKS:
        if getattr(torch.nn.modules.module, name, None):
            raise Untraceable("the code hooks every module: leave other modules as they are")
    if gc.callbacks:
        raise Untraceable("the code leaves a callback with Python's garbage collector: do the work in forward()")


def _check_operators(changed: Iterable[int]) -> None:
    """Raise Untraceable if an operator, or an overload of one, is replaced or calls something else. There may be others than at
    first, which are made when they are first asked for. `changed`: places in `_operators`, to look at where no name is left."""
    known = list(_operators.items())
    for name, one in (*_named_operators(), *((known[i][0], known[i][1][0]) for i in changed)):
        before, attributes = _operators.get(name, (one, vars(one)))
        if one is not before:
            raise Untraceable(f"the code replaces torch.ops.aten.{name[0]}: leave other modules as they are")
        for key, value in vars(one).items():
            called = key in _CALLED and type(value) is not types.BuiltinFunctionType
            found_later = key in _FOUND_LATER or (type(value) is _OVERLOAD and value.__name__ == f"{one.__name__}.{key}")
            if called or (not found_later and attributes.get(key, _FOUND_LATER) is not value):
                what = f"torch.ops.aten.{name[0]}" if type(value) is _OVERLOAD else f"what {one} calls ({key})"
                raise Untraceable(f"the code replaces {what}: leave other modules as they are")


def _check_bodies(changed: Iterable[tuple[tuple[str, str], str]]) -> None:
    """Raise Untraceable if a function in these tables of operators is none of torch."""
    for name, table in changed:
        operator = _operators[name][0]
        for body in vars(operator)[table].values():
            if callable(body) and not ownership.was_there(body):
                raise Untraceable(f"the code replaces what {operator} calls: leave other modules as they are")


def _named_operators() -> Iterator[tuple[tuple[str, str], Any]]:
    """Torch's operators by name and "", and their overloads by both names."""
    for name, packet in vars(torch.ops.aten).items():
        if type(packet) is torch._ops.OpOverloadPacket:
            yield (name, ""), packet
            yield from (((name, key), one) for key, one in vars(packet).items() if type(one) is torch._ops.OpOverload)


def begin() -> None:
    """In the process of a candidate, before it runs: what the fork put into libraries is not the candidate's."""
    if _libraries is not None:
        _forked.update(_libraries.names()[1])


def library_names() -> dict[str, object]:
    """What is another after code sets a name of a library, or changes what it has put there."""
    if _libraries is None:
        return {}
    found, added = _libraries.names()
    mine = {place: value for place, value in (added | _added).items() if _forked.get(place, _forked) is not value}
    return found | python_state.hung(mine)


def library_tables() -> dict[str, object]:
    """What is another after code changes what names of libraries stand for."""
    if _libraries is None:
        return {}
    if new := _libraries.of_new_modules():
        _in_libraries.append(LibraryTables(new, whole=True))
    found: dict[str, object] = {"sys.modules": len(sys.modules)}
    for one in _in_libraries:
        changed, added = one.changed()
        found |= changed
        _added.update(added)
    return found


def open_files() -> dict[int, tuple[int, int]]:
    """The files that are open, by number: what each is."""
    asked = _poll()
    for number in range(_MOST_FILES):
        asked.register(number)
    closed = {number for number, events in asked.poll(0) if events & _CLOSED}
    return {n: (about.st_dev, about.st_ino) for n in range(_MOST_FILES) if n not in closed for about in (_fstat(n),)}


_poll, _CLOSED, _fstat = select.poll, select.POLLNVAL, os.fstat
_MOST_FILES = 256
"""Numbers looked at. A process may open as many, and gives the lowest first."""


def check_closed(before: Mapping[int, tuple[int, int]]) -> None:
    """Raise Untraceable if a file is open that was not: what is read from it is not in the plan, and it may keep a count."""
    if open_files() != before:
        raise Untraceable("the code leaves a file open: close it, and keep what it says in tensors")


def _check_functions(places: Iterable[str]) -> None:
    """Raise Untraceable if a function of these modules has an attribute that it did not have."""
    for place in places:
        for name, value in _before[place][0].items():
            if type(value) is not types.FunctionType or not (own := vars(value)):
                continue
            if left := own.keys() - _attributes.get(id(value), frozenset()):
                raise Untraceable(f"the code leaves {min(left)} on {place}.{name}: leave other modules as they are")


_all, _map, _len, _is = all, map, len, operator.is_
"""As they were before any candidate, which may have replaced Python's."""


def _same_objects(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether two namespaces hold the same objects under the same names, in the same order. Compares without Python code of
    either, as tens of thousands of names are looked at for each candidate."""
    return _len(now) == _len(before) and _all(_map(_is, now.values(), before.values())) and [*now] == [*before]


def _is_data(value: Any) -> bool:
    return isinstance(value, int | float | str | bytes | list | dict | set)


def _guard_functions(functions: Mapping[str, str], *, always: bool) -> None:
    """Replace functions, by module; those that this platform has."""
    for module, names in functions.items():
        with contextlib.suppress(ImportError):
            found = importlib.import_module(module)
            for name in names.split():
                function = getattr(found, name, None)
                if function is not None and not hasattr(function, "__wrapped__"):
                    setattr(found, name, _guarded(function, f"{module}.{name}", always=always))


def _guarded(function: Callable[..., Any], name: str, *, always: bool) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def guarded(*args: Any, **kwargs: Any) -> Any:
        inside = name.endswith(".get_ident") and id(_frame(1).f_globals) in _TELL_THREADS_APART
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
