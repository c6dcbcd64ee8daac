"""Can a task tell right from wrong? Mutants of its reference should be refused, and honest rewritings of it accepted.

A task that accepts zeros, a constant or a copy of its input would reward them in training: its outputs are too near zero, too
constant, or too loosely held. It is not used (`objection`). A mutant without one op may be right: a ReLU after a sigmoid does
nothing. The lint runs on any device, at the input sets that fit it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.errors import UsageError
from kernrl.tasks.task import FULL, Task
from kernrl.verifier.base.nested import flatten, rebuild
from kernrl.verifier.base.precision import as_pairs, policy_flags
from kernrl.verifier.judge.domain import find_domain
from kernrl.verifier.judge.draws import Draw, schedule
from kernrl.verifier.judge.inputs import TaskInputs, bind
from kernrl.verifier.judge.judge_server import Judge

SEED = 20_260
"""Of the draws. Fixed: there is no candidate to hide them from, and a task is to be refused always or never."""

LAST_TILE = 0.02
"""Share of the output that `last_tile_unwritten` leaves out."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One mutant or rewriting, and the judge's answer."""

    name: str
    should_pass: bool
    excess: float
    """Largest error over tolerance, on any draw."""

    @property
    def sound(self) -> bool:
        return (self.excess <= 1) == self.should_pass


BLIND = {
    "zeros": "an output of zeros",
    "constant_mean": "an output that is one number everywhere",
    "input_copy": "a copy of the input",
}
"""Mutants that no task may accept → what they return."""


def objection(findings: Sequence[Finding]) -> str:
    """Why a task must not be used, as a sentence without its full stop; '' for a task that may be."""
    for finding in findings:
        if finding.name in BLIND and not finding.sound:
            return f"{BLIND[finding.name]} passes for right, so it cannot tell right from wrong"
        if finding.should_pass and not finding.sound:
            return f"a right answer ({finding.name}) is refused, with an error {finding.excess:.3g}× the tolerance"
    return ""


Run = Callable[[TaskInputs], list[Tensor]]


def lint(task: Task, precision: str | None = None, *, device: str = "cpu", decisive: bool = False) -> list[Finding]:
    """What the judge says of every mutant and rewriting of a task's reference, on draws that are the same every time.

    `decisive`: only those on which `objection` depends, which are few where a reference has many ops.

    Raises UsageError when the task has no input set small enough for a CPU, or its reference does not run.
    """
    policy = precision or task.precision
    sets = [s for s in task.input_sets if s.name != FULL] or (list(task.input_sets) if device == "cuda" else [])
    if not sets:
        raise UsageError(f"{task.id}: there are no small shapes to lint it at; use a GPU.")
    domain = find_domain(task, sets, policy)
    draws = schedule(sets, SEED, precision=policy, held=domain.held, refused=domain.refused)
    judge = Judge(device)
    inputs = {s.name: TaskInputs(task, s, policy, device) for s in sets}

    def worst(run: Run) -> float:
        outputs = []
        for draw in draws:
            outputs.append(_at(inputs[draw.input_set], draw, run, policy))
        records = judge.compare(task, policy, draws, range(len(draws)), outputs)
        return max(record["excess"] for record in records)

    first = inputs[sets[0].name]
    cases = [*((n, False, r) for n, r in _mutants(first)), ("eager", True, _eager), ("reordered", True, _reordered)]
    if policy == "fp32":
        cases.append(("fp16_inside", False, _half))
    return [Finding(name, good, worst(run)) for name, good, run in cases if good or name in BLIND or not decisive]


def _at(inputs: TaskInputs, draw: Draw, run: Run, precision: str) -> list[Tensor]:
    inputs.draw(draw)
    with torch.no_grad(), policy_flags(precision):
        return [y.contiguous() for y in run(inputs)]


def _eager(inputs: TaskInputs) -> list[Tensor]:
    return inputs.call()


def _reordered(inputs: TaskInputs) -> list[Tensor]:
    """Computed in float64 and rounded once: as good as any other order of sums."""
    module = copy.deepcopy(inputs.module).double()
    bind(module, {k: v.double() if v.is_floating_point() else v.clone() for k, v in inputs.state.items()})
    leaves = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in flatten(inputs.arguments)]
    wide = _outputs(module(*rebuild(inputs.arguments, leaves)))
    dtypes = [y.dtype for y in _eager(inputs)]
    return [y.to(dtype) for y, dtype in zip(wide, dtypes, strict=True)]


def _half(inputs: TaskInputs) -> list[Tensor]:
    """Every parameter and input rounded to fp16 on the way in."""
    module = copy.deepcopy(inputs.module)
    bind(module, {k: v.half().to(v.dtype) if v.is_floating_point() else v.clone() for k, v in inputs.state.items()})
    half = [x.half().to(x.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in flatten(inputs.arguments)]
    return _outputs(module(*rebuild(inputs.arguments, half)))


def _outputs(found: Any) -> list[Tensor]:
    """The tensors that a module has returned, complex ones as pairs, as they are judged."""
    return [as_pairs(y) for y in flatten(found) if isinstance(y, Tensor)]


def _mutants(inputs: TaskInputs) -> Iterator[tuple[str, Run]]:
    """Wrong answers that a careless check would accept."""
    yield "zeros", lambda i: [torch.zeros_like(y) for y in _eager(i)]
    first, shapes = inputs.inputs[0], [y.shape for y in _eager(inputs)]
    if any(shape.numel() > 1 for shape in shapes):  # the mean of one number is that number
        yield "constant_mean", lambda i: [torch.full_like(y, float(y.double().mean())) for y in _eager(i)]
    yield "last_tile_unwritten", lambda i: [_cut(y) for y in _eager(i)]
    if shapes == [first.shape]:
        yield "input_copy", lambda i: [i.inputs[0].clone()]
    for name in [n for n, p in inputs.module.named_parameters() if n.rsplit(".", 1)[-1] == "bias" and p is not None]:
        yield f"without_{name}", lambda i, name=name: _without(i, name)
    with torch.no_grad(), _Drop(None) as counter:
        _eager(inputs)
    for at in range(counter.seen):
        yield f"without_op_{at}", lambda i, at=at: _dropped(i, at)


def _cut(y: Tensor) -> Tensor:
    """A copy whose last elements are zero."""
    flat = y.clone().reshape(-1)
    flat[-max(1, int(LAST_TILE * flat.numel())) :] = 0
    return flat.reshape(y.shape)


def _without(inputs: TaskInputs, name: str) -> list[Tensor]:
    module: nn.Module = copy.deepcopy(inputs.module)
    bind(module, {**{k: v.clone() for k, v in inputs.state.items()}, name: torch.zeros_like(inputs.state[name])})
    return _outputs(module(*inputs.arguments))


def _dropped(inputs: TaskInputs, at: int) -> list[Tensor]:
    with _Drop(at):
        return _eager(inputs)


class _Drop(TorchDispatchMode):
    """Leaves out the `at`-th op that maps a tensor to one of its own shape and dtype: an activation, a scale, a norm."""

    def __init__(self, at: int | None):
        super().__init__()
        self.seen, self._at = 0, at

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = args[0] if args and isinstance(args[0], Tensor) else None
        alone = result[0] if isinstance(result, tuple) and isinstance(result[0], Tensor) else result
        if func._schema.is_mutable or given is None or not isinstance(alone, Tensor) or _is_view(func):
            return result
        if alone.shape != given.shape or alone.dtype != given.dtype or not alone.is_floating_point():
            return result
        self.seen += 1
        if self.seen - 1 != self._at:
            return result
        return (given.clone(), *result[1:]) if isinstance(result, tuple) else given.clone()


def _is_view(func) -> bool:
    """Whether an op returns a view or a plain copy."""
    return any(r.alias_info is not None for r in func._schema.returns) or func.overloadpacket.__name__ in (
        "clone",
        "contiguous",
    )
