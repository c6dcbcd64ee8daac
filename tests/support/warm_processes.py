"""Processes of the verifier that need not import torch and triton again, which takes two CPU seconds: forks of one that has."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kernrl.verifier.rpc.fork_server import ForkServer
from support import forked_python

READ_BY_LIBRARIES = ("GLIBC", "LD_", "MALLOC", "MKL", "OMP", "OPENBLAS", "PYTHON", "TORCH")
"""Beginnings of the variables that torch and triton read when they are loaded; a fork can still be given any other."""
READ_WHEN_NEEDED = "TORCHINDUCTOR_CACHE_DIR"
"""torch sets it itself as soon as something compiles: every server would be started once more."""

REAPED_MS = 2000

_servers: dict[str, ForkServer] = {}


class ForkedProcess:
    """What the verifier asks of a `subprocess.Popen`, of a fork."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None, pass_fds: Sequence[int], stdout: int | None, **_: Any
    ) -> None:
        environment = dict(os.environ if env is None else env)
        asked = {"text": command[3], "config": command[4], "environment": environment, "cwd": os.getcwd()}
        with _server(environment).fork(asked, pass_fds[0], 1 if stdout is None else stdout) as ours:
            self.pid = int(ours.recv(32))
            self._handle = os.pidfd_open(self.pid)
            ours.send(b"go")

    def kill(self) -> None:
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        except ProcessLookupError:  # it has ended
            return

    def wait(self, timeout: float | None = None) -> None:
        """Return once it has ended and its number is free. Raises `subprocess.TimeoutExpired`."""
        if not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        with contextlib.suppress(ProcessLookupError):
            for _ in range(REAPED_MS):  # its parent, which is another process, has yet to see that
                signal.pidfd_send_signal(self._handle, 0)
                time.sleep(0.001)

    def __del__(self) -> None:
        os.close(self._handle)


def _server(environment: Mapping[str, str]) -> ForkServer:
    """The one whose libraries were loaded in such an environment."""
    read = ((name, value) for name, value in environment.items() if name.startswith(READ_BY_LIBRARIES))
    key = json.dumps(sorted(item for item in read if item[0] != READ_WHEN_NEEDED))
    if key not in _servers:
        _servers[key] = ForkServer("the server of forked processes", forked_python.__name__, {}, env=dict(environment))
    return _servers[key]


class _Subprocess:
    """Stands for the module `subprocess` where the verifier starts processes."""

    DEVNULL = subprocess.DEVNULL

    @staticmethod
    def Popen(command: Sequence[str], **options: Any) -> ForkedProcess | subprocess.Popen[bytes]:
        to_be_forked = json.loads(command[4])["module"] == forked_python.__name__
        return subprocess.Popen(command, **options) if to_be_forked else ForkedProcess(command, **options)


@contextmanager
def started_as_forks() -> Iterator[None]:
    """Processes that the verifier starts meanwhile are forks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernrl.verifier.rpc.processes.subprocess", _Subprocess)
        yield


def close() -> None:
    """End every process that was started as one."""
    while _servers:
        _servers.popitem()[1].close()
