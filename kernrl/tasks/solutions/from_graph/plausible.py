"""What a style would cost, from its text alone: which styles of a task are worth judging, and in which order.

The model: every kernel moves what it loads and stores once for each load in its text; a kernel with few programs gets its share
of the bandwidth, and one with very many small ones waits for each. Convolutions of the library run at the vendor's rate, and
those that are written at a share of it. Products take whole waves of tiles (`clocks`), in the library of the best tiles there
are. Kernels of a kind then take a factor of that, which was fitted to measured times. It orders styles. It predicts no times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import hypot, prod

from kernrl.tasks.graph.costs import Rates, node_flops
from kernrl.tasks.graph.graph import ITEM_BYTES, Graph
from kernrl.tasks.solutions.from_graph.codegen.assembly import Kernel
from kernrl.tasks.solutions.from_graph.codegen.split_reductions import MULTIPROCESSORS
from kernrl.tasks.solutions.from_graph.codegen.tile_sizes import clock_flops, fewest_clocks
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
WINDOW_SHARE = {"fp32": 0.3}
OTHER_WINDOW_SHARE = 0.75
"""What `tl.dot` reaches of the vendor's rate in a convolution; with `ieee` it is far less."""
LIBRARY, DESCRIBED, POINTERS, IEEE, TURNED = 1.1, 1.2, 1.35, 4.0, 2.5
"""How many times longer products take than their tiles should: of the library, and as kernels that load by descriptors, by
pointers, and by pointers for `ieee`, as in `FACTORS`. By pointers, 32-bit operands with another axis innermost than the depth
are turned in registers, and take as many times longer again: 2 to 4 was measured."""
FUNCTION = re.compile(r"\b(?:libdevice\.\w+|tl\.(?:exp2?|log2?|sigmoid|softmax|erf|r?sqrt|sin|cos)\b)")
FUNCTION_S = 3e-12
"""What a function of an element takes in the tail of a product, for which a tile has few threads."""
PROGRAM_S, MOST_WARPS, MOST_PROGRAMS = 1.3e-6, 64, 32
"""How long a program takes at least, from its first load to its store, and how many share a multiprocessor."""
FACTORS = {
    "window": 3.0, "turned": 1.9, "tile": 2.3, "loop": 1.9, "narrow": 0.6, "welford": 1.7, "walk": 1.35,
    "rows": 1.5, "pointwise": 0.93, "whole": 1.05,
    "convolution call": 5.5, "other call": 1.0,
}  # fmt: skip
"""How many times longer kernels and calls of a kind take than they should; fitted to 4,315 measured times of the styles of 398
tasks on an H200, under tf32 and bf16 (docs/notes/2026-11-27-fitted-model.md, 2026-11-28-products-in-parts.md)."""
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
    total = 0.0
    for op in answer.calls:
        if program.graph.nodes[op.node].kind == "product":
            total += _called_product_s(op, program, rates, half, precision)
        else:
            total += _call_s(op, program, rates, half, channels_last or precision == "fp32")
    for kernel in answer.kernels:
        if kernel.product_clocks:
            total += _product_s(kernel, program, rates, half, precision)
        else:
            dot = rates.product_flops_per_s * WINDOW_SHARE.get(precision, OTHER_WINDOW_SHARE)
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
    moved = sum(_bytes(value, program, half) for value in kernel.writes)
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
    return seconds * FACTORS[_kind(kernel)] + LAUNCH_S


def _product_s(kernel: Kernel, program: Program, rates: Rates, half: float, precision: str) -> float:
    read = sum(_bytes(value, program, half) for value in kernel.reads if value not in kernel.writes)
    factor = IEEE if precision == "fp32" else DESCRIBED if kernel.descriptors else POINTERS * (TURNED if kernel.turned else 1.0)
    tail = FUNCTION_S * kernel.elements * len(FUNCTION.findall(kernel.source))
    return _multiplying_s(kernel.product_clocks, read, rates, precision) * factor + tail + LAUNCH_S


def _called_product_s(op: Op, program: Program, rates: Rates, half: float, precision: str) -> float:
    shape, right = ([size[0] for size in program.shapes[value]] for value in (op.value, op.reads[1]))
    flops, read = node_flops(program.graph, program.graph.nodes[op.node]), sum(_bytes(v, program, half) for v in op.reads)
    batch = prod(shape[:-2]) if len(right) > 2 else 1
    n = shape[-1] if shape else 1
    m = prod(shape) // max(1, n * batch)
    k = flops // max(1, 2 * m * n * batch)
    if not min(m, n, k, batch):
        return LAUNCH_S
    return _multiplying_s(fewest_clocks(m, n, k, batch, precision), read, rates, precision) * LIBRARY + LAUNCH_S


def _multiplying_s(clocks: float, read: float, rates: Rates, precision: str) -> float:
    """How long multiplying takes beside loading: neither hides the other entirely."""
    hz = rates.product_flops_per_s / (clock_flops(precision) * MULTIPROCESSORS)
    return hypot(clocks / hz, read / rates.bytes_per_s)


def _kind(kernel: Kernel) -> str:
    """Which of `FACTORS` a kernel takes: by what its style does that others do not."""
    if kernel.product_flops:
        return "window"
    named = next(
        (trait for trait in ("turned", "tile", "loop", "narrow", "welford", "walk", "rows") if trait in kernel.traits), ""
    )
    return named or ("pointwise" if "whole" not in kernel.traits and "reduce" not in kernel.name else "whole")


def _call_s(op: Op, program: Program, rates: Rates, half: float, plain: bool) -> float:
    node = program.graph.nodes[op.node]
    moved = sum(_bytes(v, program, half) for v in (*op.reads, *op.results))
    flops = node_flops(program.graph, node)
    convolution = node.kind == "convolution"
    seconds = rates.seconds(int(moved), flops if convolution else 0, 0 if convolution else flops)
    slow = convolution and node.op[-2] != "1" and not plain
    factor = FACTORS["convolution call" if convolution else "other call"]
    return seconds * factor * (TURNED_S if slow else 1.0) + LAUNCH_S
