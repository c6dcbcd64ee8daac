"""Statistics of several axes in one program, of long sets in parts and in two levels; padding, and convolutions of single
channels, that are ways of reading."""

from __future__ import annotations

import re

import pytest
from support import EXHAUSTIVE
from support.graph_tasks import IMAGE, ask, module, on_a_cpu, rows_of

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.solutions.from_graph.styles import STYLES, write_solutions
from kernrl.tasks.task import Task
from kernrl.verifier import HardenedVerifier

VOLUME = "torch.randn(2, 8, 3, 4, 6)"
LONG = "torch.randn(4, 7, 60, 90)"
APART = f"{LONG} + torch.arange(4.0).reshape(4, 1, 1, 1)"

TILES = {
    "norm_then_channels": module("self.n = nn.LayerNorm(W)", "y = self.n(x.sigmoid()); return y.mean(1), y", IMAGE)
    .replace("[C]", "[20]")
    .replace("self, C)", "self, W)"),
    "norm_then_softmax": module("pass", "return F.layer_norm(x, x.shape[1:]).softmax(1) - x", IMAGE),
    "channels_innermost": module("pass", "y = x.softmax(1); return y - y.mean((1, 2), keepdim=True)", IMAGE),
    "three_sides": module("pass", "y = x.softmax(3); y = y / y.amax(1, keepdim=True); return y.sum((1, 2, 3))", IMAGE),
    "groups": module("self.n = nn.GroupNorm(2, 8)", "y = self.n(x); return y.logsumexp((2, 3, 4)), y.mean(4)", VOLUME),
}
"""Name → source of reductions over different axes of one set."""
LEVELS = {
    "batch_norm": module("self.n = nn.BatchNorm2d(7)", "return torch.exp(self.n(x * 2 - 1)).tanh()", APART),
    "norms": module(
        "self.a = nn.InstanceNorm2d(7, affine=True); self.n = nn.BatchNorm2d(7)", "return self.n(self.a(x)).relu()", LONG
    ),
    "far_from_zero": module("pass", "x = x + 1000; return (x - x.mean((0, 2, 3))[:, None, None]) / x.std()", LONG),
    "largest": module("pass", "return x.amax((0, 2, 3)), x.logsumexp((1, 2, 3)), x.norm()", LONG),
}
"""Name → source of sets that are longer than what is reduced in one go."""
PARTS = {
    "layer_norm": module("self.n = nn.LayerNorm((7, 60, 90))", "return F.silu(self.n(x.square()))", LONG),
    "innermost_kept": module("pass", "return x.var((0, 1, 2)) + x.logsumexp((0, 1, 2))", "torch.randn(31, 40, 23, 9)"),
}
"""Name → source of sets that several programs share."""
PADS = {
    "reflect": module("self.l = nn.Conv2d(C, 5, 3)", "return self.l(F.pad(x, (1, 2, 3, 1), mode='reflect')).relu()", IMAGE),
    "replicate": module("self.l = nn.Conv2d(C, 5, 3)", "return self.l(F.pad(x.exp(), (2, 1, 0, 1), mode='replicate'))", IMAGE),
    "circular": module("pass", "return F.pad(x * 2, (1, 1, 3, 0), mode='circular').tanh()", IMAGE),
    "constant": module("pass", "y = F.pad(x - 1, (1, 0, 2, 2), value=0.5); return F.max_pool2d(y, 3, stride=2) + 1", IMAGE),
    "rows": module("pass", "return F.pad(x, (0, 4)).softmax(-1) * F.pad(x, (4, 0))", IMAGE),
    "volume": module("pass", "return F.pad(x, (1, 1, 0, 2, 1, 0), mode='replicate').mean((2, 3, 4))", VOLUME),
}
"""Name → source of padding that some kernel can read through."""
DEPTHWISE = "self.l = nn.Conv2d(C, C, 3, {0}groups=C)"
DIRECT = {
    "padded": module(DEPTHWISE.format("padding=1, "), "return (self.l(x) + x).tanh() * 2", IMAGE),
    "steps": module(
        DEPTHWISE.format("stride=2, dilation=2, padding=(3, 0), "), "y = self.l(x - 1); return y.mean(1), y", IMAGE
    ),
    "after_an_activation": module(DEPTHWISE.format("bias=False, "), "return self.l(F.gelu(x).softmax(1)).sum((2, 3))", IMAGE),
    "one_after_the_other": module(DEPTHWISE.format("padding=1, "), "return self.l(self.l(x)).relu()", IMAGE),
    "volume": module("self.l = nn.Conv3d(8, 8, (2, 3, 5), padding=(0, 1, 2), groups=8)", "return self.l(x).exp()", VOLUME),
    "shared_taps": module(
        "self.k = nn.Parameter(torch.randn(1, 1, 5))",
        "k = self.k.softmax(2).expand(x.shape[1], -1, -1); return F.conv1d(x, k, padding=2, groups=x.shape[1]).sin()",
        "torch.randn(4, 7, 60)",
    ),
    "one_column": module(
        "self.l = nn.Linear(W, 1); self.v = nn.Parameter(torch.randn(H))",
        "y = self.l(x.sin()); return y.sigmoid(), x.transpose(2, 3) @ self.v + 1",
        IMAGE,
    )
    .replace("[C]", "[20]")
    .replace("self, C)", "self, W)"),
    "one_column_of_each": module("pass", "return (x @ x[:, :, :1].mT).relu() - 1", IMAGE),
    "few_columns": module(
        "self.l = nn.Linear(W, 5); self.m = nn.Linear(5, 8, bias=False)",
        "y = self.l(F.layer_norm(x, (W,)).relu()); return y.softmax(3), self.m(x[..., 7:12].mT.mT).sin()",
        IMAGE,
    )
    .replace("[C]", "[20]")
    .replace("self, C)", "self, W)"),
    "few_terms": module("self.l = nn.Linear(2, 7)", "y = self.l(x[..., 3:5] * 2); return y.sin() + 0.1 * y", IMAGE),
    "few_rows": module("pass", "return (x[..., :3] @ x[..., 2:5, :]).exp()", IMAGE),
    "few_filters": module("self.l = nn.Conv2d(1, 3, 3, padding=1)", "return self.l(x[:, :1]).amax(1)", IMAGE),
}
"""Name → source of convolutions in which each channel is by itself, and of products with few terms or few columns."""
SOURCES = {"tile": TILES, "rows": LEVELS, "parts": PARTS, "last": PADS, "direct": DIRECT}
"""A style → what it is for."""
MARKS = {
    "tile": "BLOCK_I",
    "rows": "_row",
    "parts": "part = tl.program_id(1)",
    "last": "at = ",
    "direct": "",
}
"""A style → text that a kernel has where the style says something."""
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
CASES = [(style, name) for style, sources in SOURCES.items() for name in sources]


def written(task: Task, style: str) -> str:
    wanted = "rows" if style == "last" and "conv" not in task.pytorch_code.lower() else style
    (solution,) = write_solutions(task, [s for s in STYLES if s.name == wanted], algebra=False)
    return solution.triton_code


@pytest.mark.slow
@pytest.mark.parametrize(("style", "name"), CASES)
def test_they_are_right_and_written_as_their_class_says(style: str, name: str) -> None:
    task = with_input_sets(Task(name, SOURCES[style][name]))
    others = [s for s in SOURCES if s != style]  # by day one of them, by turns
    number = CASES.index((style, name))
    styles = [*SOURCES] if EXHAUSTIVE else [style, others[number % len(others)]]
    # by day one set; a long one is long at the full sizes alone
    by_day = ["full"] if style in ("rows", "parts") else [("full", "ragged")[number % 2]]
    request = {"source": task.pytorch_code, "sets": ["full", "ragged"] if EXHAUSTIVE else by_day, "styles": styles}
    (found,) = ask([request | {"but": ["dot", "channels", "fused"], "task_sets": rows_of(task)}])
    assert found
    assert not [(one, problem) for one, _, problem in found if problem]
    code = written(task, style)
    assert MARKS[style] in code
    assert "F.pad(" not in code
    if style == "direct":
        assert "self.l(" not in code
        assert not re.search(r"F\.(conv|linear)|matmul|[^ ]@ ", code[code.index("def forward") :])
    if style == "tile":  # one load of the input, and nothing between
        assert code.count("@triton.jit\ndef fused_kernel") == 1
        assert code.count("tl.load(x0_ptr") == 1


MUTANTS = {
    "a side too many": ("tile", "norm_then_channels", "axis=2", "axis=1"),
    "a bound that is missing": ("tile", "three_sides", "(j < ", "(j <= "),
    "a mean of rows": ("rows", "batch_norm", "(v2_row_mean - v2_mean) * (v2_row_mean - v2_mean)", "0.0 * v2_mean"),
    "a part too short": ("parts", "layer_norm", "mask = cols < ", "mask = 1 + cols < "),
    "taps one too far": ("direct", "padded", "h + i - 1", "h + i"),
    "taps that are turned": ("direct", "padded", "i * 3 + j", "(2 - i) * 3 + j"),
    "a term too few": ("direct", "few_terms", "v2_raw_sum0 + v1_2", "v1_2"),
    "the edge twice": ("last", "reflect", "tl.abs(o2 - 3)", "tl.abs(o2 - 2)"),
}
"""What is wrong → (style, case, old text, new text)."""


@pytest.mark.slow
@pytest.mark.parametrize("what", MUTANTS)
def test_mutants_are_refused(what: str) -> None:
    style, name, old, new = MUTANTS[what]
    (found,) = ask([{"source": SOURCES[style][name], "edits": [[old, new]], "sets": ["full"], "styles": [style]}])
    touched = [problem for _, code, problem in found if new in code and old not in code]
    assert touched
    assert all(touched)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_verifier_takes_them(precision: str, cpu_verifier: HardenedVerifier) -> None:
    names = [
        ("tile", "norm_then_channels"),
        ("tile", "channels_innermost"),
        ("last", "reflect"),
        ("rows", "norms"),
        ("direct", "steps"),
        ("direct", "few_terms"),
    ]
    if precision != "fp32":  # by day every second, by turns: the kernels differ in casts alone
        names = names[PRECISIONS.index(precision) % 2 :: 2]
    pairs = []
    for style, name in CASES if EXHAUSTIVE else names:
        source = SOURCES[style][name]
        task = Task(name, source, precision=precision)
        if (small := on_a_cpu(task)) is not None:
            solutions = write_solutions(with_input_sets(task), [s for s in STYLES if s.name in SOURCES], algebra=False)
            pairs += [(small, s.triton_code) for s in solutions]
    assert len(pairs) >= 4
    verdicts = [(pairs[i][0].id, v.status, v.reason) for i, v in cpu_verifier.verify_many(pairs)]
    assert not [v for v in verdicts if v[1] != "correct"]


def test_no_rounding_makes_a_variance_negative_or_nan() -> None:
    """To a compiler x·x − mean is one multiply-add, which leaves the rounding of x·x, of either sign, where it should be 0.

    Nor NaN: the square of the first number, which counts nothing, may be infinite.
    """
    task = Task("t", module("pass", "return F.layer_norm(x * x, (W,))", IMAGE))
    texts = [s.triton_code for s in write_solutions(task) if "welford" in s.style]
    assert texts
    for text in texts:
        squares = [line.strip() for line in text.splitlines() if "_m2_acc +=" in line]
        assert squares
        assert all(re.fullmatch(r"(\w+_m2_acc) \+= (\w+) \* \(\2 \* \(1\.0 - \w+\)\)", line) for line in squares), squares


@pytest.mark.parametrize("rows", [10_000, 200_000, 600_000])
def test_no_long_sum_is_made_one_number_after_another(rows: int) -> None:
    """Thousands of additions into one number left a worked solution off by more than is tolerated."""
    task = Task("sums", module("pass", "return torch.tanh(x) - x.mean(0)", f"torch.randn({rows}, 24)"))
    solutions = write_solutions(task)
    assert solutions
    for solution in solutions:
        for function, launch in kernels_of(solution.triton_code):
            if re.search(r"_acc \+= tl\.where", function) and "in range(0, " in function:
                step = re.search(r"for start in range\(0, \w+, (\w+)\)", function)
                assert step, function
                held = re.search(rf"\b{step[1]}=(\d+)", launch)
                assert held, launch
                assert rows <= 512 * int(held[1]), (solution.style, launch)


def kernels_of(source: str) -> list[tuple[str, str]]:
    """Text of each kernel, and of its launch."""
    names = re.findall(r"@triton.jit\ndef (\w+)", source)
    texts = [source.partition(f"def {name}(")[2].partition("\n@triton.jit")[0].partition("\nclass ")[0] for name in names]
    return [
        (text, source.rpartition(f"{name}[")[2].partition("\n        )")[0]) for name, text in zip(names, texts, strict=True)
    ]


SHOWN = {
    "side_by_side_to_a_linear": module(
        "self.l = nn.Linear(2 * C, C)",
        "y = x.relu(); z = torch.cat([y.mean((2, 3)), y.amax((2, 3))], 1); return y * self.l(z).tanh()[..., None, None]",
        IMAGE,
        B=2,
        H=5,
        W=6,
    ),
    "peaks_to_a_linear": module("self.l = nn.Linear(C, 8)", "return self.l((x * 2).amax((2, 3))).sin()", IMAGE, B=2, H=5, W=6),
    "mean_times_a_matrix": module(
        "self.w = nn.Parameter(torch.randn(C, C))",
        "y = x.exp().mean((2, 3), keepdim=True); return y[:, :, 0, 0] @ self.w + 1, y",
        IMAGE,
        B=2,
        H=5,
        W=6,
    ),
    "cut_and_returned": module(
        "pass",
        "m = x.exp().mean((2, 3)); return m, torch.cat([m, x.amax((2, 3))], 1), x - m[..., None, None]",
        IMAGE,
        B=2,
        H=5,
        W=6,
    ),
}
"""Name → source of means and maxima that calls of the library read, or that are returned."""


@pytest.mark.slow
def test_means_that_the_library_reads_or_forward_returns_have_the_tasks_precision(cpu_verifier: HardenedVerifier) -> None:
    tasks = [with_input_sets(Task(name, source, precision="bf16")) for name, source in SHOWN.items()]
    written_of = [(task, s) for task in tasks for s in write_solutions(task)]
    assert {task.id for task, _ in written_of} == {*SHOWN}
    verdicts = cpu_verifier.verify_many([(task, s.triton_code) for task, s in written_of])
    refused = {i: v for i, v in verdicts if v.status != "correct"}
    assert not [(written_of[i][0].id, written_of[i][1].style, v.status, v.reason) for i, v in refused.items()]
