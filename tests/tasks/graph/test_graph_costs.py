"""What ops cost, what could be one kernel, the drawing, and `kernrl tasks lift` from the outside."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from kernrl import cli
from kernrl.tasks.graph.costs import Rates, bytes_text, facts_text, flops_text, kernels, node_bytes, node_flops, roofline_s
from kernrl.tasks.graph.drawing import draw
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lift import lift_module

RATES = Rates("toy", bytes_per_s=1e9, product_flops_per_s=1e12, flops_per_s=1e11)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 8, 3, stride=2, groups=2, bias=False)
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, groups=2, bias=False)
        self.fc = nn.Linear(4, 5, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.fc(self.up(self.conv(x)).mean((2, 3)))
        return torch.bmm(y, y.mT) + z.sum()


def graph_of(forward: str, init: str = "", *shapes: tuple[int, ...]) -> Graph:
    lines = [f"        {line}" for line in init.split("; ") if line]
    arguments = ", ".join("xyz"[: len(shapes)])
    source = "\n".join(
        (
            "class Model(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *lines,
            f"    def forward(self, {arguments}):",
            f"        return {forward}",
        )
    )
    scope = {"nn": nn, "torch": torch, "F": nn.functional}
    exec(source, scope)
    return lift_module(scope["Model"](), [torch.randn(shape) for shape in shapes])


def test_products_cost_what_torch_counts() -> None:
    args = (torch.randn(2, 6, 9, 11), torch.randn(3, 4, 7))
    module = Layers()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*args)
    graph = lift_module(module, args)
    counted = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    ours = sum(node_flops(graph, node) for node in graph.nodes if node.kind in ("product", "convolution"))
    assert ours == sum(counted.values())


def test_an_op_moves_its_operands_and_its_result() -> None:
    graph = graph_of("torch.flatten(torch.relu(x) * y, 1)", "", (4, 5, 6), (5, 6))
    relu, mul, flatten = graph.nodes
    assert (node_bytes(graph, relu), node_bytes(graph, mul), node_bytes(graph, flatten)) == (960, 480 + 120 + 480, 0)


@pytest.mark.parametrize(
    ("forward", "init", "shapes", "expected"),
    [
        ("F.gelu(self.l(x) * 2).flatten(1)", "self.l = nn.Linear(6, 6)", [(4, 6)], ["linear + mul + gelu"]),
        ("self.l(x).softmax(-1)", "self.l = nn.Linear(6, 6)", [(4, 6)], ["linear", "softmax"]),
        ("torch.tanh(x * 2).softmax(-1) + 1", "", [(4, 6)], ["mul + tanh + softmax + add"]),
        ("self.n(x).softmax(-1)", "self.n = nn.LayerNorm(6)", [(4, 6)], ["layer_norm + softmax"]),
        ("self.n(x).softmax(0)", "self.n = nn.LayerNorm(6)", [(4, 6)], ["layer_norm", "softmax"]),
        ("x - x.mean(1, keepdim=True)", "", [(4, 6)], ["mean + sub"]),
        ("F.max_pool2d(torch.relu(x), 2)", "", [(1, 2, 4, 4)], ["relu", "max_pool2d"]),
        ("self.l(x) * self.l(y).sigmoid()", "self.l = nn.Linear(6, 6)", [(4, 6), (4, 6)], ["linear + sigmoid", "linear + mul"]),
        ("x.cumsum(1) * 2", "", [(4, 6)], ["cumsum + mul"]),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_could_be_one_kernel(forward: str, init: str, shapes: list[tuple[int, ...]], expected: list[str]) -> None:
    assert sorted(map(str, kernels(graph_of(forward, init, *shapes)))) == sorted(expected)


def test_a_kernel_reads_once_and_writes_what_is_read_outside() -> None:
    graph = graph_of("(lambda h: (h, torch.relu(h) + x))(x * 2)", "", (8, 8))
    [kernel] = kernels(graph)
    assert [v.name for v in kernel.reads] == ["x0"]
    assert len(kernel.writes) == 2  # h and the sum; the relu stays inside
    assert kernel.nbytes == 3 * 256


@pytest.mark.parametrize(
    ("forward", "read"),
    [
        ("torch.relu(x[:, :4])", 2 * 4 * 64 * 64),
        ("torch.relu(x)[:, :4]", 2 * 16 * 64 * 64),  # the rule of fusion keeps what is cut off later
        ("x[:, :8] * torch.sigmoid(x[:, 8:])", 2 * 16 * 64 * 64),
        ("x[:, :4] * torch.sigmoid(x[:, 8:12])", 2 * 8 * 64 * 64),
        ("x.expand(3, 2, 16, 64, 64) + 1", 2 * 16 * 64 * 64),
        ("F.conv2d(x, torch.ones(4, 16, 1, 1), stride=9)", 2 * 16 * 8 * 64),
        ("F.max_pool2d(x, 2, stride=16)", 2 * 16 * 8 * 32),
        ("F.max_pool2d(x, 3, stride=2)", 2 * 16 * 64 * 64),
        ("F.adaptive_avg_pool2d(x, 8)", 2 * 16 * 64 * 64),
    ],
)
def test_a_kernel_reads_of_a_slice_or_an_image_what_it_takes(forward: str, read: int) -> None:
    graph = graph_of(forward, "", (2, 16, 64, 64))
    x = graph.inputs[0].value.name
    [kernel] = [k for k in kernels(graph) if x in (v.name for v in k.reads)]
    assert kernel.read_bytes - sum(v.nbytes for v in kernel.reads if v.name != x) == 4 * read


def test_every_kernel_can_run_after_those_before_it() -> None:
    graph = graph_of(
        "self.b(torch.relu(self.a(x))) + torch.tanh(self.a(x) * 2).sum()",
        "self.a = nn.Linear(6, 6); self.b = nn.Linear(6, 6)",
        (4, 6),
    )
    made = {"x0", *(p.value.name for p in graph.parameters)}
    for kernel in kernels(graph):
        assert {v.name for v in kernel.reads} <= made
        made |= {r.name for node in kernel.nodes for r in node.results}


def test_roofline_is_the_slowest_of_the_three() -> None:
    graph = graph_of("self.l(x)", "self.l = nn.Linear(1000, 1000, bias=False)", (1000, 1000))
    apart, fused = roofline_s(graph, RATES)
    assert apart == fused == pytest.approx(12e6 / 1e9)
    fast = Rates("fast", bytes_per_s=1e15, product_flops_per_s=1e12, flops_per_s=1e11)
    assert roofline_s(graph, fast)[0] == pytest.approx(2e9 / 1e12)


def test_units_have_three_digits() -> None:
    assert [bytes_text(n) for n in (0, 999, 1000, 12_345_678, 999_999)] == ["0 B", "999 B", "1 kB", "12.3 MB", "1 MB"]
    assert flops_text(2.148e9) == "2.15 GFLOP"


def test_facts_for_a_prompt_are_short_and_say_what_fuses() -> None:
    text = facts_text(graph_of("F.gelu(self.l(x))", "self.l = nn.Linear(6, 7)", (4, 6)), RATES)
    assert "- linear -> float32[4, 7]: 404 B, 336 FLOP" in text
    assert "Could be one kernel: linear + gelu." in text
    assert "At the limits of the toy" in text
    assert len(text.splitlines()) == 6


def test_the_drawing_is_an_svg_with_every_op() -> None:
    graph = graph_of("torch.topk(self.l(x) + x, 2)[0]", "self.l = nn.Linear(6, 6)", (4, 6))
    root = ElementTree.fromstring(draw(graph, "a < b & c"))
    words = " ".join(root.itertext())
    assert all(node.op in words for node in graph.nodes)
    assert "l.weight" in words
    assert "a < b & c" in words
    boxes = [r.attrib for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert [b["class"] for b in boxes if "class" in b] == ["given", "node", "node", "unknown"]


CODE = """\
import torch
import torch.nn as nn

N = 64


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)

    def forward(self, x):
        return RESULT


def get_inputs():
    return [torch.randn(16, N)]


def get_init_inputs():
    return [N]
"""


def write(path: Path, result: str) -> Path:
    path.write_text(CODE.replace("RESULT", result))
    return path


@pytest.mark.slow
def test_one_task_is_listed_with_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, svg = write(tmp_path / "mine.py", "torch.topk(torch.relu(self.fc(x)), 2).values"), tmp_path / "mine.svg"
    assert cli.run(["tasks", "lift", str(file), "--svg", str(svg)]) == 0
    out = capsys.readouterr().out
    assert "v0 = linear(x0, p0, p1)" in out
    assert "kernel 1: linear + relu" in out
    assert "unknown: aten.topk.default at line 13" in out
    assert f"drawn in {svg}\n" in out
    ElementTree.fromstring(svg.read_text())
    assert cli.run(["tasks", "lift", str(file), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    graph = Graph.from_json(data["graph"])
    assert data["composition"] == list(graph.composition) == ["linear", "relu", "aten.topk.default"]
    assert data["unknown"] == [{"op": "aten.topk.default", "line": 13}]
    assert data["nodes"][0] == {"bytes": 4 * (2 * 16 * 64 + 64 * 64 + 64), "flops": 2 * 16 * 64 * 64, "kernel": 1}


@pytest.mark.slow
def test_worked_solutions_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = write(tmp_path / "mine.py", "torch.tanh(self.fc(x)) * 0.5"), tmp_path / "solutions"
    assert cli.run(["tasks", "lift", str(file), "--solutions", str(folder), "--json"]) == 0
    styles = json.loads(capsys.readouterr().out)["solutions"]
    assert sorted(path.stem for path in folder.glob("*.py")) == sorted(styles)
    assert len(styles) >= 3
    for path in folder.glob("*.py"):
        source = path.read_text()
        assert "@triton.jit" in source
        assert "class ModelNew" in source
        assert "self.fc.weight" in source, "parameters are bound by their path"
    assert cli.run(["tasks", "lift", str(file), "--solutions", str(folder)]) == 2
    assert "--solutions" in capsys.readouterr().err
    assert cli.run(["tasks", "lift", "heldout", "--solutions", str(tmp_path / "more")]) == 2
    assert "64 tasks" in capsys.readouterr().err


@pytest.mark.slow
def test_what_does_fewer_operations_is_written_unless_it_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, styles = write(tmp_path / "mine.py", "torch.relu(self.fc(x).sum(1))"), dict[str, list[str]]()
    for flag in ("--algebra", "--no-algebra"):
        assert cli.run(["tasks", "lift", str(file), "--solutions", str(tmp_path / flag[2:]), flag, "--json"]) == 0
        styles[flag] = json.loads(capsys.readouterr().out)["solutions"]
        assert sorted(path.stem for path in (tmp_path / flag[2:]).glob("*.py")) == sorted(styles[flag])
    assert any("algebra" in style for style in styles["--algebra"])
    assert styles["--no-algebra"] == [style for style in styles["--algebra"] if "algebra" not in style]


@pytest.mark.slow
def test_a_folder_is_a_table_of_what_lifts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "1_good.py", "torch.relu(self.fc(x))")
    write(tmp_path / "2_bad.py", "x if x.sum() > 0 else -x")
    write(tmp_path / "3_dies.py", "__import__('os').abort()")
    assert cli.run(["tasks", "lift", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["tasks"], data["lifted"]) == (3, 1)
    assert [row["lifts"] for row in data["graphs"]] == [True, False, False]
    assert "at line 13" in data["graphs"][1]["reason"]
    assert "kills its process" in data["graphs"][2]["reason"]
    assert cli.run(["tasks", "lift", str(tmp_path)]) == 0
    assert "1 of 3 lift" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["bad.py"], "decides by the numbers in a tensor at line 13", marks=pytest.mark.slow),
        (["missing.py"], "there is no such file"),
        (["good.py", "--target", "abacus"], "no such GPU is known"),
        ([".", "--svg", "a.svg"], "holds 2 tasks and it takes one"),
        (["slow.txt", "--timeout-s", "0"], "timeout"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good.py", "torch.relu(x)")
    write(tmp_path / "bad.py", "x if x.sum() > 0 else -x")
    assert cli.run(["tasks", "lift", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


@pytest.mark.slow
def test_check_prints_the_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "mine.py", "torch.relu(self.fc(x))")
    assert cli.run(["tasks", "check", str(file)]) == 0
    out = capsys.readouterr().out
    assert "derived" in out
    assert "N=16" in out
    assert cli.run(["tasks", "check", str(file), "--json"]) == 0
    sets = json.loads(capsys.readouterr().out)["input_sets"]["mine"]
    assert [(s["name"], s.get("derived", False)) for s in sets] == [("full", False), ("small", True), ("ragged", True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "words"),
    [
        ("x.flatten()[x.flatten() > 0].max()", "the reference cannot be traced"),
        ("x * torch.arange(x.shape[-1]).float()", "make constants with device=x.device"),
    ],
)
def test_check_refuses_what_runs_and_cannot_be_judged(
    forward: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "mine.py", forward)
    assert cli.run(["tasks", "check", str(file)]) == 2
    assert words in capsys.readouterr().err
