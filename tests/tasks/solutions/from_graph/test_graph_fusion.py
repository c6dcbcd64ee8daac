"""What shares a kernel: branches that meet, values that are read in slices, and long sets beside what is written of them."""

from __future__ import annotations

import re

import pytest
from support import graph_tasks
from support.graph_tasks import IMAGE, ROWS, ask

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.solutions.from_graph.styles import STYLES, write_solutions
from kernrl.tasks.task import Task


def module(init: str, forward: str, inputs: str, arguments: str = "self, x") -> str:
    """A task's source, of few pixels: there are many styles, and the interpreter is slow."""
    return graph_tasks.module(init, forward, inputs, arguments, B=2, H=9, W=10)


TWO = "self.a = nn.Linear(C, 9); self.b = nn.Linear(C, 9)"
SQUARE = "self.a = nn.Linear(C, C); self.b = nn.Linear(C, C)"
DOUBLE = "self.l = nn.Conv2d(C, 2 * C, 3, padding=1)"
TIMES = "y = self.l(x).sin() * torch.cat((x, x), 1); "
WIDE = "torch.randn(6, C, 60, 90)"
TALL = "torch.randn(3, 2100, 24)"
CASES = {
    "branches": (module(TWO, "f = self.a(x).sigmoid(); return f * self.b(x).tanh() + f", ROWS), "rows", 1),
    "branches_with_norms": (
        module(TWO, "return (F.normalize(self.a(x).relu(), dim=1) * F.normalize(self.b(x).exp(), dim=1)).sum(1)", ROWS),
        "rows",
        1,
    ),
    "one_branch_reduces": (module(TWO, "return self.a(x).softmax(1) * self.b(x).tanh()", ROWS), "rows", 1),
    "three_branches": (
        module(f"{TWO}; self.c = nn.Linear(C, 9)", "return self.a(x).sin() * self.b(x).cos() * self.c(x).exp()", ROWS),
        "rows",
        1,
    ),
    "one_after_the_other": (module(SQUARE, "f = self.a(x).sigmoid(); return f * self.b(f).tanh()", ROWS), "rows", 2),
    "turned": (module(SQUARE, "return self.a(x).exp() * self.b(x).sin().mT", "torch.randn(C, C)"), "rows", None),
    "rows_and_columns": (
        module(TWO, "p, q = self.a(x).exp(), self.b(x).sin(); return (p - p.mean(0)) * (q - q.mean(1, keepdim=True))", ROWS),
        "rows",
        None,
    ),
    "of_one_row_each": (module(TWO, "return self.a(x).exp() * self.b(x).sin()[:1]", ROWS), "rows", None),
    "first_half_is_a_tail": (
        module("self.l = nn.Linear(C, 32)", "a, b = self.l(x).sin().chunk(2, 1); return a.softmax(1), b.sum(1)", ROWS),
        "rows",
        None,
    ),
    "gate": (
        module(DOUBLE, "a, b = (self.l(x) * 2 + torch.cat((x, x), 1)).chunk(2, 1); return a * b.sigmoid()", IMAGE),
        "rows",
        1,
    ),
    "gate_of_a_norm": (
        module("self.n = nn.LayerNorm(12)", "a, b = self.n(x).chunk(2, -1); return a * b.tanh()", ROWS),
        "rows",
        2,
    ),
    "gates_apart": (
        module(DOUBLE, TIMES + "a, b = y.chunk(2, 1); return a.softmax(1), b.sum((2, 3))", IMAGE),
        "rows",
        None,
    ),
    "uneven_slices": (module(DOUBLE, "y = self.l(x).sin() * 3; return y[:, :5] * y[:, 7:12] + y[:, 5:6]", IMAGE), "rows", 1),
    "slices_that_overlap": (module(DOUBLE, TIMES + "return y[:, :9] * y[:, 5:14]", IMAGE), "rows", 2),
    "slices_that_are_broadcast": (
        module(DOUBLE, TIMES + "a, b = y.chunk(2, 1); return a[:, None] * b[:, :, None]", IMAGE),
        "rows",
        2,
    ),
    "slices_by_steps": (module(DOUBLE, TIMES + "return y[:, ::2] * y[:, 1::2]", IMAGE), "rows", None),
    "a_slice_and_all": (module(DOUBLE, TIMES + "return y[:, :12] * y[:, 12:], y", IMAGE), "rows", 2),
    "sums_beside_a_product": (module("pass", "y = F.softplus(x); return y.mT @ x, y.mean(1).exp()", TALL), "parts", 3),
    "batch_norm_of_a_sum": (
        module("self.n = nn.BatchNorm2d(C)", "y = x.exp() + z; return self.n(y).relu(), y", f"{WIDE}, {WIDE}", "self, x, z"),
        "parts",
        3,
    ),
}  # fmt: skip
"""Name → (source, a style, how many kernels it comes to; None: as many as it likes)."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_they_are_right(name: str) -> None:
    some = ["rows", "dot", "conv"] if CASES[name][1] == "rows" else ["parts", "split"]
    words = {"styles": some, "but": ["second", "persistent", "channels", "last"]}
    (found,) = ask([{"source": CASES[name][0], "sets": ["full", "ragged"]} | words])
    assert found
    assert not [(one, problem) for one, _, problem in found if problem]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2] is not None])
def test_they_share_kernels(name: str) -> None:
    source, style, kernels = CASES[name]
    task = with_input_sets(Task(name, source))
    (solution,) = write_solutions(task, [s for s in STYLES if s.name == style], algebra=False)
    assert solution.triton_code.count("@triton.jit\ndef ") - solution.triton_code.count("def tanh(") == kernels


@pytest.mark.parametrize("name", ["sums_beside_a_product", "batch_norm_of_a_sum"])
def test_the_programs_that_share_a_set_write_what_is_made_of_its_elements(name: str) -> None:
    task = with_input_sets(Task(name, CASES[name][0]))
    for style in ("parts", "split"):
        (solution,) = write_solutions(task, [s for s in STYLES if s.name == style], algebra=False)
        (first,) = [
            k for k in solution.triton_code.split("@triton.jit\n") if "_parts(" in k.splitlines()[0] and "def " in k[:4]
        ]
        assert "part = tl.program_id(1)" in first
        assert re.search(r"tl\.store\(v[01]_ptr [^\n]*, mask=mask\)\n", first)


@pytest.mark.slow
def test_mutants_are_refused() -> None:
    source = CASES["sums_beside_a_product"][0]
    for old, new in (("mask = (row < ", "mask = (row + 1 < "), ("start = part * ROWS", "start = part * ROWS + 1")):
        (found,) = ask([{"source": source, "edits": [[old, new]], "sets": ["full"], "styles": ["parts"]}])
        touched = [problem for _, code, problem in found if new in code]
        assert touched
        assert all(touched)
