"""The fork server of the processes that replay and judge: torch is imported once, so a dead one is replaced in half a second.

Run as `python -m kernrl.verifier.pool.fork_server FD`. Each request is a role and a socket; the answer is a child that
serves that role on it. Interpreter processes come from a fork server of their own, which has imported what they need: that
may touch CUDA, which no fork survives. Everything here is trusted code: candidates reach a GPU process as machine code only.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from kernrl.errors import UsageError

_PR_SET_PDEATHSIG = 1


def main(descriptor: int) -> None:
    """Fork a child for each request until the other side closes."""
    # what the children need is imported before they exist; CUDA is not touched
    import kernrl.verifier.interpret.server
    import kernrl.verifier.replay.server  # noqa: F401

    _settle()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for who asks, who ends this one by going
        signal.signal(number, signal.SIG_IGN)
    _fork_on_request(socket.socket(fileno=descriptor))


def _fork_on_request(control: socket.socket, *, only_interpreters: bool = False) -> None:
    """Fork a child for each request, or have the interpreters' fork server do it, until the other side closes."""
    interpreters: socket.socket | None = None
    while True:
        data, fds, _, _ = socket.recv_fds(control, 65536, 1)
        if not data:
            return
        request = json.loads(data)
        if request["role"] == "cpu" and not only_interpreters:
            interpreters = _passed_on(data, fds[0], interpreters, control)
        elif os.fork() == 0:
            _become_child(control)
            if request["role"] != "cpu":
                with contextlib.suppress(OSError):  # a GPU must not wait behind compilers; only root may ask for it
                    os.nice(-10)
            _serve(request, Connection(fds[0]))
            os._exit(0)
        os.close(fds[0])


def _passed_on(data: bytes, descriptor: int, interpreters: socket.socket | None, control: socket.socket) -> socket.socket:
    """Hand a request to the interpreters' fork server, or to a new one where there is none alive; returns its socket."""
    if interpreters is not None:
        with contextlib.suppress(OSError):
            socket.send_fds(interpreters, [data], [descriptor])
            return interpreters
        interpreters.close()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        _become_child(control)
        ours.close()
        os.close(descriptor)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        from kernrl.verifier.interpret.server import warm_up

        warm_up()
        _settle()
        _fork_on_request(theirs, only_interpreters=True)
        os._exit(0)
    theirs.close()
    socket.send_fds(ours, [data], [descriptor])
    return ours


def _settle() -> None:
    """What is imported by now stays: collecting garbage shall neither look at it again, which takes long, nor write to its
    memory, which children share."""
    gc.collect()
    gc.freeze()


def _become_child(control: socket.socket) -> None:
    """Keep nothing of who forked, and end with it."""
    control.close()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(request: dict[str, Any], channel: Connection) -> None:
    """Answer commands until the other side closes, or until CUDA is beyond use."""
    os.environ["CUDA_VISIBLE_DEVICES"] = request["device"]
    from kernrl.verifier.interpret.server import CpuServer
    from kernrl.verifier.judge.server import JudgeServer
    from kernrl.verifier.replay.server import ReplayServer

    try:
        server = {"judge": JudgeServer, "replay": ReplayServer, "cpu": CpuServer}[request["role"]](**request["settings"])
        channel.send(("ok", os.getpid()))
    except Exception:
        channel.send(("broken", traceback.format_exc()))
        return
    while True:
        try:
            method, arguments = channel.recv()
        except (EOFError, OSError):
            return
        answer = _answer(server, method, arguments)
        try:
            channel.send(answer)
        except OSError:  # who asked has gone
            return
        if answer[0] == "dead":
            return


def _answer(server: Any, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """("ok", value), ("usage", sentence), ("full", error) when the GPU's memory is, ("failed", error) or, when the CUDA
    context is lost, ("dead", error)."""
    try:
        return "ok", getattr(server, method)(*arguments)
    except UsageError as error:
        return "usage", str(error)
    except torch.OutOfMemoryError as error:
        return "full", str(error).split(". GPU")[0]
    except Exception as error:
        text = f"{type(error).__name__}: {error}".split("\nCUDA kernel errors")[0].split("\nSearch for")[0].strip()
        if os.environ.get("KERNRL_TRACEBACKS"):
            text += "\n" + traceback.format_exc()
    return ("failed" if server.well() else "dead"), text


if __name__ == "__main__":
    main(int(sys.argv[1]))
