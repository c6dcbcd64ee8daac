"""One GPU and its two processes: from a checked job to correctness and time.

The replay process runs the candidate and never sees an answer; the judge has the answers and never sees a candidate. This
module decides what either is asked, in which order, and what an outcome means.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.tasks.task import FULL
from kernrl.verifier import timing
from kernrl.verifier.measure import Job, Measured, Replayed
from kernrl.verifier.verdict import Rejection, Stage, Status
from kernrl.verifier.worker import Died, Failed, GpuLock, Nursery, Process, TimedOut

NULL_PAIRS, NULL_ROUNDS = 100, (0, 1, 4, 16)
BASELINE_TIMEOUT_S = 300.0
"""Capturing a baseline may include torch.compile."""


@dataclass(slots=True)
class Outcome:
    """What the GPU said of one job."""

    stage: Stage
    rejection: Rejection | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    measured: Measured | None = None
    seconds: dict[str, float] = field(default_factory=dict)


class _Rejected(Exception):
    def __init__(self, status: Status, reason: str):
        super().__init__(reason)
        self.rejection = Rejection(status, reason)


class Gpu:
    """A GPU, its lock, its calibrated noise, and its processes. One job at a time; callers wait their turn."""

    def __init__(
        self, nursery: Nursery, device: str, *, cache_dir: Path | None, timeout_s: float, share: bool = True,
        redraw_parameters: bool = True,
    ):  # fmt: skip
        settings = {"redraw_parameters": redraw_parameters}
        self._replay = Process(nursery, "replay", device, {**settings, "share": share})
        self._judge = Process(nursery, "judge", device, settings)
        self._cache_dir, self._timeout_s = cache_dir, timeout_s
        self._attached: tuple[int, int, int] | None = None
        self.facts: dict[str, str] = self._replay.ask("facts", timeout_s=60)
        self._lock = GpuLock(self.facts["uuid"])
        self.noise = self._calibrated()
        self._secret = secrets.randbits(63)
        self.busy_s = 0.0
        """Seconds of the GPU's time taken so far."""

    def seed(self, task_id: str, served: int) -> int:
        """The secret seed of a task's draws: new with every 32nd candidate; a group shares its answers."""
        return hash((self._secret, task_id, served // 32)) & ((1 << 63) - 1)

    def run(self, job: Job, baselines: Sequence[str]) -> Outcome:
        """Correctness, then time. Raises InfrastructureError when the processes cannot work, UsageError for a broken task."""
        outcome = Outcome(Stage.CORRECTNESS)
        with self._lock.held() as waited:
            outcome.seconds["gpu_queue"] = waited
            begun = time.monotonic()
            try:
                self._correctness(job, outcome)
                outcome.seconds["correctness"] = time.monotonic() - begun
                if baselines and FULL in job.plans:
                    outcome.stage = Stage.TIMING
                    self._timing(job, baselines, outcome)
            except _Rejected as rejected:
                outcome.rejection = rejected.rejection
            outcome.seconds.setdefault("correctness", time.monotonic() - begun)
            self.busy_s += time.monotonic() - begun
        return outcome

    def _correctness(self, job: Job, outcome: Outcome) -> None:
        cheap = [i for i, d in enumerate(job.draws) if d.input_set != FULL]
        full = [i for i, d in enumerate(job.draws) if d.input_set == FULL]
        outbox = self._ask_replay("begin", job, timeout_s=self._timeout_s)
        attached = (self._replay.starts, self._judge.starts, outbox.version)
        if attached != self._attached:
            self._ask_judge("attach", outbox)
            self._attached = (self._replay.starts, self._judge.starts, outbox.version)
        decoys: list[str] = []
        for phase in (cheap, full):
            if phase:
                where = None if decoys or phase is not (cheap or full) else job.draws[phase[0]].input_set
                replayed = self._ask_replay("check", phase, where, timeout_s=self._timeout_s)
                self._judged(job, replayed, outcome)
                decoys += replayed.decoys
        if decoys:
            raise _Rejected(
                Status.DECOY, f"The output is the same without the kernel {decoys[0]}: launch only kernels that do the work."
            )

    def _judged(self, job: Job, replayed: Replayed, outcome: Outcome) -> None:
        """Send outputs to the judge; raise when anything is wrong with them."""
        if replayed.overrun:
            self._replay.kill()  # whatever else was overwritten goes with the process
            draw = job.draws[replayed.overrun[0]]
            raise _Rejected(
                Status.WRONG, f"A kernel writes outside its tensors on the {draw.input_set} shapes: mask its stores."
            )
        if replayed.written:
            draw = job.draws[replayed.written[0]]
            raise _Rejected(Status.WRONG, f"An input or a parameter is changed on the {draw.input_set} shapes.")
        records = self._ask_judge("compare", job.task, job.precision, job.draws, replayed.asked, replayed.shown)
        outcome.errors += records
        worst = max(records, key=lambda r: r["excess"], default=None)
        if worst is not None and worst["excess"] > 1:
            raise _Rejected(Status.WRONG, describe(worst))

    def _timing(self, job: Job, baselines: Sequence[str], outcome: Outcome) -> None:
        begun = time.monotonic()
        self._ask_replay("prepare", list(baselines), timeout_s=BASELINE_TIMEOUT_S)
        outcome.seconds["baseline"] = time.monotonic() - begun
        begun = time.monotonic()
        measured = self._ask_replay("measure", list(baselines), self.noise, timeout_s=3 * self._timeout_s)
        outcome.seconds["timing"] = time.monotonic() - begun
        outcome.measured = measured
        self._judged(job, measured.checked, outcome)

    def _ask_replay(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask the process that runs the candidate: what goes wrong there is the candidate's doing, a broken task excepted."""
        try:
            return self._replay.ask(method, *arguments, timeout_s=timeout_s)
        except TimedOut as error:
            raise _Rejected(Status.TIMEOUT, f"The kernels did not finish on the GPU: {error}.") from None
        except Failed as error:
            raise _Rejected(Status.CRASH, f"The plan cannot be launched: {error}.") from None
        except Died as error:
            raise _Rejected(Status.CRASH, f"A kernel faulted on the GPU: {error}.") from None

    def _ask_judge(self, method: str, *arguments: Any) -> Any:
        try:
            return self._judge.ask(method, *arguments, timeout_s=BASELINE_TIMEOUT_S)
        except (TimedOut, Died, Failed) as error:
            self._judge.kill()
            raise InfrastructureError(f"the judge process failed: {error}") from None

    def _calibrated(self) -> timing.NoiseBand:
        """Same-against-same noise of this GPU and driver: measured once, kept in the cache folder."""
        name = f"noise-{self.facts['uuid']}-{self.facts['driver']}.json"
        path = self._cache_dir / name if self._cache_dir else None
        with contextlib.suppress(OSError, ValueError, TypeError):
            if path:
                return timing.NoiseBand(tuple((float(us), float(w)) for us, w in json.loads(path.read_text())))
        with self._lock.held():
            sizes = self._replay.ask("null", NULL_PAIRS, NULL_ROUNDS, timeout_s=120)
        points = sorted((us, timing.null_quantile(ratios)) for us, ratios in sizes)
        if path:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(points))
        return timing.NoiseBand(tuple(points))

    def close(self) -> None:
        self._replay.kill()
        self._judge.kill()


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
