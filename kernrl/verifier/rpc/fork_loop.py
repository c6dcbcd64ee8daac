"""The inside of a fork server: one child a request, killed at its deadline, until the control socket closes."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

READY = b"ready"
_MAX_REQUEST_BYTES = 1 << 16
_MAX_DESCRIPTORS = 3
_IDLE_S = 60.0


class Child(Protocol):
    """What the server does for one request."""

    def run(self, descriptors: Sequence[int]) -> None:
        """In the child: serve the socket that is `descriptors[0]`. The process exits when this returns."""
        ...

    def clean_up(self) -> None:
        """In the fork server, once the child has ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Running:
    child: Child
    deadline: float | None
    """On the monotonic clock."""
    status: int | None
    """Pipe on which the child's end is reported."""


def freeze_memory() -> None:
    """Exempt what is imported by now from garbage collection, which would take long and write to pages that children share."""
    gc.collect()
    gc.freeze()


def serve_forks(control: socket.socket, make: Callable[[dict[str, Any]], Child]) -> None:
    """Say that the server is ready, fork a child for each request until the control socket closes, then kill every child.

    A request is JSON, sent with the child's descriptors, its socket first. `timeout_s` is the child's deadline from now, or
    null. If `report` is true, the last descriptor is a pipe that the server keeps; when the child has ended it writes to that
    `{"timeout": whether it was killed at its deadline, "code": its exit code, "cpu_s": its CPU seconds}`. `make` is called
    before the fork.
    """
    loop = _ForkLoop(control, make)
    try:
        control.send(READY)
    except OSError:  # closed while this process was starting
        return
    loop.run()


class _ForkLoop:
    def __init__(self, control: socket.socket, make: Callable[[dict[str, Any]], Child]) -> None:
        self._control, self._make = control, make
        self._children: dict[int, _Running] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        while True:
            now = time.monotonic()
            deadlines = [one.deadline for one in self._children.values() if one.deadline is not None]
            wait_s = max(0.0, min(deadlines, default=now + _IDLE_S) - now)
            ready, _, _ = select.select([self._control, self._wake_read], [], [], wait_s)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            if self._control in ready and not self._accept():
                break
            self._reap()
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _accept(self) -> bool:
        """Serve one request; returns False when the control socket has closed."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, _MAX_REQUEST_BYTES, _MAX_DESCRIPTORS)
        except ConnectionResetError:  # closed before our last message was read
            return False
        if not message:
            return False
        request = json.loads(message)
        timeout_s = request.get("timeout_s")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        status = descriptors.pop() if request.get("report") else None
        child = self._make(request)
        pid = os.fork()
        if pid == 0:
            self._become(child, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[pid] = _Running(child, deadline, status)
        return True

    def _become(self, child: Child, descriptors: Sequence[int]) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            child.run(descriptors)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        now = time.monotonic()
        for pid, one in list(self._children.items()):
            late = one.deadline is not None and now >= one.deadline
            if late:
                os.kill(pid, signal.SIGKILL)
            done, wait_status, used = os.wait4(pid, 0 if late else os.WNOHANG)
            if not done:
                continue
            del self._children[pid]
            if one.status is not None:
                cpu_s = used.ru_utime + used.ru_stime
                end = {"timeout": late, "code": os.waitstatus_to_exitcode(wait_status), "cpu_s": cpu_s}
                with contextlib.suppress(OSError):  # the client may be gone
                    os.write(one.status, json.dumps(end).encode())
                os.close(one.status)
            one.child.clean_up()
