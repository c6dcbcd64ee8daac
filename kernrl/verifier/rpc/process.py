"""The GPU processes from outside: started, asked with a time limit, killed when they hang, replaced when they die."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from kernrl.errors import InfrastructureError, UsageError

START_TIMEOUT_S, GONE_TIMEOUT_S = 120.0, 10.0


class Failed(RuntimeError):
    """The command raised; the process is well."""


class Died(RuntimeError):
    """A command cost the process its CUDA context; the next use starts another."""


class OutOfMemory(InfrastructureError):
    """The GPU's memory is full, of other things perhaps."""


class TimedOut(RuntimeError):
    """The process did not answer in time and was killed."""


class Nursery:
    """The fork server, started on first use. One for all GPUs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def fork(self, role: str, device: str, settings: dict[str, Any]) -> Connection:
        """A channel to a new process in that role."""
        with self._lock:
            ours, theirs = socket.socketpair()
            request = json.dumps({"role": role, "device": device, "settings": settings}).encode()
            try:
                socket.send_fds(self._running(), [request], [theirs.fileno()])
            except OSError:  # it died, and this is how that is noticed
                self._drop()
                socket.send_fds(self._running(), [request], [theirs.fileno()])
            theirs.close()
        return Connection(ours.detach())

    def start(self) -> None:
        """Start the fork server now; it is ready some seconds later."""
        with self._lock:
            self._running()

    def _running(self) -> socket.socket:
        if self._closed:
            raise InfrastructureError("the verifier is closed")
        if self._control is None or self._server is None or self._server.poll() is not None:
            self._drop()
            self._start()
        assert self._control is not None
        return self._control

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "kernrl.verifier.pool.fork_server", str(theirs.fileno())]
        self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._control = ours

    def close(self) -> None:
        """End the fork server and, with it, every process it forked, for good."""
        with self._lock:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(5)
            self._server.kill()
            self._server.wait()
        self._server = self._control = None


class Process:
    """One GPU process: `ask` starts it when there is none."""

    def __init__(self, nursery: Nursery, role: str, device: str, settings: dict[str, Any]):
        self._nursery, self._request = nursery, (role, device, settings)
        self._channel: Connection | None = None
        self._pid = self._owed = 0
        self._handle = -1
        self.starts = 0
        """How many processes there have been: whatever one was told, the next does not know."""

    @property
    def running(self) -> bool:
        return self._channel is not None

    def start(self) -> None:
        """Make sure that it runs. Raises InfrastructureError when it cannot."""
        if self._channel is not None:
            return
        try:
            try:
                channel, pid = self._forked()
            except (EOFError, OSError):  # a fork server on its way out takes requests with it
                channel, pid = self._forked()
        except (EOFError, OSError):
            raise InfrastructureError(f"the GPU's {self._request[0]} process died at once") from None
        self._channel, self._pid, self._owed = channel, pid, 0
        self.starts += 1

    def _forked(self) -> tuple[Connection, int]:
        role = self._request[0]
        channel = self._nursery.fork(*self._request)
        if not channel.poll(START_TIMEOUT_S):
            raise InfrastructureError(f"the GPU's {role} process did not start in {START_TIMEOUT_S:.0f} s.")
        state, value = channel.recv()
        if state != "ok":
            raise InfrastructureError(f"the GPU's {role} process cannot start: {value.strip().splitlines()[-1]}")
        self._handle = os.pidfd_open(value)
        return channel, value

    def send(self, method: str, *arguments: Any) -> None:
        """Ask without waiting. Commands are answered in order, each by one `receive`; `drain` drops what nobody waits for."""
        self.start()
        assert self._channel is not None
        try:
            self._channel.send((method, arguments))
        except OSError as error:
            self.kill()
            raise InfrastructureError(f"the {self._request[0]} process is gone ({error})") from None
        self._owed += 1

    def ready(self, timeout_s: float) -> bool:
        """Whether an answer is here, or comes within that time, or none can come any more: `receive` would not wait."""
        try:
            return self._channel is None or self._channel.poll(timeout_s)
        except (EOFError, OSError):
            return True

    def receive(self, timeout_s: float) -> Any:
        """The answer to the earliest `send` that has had none.

        Raises Failed, Died or TimedOut for what the command did, UsageError for the task's own trouble, and
        InfrastructureError when somebody else ended the process or the GPU's memory is full of other things.
        """
        if self._channel is None:
            raise InfrastructureError(f"the {self._request[0]} process is gone")
        try:
            if not self._channel.poll(timeout_s):
                self.kill()
                raise TimedOut(f"no answer within {timeout_s:g} s")
            state, value = self._channel.recv()
        except (EOFError, OSError):
            self.kill()
            raise InfrastructureError(f"the {self._request[0]} process was killed") from None
        self._owed -= 1
        if state == "ok":
            return value
        if state == "full":
            raise OutOfMemory(f"the GPU has no memory left: {value}")
        if state == "dead":
            self.kill()
            raise Died(value)
        raise UsageError(value) if state == "usage" else Failed(value)

    def drain(self, timeout_s: float) -> None:
        """Take the answers still owed and drop them."""
        while self._channel is not None and self._owed:
            with contextlib.suppress(Failed, Died, TimedOut, UsageError, InfrastructureError):
                self.receive(timeout_s)

    def ask(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """`send` and `receive`."""
        self.send(method, *arguments)
        return self.receive(timeout_s)

    def kill(self, *, wait: bool = True) -> None:
        """End it now, whatever its GPU is doing; with `wait`, come back when it has left the GPU."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        if wait:
            # a process has ended only once its devices are closed, and with them all that it had queued on them
            gone = select.poll()
            gone.register(self._handle, select.POLLIN)
            gone.poll(1e3 * GONE_TIMEOUT_S)
        os.close(self._handle)
        channel.close()
