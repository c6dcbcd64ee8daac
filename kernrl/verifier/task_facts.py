"""What the stages need to know about a task and the target GPU, before there is a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernrl.errors import UsageError
from kernrl.tasks.task import FULL, RAGGED, SMALL, InputSet, Task
from kernrl.verifier.base.devices import OLDEST_ARCH, Device, arch_number, device_for
from kernrl.verifier.cache import task_fingerprint
from kernrl.verifier.plan.plan import TensorSpec, TraceSpec
from kernrl.verifier.plan.price import Price, least_modelled_us, physical_floor_us, price
from kernrl.verifier.trace.reference_spec import judged_spec_of, outputs_of, reference_plan

DEFAULT_GPU = "NVIDIA H200"
"""Target where there is no GPU and none is named."""


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What the stages need to know about a task; made once."""

    key: str
    sets: tuple[InputSet, ...]
    """All input sets, the full one last."""
    specs: tuple[TraceSpec, ...]
    outputs: tuple[tuple[TensorSpec, ...], ...]
    reference: Price
    """The reference's cost at the last set."""
    floor_us: float
    least_modelled_us: float
    """The shortest modelled time that is believed for a candidate."""

    @property
    def derived(self) -> frozenset[str]:
        """Names of the derived sets, which inform; the others bind."""
        return frozenset(s.name for s in self.sets if s.derived)

    def stated(self) -> TaskFacts:
        """The same without derived sets."""
        kept = [i for i, s in enumerate(self.sets) if not s.derived]
        sets, specs, outputs = (tuple(part[i] for i in kept) for part in (self.sets, self.specs, self.outputs))
        return replace(self, sets=sets, specs=specs, outputs=outputs)


def gather_facts(task: Task, precision: str, device: Device, *, on_gpu: bool) -> TaskFacts:
    """The facts of a task under a policy. Raises UsageError if its reference does not run.

    With a GPU, a small set that is derived is left out if there is a ragged one, which catches more.
    """
    asked = [s for s in task.input_sets if not (on_gpu and s.derived and s.name == SMALL and task.input_set(RAGGED))]
    sets = tuple(sorted(asked, key=lambda s: s.name == FULL))
    plan = reference_plan(task, sets[-1], precision, device.arch)
    last = tuple(TensorSpec(o.dtype, o.shape, o.stride) for o in plan.outputs)
    return TaskFacts(
        key=task_fingerprint(task),
        sets=sets,
        specs=tuple(judged_spec_of(task, s, precision, device.arch) for s in sets),
        outputs=(*(outputs_of(task, s, precision, device.arch) for s in sets[:-1]), last),
        reference=price(plan, device, precision),
        floor_us=physical_floor_us(plan, device),
        least_modelled_us=least_modelled_us(plan, device, precision),
    )


def device_aimed_at(asked: str | None, here: Mapping[str, str] | None) -> Device:
    """The target device, for compiling and modelling: the one asked for, else the GPU here, else `DEFAULT_GPU`.

    `here` describes this machine's GPU, or is None. Raises UsageError for a device that is unknown or cannot run here.
    """
    if here and not asked and arch_number(here["arch"]) < OLDEST_ARCH:
        why = f"{here['gpu']} is {here['arch']}: TF32 and Triton need sm_{OLDEST_ARCH} or newer"
        raise UsageError(f"{why}; add --device cpu to judge by the interpreter.")
    device = device_for(asked or (here["gpu"] if here else DEFAULT_GPU))
    if device is None and here and not asked:
        device = device_for(here["arch"])
    if device is None:
        name = asked or (here and here["gpu"])
        raise UsageError(f"--target {name}: no such GPU is known; name an architecture such as sm_90.")
    if here and device.arch != here["arch"]:
        raise UsageError(f"--target {asked}: the GPU here is {here['arch']}; leave it out, or add --device cpu.")
    return device


def gpu_aimed_at(asked: str | None, here: Mapping[str, str] | None) -> str:
    """The GPU that candidates are judged on, or are modelled for, as a prompt names it: `H200`. Raises as `device_aimed_at`."""
    device = device_aimed_at(asked, here)
    return (here["gpu"] if here else device.name).removeprefix("NVIDIA ")
