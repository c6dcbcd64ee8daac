"""A trusted worker from outside: started, called with a time limit, killed when it hangs, replaced when it died."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.rpc.answers import Answer, Died, Ended, Failed, TimedOut, value_of
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.frames import ObjectChannel
from kernrl.verifier.rpc.processes import dotted

START_TIMEOUT_S, GONE_TIMEOUT_S, REPORT_TIMEOUT_S = 120.0, 10.0, 2.0

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class Client(Generic[S]):
    """One worker process that serves an object of class S; the first call starts it. Not thread-safe, `kill` excepted."""

    def __init__(
        self, fork_server: ForkServer, server: type[S], settings: dict[str, Any], *, name: str, device: str = "",
        first: bool = False, env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            settings: keyword arguments of `server`, JSON.
            name: what messages call the process.
            device: its CUDA_VISIBLE_DEVICES.
            first: raise its priority, as far as that is allowed.
            env: further variables of its environment.
        """
        self._fork_server, self._name = fork_server, name
        self._request = {
            "server": dotted(server),
            "settings": settings,
            "env": {"CUDA_VISIBLE_DEVICES": device, **(env or {})},
            "first": first,
            "report": True,
        }
        self._channel: ObjectChannel | None = None
        self._pidfd = self._status = -1
        self._owed = 0
        self.pid = 0
        """The process, or the last one."""
        self.starts = 0
        """How many processes there have been: a new one knows nothing of what an earlier one was told."""

    @property
    def running(self) -> bool:
        return self._channel is not None

    def start(self) -> None:
        """Make sure that it runs. Raises InfrastructureError when it cannot."""
        if self._channel is not None:
            return
        try:
            try:
                channel = self._forked()
            except (EOFError, OSError):  # a fork server that is about to die takes requests with it
                channel = self._forked()
        except (EOFError, OSError):
            raise InfrastructureError(f"the {self._name} process died at once") from None
        self._channel, self._owed = channel, 0
        self.starts += 1

    def _forked(self) -> ObjectChannel:
        status, status_write = os.pipe2(os.O_CLOEXEC)
        try:
            channel = ObjectChannel(self._fork_server.fork(self._request, status_write))
            if not channel.readable(START_TIMEOUT_S):
                raise InfrastructureError(f"the {self._name} process did not start in {START_TIMEOUT_S:.0f} s.")
            answer: Answer = channel.recv()
            kind, value = answer
            if kind != "ok":
                raise InfrastructureError(f"the {self._name} process cannot start: {value.strip().splitlines()[0]}")
            self.pid, self._pidfd, self._status = value, os.pidfd_open(value), status
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(status_write)
        return channel

    def ask(self, method: Callable[Concatenate[S, P], R], timeout_s: float, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method of S there and wait for its answer; raises what `send` and `receive` do."""
        self.send(method, *args, **kwargs)
        return self.receive(timeout_s)

    def send(self, method: Callable[Concatenate[S, P], Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call without waiting (arguments by position only). Calls are answered in order, each by one `receive`."""
        assert not kwargs
        self.start()
        assert self._channel is not None
        try:
            self._channel.send((method.__name__, args))
        except OSError as error:
            self.kill()
            raise InfrastructureError(f"the {self._name} process is gone ({error})") from None
        self._owed += 1

    def ready(self, timeout_s: float) -> bool:
        """Whether `receive` would return at once: an answer arrives within the timeout, or none can come any more."""
        try:
            return self._channel is None or self._channel.readable(timeout_s)
        except OSError:
            return True

    def receive(self, timeout_s: float) -> Any:
        """The answer to the earliest `send` that has had none.

        Raises:
            TimedOut: none came in time; the process has been killed.
            Failed, Died: the call raised; see `answers`.
            UsageError: the task is at fault.
            Ended: the process died, by itself or from outside.
            InfrastructureError: the process is gone, or the GPU's memory is full.
        """
        channel = self._channel  # another thread may kill the process meanwhile
        if channel is None:
            raise InfrastructureError(f"the {self._name} process is gone")
        try:
            if not channel.readable(timeout_s):
                self.kill()
                raise TimedOut(f"no answer within {timeout_s:g} s")
            answer: Answer = channel.recv()
        except (EOFError, OSError):
            code = self._exit_code()
            self.kill()
            raise Ended(f"the {self._name} process was killed", code) from None
        self._owed -= 1
        if answer[0] == "dead":
            self.kill()
        return value_of(answer)

    def _exit_code(self) -> int | None:
        """How a process that is gone ended, as its fork server reports it; a negative one is a signal. None if it cannot."""
        if self._channel is None:  # killed from another thread
            return None
        with contextlib.suppress(OSError):
            ended = select.poll()
            ended.register(self._status, select.POLLIN)
            if ended.poll(1e3 * REPORT_TIMEOUT_S) and (told := os.read(self._status, 4096)):
                return json.loads(told)["code"]
        return None

    def drain(self, timeout_s: float) -> None:
        """Wait for the answers still owed and drop them."""
        while self._channel is not None and self._owed:
            with contextlib.suppress(Failed, Died, TimedOut, UsageError, InfrastructureError):
                self.receive(timeout_s)

    def kill(self, *, wait: bool = True) -> None:
        """End the process now, whatever its GPU is doing; with `wait`, return when it has left the GPU."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if wait:
            # a process ends only once its devices are closed, and with them all that it had queued on them
            gone = select.poll()
            gone.register(self._pidfd, select.POLLIN)
            gone.poll(1e3 * GONE_TIMEOUT_S)
        os.close(self._pidfd)
        os.close(self._status)
        channel.close()
