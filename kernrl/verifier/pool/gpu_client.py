"""A GPU as the rest of the verifier sees it: its lanes are conducted in another process (`conductor`, which says why)."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.verifier.base.verdict import Speedup
from kernrl.verifier.judge.inputs import Seeds
from kernrl.verifier.pool.lane import Outcome
from kernrl.verifier.replay.job import Job
from kernrl.verifier.replay.timing import NoiseBand

END_TIMEOUT_S = 10.0


class ConductedGpu:
    """A `Gpu` in a process of its own. When that dies, what it was asked fails, and the next question starts another."""

    def __init__(self, device: str, **settings: Any):
        """`settings` are `Gpu`'s. Raises InfrastructureError when the GPU cannot be used."""
        self._settings = settings | {"device": device}
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: dict[int, Future[Any]] = {}
        self._closed = False
        self._seeds, self._load = Seeds(), 0
        self._noise: NoiseBand | None = None
        self.facts: dict[str, str] = self._ask("facts")

    @property
    def noise(self) -> NoiseBand:
        """`Gpu.noise`."""
        known = self._noise = self._noise or self._ask("noise")
        return known

    def seed(self, task_key: str) -> int:
        """`Gpu.seed`."""
        return self._seeds.next(task_key)

    def load(self) -> int:
        """Jobs here, running and waiting."""
        return self._load

    def run(self, job: Job, baselines: Sequence[str], task_key: str) -> Outcome:
        """`Gpu.run`."""
        with self._lock:
            self._load += 1
        try:
            return self._ask("run", job, baselines, task_key)
        finally:
            with self._lock:
                self._load -= 1

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        """`Gpu.untimed`."""
        number = next(self._numbers)
        self._ask("hold", number)
        try:
            yield
        finally:
            with contextlib.suppress(InfrastructureError):  # with the process, what it held went
                self._ask("let_go", number)

    def twins(self, pairs: int, slowdown: float = 0.0) -> list[Speedup]:
        """`Gpu.twins`."""
        return self._ask("twins", pairs, slowdown)

    def close(self) -> None:
        """End the process and all that it started, for good."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
            self._process.kill()
            self._process.wait()

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Ask the process, which is started when there is none, and wait. Raises what the answer raised."""
        number, future = next(self._numbers), Future[Any]()
        question = pickle.dumps((number, method, arguments))
        with self._lock:
            channel = self._running()
            self._asked[number] = future
            try:
                channel.send_bytes(question)
            except OSError:
                raise InfrastructureError("the GPU's conductor is gone") from None
        return future.result()

    def _running(self) -> Connection:
        if self._closed:
            raise InfrastructureError("the verifier is closed")
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            self._process = started(theirs)
            theirs.close()
            self._channel = Connection(os.dup(self._socket.fileno()))
            self._channel.send_bytes(pickle.dumps(self._settings | {"noise": self._noise}))
            threading.Thread(target=self._listen, args=(self._channel, self._process), daemon=True).start()
        return self._channel

    def _listen(self, channel: Connection, process: subprocess.Popen[bytes]) -> None:
        """Hand out answers until the process is gone; what it still owes then has failed."""
        while True:
            try:
                number, well, value = channel.recv()
            except (EOFError, OSError):
                break
            future = self._asked.pop(number)
            if well:
                future.set_result(value)
            else:
                future.set_exception(value)
        process.kill()
        process.wait()
        with self._lock:
            owed, self._asked = self._asked, {}
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            channel.close()
        for future in owed.values():
            future.set_exception(InfrastructureError("the GPU's conductor was lost"))


def started(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """A conductor's process on its end of a socket."""
    command = [sys.executable, "-m", "kernrl.verifier.pool.gpu_process", str(theirs.fileno())]
    return subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
