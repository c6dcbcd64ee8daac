"""Plans at small shapes, run without a GPU by a process that holds no answers.

Kernels run in an interpreter that checks every access. Library calls that a candidate chose run as machine code of PyTorch,
which may read or write beyond an operand that does not fit: so the answers are elsewhere (`judge/cpu_server.py`), and
only outputs leave this process. Judges everything where there is no GPU; where there is one, the ragged shapes, so that those
skip compilation.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernrl.errors import InternalError, UsageError
from kernrl.tasks.task import Task
from kernrl.verifier.base.compat import normalisations
from kernrl.verifier.base.shared_memory import SharedMemory, StoredTensor
from kernrl.verifier.base.strides import unexpanded
from kernrl.verifier.base.verdict import ErrorRecord, Rejection, Status
from kernrl.verifier.interpret.interpreter import Case, Unable, interpret_cases
from kernrl.verifier.interpret.output_memory import OutputMemory
from kernrl.verifier.interpret.profile import overflowing, profile_plan, uncovered
from kernrl.verifier.judge.compare import differ
from kernrl.verifier.judge.decoys import (
    BOUND_FILLS,
    authored_launches,
    function_names,
    idle_launches,
    telling,
    without_bounds,
)
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import POISONS, TaskInputs
from kernrl.verifier.judge.reasons import decoy_reason
from kernrl.verifier.plan import ttir
from kernrl.verifier.plan.launch_time import Profiles
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.rpc.limits import CpuClock, cpu_limit, data_bytes, limit_process_memory

KEPT_BYTES = 128 << 20
"""Bytes of inputs that a process keeps for the other candidates of a group, and of those it draws at once."""

MEMORY_BYTES = 2 << 30
"""What a process may take beyond the libraries: an operation that needs more fails, instead of exhausting the machine."""

WORN_BYTES = 768 << 20
"""A process that has grown by more than this, and does not shrink, is replaced."""

SHARE_TO_STOP = 0.9
"""Of a candidate's CPU seconds: when the interpreter stops by itself. At all of them, perhaps in a long call, it is killed."""


@dataclass(frozen=True, slots=True)
class SmallJob:
    """A candidate for the interpreter: its plans at small shapes, by input set, and their draws."""

    task: Task
    precision: str
    plans: Mapping[str, Plan]
    draws: Sequence[Draw]
    timeout_s: float = 20.0
    """CPU seconds."""
    full: Plan | None = None
    """The plan at full size where its launches are to be profiled, for its price, if it is right."""


@dataclass(slots=True)
class Judged:
    """The interpreter's result for one candidate."""

    rejection: Rejection | None = None
    input_set: str = ""
    """The set that the rejection is about; empty where it is about all of them."""
    errors: list[ErrorRecord] = field(default_factory=list)
    cpu_s: float = 0.0
    """Core-seconds that running the candidate took."""
    profiles: Profiles = field(default_factory=dict)
    """Of the launches of `SmallJob.full`."""


@dataclass(frozen=True, slots=True)
class SetJob:
    """The plan of one input set, and its draws."""

    task: Task
    precision: str
    input_set: str
    plan: Plan
    draws: Sequence[Draw]
    turns: Sequence[int]
    """The draws' positions in the whole schedule: variants of autotuned launches take turns over it."""
    leave_out: bool
    """Whether launches are left out in turn, to see whether they matter."""
    cpu_s: float


@dataclass(slots=True)
class Ran:
    """What running a plan came to."""

    rejection: Rejection | None = None
    memory: SharedMemory | None = None
    """Where the outputs lie until the next call."""
    outputs: list[list[StoredTensor]] = field(default_factory=list)
    """Of each draw."""
    idle: list[int] = field(default_factory=list)
    """Launches that changed nothing when they were left out."""
    profiles: Profiles = field(default_factory=dict)
    """What the launches of a plan at full size do."""
    cpu_s: float = 0.0
    worn: bool = False
    """The process has grown, and should be replaced."""


def warm_up() -> None:
    """Import what the first answer needs, before there is a candidate: once in the fork server of these processes."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")
    normalisations()


class Interpreter:
    """An interpreter process's commands. It sees plans, the task and secret draws, and holds no answers."""

    def __init__(self, *, redraw_parameters: bool = True, poison: bool = True):
        warm_up()
        limit_process_memory(MEMORY_BYTES)
        self._least_bytes = data_bytes()
        self._redraw, self._poison = redraw_parameters, poison
        self._drawn: OrderedDict[tuple[object, ...], DrawnInputs] = OrderedDict()
        self._memory = OutputMemory()

    def healthy(self) -> bool:
        """Always true: an exception leaves nothing behind here."""
        return True

    def run(self, job: SetJob) -> Ran | InternalError:
        """Interpret a plan on its draws."""
        self._memory.clear()
        return self._within_limits(job.cpu_s, lambda: self._inputs(job), lambda drawn: self._run(job, drawn))

    def _run(self, job: SetJob, drawn: DrawnInputs) -> Ran:
        ran, clock = Ran(), CpuClock()
        launches = authored_launches(job.plan) if job.leave_out else []
        for first in range(0, len(job.draws), drawn.at_once):
            positions = range(first, min(first + drawn.at_once, len(job.draws)))
            # the draws cycle through the variants of autotuned launches: every configuration must be right
            cases = [
                Case(drawn.tensors(i), poison=(*POISONS, None)[job.turns[i] % 3] if self._poison else 0, turn=job.turns[i])
                for i in positions
            ]
            left_s = SHARE_TO_STOP * job.cpu_s - clock.seconds
            found, idle = _with_launches_left_out(job.plan, cases, [] if first else launches, job, left_s)
            if isinstance(found, Rejection):
                return Ran(found)
            ran.idle += idle
            ran.outputs += [self._memory.add(tensors) for tensors in found]
        ran.memory = self._memory.shared()
        return ran

    def decoy(self, jobs: Sequence[SetJob], cpu_s: float) -> Ran | InternalError:
        """Rejected if every set has a launch without which the outputs are the same.

        One set is not enough: at small shapes, a few columns may happen not to depend on a launch.
        """

        def look(drawn: list[DrawnInputs]) -> Ran:
            idle: list[str] = []
            for job, inputs in zip(jobs, drawn, strict=True):
                idle = _decoys(job.plan, inputs, job.precision, SHARE_TO_STOP * cpu_s)
                if not idle:
                    return Ran()
            return Ran(Rejection(Status.DECOY, decoy_reason(idle[0])))

        return self._within_limits(cpu_s, lambda: [self._inputs(job) for job in jobs], look)

    def profile(self, plan: Plan, cpu_s: float) -> Ran | InternalError:
        """What the launches of a plan do at its own sizes; rejected if they cannot store a whole output, or if indices
        overflow."""

        def look(_: None) -> Ran:
            profiles = profile_plan(plan)
            missing = overflowing(plan, profiles) or uncovered(plan, profiles)
            return Ran(Rejection(Status.WRONG, missing) if missing else None, profiles=profiles)

        return self._within_limits(cpu_s, lambda: None, look)

    def _within_limits(self, cpu_s: float, prepare: Callable[[], Any], act: Callable[[Any], Ran]) -> Ran | InternalError:
        """What `act` makes of what `prepare` gives. Only `act` depends on the candidate, so only that is limited.

        A fault of ours is returned, with its traceback. Raises UsageError for a task whose inputs cannot be made.
        """
        clock = CpuClock()
        try:
            prepared = prepare()
            clock = CpuClock()
            with cpu_limit(cpu_s):
                ran = act(prepared)
        except MemoryError:
            ran = Ran(
                Unable(Status.NEEDS_GPU, f"The interpreter needs more than {MEMORY_BYTES >> 20} MiB for this."), worn=True
            )
        except UsageError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:300]
            return InternalError(f"the interpreter process failed: {said}", traceback.format_exc())
        ran.cpu_s = clock.seconds
        if data_bytes() - self._least_bytes > WORN_BYTES:
            self._drawn.clear()
            ttir.forget()
            gc.collect()
            ran.worn = data_bytes() - self._least_bytes > WORN_BYTES
        return ran

    def _inputs(self, job: SetJob) -> DrawnInputs:
        """The draws of one input set; kept, since all candidates of a group get the same draws."""
        key = (job.task.id, job.task.pytorch_code, job.precision, job.input_set, *job.draws)
        if key not in self._drawn:
            input_set = job.task.input_set(job.input_set)
            assert input_set is not None
            inputs = TaskInputs(job.task, input_set, job.precision, "cpu", redraw_parameters=self._redraw)
            self._drawn[key] = DrawnInputs(inputs, job.draws)
            while len(self._drawn) > 1 and sum(q.nbytes for q in self._drawn.values()) > KEPT_BYTES:
                self._drawn.popitem(last=False)
        self._drawn.move_to_end(key)
        return self._drawn[key]


class DrawnInputs:
    """The draws of one input set, as tensors."""

    def __init__(self, inputs: TaskInputs, draws: Sequence[Draw]):
        self._inputs, self.draws = inputs, draws
        self.at_once = max(1, KEPT_BYTES // max(inputs.nbytes, 1))
        """How many draws are held at once."""
        keep = len(draws) <= self.at_once
        self._kept = [self.scaled(i, 1.0) for i in range(len(draws))] if keep else []
        self.nbytes = (1 + len(self._kept)) * inputs.nbytes

    def tensors(self, position: int) -> dict[int | str, torch.Tensor]:
        """`Case.tensors` for one draw."""
        return self._kept[position] if self._kept else self.scaled(position, 1.0)

    def scaled(self, position: int, factor: float) -> dict[int | str, torch.Tensor]:
        """The tensors of one draw, with floating inputs multiplied by `factor`."""
        self._inputs.draw(self.draws[position])
        self._inputs.scale(factor)
        return {key: _copied(tensor) for key, tensor in sources(self._inputs).items()}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides and gaps, which `clone` would not keep."""
    own = unexpanded(tensor)
    return torch.empty_strided(own.shape, own.stride(), dtype=own.dtype).copy_(own).expand(tensor.shape)


def _with_launches_left_out(
    plan: Plan, cases: Sequence[Case], launches: list[int], job: SetJob, timeout_s: float
) -> tuple[list[list[torch.Tensor]] | Rejection, list[int]]:
    """Outputs of the cases, and those of `launches` that change nothing in the first case: one run does both."""
    first, draw = cases[0].tensors, job.draws[0]
    extra = [Case(first, poison=0, skip=i) for i in (None, *launches)] if launches and draw.finite else []
    found = interpret_cases(plan, [*cases, *extra], timeout_s=timeout_s)
    if isinstance(found, Rejection):  # perhaps because a launch was left out
        if extra and found.status in (Status.CRASH, Status.NEEDS_GPU):
            found = interpret_cases(plan, cases, timeout_s=timeout_s)
        return found, launches
    outputs, looked = found[: len(cases)], found[len(cases) :]
    if not extra:
        return outputs, launches
    finite = not draw.own
    return outputs, [
        i for i, one in zip(launches, looked[1:], strict=True) if _same(looked[0], one, job.precision, finite=finite)
    ]


def _decoys(plan: Plan, drawn: DrawnInputs, precision: str, cpu_s: float) -> list[str]:
    """Kernels whose launch changes no output.

    Tried on two draws of finite inputs, each also with inputs 64 times and a thousandth as large (a clamp may otherwise have no
    effect), and with memory that holds zeros (a launch left out may have made indices) or another number.
    """

    clock = CpuClock()

    def unchanged(condition: tuple[dict[int | str, torch.Tensor], bool, int], launches: list[int]) -> list[bool]:
        tensors, own, poison = condition
        cases = [Case(tensors, poison=poison, skip=i) for i in (None, *launches)]
        whole, *without = _each(plan, cases, cpu_s - clock.seconds)
        return [_same(whole, other, precision, finite=not own) for other in without]

    looks = itertools.product(telling(drawn.draws)[:2], (1.0, 64.0, 2.0**-10))
    scaled = ((drawn.scaled(i, factor), drawn.draws[i].own and factor == 1.0) for i, factor in looks)
    conditions = ((tensors, own, poison) for tensors, own in scaled for poison in (0, 0x3C))
    idle = idle_launches(authored_launches(plan), conditions, unchanged)

    def is_bound(launches: list[int]) -> list[bool]:
        left = [(i, poison) for i in launches for poison in BOUND_FILLS]
        tensors = drawn.scaled(telling(drawn.draws)[0], 1.0)
        cases = [Case(tensors, poison=poison, skip=i) for i, poison in [(None, BOUND_FILLS[-1]), *left]]
        whole, *found = _each(plan, cases, cpu_s - clock.seconds)
        return [
            not isinstance(far, Rejection)
            and not _same(whole, far, precision, finite=False)
            and _same(near, far, precision, finite=False)
            for near, far in zip(found[::2], found[1::2], strict=True)
        ]

    return function_names(plan, without_bounds(plan, idle, is_bound))


def _each(plan: Plan, cases: Sequence[Case], cpu_s: float) -> list[list[torch.Tensor] | Rejection]:
    """Outputs of each case: side by side, or one by one if any case fails."""
    clock = CpuClock()
    together = interpret_cases(plan, cases, timeout_s=cpu_s)
    if not isinstance(together, Rejection):
        return list(together)
    alone = [interpret_cases(plan, [case], timeout_s=cpu_s - clock.seconds) for case in cases]
    return [found if isinstance(found, Rejection) else found[0] for found in alone]


def sources(inputs: TaskInputs) -> dict[int | str, torch.Tensor]:
    """A task's tensors by `Storage.source`: inputs by position, state by key."""
    return {**dict(enumerate(inputs.inputs)), **inputs.state}


def _same(a: list[torch.Tensor] | Rejection, b: list[torch.Tensor] | Rejection, precision: str, *, finite: bool) -> bool:
    """Whether outputs agree up to rounding. A run that fails differs from one that does not."""
    if isinstance(a, Rejection) or isinstance(b, Rejection):
        return isinstance(a, Rejection) and isinstance(b, Rejection)
    return not any(differ(x, y, precision, finite=finite) for x, y in zip(a, b, strict=True))
