"""A process that has imported torch with its compiler, and triton, and no more.

It forks processes that run as `python -c` would run them.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from kernrl.verifier.rpc.fork_loop import freeze_memory, serve_forks
from kernrl.verifier.rpc.processes import ignore_interrupts

HEAVY = ("torch", "torch._dynamo", "triton")


def main(control: socket.socket, settings: dict[str, Any]) -> None:
    """Entry of the process that is forked."""
    ignore_interrupts()
    for module in HEAVY:
        importlib.import_module(module)
    freeze_memory()
    serve_forks(control, Python)


class Python:
    """The process of one request, which comes with a socket, the socket that the process is to have, and its output."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._asked = request

    def run(self, descriptors: Sequence[int]) -> None:
        """Become it."""
        ours, theirs, output = descriptors
        with socket.socket(fileno=ours) as told:
            told.send(str(os.getpid()).encode())
            told.recv(2)  # looked up
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, theirs)
        os.closerange(theirs + 1, 1 << 16)
        os.environ.clear()
        os.environ.update(self._asked["environment"])
        os.chdir(self._asked["cwd"])
        config = json.loads(self._asked["config"]) | {"socket": theirs}
        sys.argv[:] = ["-c", json.dumps(config)]
        exec(self._asked["text"], vars(sys.modules["__main__"]))

    def clean_up(self) -> None:
        """Nothing is left."""
