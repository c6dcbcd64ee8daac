"""Which input sets the interpreter judges, and what a failure at each of them means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernrl.tasks.task import FULL, RAGGED, SMALL
from kernrl.verifier.base.progress import FailedAtDerived, Stopped
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.interpret.interpret_server import Judged
from kernrl.verifier.interpret.interpreter import Unable
from kernrl.verifier.plan.plan import LaunchNode, Plan

INTERPRETED_BYTES = 4 << 20
"""Largest plan that is interpreted where there is a GPU (larger ones are cheaper to compile and run on it), and largest plan of
the full set that is interpreted beside smaller sets."""

ONLY_SET_BYTES = 64 << 20
"""Largest plan that is interpreted where a task has no smaller set."""

NO_RAGGED_SET = "No ragged sizes are known for this task, so nobody looked at what its masks do at the edges of tensors."

OTHER_NUMBERS = "It is right at small sizes where the numbers that the task computes of its sizes, such as a scale, stay."

TOO_LARGE = (
    "Too large for the interpreter, and no smaller sizes are known: judge it on a machine with a GPU, or state small ones "
    "(`INPUT_SETS`) in the task."
)

ONLY_AT_FULL = (
    "These sizes are derived from the task's; it may be right at the task's own, which only a GPU can tell: judge it there, or "
    "take sizes from the tensors' shapes."
)


def interpreted(plans: Sequence[Plan], *, on_gpu: bool) -> dict[str, Plan]:
    """Those of a candidate's plans that the interpreter judges, by input set; the rest are the GPU's.

    Without a GPU, all sets, the full one if it is small. With one, the small and the ragged set: compiling their kernels,
    for this one use, costs twice as much as interpreting them. Autotuned launches stay on the GPU: their configurations
    take turns at these shapes, and one may be wrong only where many programs run at once.
    """
    if not on_gpu:
        most_bytes = INTERPRETED_BYTES if len(plans) > 1 else ONLY_SET_BYTES
        return {plan.input_set: plan for plan in plans if plan.input_set != FULL or held_bytes(plan) <= most_bytes}
    return {
        plan.input_set: plan
        for plan in plans[:-1]  # the last is timed, and stays
        if plan.input_set in (SMALL, RAGGED) and held_bytes(plan) <= INTERPRETED_BYTES and not _autotuned(plan)
    }


def _autotuned(plan: Plan) -> bool:
    return any(isinstance(node, LaunchNode) and len(node.variants) > 1 for node in (*plan.setup, *plan.nodes))


def held_bytes(plan: Plan) -> int:
    return sum(s.nbytes for s in plan.storages)


def rejected(rejection: Rejection, derived: str = "") -> Stopped | FailedAtDerived:
    """What to raise; `derived` names the derived set that it is, or may be, about: its reason then names that set, too."""
    if not derived:
        return Stopped(rejection)
    named = f"{derived} shapes" in rejection.reason
    return FailedAtDerived(rejection if named else replace(rejection, reason=f"On {derived} shapes: {rejection.reason}"))


def took_too_long(judged: Judged) -> bool:
    """Whether the interpreter gave up, perhaps at the full set: that says nothing of the candidate."""
    too_large = isinstance(judged.rejection, Unable) and judged.rejection.status in (Status.TIMEOUT, Status.NEEDS_GPU)
    return too_large and judged.input_set in (FULL, "")


def needs_gpu(reason: str) -> Rejection:
    return Rejection(Status.NEEDS_GPU, reason)
