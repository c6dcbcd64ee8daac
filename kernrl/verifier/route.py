"""Which input sets are judged by the interpreter, and which on a GPU: decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from kernrl.tasks.task import FULL, RAGGED
from kernrl.verifier.plan.plan import LaunchNode, Plan

MOST_BYTES = 4 << 20
"""What a plan may hold to be interpreted beside a GPU: beyond that, compiling it for the GPU is the cheaper way."""


def interpreted(plans: Sequence[Plan], *, on_gpu: bool) -> dict[str, Plan]:
    """The plans, of those of a candidate, that the interpreter is asked about, by input set; the rest are the GPU's.

    Without a GPU, all but the full set. With one, the ragged set, whose kernels are no use but to be judged, and cost twice
    as much to compile as to interpret. Autotuned launches stay on the GPU: their configurations take turns at these shapes,
    and one may be wrong only where many programs run at once.
    """
    if not on_gpu:
        return {plan.input_set: plan for plan in plans if plan.input_set != FULL}
    return {
        plan.input_set: plan
        for plan in plans[:-1]  # the last is timed, and stays
        if plan.input_set == RAGGED and sum(s.nbytes for s in plan.storages) <= MOST_BYTES and not _tuned(plan)
    }


def _tuned(plan: Plan) -> bool:
    return any(isinstance(node, LaunchNode) and len(node.variants) > 1 for node in (*plan.setup, *plan.nodes))
