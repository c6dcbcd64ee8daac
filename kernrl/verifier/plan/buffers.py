"""Bytes that a Plan's buffers take on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import ITEM_BYTES, AtenNode, LaunchNode, Node, Plan


def memory_bytes(plan: Plan, kernels: Sequence[CompiledKernel]) -> int:
    """GPU memory that a plan needs at most: every storage, and the scratch memory of its compiled kernels."""
    return sum(storage.nbytes for storage in plan.storages) + sum(scratch_bytes(plan, kernels))


def temporary_bytes(plan: Plan, kernels: Sequence[CompiledKernel]) -> int:
    """The part of `memory_bytes` that is the candidate's own: without inputs and parameters."""
    own = sum(storage.nbytes for storage in plan.storages if storage.kind == "temp")
    return own + sum(scratch_bytes(plan, kernels))


def library_bytes(plan: Plan) -> int:
    """The part of `temporary_bytes` that forward's library calls return."""
    made = {ref.storage for node in plan.nodes if isinstance(node, AtenNode) for ref in node.outputs if ref is not None}
    return sum(plan.storages[i].nbytes for i in made if plan.storages[i].kind == "temp")


def output_bytes(plan: Plan) -> int:
    """Bytes of the outputs, contiguous and each aligned, as they are handed to the judge."""
    return sum(-(-ref.numel * ITEM_BYTES[ref.dtype] // 256) * 256 for ref in plan.outputs)


def scratch_bytes(plan: Plan, kernels: Sequence[CompiledKernel]) -> list[int]:
    """Bytes of global scratch for each kernel's largest launch."""
    nodes = (*plan.setup, *plan.nodes)
    return [
        kernel.global_scratch_bytes * max((_programs(node, k) for node in nodes), default=0) for k, kernel in enumerate(kernels)
    ]


def _programs(node: Node, kernel: int) -> int:
    """Largest number of programs of one kernel that a node launches."""
    if not isinstance(node, LaunchNode):
        return 0
    return max((v.grid[0] * v.grid[1] * v.grid[2] for v in node.variants if v.kernel == kernel), default=0)
