"""A stage is the stretch of a program that one kernel computes. Partitions decide where a solution is cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from kernrl.tasks.grammar.program import Shape, Step
from kernrl.tasks.grammar.reductions import Core, Space

Fusion = Literal["fused", "split", "unfused"]
"""As few kernels as possible, one a reducing op with the pointwise ops after it, or one an op."""

WHOLE_LIMIT = 16384
"""Longest contiguous set that one program may hold in registers, in elements after rounding up to a power of two."""
WHOLE_CHANNELS = 128
"""The same for sets strided over channels, where a tile holds many pixels beside."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive steps of one kernel; `space` is that of its reducing ops, empty for pointwise ones alone."""

    steps: tuple[Step, ...]
    space: Space | Literal[""] = ""

    @property
    def before(self) -> Shape:
        return self.steps[0].before

    @property
    def after(self) -> Shape:
        return self.steps[-1].after

    @property
    def cores(self) -> tuple[Core, ...]:
        return tuple(step.core for step in self.steps if step.core)

    @property
    def groups(self) -> int:
        return next((step.groups for step in self.steps if step.groups), 0)

    def around_core(self) -> tuple[tuple[Step, ...], Step, tuple[Step, ...]]:
        """(pointwise before, the reducing step, pointwise after) of a stage with one core."""
        index = next(i for i, step in enumerate(self.steps) if step.core)
        return self.steps[:index], self.steps[index], self.steps[index + 1 :]


def reduced_length(step: Step, constants: Mapping[str, int]) -> int:
    """How many elements one output of a reducing step depends on."""
    core = step.core
    assert core is not None
    shape = step.before.at(constants)
    pixels = prod(shape[2:]) if step.before.layout == "grid" else 1
    channels = shape[1] if step.before.layout == "grid" else shape[-1]
    return {
        "rows": shape[-1],
        "space": pixels,
        "group": channels // max(step.groups, 1) * pixels,
        "channels": channels,
        "batch": shape[0] * pixels,
        "window": 0,
    }[core.space]


def fits_whole(step: Step, constants: Mapping[str, int]) -> bool:
    """One program can hold the step's whole set at these sizes."""
    core = step.core
    assert core is not None
    limit = {"batch": -1, "window": -1, "channels": WHOLE_CHANNELS}.get(core.space, WHOLE_LIMIT)
    return reduced_length(step, constants) <= limit


def partition(steps: Iterable[Step], fusion: Fusion, constants: Mapping[str, int]) -> list[Stage]:
    """Cut the chain into stages.

    Fused: a core joins the stage at hand when that has none yet, or when both reduce over the same space and the set
    fits in one program. Split: every core starts a stage. Unfused: so does every op.
    """
    stages: list[Stage] = []
    for step in steps:
        space: Space | Literal[""] = step.core.space if step.core else ""
        last = stages[-1] if stages else None
        if last is None or fusion == "unfused":
            joins = False
        elif not space:
            joins = True
        elif fusion == "split":
            joins = False
        elif not last.space:
            joins = True
        else:
            settled = any(core.collapses for core in last.cores) or last.groups != step.groups
            joins = last.space == space and not settled and all(fits_whole(s, constants) for s in (*last.steps, step) if s.core)
        if joins and last is not None:
            stages[-1] = Stage((*last.steps, step), last.space or space)
        else:
            stages.append(Stage((step,), space))
    return stages
