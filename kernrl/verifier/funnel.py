"""The funnel: cheap stages first, each for candidates that passed the one before. One candidate in, one Verdict out."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import traceback
from concurrent.futures import Future
from dataclasses import asdict, replace

import torch
import triton

from kernrl import __version__
from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError, InternalError, UsageError
from kernrl.tasks.eval_mode import IN_EVAL_MODE
from kernrl.tasks.task import FULL, RAGGED, InputSet, Task, task_fingerprint
from kernrl.verifier.base.devices import device_aimed_at, gpu_aimed_at
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.progress import FailedAtDerived, Progress, Stopped, passed
from kernrl.verifier.base.screen import screen
from kernrl.verifier.base.verdict import Rejection, Stage, Status, Verdict, printable
from kernrl.verifier.base.version import verifier_version
from kernrl.verifier.correctness import Defences, PlanJudge, precision_of
from kernrl.verifier.interpreted_sets import NO_RAGGED_SET, OTHER_NUMBERS, rejected
from kernrl.verifier.judge.memory_estimate import rehearse
from kernrl.verifier.judge.reasons import has_tf32_product, with_tf32_hint
from kernrl.verifier.plan.layout import layout_notes
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.plan.reading import Asked
from kernrl.verifier.pool.backend import Front, GpuBackend
from kernrl.verifier.pool.gpu import COMPILING_LANES, LANES
from kernrl.verifier.pool.gpu_client import GpuClient
from kernrl.verifier.pool.local import LocalFront
from kernrl.verifier.pool.memory_ledger import gib, least_bytes
from kernrl.verifier.pool.ray import Cluster
from kernrl.verifier.pool.task_facts import TaskFacts
from kernrl.verifier.pool.task_preparers import compilers
from kernrl.verifier.replay.compiled_reference import MODES
from kernrl.verifier.trace.tracer import CPU_S as TRACE_CPU_S

log = logging.getLogger(__name__)

FEWER_FLOPS = 0.75
"""A candidate that does less than this share of the reference's arithmetic computes it in another way, and is said to."""

SMALL_SHARE = 64
"""A task whose reference moves less than one part in so many of the GPU's memory fits, without a rehearsal."""

SMALLER = "give the task smaller sizes."

FAULT = "A fault of the verifier, not of the candidate; the log has its traceback"


class StagedEvaluator:
    """Runs candidates through the stages. Thread-safe: callers share the sandbox, the compiler and the GPUs."""

    def __init__(self, config: VerifierConfig, *, defences: Defences | None = None):
        """Finds the GPUs, and starts nothing yet. Raises UsageError for settings that this machine cannot satisfy."""
        self.config, self.defences = config, defences or Defences()
        self._cluster = None if config.executor == "local" else Cluster(config.executor, config.EXECUTOR)
        cores = sum(self._cluster.front_cpus) if self._cluster else len(os.sched_getaffinity(0))
        self.workers = config.workers or cores
        devices = visible_gpus() if config.device != "cpu" and not self._cluster else []
        if config.device == "cuda" and not (self._cluster.gpu_count if self._cluster else devices):
            raise UsageError("--device cuda: there is no GPU here; leave it out to judge on the CPU.")
        self.gpus: list[GpuBackend] = []
        self.front: Front | None = None
        self._devices = devices
        self._plan_judge: PlanJudge | None = None
        self._facts: dict[tuple[str, str], Future[TaskFacts]] = {}
        self.cache_dir = config.cache_folder
        self._starting, self._gathering = threading.Lock(), threading.Lock()
        self._started = self._closed = False

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
            lanes = self._lanes
            self.gpus = [
                GpuClient(
                    device,
                    lanes=lanes,
                    cache_dir=self.cache_dir,
                    timeout_s=self.config.gpu_timeout_s,
                    memory_share=self.config.gpu_memory_share,
                    redraw_parameters=self.defences.redraw_parameters,
                    compilers=self._compilers,
                )
                for device in self._devices
            ]
            self._device = device_aimed_at(self.config.target, self.gpus[0].gpu_info if self.gpus else None)
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
            self._plan_judge = PlanJudge(self.config, self.defences, self._device, front, self.gpus)
            self._started = True
            # keep the garbage collector away from torch and triton: it would stop all threads for a tenth of a second
            gc.collect()
            gc.freeze()

    @property
    def _lanes(self) -> int:
        """Lanes of each GPU: one that loads what was compiled leaves the GPU to others for a second, so there are more then."""
        most = COMPILING_LANES if self._compilers else LANES
        return max(1, min(most, self.workers // 2))

    @property
    def _compilers(self) -> int:
        """Processes that compile baselines, for each GPU."""
        return compilers(self.workers) if any(name in MODES for name in self.config.baseline) else 0

    def _start_on(self, cluster: Cluster) -> None:
        """Use the cluster's actors in place of processes on this machine."""
        if self.config.device != "cpu":
            self.gpus = list(cluster.gpus(self.config, self.cache_dir, redraw_parameters=self.defences.redraw_parameters))
        self._device = device_aimed_at(self.config.target, self.gpus[0].gpu_info if self.gpus else None)
        self.target = self._device.arch
        front = self.front = cluster.front(self.config, self.cache_dir, self.target, self._interpreter_settings)
        self._plan_judge = PlanJudge(self.config, self.defences, self._device, front, self.gpus)
        self._started = True

    def gpu(self) -> str:
        """See `HardenedVerifier.gpu`."""
        self.start()
        return gpu_aimed_at(self.config.target, self.gpus[0].gpu_info if self.gpus else None)

    @property
    def _interpreter_settings(self) -> dict[str, bool]:
        d = self.defences
        return {"redraw_parameters": d.redraw_parameters, "poison": d.poison, "decoys": d.decoys}

    @property
    def conditions(self) -> list[str]:
        """What a verdict depends on besides task and candidate."""
        gpus = sorted({gpu.gpu_info["gpu"] + gpu.gpu_info["driver"] for gpu in self.gpus}) or [self._device.name]
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
        return names | ({k: self.gpus[0].gpu_info[k] for k in ("gpu", "driver")} if self.gpus else {})

    def precision_of(self, task: Task) -> str:
        """The policy a task is judged under."""
        return precision_of(self.config, task)

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
            self._report(task, progress, error.traceback or traceback.format_exc())
        except InfrastructureError as error:
            status, reason = Status.INFRA_ERROR, str(error)
        except Exception as error:
            status, reason, internal = Status.INFRA_ERROR, f"{type(error).__name__}: {error}", True
            self._report(task, progress, traceback.format_exc())
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
        facts = self._needed_facts(task, progress)
        try:
            self._judge(task, facts, candidate.source, progress)
        except FailedAtDerived as failed:
            if self.config.any_shape:
                raise Stopped(failed.rejection) from None
            progress.specialised, progress.errors = failed.rejection.reason, []
            facts = self._judge_again(task, facts, candidate.source, progress)
        if all(s.derived or s.name == FULL for s in facts.sets) and not any(s.name == RAGGED for s in facts.sets):
            progress.notes.append(NO_RAGGED_SET)
        if note := facts.domain.note():
            progress.notes.append(note)
        if not facts.specs[-1].training and "eval()" not in task.pytorch_code:  # the task may say so itself
            progress.notes.append(IN_EVAL_MODE)

    def _judge_again(self, task: Task, facts: TaskFacts, source: str, progress: Progress) -> TaskFacts:
        """Judge a source that failed at a derived set: at those where the task's numbers stay, if there is no GPU for the full
        set, or else at the stated sets alone. Returns the facts of the sets. Raises Stopped."""
        if task.same_numbers and not self.gpus:
            same = replace(task, input_sets=(InputSet(FULL), *task.same_numbers), same_numbers=())
            facts = self._needed_facts(same, progress)
            with contextlib.suppress(FailedAtDerived):
                self._judge(same, facts, source, progress)
                progress.specialised += f" {OTHER_NUMBERS}"
                return facts
            progress.errors = []
        self._judge(task, facts.stated(), source, progress)
        return facts

    def _needed_facts(self, task: Task, progress: Progress) -> TaskFacts:
        with progress.at(Stage.TRACE, "task"):
            return self.facts_of(task)

    def _judge(self, task: Task, facts: TaskFacts, source: str, progress: Progress) -> None:
        """Judge a source that passed the screen at the sets of `facts`. Raises Stopped, or FailedAtDerived where the
        stated sets have to decide."""
        plans = self._traced(facts, source, self.precision_of(task), progress)
        assert self._plan_judge
        self._plan_judge.judge(task, facts, plans, source, progress)

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
            if read.price.flops < FEWER_FLOPS * facts.reference.flops and not read.price.unknown:
                share = read.price.flops / facts.reference.flops
                progress.notes += [f"It does {share:.2g} of the floating-point operations that the reference asks for."]
        return read.plans

    def facts_of(self, task: Task) -> TaskFacts:
        """The facts of a task under its policy, cached. Raises UsageError if its reference does not run."""
        precision = self.precision_of(task)
        key = task_fingerprint(task), precision
        with self._gathering:  # candidates of a group come at the same time, and need this once
            under_way = self._facts.get(key)
            found = under_way or self._facts.setdefault(key, Future())
        if under_way is None:
            assert self.front
            try:
                found.set_result(self.front.facts(task, precision, self._device, on_gpu=bool(self.gpus)))
            except BaseException as error:
                with self._gathering:  # the next candidate tries again
                    del self._facts[key]
                found.set_exception(error)
                raise
        return found.result()

    def doing(self) -> str:
        """What the GPUs of this machine are at, for people; '' where there are none, or where nothing is under way."""
        said: list[str] = []
        for gpu in () if self._closed else self.gpus:
            with contextlib.suppress(InfrastructureError):
                said.append(gpu.doing())
        return "; ".join(part for part in said if part)

    def unfit(self, task: Task) -> str:
        """Why no candidate of a task can be judged on the GPUs here, in a sentence; '' where one may. Allocates nothing.

        What cannot be known without running the reference counts as fit: the verdict on its first candidate says more.
        """
        self.start()
        full = task.input_set(FULL)
        if not self.gpus or full is None:
            return ""
        there = min(float(gpu.gpu_info["usable_bytes"]) for gpu in self.gpus)
        unknown = "%s: whether it fits is not known: %s"
        try:
            facts = self.facts_of(task)
        except (UsageError, InfrastructureError) as error:
            log.info(unknown, task.id, error)
            return ""
        if facts.reference.bytes_moved < there / SMALL_SHARE:
            return ""
        try:
            need = least_bytes(rehearse(task, full, self.precision_of(task)))
        except Exception as error:  # whatever a reference does on tensors without contents
            log.info(unknown, task.id, error)
            return ""
        if need <= there:
            return ""
        return f"{task.id}: judging any candidate takes {gib(need)}, and the GPU has {gib(there)} for it: {SMALLER}"

    def close(self) -> None:
        """End every process this evaluator started."""
        self._closed = True
        gc.unfreeze()
        for part in (self.front, *self.gpus, self._cluster):
            if part is not None:
                part.close()

    def _report(self, task: Task, progress: Progress, where: str) -> None:
        """Log a fault of ours, with all that is needed to find it. What closing breaks is none."""
        if not self._closed:
            log.error(
                "a fault of the verifier, task %s, candidate %s, at %s:\n%s", task.id, progress.sha, progress.stage, where
            )


def visible_gpus() -> list[str]:
    """The value of CUDA_VISIBLE_DEVICES for each GPU. Does not initialise CUDA here."""
    count = torch.cuda.device_count()
    listed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return listed[:count] if listed else [str(i) for i in range(count)]
