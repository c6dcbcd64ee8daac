"""Starting processes, and what each of them sets about itself: signals, priority, and dying with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from kernrl.signals import INTERRUPTS, blocked_interrupts

_PR_SET_PDEATHSIG = 1
_PRIORITY = -10

_libc = ctypes.CDLL(None, use_errno=True)

_BOOT = (
    "import importlib,json,socket,sys;c=json.loads(sys.argv[1]);sys.path[:]=c['path'];"
    "importlib.import_module(c['module']).main(socket.socket(fileno=c['socket']),c['settings'])"
)


def spawn(
    module: str, settings: dict[str, Any], *, kind: int = socket.SOCK_STREAM, env: dict[str, str] | None = None,
    log: int | None = None,
) -> tuple[subprocess.Popen[bytes], socket.socket]:  # fmt: skip
    """Start a Python process that runs `main(socket, settings)` of a module; returns it and our end of the socket.

    Args:
        settings: JSON.
        kind: SOCK_STREAM, or SOCK_SEQPACKET, which keeps messages apart.
        env: its whole environment; ours when None.
        log: descriptor that its stdout and stderr go to; ours when None.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    command = _command(module, settings, theirs)
    with theirs, blocked_interrupts():  # until it ignores them itself
        process = subprocess.Popen(
            command, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    return process, ours


def _command(module: str, settings: dict[str, Any], sock: socket.socket) -> list[str]:
    path = [os.path.abspath(p) for p in sys.path]
    config = {"module": module, "settings": settings, "socket": sock.fileno(), "path": path}
    # -P: a file json.py in the working folder is not ours
    return [sys.executable, "-P", "-c", _BOOT, json.dumps(config)]


def start_again(module: str, settings: dict[str, Any], sock: socket.socket) -> NoReturn:
    """Become a new process, of the same id, that runs `main(socket, settings)` of a module."""
    sock.set_inheritable(True)
    command = _command(module, settings, sock)
    os.execv(command[0], command)


def dotted(thing: Any) -> str:
    """`module:name` of a class or function, for `resolve` in another process."""
    return f"{thing.__module__}:{thing.__qualname__}"


def resolve(name: str) -> Any:
    """The class or function of that name."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def ignore_interrupts() -> None:
    """Ignore interrupts: the parent handles them; we exit when it closes the socket."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)


def show_stacks_on_request() -> None:
    """Write the stack of every thread to stderr on SIGUSR1: what a process waits for that seems to hang."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # stderr may be closed
        faulthandler.register(signal.SIGUSR1, all_threads=True)


def ask_for_stacks() -> None:
    """Have every process below this one that gives them (`show_stacks_on_request`) show its stacks."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    for pid in below - {os.getpid()}:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            caught = int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)
            if caught >> (signal.SIGUSR1 - 1) & 1:  # others would end
                os.kill(pid, signal.SIGUSR1)


def raise_priority() -> None:
    """Run before other processes, as far as that is allowed (to root): a GPU must not wait behind compilers."""
    with contextlib.suppress(OSError):
        os.nice(_PRIORITY)


def prctl(option: int, value: int) -> None:
    """Linux's prctl(2). Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. A change of user clears this."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
