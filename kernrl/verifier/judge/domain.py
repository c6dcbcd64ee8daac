"""Which numbers a reference takes: a probability outside [0, 1], or an index beyond its table, makes it raise.

On a GPU, that ends the process. So the regimes are tried on the reference, on the CPU, at its smallest set, before there is a
candidate.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base.precision import policy_flags
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.regimes import HUGE, NOMINAL, REGIMES
from kernrl.verifier.plan.plan import AtenNode, Plan

TRIES = 3
"""Draws of each regime: some hold the number that a reference refuses by chance only."""

MOST_BYTES = 16 << 20
"""References whose plans hold more are not tried: that would take seconds."""

_PLACES = ("embedding", "index", "gather", "scatter", "take", "put", "nll_loss", "one_hot", "bincount", "repeat_interleave")
_BOUNDED = ("binary_cross_entropy", "linalg", "cholesky", "inverse", "multinomial", "bernoulli")


@dataclass(frozen=True, slots=True)
class Domain:
    """What a reference does not take."""

    held: tuple[int, ...] = ()
    """Inputs, by position among forward's tensors, that are always as the task draws them."""
    refused: frozenset[str] = frozenset()
    """Regimes at which it raises even so."""

    def note(self) -> str:
        """What is left out for it, as a sentence; '' if nothing is."""
        parts = []
        if self.held:
            named = ", ".join(map(str, self.held))
            parts.append(f"input{'s' * (len(self.held) > 1)} {named} (from 0) held other numbers than the task's own")
        if self.refused:
            parts.append(f"inputs were {', '.join(name for name in REGIMES if name in self.refused)}")
        return f"The reference raises where {', and where '.join(parts)}: that was left out." if parts else ""


ANY = Domain()


def asks_for_numbers(plan: Plan) -> bool:
    """Whether a reference has an op that takes some numbers and raises on others."""
    names = [node.op for node in plan.nodes if isinstance(node, AtenNode)]
    return any(part in name for name in names for part in (*_PLACES, *_BOUNDED))


def find_domain(task: Task, sets: Sequence[InputSet], precision: str) -> Domain:
    """What the reference does not take; nothing where it does not run on the CPU."""
    smallest = next((s for s in sets if s.name != FULL), sets[0])
    try:
        inputs = TaskInputs(task, smallest, precision, "cpu")
    except Exception:
        return ANY
    if _raises(inputs, NOMINAL, precision):
        return ANY
    names = [name for name in REGIMES if name != HUGE or precision not in ("bf16", "fp16")]
    raising = [name for name in names if _raises(inputs, name, precision)]
    finite = [name for name in raising if REGIMES[name].finite]
    every = range(len(inputs.inputs))
    held = tuple(i for i in every if any(_raises(inputs, name, precision, {*every} - {i}) for name in finite))
    if any(_raises(inputs, name, precision, held) for name in finite):  # several together make it raise
        held = tuple(every)
    return Domain(held, frozenset(name for name in raising if _raises(inputs, name, precision, held)))


def _raises(inputs: TaskInputs, regime: str, precision: str, held: Collection[int] = ()) -> bool:
    """Whether the reference raises on one of a few draws of a regime, in which inputs that are `held` are the task's own."""
    draw = Draw(inputs.input_set, regime, 0, tuple(held))
    try:
        with torch.no_grad(), policy_flags(precision):
            for seed in range(TRIES):
                inputs.draw(replace(draw, seed=seed))
                inputs.call()
    except Exception:
        return True
    return False
