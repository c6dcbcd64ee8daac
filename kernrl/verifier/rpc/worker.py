"""The fork server of trusted workers, and the loop in which a worker answers calls one after another.

torch is imported once here, so that a worker that died is replaced in half a second. A worker is an object of a class that
the client names; every public method of it is a call. Candidates reach such a process as data and machine code only.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch

from kernrl.verifier.base import cuda_driver
from kernrl.verifier.base.compat import asking_nvml, forks_cannot_use_cuda
from kernrl.verifier.rpc.answers import OutOfMemory, answer_to, lacks_memory
from kernrl.verifier.rpc.fork_loop import freeze_memory, serve_forks
from kernrl.verifier.rpc.frames import ObjectChannel
from kernrl.verifier.rpc.processes import (
    die_with_parent,
    ignore_interrupts,
    raise_priority,
    resolve,
    show_stacks_on_request,
    start_again,
)

log = logging.getLogger(__name__)


class Server(Protocol):
    """What a worker's object must have besides its calls."""

    def healthy(self) -> bool:
        """Whether this process can still be used after an exception."""
        ...


def main(control: socket.socket, settings: dict[str, Any]) -> None:
    """Entry of the fork server. `settings`: `modules` to import, and functions without arguments to call, `warm_up`.

    Neither may initialise CUDA where workers use it: a fork cannot go on using it. Functions that might, for what workers would
    otherwise each do for themselves, are those of `ahead`: where they did, the server starts again without them.
    """
    ignore_interrupts()
    for module in settings.get("modules", ()):
        importlib.import_module(module)
    for name in settings.get("warm_up", ()):
        resolve(name)()
    if ahead := settings.get("ahead"):
        with asking_nvml():
            for name in ahead:
                resolve(name)()
        if _has_used_cuda():
            log.warning("a fork server starts again, without %s: it used the GPU, which no fork could then", ", ".join(ahead))
            start_again(__name__, {key: value for key, value in settings.items() if key != "ahead"}, control)
    freeze_memory()
    serve_forks(control, Worker)


def _has_used_cuda() -> bool:
    """Whether CUDA was initialised here, or torch believes so, and refuses it to forks. Finding out initialises nothing."""
    if torch.cuda.is_initialized() or cuda_driver.initialised():
        return True
    if not (pid := os.fork()):
        os._exit(forks_cannot_use_cuda())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


class Worker:
    """One child: a worker process."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request

    def run(self, descriptors: Sequence[int]) -> None:
        """In the child."""
        die_with_parent()
        show_stacks_on_request()
        if self._request["first"]:
            raise_priority()
        os.environ.update(self._request["env"])
        channel = ObjectChannel(socket.socket(fileno=descriptors[0]))
        serve(self._request["server"], self._request["settings"], channel)

    def clean_up(self) -> None:
        """A worker leaves nothing behind."""


def serve(name: str, settings: dict[str, Any], channel: ObjectChannel) -> None:
    """Make the object, answer with our process id, then answer calls until the client goes or the process is unusable."""

    def made() -> int:
        nonlocal server
        server = resolve(name)(**settings)
        return os.getpid()

    server: Any = None
    channel.send(started := answer_to(made))
    if started[0] != "ok":
        return
    while True:
        try:
            method, arguments = channel.recv()
        except (EOFError, OSError):
            return
        answer = answer_to(partial(call, server, method, arguments), healthy=server.healthy)
        try:
            channel.send(answer)
        except OSError:  # the client has gone
            return
        if answer[0] == "dead":
            os._exit(1)  # without destructors: those of what a faulted GPU held write a warning each


def call(server: Server, method: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(server, method)(*arguments)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not lacks_memory(str(error)):
            raise
        reason = str(error).split(". GPU")[0].split("\nCUDA kernel errors")[0]
    raise OutOfMemory(f"the GPU has no memory left: {reason}")
