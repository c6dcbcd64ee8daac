"""Run untrusted code: each request in a new confined process, forked from one that is warm.

A `Sandbox` owns a fork server (`confined.py`); `open` forks a child from it and returns a session with that child. The child
serves one candidate and ends. Whatever it says is data to be checked; how it ended is told by the fork server.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.frames import Channel
from kernrl.verifier.sandbox.isolation import Walls, features

__all__ = ["End", "Sandbox", "Session", "Walls", "features"]

_LOG_TAIL_BYTES = 4096
_GRACE_S = 1.0
"""Waited beyond a child's deadline for the fork server to kill it."""


@dataclass(frozen=True, slots=True)
class End:
    """How a child ended."""

    code: int
    """Exit code; a negative one is the signal that killed it."""
    timed_out: bool
    cpu_s: float
    """CPU seconds that it used."""
    log: str
    """The last 4 KiB of what it wrote to stdout and stderr. Untrusted text."""

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out


class Session:
    """One child: send and receive frames, then ask how it ended. A context manager; leaving it abandons the child."""

    def __init__(self, channel: socket.socket, log: int, status: int, deadline: float) -> None:
        self._channel, self._log, self._status, self._deadline = Channel(channel), log, status, deadline
        self._ended: End | None = None

    def send(self, payload: bytes) -> None:
        """Send one frame. A child that is gone is noticed by `recv`."""
        self._limit_wait()
        with contextlib.suppress(OSError):
            self._channel.send(payload)

    def recv(self) -> bytes | None:
        """The child's next frame, or None when it ended (or sent nonsense) first."""
        self._limit_wait()
        try:
            return self._channel.recv()
        except (OSError, ValueError):
            return None

    def _limit_wait(self) -> None:
        self._channel.sock.settimeout(max(0.1, self._deadline - time.monotonic() + _GRACE_S))

    def end(self) -> End:
        """Close the channel, wait for the child, and say how it ended. Raises InfrastructureError if the fork server died."""
        if self._ended:
            return self._ended
        self._channel.close()
        told = os.read(self._status, 4096)
        if not told:
            raise InfrastructureError("the sandbox's fork server died; its children are lost")
        size = os.fstat(self._log).st_size
        log = os.pread(self._log, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES)).decode(errors="replace")
        row = json.loads(told)
        self._ended = End(code=row["code"], timed_out=row["timeout"], cpu_s=row["cpu_s"], log=log)
        return self._ended

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._channel.close()
        os.close(self._log)
        os.close(self._status)


class Sandbox:
    """Forks one kind of confined child. Thread-safe; a dead fork server is replaced at the next request."""

    def __init__(self, module: str, *, walls: Walls, settings: dict[str, Any] | None = None, env: dict[str, str] | None = None):
        """`module` provides `prepare(settings)`, run once unconfined, and `handle(channel)`, run in each child."""
        self._forks = ForkServer(
            "the sandbox's fork server", "kernrl.verifier.sandbox.confined",
            {"module": module, "settings": settings or {}, "walls": asdict(walls)},
            env=_environment() | (env or {}), quiet=True,
        )  # fmt: skip

    @property
    def pid(self) -> int | None:
        """The fork server's process, when it runs."""
        return self._forks.pid

    def start(self) -> None:
        """Start the fork server now rather than at the first request. Raises InfrastructureError."""
        self._forks.start()

    def open(self, timeout_s: float) -> Session:
        """Fork a child that is killed, with all it started, after `timeout_s` seconds of wall time."""
        log = os.memfd_create("log", os.MFD_CLOEXEC)
        status, status_write = os.pipe2(os.O_CLOEXEC)
        try:
            channel = self._forks.fork({"timeout_s": timeout_s, "report": True}, log, status_write)
        except BaseException:
            os.close(log)
            os.close(status)
            raise
        finally:
            os.close(status_write)
        return Session(channel, log, status, time.monotonic() + timeout_s)

    def close(self) -> None:
        """End the fork server and every child, for good."""
        self._forks.close()


def _environment() -> dict[str, str]:
    """The child's whole environment: of the caller's, only where libraries are."""
    keep = {k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ}
    return keep | {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        # Inductor asks for it when it is imported, and a child may not see the list of users
        "LOGNAME": "kernrl",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        # one thread a child: the machine's cores are shared between children
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        # a compiler soon allocates again what it has freed; returning memory to the kernel would cost a fault a page
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TOP_PAD_": str(64 << 20),
    }
