"""What a style would cost, from its text alone: which styles of a task are worth judging, and in which order.

The model: every kernel moves what it loads and stores once for each load in its text; a kernel with few programs gets its share
of the bandwidth, and one with very many small ones waits for each; library calls run at the vendor's rate, and `tl.dot` at a
share of it, for whole waves of tiles. Kernels of a kind then take a factor of that, which was fitted to measured times. It
orders styles. It predicts no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernrl.tasks.graph.costs import Rates, node_flops
from kernrl.tasks.graph.graph import ITEM_BYTES, Graph
from kernrl.tasks.solutions.from_graph.codegen.assembly import Kernel
from kernrl.tasks.solutions.from_graph.codegen.split_reductions import MULTIPROCESSORS
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op, Program
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError
from kernrl.tasks.solutions.from_graph.styles import STYLES, has_channels, simplified
from kernrl.tasks.solutions.from_graph.write_forward import Answer, Style, write_forward

LAUNCH_S = 6e-6
"""What a launch costs, with the start and the end of its kernel; fitted with the factors below."""
FILLING_PROGRAMS = 264
"""Two programs for each of some 132 multiprocessors: fewer do not reach the memory's bandwidth."""
L2_BYTES = 30 << 20
"""What is loaded a second time comes from the cache where it is smaller than this, at a fraction of the cost."""
CACHED_SHARE = 0.25
DOT_SHARE = {"fp32": 0.3}
OTHER_DOT_SHARE = 0.75
"""What `tl.dot` reaches of the vendor's rate: 0.72 to 0.79 was measured on an H200 under tf32, with `ieee` far less."""
PROGRAM_S, MOST_WARPS, MOST_PROGRAMS = 1.3e-6, 64, 32
"""How long a program takes at least, from its first load to its store, and how many share a multiprocessor."""
FACTORS = {
    "described": 1.9, "product": 3.0, "turned": 1.9, "tile": 2.3, "loop": 1.9, "narrow": 0.6, "welford": 1.7, "walk": 1.35,
    "rows": 1.5, "pointwise": 0.93, "whole": 1.05,
    "convolution call": 5.5, "product call": 1.7, "other call": 1.0,
}  # fmt: skip
"""How many times longer kernels and calls of a kind take than they should; fitted to 4,315 measured times of the styles of 398
tasks on an H200, under tf32 and bf16 (docs/notes/2026-11-27-fitted-model.md)."""
TURNED_S = 1.4
"""By how much cuDNN on tensor cores is slower with the channels outermost: 1.1 to 1.6 times were measured on an H200."""


def modelled_s(graphs: Sequence[Graph], style: Style, rates: Rates, *, precision: str = "fp32") -> float:
    """Modelled seconds of a style of a task.

    Args:
        graphs: `graphs_of(task)`.

    Raises:
        CannotWriteError: The task cannot be written in this style.
    """
    mine = simplified(graphs, precision) if style.algebra else tuple(graphs)
    if not mine or (style.channels_last and not has_channels(mine[0], style)):
        raise CannotWriteError("the style has nothing to say about this task")
    arguments = [i.value.name for i in mine[0].inputs]
    taken = {"torch", "triton", "tl", "F", "self"}
    answer = write_forward(mine, style, arguments, taken, "F", precision=precision)
    return answer_s(answer, rates, precision, channels_last=style.channels_last)


def answer_s(answer: Answer, rates: Rates, precision: str, *, channels_last: bool) -> float:
    """Modelled seconds of an answer."""
    program = answer.program
    assert program is not None
    half = 0.5 if precision in ("bf16", "fp16") else 1.0
    total = sum(_call_s(op, program, rates, half, channels_last or precision == "fp32") for op in answer.calls)
    for kernel in answer.kernels:
        dot = rates.product_flops_per_s * DOT_SHARE.get(precision, OTHER_DOT_SHARE)
        total += _kernel_s(kernel, program, rates, half, dot)
    return total


def plausible(
    graphs: Sequence[Graph], rates: Rates, *, precision: str = "fp32", styles: Sequence[Style] = STYLES, within: float = 3.0
) -> list[tuple[Style, float]]:
    """The styles that a task can be written in, with their modelled seconds, best first; none `within` times slower than it."""
    found = []
    for style in styles:
        try:
            found.append((style, modelled_s(graphs, style, rates, precision=precision)))
        except CannotWriteError:
            continue
    found.sort(key=lambda pair: pair[1])
    return [pair for pair in found if pair[1] <= within * found[0][1]]


def _bytes(value: str, program: Program, half: float) -> float:
    shape = program.shapes.get(value)
    if shape is None:
        return 0.0  # parts of a split reduction
    size = ITEM_BYTES.get(program.dtypes[value], 1)
    return prod(s[0] for s in shape) * size * (half if program.dtypes[value] == "float32" else 1.0)


def _kernel_s(kernel: Kernel, program: Program, rates: Rates, half: float, dot: float) -> float:
    partials = 8 * kernel.split * kernel.elements if kernel.split > 1 else 0  # float32: written, and read by the next kernel
    # they are moved when no product is under way any more; but the factor of products by pointers was fitted without this
    moved, behind = (0, partials) if kernel.descriptors else (partials, 0)
    moved += sum(_bytes(value, program, half) for value in kernel.writes)
    for value in dict.fromkeys(kernel.reads):
        if value in kernel.writes:
            continue
        once, times = _bytes(value, program, half), kernel.source.count(f"tl.load({value}_ptr")
        if "static_range" not in kernel.source:  # of a slice, a part is read
            once = min(once, kernel.elements * 4 * half)
        again = CACHED_SHARE if once < L2_BYTES else 1.0
        moved += once * (1 + again * max(0, times - 1))
    share = min(1.0, kernel.programs / FILLING_PROGRAMS) if kernel.programs else 1.0
    warps = int(kernel.constants.get("num_warps", 4))
    at_once = MULTIPROCESSORS * min(MOST_PROGRAMS, MOST_WARPS // warps)
    seconds = max(
        moved / (rates.bytes_per_s * max(share, 1 / FILLING_PROGRAMS)),
        kernel.product_flops / dot,
        kernel.programs * PROGRAM_S / at_once,
    )
    return seconds * FACTORS[_kind(kernel)] + behind / rates.bytes_per_s * FACTORS["pointwise"] + LAUNCH_S


def _kind(kernel: Kernel) -> str:
    """Which of `FACTORS` a kernel takes: by what its style does that others do not."""
    if kernel.product_flops:
        return "described" if kernel.descriptors else "product"
    named = next(
        (trait for trait in ("turned", "tile", "loop", "narrow", "welford", "walk", "rows") if trait in kernel.traits), ""
    )
    return named or ("pointwise" if "whole" not in kernel.traits and "reduce" not in kernel.name else "whole")


def _call_s(op: Op, program: Program, rates: Rates, half: float, plain: bool) -> float:
    node = program.graph.nodes[op.node]
    moved = sum(_bytes(v, program, half) for v in (*op.reads, *op.results))
    flops = node_flops(program.graph, node)
    is_product = node.kind in ("product", "convolution")
    seconds = rates.seconds(int(moved), flops if is_product else 0, 0 if is_product else flops)
    slow = node.kind == "convolution" and node.op[-2] != "1" and not plain
    factor = FACTORS[f"{node.kind if is_product else 'other'} call"]
    return seconds * factor * (TURNED_S if slow else 1.0) + LAUNCH_S
