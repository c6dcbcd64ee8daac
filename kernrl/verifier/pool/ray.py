"""The verifier on a Ray cluster: candidates are traced and compiled on CPUs anywhere, replayed on GPUs anywhere.

`RayFront` and `RayGpu` implement the protocols of `backend` by calling the actors of `ray_actors`. The funnel itself, its
checks and its verdicts stay in the calling process. Ray repeats nothing by itself: a call whose actor dies raises
InfrastructureError, the actor is passed over until Ray has restarted it, and the candidate is judged again elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import Device
from kernrl.verifier.base.verdict import Rejection
from kernrl.verifier.interpret.interpret_server import Judged, SmallJob
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import KernelSource, TraceSpec
from kernrl.verifier.plan.reading import Asked, PlansRead
from kernrl.verifier.pool.backend import Front, GpuBackend, Outcome
from kernrl.verifier.pool.gpu import LANES
from kernrl.verifier.pool.ray_actor import AboutGpu, Actor
from kernrl.verifier.pool.ray_actors import FrontActor, GpuActor
from kernrl.verifier.pool.task_facts import TaskFacts
from kernrl.verifier.replay.job import Job
from kernrl.verifier.replay.timing import NoiseBand
from kernrl.verifier.rpc.answers import Answer, Died, Failed, value_of
from kernrl.verifier.trace.tracer import Traced

log = logging.getLogger(__name__)

FRONT_CPUS = 4
"""CPUs of a front actor: one warm sandbox and one warm compiler serve as many candidates at once."""

GPU_CPUS = 1
"""CPUs that Ray reserves for a GPU actor, whose lanes launch kernels."""

START_TIMEOUT_S = 300.0
"""Longest wait for an actor to start, or to be restarted: a node may have to start first."""

CALL_TIMEOUT_S = 1800.0
"""Longest call before its actor counts as lost; every stage inside has shorter limits of its own."""

TRIES = 3
"""Front actors that are tried in turn if each dies."""

S = TypeVar("S", bound="Actor")
P = ParamSpec("P")
R = TypeVar("R")


class RayActor(Generic[S]):
    """An actor of class S from outside: called in threads, and passed over while it is away."""

    def __init__(self, ray: Any, actor: Any):
        self._ray, self._actor = ray, actor
        self._lock = threading.Lock()
        self._closed = False
        self._settled = threading.Event()
        self._failure: Exception | None = None
        self.load = 0
        """Calls under way."""
        self.about: AboutGpu | None = None
        """The GPU of an actor that has one, as it was when the actor was last ready."""
        self._await_ready()

    @property
    def ready(self) -> bool:
        """Whether it is ready, as far as is known."""
        return self._settled.is_set() and self._failure is None

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until it is ready. Raises InfrastructureError when that takes too long, or cannot be."""
        if not self._settled.wait(timeout_s):
            raise InfrastructureError(f"no Ray worker came up within {timeout_s:g} s; `ray status` shows what is missing.")
        if self._failure is not None:
            raise InfrastructureError(f"a Ray worker cannot start: {_last_line(self._failure)}")

    def ask(self, method: Callable[Concatenate[S, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method of S there (arguments by position only).

        Raises:
            InfrastructureError: the actor is gone, or its machinery broke.
            UsageError: the task itself does not run.
        """
        assert not kwargs
        self.wait()
        if self._closed:  # a call would start another Ray
            raise InfrastructureError("the Ray worker has been ended")
        with self._lock:
            self.load += 1
        try:
            answer: Answer = self._ray.get(self._actor.answer.remote(method.__name__, args), timeout=CALL_TIMEOUT_S)
            return value_of(answer)
        except (Failed, Died, self._ray.exceptions.RayTaskError) as error:
            raise InfrastructureError(f"a Ray worker failed: {_last_line(error)}") from None
        except self._ray.exceptions.RayError as error:
            self._await_ready()
            raise InfrastructureError(f"a Ray worker is gone: {str(error).splitlines()[0]}") from None
        finally:
            with self._lock:
                self.load -= 1

    def _await_ready(self) -> None:
        """Wait in the background until Ray has started the actor, or restarted it, where there is room."""

        def settle(answer: Future[Any]) -> None:
            try:
                self.about, self._failure = answer.result(), None
            except self._ray.exceptions.ActorUnavailableError:  # Ray has yet to notice, or it died once more
                later = threading.Timer(1.0, self._await_ready)
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
        """End the actor. Later calls, and calls that wait for it to come back, raise InfrastructureError."""
        self._closed, self._failure = True, InfrastructureError("it has been ended")
        self._settled.set()
        with contextlib.suppress(Exception):  # it may be gone, and the cluster with it
            self._ray.kill(self._actor, no_restart=True)


def about_gpu(actor: RayActor[GpuActor]) -> AboutGpu:
    """The GPU of an actor that was ready once."""
    assert actor.about is not None
    return actor.about


class RayGpu(GpuBackend):
    """A GPU of the cluster."""

    def __init__(self, actor: RayActor[GpuActor]):
        self._actor = actor

    @property
    def gpu_info(self) -> dict[str, str]:
        return about_gpu(self._actor)[0]

    @property
    def noise(self) -> NoiseBand:
        return about_gpu(self._actor)[1]

    def load(self) -> float:
        """Calls under way; a GPU that is away is asked last."""
        return self._actor.load + (0 if self._actor.ready else 1e6)

    def seed(self, task_key: str) -> int:
        return self._actor.ask(GpuActor.seed, task_key)

    def run(self, job: Job, baselines: Sequence[str], task_key: str) -> Outcome:
        return self._actor.ask(GpuActor.run, job, baselines, task_key)

    def doing(self) -> str:
        """Not known: an actor is not asked while it judges."""
        return ""

    def untimed(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to do: the caller samples and trains on GPUs that are not Ray's."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """The cluster ends its actors."""


class RayFront(Front):
    """The front on the cluster's nodes."""

    def __init__(self, actors: Sequence[RayActor[FrontActor]]):
        self.actors = actors

    def facts(self, task: Task, precision: str, device: Device, *, on_gpu: bool) -> TaskFacts:
        return self._ask(lambda actor: actor.ask(FrontActor.facts, task, precision, device, on_gpu))

    def trace(self, source: str, specs: Sequence[TraceSpec], timeout_s: float) -> Traced | Rejection:
        return self._ask(lambda actor: actor.ask(FrontActor.trace, source, specs, timeout_s))

    def read(self, frames: Sequence[bytes], asked: Asked) -> PlansRead:
        return self._ask(lambda actor: actor.ask(FrontActor.read, frames, asked))

    def compile(self, kernels: Sequence[KernelSource], target: str, timeout_s: float) -> list[CompiledKernel | Rejection]:
        return self._ask(lambda actor: actor.ask(FrontActor.compile, kernels, target, timeout_s))

    def interpret(self, job: SmallJob) -> Judged:
        return self._ask(lambda actor: actor.ask(FrontActor.interpret, job))

    def close(self) -> None:
        """The cluster ends its actors."""

    def _ask(self, call: Callable[[RayActor[FrontActor]], R]) -> R:
        """Call the least loaded actor that is ready; if it dies, another."""
        for left in reversed(range(TRIES)):
            actor = min(self.actors, key=lambda one: (not one.ready, one.load))
            try:
                return call(actor)
            except InfrastructureError:
                if not left or actor.ready:  # an actor that is still there failed for a reason that would come again
                    raise
        raise AssertionError("unreachable")


class Cluster:
    """A Ray cluster, joined or started here, and the actors on it."""

    def __init__(self, address: str, flag: str = VerifierConfig.EXECUTOR):
        """Join.

        Args:
            address: `ray` for the cluster that this machine belongs to, or one started here; or `ray://HOST:PORT`.
            flag: what the address was given by, for messages.

        Raises:
            UsageError: ray is not installed.
            InfrastructureError: no cluster answers.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # after leaving, never start one by itself
        try:
            import ray
        except ImportError:
            raise UsageError(f"{flag} ray needs ray: pip install 'kernrl[ray]'.") from None
        self._ray, self._mine = ray, not ray.is_initialized()
        if self._mine:
            try:
                quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
                with _our_signals(), warnings.catch_warnings(action="ignore"):  # the sentence below says it
                    ray.init(address if "://" in address else None, namespace="kernrl", **quiet)
            except Exception as error:  # of many kinds, by what is in the way
                raise InfrastructureError(f"{flag} {address}: no Ray cluster answers ({_last_line(error)}).") from None
        self._actors: list[RayActor[Any]] = []
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.gpu_count = sum(int(node.get("GPU", 0)) for node in nodes)
        free = [int(node.get("CPU", 0)) - GPU_CPUS * int(node.get("GPU", 0)) for node in nodes]
        self.front_cpus = [min(FRONT_CPUS, cpus) for cpus in free if cpus > 0 for _ in range(max(1, cpus // FRONT_CPUS))]
        """CPUs of each front actor that there is room for."""
        if not self.front_cpus:
            raise InfrastructureError(f"{flag} {address}: the Ray cluster has no CPU to trace on.")

    def gpus(self, config: VerifierConfig, cache_dir: Path | None, *, redraw_parameters: bool) -> list[RayGpu]:
        """Every GPU that comes up and is of the first one's model: speeds on other models cannot be compared with its."""
        actors = [
            self.start(GpuActor, (config, cache_dir, redraw_parameters), 2 * LANES, num_cpus=GPU_CPUS, num_gpus=1)
            for _ in range(self.gpu_count)
        ]
        ready = wait_for_any(actors)
        models = [about_gpu(actor)[0]["gpu"] for actor in ready]
        alike = [actor for actor, model in zip(ready, models, strict=True) if model == models[0]]
        if len(alike) < len(actors):
            log.warning("%d of the cluster's %d GPUs are used", len(alike), len(actors))
        return [RayGpu(actor) for actor in alike]

    def front(self, config: VerifierConfig, cache_dir: Path | None, target: str, interpreter: dict[str, bool]) -> RayFront:
        """Actors to trace, compile and interpret on; those that come up late are used from then on."""
        actors = [
            self.start(FrontActor, (config, cache_dir, target, cpus, interpreter), 2 * cpus, num_cpus=cpus)
            for cpus in self.front_cpus
        ]
        actors[0].wait()
        return RayFront(actors)

    def start(self, kind: type[S], arguments: tuple[Any, ...], concurrency: int, **resources: float) -> RayActor[S]:
        """Start an actor that Ray restarts when it dies, but whose calls Ray never repeats."""
        remote = self._ray.remote(kind).options(
            max_concurrency=concurrency, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD", **resources
        )
        actor: RayActor[S] = RayActor(self._ray, remote.remote(*arguments))
        self._actors.append(actor)
        return actor

    def close(self) -> None:
        """End every actor, and the connection if it was made here."""
        for actor in self._actors:
            actor.close()
        if self._mine:
            self._ray.shutdown()


def wait_for_any(actors: Sequence[RayActor[S]]) -> list[RayActor[S]]:
    """Those that come up. Raises InfrastructureError, with the first one's reason, when none does."""
    for actor in actors:
        with contextlib.suppress(InfrastructureError):
            actor.wait()
    ready = [actor for actor in actors if actor.ready]
    if actors and not ready:
        actors[0].wait(0)
    return ready


@contextlib.contextmanager
def _our_signals() -> Iterator[None]:
    """Keep our signal handlers: Ray's aborts the process on SIGTERM, and nothing is cleaned up."""
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
