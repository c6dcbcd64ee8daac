"""Correctness and time of a candidate whose plans passed the checks: on a GPU, or by the interpreter and a model of one."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError
from kernrl.tasks.task import FULL, RAGGED, Task
from kernrl.verifier.base.devices import Device
from kernrl.verifier.base.progress import FailedAtDerived, Progress, Stopped
from kernrl.verifier.base.verdict import Rejection, Speedup, Stage, Status, Timing
from kernrl.verifier.interpret.interpret_server import Judged, SmallJob
from kernrl.verifier.interpret.interpreter import Unable
from kernrl.verifier.interpret.plain_mistake import plain_mistake
from kernrl.verifier.interpreted_sets import (
    ONLY_AT_FULL,
    TOO_LARGE,
    held_bytes,
    interpreted,
    needs_gpu,
    rejected,
    took_too_long,
)
from kernrl.verifier.judge.draws import BIG_BYTES, Draw, Seeds, schedule
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.launch_time import Profiles
from kernrl.verifier.plan.launchable import launchable
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.plan.price import Price, price
from kernrl.verifier.pool.backend import Front, GpuBackend
from kernrl.verifier.pool.task_facts import TaskFacts
from kernrl.verifier.replay.job import Job

log = logging.getLogger(__name__)

FLOOR_MARGIN = 0.9
"""Measured times below this share of the physical floor are not believed."""

INTERPRETER_TIMEOUT_S = 5.0
"""CPU seconds of the interpreter where a GPU can judge instead."""

FOUND_WRONG = frozenset((Status.WRONG, Status.DECOY, Status.CRASH))
"""Statuses that machine code could not change."""

LEAST_COMPILE_S, LEAST_INTERPRET_S = 4.0, 3.0
"""Seconds that these stages have in any case, whatever the ones before took."""


@dataclass(frozen=True, slots=True)
class Defences:
    """Defences that tests switch off, to see that each is needed. Nothing else should."""

    regimes: tuple[str, ...] | None = None
    """Input regimes used, or None for all."""
    redraw_parameters: bool = True
    poison: bool = True
    decoys: bool = True
    overwrites: bool = True
    """Whether writes to inputs and out of bounds are looked for."""
    plan_checks: bool = True
    floor: bool = True


def below_floor(timing: Timing, floor_us: float) -> bool:
    """Whether a time is too short for the task's data to be moved. A floor that a baseline goes below is too high itself."""
    return timing.candidate_us < FLOOR_MARGIN * floor_us <= min(timing.baseline_us.values(), default=math.inf)


def precision_of(config: VerifierConfig, task: Task) -> str:
    """The policy a task is judged under."""
    return config.precision or task.precision


class PlanJudge:
    """Judges checked plans where this machine can: on its GPUs if it has any, by the interpreter if not. Thread-safe."""

    def __init__(
        self, config: VerifierConfig, defences: Defences, device: Device, front: Front, gpus: Sequence[GpuBackend],
        *, at_length: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            device: The one that code is compiled and modelled for.
            at_length: Time at length on a GPU (`Job.at_length`), for few candidates of which much must be known.
        """
        self.config, self.defences, self._at_length = config, defences, at_length
        self.front, self.gpus = front, gpus
        self._device, self._seeds = device, Seeds()

    def judge(self, task: Task, facts: TaskFacts, plans: Sequence[Plan], source: str, progress: Progress) -> None:
        """Correctness at the sets of `plans`, the full one last, then the time there. Raises Stopped, or FailedAtDerived
        where the stated sets have to decide."""
        if self.gpus:
            self._on_gpu(task, facts, plans, progress)
        else:
            profiles = self._on_cpu(task, facts, plans, source, progress)
            cost = price(plans[-1], self._device, precision_of(self.config, task), profiles)
            progress.plan |= asdict(cost)
            self._model_time(facts, cost, progress)

    def _compiled(self, plans: Sequence[Plan], progress: Progress) -> tuple[list[Plan], dict[str, list[CompiledKernel]]]:
        """The plans with the variants that can be launched, and their machine code by input set."""
        with progress.at(Stage.TRACE, "compile"):
            kernels = [kernel for plan in plans for kernel in plan.kernels]
            timeout_s = min(self.config.compile_timeout_s, progress.cpu.left(LEAST_COMPILE_S))
            with progress.cpu.at_most(timeout_s):
                rest = iter(self.front.compile(kernels, self._device.arch, timeout_s))
        kept = [launchable(plan, [next(rest) for _ in plan.kernels]) for plan in plans]
        return [plan for plan, _ in kept], {plan.input_set: compiled for plan, compiled in kept}

    def _draws(self, facts: TaskFacts, seed: int, precision: str, *, big: bool = False) -> tuple[Draw, ...]:
        held, refused = facts.domain.held, facts.domain.refused
        return schedule(facts.sets, seed, self.defences.regimes, big=big, precision=precision, held=held, refused=refused)

    # --- on a GPU ------------------------------------------------------------------------------------------------

    def _on_gpu(self, task: Task, facts: TaskFacts, plans: Sequence[Plan], progress: Progress) -> None:
        plans, decoys = self._interpret_first(task, facts, plans, progress)
        left = next((plan.input_set for plan in plans if plan.input_set in facts.derived), "")
        try:
            plans, kernels = self._compiled(plans, progress)
        except Stopped as stopped:
            raise rejected(stopped.rejection, left) from None
        progress.stage = Stage.CORRECTNESS
        gpu = min(self.gpus, key=lambda one: one.load())
        precision = precision_of(self.config, task)
        draws = self._draws(facts, gpu.seed(facts.key), precision, big=_is_big(plans))
        job = Job(
            replace(task, solutions=(), instruction=""),
            precision,
            {plan.input_set: _without_ir(plan) for plan in plans},
            kernels,
            [draw for draw in draws if draw.input_set in kernels],
            poison=self.defences.poison,
            decoys=decoys,
            overwrites=self.defences.overwrites,
            at_length=self._at_length,
        )
        outcome = gpu.run(job, self.config.baseline, facts.key)
        progress.stage = outcome.stage
        progress.errors += outcome.errors
        progress.seconds |= outcome.seconds
        progress.memory = outcome.memory
        if outcome.rejection:
            derived = outcome.stage is Stage.CORRECTNESS and outcome.rejection.status is not Status.TOO_LARGE
            raise rejected(outcome.rejection, left if derived else "")
        if outcome.measured:
            progress.timing = outcome.measured.timing(gpu.gpu_info["gpu"], gpu.noise)
            if self.defences.floor and below_floor(progress.timing, facts.floor_us):
                us = progress.timing.candidate_us
                reason = (
                    f"{us:.1f} µs is less than moving the task's data takes ({facts.floor_us:.1f} µs): not all of it was used."
                )
                raise Stopped(Rejection(Status.WRONG, reason))

    def _interpret_first(
        self, task: Task, facts: TaskFacts, plans: Sequence[Plan], progress: Progress
    ) -> tuple[list[Plan], bool]:
        """Let the interpreter judge what it can, before anything is compiled.

        Returns the plans left for the GPU, and whether to look for decoys there: a launch that does nothing at ragged shapes
        may do something at full size. Raises Stopped or FailedAtDerived if the interpreter finds the candidate wrong.
        """
        mine, all_plans = interpreted(plans, on_gpu=True), (list(plans), self.defences.decoys)
        if not mine:
            return all_plans
        with progress.at(Stage.CORRECTNESS, "interpreter"):
            precision = precision_of(self.config, task)
            draws = self._draws(facts, self._seeds.next(facts.key), precision)
            try:
                job = SmallJob(replace(task, solutions=()), precision, mine, draws, INTERPRETER_TIMEOUT_S)
                judged = self.front.interpret(job)
            except InfrastructureError as error:
                log.warning("the GPU judges what the interpreter cannot: %s", error)
                return all_plans
        if isinstance(judged.rejection, Unable):
            return all_plans
        progress.errors = judged.errors
        suspected = judged.rejection is not None and judged.rejection.status is Status.DECOY
        if judged.rejection and not suspected:
            raise rejected(judged.rejection, RAGGED if RAGGED in facts.derived else "")
        return [plan for plan in plans if plan.input_set not in mine], suspected

    # --- without one ---------------------------------------------------------------------------------------------

    def _on_cpu(self, task: Task, facts: TaskFacts, plans: Sequence[Plan], source: str, progress: Progress) -> Profiles:
        """Correctness by the interpreter, on every set that it can take; what the launches do at full size.

        Code that does not compile is not correct, even if it can be interpreted. What is found wrong need not compile.
        """
        try:
            with progress.at(Stage.CORRECTNESS):
                profiles = self._interpreted(task, facts, plans, source, progress)
        except (Stopped, FailedAtDerived) as found:
            if found.rejection.status not in FOUND_WRONG:
                self._compiled(plans[-1:], progress)
                progress.stage = Stage.CORRECTNESS
            raise
        self._compiled(plans[-1:], progress)
        return profiles

    def _interpreted(self, task: Task, facts: TaskFacts, plans: Sequence[Plan], source: str, progress: Progress) -> Profiles:
        mine = interpreted(plans, on_gpu=False)
        too_large = needs_gpu(f"{progress.specialised} {ONLY_AT_FULL}" if progress.specialised else TOO_LARGE)
        if not mine:
            raise Stopped(too_large)
        precision = precision_of(self.config, task)
        draws = self._draws(facts, self._seeds.next(facts.key), precision)
        judged = self._interpret(task, mine, draws, plans[-1], progress)
        if took_too_long(judged) and FULL in mine:
            small = {name: plan for name, plan in mine.items() if name != FULL}
            if small:
                judged = self._interpret(task, small, draws, plans[-1], progress)
            elif progress.specialised or (judged.rejection and judged.rejection.status is Status.TIMEOUT):
                judged = Judged(too_large)
            mine = small
        progress.errors = judged.errors
        if judged.rejection is None:
            return judged.profiles
        found = rejected(judged.rejection, judged.input_set if judged.input_set in facts.derived else "")
        if isinstance(found, Stopped) or not facts.derived.issuperset(mine) or self.config.any_shape:
            raise found
        too_slow = judged.rejection.status is Status.TIMEOUT
        if task.same_numbers and not too_slow:  # it may have a number of the task's own sizes
            raise found
        # other sizes, at which it only was too slow, have shown that it ends
        plain = plain_mistake(judged, source, facts.specs) and not (too_slow and progress.specialised)
        raise Stopped(judged.rejection if plain else needs_gpu(f"{found.rejection.reason} {ONLY_AT_FULL}"))

    def _interpret(
        self, task: Task, plans: Mapping[str, Plan], draws: Sequence[Draw], full: Plan, progress: Progress
    ) -> Judged:
        timeout_s = progress.cpu.left(LEAST_INTERPRET_S)
        job = SmallJob(replace(task, solutions=()), precision_of(self.config, task), plans, draws, timeout_s, full)
        judged = self.front.interpret(job)
        progress.cpu.spend(judged.cpu_s)
        return judged

    def _model_time(self, facts: TaskFacts, cost: Price, progress: Progress) -> None:
        """Time by the roofline model of the target GPU."""
        progress.stage = Stage.TIMING
        # loops of unknown length cost at least what the reference does
        us = max(cost.modelled_us, facts.least_modelled_us, facts.reference.modelled_us if cost.unknown else 0.0)
        ratio = facts.reference.modelled_us / us
        progress.timing = Timing(
            kind="modelled",
            device=self._device.name,
            candidate_us=us,
            baseline_us={"eager": facts.reference.modelled_us},
            speedups_x={"eager": Speedup(ratio, ratio, ratio, significant=False)},
        )


def _without_ir(plan: Plan) -> Plan:
    """A plan without its kernels' text, which replay does not need."""
    return replace(plan, kernels=tuple(replace(kernel, ttir="") for kernel in plan.kernels))


def _is_big(plans: Sequence[Plan]) -> bool:
    return held_bytes(plans[-1]) > BIG_BYTES
