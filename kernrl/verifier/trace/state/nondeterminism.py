"""What forward may not ask for: the time, random numbers, the process, the machine's load, files, and frames of its callers.

Each of them may differ from call to call or from trace to use. Functions are replaced in their modules and classes, and some
classes by subclasses. A generator with a seed is allowed: it gives the same numbers in every call.
"""

from __future__ import annotations

import _random
import ctypes
import datetime
import gc
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Guard = Callable[..., Callable[..., Any]]
"""`guard(function, name, always=False)`: the function, which refuses where a candidate's forward calls it."""

_SYSTEM = (
    "getpid getppid urandom getrandom times getloadavg getrusage stat lstat fstat listdir scandir open sched_getaffinity"
    " getpgid getpgrp getsid uname isatty ttyname getlogin access readlink read pread readv preadv lseek utime"
    " get_blocking set_blocking get_inheritable set_inheritable sched_getscheduler sched_setscheduler sched_getparam"
    " sched_setparam sched_setaffinity getxattr setxattr listxattr removexattr"
)
_FUNCTION_MODES = "_len_torch_function_stack _get_function_stack_at _is_torch_function_mode_enabled _is_torch_function_enabled"
_DISPATCH_KEYS = (
    "_dispatch_tls_is_dispatch_key_included _dispatch_tls_is_dispatch_key_excluded _dispatch_tls_local_include_set"
    " _dispatch_tls_local_exclude_set _dispatch_keys"
)

ASKED = {
    "time": "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns localtime gmtime"
    " ctime strftime clock_gettime clock_gettime_ns thread_time thread_time_ns",
    "timeit": "default_timer",
    "random": "random randint randrange uniform choice choices sample shuffle gauss getrandbits betavariate expovariate",
    "os": f"{_SYSTEM} getenv statvfs",
    "posix": _SYSTEM,
    "io": "open",
    "resource": "getrusage",
    "sys": "getrefcount getallocatedblocks getsizeof getrecursionlimit _debugmallocstats",
    "gc": "get_count get_stats get_objects get_referrers get_freeze_count",
    "ctypes": "addressof string_at wstring_at memmove memset cast",
    "tracemalloc": "get_traced_memory",
    "secrets": "randbits",
    "uuid": "uuid1 uuid4",
    "_uuid": "generate_time_safe",
    "socket": "gethostname",
    "platform": "node uname",
    "threading": "get_ident get_native_id",
    "ssl": "RAND_bytes RAND_pseudo_bytes",
    "_thread": "get_ident get_native_id",
    "numpy.random": "random rand randn randint uniform normal choice random_sample",
    "torch": "get_num_threads",
    "torch._C": f"_len_torch_dispatch_stack _get_dispatch_stack_at {_FUNCTION_MODES} {_DISPATCH_KEYS}",
    "torch.accelerator": "device_count memory_allocated memory_reserved max_memory_allocated max_memory_reserved memory_stats"
    " get_memory_info",
    "torch.cuda": "memory_allocated memory_reserved max_memory_allocated max_memory_reserved memory_stats memory_snapshot"
    " mem_get_info device_count",
    "weakref": "finalize getweakrefcount getweakrefs",
}
"""Functions that forward may not call, by module."""

_NUMPY_GENERATORS = ("RandomState", "SeedSequence", "MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_SEEDS = ("seed", "entropy", "key")
"""By which of these names each of them takes its seed; it is the first argument, too."""


def guard_classes(guard: Guard) -> None:
    """Replace methods and classes that give what `ASKED` gives. Once, before candidates."""
    if hasattr(random.SystemRandom.random, "__wrapped__"):
        return
    for name in ("random", "getrandbits", "randbytes"):
        setattr(
            random.SystemRandom, name, guard(getattr(random.SystemRandom, name), f"random.SystemRandom.{name}", always=False)
        )
    by_chance = guard(lambda: None, "random.Random() without a seed", always=False)
    seed = random.Random.seed

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None:
            by_chance()
        seed(self, a, version)

    random.Random.seed = seeded
    new = random.Random.__new__

    def made(cls: Any, *seeds: Any, **named: Any) -> Any:
        if not seeds and not named and sys._getframe(1).f_code.co_filename.endswith("candidate.py"):
            by_chance()
        return new(cls, *seeds, **named)

    random.Random.__new__ = made
    _random.Random = guard(_random.Random, "_random.Random", always=False)
    _guard_dates(guard)
    _guard_numpy(guard)
    for name in ("ident", "native_id"):
        asked: Any = vars(threading.Thread)[name]
        setattr(threading.Thread, name, property(guard(asked.fget, f"threading.Thread.{name}", always=False)))
    address = torch.Tensor._cdata
    torch.Tensor._cdata = property(guard(address.__get__, "Tensor._cdata", always=False))  # pyright: ignore


def _guard_dates(guard: Guard) -> None:
    """Guard `now` and `today` of dates, which ask the system and not `time.time`.

    Replaced in the classes themselves, though these are of C: no date that Python makes would be an instance of a subclass.
    """

    def of_class(method: Any) -> Callable[..., Any]:
        return lambda cls, *args, **kwargs: method.__get__(None, cls)(*args, **kwargs)

    for cls, names in ((datetime.date, ("today",)), (datetime.datetime, ("now", "utcnow"))):
        [table] = gc.get_referents(vars(cls))  # `vars` shows it, and lets nobody write
        for name in names:
            table[name] = classmethod(guard(of_class(table[name]), f"datetime.{cls.__name__}.{name}", always=False))
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


def _guard_numpy(guard: Guard) -> None:
    """Guard generators of numpy that are made without a seed."""
    by_chance = guard(lambda: None, "a generator of numpy without a seed", always=False)
    default_rng = np.random.default_rng

    def default(seed: Any = None) -> np.random.Generator:
        if seed is None:
            by_chance()
        return default_rng(seed)

    def seeded(cls: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if all(seed is None for seed in (*args[:1], *map(kwargs.get, _SEEDS))):
                by_chance()
            cls.__init__(self, *args, **kwargs)

        # of numpy, for whoever looks into what numpy's objects keep
        return type(cls.__name__, (cls,), {"__module__": cls.__module__, "__init__": init})

    np.random.default_rng = default  # pyright: ignore[reportAttributeAccessIssue]
    for name in _NUMPY_GENERATORS:
        cls = getattr(np.random, name)
        made = seeded(cls)
        for module in (np.random, sys.modules[cls.__module__]):
            setattr(module, name, made)
