"""Many calls at once to one trusted process: each has a number, and its answer comes when it is done."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import subprocess
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from kernrl.errors import InfrastructureError
from kernrl.verifier.rpc.answers import Answer, answer_to, value_of
from kernrl.verifier.rpc.frames import ObjectChannel
from kernrl.verifier.rpc.processes import spawn

MAX_CONCURRENT = 512
"""Calls under way; further ones wait."""

END_TIMEOUT_S = 10.0

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class MultiplexedClient(Generic[S]):
    """Calls methods of the object of class S that a process serves. Thread-safe.

    When the process dies, the calls under way fail, and the next call starts another.
    """

    def __init__(self, name: str, module: str, first: Callable[[], Any], settings: dict[str, Any]) -> None:
        """
        Args:
            name: what messages call the process.
            module: its `main(socket, settings)` ends in `serve_concurrently`.
            first: gives the first message to each process.
            settings: JSON, for what a process begins before it reads that message.
        """
        self._name, self._module, self._first, self._settings = name, module, first, settings
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._channel: ObjectChannel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: dict[int, Future[Answer]] = {}
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process that runs, or ran last."""
        return self._process.pid if self._process else None

    def ask(self, method: Callable[Concatenate[S, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method of S there (arguments by position only) and wait.

        Raises what `value_of` does, and InfrastructureError when the process dies meanwhile or the client is closed.
        """
        assert not kwargs
        number, future = next(self._numbers), Future[Answer]()
        call = pickle.dumps((number, method.__name__, args))
        with self._lock:
            if self._closed:
                raise InfrastructureError("the verifier is closed")
            self._pending[number] = future
            try:
                self._running().send_packed(call)
            except OSError:
                del self._pending[number]
                raise InfrastructureError(f"{self._name} is gone") from None
        return value_of(future.result())

    def _running(self) -> ObjectChannel:
        if self._channel is None:
            self._process, sock = spawn(self._module, self._settings)
            self._channel = ObjectChannel(sock)
            threading.Thread(target=self._listen, args=(self._channel, self._process), daemon=True).start()
            self._channel.send(self._first())
        return self._channel

    def _listen(self, channel: ObjectChannel, process: subprocess.Popen[bytes]) -> None:
        """Hand out answers until the process is gone; the calls that still wait then have failed."""
        while True:
            try:
                number, answer = channel.recv()
            except (EOFError, OSError):
                break
            self._pending.pop(number).set_result(answer)
        process.kill()
        process.wait()
        with self._lock:
            pending, self._pending = self._pending, {}
            self._channel = None
            channel.close()
        for future in pending.values():
            future.set_result(("broken", f"{self._name} was lost"))

    def close(self) -> None:
        """End the process and all that it started, for good."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                with contextlib.suppress(OSError):
                    self._channel.shut_down()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
            self._process.kill()
            self._process.wait()


def serve_concurrently(server: object, channel: ObjectChannel, *, immediate: Collection[str] = ()) -> None:
    """Answer calls in threads, many at once, until the client closes.

    Methods of `immediate` run in the reading thread: they must be quick, and calls that fill the threads may wait for them.
    """
    sending = threading.Lock()

    def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        said = answer_to(lambda: getattr(server, method)(*arguments))
        with sending, contextlib.suppress(OSError):
            channel.send((number, said))

    threads = ThreadPoolExecutor(MAX_CONCURRENT)
    while True:
        try:
            number, method, arguments = channel.recv()
        except (EOFError, OSError):
            return
        if method in immediate:
            answer(number, method, arguments)
        else:
            threads.submit(answer, number, method, arguments)
