"""A fork server from outside: a process that has imported what its children need, and forks one for each request."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.verifier.rpc.fork_loop import READY
from kernrl.verifier.rpc.processes import spawn

START_TIMEOUT_S = 120.0
"""For its imports, on a busy machine."""


class ForkServer:
    """Starts on first use, and again when it has died. Thread-safe. Its children die with it."""

    def __init__(
        self, name: str, module: str, settings: dict[str, Any], *, env: dict[str, str] | None = None, quiet: bool = False
    ) -> None:
        """
        Args:
            name: what messages call it.
            module: its `main(socket, settings)` ends in `serve_forks`.
            settings: JSON.
            env: its whole environment; ours when None.
            quiet: keep its stdout and stderr for the message when it does not start, rather than pass them on.
        """
        self._name, self._module, self._settings = name, module, settings
        self._env, self._quiet = env, quiet
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log: int | None = None
        self._is_ready = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, when there is one."""
        return self._process.pid if self._process else None

    def start(self, *, wait: bool = True) -> None:
        """Start it now rather than at the first request. Raises InfrastructureError when it does not come up."""
        with self._lock:
            self._launched()
            if not wait:
                return
            try:
                self._ready()
            except OSError as error:
                self._drop()
                raise InfrastructureError(f"{self._name} does not start: {error}") from None

    def fork(self, request: dict[str, Any], *descriptors: int) -> socket.socket:
        """Fork a child for a request (see `serve_forks`) that also gets these descriptors; returns our end of its socket.

        A server that dies right after takes the child with it: the socket then is at its end.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._request(json.dumps(request).encode(), [theirs.fileno(), *descriptors])
        except BaseException:
            ours.close()
            raise
        return ours

    def _request(self, message: bytes, descriptors: list[int]) -> None:
        for attempt in range(2):
            with self._lock:
                try:
                    socket.send_fds(self._ready(), [message], descriptors)
                    return
                except OSError as error:  # it has died, which is noticed only here
                    self._drop()
                    if attempt:
                        raise InfrastructureError(f"{self._name} does not start: {error}") from None

    def _launched(self) -> socket.socket:
        if self._control is not None:
            return self._control
        if self._closed:
            raise InfrastructureError(f"{self._name} is closed")
        self._log = os.memfd_create("log", os.MFD_CLOEXEC) if self._quiet else None
        self._process, self._control = spawn(
            self._module, self._settings, kind=socket.SOCK_SEQPACKET, env=self._env, log=self._log
        )
        self._control.settimeout(START_TIMEOUT_S)
        return self._control

    def _ready(self) -> socket.socket:
        """The control socket of a server that is ready. Raises OSError when it dies first, or takes too long."""
        control = self._launched()
        if not self._is_ready:
            if not control.recv(len(READY)):
                said = os.pread(self._log, 1 << 16, 0).decode(errors="replace").strip() if self._log is not None else ""
                raise ConnectionError(said.splitlines()[-1] if said else "it died at once")
            self._is_ready = True
            control.settimeout(None)
        return control

    def close(self) -> None:
        """End it and every child, for good."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()  # whoever waits for it to start has the lock
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._log is not None:
            os.close(self._log)
        self._control = self._process = self._log = None
        self._is_ready = False
