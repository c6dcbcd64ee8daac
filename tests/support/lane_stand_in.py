"""Stands in for a replay or judge process: answers a lane's calls in the manner that the job's task id asks for.

python tests/support/lane_stand_in.py FD ROLE LOG; what it begins and ends is written to LOG, a line each: role, pid, event.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kernrl.verifier.rpc.frames import Channel

FREE_BYTES = 100 << 30
"""Free memory of the GPU; a file `LOG.busy` stands for another program that takes most of it."""

WORK_S = 0.2
"""How long looking at one phase takes."""


class Opaque:
    """Any of the project's own types, which would take seconds to import."""

    def __setstate__(self, state: Any) -> None: ...


class Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return Opaque if module.startswith("kernrl") else super().find_class(module, name)


class Server:
    """Every call of both roles."""

    def __init__(self) -> None:
        self.manner = ""
        self.captured: dict[str, list[str]] = {}
        """Baselines, by task."""

    def gpu_info(self) -> dict[str, str]:
        free = 10 << 30 if Path(sys.argv[3] + ".busy").exists() else FREE_BYTES
        return {"uuid": f"stand-in-{os.getppid()}", "driver": "0", "gpu": "none", "free_bytes": str(free)}

    def null(self, pairs: int, rounds: tuple[int, ...], noise: Any, slowdown: float) -> Any:
        return [(50.0, [[(1.0, 1.0)] * 5] * pairs)]

    def begin(self, job: Any, most_bytes: int | None) -> Any:
        self.manner = job.task.id
        if self.manner == "too big":
            raise ValueError("it asks for too much memory")
        if self.manner == "never finds memory":
            raise MemoryError("tried to allocate too much")
        if self.manner == "takes 6 GiB" and most_bytes is not None and most_bytes < 6 << 30:
            raise MemoryError("tried to allocate too much")
        if self.manner.startswith("takes more than planned") and "ends give_back" not in read(sys.argv[3]):
            raise MemoryError("tried to allocate too much")
        if self.manner == "holds more than this candidate may":
            self.captured = {}
        return SimpleNamespace(version=1), tuple(self.captured.get(self.manner, ()))

    def memory(self, task: Any, precision: str, names: list[str]) -> dict[str, None]:
        if task.id == "has a rehearsal that dies" and read(sys.argv[3]).count("begins memory") == 1:
            os._exit(9)
        return dict.fromkeys(names)

    def spent(self) -> Any:
        if self.manner == "is lost after its last call":
            raise RuntimeError("an illegal memory access was encountered")
        held = 6 << 30 if self.manner == "takes 6 GiB" else 2 << 30
        if self.manner == "takes more than planned, 90 GiB in replay" and sys.argv[2] == "replay":
            held = 90 << 30
        return SimpleNamespace(peak_bytes=1 << 30, held_bytes=held, seconds={"draw": 0.5})

    def give_back(self) -> int:
        self.captured = {}
        return 1 << 20

    def check(self, asked: list[int]) -> Any:
        time.sleep(WORK_S)
        if self.manner.startswith("hangs"):
            time.sleep(60)
        if self.manner.startswith("an engine is missing") and "ends give_back" not in read(sys.argv[3]):
            raise RuntimeError("FIND was unable to find an engine to execute this computation")
        if self.manner == "slow in every step":
            time.sleep(1.0)
        if self.manner == "faults":
            raise RuntimeError("an illegal memory access was encountered")
        overrun = asked[:1] if self.manner == "overruns" else []
        decoys = ["idle"] if "an idle kernel" in self.manner else []
        return SimpleNamespace(asked=asked, shown=[], written=[], overrun=overrun, decoys=decoys)

    def time_candidate(self, baselines: list[str], noise: Any) -> Any:
        assert set(baselines) <= set(self.captured.get(self.manner, ())), "nobody else may use the GPU while they are made"
        return SimpleNamespace(gpu_seconds=0.001, pid=os.getpid())

    def spot_checked(self) -> Any:
        return SimpleNamespace(asked=[1], shown=[], written=[], overrun=[], decoys=[])

    def use_gpu(self) -> None:
        """Sets up CUDA."""

    def warm_up(self) -> None:
        """Imports Inductor."""
        time.sleep(float(os.environ.get("IMPORT_S", "0")))

    def compile(self, *arguments: Any) -> None:
        """In a preparer: compiles a task's baselines. In replay: loads them."""
        manner = arguments[0].id if sys.argv[2] == "preparer" else ""
        if manner == "has a compiler that dies":
            os._exit(9)
        while manner == "compiles until it may end" and not Path(sys.argv[3] + ".may_end").exists():
            time.sleep(0.02)
        time.sleep(1.0 if manner == "has a slow compiler" else WORK_S)

    def prepare(self, *arguments: Any) -> None:
        """A judge's answers, or a replay's baselines."""
        if self.manner == "has a baseline that compiles for long":
            time.sleep(2.5)
        while self.manner == "stays in its lane until it may end" and not Path(sys.argv[3] + ".may_end").exists():
            time.sleep(0.02)
        if sys.argv[2] == "replay" and self.manner == "has a baseline that cannot be made":
            raise ValueError("no such thing")
        if sys.argv[2] == "replay":
            self.captured.setdefault(self.manner, []).extend(arguments[0])
        if getattr(arguments[0], "id", "") == "hangs and keeps the judge":
            while replay_at_work(sys.argv[3]):
                time.sleep(0.05)

    def attach(self, shared: Any) -> bool:
        return True

    def has_idle_op(self, task: Any, precision: str, draws: Any) -> bool:
        return task.id.endswith("for an idle op")

    def compare(self, task: Any, precision: str, draws: Any, asked: list[int], shown: Any) -> list[dict[str, Any]]:
        if task.id == "judge dies":
            os._exit(9)
        excess = 2.0 if task.id == "wrong" else 0.5
        row = {"input_set": "small", "regime": "normal", "excess": excess, "index": [0], "output": 0}
        return [row | {"got": 1.0, "expected": 2.0}]


def read(log: str) -> str:
    with open(log) as file:
        return file.read()


def replay_at_work(log: str) -> bool:
    """Whether the replay process that began last lives: a hung kernel leaves a GPU with its process."""
    pids = [line.split()[1] for line in read(log).splitlines() if line.startswith("replay")]
    try:
        with open(f"/proc/{pids[-1]}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main() -> None:
    channel, role, log = Channel(socket.socket(fileno=int(sys.argv[1]))), sys.argv[2], sys.argv[3]

    def note(event: str) -> None:
        with open(log, "a") as file:
            file.write(f"{role} {os.getpid()} {event}\n")

    server = Server()
    channel.send(pickle.dumps(("ok", os.getpid())))
    while (call := channel.recv()) is not None:
        method, arguments = Reader(io.BytesIO(call)).load()
        note(f"begins {method}")
        try:
            answer = "ok", getattr(server, method)(*arguments)
        except MemoryError as error:
            answer = "out of memory", str(error)
        except ValueError as error:
            answer = "failed", str(error)
        except RuntimeError as error:
            answer = "dead", str(error)
        note(f"ends {method}")
        channel.send(pickle.dumps(answer))
        if answer[0] == "dead":
            return


if __name__ == "__main__":
    main()
