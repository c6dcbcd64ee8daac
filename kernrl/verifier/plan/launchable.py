"""What of a plan can be launched once its kernels are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernrl.verifier.base.devices import device_for
from kernrl.verifier.base.progress import Stopped
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import LaunchNode, Node, Plan

_MULTIPLIES_NOTHING = bytes.fromhex("f079ff3f00000000")
"""The first half of Hopper's `HGMMA RZ, gdesc[URZ], RZ, !UPT`: a product of nothing with nothing. ptxas 12.8, which Triton 3.6
and 3.7 bring, writes it for every `tl.dot` of some loops that it unrolls: of float32 operands and three turns, as was seen."""


def check_compiled(kernel: CompiledKernel, parameters: tuple[str, ...]) -> Rejection | None:
    """None if a compiled kernel can be launched on its target and does what its IR says, as far as is known: its shared memory,
    threads, parameters and products are checked.

    `parameters`: the types that its IR states.
    """
    device = device_for(kernel.target)
    if device is not None and kernel.shared_bytes > device.shared_bytes:
        reason = (
            f"{kernel.name} needs {kernel.shared_bytes} bytes of shared memory, and {kernel.target} has {device.shared_bytes}"
        )
        return Rejection(Status.COMPILE_ERROR, f"{reason}: use smaller blocks or fewer stages.")
    if kernel.num_warps > 32:
        return Rejection(Status.COMPILE_ERROR, f"{kernel.name} runs {kernel.num_warps} warps, and a block holds 32.")
    if _MULTIPLIES_NOTHING in kernel.cubin:
        reason = f"ptxas loses the products of {kernel.name}, and its results would be zeros: it unrolls a short loop wrongly"
        remedy = "take another block size along the depth, or pass the depth as an argument that is not tl.constexpr"
        return Rejection(Status.COMPILE_ERROR, f"{reason}; {remedy}.")
    if kernel.parameters != parameters:
        return Rejection(Status.INFRA_ERROR, f"{kernel.name}: the compiler's parameters are not those of its IR.")
    return None


def launchable(plan: Plan, compiled: Sequence[CompiledKernel | Rejection]) -> tuple[Plan, list[CompiledKernel]]:
    """The plan without the variants that its target cannot run (autotuning skips them, too), and the kernels it still needs.

    Raises Stopped if a launch has no variant left.
    """
    number: dict[int, int] = {}
    kernels: list[CompiledKernel] = []
    objections: dict[int, Rejection] = {}
    for old, (kernel, source) in enumerate(zip(compiled, plan.kernels, strict=True)):
        if isinstance(kernel, Rejection):
            objections[old] = kernel
        elif (objection := check_compiled(kernel, source.parameters)) is not None:
            objections[old] = objection
        else:
            number[old] = len(kernels)
            kernels.append(kernel)

    def keep(node: Node) -> Node:
        if not isinstance(node, LaunchNode):
            return node
        variants = tuple(replace(v, kernel=number[v.kernel]) for v in node.variants if v.kernel in number)
        if not variants:
            raise Stopped(objections[node.variants[0].kernel])
        return LaunchNode(variants)

    setup, nodes = tuple(map(keep, plan.setup)), tuple(map(keep, plan.nodes))
    sources = tuple(source for old, source in enumerate(plan.kernels) if old in number)
    return replace(plan, setup=setup, nodes=nodes, kernels=sources), kernels
