"""A lane: one replay process and one judge process, and in which order they are called for one candidate.

The replay process runs the candidate and never sees an answer; the judge has the answers and never sees a candidate.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from kernrl.errors import InfrastructureError
from kernrl.tasks.task import FULL
from kernrl.verifier.base.shared_memory import SharedMemory
from kernrl.verifier.base.verdict import Rejection, Stage, Status
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.judge_server import JudgeServer
from kernrl.verifier.judge.reasons import decoy_reason, hang_reason, worst_of, wrong_reason
from kernrl.verifier.judge.truth.slices import Slices
from kernrl.verifier.pool.backend import Outcome
from kernrl.verifier.pool.gpu_lock import Lock
from kernrl.verifier.replay.compiled_reference import MODES
from kernrl.verifier.replay.job import Job, Replayed
from kernrl.verifier.replay.replay_server import ReplayServer
from kernrl.verifier.replay.timing import NoiseBand
from kernrl.verifier.rpc.answers import Died, Failed, OutOfMemory, TimedOut, may_lack_memory
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.worker_client import Client

TRUSTED_TIMEOUT_S = 300.0
"""Limit for trusted code alone: answers in float64, and baselines, which may have to be compiled."""


S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")

Most = tuple[int | None, int | None]
"""Bytes that replay and the judge may take from the GPU; None: no limit."""


class _Rejected(Exception):
    def __init__(self, status: Status, reason: str):
        super().__init__(reason)
        self.rejection = Rejection(status, reason)


class Lane:
    """One candidate at a time (`mutex`), on a GPU that other lanes may share (under a `Lock`)."""

    def __init__(
        self, workers: ForkServer, device: str, *, share: bool, redraw_parameters: bool, timeout_s: float, memory_share: float,
        env: Mapping[str, str],
    ):  # fmt: skip
        """`timeout_s`: how long a candidate may keep replay waiting in all; `memory_share`: of the GPU's memory, what each
        process may keep of small tasks; `env`: where replay finds what Inductor has compiled."""
        settings = {"redraw_parameters": redraw_parameters, "memory_share": memory_share}
        self.replay = Client(
            workers, ReplayServer, settings | {"share": share}, name="replay", device=device, first=True, env=env
        )
        self.judge = Client(workers, JudgeServer, settings, name="judge", device=device, first=True)
        self._timeout_s = self._left_s = timeout_s
        """The limit, and what is left of it for the candidate at hand."""
        self._attached: tuple[int, int, int] | None = None
        self._preparing: tuple[str, ...] = ()
        """Baselines that replay is capturing."""
        self._alone = False
        """Whether the candidate at hand has the GPU's memory to itself."""
        self.kept: str | None = None
        """The task of the last candidate, of which the processes may keep something; None where they keep nothing."""
        self.doing = ""
        """What the lane is at, for people: `timing a_task`; '' while it is idle."""
        self.mutex, self.asking = threading.Lock(), threading.Lock()

    def start(self) -> None:
        """Make sure that both processes run. Raises InfrastructureError."""
        self.replay.start()
        self.judge.start()

    def warm_up(self) -> None:
        """Make ready for baselines that are compiled, which takes seconds, of a core rather than of the GPU.

        Raises InfrastructureError.
        """
        with self.asking:  # another lane may want this one's memory meanwhile
            try:
                self.replay.ask(ReplayServer.warm_up, TRUSTED_TIMEOUT_S)
            except (Failed, Died, TimedOut) as error:
                raise InfrastructureError(f"Inductor cannot be imported: {error}") from None

    def spent(self, outcome: Outcome) -> None:
        """Note bytes at the last candidate's peak, and where its time on the GPU went, by process.

        Raises InfrastructureError where one of them cannot say.
        """
        try:
            found = {
                "replay": self.replay.ask(ReplayServer.spent, TRUSTED_TIMEOUT_S),
                "judge": self.judge.ask(JudgeServer.spent, TRUSTED_TIMEOUT_S),
            }
        except (Failed, Died, TimedOut) as error:
            raise InfrastructureError(f"a lane cannot say what a candidate took: {error}") from None
        for name, spent in found.items():
            outcome.memory |= {f"{name}_peak": spent.peak_bytes, f"{name}_held": spent.held_bytes}
            outcome.seconds |= {f"{name}: {part}": seconds for part, seconds in spent.seconds.items()}

    def run(
        self, job: Job, baselines: Sequence[str], lock: Lock, noise: NoiseBand, most: Most, *, slices: Mapping[str, Slices],
        alone: bool = False,
    ) -> Outcome:  # fmt: skip
        """Correctness, then time. `most`: bytes that replay and the judge may take from the GPU. `slices`: as in `Planned`.
        `alone`: no other lane holds memory, so that waiting would not give this one more.

        Raises OutOfMemory, InfrastructureError when the processes cannot work, and UsageError for a broken task.
        """
        outcome, name = Outcome(Stage.CORRECTNESS), job.task.id
        self.doing = f"judging {name}"
        self._left_s, self._alone = self._timeout_s, alone
        timed = tuple(baselines) if FULL in job.plans else ()
        try:
            with _entered(lock.shared(), outcome):
                self.start()  # here, since a process that is set up disturbs what another lane times
                with self._drained():
                    with outcome.clock("correctness"):
                        compiled = self._correctness(job, timed, most, slices, outcome)
                    if not timed:
                        return outcome
                    outcome.stage = Stage.TIMING
                    self._captured(outcome)
            if compiled:
                self.doing = f"loading a baseline of {name}"
                self._load(compiled, outcome)
                with _entered(lock.shared(), outcome), self._drained():
                    self._capture(compiled)
                    self._captured(outcome)
            self.doing = f"waiting to time {name}"
            with _entered(lock.exclusive(), outcome), outcome.clock("timing"):
                self.doing = f"timing {name}"
                self.replay.send(ReplayServer.time_candidate, list(baselines), noise)
                measured = self._from_replay(ReplayServer.time_candidate)
            self.doing = f"judging {name}"
            with _entered(lock.shared(), outcome), outcome.clock("correctness"):
                self.replay.send(ReplayServer.spot_checked)
                self._compare(job, self._from_replay(ReplayServer.spot_checked), outcome)
            outcome.measured = measured
            outcome.seconds["gpu_busy"] = measured.gpu_seconds
        except _Rejected as rejected:
            outcome.rejection = rejected.rejection
        finally:
            self.doing = ""
        return outcome

    @contextlib.contextmanager
    def _drained(self) -> Iterator[None]:
        """On exit, outstanding calls are drained: none of them may run on beside another lane's timing."""
        self._preparing = ()
        try:
            yield
        finally:
            self.replay.drain(TRUSTED_TIMEOUT_S if self._preparing else self._left_s)
            self.judge.drain(TRUSTED_TIMEOUT_S)

    def _correctness(
        self, job: Job, baselines: Sequence[str], most: Most, slices: Mapping[str, Slices], outcome: Outcome
    ) -> list[str]:
        """All calls are sent at once: the judge makes its answers while replay runs, replay's full set runs while the small
        sets are judged, and baselines that need no compiling are captured while the full set is judged. Returns the others,
        less those that replay has kept."""
        cheap = [i for i, d in enumerate(job.draws) if d.input_set != FULL]
        full = [i for i, d in enumerate(job.draws) if d.input_set == FULL]
        phases = [phase for phase in (cheap, full) if phase]
        self.judge.send(JudgeServer.prepare, job.task, job.precision, job.draws, most[1], slices)
        self.replay.send(ReplayServer.begin, job, most[0])
        for phase in phases:
            self.replay.send(ReplayServer.check, phase)
        shared, kept = self._replayed(ReplayServer.begin, outcome)
        missing = [name for name in baselines if name not in kept]
        owed = [JudgeServer.prepare, *([JudgeServer.attach] if self._attach(shared) else [])]
        decoys: list[str] = []
        for left in reversed(range(len(phases))):
            replayed = self._replayed(ReplayServer.check, outcome)
            if not left and not replayed.overrun:
                self._capture([name for name in missing if name not in MODES])
            with outcome.clock("answers"):
                while owed:
                    self._from_busy_judge(owed.pop(0), replaying=left > 0)
            self._compare(job, replayed, outcome)
            decoys = replayed.decoys
        # at small shapes a few columns may happen not to depend on a launch: a decoy is idle at full size too
        if decoys and not self._has_idle_op(job, [job.draws[i] for i in phases[-1]]):
            raise _Rejected(Status.DECOY, decoy_reason(decoys[0]))
        return [name for name in missing if name in MODES]

    def _has_idle_op(self, job: Job, draws: Sequence[Draw]) -> bool:
        """Whether the reference has an op that changes no output, for which a candidate may have a kernel."""
        self.judge.send(JudgeServer.has_idle_op, job.task, job.precision, draws)
        return self._from_judge(JudgeServer.has_idle_op)

    def _attach(self, shared: SharedMemory) -> bool:
        """Tell the judge where outputs will be, if that has changed. Returns whether the judge owes an answer."""
        attached = (self.replay.starts, self.judge.starts, shared.version)
        if attached == self._attached:
            return False
        self.judge.send(JudgeServer.attach, shared)
        self._attached = attached
        return True

    def _capture(self, baselines: Sequence[str]) -> None:
        """Have replay capture these baselines."""
        if baselines:
            self.replay.send(ReplayServer.prepare, list(baselines))
            self._preparing = tuple(baselines)

    def _captured(self, outcome: Outcome) -> None:
        """Wait for `_capture`."""
        if self._preparing:
            with outcome.clock("baseline"):
                self._from_replay(ReplayServer.prepare, trusted=True)
            self._preparing = ()

    def _load(self, baselines: Sequence[str], outcome: Outcome) -> None:
        """Have replay load what has been compiled of these baselines, while other lanes use the GPU. What has not been compiled
        is compiled here."""
        with outcome.clock("load_baseline"):
            self.replay.send(ReplayServer.compile, list(baselines))
            self._from_replay(ReplayServer.compile, trusted=True)

    def _compare(self, job: Job, replayed: Replayed, outcome: Outcome) -> None:
        """Have the judge compare outputs; raises when anything is wrong with them."""
        if replayed.overrun:
            self.replay.kill()  # its memory cannot be trusted any more
            draw = job.all_draws[replayed.overrun[0]]
            raise _Rejected(
                Status.WRONG, f"A kernel writes outside its tensors on the {draw.input_set} shapes: mask its stores."
            )
        if replayed.written:
            draw = job.all_draws[replayed.written[0]]
            raise _Rejected(Status.WRONG, f"An input or a parameter is changed on the {draw.input_set} shapes.")
        with outcome.clock("judge"):
            self.judge.send(JudgeServer.compare, job.task, job.precision, job.all_draws, replayed.asked, replayed.shown)
            records = self._from_judge(JudgeServer.compare)
        outcome.errors += records
        worst = worst_of(records)
        if worst is not None and worst["excess"] > 1:
            raise _Rejected(Status.WRONG, wrong_reason(worst))

    def _replayed(self, method: Callable[Concatenate[ReplayServer, P], R], outcome: Outcome) -> R:
        with outcome.clock("replay"):
            return self._from_replay(method)

    def _from_replay(self, method: Callable[Concatenate[ReplayServer, P], R], *, trusted: bool = False) -> R:
        """The next answer of the process that runs the candidate, whose errors are the candidate's, except UsageError. `method`
        is what was called, and gives the answer its type.

        What it waits for comes off the candidate's time, and what it fails at is the candidate's fault, unless `trusted`: then
        replay runs only the reference.
        """
        begun, limit_s = time.monotonic(), TRUSTED_TIMEOUT_S if trusted else self._timeout_s
        try:
            return self.replay.receive(TRUSTED_TIMEOUT_S if trusted else self._left_s)
        except TimedOut:
            if trusted:
                raise InfrastructureError(f"the baselines are not ready after {limit_s:g} s") from None
            raise _Rejected(Status.TIMEOUT, hang_reason(f"no answer within {limit_s:g} s")) from None
        except Failed as error:
            if not self._alone and may_lack_memory(str(error)):
                raise OutOfMemory(f"the GPU may have no memory left: {error}") from None
            if trusted:
                raise InfrastructureError(f"the baselines cannot be made: {error}") from None
            raise _Rejected(Status.CRASH, f"The plan cannot be launched: {error}.") from None
        except Died as error:
            if not self._alone and may_lack_memory(str(error)):
                raise OutOfMemory(f"the GPU may have no memory left: {error}") from None
            raise _Rejected(Status.CRASH, f"A kernel faulted on the GPU: {error}.") from None
        finally:
            if not trusted:
                self._spend(begun)

    def _spend(self, begun: float) -> None:
        """Take the time since `begun` off the candidate's."""
        self._left_s = max(0.0, self._left_s - (time.monotonic() - begun))

    def _from_busy_judge(self, method: Callable[Concatenate[JudgeServer, P], object], *, replaying: bool) -> None:
        """Wait for the judge. A candidate that hangs can keep the judge off the GPU, so this wait comes off its time."""
        if replaying:
            begun = time.monotonic()
            if not self.judge.ready(self._left_s) and not self.replay.ready(0.0):
                self.replay.kill()
                raise _Rejected(Status.TIMEOUT, hang_reason(f"no answer within {self._timeout_s:g} s"))
            if not self.replay.ready(0.0):
                self._spend(begun)
        self._from_judge(method)

    def _from_judge(self, method: Callable[Concatenate[JudgeServer, P], R]) -> R:
        """The judge's next answer, to this call."""
        try:
            return self.judge.receive(TRUSTED_TIMEOUT_S)
        except (TimedOut, Died, Failed) as error:
            if not self._alone and may_lack_memory(str(error)):
                raise OutOfMemory(f"the GPU may have no memory left: {error}") from None
            self.judge.kill()
            raise InfrastructureError(f"the judge process failed: {error}") from None

    def give_back(self) -> int:
        """Have the processes drop what they keep; returns the bytes that they hold all the same. No candidate may be at work
        here. A process that does not answer is ended."""
        with self.asking:
            # the judge first: it has replay's memory for outputs open
            left = _given_back(self.judge, JudgeServer.give_back) + _given_back(self.replay, ReplayServer.give_back)
            self._attached = self.kept = None
            return left

    def close(self, *, wait: bool = True) -> None:
        """End both processes."""
        self.replay.kill(wait=wait)
        self.judge.kill(wait=wait)
        self.kept = None


def _given_back(client: Client[S], give_back: Callable[[S], int]) -> int:
    """Bytes that a process holds after giving back; none if it does not run, or has to be ended."""
    if not client.running:
        return 0
    try:
        return client.ask(give_back, TRUSTED_TIMEOUT_S)
    except (Failed, Died, TimedOut, InfrastructureError):
        client.kill()
        return 0


def inductor_environment(cache_dir: Path | None) -> dict[str, str]:
    """Where `torch.compile` keeps what it has compiled for baselines, so that another lane or run need not compile it again.

    Inductor itself names what it keeps by graph, precision flags, GPU and versions.
    """
    if cache_dir is None:
        return {}
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache_dir.absolute() / "inductor"), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}


@contextlib.contextmanager
def _entered(lock: contextlib.AbstractContextManager[None], outcome: Outcome) -> Iterator[None]:
    """Hold the lock, counting the wait as `gpu_queue`."""
    with contextlib.ExitStack() as stack:
        with outcome.clock("gpu_queue"):
            stack.enter_context(lock)
        yield
