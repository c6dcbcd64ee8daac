"""Kernels follow the order in memory of what they read and write: threads side by side touch neighbouring addresses."""

from __future__ import annotations

import re

import pytest
from support import EXHAUSTIVE
from support.graph_tasks import ask

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.solutions.from_graph.codegen.kernels import Kernel
from kernrl.tasks.solutions.from_graph.styles import STYLES, graphs_of, write_solutions
from kernrl.tasks.solutions.from_graph.write_forward import write_forward
from kernrl.tasks.task import Task


def frames(init: str, forward: str, features: int = 65, inputs: str = "torch.randn(clips, steps, features)") -> str:
    """A task of clips of frames, the features of a frame innermost in memory."""
    return f"""
import torch
from torch import nn
import torch.nn.functional as F

clips, steps, features = 3, 37, {features}


class Model(nn.Module):
    def __init__(self, C):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [features]
"""


TAPS = "self.l = nn.Conv1d(C, C, {0}, groups=C)"
ALONG = {
    "between_layers": frames(
        "self.a = nn.Linear(C, 2 * C); self.l = nn.Conv1d(C, C, 9, padding=4, groups=C); self.b = nn.Linear(C, C)",
        "y = F.glu(self.a(F.layer_norm(x, x.shape[2:]))); return x + 0.5 * self.b(F.mish(self.l(y.mT).mT))",
    ),
    "two_layers": frames(
        "self.l = nn.Conv1d(C, C, 9, padding=4, groups=C); self.b = nn.Linear(C, C); self.c = nn.Linear(C, 7)",
        "y = self.l(x.mT).mT.relu(); return self.b(y) * 2, self.c(y).exp()",
    ),
    "of_one_number": frames(
        "self.l = nn.Conv1d(C, C, 9, padding=4, groups=C)", "return self.l(x.exp().mT).mT.sin()", features=1
    ),
    "steps": frames(TAPS.format("9, stride=2, dilation=3, padding=7"), "return self.l(x.mT).mT.tanh() - 1"),
    "no_edge": frames(TAPS.format("10"), "return self.l(x.mT).mT.exp()", features=64),
    "pairs": frames(TAPS.format("2, padding=1"), "return self.l(x.mT).mT.exp()", features=520),
    "pad": frames(TAPS.format("9"), "y = F.pad(x.mT, (8, 0), mode='replicate'); return self.l(y).mT.relu() + x"),
    "pool": frames("pass", "return F.avg_pool1d(x.mT, 9, 1, 4).mT.exp(), F.max_pool1d(x.mT, 10, 3, 5).mT * 2"),
    "less_its_surroundings": frames("pass", "y = x.mT; return (y - F.avg_pool1d(y, 11, 1, 5)).tanh().mT"),
    "image": frames(
        "self.l = nn.Conv2d(C, C, (3, 9), padding=(1, 4), groups=C); self.b = nn.Linear(C, 5)",
        "return self.b(self.l(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).relu())",
        inputs="torch.randn(clips, 5, 11, features)",
    ),
    "statistics_of_features": frames(
        "self.l = nn.Linear(C, 40); self.n = nn.BatchNorm1d(40); self.b = nn.Linear(40, 5)",
        "y = F.relu6(self.n(self.l(x).transpose(1, 2))).transpose(1, 2); return self.b(y).softmax(2).mT",
    ),
}
"""Name → source in which all large tensors have their features innermost, but for some results of the last one."""
TURNED = {
    "taps": frames(TAPS.format("9, padding=4"), "return self.l(x.mT).tanh()"),
    "taps_beside_it": frames(TAPS.format("9, padding=4"), "return (self.l(x.mT) + x.mT).tanh()"),
    "less_its_surroundings": frames("pass", "y = x.mT; return (y - F.avg_pool1d(y, 11, 1, 5)).tanh()"),
    "pad": frames("pass", "return F.pad(x.mT, (4, 3), mode='reflect').tanh() * 2"),
    "layer": frames(
        "self.l = nn.Conv1d(C, C, 3, padding=1); self.b = nn.Linear(C, C)", "return self.b(self.l(x.mT).mT.tanh()).exp()"
    ),
}
"""Name → source that reads one order and writes another."""
CASES = [(kind, name) for kind, sources in (("along", ALONG), ("turned", TURNED)) for name in sources]
SOURCES = {"along": ALONG, "turned": TURNED}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_they_are_right(kind: str, name: str) -> None:
    # small sizes are full ones with less of each
    request = {"source": SOURCES[kind][name], "sets": ["full", "small", "ragged"] if EXHAUSTIVE else ["full", "ragged"]}
    (found,) = ask([request | {"styles": ["direct", "direct-parts", "rows", "parts"]}])
    assert found
    assert not [(one, problem) for one, _, problem in found if problem]


def code_of(source: str, style: str) -> str:
    (solution,) = write_solutions(with_input_sets(Task("t", source)), [s for s in STYLES if s.name == style], algebra=False)
    return solution.triton_code


def strided(code: str) -> list[str]:
    """Loads and stores in which the next thread's address is not the next one; parameters are small, and left out."""
    found = []
    for kernel in code.split("@triton.jit\n")[1:]:

        def those(pattern: str, kernel: str = kernel) -> set[str]:
            return {m[1] for m in re.finditer(pattern, kernel, re.M)}

        inner = those(r"(\w+) = .*tl\.arange\(0, \w+\)(?:\[None, :\])?$")
        inner |= those(rf"(\w+) = (?:{'|'.join(inner)}) % .*$")
        inner |= those(rf"(at\w*) = .*\b(?:{'|'.join(inner)})\b.*$")
        for line in kernel.splitlines():
            place = re.search(r"tl\.(?:load|store)\(([vx]\d\w*_ptr \+ [^,]*)", line)
            if place and any(re.search(rf"\b{name} \* ", place[1]) for name in inner):
                found.append(line.strip())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("style", ["direct", "direct-parts"])
@pytest.mark.parametrize("name", [n for n in ALONG if n != "statistics_of_features"])
def test_features_stay_innermost(name: str, style: str) -> None:
    code = code_of(ALONG[name], style)
    assert not strided(code)
    assert ".permute(" not in code[code.index("def forward") :]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["between_layers", "steps", "no_edge", "pairs", "pad", "pool", "less_its_surroundings", "image"]
)
def test_windows_along_other_axes_have_tiles(name: str) -> None:
    """A vector of features would share nothing of what its windows read."""
    code = code_of(ALONG[name], "direct")
    kernels = [kernel for kernel in code.split("@triton.jit\n") if re.search(r"\bfor \w+ in (?:tl\.static_)?range\(", kernel)]
    assert kernels
    assert all("BLOCK_J" in kernel for kernel in kernels)


def kernels_of(source: str, style: str) -> dict[str, Kernel]:
    """Name → kernel as a style writes it, at the sizes that the source says alone."""
    task = Task("t", source)
    (chosen,) = [s for s in STYLES if s.name == style]
    graphs = graphs_of(task)
    answer = write_forward(graphs, chosen, ["x", "y"][: len(graphs[0].inputs)], {"self", "F", "torch", "tl", "triton"}, "F")
    return {kernel.name: kernel for kernel in answer.kernels}


BESIDE = {
    "written_and_summed": frames(
        "pass", "y = F.softplus(x); return y, y.mean(1)", inputs="torch.randn(20, 6000, features)", features=64
    ),
    "few_sets": frames("pass", "return x.softmax(2).sum(1)", inputs="torch.randn(9, 6000, features)", features=18),
    "one_set": frames("pass", "return x.exp().amax((0, 1))", inputs="torch.randn(31, 1700, features)", features=3),
}
"""Name → source of reductions over a long axis, whose sets are neighbours in memory, and few."""


@pytest.mark.parametrize("style", ["rows", "direct", "parts"])
@pytest.mark.parametrize("name", BESIDE)
def test_reductions_of_a_few_sets_have_enough_programs(name: str, style: str) -> None:
    found = kernels_of(BESIDE[name], style).values()
    large = [k for k in found if k.partials or not any("_part" in read for read in k.reads)]
    assert large
    assert min(k.programs for k in large) >= 50


def test_what_is_reduced_is_written_on_the_same_walk() -> None:
    (kernel,) = kernels_of(BESIDE["written_and_summed"].replace("randn(20", "randn(80"), "rows").values()
    assert kernel.source.count("tl.load(x0_ptr") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDE)
def test_few_sets_are_right(name: str) -> None:
    source = BESIDE[name].replace("6000", "900").replace("1700", "700")
    (found,) = ask([{"source": source, "sets": ["full", "ragged"], "styles": ["rows", "parts"]}])
    assert found
    assert not [(one, problem) for one, _, problem in found if problem]
