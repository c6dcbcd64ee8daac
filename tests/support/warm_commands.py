"""Processes of commands that need not import torch and transformers again: forks of one that has imported these and no more.

What is kernrl's each of them imports for itself, and it runs as `python` would run it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernrl.verifier.rpc.fork_loop import freeze_memory, serve_forks
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.processes import ignore_interrupts

HEAVY = ("torch", "triton", "accelerate", "transformers.models.qwen2.modeling_qwen2", "starlette.applications", "uvicorn")


@functools.cache
def _server() -> ForkServer:
    made = ForkServer("the commands' fork server", __name__, {}, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    atexit.register(made.close)
    return made


@dataclass
class Running:
    """A command that was started."""

    pid: int
    _end: int
    _code: int | None = None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        os.set_blocking(self._end, False)
        return self._read()

    def wait(self) -> int:
        """Its exit code, once it has ended; a negative one is the signal that ended it."""
        os.set_blocking(self._end, True)
        code = self._read()
        assert code is not None, "the fork server is gone"
        return code

    def _read(self) -> int | None:
        if self._code is None:
            try:
                said = os.read(self._end, 4096)
            except BlockingIOError:
                return None
            self._code = json.loads(said)["code"] if said else None
            os.close(self._end)
        return self._code


def start(words: Sequence[str], stderr: int, *, terminal: bool = False, **environment: str) -> Running:
    """Start a command.

    Args:
        words: what would follow `python`: `-m` and a module, or a script, and its arguments.
        stderr: descriptor that its stdout and stderr go to, and its stdin comes from where it is a terminal.
        terminal: it is to be the terminal that the command is run from.
        environment: more than ours.
    """
    read, write = os.pipe()
    environment |= {"OMP_NUM_THREADS": "1"}
    asked = {"words": list(words), "terminal": terminal, "environment": environment, "cwd": os.getcwd(), "report": True}
    with _server().fork(asked, stderr, write) as ours:
        os.close(write)
        return Running(int(ours.recv(32)), read)


def main(control: socket.socket, settings: dict[str, Any]) -> None:
    """Entry of the fork server."""
    ignore_interrupts()
    for module in HEAVY:
        importlib.import_module(module)
    freeze_memory()
    serve_forks(control, Command)


class Command:
    """The command of one request."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._asked = request

    def run(self, descriptors: Sequence[int]) -> None:
        """Become it."""
        with socket.socket(fileno=descriptors[0]) as ours:
            ours.send(str(os.getpid()).encode())
        if self._asked["terminal"]:
            os.login_tty(descriptors[1])
        else:
            os.dup2(descriptors[1], 1)
            os.dup2(descriptors[1], 2)
            os.close(descriptors[1])
        # the ones that were opened were of another kind of file
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, 1, closefd=False) for n, mode in enumerate("rww"))
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(self._asked["environment"])
        os.chdir(self._asked["cwd"])
        os._exit(self._run(self._asked["words"]))

    def _run(self, words: list[str]) -> int:
        code: object = 0
        try:
            if words[0] == "-m":
                sys.argv = words[1:]
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = words
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return code if isinstance(code, int) else 0 if code is None else 1

    def clean_up(self) -> None:
        """Nothing is left."""
