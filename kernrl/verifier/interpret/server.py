"""Correctness without a GPU: the same plan, draws and judge, at sizes that an interpreter can manage.

Judges everything where there is no GPU; where there is one, the ragged shapes, so that those skip compilation.
"""

from __future__ import annotations

import importlib
import itertools
import resource
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernrl.tasks.task import Task
from kernrl.verifier.base.compat import normalisations
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.interpret.interpreter import Case, interpret_cases
from kernrl.verifier.judge.compare import differ
from kernrl.verifier.judge.decoys import authored_launches, function_names, idle_launches
from kernrl.verifier.judge.inputs import POISONS, Draw, TaskInputs
from kernrl.verifier.judge.reasons import decoy_reason, wrong_reason
from kernrl.verifier.judge.server import Judge
from kernrl.verifier.plan.plan import Plan

PLAN_TIMEOUT_S = 60.0
CANDIDATE_TIMEOUT_S = 300.0

KEPT_BYTES = 128 << 20
"""Bytes of answers, and of inputs, that a process keeps for the other candidates of a group."""

MEMORY_BYTES = 8 << 30
"""Memory limit of an interpreter process: an operation that needs more fails, instead of exhausting the machine."""


@dataclass(frozen=True, slots=True)
class SmallJob:
    """A candidate for the interpreter: its plans at small shapes, by input set, and their draws."""

    task: Task
    precision: str
    plans: Mapping[str, Plan]
    draws: Sequence[Draw]
    timeout_s: float = CANDIDATE_TIMEOUT_S


@dataclass(slots=True)
class Judged:
    """The interpreter's result for one candidate."""

    rejection: Rejection | None = None
    input_set: str = ""
    """The set that the rejection is about; empty where it is about all of them."""
    errors: list[dict[str, Any]] = field(default_factory=list)


def warm_up() -> None:
    """Import what the first answer needs, before there is a candidate: once in the fork server of these processes."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")
    normalisations()


class CpuServer:
    """An interpreter process's commands.

    This process also holds the answers: no code of a candidate runs here, not even machine code, and accesses are checked.
    """

    def __init__(self, *, redraw_parameters: bool = True, poison: bool = True, decoys: bool = True):
        warm_up()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        self._redraw, self._poison, self._decoys = redraw_parameters, poison, decoys
        self._judge = Judge("cpu", redraw_parameters=redraw_parameters, kept_bytes=KEPT_BYTES)
        self._drawn: OrderedDict[tuple[object, ...], DrawnInputs] = OrderedDict()

    def healthy(self) -> bool:
        """Always true: an exception leaves nothing behind here."""
        return True

    def judge(self, job: SmallJob) -> Judged:
        """Interpret every plan on its draws and compare with the answers; stops at the first failure."""
        task, precision, plans, draws = job.task, job.precision, job.plans, job.draws
        judged, deadline, proven = Judged(), time.monotonic() + job.timeout_s, not self._decoys
        drawn = {name: self._inputs(task, name, precision, [d for d in draws if d.input_set == name]) for name in plans}
        for name, plan in plans.items():
            asked = [i for i, d in enumerate(draws) if d.input_set == name]
            if not asked:
                continue
            # the draws cycle through the variants of autotuned launches: every configuration must be right
            cases = [
                Case(tensors, poison=POISONS[i % 2] if self._poison else 0, turn=i)
                for i, tensors in zip(asked, drawn[name].tensors, strict=True)
            ]
            left_s = min(PLAN_TIMEOUT_S, deadline - time.monotonic())
            outputs, left = _with_launches_left_out(plan, cases, [] if proven else authored_launches(plan), precision, left_s)
            proven |= not left
            if isinstance(outputs, Rejection):
                judged.rejection, judged.input_set = outputs, name
                return judged
            judged.errors += self._judge.compare(task, precision, draws, asked, outputs)
            worst = max(judged.errors, key=lambda r: r["excess"], default=None)
            if worst is not None and worst["excess"] > 1:
                judged.rejection, judged.input_set = Rejection(Status.WRONG, wrong_reason(worst)), name
                return judged
        if not proven:
            judged.rejection = self._decoy(precision, plans, drawn)
        return judged

    def _inputs(self, task: Task, name: str, precision: str, draws: Sequence[Draw]) -> DrawnInputs:
        """The draws of one input set; kept, since all candidates of a group get the same draws."""
        key = (task.id, task.pytorch_code, precision, name, *draws)
        if key not in self._drawn:
            input_set = task.input_set(name)
            assert input_set is not None
            inputs = TaskInputs(task, input_set, precision, "cpu", redraw_parameters=self._redraw)
            self._drawn[key] = DrawnInputs(inputs, draws)
            while len(self._drawn) > 1 and sum(q.nbytes for q in self._drawn.values()) > KEPT_BYTES:
                self._drawn.popitem(last=False)
        self._drawn.move_to_end(key)
        return self._drawn[key]

    def _decoy(self, precision: str, plans: Mapping[str, Plan], drawn: Mapping[str, DrawnInputs]) -> Rejection | None:
        """A Rejection if every set has a launch without which the outputs are the same.

        One set is not enough: at small shapes, a few columns may happen not to depend on a launch.
        """
        idle = []
        for name, plan in plans.items():
            idle = _decoys(plan, drawn[name], precision)
            if not idle:
                return None
        return Rejection(Status.DECOY, decoy_reason(idle[0]))


class DrawnInputs:
    """The draws of one input set, as tensors."""

    def __init__(self, inputs: TaskInputs, draws: Sequence[Draw]):
        self._inputs, self._draws = inputs, draws
        self.tensors = [self.scaled(i, 1.0) for i in range(len(draws))]
        """`Case.tensors` for each draw."""
        self.nbytes = (1 + len(draws)) * inputs.nbytes

    def scaled(self, position: int, factor: float) -> dict[int | str, torch.Tensor]:
        """The tensors of one draw, with floating inputs multiplied by `factor`."""
        self._inputs.draw(self._draws[position])
        self._inputs.scale(factor)
        return {
            # with the same strides and gaps, which `clone` would not keep
            key: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
            for key, tensor in sources(self._inputs).items()
        }


def _with_launches_left_out(
    plan: Plan, cases: Sequence[Case], launches: list[int], precision: str, timeout_s: float
) -> tuple[list[list[torch.Tensor]] | Rejection, list[int]]:
    """Outputs of the cases, and those of `launches` that change nothing in the first case: one run does both."""
    first = cases[0].tensors
    extra = [Case(first, poison=0, skip=i) for i in (None, *launches)] if launches else []
    found = interpret_cases(plan, [*cases, *extra], timeout_s=timeout_s)
    if isinstance(found, Rejection):  # perhaps because a launch was left out
        if extra and found.status is Status.CRASH:
            found = interpret_cases(plan, cases, timeout_s=timeout_s)
        return found, launches
    outputs, looked = found[: len(cases)], found[len(cases) :]
    return outputs, [i for i, other in zip(launches, looked[1:], strict=True) if _same(looked[0], other, precision)]


def _decoys(plan: Plan, drawn: DrawnInputs, precision: str) -> list[str]:
    """Kernels whose launch changes no output.

    Tried on two draws, each also with inputs 64 times and a thousandth as large (a clamp may otherwise have no effect), and
    with memory that holds zeros (a launch left out may have made indices) or another number.
    """

    def unchanged(condition: tuple[dict[int | str, torch.Tensor], int], launches: list[int]) -> list[bool]:
        tensors, poison = condition
        whole, *without = _each(plan, [Case(tensors, poison=poison, skip=i) for i in (None, *launches)])
        return [_same(whole, other, precision) for other in without]

    scaled = itertools.product(range(min(2, len(drawn.tensors))), (1.0, 64.0, 2.0**-10))
    conditions = ((tensors, poison) for tensors in (drawn.scaled(*one) for one in scaled) for poison in (0, 0x3C))
    return function_names(plan, idle_launches(authored_launches(plan), conditions, unchanged))


def _each(plan: Plan, cases: Sequence[Case]) -> list[list[torch.Tensor] | Rejection]:
    """Outputs of each case: side by side, or one by one if any case fails."""
    together = interpret_cases(plan, cases)
    if not isinstance(together, Rejection):
        return list(together)
    alone = [interpret_cases(plan, [case]) for case in cases]
    return [found if isinstance(found, Rejection) else found[0] for found in alone]


def sources(inputs: TaskInputs) -> dict[int | str, torch.Tensor]:
    """A task's tensors by `Storage.source`: inputs by position, state by key."""
    return {**dict(enumerate(inputs.inputs)), **inputs.state}


def _same(a: list[torch.Tensor] | Rejection, b: list[torch.Tensor] | Rejection, precision: str) -> bool:
    """Whether outputs agree up to rounding. A run that fails differs from one that does not."""
    if isinstance(a, Rejection) or isinstance(b, Rejection):
        return isinstance(a, Rejection) and isinstance(b, Rejection)
    return not any(differ(x, y, precision) for x, y in zip(a, b, strict=True))
