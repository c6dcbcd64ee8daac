"""What goes to a replay process and comes back: plain data, by pickle, between trusted processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernrl.tasks.task import Task
from kernrl.verifier.base.shared_memory import StoredTensor
from kernrl.verifier.base.verdict import Timing
from kernrl.verifier.judge.inputs import Draw
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.replay.timing import Block, NoiseBand, shorter_us, speedup


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate, checked and compiled, and what it is to be asked."""

    task: Task
    precision: str
    plans: Mapping[str, Plan]
    kernels: Mapping[str, Sequence[CompiledKernel]]
    """By input set, alike with `plans`; kernels in the order of `Plan.kernels`."""
    draws: Sequence[Draw]
    poison: bool = True
    decoys: bool = True
    overwrites: bool = True
    """Whether memory is poisoned, launches skipped, and writes where none belong looked for (a test may switch these off)."""


@dataclass(slots=True)
class Replayed:
    """What a phase of replay showed."""

    asked: list[int] = field(default_factory=list)
    """Positions in `Job.draws`."""
    shown: list[list[StoredTensor]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    """Positions at which an input or a parameter changed."""
    overrun: list[int] = field(default_factory=list)
    """Positions at which memory outside every buffer changed."""
    decoys: list[str] = field(default_factory=list)
    """Authored launches without which the output is the same."""


@dataclass(slots=True)
class Measured:
    """What timing showed."""

    blocks: dict[str, list[Block]]
    """By baseline."""
    node_us: list[float]
    """Device time of each node of the plan, alone."""
    unfused_share: float
    choice: list[int]
    """Variant taken at each node."""
    gpu_seconds: float

    def timing(self, device: str, noise: NoiseBand) -> Timing:
        """The candidate's and the baselines' times with their speedups, for a verdict."""
        first = next(iter(self.blocks.values()))
        return Timing(
            kind="measured",
            device=device,
            candidate_us=_median([c for _, c in first]),
            baseline_us={name: _median([b for b, _ in blocks]) for name, blocks in self.blocks.items()},
            speedups_x={name: speedup(blocks, noise) for name, blocks in self.blocks.items()},
            unfused_share=self.unfused_share,
            noise=noise.at(shorter_us(first)),
        )


def _median(values: Sequence[float]) -> float:
    """The upper median."""
    return sorted(values)[len(values) // 2]
