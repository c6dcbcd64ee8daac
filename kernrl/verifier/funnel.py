"""The funnel: cheap stages first, each for candidates that passed the one before. One candidate in, one Verdict out."""

from __future__ import annotations

import gc
import logging
import os
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch
import triton

from kernrl import __version__
from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError, InternalError, UsageError
from kernrl.tasks.task import FULL, RAGGED, Task
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.progress import FailedAtDerived, Progress, Stopped, passed
from kernrl.verifier.base.verdict import Rejection, Speedup, Stage, Status, Timing, Verdict, printable
from kernrl.verifier.base.version import verifier_version
from kernrl.verifier.cache import task_fingerprint
from kernrl.verifier.interpret.interpreter import Unable
from kernrl.verifier.interpret.plain_mistake import plain_mistake
from kernrl.verifier.interpret.server import Judged, SmallJob
from kernrl.verifier.judge.draws import BIG_BYTES, Draw, Seeds, schedule
from kernrl.verifier.judge.reasons import has_tf32_product, with_tf32_hint
from kernrl.verifier.plan.checks import launchable
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.layout import layout_notes
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.plan.price import Price, Profiles, price
from kernrl.verifier.plan.reading import Asked
from kernrl.verifier.pool.backend import Front, GpuBackend
from kernrl.verifier.pool.gpu import LANES
from kernrl.verifier.pool.gpu_client import GpuClient
from kernrl.verifier.pool.local import LocalFront
from kernrl.verifier.pool.ray import Cluster
from kernrl.verifier.replay.job import Job
from kernrl.verifier.route import (
    NO_RAGGED_SET,
    ONLY_AT_FULL,
    TOO_LARGE,
    held_bytes,
    interpreted,
    needs_gpu,
    rejected,
    took_too_long,
)
from kernrl.verifier.screen import screen
from kernrl.verifier.task_facts import TaskFacts, device_aimed_at, gather_facts
from kernrl.verifier.trace.client import CPU_S as TRACE_CPU_S

log = logging.getLogger(__name__)

FLOOR_MARGIN = 0.9
"""Measured times below this share of the physical floor are not believed."""

FEWER_FLOPS = 0.75
"""A candidate that does less than this share of the reference's arithmetic computes it in another way, and is said to."""

INTERPRETER_TIMEOUT_S = 5.0
"""CPU seconds of the interpreter where a GPU can judge instead."""

LEAST_COMPILE_S, LEAST_INTERPRET_S = 4.0, 3.0
"""Seconds that these stages have in any case, whatever the ones before took."""

FAULT = "A fault of the verifier, not of the candidate; the log has its traceback"


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


class StagedEvaluator:
    """Runs candidates through the stages. Thread-safe: callers share the sandbox, the compiler and the GPUs."""

    def __init__(self, config: VerifierConfig, *, defences: Defences | None = None):
        """Finds the GPUs, and starts nothing yet. Raises UsageError for settings that this machine cannot satisfy."""
        self.config, self.defences = config, defences or Defences()
        self._cluster = None if config.executor == "local" else Cluster(config.executor)
        cores = sum(self._cluster.front_cpus) if self._cluster else len(os.sched_getaffinity(0))
        self.workers = config.workers or cores
        devices = _visible_gpus() if config.device != "cpu" and not self._cluster else []
        if config.device == "cuda" and not (self._cluster.gpu_count if self._cluster else devices):
            raise UsageError("--device cuda: there is no GPU here; leave it out to judge on the CPU.")
        self.gpus: list[GpuBackend] = []
        self.front: Front | None = None
        self._devices = devices
        self._seeds = Seeds()
        self._facts: dict[tuple[str, str], TaskFacts] = {}
        self.cache_dir = config.cache_folder
        self._starting, self._gathering = threading.Lock(), threading.Lock()
        self._started = False

    def start(self) -> None:
        """Start now rather than at the first candidate; a GPU's further lanes start when they are needed.

        Raises InfrastructureError.
        """
        with self._starting:
            if self._started:
                return
            if self._cluster:
                self._start_on(self._cluster)
                return
            lanes = max(1, min(LANES, self.workers // 2))
            self.gpus = [
                GpuClient(
                    device,
                    lanes=lanes,
                    cache_dir=self.cache_dir,
                    timeout_s=self.config.gpu_timeout_s,
                    memory_share=self.config.gpu_memory_share,
                    redraw_parameters=self.defences.redraw_parameters,
                )
                for device in self._devices
            ]
            self._device = device_aimed_at(self.config.target, self.gpus[0].facts if self.gpus else None)
            self.target = self._device.arch
            front = self.front = LocalFront(
                # leave some cores to the lanes, which launch kernels: a GPU that waits for a core times nothing
                max(1, self.workers - lanes * len(self.gpus) // 4),
                target=self.target,
                cache_dir=self.cache_dir,
                require_sandbox=self.config.require_sandbox,
                interpreter=self._interpreter_settings,
            )
            front.start()
            self._started = True
            # keep the garbage collector away from torch and triton: it would stop all threads for a tenth of a second
            gc.collect()
            gc.freeze()

    def _start_on(self, cluster: Cluster) -> None:
        """Use the cluster's actors in place of processes on this machine."""
        if self.config.device != "cpu":
            self.gpus = list(cluster.gpus(self.config, self.cache_dir, redraw_parameters=self.defences.redraw_parameters))
        self._device = device_aimed_at(self.config.target, self.gpus[0].facts if self.gpus else None)
        self.target = self._device.arch
        self.front = cluster.front(self.config, self.cache_dir, self.target, self._interpreter_settings)
        self._started = True

    @property
    def _interpreter_settings(self) -> dict[str, bool]:
        d = self.defences
        return {"redraw_parameters": d.redraw_parameters, "poison": d.poison, "decoys": d.decoys}

    @property
    def conditions(self) -> list[str]:
        """What a verdict depends on besides task and candidate."""
        gpus = sorted({gpu.facts["gpu"] + gpu.facts["driver"] for gpu in self.gpus}) or [self._device.name]
        strict = ["any shape"] if self.config.any_shape else []
        limits = [f"{self.config.candidate_cpu_s:g} s"]
        return [*self.versions.values(), self.target, *gpus, *self.config.baseline, repr(self.defences), *strict, *limits]

    @property
    def versions(self) -> dict[str, str]:
        """Versions that decide a verdict, by name."""
        names = {
            "kernrl": __version__,
            "verifier": verifier_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        }
        return names | ({k: self.gpus[0].facts[k] for k in ("gpu", "driver")} if self.gpus else {})

    def precision_of(self, task: Task) -> str:
        """The policy a task is judged under."""
        return self.config.precision or task.precision

    def evaluate(self, task: Task, reply: str) -> Verdict:
        """Judge one reply. Any failure of the candidate is a verdict; so is an infrastructure failure (`infra_error`), and so
        is any exception of ours, which is logged and marked `internal_error`.

        Raises UsageError if the task itself cannot be run.
        """
        progress = Progress(self.config.candidate_cpu_s)
        status, reason, internal = Status.CORRECT, "", False
        try:
            self.start()
            self._funnel(task, reply, progress)
        except Stopped as stopped:
            status, reason = stopped.rejection.status, stopped.rejection.reason
            if status is Status.WRONG and progress.tf32_products and self.precision_of(task) == "fp32":
                reason = with_tf32_hint(reason, progress.errors)
        except UsageError:
            raise
        except InternalError as error:
            status, reason, internal = Status.INFRA_ERROR, str(error), True
            _report(task, progress, error.traceback or traceback.format_exc())
        except InfrastructureError as error:
            status, reason = Status.INFRA_ERROR, str(error)
        except Exception as error:
            status, reason, internal = Status.INFRA_ERROR, f"{type(error).__name__}: {error}", True
            _report(task, progress, traceback.format_exc())
        correct = status is Status.CORRECT
        return Verdict(
            status=status,
            stage=progress.stage,
            reason=printable(f"{FAULT} ({reason})" if internal else reason),
            task_id=task.id,
            candidate_sha=progress.sha,
            precision=self.precision_of(task),
            specialised=printable(progress.specialised) if correct else "",
            notes=progress.notes if correct else [],
            timing=progress.timing,
            errors=progress.errors,
            plan=progress.plan,
            memory=progress.memory,
            seconds={name: round(s, 6) for name, s in progress.seconds.items()},
            versions=self.versions,
            internal_error=internal,
        )

    def _funnel(self, task: Task, reply: str, progress: Progress) -> None:
        with progress.at(Stage.PARSE):
            candidate = passed(parse_reply(reply))
            progress.sha = candidate.sha
        with progress.at(Stage.SCREEN):
            passed(screen(candidate.source))
        with progress.at(Stage.TRACE, "task"):
            facts = self.facts_of(task)
        try:
            self._judge(task, facts, candidate.source, progress)
        except FailedAtDerived as failed:
            if self.config.any_shape:
                raise Stopped(failed.rejection) from None
            progress.specialised, progress.errors = failed.rejection.reason, []
            self._judge(task, facts.stated(), candidate.source, progress)
        if all(s.derived or s.name == FULL for s in facts.sets) and not any(s.name == RAGGED for s in facts.sets):
            progress.notes.append(NO_RAGGED_SET)

    def _judge(self, task: Task, facts: TaskFacts, source: str, progress: Progress) -> None:
        """Judge a source that passed the screen at the sets of `facts`. Raises Stopped, or FailedAtDerived where the
        stated sets have to decide."""
        plans = self._traced(facts, source, self.precision_of(task), progress)
        if self.gpus:
            self._on_gpu(task, facts, plans, progress)
        else:
            profiles = self._on_cpu(task, facts, plans, source, progress)
            cost = price(plans[-1], self._device, self.precision_of(task), profiles)
            progress.plan |= asdict(cost)
            self._model_time(facts, cost, progress)

    def plans_of(self, task: Task, source: str) -> list[Plan]:
        """The checked plans of a source at every input set, the full one last; none if it is refused before it runs."""
        self.start()
        try:
            return self._traced(self.facts_of(task), source, self.precision_of(task), Progress(self.config.candidate_cpu_s))
        except (Stopped, FailedAtDerived):
            return []

    def _traced(self, facts: TaskFacts, source: str, precision: str, progress: Progress) -> list[Plan]:
        """The candidate's plans, checked; notes the price of the last. Raises as `_judge` does."""
        assert self.front
        with progress.at(Stage.TRACE):
            traced = self.front.trace(source, facts.specs, self.config.trace_timeout_s)
            if isinstance(traced, Rejection):
                raise rejected(traced, "derived" if facts.derived else "")
            progress.cpu.spend(min(traced.seconds, TRACE_CPU_S))
        progress.split(Stage.TRACE, traced.seconds, "cpu_queue")
        with progress.at(Stage.PLAN):
            asked = Asked(facts.specs, facts.outputs, facts.derived, self._device, precision, self.defences.plan_checks)
            read = self.front.read(traced.frames, asked)
            progress.cpu.spend(read.cpu_s)
            if read.rejection:
                if read.malformed:
                    progress.stage = Stage.TRACE
                raise rejected(read.rejection, read.input_set)
            assert read.price
            progress.plan = {"input_set": read.plans[-1].input_set, **asdict(read.price), "reference": asdict(facts.reference)}
            progress.plan |= {"floor_us": facts.floor_us, "sets": {s.name: dict(s.constants) for s in facts.sets}}
            progress.tf32_products = any(has_tf32_product(kernel.ttir) for plan in read.plans for kernel in plan.kernels)
            progress.notes = layout_notes(read.plans[-1].outputs, facts.outputs[-1])
            if read.price.flops < FEWER_FLOPS * facts.reference.flops:
                share = read.price.flops / facts.reference.flops
                progress.notes += [f"It does {share:.2g} of the floating-point operations that the reference asks for."]
        return read.plans

    def facts_of(self, task: Task) -> TaskFacts:
        """The facts of a task under its policy, cached. Raises UsageError if its reference does not run."""
        key = task_fingerprint(task), self.precision_of(task)
        with self._gathering:  # candidates of a group come at the same time, and need this once
            if key not in self._facts:
                self._facts[key] = self._gathered(task, key[1])
            return self._facts[key]

    def _gathered(self, task: Task, precision: str) -> TaskFacts:
        try:
            return gather_facts(task, precision, self._device, on_gpu=bool(self.gpus))
        except UsageError:  # of the task's own sets, or of derived ones, which nobody needs
            stated = tuple(s for s in task.input_sets if not s.derived)
            if stated == task.input_sets:
                raise
            return gather_facts(replace(task, input_sets=stated), precision, self._device, on_gpu=bool(self.gpus))

    def _compiled(self, plans: Sequence[Plan], progress: Progress) -> tuple[list[Plan], dict[str, list[CompiledKernel]]]:
        """The plans with the variants that can be launched, and their machine code by input set."""
        assert self.front
        with progress.at(Stage.TRACE, "compile"):
            kernels = [kernel for plan in plans for kernel in plan.kernels]
            timeout_s = min(self.config.compile_timeout_s, progress.cpu.left(LEAST_COMPILE_S))
            with progress.cpu.at_most(timeout_s):
                rest = iter(self.front.compile(kernels, self.target, timeout_s))
        kept = [launchable(plan, [next(rest) for _ in plan.kernels]) for plan in plans]
        return [plan for plan, _ in kept], {plan.input_set: compiled for plan, compiled in kept}

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
        draws = schedule(facts.sets, gpu.seed(facts.key), self.defences.regimes, big=_is_big(plans))
        job = Job(
            replace(task, solutions=(), instruction=""),
            self.precision_of(task),
            {plan.input_set: _without_ir(plan) for plan in plans},
            kernels,
            [draw for draw in draws if draw.input_set in kernels],
            poison=self.defences.poison,
            decoys=decoys,
            overwrites=self.defences.overwrites,
        )
        outcome = gpu.run(job, self.config.baseline, facts.key)
        progress.stage = outcome.stage
        progress.errors += outcome.errors
        progress.seconds |= outcome.seconds
        progress.memory = outcome.memory
        if outcome.rejection:
            raise rejected(outcome.rejection, left if outcome.stage is Stage.CORRECTNESS else "")
        if outcome.measured:
            progress.timing = outcome.measured.timing(gpu.facts["gpu"], gpu.noise)
            us = progress.timing.candidate_us
            if self.defences.floor and us < FLOOR_MARGIN * facts.floor_us:
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
        assert self.front
        with progress.at(Stage.CORRECTNESS, "interpreter"):
            draws = schedule(facts.sets, self._seeds.next(facts.key), self.defences.regimes)
            try:
                job = SmallJob(replace(task, solutions=()), self.precision_of(task), mine, draws, INTERPRETER_TIMEOUT_S)
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
        """Correctness by the interpreter, on every set that it can take; what the launches do at full size."""
        self._compiled(plans[-1:], progress)  # code that does not compile is not correct, even if it can be interpreted
        with progress.at(Stage.CORRECTNESS):
            mine = interpreted(plans, on_gpu=False)
            if not mine:
                reason = f"{progress.specialised} {ONLY_AT_FULL}" if progress.specialised else TOO_LARGE
                raise Stopped(needs_gpu(reason))
            draws = schedule(facts.sets, self._seeds.next(facts.key), self.defences.regimes)
            judged = self._interpret(task, mine, draws, plans[-1], progress)
            if took_too_long(judged) and FULL in mine:
                small = {name: plan for name, plan in mine.items() if name != FULL}
                judged = self._interpret(task, small, draws, plans[-1], progress) if small else Judged(needs_gpu(TOO_LARGE))
                mine = small
            progress.errors = judged.errors
            if judged.rejection is None:
                return judged.profiles
            found = rejected(judged.rejection, judged.input_set if judged.input_set in facts.derived else "")
            if isinstance(found, Stopped) or not facts.derived.issuperset(mine) or self.config.any_shape:
                raise found
            plain = plain_mistake(judged, source, facts.specs)
            raise Stopped(judged.rejection if plain else needs_gpu(f"{found.rejection.reason} {ONLY_AT_FULL}"))

    def _interpret(
        self, task: Task, plans: Mapping[str, Plan], draws: Sequence[Draw], full: Plan, progress: Progress
    ) -> Judged:
        assert self.front
        timeout_s = progress.cpu.left(LEAST_INTERPRET_S)
        job = SmallJob(replace(task, solutions=()), self.precision_of(task), plans, draws, timeout_s, full)
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

    def close(self) -> None:
        """End every process this evaluator started."""
        gc.unfreeze()
        for part in (self.front, *self.gpus, self._cluster):
            if part is not None:
                part.close()


def _report(task: Task, progress: Progress, where: str) -> None:
    """Log a fault of ours, with all that is needed to find it."""
    log.error("a fault of the verifier, task %s, candidate %s, at %s:\n%s", task.id, progress.sha, progress.stage, where)


def _visible_gpus() -> list[str]:
    """The value of CUDA_VISIBLE_DEVICES for each GPU. Does not initialise CUDA here."""
    count = torch.cuda.device_count()
    listed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return listed[:count] if listed else [str(i) for i in range(count)]


def _without_ir(plan: Plan) -> Plan:
    """A plan without its kernels' text, which replay does not need."""
    return replace(plan, kernels=tuple(replace(kernel, ttir="") for kernel in plan.kernels))


def _is_big(plans: Sequence[Plan]) -> bool:
    return held_bytes(plans[-1]) > BIG_BYTES
