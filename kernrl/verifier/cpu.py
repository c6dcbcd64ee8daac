"""Correctness without a GPU: the same plan, the same draws and the same judge, at sizes an interpreter can manage.

All that is said of a candidate where there is no GPU, and of its ragged shapes where there is one, which so need not be
compiled.
"""

from __future__ import annotations

import importlib
import itertools
import resource
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import LifoQueue
from typing import Any

import torch

from kernrl.errors import InfrastructureError
from kernrl.tasks.task import Task
from kernrl.verifier.compare import apart
from kernrl.verifier.compat import normalisations
from kernrl.verifier.inputs import POISONS, Draw, TaskInputs
from kernrl.verifier.interpret import Unable, interpret
from kernrl.verifier.judge import Judge
from kernrl.verifier.lane import decoy_reason, describe
from kernrl.verifier.plan import LaunchNode, Plan
from kernrl.verifier.verdict import Rejection, Status
from kernrl.verifier.worker import Died, Failed, Nursery, Process, TimedOut

PLAN_TIMEOUT_S = 60.0
CANDIDATE_TIMEOUT_S = 300.0
GRACE_S = 2.0
"""What a process may take beyond a candidate's time: single calls of torch, the reference's among them, are not cut short."""

KEPT_BYTES = 128 << 20
"""Answers that a process keeps, for the other members of a group."""

MEMORY_BYTES = 8 << 30
"""What an interpreter process may hold: an operation that asks for more fails, rather than taking the machine's."""


@dataclass(slots=True)
class Judged:
    """What the CPU said of one candidate."""

    rejection: Rejection | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)


class CpuServer:
    """An interpreter process's commands.

    It holds the answers too: nothing that a candidate wrote runs here, not even as machine code, and every access is checked.
    """

    def __init__(self, *, redraw_parameters: bool = True, poison: bool = True, decoys: bool = True):
        torch.set_num_threads(1)
        # what the first answer would import, here on no candidate's time; not in the fork server, since it may touch CUDA
        importlib.import_module("torch._dynamo")
        normalisations()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        self._redraw, self._poison, self._decoys = redraw_parameters, poison, decoys
        self._judge = Judge("cpu", redraw_parameters=redraw_parameters, kept_bytes=KEPT_BYTES)

    def well(self) -> bool:
        """An exception leaves nothing behind here."""
        return True

    def judge(
        self,
        task: Task,
        precision: str,
        plans: Mapping[str, Plan],
        draws: Sequence[Draw],
        timeout_s: float = CANDIDATE_TIMEOUT_S,
    ) -> Judged:
        """Interpret every plan on its draws and compare; the first thing wrong ends it."""
        judged, deadline = Judged(), time.monotonic() + timeout_s
        inputs_of = {name: self._inputs(task, name, precision) for name in plans}
        for name, plan in plans.items():
            inputs = inputs_of[name]
            asked = [i for i, d in enumerate(draws) if d.input_set == name]
            outputs = []
            for i in asked:
                inputs.draw(draws[i])
                # draws take turns through the variants of autotuned launches: every configuration must be right
                poison = POISONS[i % 2] if self._poison else 0
                left_s = min(PLAN_TIMEOUT_S, deadline - time.monotonic())
                result = interpret(plan, sources(inputs), timeout_s=left_s, poison=poison, turn=i)
                if isinstance(result, Rejection):
                    judged.rejection = result
                    return judged
                outputs.append(result)
            judged.errors += self._judge.compare(task, precision, draws, asked, outputs)
            worst = max(judged.errors, key=lambda r: r["excess"], default=None)
            if worst is not None and worst["excess"] > 1:
                judged.rejection = Rejection(Status.WRONG, describe(worst))
                return judged
        if self._decoys and plans:
            judged.rejection = self._decoy(precision, plans, draws, inputs_of)
        return judged

    def _inputs(self, task: Task, name: str, precision: str) -> TaskInputs:
        input_set = task.input_set(name)
        assert input_set is not None
        return TaskInputs(task, input_set, precision, "cpu", redraw_parameters=self._redraw)

    def _decoy(
        self, precision: str, plans: Mapping[str, Plan], draws: Sequence[Draw], inputs_of: Mapping[str, TaskInputs]
    ) -> Rejection | None:
        """A Rejection when every set has a launch without which the outputs are the same.

        One set does not prove it: at small shapes a few columns may happen not to depend on a launch.
        """
        idle = []
        for name, plan in plans.items():
            idle = _idle(plan, inputs_of[name], [d for d in draws if d.input_set == name], precision)
            if not idle:
                return None
        return Rejection(Status.DECOY, decoy_reason(idle[0]))


def _idle(plan: Plan, inputs: TaskInputs, draws: Sequence[Draw], precision: str) -> list[str]:
    """Kernels whose launch changes no output, on any of these draws, 64 times their inputs or a thousandth of them (a clamp
    may have nothing to do), whatever memory held: zeros (a launch left out may have made indices) or another number."""
    left = {i: node for i, node in enumerate(plan.nodes) if isinstance(node, LaunchNode)}
    for draw in draws[:2]:
        for scale, poison in itertools.product((1.0, 64.0, 2.0**-10), (0, 0x3C)):
            inputs.draw(draw)
            inputs.scale(scale)
            whole = interpret(plan, sources(inputs), poison=poison)
            left = {
                i: node
                for i, node in left.items()
                if _same(whole, interpret(plan, sources(inputs), poison=poison, skip=i), precision)
            }
            if not left:
                return []
    return [plan.kernels[node.variants[0].kernel].function for node in left.values()]


def sources(inputs: TaskInputs) -> dict[int | str, torch.Tensor]:
    """A task's tensors as a plan names them: inputs by position, state by key."""
    return {**dict(enumerate(inputs.inputs)), **inputs.state}


def _same(a: list[torch.Tensor] | Rejection, b: list[torch.Tensor] | Rejection, precision: str) -> bool:
    """Up to rounding; a run that fails differs from one that does not."""
    if isinstance(a, Rejection) or isinstance(b, Rejection):
        return isinstance(a, Rejection) and isinstance(b, Rejection)
    return not any(apart(x, y, precision) for x, y in zip(a, b, strict=True))


class CpuReplay:
    """Interpreter processes, one a worker, started as they are needed."""

    def __init__(
        self, nursery: Nursery, workers: int, settings: dict[str, Any], slots: threading.BoundedSemaphore | None = None
    ):
        """`slots` bounds what is at work together with other users of the same cores."""
        self._slots = slots or threading.BoundedSemaphore(workers)
        self._idle: LifoQueue[Process] = LifoQueue()
        self._all = [Process(nursery, "cpu", "", settings) for _ in range(workers)]
        for process in self._all:
            self._idle.put(process)

    def judge(
        self,
        task: Task,
        precision: str,
        plans: Mapping[str, Plan],
        draws: Sequence[Draw],
        timeout_s: float = CANDIDATE_TIMEOUT_S,
    ) -> Judged:
        """`CpuServer.judge` in the next free process. Raises InfrastructureError when that breaks."""
        if not plans:
            reason = (
                "This task has no small shapes, so it needs a GPU: its plan is in order, and nothing more can be said here."
            )
            return Judged(Rejection(Status.NEEDS_GPU, reason))
        process = self._idle.get()
        try:
            with self._slots:
                return process.ask("judge", task, precision, plans, draws, timeout_s, timeout_s=timeout_s + GRACE_S)
        except TimedOut as error:
            return Judged(Unable(Status.TIMEOUT, f"The interpreter gave {error}."))
        except (Died, Failed) as error:
            process.kill()
            raise InfrastructureError(f"the interpreter process failed: {error}") from None
        finally:
            self._idle.put(process)

    def close(self) -> None:
        for process in self._all:
            process.kill()
