"""The process in which a GPU's lanes are driven; `GpuClient` calls it.

Each step of a lane waits for a thread to wake up. In the process whose threads read candidates it would also wait some
milliseconds for the interpreter lock, and the GPU with it; here that lock is nearly free.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernrl.verifier.base.verdict import Speedup
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.frames import ObjectChannel
from kernrl.verifier.rpc.multiplexed import serve_concurrently
from kernrl.verifier.rpc.processes import ignore_interrupts, raise_priority, show_stacks_on_request

if TYPE_CHECKING:
    from kernrl.verifier.pool.backend import Outcome
    from kernrl.verifier.pool.gpu import Gpu
    from kernrl.verifier.replay.job import Job
    from kernrl.verifier.replay.timing import NoiseBand

SWITCH_S = 0.0002
"""How long one of these threads may keep the interpreter lock while another waits."""

_WORKER_MODULES = (
    "kernrl.verifier.replay.replay_server", "kernrl.verifier.judge.judge_server", "kernrl.verifier.replay.task_preparer",
)  # fmt: skip

_COMPILER = "kernrl.verifier.replay.compiled_reference:import_compiler"


def worker_fork_server(*, compiled: bool) -> ForkServer:
    """The fork server of a GPU's replay and judge processes, and of those that prepare tasks. `compiled`: whether baselines
    will be compiled, for which a dozen of them need Inductor."""
    settings: dict[str, Any] = {"modules": _WORKER_MODULES}
    if compiled:  # ahead of the others, since Inductor asks for the GPU while it is imported (torch 2.11)
        settings["ahead"] = [_COMPILER]
    return ForkServer("the GPU's fork server", "kernrl.verifier.rpc.worker", settings)


def main(sock: socket.socket, settings: dict[str, Any]) -> None:
    """Entry of the process. `settings`: those of `worker_fork_server`. The first message is the keyword arguments of `Gpu`;
    calls of `GpuService` follow."""
    ignore_interrupts()
    show_stacks_on_request()
    channel, workers = ObjectChannel(sock), worker_fork_server(**settings)
    workers.start(wait=False)  # imports torch while this process does
    raise_priority()
    sys.setswitchinterval(SWITCH_S)
    serve(channel, GpuService(workers, channel.recv()))


def serve(channel: ObjectChannel, service: GpuService) -> None:
    """Answer until the client closes, then end everything."""
    serve_concurrently(service, channel, immediate=("release", "doing", "restarts"))
    service.close()
    os._exit(0)


class GpuService:
    """The calls of the process: those of a `Gpu`, which is made on first use."""

    def __init__(self, workers: ForkServer, settings: dict[str, Any]):
        self._workers, self.settings = workers, settings
        self._making = threading.Lock()
        self._gpu: Gpu | None = None
        self._held: dict[int, contextlib.ExitStack] = {}

    def make(self) -> Gpu:
        """The GPU, for one caller at a time."""
        from kernrl.verifier.pool.gpu import Gpu

        return Gpu(self._workers, **self.settings)

    def _made(self) -> Gpu:
        with self._making:
            if self._gpu is None:
                self._gpu = self.make()
            return self._gpu

    def gpu_info(self) -> dict[str, str]:
        """`Gpu.gpu_info`."""
        return self._made().gpu_info

    def noise(self) -> NoiseBand:
        """`Gpu.noise`."""
        return self._made().noise

    def run(self, job: Job, baselines: Sequence[str], task_key: str) -> Outcome:
        """`Gpu.run`."""
        return self._made().run(job, baselines, task_key)

    def doing(self) -> str:
        """`Gpu.doing`."""
        return self._gpu.doing() if self._gpu else ""

    def restarts(self) -> int:
        """`Gpu.restarts`."""
        return self._gpu.restarts if self._gpu else 0

    def twins(self, pairs: int, slowdown: float) -> list[Speedup]:
        """`Gpu.twins`."""
        return self._made().twins(pairs, slowdown)

    def hold(self, number: int) -> None:
        """Enter `Gpu.untimed`; `release` of the same number leaves it."""
        stack = contextlib.ExitStack()
        stack.enter_context(self._made().untimed())
        self._held[number] = stack

    def release(self, number: int) -> None:
        """Leave it, unless it was entered in an earlier process."""
        self._held.pop(number, contextlib.ExitStack()).close()

    def close(self) -> None:
        """End everything that was started."""
        if self._gpu is not None:
            self._gpu.close()
        self._workers.close()
