"""Interpreter processes of this machine, each with a judge process: plans at small shapes are judged without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kernrl.errors import InternalError
from kernrl.verifier.base.verdict import ErrorRecord, Rejection, Status
from kernrl.verifier.interpret.interpret_server import Interpreter, Judged, Ran, SetJob, SmallJob
from kernrl.verifier.interpret.interpreter import Unable, lacking_on_a_cpu
from kernrl.verifier.judge.cpu_server import CpuJudge
from kernrl.verifier.judge.reasons import worst_of, wrong_reason
from kernrl.verifier.pool.scheduler import AffinityScheduler
from kernrl.verifier.pool.worker_exit import rejection_for
from kernrl.verifier.rpc.answers import Died, Ended, Failed, TimedOut
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.worker_client import Client

WALL_FACTOR, GRACE_S = 4.0, 10.0
"""Longest wait for a process: its CPU seconds times the one, as the machine may be busy, and the other for its task's inputs
or answers, which are not limited by the candidate's seconds."""

MAX_TASKS = 4096
"""Tasks whose process is remembered."""


class Interpreters:
    """Interpreters and judges, started as they are needed. A group's candidates go to a pair that has kept their numbers."""

    def __init__(
        self, count: int, settings: dict[str, Any], forks: ForkServer, slots: threading.BoundedSemaphore | None = None
    ):
        """
        Args:
            settings: `redraw_parameters`, `poison` and `decoys`, on unless they are false.
            forks: the fork server of all these processes.
            slots: limits what runs together with other users of the same cores.
        """
        self._slots = slots or threading.BoundedSemaphore(count)
        self._decoys = settings.get("decoys", True)
        mine = {name: value for name, value in settings.items() if name != "decoys"}
        redraw = {"redraw_parameters": settings.get("redraw_parameters", True)}
        self.processes = [Client(forks, Interpreter, mine, name="interpreter") for _ in range(count)]
        self.judges = [Client(forks, CpuJudge, redraw, name="judge") for _ in range(count)]
        self._judge_of = dict(zip(self.processes, self.judges, strict=True))
        self._scheduler = AffinityScheduler(self.processes, max_tasks=MAX_TASKS)

    def judge(self, job: SmallJob) -> Judged:
        """Interpret every plan on its draws and compare with the answers; stops at the first failure.

        Raises InternalError for a fault of ours, InfrastructureError when the machinery breaks, UsageError for a task whose
        reference does not run.
        """
        with self._scheduler.worker((job.task.id, job.task.pytorch_code)) as process, self._slots:
            try:
                judging = _Judging(process, self._judge_of[process], job, decoys=self._decoys)
                judged = judging.result()
                judged.cpu_s = job.timeout_s - judging.left_s
                return judged
            except (Died, Failed) as error:
                process.kill()
                self._judge_of[process].kill()
                raise InternalError(f"the interpreter process failed: {error}") from None

    def close(self) -> None:
        """End every process; the fork server is its owner's."""
        for process in (*self.processes, *self.judges):
            process.kill()


class _Judging:
    """One candidate in one pair of processes."""

    def __init__(self, process: Client[Interpreter], judge: Client[CpuJudge], job: SmallJob, *, decoys: bool) -> None:
        self._process, self._judge, self._job, self._decoys = process, judge, job, decoys
        self.left_s = job.timeout_s

    def result(self) -> Judged:
        judged, proven = Judged(), not self._decoys
        sets = [self._set_job(name, leave_out=not proven) for name in self._job.plans]
        sets = [one for one in sets if one.draws]
        for one in sets:
            one = self._set_job(one.input_set, leave_out=not proven)
            ran = self._ask(lambda one=one: self._process.ask(Interpreter.run, self._wall_s, one))
            if ran.rejection:
                judged.rejection, judged.input_set = ran.rejection, one.input_set
                return judged
            proven |= not ran.idle
            try:
                judged.errors += self._compared(one, ran)
            except TimedOut as error:
                judged.rejection = Unable(Status.TIMEOUT, f"The reference gave {error}.")
                return judged
            except Failed as error:
                if not (lacks := lacking_on_a_cpu(str(error))):
                    raise
                judged.rejection, judged.input_set = Unable(Status.NEEDS_GPU, f"The reference: {lacks}."), one.input_set
                return judged
            finally:
                self._replace_if_worn(ran)
            worst = worst_of(judged.errors)
            if worst is not None and worst["excess"] > 1:
                judged.rejection, judged.input_set = Rejection(Status.WRONG, wrong_reason(worst)), one.input_set
                return judged
        if not proven:
            ran = self._ask(lambda: self._process.ask(Interpreter.decoy, self._wall_s, sets, self.left_s))
            self._replace_if_worn(ran)
            if not (ran.rejection and ran.rejection.status is Status.DECOY and self._has_idle_op(sets)):
                judged.rejection = ran.rejection
        if judged.rejection is None and (full := self._job.full):
            ran = self._ask(lambda: self._process.ask(Interpreter.profile, self._wall_s, full, max(self.left_s, 0.1)))
            self._replace_if_worn(ran)
            judged.profiles = ran.profiles
            if not isinstance(ran.rejection, Unable):  # a plan that cannot be profiled in time has unknown costs
                judged.rejection = ran.rejection
        return judged

    @property
    def _wall_s(self) -> float:
        return WALL_FACTOR * max(self.left_s, 0.1) + GRACE_S

    def _set_job(self, name: str, *, leave_out: bool) -> SetJob:
        job = self._job
        turns = [i for i, draw in enumerate(job.draws) if draw.input_set == name]
        draws = [job.draws[i] for i in turns]
        return SetJob(job.task, job.precision, name, job.plans[name], draws, turns, leave_out, max(self.left_s, 0.1))

    def _ask(self, call: Callable[[], Ran | InternalError]) -> Ran:
        """The interpreter's answer. A process that dies of what the candidate has it do is a verdict on the candidate."""
        too_long = Unable(Status.TIMEOUT, f"The candidate takes longer than {self._job.timeout_s:.3g} s in the interpreter.")
        try:
            ran = self._answer(call, too_long)
        except TimedOut as error:
            return Ran(Unable(Status.TIMEOUT, f"The interpreter gave {error}."))
        if isinstance(ran, InternalError):
            self._process.kill()
            raise ran
        self.left_s -= ran.cpu_s
        if ran.rejection:
            self._replace_if_worn(ran)
        return ran

    def _answer(self, call: Callable[[], Ran | InternalError], too_long: Rejection) -> Ran | InternalError:
        for again in (False, True):
            try:
                return call()
            except Ended as ended:
                doing = "running the candidate's kernels and library calls"
                try:
                    return Ran(rejection_for(ended, doing, too_long))
                except Ended:  # somebody else may have killed it, once
                    if again:
                        return Ran(Rejection(Status.CRASH, f"The process was killed twice while {doing}."))
        raise AssertionError("unreachable")

    def _compared(self, one: SetJob, ran: Ran) -> list[ErrorRecord]:
        job = self._job
        assert ran.memory is not None
        compare = CpuJudge.compare
        return self._judge.ask(
            compare, self._wall_s, job.task, job.precision, job.draws, one.turns, ran.memory, ran.outputs
        )  # fmt: skip

    def _has_idle_op(self, sets: Sequence[SetJob]) -> bool:
        """Whether the reference has an op that changes no output, for which a candidate may have a kernel."""
        job, draws = self._job, [draw for one in sets for draw in one.draws]
        try:
            return self._judge.ask(CpuJudge.has_idle_op, self._wall_s, job.task, job.precision, draws)
        except TimedOut:
            return False

    def _replace_if_worn(self, ran: Ran) -> None:
        if ran.worn:
            self._process.kill()
