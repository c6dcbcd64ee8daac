"""Messages to and from a replay process: plain data, sent by pickle between trusted processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernrl.tasks.task import Task
from kernrl.verifier.base.shared_memory import StoredTensor
from kernrl.verifier.base.verdict import Timing
from kernrl.verifier.judge.draws import Draw, spot_checks, spot_draws
from kernrl.verifier.plan.buffers import library_bytes, memory_bytes, output_bytes, temporary_bytes
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.replay.timing import Block, NoiseBand, own_noise, shorter_us, speedup


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate, checked and compiled, with the draws it is judged on."""

    task: Task
    precision: str
    plans: Mapping[str, Plan]
    kernels: Mapping[str, Sequence[CompiledKernel]]
    """By input set, as in `plans`; kernels in the order of `Plan.kernels`."""
    draws: Sequence[Draw]
    poison: bool = True
    decoys: bool = True
    overwrites: bool = True
    """Whether memory is poisoned, decoys are looked for, and stray writes are looked for. Tests switch these off."""
    at_length: bool = False
    """Whether it is timed at length: all baselines in turns, and a program against itself to see the noise meanwhile."""

    @property
    def held_bytes(self) -> dict[str, int]:
        """Bytes of everything that the plan of each input set works on."""
        return {name: memory_bytes(plan, self.kernels[name]) for name, plan in self.plans.items()}

    @property
    def temporary_bytes(self) -> dict[str, int]:
        """Of that, the candidate's own."""
        return {name: temporary_bytes(plan, self.kernels[name]) for name, plan in self.plans.items()}

    @property
    def library_bytes(self) -> dict[str, int]:
        """Of that, what forward's library calls return."""
        return {name: library_bytes(plan) for name, plan in self.plans.items()}

    @property
    def output_bytes(self) -> dict[str, int]:
        """Bytes of the outputs at each input set."""
        return {name: output_bytes(plan) for name, plan in self.plans.items()}

    @property
    def spot_checks(self) -> int:
        """How many timed calls are judged, besides one after the last."""
        return spot_checks(max(self.output_bytes.values(), default=0))

    @property
    def all_draws(self) -> tuple[Draw, ...]:
        """`draws`, then those of judged calls while timing."""
        return (*self.draws, *spot_draws(self.draws))


@dataclass(slots=True)
class Replayed:
    """Results of one phase of replay."""

    asked: list[int] = field(default_factory=list)
    """Positions in `Job.all_draws`."""
    shown: list[list[StoredTensor]] = field(default_factory=list)
    """The outputs of each."""
    written: list[int] = field(default_factory=list)
    """Positions at which an input or a parameter changed."""
    overrun: list[int] = field(default_factory=list)
    """Positions at which memory outside every buffer changed."""
    decoys: list[str] = field(default_factory=list)
    """Authored launches without which the output is the same."""


@dataclass(slots=True)
class Measured:
    """Results of timing."""

    blocks: dict[str, list[Block]]
    """By baseline."""
    node_us: list[float]
    """Device time of each node of the plan."""
    unfused_share: float
    choice: list[int]
    """Variant used at each node."""
    gpu_seconds: float
    alike: list[Block] = field(default_factory=list)
    """Of a program against itself, timed in the same rounds; only if timing was at length."""

    def timing(self, device: str, noise: NoiseBand) -> Timing:
        """The candidate's and the baselines' times with their speedups, for a verdict; `noise` is as calibrated before."""
        first = next(iter(self.blocks.values()))
        if self.alike:
            noise = own_noise(self.alike)
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
