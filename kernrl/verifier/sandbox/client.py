"""Run untrusted code: each request in a new confined process, forked from a warm one.

A `Sandbox` owns one zygote (see `zygote.py`); `open` forks a child from it and hands back the channel to that child. The
child serves one candidate and dies. Whatever it says is data to be checked; how it ended is told by the zygote.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.verifier.sandbox.fork_server import Channel
from kernrl.verifier.sandbox.isolation import Walls, features

__all__ = ["End", "Sandbox", "Session", "Walls", "features"]

_BOOT = (
    "import json,sys;c=json.loads(sys.argv[1]);sys.path[:]=c['path'];"
    "from kernrl.verifier.sandbox.fork_server import main;main(c)"
)
_LOG_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class End:
    """How a child ended."""

    code: int
    """Exit code; a negative one is the signal that killed it."""
    timed_out: bool
    log: str
    """The last 4 KiB of what it wrote to stdout and stderr. Untrusted text."""

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out


class Session:
    """One child: send and receive frames, then ask how it ended. A context manager; leaving it abandons the child."""

    def __init__(self, channel: socket.socket, log: int, status: int, deadline: float) -> None:
        self._channel, self._log, self._status, self._deadline = Channel(channel), log, status, deadline

    def send(self, payload: bytes) -> None:
        """Send one frame; a child that is gone is noticed by `recv`."""
        self._channel.sock.settimeout(max(0.1, self._deadline - time.monotonic() + 1.0))
        with contextlib.suppress(OSError):
            self._channel.send(payload)

    def recv(self) -> bytes | None:
        """The child's next frame, or None when it ended (or sent nonsense) first."""
        self._channel.sock.settimeout(max(0.1, self._deadline - time.monotonic() + 1.0))
        try:
            return self._channel.recv()
        except (OSError, ValueError):
            return None

    def end(self) -> End:
        """Close the channel, wait for the child, and tell how it ended. Raises InfrastructureError if the zygote died."""
        self._channel.sock.close()
        told = os.read(self._status, 4096)
        if not told:
            raise InfrastructureError("the sandbox's fork server died; its children are lost")
        size = os.fstat(self._log).st_size
        log = os.pread(self._log, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES)).decode(errors="replace")
        row = json.loads(told)
        return End(code=row["code"], timed_out=row["timeout"], log=log)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._channel.sock.close()
        os.close(self._log)
        os.close(self._status)


class Sandbox:
    """A fork server for one kind of child. Thread-safe; a dead zygote is replaced at the next request."""

    def __init__(self, module: str, *, walls: Walls, settings: dict[str, Any] | None = None, env: dict[str, str] | None = None):
        """`module` provides `prepare(settings)`, run once unconfined, and `handle(channel)`, run in each child."""
        self._module, self._walls, self._settings, self._env = module, walls, settings or {}, env or {}
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self.entered: dict[str, bool] = {}
        """Namespaces the running zygote has left."""

    def start(self) -> None:
        """Start the zygote now rather than at the first request."""
        with self._lock:
            self._ensure()

    def open(self, timeout_s: float) -> Session:
        """Fork a child that is killed, with all it started, after `timeout_s` seconds of wall time."""
        ours, theirs = socket.socketpair()
        log = os.memfd_create("log", os.MFD_CLOEXEC)
        status, status_write = os.pipe2(os.O_CLOEXEC)
        try:
            for attempt in range(2):
                try:
                    with self._lock:
                        control = self._ensure()
                        socket.send_fds(control, [struct.pack("=d", timeout_s)], [theirs.fileno(), log, status_write])
                    break
                except OSError as error:
                    self._drop()
                    if attempt:
                        raise InfrastructureError(f"the sandbox's fork server does not start: {error}") from error
        except BaseException:
            ours.close()
            os.close(log)
            os.close(status)
            raise
        finally:
            theirs.close()
            os.close(status_write)
        return Session(ours, log, status, time.monotonic() + timeout_s)

    def close(self) -> None:
        """End the zygote and every child, for good."""
        self._closed = True
        self._drop()

    def _ensure(self) -> socket.socket:
        if self._control is not None:
            return self._control
        if self._closed:
            raise InfrastructureError("the sandbox is closed")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = {
            "module": self._module,
            "settings": self._settings,
            "walls": asdict(self._walls),
            "control": theirs.fileno(),
            "path": [os.path.abspath(p) for p in sys.path],
        }
        command = [sys.executable, "-c", _BOOT, json.dumps(config)]
        log = os.memfd_create("zygote", os.MFD_CLOEXEC)
        self._process = subprocess.Popen(
            command,
            env=_environment() | self._env,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        theirs.close()
        ours.settimeout(120)
        hello = ours.recv(4096)
        if not hello:
            self._process.wait()
            said = os.pread(log, 1 << 16, 0).decode(errors="replace").strip()
            os.close(log)
            ours.close()
            raise InfrastructureError(
                f"the sandbox's fork server does not start: {said.splitlines()[-1] if said else 'no word'}"
            )
        os.close(log)
        ours.settimeout(None)
        self.entered = json.loads(hello)["entered"]
        self._control = ours
        return ours

    def _drop(self) -> None:
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None


def _environment() -> dict[str, str]:
    """The child's whole environment: nothing of the caller's but where its libraries are."""
    keep = {k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ}
    return keep | {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        # one thread a child: the machine's cores are shared among children, not within one
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        # memory that a compiler gives back it asks for again at once, and every page of it is a fault
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TOP_PAD_": str(64 << 20),
    }
