"""Runs worked replies of nano in the process of `interpreted.py`: a seed is answered with what is wrong with each reply.
`of_one/3` is a seed too: of a Graph whose first step is that one; and `in rows/3`: of a Graph that can be written in that
style, which it is.

Each Graph is drawn at small sizes that are all unlike; its module holds its parameters under their own names. Truth is
`graph/run.py` in float64.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

from kernrl.tasks.graph import run as graph_run
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.sample import Draft, product, sample
from kernrl.tasks.nano.assemble import assemble
from kernrl.tasks.nano.distinct_axes import at_distinct_sizes
from kernrl.tasks.nano.draw import draw_graphs
from kernrl.tasks.nano.draw.draw_branches import outputs
from kernrl.tasks.nano.draw.draw_wide import product as product_of_any_kind
from kernrl.tasks.nano.graph_pairs import PRECISIONS, GraphPair, graph_pairs
from kernrl.tasks.nano.listing import words_of
from kernrl.tasks.nano.reply import write_reply
from kernrl.tasks.solutions.from_graph.answer import read_source
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError
from kernrl.tasks.solutions.from_graph.styles import TAUGHT, has_channels
from kernrl.tasks.solutions.run_solutions import load_module


def start(d: Draft) -> None:
    rng = d.rng
    sizes = rng.choice(((3, 24), (5, 16, 12), (2, 8, 7, 9), (3, 8, 16), (2, 4, 6, 7, 8), (2, 4, 9, 6)))
    d.x = d.input(*sizes)


def start_image(d: Draft) -> None:
    d.x = d.input(*d.rng.choice(((2, 8, 5, 6), (2, 4, 6, 5))))


def start_wide(d: Draft) -> None:
    d.x = d.input(*d.rng.choice(((1200, 96), (1000, 300), (24, 4000), (40, 2048))))


def module_of(graph) -> str:
    lines = [
        f"        self.p{i} = nn.{'Parameter' if p.kind == 'parameter' else 'Buffer'}(torch.empty({list(p.value.shape)}))"
        for i, p in enumerate(graph.parameters)
    ]
    arguments = ", ".join(["self", *(x.value.name for x in graph.inputs)])
    body = "\n".join(lines) or "        pass"
    return (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        f"{body}\n\n    def forward({arguments}):\n        return x0\n"
    )


def off(out, truth) -> float:
    """Distance in the root mean square, over the truth's own size."""
    if out.shape != truth.shape:
        return float("inf")
    scale = truth.double().pow(2).mean().sqrt()
    return float((out.double() - truth.double()).pow(2).mean().sqrt() / (scale + 1e-6))


def begun_with(name: str, rng: Random) -> Graph:
    """A Graph that begins with the step of this name, or with a product and that step where it needs a value of before."""
    step = next(step for step in draw_graphs.STEPS if getattr(step, "__name__", "") == name)
    fits: list[bool] = []

    def first(d: Draft) -> str | None:
        found = step(d)
        if found is None:
            d.x = product(d) or d.x
            found = step(d)
        fits.append(found is not None)
        return found

    for _ in range(100):
        graph = sample(rng, rng.randint(1, 8), start=start, first=first, steps=draw_graphs.STEPS, outputs=outputs, most=1 << 16)
        if fits and fits[-1]:
            return graph
    raise AssertionError(f"{name} fits nothing")


def written_in(name: str, rng: Random) -> tuple[Graph, str]:
    """A Graph that can be written in the style of this name, and its reply."""
    style = next(style for style in TAUGHT if style.name == name)
    for _ in range(400):
        begin, most = start, 1 << 16
        if style.channels_last:
            begin = start_image
        elif style.product and style.product.kind != "plain":  # enough tiles, or long enough sums, for it to be worth while
            begin, most = start_wide, 1 << 20
        first = product_of_any_kind if style.product or style.channels_last or rng.random() < 0.5 else None
        graph = sample(rng, rng.randint(1, 4), start=begin, first=first, steps=draw_graphs.STEPS, outputs=outputs, most=most)
        graphs = at_distinct_sizes(graph)
        if style.channels_last and any(max(p.value.shape[2:], default=0) > 4 for p in graph.parameters):
            continue  # a wide window takes the interpreter many seconds
        if len(graphs) > 1 and (not style.channels_last or has_channels(graphs[0], style)):
            with suppress(CannotWriteError):
                return graph, write_reply(graphs, style, rng.choice(PRECISIONS))
    raise AssertionError(f"{name} fits nothing")


@torch.no_grad()
def answer(seed: int | str, folder: Path) -> list[str]:
    rng = Random(f"small/{seed}")
    pairs: list[GraphPair] = []
    if isinstance(seed, str) and seed.startswith("in "):
        graph, reply = written_in(seed[3:].partition("/")[0], rng)
        pairs = [GraphPair("", reply, graph.composition)]
    elif isinstance(seed, str):
        graph = begun_with(seed.partition("/")[0], rng)
    else:
        first = product if rng.random() < 0.3 else None
        graph = sample(rng, rng.randint(1, 8), start=start, first=first, steps=draw_graphs.STEPS, outputs=outputs, most=1 << 16)
    graph = replace(graph, parameters=tuple(replace(p, path=f"p{i}") for i, p in enumerate(graph.parameters)))
    torch.manual_seed(int(str(seed).rpartition("/")[2]))
    inputs = [torch.randn(x.value.shape) for x in graph.inputs]
    held = {p.path: torch.rand(p.value.shape) + 0.3 for p in graph.parameters}
    double = {k: v.double() for k, v in held.items()}
    truths = graph_run.run(graph, [x.double() for x in inputs], double, double=True)
    singles = graph_run.run(graph, inputs, held)
    source, words, found = read_source(module_of(graph)), words_of(at_distinct_sizes(graph)), []
    for i, pair in enumerate(pairs or graph_pairs(rng, graph)):
        where = f"{seed}.{i}"
        try:
            module = load_module(assemble(source, graph, words, pair.reply), folder / f"m{i}.py")
            model = module.ModelNew()
            model.load_state_dict(held)
            given = model(*(x.clone() for x in inputs))
            outs = given if isinstance(given, tuple) else (given,)
            for out, truth, single in zip(outs, truths, singles, strict=True):
                if not truth.is_floating_point():  # places of the largest
                    assert torch.equal(out, single)
                    continue
                wrong, eager = off(out, truth), off(single, truth)
                if truth.isfinite().all() and not wrong <= 4 * eager + 2e-5:
                    found.append(f"{where} off by {wrong:.2g}, eager {eager:.2g}\n{pair.prompt}\n{pair.reply}")
                    break
            else:
                found.append("")
        except Exception as error:
            found.append(f"{where} {type(error).__name__}: {error}\n{pair.prompt}\n{pair.reply}")
    return found
