"""What the stages need to know about a task and the target GPU, before there is a candidate.

The reference's Python runs for it, on tensors without memory, for a hundredth to a tenth of a second: in processes of its own
(`FactsGatherer`), or every thread that waits for a candidate would wait for the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernrl.errors import UsageError
from kernrl.tasks.task import FULL, RAGGED, SMALL, InputSet, Task, task_fingerprint
from kernrl.verifier.base.devices import Device
from kernrl.verifier.judge.domain import ANY, MOST_BYTES, Domain, asks_for_numbers, find_domain
from kernrl.verifier.plan.plan import Plan, TensorSpec, TraceSpec
from kernrl.verifier.plan.price import Price, least_modelled_us, physical_floor_us, price
from kernrl.verifier.trace.reference_spec import judged_spec_of, outputs_of, reference_plan


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
    domain: Domain = ANY

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
    """The facts of a task under a policy; those of its stated sets alone where the derived ones, which nobody needs, fail.

    With a GPU, a small set that is derived is left out if there is a ragged one, which catches more.

    Raises:
        UsageError: the task's reference does not run.
    """
    try:
        return _gathered(task, precision, device, on_gpu)
    except UsageError:
        stated = tuple(s for s in task.input_sets if not s.derived)
        if stated == task.input_sets:
            raise
        return _gathered(replace(task, input_sets=stated), precision, device, on_gpu)


def _gathered(task: Task, precision: str, device: Device, on_gpu: bool) -> TaskFacts:
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
        domain=_domain(task, sets, precision, plan, device),
    )


def _domain(task: Task, sets: Sequence[InputSet], precision: str, full: Plan, device: Device) -> Domain:
    """Which numbers the reference takes, if its ops ask, as far as that is found soon. Costs some tens of milliseconds."""
    if not asks_for_numbers(full):
        return ANY
    smallest = full if len(sets) == 1 else reference_plan(task, sets[0], precision, device.arch)
    return find_domain(task, sets, precision) if sum(s.nbytes for s in smallest.storages) <= MOST_BYTES else ANY


class FactsGatherer:
    """The process in which facts are gathered."""

    def healthy(self) -> bool:
        """Always true: an exception leaves nothing behind here."""
        return True

    def gather(self, task: Task, precision: str, device: Device, on_gpu: bool) -> TaskFacts:
        """`gather_facts`."""
        return gather_facts(task, precision, device, on_gpu=on_gpu)
