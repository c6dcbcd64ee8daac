"""The verifier's machinery on a Ray cluster: candidates are traced and compiled on CPUs anywhere, replayed on GPUs anywhere.

What `StagedEvaluator` asks of its tracer, compiler and GPUs is asked of seats here: Ray actors that hold the real ones. The
funnel itself, its checks and its verdicts stay in the asking process. Ray repeats nothing by itself: a call whose seat dies
raises InfrastructureError, the seat is passed over until Ray has it back, and the candidate is judged again elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.base.verdict import Rejection
from kernrl.verifier.compile.client import CompiledKernel, Compiler
from kernrl.verifier.interpret.server import CpuReplay, Judged, SmallJob
from kernrl.verifier.plan.plan import KernelSource, Plan, TraceSpec
from kernrl.verifier.pool.gpu import LANES, Gpu
from kernrl.verifier.pool.lane import Outcome
from kernrl.verifier.replay.job import Job
from kernrl.verifier.replay.timing import NoiseBand
from kernrl.verifier.rpc.process import Nursery
from kernrl.verifier.trace.client import Tracer

log = logging.getLogger(__name__)

SEAT_CPUS = 4
"""CPUs of a front seat: one warm sandbox and one warm compiler serve as many candidates at once."""

GPU_CPUS = 1
"""CPUs that Ray keeps free for a GPU's seat, whose lanes launch kernels."""

SETTLE_TIMEOUT_S = 300.0
"""Longest wait for a seat to start, or to come back: a node may have to."""

CALL_TIMEOUT_S = 1800.0
"""Longest a call may take before its seat counts as lost; every stage inside has shorter limits of its own."""

TRIES = 3
"""Front seats that are asked in turn, should each die."""


# --- in Ray's workers ------------------------------------------------------------------------------------------------


class FrontSeat:
    """Sandbox, compiler and interpreter."""

    def __init__(self, config: VerifierConfig, cache_dir: Path | None, target: str, slots: int, replay: dict[str, bool]):
        self._tracer = Tracer(slots, target=target, require_sandbox=config.require_sandbox)
        kernels = cache_dir / "cubins" if cache_dir else None
        self._compiler = Compiler(slots, targets=(target,), cache_dir=kernels, require_sandbox=config.require_sandbox)
        self._cpu = CpuReplay(Nursery(), slots, replay)
        self._tracer.start()
        self._compiler.start()

    def about(self) -> None:
        """Answers when the seat is ready."""

    def trace(self, source: str, specs: Sequence[TraceSpec], timeout_s: float) -> list[Plan] | Rejection:
        return self._tracer.trace(source, specs, timeout_s)

    def compile(self, kernels: Sequence[KernelSource], target: str, timeout_s: float) -> list[CompiledKernel | Rejection]:
        return list(self._compiler.compile(kernels, target, timeout_s))

    def judge(self, job: SmallJob) -> Judged:
        return self._cpu.judge(job)


class GpuSeat:
    """The lanes of the one GPU that Ray gave this worker. Its gate keeps other programs off by the GPU's UUID."""

    def __init__(self, config: VerifierConfig, cache_dir: Path | None, redraw_parameters: bool):
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        self._gpu = Gpu(
            Nursery(), device, lanes=LANES, cache_dir=cache_dir, timeout_s=config.gpu_timeout_s,
            redraw_parameters=redraw_parameters, memory_share=config.gpu_memory_share,
        )  # fmt: skip

    def about(self) -> tuple[dict[str, str], NoiseBand]:
        """Which GPU it is, and its noise."""
        return self._gpu.facts, self._gpu.noise

    def seed(self, task_key: str) -> int:
        return self._gpu.seed(task_key)

    def run(self, job: Job, baselines: Sequence[str], task_key: str) -> Outcome:
        return self._gpu.run(job, baselines, task_key)


# --- here ------------------------------------------------------------------------------------------------------------


class Seat:
    """An actor from outside: asked in threads, and passed over while it is away."""

    def __init__(self, ray: Any, actor: Any):
        self._ray, self._actor = ray, actor
        self._lock = threading.Lock()
        self._closed = False
        self._settled = threading.Event()
        self._failure: Exception | None = None
        self.load = 0
        """Calls under way."""
        self.about: Any = None
        """What the seat said of itself when it was last ready."""
        self._expect()

    @property
    def here(self) -> bool:
        """Whether it is ready, as far as is known."""
        return self._settled.is_set() and self._failure is None

    def wait(self, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Until it is ready. Raises InfrastructureError when that takes too long, or cannot be."""
        if not self._settled.wait(timeout_s):
            raise InfrastructureError(f"no Ray worker came up within {timeout_s:g} s; `ray status` shows what is missing.")
        if self._failure is not None:
            raise InfrastructureError(f"a Ray worker cannot start: {_last_line(self._failure)}")

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method there.

        Raises:
            InfrastructureError: the seat is gone, or its machinery broke.
            UsageError: the task itself does not run.
        """
        self.wait()
        if self._closed:  # a call would start a Ray anew
            raise InfrastructureError("the Ray worker has been ended")
        with self._lock:
            self.load += 1
        try:
            return self._ray.get(getattr(self._actor, method).remote(*arguments), timeout=CALL_TIMEOUT_S)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UsageError | InfrastructureError):
                raise error.cause from None
            raise InfrastructureError(f"a Ray worker failed: {_last_line(error)}") from None
        except self._ray.exceptions.RayError as error:
            self._expect()
            raise InfrastructureError(f"a Ray worker is gone: {str(error).splitlines()[0]}") from None
        finally:
            with self._lock:
                self.load -= 1

    def _expect(self) -> None:
        """Wait for the actor in the background: Ray starts it, and starts it again, where there is room."""

        def settle(answer: Future[Any]) -> None:
            try:
                self.about, self._failure = answer.result(), None
            except self._ray.exceptions.ActorUnavailableError:  # Ray has yet to notice, or it died once more
                later = threading.Timer(1.0, self._expect)
                later.daemon = True
                later.start()
                return
            except Exception as error:
                self._failure = error
            self._settled.set()

        if self._closed:
            return
        self._settled.clear()
        self._actor.about.remote().future().add_done_callback(settle)

    def close(self) -> None:
        """End the actor. Whoever asks from now on, or waits for it to come back, meets InfrastructureError."""
        self._closed, self._failure = True, InfrastructureError("it has been ended")
        self._settled.set()
        with contextlib.suppress(Exception):  # it may be gone, and the cluster with it
            self._ray.kill(self._actor, no_restart=True)


class RemoteGpu:
    """A GPU of the cluster, with the face of `Gpu`."""

    def __init__(self, seat: Seat):
        self._seat = seat

    @property
    def facts(self) -> dict[str, str]:
        return self._seat.about[0]

    @property
    def noise(self) -> NoiseBand:
        return self._seat.about[1]

    def load(self) -> float:
        """Calls under way; a GPU that is away is the last to be asked."""
        return self._seat.load + (0 if self._seat.here else 1e6)

    def seed(self, task_key: str) -> int:
        """See `Gpu.seed`."""
        return self._seat.ask("seed", task_key)

    def run(self, job: Job, baselines: Sequence[str], task_key: str) -> Outcome:
        """See `Gpu.run`."""
        return self._seat.ask("run", job, baselines, task_key)

    def untimed(self) -> contextlib.AbstractContextManager[None]:
        """The caller samples and trains on GPUs that are not Ray's."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """The cluster ends its seats."""


class Front:
    """The front seats, with the faces of `Tracer`, `Compiler` and `CpuReplay`."""

    def __init__(self, seats: Sequence[Seat]):
        self._seats = seats

    def trace(self, source: str, specs: Sequence[TraceSpec], timeout_s: float) -> list[Plan] | Rejection:
        """See `Tracer.trace`."""
        return self._ask("trace", source, specs, timeout_s)

    def compile(self, kernels: Sequence[KernelSource], target: str, timeout_s: float) -> list[CompiledKernel | Rejection]:
        """See `Compiler.compile`."""
        return self._ask("compile", kernels, target, timeout_s)

    def judge(self, job: SmallJob) -> Judged:
        """See `CpuReplay.judge`."""
        return self._ask("judge", job)

    def close(self) -> None:
        """The cluster ends its seats."""

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Ask the idlest that is here; should it die, another."""
        for left in reversed(range(TRIES)):
            seat = min(self._seats, key=lambda one: (not one.here, one.load))
            try:
                return seat.ask(method, *arguments)
            except InfrastructureError:
                if not left or seat.here:  # one that is still here had a reason of its own
                    raise
        raise AssertionError("unreachable")


class Cluster:
    """A Ray cluster, joined or started here, and the seats on it."""

    def __init__(self, address: str):
        """Join.

        Args:
            address: `ray` for the cluster that this machine belongs to, or one started here; or `ray://HOST:PORT`.

        Raises:
            UsageError: ray is not installed.
            InfrastructureError: no cluster answers.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # once it has been left, no Ray is started in its place
        try:
            import ray
        except ImportError:
            raise UsageError("--verifier ray needs ray: pip install 'kernrl[ray]'.") from None
        self._ray, self._mine = ray, not ray.is_initialized()
        if self._mine:
            try:
                quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
                with _our_signals():
                    ray.init(address if "://" in address else None, namespace="kernrl", **quiet)
            except Exception as error:  # of many kinds, by what is in the way
                raise InfrastructureError(f"--verifier {address}: no Ray cluster answers ({_last_line(error)}).") from None
        self._seats: list[Seat] = []
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.gpu_count = sum(int(node.get("GPU", 0)) for node in nodes)
        free = [int(node.get("CPU", 0)) - GPU_CPUS * int(node.get("GPU", 0)) for node in nodes]
        self.front_cpus = [min(SEAT_CPUS, cpus) for cpus in free if cpus > 0 for _ in range(max(1, cpus // SEAT_CPUS))]
        """CPUs of each front seat that there is room for."""
        if not self.front_cpus:
            raise InfrastructureError(f"--verifier {address}: the Ray cluster has no CPU to trace on.")

    def gpus(self, config: VerifierConfig, cache_dir: Path | None, *, redraw_parameters: bool) -> list[RemoteGpu]:
        """Every GPU that comes up and is of the first one's model: speeds of others cannot be compared with its."""
        seats = [
            self._seat(GpuSeat, (config, cache_dir, redraw_parameters), 2 * LANES, num_cpus=GPU_CPUS, num_gpus=1)
            for _ in range(self.gpu_count)
        ]
        up = self._up(seats)
        alike = [seat for seat in up if seat.about[0]["gpu"] == up[0].about[0]["gpu"]]
        if len(alike) < len(seats):
            log.warning("%d of the cluster's %d GPUs are used", len(alike), len(seats))
        return [RemoteGpu(seat) for seat in alike]

    def front(self, config: VerifierConfig, cache_dir: Path | None, target: str, replay: dict[str, bool]) -> Front:
        """Seats to trace and compile on, of which those that come up late are used from then on."""
        seats = [
            self._seat(FrontSeat, (config, cache_dir, target, cpus, replay), 2 * cpus, num_cpus=cpus)
            for cpus in self.front_cpus
        ]
        seats[0].wait()
        return Front(seats)

    def close(self) -> None:
        """End every seat, and the connection if it was made here."""
        for seat in self._seats:
            seat.close()
        if self._mine:
            self._ray.shutdown()

    def _seat(self, kind: type[Any], arguments: tuple[Any, ...], concurrency: int, **resources: float) -> Seat:
        """An actor that Ray starts again when it dies, but whose calls it never repeats."""
        remote = self._ray.remote(kind).options(
            max_concurrency=concurrency, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD", **resources
        )
        seat = Seat(self._ray, remote.remote(*arguments))
        self._seats.append(seat)
        return seat

    def _up(self, seats: Sequence[Seat]) -> list[Seat]:
        """Those that come up. Raises InfrastructureError, with the first one's reason, when none does."""
        for seat in seats:
            with contextlib.suppress(InfrastructureError):
                seat.wait()
        up = [seat for seat in seats if seat.here]
        if seats and not up:
            seats[0].wait(0)
        return up


@contextlib.contextmanager
def _our_signals() -> Iterator[None]:
    """Keep the handlers that are set: with Ray's, SIGTERM aborts the process and nothing is ended in order."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # only there can Ray, or we, set them
            for number, handler in before.items():
                if handler is not None:
                    signal.signal(number, handler)


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
