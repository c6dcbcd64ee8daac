"""The process that conducts a GPU's lanes; `conducted.ConductedGpu` is what is seen of it elsewhere.

Every step of a lane waits for a thread to wake up. Beside the threads that read candidates it would wait for its turn in the
interpreter too, some milliseconds each time, and the GPU with it; here it has an interpreter nearly to itself.

Run as `python -m kernrl.verifier.pool.gpu_process FD`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from kernrl.errors import KernrlError
from kernrl.verifier.rpc.process import Nursery

MOST_AT_ONCE = 512
"""Questions under way; further ones wait."""

SWITCH_S = 0.0002
"""How long one of these threads may keep the interpreter while another waits."""


def main(descriptor: int) -> None:
    """Answer questions (number, method, arguments), many at once, until the other side closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for who asks, who ends this one by going
        signal.signal(number, signal.SIG_IGN)
    channel, nursery = Connection(descriptor), Nursery()
    nursery.start()  # imports torch while this process does
    with contextlib.suppress(OSError):  # a GPU must not wait behind compilers; only root may ask for it
        os.nice(-10)
    sys.setswitchinterval(SWITCH_S)
    conductor, sending = Conductor(nursery, pickle.loads(channel.recv_bytes())), threading.Lock()

    def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            said = number, True, getattr(conductor, method)(*arguments)
        except KernrlError as error:
            said = number, False, error
        except Exception as error:
            said = number, False, RuntimeError(f"{type(error).__name__}: {error}")
        with sending, contextlib.suppress(OSError):
            channel.send(said)

    pool = ThreadPoolExecutor(MOST_AT_ONCE)
    while True:
        try:
            question = pickle.loads(channel.recv_bytes())
        except (EOFError, OSError):
            break
        if question[1] == "let_go":  # others may wait for this
            answer(*question)
        else:
            pool.submit(answer, *question)
    conductor.close()
    os._exit(0)


class Conductor:
    """What can be asked of the process: a `Gpu`, made on first use."""

    def __init__(self, nursery: Nursery, settings: dict[str, Any]):
        self._nursery, self._settings = nursery, settings
        self._making, self._gpu = threading.Lock(), None
        self._held: dict[int, contextlib.ExitStack] = {}

    def _made(self) -> Any:
        with self._making:
            if self._gpu is None:
                from kernrl.verifier.pool.gpu import Gpu

                self._gpu = Gpu(self._nursery, **self._settings)
            return self._gpu

    def facts(self) -> dict[str, str]:
        """`Gpu.facts`."""
        return self._made().facts

    def noise(self) -> Any:
        """`Gpu.noise`."""
        return self._made().noise

    def run(self, job: Any, baselines: Sequence[str], task_key: str) -> Any:
        """`Gpu.run`."""
        return self._made().run(job, baselines, task_key)

    def twins(self, pairs: int, slowdown: float) -> Any:
        """`Gpu.twins`."""
        return self._made().twins(pairs, slowdown)

    def hold(self, number: int) -> None:
        """Enter `Gpu.untimed`, under a number for `let_go`."""
        stack = contextlib.ExitStack()
        stack.enter_context(self._made().untimed())
        self._held[number] = stack

    def let_go(self, number: int) -> None:
        """Leave it, unless it was entered in a conductor that has died."""
        self._held.pop(number, contextlib.ExitStack()).close()

    def close(self) -> None:
        """End everything that was started."""
        if self._gpu is not None:
            self._gpu.close()
        self._nursery.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
