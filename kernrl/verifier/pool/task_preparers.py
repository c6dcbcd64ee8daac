"""Prepares a task once, before any of its candidates has a lane: how much memory it takes, and its baselines compiled by
Inductor. Processes beside the lanes do it; they have neither answers nor candidates."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from kernrl.errors import InfrastructureError, UsageError
from kernrl.tasks.task import Task
from kernrl.verifier.judge.memory_estimate import SetMemory
from kernrl.verifier.pool.gpu_lock import Lock
from kernrl.verifier.pool.scheduler import MAX_TASKS
from kernrl.verifier.replay.compiled_reference import MODES
from kernrl.verifier.replay.job import Job
from kernrl.verifier.replay.task_preparer import TaskPreparer
from kernrl.verifier.rpc.answers import Died, Ended, Failed, TimedOut
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.worker_client import Client

log = logging.getLogger(__name__)

REHEARSERS, COMPILERS = 2, 5
"""Processes that rehearse tasks, and most that compile baselines for a GPU: a core each, for seconds a task."""

TIMEOUT_S = 300.0


def compilers(cores: int) -> int:
    """How many processes compile baselines for a GPU, on a machine with so many cores: candidates are traced meanwhile."""
    return max(1, min(COMPILERS, cores // 3))


Sets = dict[str, SetMemory | None]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TaskPreparers:
    """Thread-safe: the first candidate of a task starts the work, and the others wait for it."""

    def __init__(self, workers: ForkServer, device: str, env: Mapping[str, str], lock: Lock, compilers: int):
        """`env`: where Inductor keeps what it has compiled; `lock`: the GPU's. Nothing is started yet."""
        self._lock = lock
        self._rehearsers = _Processes([_client(workers, device, env) for _ in range(REHEARSERS)])
        self._compilers = _Processes([_client(workers, device, env) for _ in range(compilers)])
        self._memory: _Once[tuple[object, ...], Sets] = _Once()
        self._compiled: _Once[tuple[object, ...], float] = _Once()
        self._names: Counter[str] = Counter()
        """Tasks whose baselines are being compiled."""

    def memory(self, job: Job, task_key: str) -> Sets:
        """What each input set of a job's task takes; None for one that cannot be rehearsed. Raises UsageError for a task that
        does not run, and InfrastructureError."""
        key = task_key, job.precision, tuple(job.plans)
        return self._memory.get(key, lambda: self._rehearsed(job))

    def _rehearsed(self, job: Job) -> Sets:
        with self._rehearsers.one() as client:
            for attempt in range(2):
                try:
                    return client.ask(TaskPreparer.memory, TIMEOUT_S, job.task, job.precision, list(job.plans))
                except (Failed, Died, TimedOut, Ended) as error:
                    client.kill()
                    if attempt:
                        raise InfrastructureError(f"{job.task.id}: its memory cannot be rehearsed: {error}") from None
        raise AssertionError

    def compile(self, job: Job, baselines: Sequence[str], task_key: str) -> float:
        """Compile those of the baselines that need it, to disk. Returns the seconds that this caller spent on it; 0 if it
        waited for another one. Where it fails, the lane compiles."""
        names = tuple(name for name in baselines if name in MODES)
        if not names or not self._compilers.clients:
            return 0.0
        mine: list[float] = []

        def make() -> float:
            begun = time.monotonic()
            self._compile(job.task, job.precision, names)
            mine.append(time.monotonic() - begun)
            return mine[0]

        self._compiled.get((task_key, job.precision, names), make)
        return sum(mine)

    def start(self) -> None:
        """Start the processes that compile, beside one another; returns at once."""
        for _ in self._compilers.clients:
            threading.Thread(target=self._start_one, daemon=True).start()

    def _start_one(self) -> None:
        """Errors surface to the first task that is compiled there."""
        with self._compilers.one() as client, contextlib.suppress(Failed, Died, TimedOut, InfrastructureError):
            self._set_up(client)

    def _set_up(self, client: Client[TaskPreparer]) -> None:
        if not client.running:
            with self._lock.shared():  # setting up a process disturbs what a lane times
                client.ask(TaskPreparer.use_gpu, TIMEOUT_S)
            client.ask(TaskPreparer.warm_up, TIMEOUT_S)

    def _compile(self, task: Task, precision: str, names: Sequence[str]) -> None:
        with self._compilers.one() as client:
            self._names[task.id] += 1
            try:
                self._set_up(client)
                client.ask(TaskPreparer.compile, TIMEOUT_S, task, precision, names)
            except (Failed, Died, TimedOut, InfrastructureError, UsageError) as error:
                log.warning("%s: its baselines are compiled in a lane: %s", task.id, error)
                client.kill()
            finally:
                self._names[task.id] -= 1

    def doing(self) -> list[str]:
        """For people: `compiling a baseline of a_task`."""
        return [f"compiling a baseline of {name}" for name, count in list(self._names.items()) if count > 0]

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for clients in (self._rehearsers.clients, self._compilers.clients):
            for client in clients:
                client.kill(wait=False)


def _client(workers: ForkServer, device: str, env: Mapping[str, str]) -> Client[TaskPreparer]:
    return Client(workers, TaskPreparer, {}, name="preparing", device=device, env=env)


class _Processes:
    """Lends processes, always the first one that is free: one that is never needed is never started."""

    def __init__(self, clients: Sequence[Client[TaskPreparer]]):
        self.clients = list(clients)
        self._free = list(clients)
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def one(self) -> Iterator[Client[TaskPreparer]]:
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            client = self._free.pop(0)
        try:
            yield client
        finally:
            with self._changed:
                self._free.append(client)
                self._free.sort(key=self.clients.index)
                self._changed.notify()


class _Once(Generic[K, V]):
    """Values that are made once, while others wait for them. A failure is not kept, unless it is the task's own: those who
    waited try again."""

    def __init__(self) -> None:
        self._made: OrderedDict[K, Future[V]] = OrderedDict()
        self._mutex = threading.Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value; raises what `make` raises."""
        while True:
            with self._mutex:
                future = self._made.get(key)
                if mine := future is None:
                    future = self._made[key] = Future()
                self._made.move_to_end(key)
                while len(self._made) > MAX_TASKS:
                    self._made.popitem(last=False)
            if mine:
                return self._make(key, future, make)
            try:
                return future.result()
            except UsageError:
                raise
            except BaseException:  # of the one who made it, who has been told
                continue

    def _make(self, key: K, future: Future[V], make: Callable[[], V]) -> V:
        try:
            value = make()
        except BaseException as error:
            if not isinstance(error, UsageError):
                with self._mutex:
                    if self._made.get(key) is future:
                        del self._made[key]
            future.set_exception(error)
            raise
        future.set_result(value)
        return value
