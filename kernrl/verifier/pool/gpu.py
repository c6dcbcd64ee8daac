"""One GPU: its calibrated noise, and the lanes that share it."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch

from kernrl.errors import InfrastructureError, UsageError
from kernrl.tasks.task import FULL
from kernrl.verifier.base.verdict import Rejection, Speedup, Stage, Status
from kernrl.verifier.base.version import version_of
from kernrl.verifier.judge.draws import Seeds
from kernrl.verifier.pool.backend import CalibratedGpu, Outcome
from kernrl.verifier.pool.gpu_lock import GpuLock
from kernrl.verifier.pool.lane import Lane, inductor_environment
from kernrl.verifier.pool.memory_ledger import MemoryLedger, Planned, crew, gib, is_small, planned, usable_bytes
from kernrl.verifier.pool.scheduler import MAX_TASKS, AffinityScheduler
from kernrl.verifier.pool.task_preparers import TaskPreparers
from kernrl.verifier.replay import stopwatch, timing
from kernrl.verifier.replay.compiled_reference import MODES
from kernrl.verifier.replay.job import Job
from kernrl.verifier.replay.replay_server import ReplayServer
from kernrl.verifier.replay.stopwatch import NULL_PAIRS, NULL_ROUNDS, Sizes
from kernrl.verifier.rpc.answers import Died, Failed, OutOfMemory, TimedOut
from kernrl.verifier.rpc.fork_server import ForkServer

log = logging.getLogger(__name__)

LANES, COMPILING_LANES = 4, 6
"""Lanes a GPU, on a machine with enough cores; each holds two CUDA contexts. While one times, the others wait: the more have
passed correctness by then, the more are timed in a row. The second number is for baselines that are compiled: loading them
keeps a lane busy for a second a task, without the GPU."""

TELLING = ("timing", "compiling", "loading", "waiting for memory")
"""What a lane may be at that explains where the time goes; judging and waiting for a turn go on all the time."""

RETRY_FACTOR = 2
"""How much more memory a candidate may take that has run out of what it was granted."""

SOLE_SHARE = 0.9
"""A candidate that runs out of memory alone is too large if this share of it was free; otherwise other programs hold it."""


def _record(need: Planned) -> dict[str, int]:
    return {"planned": need.total, "planned_replay": need.replay, "planned_judge": need.judge, "granted": need.most}


def _too_large(need: Planned, own_bytes: int, total_bytes: float, said: str = "") -> Rejection:
    """A candidate that does not fit, even with the GPU to itself; `own_bytes` is what its buffers take."""
    reason = f"Judging it takes {gib(need.total)} of the GPU's memory, {gib(own_bytes)} of it for its own buffers"
    reason += f", and {gib(total_bytes)} are there{said and f' ({said})'}: allocate less in forward()."
    return Rejection(Status.TOO_LARGE, reason)


class Gpu(CalibratedGpu):
    """A GPU shared by lanes: correctness side by side, since it leaves the GPU mostly idle; timing always alone.

    What is prepared for a task is prepared in a lane, so an `AffinityScheduler` assigns candidates to lanes.
    """

    def __init__(
        self, workers: ForkServer, device: str, *, lanes: int, cache_dir: Path | None, timeout_s: float, share: bool = True,
        redraw_parameters: bool = True, memory_share: float = 0.15, noise: timing.NoiseBand | None = None, compilers: int = 0,
    ):  # fmt: skip
        """`memory_share`: of the GPU's free memory, what all lanes together may keep of small tasks; `noise`: as calibrated
        before; `compilers`: processes that compile baselines beside the lanes. A small GPU has fewer of both."""
        env = inductor_environment(cache_dir)
        self._lanes = [
            Lane(
                workers, device, share=share, redraw_parameters=redraw_parameters, timeout_s=timeout_s,
                memory_share=memory_share / (2 * lanes), env=env,
            )
            for _ in range(lanes)
        ]  # fmt: skip
        self._gpu_info: dict[str, str] = self._lanes[0].replay.ask(ReplayServer.gpu_info, 60)
        free_bytes = float(self._gpu_info["free_bytes"])
        lanes, compilers = crew(free_bytes, lanes, compilers)
        del self._lanes[lanes:]
        usable = usable_bytes(free_bytes, lanes, compilers)
        self._gpu_info["usable_bytes"] = str(int(usable))
        self.least_bytes, self.even_share = int(memory_share * usable / lanes), usable / lanes
        """What a lane may hold in any case, and what each may where all hold the same."""
        self._seen: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Tasks that took more than was planned, and what replay and the judge held then."""
        self._lock = GpuLock(self.gpu_info["uuid"])
        self.preparers = TaskPreparers(workers, device, env, self._lock, compilers)
        self._compiles = compilers > 0
        self._cache_dir = cache_dir
        self._seeds = Seeds()
        self.scheduler, self._calibrating = AffinityScheduler(self._lanes), threading.Lock()
        self._starting = threading.Lock()
        self.memory: MemoryLedger[Lane] = MemoryLedger(usable, Lane.give_back, self.scheduler.is_busy)
        self._first_task: str | None = None
        self._all_started = False
        """Whether a second task has come, and all lanes start."""
        self._uncompiled = 0
        """Candidates that have or wait for a lane, and for no baseline that is compiled."""
        self._closed = False
        self.restarts = 0
        """How often a lane got new processes because one was lost."""
        self._noise = noise
        threading.Thread(target=self._warm_up, daemon=True).start()

    @property
    def gpu_info(self) -> dict[str, str]:
        """`ReplayServer.gpu_info`, and `usable_bytes`: what the lanes may take together."""
        return self._gpu_info

    def seed(self, task_key: str) -> int:
        """The secret seed of the draws for one more candidate of a task; see `Seeds`."""
        return self._seeds.next(task_key)

    def load(self) -> int:
        """Jobs here, running and waiting."""
        return self.scheduler.load()

    def run(self, job: Job, baselines: Sequence[str], task_key: str) -> Outcome:
        """Correctness, then time; once more if a process was lost.

        Raises InfrastructureError when the processes cannot work, UsageError for a broken task.
        """
        begun = time.monotonic()
        self._start_lanes(task_key)
        need = self._planned(job, baselines, task_key)
        if need.task > self.memory.total_bytes:
            sentence = f"judging any candidate takes {gib(need.task)}, and the GPU has {gib(self.memory.total_bytes)}"
            raise UsageError(f"{job.task.id}: {sentence} for it: give the task smaller sizes.")
        if need.sure > self.memory.total_bytes:
            found = _too_large(need, max(job.temporary_bytes.values()), self.memory.total_bytes)
            return Outcome(Stage.CORRECTNESS, found, memory=_record(need))
        compiles = FULL in job.plans and any(name in MODES for name in baselines)
        compiled = self.preparers.compile(job, baselines, task_key) if compiles else 0.0
        costly = not is_small(job) or any(name in MODES for name in baselines)
        with self._starting:
            self._uncompiled += not compiles
        try:
            _ = self.noise  # before a lane is assigned: calibration uses the first one
            with self.scheduler.worker(task_key, costly=costly) as lane, lane.mutex:
                try:
                    self._make_way(lane, job, task_key)
                    lane.doing = f"waiting for memory for {job.task.id}"
                    outcome, began = self._in_turn(lane, job, baselines, task_key)
                except InfrastructureError:
                    self._drop(lane)
                    raise
                finally:
                    lane.doing = ""
        finally:
            with self._starting:
                self._uncompiled -= not compiles
            self.memory.wake()  # the lane may be free now
        waited = max(0.0, began - begun - compiled)
        outcome.seconds["gpu_queue"] = waited + outcome.seconds.get("gpu_queue", 0.0)
        if compiled:
            outcome.seconds["compile_baseline"] = compiled
        return outcome

    def _start_lanes(self, task_key: str) -> None:
        """Start all lanes beside one another when a second task comes: while one starts, none can time."""
        with self._starting:
            self._first_task = self._first_task or task_key
            if self._all_started or task_key == self._first_task:
                return
            self._all_started = True
        for lane in self._lanes[1:]:
            threading.Thread(target=self._make_ready, args=(lane,), daemon=True).start()

    def _make_ready(self, lane: Lane) -> None:
        """Start a lane. Errors surface to its next user."""
        with contextlib.suppress(InfrastructureError), lane.mutex, self._lock.shared():
            lane.start()
        self._make_ready_for_compiled(lane)

    def _make_ready_for_compiled(self, lane: Lane) -> None:
        """Have a lane make ready for Inductor while the first baselines are compiled, unless a candidate is there that waits
        for none of them; any other would wait for this anyway. Others may time meanwhile. Errors surface to the lane's next
        user."""
        with contextlib.suppress(InfrastructureError), lane.mutex:
            if self._compiles and not self._uncompiled:
                lane.warm_up()

    def doing(self) -> str:
        """What the lanes are at, for people, the rarest first: `timing a_task, compiling a baseline of another`."""
        said = [*(lane.doing for lane in self._lanes if lane.doing), *self.preparers.doing()]
        return ", ".join(dict.fromkeys(one for kind in TELLING for one in said if one.startswith(kind))) or ", ".join(said[:1])

    def _planned(self, job: Job, baselines: Sequence[str], task_key: str) -> Planned:
        """What a candidate takes; rehearsed once for each task, unless it is small."""
        sets = {} if is_small(job) else self.preparers.memory(job, task_key)
        return planned(job, sets, len(baselines)).at_least(*self._seen.get(task_key, (0, 0)))

    def _make_way(self, lane: Lane, job: Job, task_key: str) -> None:
        """Have a lane drop what it has kept of another task, before a large candidate runs there or after one did."""
        if lane.kept not in (None, task_key) and (not is_small(job) or self.memory.held_bytes(lane) > self.least_bytes):
            self.memory.released(lane, lane.give_back())

    def _in_turn(self, lane: Lane, job: Job, baselines: Sequence[str], task_key: str) -> tuple[Outcome, float]:
        """Run a job once there is memory for it; the outcome, and the time at which it began.

        Memory may run out all the same: libraries take some that no plan sees, and other programs may use the GPU. Then the job
        runs again with twice as much, and after that alone, next, with all the memory there is. Its task's next candidates are
        planned with what it held.
        """
        need = self._planned(job, baselines, task_key)  # now: the task's last candidate may have taken more than was planned
        more = need.with_most(RETRY_FACTOR * need.most)
        rooms = [need, more] if need.limited and more.most <= self.memory.total_bytes else [need]
        for room in rooms:
            try:
                outcome, began = self._with_room(lane, job, baselines, task_key, room)
            except OutOfMemory as error:
                if self._closed:
                    raise
                log.warning("%s runs again with more of the GPU's memory than %s: %s", job.task.id, gib(room.most), error)
                self.restarts += not (lane.replay.running and lane.judge.running)
                self.memory.released(lane, lane.give_back())
            else:
                if room is not need:
                    self._learn(task_key, outcome)
                return outcome, began
        lane.doing = f"waiting for the whole GPU's memory for {job.task.id}"
        with self.memory.admitted(lane, self.memory.total_bytes, alone=True):
            began, lane.kept = time.monotonic(), task_key
            try:
                outcome = self._admitted(lane, job, baselines, need, alone=True)
            except OutOfMemory as error:
                return self._without_memory(lane, job, need, str(error)), began
        self._learn(task_key, outcome)
        self.memory.released(lane, lane.give_back())
        return outcome, began

    def _with_room(self, lane: Lane, job: Job, baselines: Sequence[str], task_key: str, room: Planned) -> tuple[Outcome, float]:
        """Run a job once there is so much room, with as much as an even share of the memory if nobody waits for it."""
        wished = self.even_share if room.limited else 0.0
        with self.memory.admitted(lane, max(room.most, self.least_bytes), wished=wished) as granted:
            began, lane.kept = time.monotonic(), task_key
            room = room.with_most(max(room.most, granted.nbytes))
            return self._admitted(lane, job, baselines, room, alone=granted.alone), began

    def _admitted(self, lane: Lane, job: Job, baselines: Sequence[str], need: Planned, *, alone: bool) -> Outcome:
        """Run a job for which there is room; once more if a process was lost."""
        most = (None, None) if alone else (need.most_replay, need.most_judge)
        try:
            outcome = lane.run(job, baselines, self._lock, self.noise, most, slices=need.slices, alone=alone)
        except OutOfMemory:
            raise
        except InfrastructureError as error:
            if self._closed:
                raise
            log.warning("a lane is restarted: %s", error)
            self.restarts += 1
            lane.close()  # whatever killed one of its processes may have killed the other
            outcome = lane.run(job, baselines, self._lock, self.noise, most, slices=need.slices, alone=alone)
        outcome.memory = _record(need)
        if outcome.measured and (alone or not is_small(job)):
            lane.spent(outcome)
        return outcome

    def _without_memory(self, lane: Lane, job: Job, need: Planned, said: str) -> Outcome:
        """The outcome of a job that ran out of memory with the GPU to itself. Raises OutOfMemory if that is not its fault."""
        self._drop(lane)
        free = float(lane.replay.ask(ReplayServer.gpu_info, 60)["free_bytes"])
        if free < SOLE_SHARE * self.memory.total_bytes:
            raise OutOfMemory(f"other programs use the GPU's memory, and only {gib(free)} are free: {said}") from None
        own_bytes = max(job.temporary_bytes.values())
        return Outcome(Stage.CORRECTNESS, _too_large(need, own_bytes, self.memory.total_bytes, said), memory=_record(need))

    def _learn(self, task_key: str, outcome: Outcome) -> None:
        """Plan a task's next candidates with what this one held, which had run out of memory before."""
        before = self._seen.get(task_key, (0, 0))
        held = outcome.memory.get("replay_held", 0), outcome.memory.get("judge_held", 0)
        self._seen[task_key] = max(held[0], before[0]), max(held[1], before[1])
        while len(self._seen) > MAX_TASKS:
            self._seen.popitem(last=False)

    def _drop(self, lane: Lane) -> None:
        """End a lane's processes; the next candidate starts new ones."""
        lane.close()
        self.memory.released(lane)

    def untimed(self) -> contextlib.AbstractContextManager[None]:
        """Keep the GPU busy with something else: nothing is timed meanwhile."""
        return self._lock.shared()

    @property
    def noise(self) -> timing.NoiseBand:
        """How far the same program may seem from itself here; calibrated on first use. Raises InfrastructureError."""
        with self._calibrating:
            if self._noise is None:
                self._noise = self._calibrated()
            return self._noise

    def _warm_up(self) -> None:
        """Start the first lane and calibrate while the first candidates are traced and compiled. Errors surface to the next
        caller."""
        self.preparers.start()
        first = self._lanes[0]
        with contextlib.suppress(InfrastructureError):
            with first.mutex, self._lock.shared():
                first.start()
            _ = self.noise
            self._make_ready_for_compiled(first)

    def _calibrated(self) -> timing.NoiseBand:
        """Same-against-same noise of this GPU, driver, torch and way of timing: measured once, kept in the cache folder."""
        timed_by = version_of(stopwatch, timing)
        name = f"noise-{self.gpu_info['uuid']}-{self.gpu_info['driver']}-{torch.__version__}-{timed_by}.json"
        path = self._cache_dir / name if self._cache_dir else None
        with contextlib.suppress(OSError, ValueError, TypeError):
            if path:
                return timing.NoiseBand(tuple((float(us), float(w)) for us, w in json.loads(path.read_text())))
        sizes = self._null(NULL_PAIRS, timing.NoiseBand(((1.0, 0.0),)), 0.0)
        points = sorted((us, timing.null_quantile([timing.median_log(b) for b in found])) for us, found in sizes)
        if path:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(points))
        return timing.NoiseBand(tuple(points))

    def _null(self, pairs: int, noise: timing.NoiseBand, slowdown: float) -> Sizes:
        first = self._lanes[0]
        with first.mutex, first.asking, self._lock.exclusive():
            try:
                return first.replay.ask(ReplayServer.null, 300, pairs, NULL_ROUNDS, noise, slowdown)
            except (Failed, Died, TimedOut) as error:
                raise InfrastructureError(f"the GPU's noise cannot be measured: {error}") from None

    def twins(self, pairs: int, slowdown: float = 0.0) -> list[Speedup]:
        """Speedups of the same program over itself, or over itself made slower by that share: what the noise band is worth."""
        sizes = self._null(pairs, self.noise, slowdown)
        return [timing.speedup(blocks, self.noise) for _, found in sizes for blocks in found]

    def close(self) -> None:
        self._closed = True
        self.preparers.close()
        for lane in self._lanes:
            lane.close(wait=False)
