"""A lane: one replay process, one judge process, and what either is asked, in which order, for one candidate.

The replay process runs the candidate and never sees an answer; the judge has the answers and never sees a candidate.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.tasks.task import FULL
from kernrl.verifier.base.shared_memory import SharedMemory
from kernrl.verifier.base.verdict import Rejection, Stage, Status
from kernrl.verifier.pool.gpu_lock import Gate, Inside
from kernrl.verifier.replay.job import Job, Measured, Replayed
from kernrl.verifier.replay.timing import NoiseBand
from kernrl.verifier.rpc.process import Died, Failed, Nursery, Process, TimedOut

TRUSTED_TIMEOUT_S = 300.0
"""For what only trusted code does: answers in float64, and baselines, which may be compiled."""


@dataclass(slots=True)
class Outcome:
    """What the GPU said of one job."""

    stage: Stage
    rejection: Rejection | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    measured: Measured | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Add a block's seconds to `seconds[name]`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun


class _Rejected(Exception):
    def __init__(self, status: Status, reason: str):
        super().__init__(reason)
        self.rejection = Rejection(status, reason)


class Lane:
    """One candidate at a time (`mutex`), on a GPU that other lanes may share (the gate)."""

    def __init__(
        self, nursery: Nursery, device: str, *, share: bool, redraw_parameters: bool, timeout_s: float, memory_share: float
    ):  # fmt: skip
        """`memory_share`: of the GPU's memory, for each process to keep things of tasks in."""
        settings = {"redraw_parameters": redraw_parameters, "memory_share": memory_share}
        self.replay = Process(nursery, "replay", device, settings | {"share": share})
        self.judge = Process(nursery, "judge", device, settings)
        self._timeout_s = timeout_s
        self._attached: tuple[int, int, int] | None = None
        self._ready: tuple[Any, ...] = ()
        """What baselines were prepared last, and in which process."""
        self._preparing = False
        self.mutex, self._ending = threading.Lock(), threading.Lock()

    def start(self) -> None:
        """Make sure that both processes run. Raises InfrastructureError."""
        self.replay.start()
        self.judge.start()

    def run(self, job: Job, baselines: Sequence[str], gate: Gate | Inside, noise: NoiseBand) -> Outcome:
        """Correctness, then time. Raises InfrastructureError when the processes cannot work, UsageError for a broken task."""
        outcome = Outcome(Stage.CORRECTNESS)
        if self._ready[1:] != self._what(job, baselines)[1:]:
            self._ready = ()  # to make room for this task, replay may drop the one before
        self.start()  # while others use the GPU
        try:
            with _entered(gate.shared(), outcome):
                timed = baselines if FULL in job.plans else ()
                with self._done():
                    with outcome.clock("correctness"):
                        self._correctness(job, timed, outcome)
                    if not timed:
                        return outcome
                    outcome.stage = Stage.TIMING
                    self._baselines(job, timed, outcome)
            with _entered(gate.alone(), outcome), outcome.clock("timing"):
                measured: Measured = self._ask_replay("measure", list(baselines), noise, timeout_s=3 * self._timeout_s)
            with _entered(gate.shared(), outcome), outcome.clock("correctness"):
                self._judged(job, self._ask_replay("spot_checked", timeout_s=self._timeout_s), outcome)
            outcome.measured = measured
            outcome.seconds["gpu_busy"] = measured.gpu_seconds
        except _Rejected as rejected:
            outcome.rejection = rejected.rejection
        return outcome

    @contextlib.contextmanager
    def _done(self) -> Iterator[None]:
        """On leaving, whatever was asked is done with: nothing of it may run on beside another lane's timing."""
        self._preparing = False
        try:
            yield
        finally:
            self.replay.drain(TRUSTED_TIMEOUT_S if self._preparing else self._timeout_s)
            self.judge.drain(TRUSTED_TIMEOUT_S)

    def _correctness(self, job: Job, baselines: Sequence[str], outcome: Outcome) -> None:
        """Everything is asked at once: the judge makes its answers while replay runs, replay's full set runs while the small
        ones are judged, and the baselines are captured while the full set is."""
        cheap = [i for i, d in enumerate(job.draws) if d.input_set != FULL]
        full = [i for i, d in enumerate(job.draws) if d.input_set == FULL]
        phases = [phase for phase in (cheap, full) if phase]
        self.judge.send("prepare", job.task, job.precision, job.draws)
        self.replay.send("begin", job)
        for phase in phases:
            self.replay.send("check", phase)
        owed = 1 + self._attach(self._replayed(outcome))
        decoys: list[str] = []
        for left in reversed(range(len(phases))):
            replayed: Replayed = self._replayed(outcome)
            if not left and not replayed.overrun:
                self._prepare(job, baselines)
            with outcome.clock("answers"):
                while owed:
                    self._answered(replaying=left > 0)
                    owed -= 1
            self._judged(job, replayed, outcome)
            decoys = replayed.decoys
        # a few columns may happen not to depend on a launch: only what is idle at full size too is a decoy
        if decoys:
            raise _Rejected(Status.DECOY, decoy_reason(decoys[0]))

    def _attach(self, shared: SharedMemory) -> bool:
        """Tell the judge where outputs will be, when that has changed. Returns whether the judge owes an answer."""
        attached = (self.replay.starts, self.judge.starts, shared.version)
        if attached == self._attached:
            return False
        self.judge.send("attach", shared)
        self._attached = attached
        return True

    def _prepare(self, job: Job, baselines: Sequence[str]) -> None:
        """Have replay capture the task's baselines, where it has not."""
        if baselines and self._ready != self._what(job, baselines):
            self.replay.send("prepare", list(baselines))
            self._preparing = True

    def _baselines(self, job: Job, baselines: Sequence[str], outcome: Outcome) -> None:
        """Wait for what `_prepare` asked."""
        if self._preparing:
            with outcome.clock("baseline"):
                self._from_replay(TRUSTED_TIMEOUT_S)
            self._ready = self._what(job, baselines)

    def _what(self, job: Job, baselines: Sequence[str]) -> tuple[Any, ...]:
        """In which process what is to be prepared."""
        return self.replay.starts, job.task.id, job.task.pytorch_code, job.precision, *baselines

    def _judged(self, job: Job, replayed: Replayed, outcome: Outcome) -> None:
        """Send outputs to the judge; raise when anything is wrong with them."""
        if replayed.overrun:
            self.replay.kill()  # whatever else was overwritten goes with the process
            draw = job.draws[replayed.overrun[0]]
            raise _Rejected(
                Status.WRONG, f"A kernel writes outside its tensors on the {draw.input_set} shapes: mask its stores."
            )
        if replayed.written:
            draw = job.draws[replayed.written[0]]
            raise _Rejected(Status.WRONG, f"An input or a parameter is changed on the {draw.input_set} shapes.")
        with outcome.clock("judge"):
            self.judge.send("compare", job.task, job.precision, job.draws, replayed.asked, replayed.shown)
            records = self._from_judge()
        outcome.errors += records
        worst = max(records, key=lambda r: r["excess"], default=None)
        if worst is not None and worst["excess"] > 1:
            raise _Rejected(Status.WRONG, describe(worst))

    def _replayed(self, outcome: Outcome) -> Any:
        with outcome.clock("replay"):
            return self._from_replay(self._timeout_s)

    def _ask_replay(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        self.replay.send(method, *arguments)
        return self._from_replay(timeout_s)

    def _from_replay(self, timeout_s: float) -> Any:
        """The next answer of the process that runs the candidate: what goes wrong there is the candidate's doing, a broken
        task excepted."""
        try:
            return self.replay.receive(timeout_s)
        except TimedOut as error:
            raise _Rejected(Status.TIMEOUT, hung(str(error))) from None
        except Failed as error:
            raise _Rejected(Status.CRASH, f"The plan cannot be launched: {error}.") from None
        except Died as error:
            raise _Rejected(Status.CRASH, f"A kernel faulted on the GPU: {error}.") from None

    def _answered(self, *, replaying: bool) -> None:
        """Wait for the judge. While a candidate runs, one that hangs can keep the judge from the GPU, so its time ends here
        too; both may have much to prepare for a new task, so it has twice as long."""
        patience_s = 2 * self._timeout_s
        if replaying and not self.judge.ready(patience_s) and not self.replay.ready(0.0):
            self.replay.kill()
            raise _Rejected(Status.TIMEOUT, hung(f"no answer within {patience_s:g} s"))
        self._from_judge()

    def _from_judge(self) -> Any:
        try:
            return self.judge.receive(TRUSTED_TIMEOUT_S)
        except (TimedOut, Died, Failed) as error:
            self.judge.kill()
            raise InfrastructureError(f"the judge process failed: {error}") from None

    def give_way(self) -> None:
        """Drop what the processes keep, a candidate that waits to be timed included: `run` raises OutOfMemory for that one.

        Only for one who holds the GPU alone, so that nothing is being asked here.
        """
        with self._ending:
            for process, command in ((self.replay, "give_way"), (self.judge, "forget")):
                if process.running:
                    with contextlib.suppress(Failed, Died, TimedOut, InfrastructureError):
                        process.ask(command, timeout_s=TRUSTED_TIMEOUT_S)
            self._ready = ()

    def close(self, *, wait: bool = True) -> None:
        """End both processes."""
        with self._ending:
            self.replay.kill(wait=wait)
            self.judge.kill(wait=wait)


@contextlib.contextmanager
def _entered(gate: contextlib.AbstractContextManager[None], outcome: Outcome) -> Iterator[None]:
    """Enter the gate, counting the wait as `gpu_queue`."""
    with contextlib.ExitStack() as stack:
        with outcome.clock("gpu_queue"):
            stack.enter_context(gate)
        yield


def decoy_reason(kernel: str) -> str:
    """What is said of a launch that makes no difference."""
    return f"The output is the same without the kernel {kernel}: launch only kernels that do the work."


def hung(error: str) -> str:
    """What is said of kernels that are not done in time."""
    return f"The kernels did not finish on the GPU: {error}."


def describe(record: dict[str, Any]) -> str:
    """A wrong record as a sentence."""
    where = f"on the {record['input_set']} shapes with {record['regime']} inputs"
    if "mismatch" in record:
        return f"Wrong {where}: {record['mismatch']}."
    times = (
        "NaN or infinity is out of place"
        if record["excess"] == float("inf")
        else f"the error is {record['excess']:.3g}× the tolerance"
    )
    return (
        f"Wrong {where}: {times}; at index {record['index']} of output {record['output']} it gives {record['got']:.6g}, "
        f"expected {record['expected']:.6g}."
    )
