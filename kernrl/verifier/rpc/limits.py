"""Limits that a worker sets on itself while it handles untrusted data: memory of the process, and CPU seconds of one call."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

CPU_SIGNAL = signal.SIGPROF
"""What a call that used up its CPU seconds is killed by, even inside a long call of a C library."""

CRASH_SIGNALS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL))
"""What a process dies of by its own doing; anything else came from outside."""


def data_bytes() -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) << 10


def limit_process_memory(more_bytes: int) -> None:
    """Let this process take that much more than it has now: an allocation beyond that fails, which spares the machine."""
    most = data_bytes() + more_bytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Within, the process is killed by `CPU_SIGNAL` after that many seconds of CPU time, over all its threads."""
    signal.signal(CPU_SIGNAL, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


class CpuClock:
    """CPU seconds of this process since the clock was made."""

    def __init__(self) -> None:
        self._begun = time.process_time()

    @property
    def seconds(self) -> float:
        return time.process_time() - self._begun
