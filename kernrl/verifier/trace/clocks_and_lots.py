"""What forward may not ask: the time, a lot, the process, the machine's load, files, and the frames that called it.

Each of them may differ from call to call or from trace to use. Names are replaced in their modules; what belongs to classes of
C is replaced by subclasses. A lot with a seed is no lot: it is the same in every call.
"""

from __future__ import annotations

import _datetime  # pyright: ignore[reportMissingImports]  (it has no stub)
import _random
import datetime
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Guard = Callable[..., Callable[..., Any]]
"""`guard(function, name, always=False)`: the function, which refuses where a candidate's forward calls it."""

_SYSTEM = "getpid getppid urandom getrandom times getloadavg getrusage stat lstat listdir scandir open sched_getaffinity"

ASKED = {
    "time": "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns localtime gmtime"
    " ctime strftime clock_gettime clock_gettime_ns thread_time thread_time_ns",
    "timeit": "default_timer",
    "random": "random randint randrange uniform choice choices sample shuffle gauss getrandbits betavariate expovariate",
    "os": f"{_SYSTEM} getenv statvfs",
    "posix": _SYSTEM,
    "io": "open",
    "resource": "getrusage",
    "sys": "getrefcount getallocatedblocks",
    "gc": "get_count get_stats get_objects get_referrers",
    "tracemalloc": "get_traced_memory",
    "uuid": "uuid1 uuid4",
    "socket": "gethostname",
    "platform": "node uname",
    "threading": "get_ident get_native_id",
    "_thread": "get_ident get_native_id",
    "numpy.random": "random rand randn randint uniform normal choice random_sample",
    "torch": "get_num_threads",
    "torch._C": "_len_torch_dispatch_stack _get_dispatch_stack_at",
    "torch.cuda": "memory_allocated memory_reserved max_memory_allocated max_memory_reserved memory_stats memory_snapshot"
    " mem_get_info device_count",
    "weakref": "finalize getweakrefcount getweakrefs",
}
"""Functions that forward may not call, by module."""


def guard_classes(guard: Guard) -> None:
    """Replace what asks the same as `ASKED`, and belongs to a class. Once, before candidates."""
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
    _random.Random = guard(_random.Random, "_random.Random", always=False)
    _guard_dates(guard)
    _guard_numpy(guard)
    address = torch.Tensor._cdata
    torch.Tensor._cdata = property(guard(address.__get__, "Tensor._cdata", always=False))  # pyright: ignore


def _guard_dates(guard: Guard) -> None:
    """`now` and `today` of dates, which ask the system and not `time.time`."""

    def asked(cls: type, name: str) -> Any:
        return staticmethod(guard(getattr(cls, name), f"datetime.{cls.__name__}.{name}", always=False))

    date, moment = datetime.date, datetime.datetime
    for cls, names in ((date, ("today",)), (moment, ("now", "today", "utcnow"))):
        made = type(cls.__name__, (cls,), {"__module__": "datetime", **{name: asked(cls, name) for name in names}})
        for module in (datetime, _datetime):
            setattr(module, cls.__name__, made)


def _guard_numpy(guard: Guard) -> None:
    """Generators of numpy that are made without a seed."""
    by_chance = guard(lambda: None, "a generator of numpy without a seed", always=False)
    states, default_rng = np.random.RandomState, np.random.default_rng

    class RandomState(states):
        def __init__(self, seed: Any = None) -> None:
            if seed is None:
                by_chance()
            super().__init__(seed)

    def default(seed: Any = None) -> np.random.Generator:
        if seed is None:
            by_chance()
        return default_rng(seed)

    np.random.RandomState, np.random.default_rng = RandomState, default  # pyright: ignore
