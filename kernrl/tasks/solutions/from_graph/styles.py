"""Every worked solution of a task, written from its Graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernrl.errors import UsageError
from kernrl.tasks.graph.algebra.simplify import saves, simplify
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.solutions.from_graph.answer import Source, read_source, write_answer
from kernrl.tasks.solutions.from_graph.codegen.kernels import Choice
from kernrl.tasks.solutions.from_graph.codegen.products import ProductChoice
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError
from kernrl.tasks.solutions.from_graph.write_forward import Style, write_forward
from kernrl.tasks.task import FULL, Solution, Task

WINDOWS = ProductChoice(windows=True)
DESCRIBED = ProductChoice(described=True)
LEAN = Choice(several=True, lean=True, block=512)
LEAN_PARTS = Choice(several=True, split=4096, lean=True, block=512)
STYLES: tuple[Style, ...] = (
    Style("fused"),
    Style("fused-rows", choice=Choice(several=True)),
    Style("fused-walk", merged=True, choice=Choice(whole=0)),
    Style("fused-passes", choice=Choice(whole=0)),
    Style("fused-persistent", choice=Choice(persistent=True)),
    Style("fused-wide", choice=Choice(block=4096)),
    Style("chain", choice=Choice(stages=3)),
    Style("chain-online", merged=True, choice=Choice(whole=0, stages=3)),
    Style("stats", mode="stats", merged=True),
    Style("split", mode="stats", merged=True, choice=Choice(split=512)),
    Style("unfused", mode="unfused", bare="none"),
    Style("bare", bare="all"),
    Style("channels-last", channels_last=True),
    Style("channels-last-split", mode="stats", merged=True, channels_last=True, choice=Choice(split=512)),
    Style("conv", channels_last=True, choice=LEAN, product=WINDOWS),
    Style("conv-second", channels_last=True, choice=LEAN, product=replace(WINDOWS, rank=1)),
    Style("conv-split", mode="stats", merged=True, channels_last=True, choice=LEAN_PARTS, product=WINDOWS),
    Style("last", channels_last=True, pads=True, levels=True, choice=LEAN),
    Style("rows", pads=True, levels=True, choice=LEAN),
    Style("tile", pads=True, tiles=True, choice=LEAN),
    Style("parts", mode="stats", merged=True, pads=True, choice=LEAN_PARTS),
    Style("last-parts", mode="stats", merged=True, channels_last=True, pads=True, choice=LEAN_PARTS),
    Style("direct", pads=True, levels=True, direct=True, choice=LEAN),
    Style("direct-parts", mode="stats", merged=True, pads=True, direct=True, choice=LEAN_PARTS),
    Style("dot", bare="all", choice=LEAN, product=ProductChoice()),
    Style("dot-second", bare="all", choice=LEAN, product=ProductChoice(rank=1)),
    Style("dot-persistent", bare="all", choice=LEAN, product=ProductChoice("persistent")),
    Style("dot-parts", bare="all", choice=LEAN, product=ProductChoice("split")),
    Style("dot-stats", mode="stats", merged=True, bare="all", choice=LEAN, product=ProductChoice()),
    Style("dot-described", bare="all", choice=LEAN, product=DESCRIBED),
    Style("dot-described-persistent", bare="all", choice=LEAN, product=replace(DESCRIBED, kind="persistent")),
    Style("dot-described-parts", bare="all", choice=LEAN, product=replace(DESCRIBED, kind="split")),
    Style("algebra", bare="none", choice=Choice(several=True), algebra=True),
    Style("algebra-split", mode="stats", merged=True, bare="none", choice=Choice(split=512), algebra=True),
)
"""What is tried; styles that come to the same text are one."""

TAUGHT = tuple(style for style in STYLES if style.taught)
"""What nano's replies are written in."""


def graphs_of(task: Task) -> tuple[Graph, ...]:
    """The Graph of a task at each of its input sets, the full one first; sets at which it is another are left out.

    Raises:
        LiftError: The task cannot be lifted.
    """
    from kernrl.tasks.graph.lift import lift  # which imports torch.export; who writes of Graphs alone needs none of it

    full = lift(task)
    found = [full]
    for input_set in task.input_sets:
        if input_set.name != FULL:
            try:
                graph = lift(task, input_set)
            except UsageError:
                continue
            if _parallel(full, graph):
                found.append(graph)
    return tuple(found)


def _parallel(one: Graph, other: Graph) -> bool:
    """The same ops on the same values."""
    if len(one.nodes) != len(other.nodes) or len(one.parameters) != len(other.parameters):
        return False
    pairs = zip(one.nodes, other.nodes, strict=True)
    return all(a.op == b.op and a.reads == b.reads and len(a.value.shape) == len(b.value.shape) for a, b in pairs)


def has_channels(graph: Graph, style: Style) -> bool:
    """Some convolution that a style reads with the channels innermost: one of images, where it is left to a library."""
    return any(n.kind == "convolution" and (style.product is not None or n.op[-2] != "1") for n in graph.nodes)


def write_solution(source: Source, graphs: Sequence[Graph], style: Style, precision: str = "fp32") -> Solution:
    """One solution. Raises CannotWriteError."""
    arguments = [source.argument(i) for i in graphs[0].inputs]
    answer = write_forward(graphs, style, arguments, source.taken, source.functional, precision=precision)
    words = dict.fromkeys([*style.name.split("-"), *answer.traits])
    return Solution("-".join(words), write_answer(source, answer))


def simplified(graphs: Sequence[Graph], precision: str = "fp32") -> tuple[Graph, ...]:
    """The Graphs of a task with less to do, alike at every input set; none where algebra saves nothing worth having."""
    found = tuple(simplify(graph, half=precision in ("bf16", "fp16"))[0] for graph in graphs)
    alike = found[0] != graphs[0] and all(_parallel(found[0], other) for other in found[1:])
    return found if alike and saves(graphs[0], found[0]) else ()


def write_solutions(task: Task, styles: Sequence[Style] = STYLES, *, algebra: bool = True) -> tuple[Solution, ...]:
    """Every worked solution of a task; none where there is no rule for it.

    Args:
        algebra: Also those that do fewer operations than the task asks for; their style has the word `algebra`.

    Raises:
        LiftError: The task cannot be lifted.
    """
    graphs, found = graphs_of(task), {}
    simple = simplified(graphs, task.precision) if algebra else ()
    try:
        source = read_source(task.pytorch_code)
    except CannotWriteError:
        return ()
    for style in styles:
        mine = simple if style.algebra else graphs
        if not mine or (style.channels_last and not has_channels(mine[0], style)):
            continue
        try:
            solution = write_solution(source, mine, style, task.precision)
        except CannotWriteError:
            continue
        found.setdefault(solution.triton_code, solution)
    return tuple(found.values())
