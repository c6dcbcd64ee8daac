"""Correctness without a GPU: the same plan, the same draws and the same judge, at sizes an interpreter can manage.

Without a GPU this is all that is said of a candidate. With one it judges the ragged shapes, which then skip compilation.
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
from kernrl.verifier.judge.compare import apart
from kernrl.verifier.judge.decoys import authored_launches, function_names, idle_launches
from kernrl.verifier.judge.inputs import POISONS, Draw, TaskInputs
from kernrl.verifier.judge.reasons import decoy_reason, wrong_reason
from kernrl.verifier.judge.server import Judge
from kernrl.verifier.plan.plan import Plan

PLAN_TIMEOUT_S = 60.0
CANDIDATE_TIMEOUT_S = 300.0

KEPT_BYTES = 128 << 20
"""Answers that a process keeps, for the other members of a group."""

MEMORY_BYTES = 8 << 30
"""What an interpreter process may hold: an operation that asks for more fails, rather than taking the machine's."""


@dataclass(frozen=True, slots=True)
class SmallJob:
    """What the interpreter is asked about one candidate: its plans at small shapes, by input set, and their draws."""

    task: Task
    precision: str
    plans: Mapping[str, Plan]
    draws: Sequence[Draw]
    timeout_s: float = CANDIDATE_TIMEOUT_S


@dataclass(slots=True)
class Judged:
    """What the CPU said of one candidate."""

    rejection: Rejection | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)


def warm_up() -> None:
    """Import what the first answer would, on no candidate's time: once in the fork server of these processes."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")
    normalisations()


class CpuServer:
    """An interpreter process's commands.

    It holds the answers too: nothing that a candidate wrote runs here, not even as machine code, and every access is checked.
    """

    def __init__(self, *, redraw_parameters: bool = True, poison: bool = True, decoys: bool = True):
        warm_up()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        self._redraw, self._poison, self._decoys = redraw_parameters, poison, decoys
        self._judge = Judge("cpu", redraw_parameters=redraw_parameters, kept_bytes=KEPT_BYTES)
        self._questions: OrderedDict[tuple[Any, ...], Questions] = OrderedDict()

    def healthy(self) -> bool:
        """An exception leaves nothing behind here."""
        return True

    def judge(self, job: SmallJob) -> Judged:
        """Interpret every plan on its draws and compare; the first thing wrong ends it."""
        task, precision, plans, draws = job.task, job.precision, job.plans, job.draws
        judged, deadline, proven = Judged(), time.monotonic() + job.timeout_s, not self._decoys
        questions = {name: self._asked(task, name, precision, [d for d in draws if d.input_set == name]) for name in plans}
        for name, plan in plans.items():
            asked = [i for i, d in enumerate(draws) if d.input_set == name]
            if not asked:
                continue
            # draws take turns through the variants of autotuned launches: every configuration must be right
            cases = [
                Case(tensors, poison=POISONS[i % 2] if self._poison else 0, turn=i)
                for i, tensors in zip(asked, questions[name].tensors, strict=True)
            ]
            left_s = min(PLAN_TIMEOUT_S, deadline - time.monotonic())
            outputs, left = _with_launches_left_out(plan, cases, [] if proven else authored_launches(plan), precision, left_s)
            proven |= not left
            if isinstance(outputs, Rejection):
                judged.rejection = outputs
                return judged
            judged.errors += self._judge.compare(task, precision, draws, asked, outputs)
            worst = max(judged.errors, key=lambda r: r["excess"], default=None)
            if worst is not None and worst["excess"] > 1:
                judged.rejection = Rejection(Status.WRONG, wrong_reason(worst))
                return judged
        if not proven:
            judged.rejection = self._decoy(precision, plans, questions)
        return judged

    def _asked(self, task: Task, name: str, precision: str, draws: Sequence[Draw]) -> Questions:
        """What a candidate is asked at one input set: kept, since the other members of its group are asked the same."""
        key = (task.id, task.pytorch_code, precision, name, *draws)
        if key not in self._questions:
            input_set = task.input_set(name)
            assert input_set is not None
            inputs = TaskInputs(task, input_set, precision, "cpu", redraw_parameters=self._redraw)
            self._questions[key] = Questions(inputs, draws)
            while len(self._questions) > 1 and sum(q.nbytes for q in self._questions.values()) > KEPT_BYTES:
                self._questions.popitem(last=False)
        self._questions.move_to_end(key)
        return self._questions[key]

    def _decoy(self, precision: str, plans: Mapping[str, Plan], questions: Mapping[str, Questions]) -> Rejection | None:
        """A Rejection when every set has a launch without which the outputs are the same.

        One set does not prove it: at small shapes a few columns may happen not to depend on a launch.
        """
        idle = []
        for name, plan in plans.items():
            idle = _decoys(plan, questions[name], precision)
            if not idle:
                return None
        return Rejection(Status.DECOY, decoy_reason(idle[0]))


class Questions:
    """The draws of one input set, as tensors."""

    def __init__(self, inputs: TaskInputs, draws: Sequence[Draw]):
        self._inputs, self._draws = inputs, draws
        self.tensors = [self.scaled(i, 1.0) for i in range(len(draws))]
        """A mapping for `Case` each draw."""
        self.nbytes = (1 + len(draws)) * inputs.nbytes

    def scaled(self, position: int, factor: float) -> dict[int | str, torch.Tensor]:
        """The numbers of one draw, its floating inputs multiplied."""
        self._inputs.draw(self._draws[position])
        self._inputs.scale(factor)
        return {
            # in its own strides, gaps and all, which `clone` would close up
            key: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
            for key, tensor in sources(self._inputs).items()
        }


def _with_launches_left_out(
    plan: Plan, cases: Sequence[Case], launches: list[int], precision: str, timeout_s: float
) -> tuple[list[list[torch.Tensor]] | Rejection, list[int]]:
    """What the cases come to, and those of `launches` that change nothing in the first: asked together, as is cheapest."""
    first = cases[0].tensors
    extra = [Case(first, poison=0, skip=i) for i in (None, *launches)] if launches else []
    found = interpret_cases(plan, [*cases, *extra], timeout_s=timeout_s)
    if isinstance(found, Rejection):  # maybe for want of a launch
        if extra and found.status is Status.CRASH:
            found = interpret_cases(plan, cases, timeout_s=timeout_s)
        return found, launches
    outputs, looked = found[: len(cases)], found[len(cases) :]
    return outputs, [i for i, other in zip(launches, looked[1:], strict=True) if _same(looked[0], other, precision)]


def _decoys(plan: Plan, questions: Questions, precision: str) -> list[str]:
    """Kernels whose launch changes no output, on any of these draws, 64 times their inputs or a thousandth of them (a clamp
    may have nothing to do), whatever memory held: zeros (a launch left out may have made indices) or another number."""

    def unchanged(condition: tuple[dict[int | str, torch.Tensor], int], launches: list[int]) -> list[bool]:
        tensors, poison = condition
        whole, *without = _each(plan, [Case(tensors, poison=poison, skip=i) for i in (None, *launches)])
        return [_same(whole, other, precision) for other in without]

    drawn = itertools.product(range(min(2, len(questions.tensors))), (1.0, 64.0, 2.0**-10))
    conditions = ((tensors, poison) for tensors in (questions.scaled(*one) for one in drawn) for poison in (0, 0x3C))
    return function_names(plan, idle_launches(authored_launches(plan), conditions, unchanged))


def _each(plan: Plan, cases: Sequence[Case]) -> list[list[torch.Tensor] | Rejection]:
    """What each case comes to: side by side, and one by one when any of them fails."""
    together = interpret_cases(plan, cases)
    if not isinstance(together, Rejection):
        return list(together)
    alone = [interpret_cases(plan, [case]) for case in cases]
    return [found if isinstance(found, Rejection) else found[0] for found in alone]


def sources(inputs: TaskInputs) -> dict[int | str, torch.Tensor]:
    """A task's tensors as a plan names them: inputs by position, state by key."""
    return {**dict(enumerate(inputs.inputs)), **inputs.state}


def _same(a: list[torch.Tensor] | Rejection, b: list[torch.Tensor] | Rejection, precision: str) -> bool:
    """Up to rounding; a run that fails differs from one that does not."""
    if isinstance(a, Rejection) or isinstance(b, Rejection):
        return isinstance(a, Rejection) and isinstance(b, Rejection)
    return not any(apart(x, y, precision) for x, y in zip(a, b, strict=True))
