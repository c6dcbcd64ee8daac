"""Lifting keeps the meaning: `run(lift(m))` equals `m` in float64. What cannot be lifted is one sentence with its line."""

from __future__ import annotations

import ast
import json
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import EXHAUSTIVE, TESTS
from support.graph_cases import assert_same, assert_task_same
from torch import nn

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lift import LiftError, lift, lift_module
from kernrl.tasks.graph.lifting.aten_ops import ATEN
from kernrl.tasks.graph.lifting.trace import quiet
from kernrl.tasks.graph.ops import OPS
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import InputSet, Task

FIXTURES = sorted((TESTS / "fixture_tasks").glob("*.py"))
HELDOUT = load_tasks("heldout").tasks


NO_GRAPH = {
    "gru_pool": "gru at line 19 is recurrent",
}
"""Fixtures with what no Graph holds."""


def fixture_sets() -> list[tuple[Task, str]]:
    names = ("small", "ragged") if EXHAUSTIVE else ("ragged",)
    return [(task, name) for path in FIXTURES if path.stem not in NO_GRAPH for task in load_tasks(path).tasks for name in names]


@pytest.mark.parametrize("name", NO_GRAPH)
def test_a_fixture_that_no_graph_holds_is_refused_with_its_line(name: str) -> None:
    [task] = load_tasks(TESTS / "fixture_tasks" / f"{name}.py").tasks
    with pytest.raises(LiftError, match=f"{NO_GRAPH[name]}, which no Graph holds"):
        lift(task, task.input_set("ragged"))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "name"), fixture_sets(), ids=lambda item: item if isinstance(item, str) else item.id)
def test_fixture_task_computes_what_its_graph_says(task: Task, name: str) -> None:
    assert_task_same(task, task.input_set(name))


@pytest.mark.slow
@pytest.mark.parametrize("task", HELDOUT[::8], ids=lambda task: task.id)
def test_heldout_task_computes_what_its_graph_says(task: Task) -> None:
    assert not assert_task_same(task, task.input_set("ragged")).unknown


@pytest.mark.slow
@pytest.mark.parametrize("task", HELDOUT if EXHAUSTIVE else HELDOUT[1::2], ids=lambda task: task.id)
def test_every_heldout_task_computes_what_its_graph_says(task: Task) -> None:
    full = lift(task)
    for name in ("small", "ragged"):
        graph = assert_task_same(task, task.input_set(name))
        assert graph.fingerprint == full.fingerprint
        assert graph.composition == full.composition
        assert not graph.unknown


class Nested(nn.Module):
    """Several inputs in structures, several outputs in structures, a value read three times, one given back as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.ParameterDict({"a": nn.Parameter(torch.rand(5)), "b": nn.Parameter(torch.tensor(0.7))})

    def forward(self, pair: Any, extra: dict[str, torch.Tensor], factor: float = 2.0) -> Any:
        x, (y, z) = pair
        s = torch.sigmoid(x) * self.scale["a"]
        return {"s": s, "rest": [s + y, (s * factor - z, extra["shift"] + self.scale["b"])], "none": None, "same": z}


class InPlace(nn.Module):
    """Overwrites a value that has two names, and a view of another."""

    def forward(self, x: torch.Tensor) -> Any:
        a = x * 2
        b = a
        b += 1
        c = torch.relu(x).view(2, -1)
        c.mul_(3)
        return a * b, c


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6)
        self.two = nn.Linear(6, 6)
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(F.elu(self.one(x), 0.7))


class Convolutions(nn.Module):
    """Every argument that a convolution takes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv1d(4, 6, 4, padding="same", dilation=1, groups=2, bias=False)
        self.b = nn.Conv2d(4, 8, (3, 5), stride=(2, 1), padding=(0, 2), dilation=(1, 2), groups=4)
        self.c = nn.ConvTranspose2d(8, 6, 3, stride=(2, 3), padding=1, output_padding=(1, 2), groups=2, dilation=2)
        self.d = nn.Conv3d(4, 4, (1, 3, 3), padding=(0, 1, 1), padding_mode="replicate")
        self.e = nn.ConvTranspose1d(6, 5, 5, stride=3)

    def forward(self, line: torch.Tensor, image: torch.Tensor, volume: torch.Tensor) -> Any:
        return self.e(self.a(line)), self.c(self.b(image)), self.d(volume)


class Pools(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return (
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False, divisor_override=7),
            F.max_pool2d(x, (3, 2), (2, 3), (1, 0), dilation=(1, 2), ceil_mode=True),
            F.adaptive_avg_pool2d(x, (3, 5)),
            F.adaptive_max_pool2d(x, 2),
            F.max_pool1d(x[:, 0], 3, stride=1),
            F.lp_pool2d(x.abs() + 0.1, 2, 2),
        )


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.train_norm = nn.BatchNorm2d(6, momentum=None)
        self.eval_norm = nn.BatchNorm2d(6, affine=False).eval()
        self.group = nn.GroupNorm(3, 6, eps=1e-3)
        self.group.weight.data.uniform_(0.5, 1.5)
        self.layer = nn.LayerNorm((6, 8, 10), bias=False)
        self.tracked = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.linear = nn.utils.weight_norm(nn.Linear(10, 4), dim=None)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.eval_norm(self.train_norm(x))
        return self.linear(self.layer(self.group(y))), self.tracked(x), F.normalize(x, p=1, dim=1), F.local_response_norm(x, 3)


class Reductions(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        values, where = x.max(dim=1)
        return (
            *torch.var_mean(x, (0, 2), correction=0),
            x.prod(2).sum(0, keepdim=True),
            values,
            where,
            x.argmin(),
            x.norm(p=3, dim=(1, 2)),
            x.any(1),
            (x > 0).all(),
            x.cumsum(-1),
            x.logcumsumexp(1),
            torch.linalg.norm(x[0, 0], ord=1),
            torch.linalg.norm(x, dim=1, ord=3),
            torch.log_softmax(x.flatten(1), -1),
            x.median(1).values,
            x.topk(2, dim=-1)[0],
        )


class Made(nn.Module):
    """Tensors that forward makes, and constants of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.linspace(0, 1, 7)
        self.register_buffer("steps", torch.arange(7).float(), persistent=False)
        self.register_buffer("offset", torch.tensor([0.25]))
        self.eps = torch.tensor(1e-3)

    def forward(self, x: torch.Tensor) -> Any:
        weights = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0, 0.0, 2.0])
        mask = torch.arange(7, device=x.device) < 4
        y = torch.where(mask, x * weights, self.table + self.eps) + self.steps * torch.sqrt(self.offset)
        return y + torch.ones_like(x) * math.pi, x.new_zeros(7).to(torch.int32), torch.full((2,), 3.0) + x[0, :2]


class Selections(nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> Any:
        a, b, c = x.split([1, 2, 4], dim=1)
        first, *_ = x.unbind(1)
        return (
            torch.cat([b, c], 1),
            a.expand(-1, 3, -1),
            x[:, ::2, 1:-1],
            x[:, -1],
            x[:, None] * first[:, :, None, None],
            x.index_select(1, index),
            x.roll(1, 2).flip(1),
            F.pad(x, (1, 2, 0, 1), value=0.5),
            F.pad(x, (2, 1), mode="reflect"),
            x.repeat(1, 2, 1),
            x[:, index],
            torch.stack(x.chunk(3, 1), 0) if x.shape[1] % 3 == 0 else x.tril(-1),
        )


class Casts(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        return (
            (x > 0.5) & (x < 1),
            x.to(torch.int32) // 2,
            n * 3 - 1,
            (n / 2).floor(),
            ~(x > 0),
            torch.maximum(n, n + 1).float(),
        )


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            torch.einsum("bhd,hde->bhe", x, self.w),
            torch.einsum("bhd,bkd->hk", x, y),
            torch.einsum("...d,...d->...", x, y),
            torch.einsum("bhd->dbh", x),
            torch.einsum("bhd,bhd,bhd->b", x, y, x),
            torch.einsum("bhd,chd->bch", x, y),
            x @ y[0].mT,
            torch.baddbmm(x @ y.mT, x, y.mT, beta=0.5, alpha=2.0),
            x[0] @ y[0, 0],
            torch.mv(x[0], y[0, 1]),
            F.bilinear(x, y, self.w[:, :4, :4]),
        )


ODD: list[tuple[type[nn.Module], tuple[Any, ...]]] = [
    (Nested, ((torch.randn(3, 5), [torch.randn(5), torch.randn(3, 1)]), {"shift": torch.randn(3)}, 1.5)),
    (InPlace, (torch.randn(2, 3, 4),)),
    (Tied, (torch.randn(4, 6),)),
    (Convolutions, (torch.randn(2, 4, 11), torch.randn(2, 4, 9, 12), torch.randn(2, 4, 3, 5, 6))),
    (Pools, (torch.randn(2, 3, 9, 14),)),
    (Norms, (torch.randn(4, 6, 8, 10),)),
    (Reductions, (torch.randn(3, 4, 5),)),
    (Made, (torch.randn(3, 7),)),
    (Selections, (torch.randn(2, 7, 6), torch.tensor([0, 3, 3]))),
    (Casts, (torch.randn(4, 5) * 2, torch.randint(-5, 5, (4, 5)))),
    (Products, (torch.randn(2, 3, 4), torch.randn(2, 3, 4))),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "args"), ODD, ids=[kind.__name__ for kind, _ in ODD])
def test_odd_module_computes_what_its_graph_says(kind: type[nn.Module], args: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    module = kind()
    graph = lift_module(module, args)
    assert_same(graph, module, args)
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph


def test_inputs_say_where_they_are_and_outputs_how_they_nest() -> None:
    graph = lift_module(Nested(), ODD[0][1])
    assert [i.place for i in graph.inputs] == [(0, 0), (0, 1, 0), (0, 1, 1), (1, "shift")]
    assert [i.argument for i in graph.inputs] == ["pair", "pair", "pair", "extra"]
    assert graph.structure == "{'s': *, 'rest': [*, (*, *)], 'none': *, 'same': *}"
    assert graph.outputs[4:] == (None, "x2")
    assert [p.path for p in graph.parameters] == ["scale.a", "scale.b"]


def test_tied_weights_are_one_parameter() -> None:
    graph = lift_module(Tied(), (torch.randn(4, 6),))
    assert [p.path for p in graph.parameters] == ["one.weight", "one.bias", "two.bias"]
    assert graph.nodes[0].operands[1] == graph.nodes[2].operands[1] == "p0"


@pytest.mark.slow
def test_only_what_no_rule_says_is_unknown() -> None:
    unknown = [node.op for kind, args in ODD for node in lift_module(kind(), args).unknown]
    assert sorted(unknown) == ["aten.index.Tensor", "aten.median.dim", "aten.topk.default"]


def test_every_rule_makes_known_ops() -> None:
    assert {"linear", "conv2d", "conv_transpose3d", "softmax", "einsum"} <= ATEN.keys() & OPS.keys()


class Autocast(nn.Module):
    def __init__(self, enabled: bool, device: str = "cpu"):
        super().__init__()
        self.enabled, self.device = enabled, device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.enabled):
            y = x @ x.mT
        return y + 1


def test_autocast_that_is_off_changes_nothing_and_one_that_is_on_is_refused() -> None:
    x = torch.randn(3, 4)
    assert_same(lift_module(Autocast(False), (x,)), Autocast(False), (x,))
    for device in ("cpu", "cuda"):
        with pytest.raises(LiftError, match=r"^Autocast: switches on torch\.autocast at line \d+, and on a GPU"):
            lift_module(Autocast(True, device), (x,))
    assert not torch.is_autocast_enabled("cpu")


AROUND_FORWARD = """
import torch
from torch import nn


class Model(nn.Module):
    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x):
        return x @ x.mT


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""


def test_autocast_around_forward_is_refused() -> None:
    with pytest.raises(LiftError, match=r"^t: switches on torch\.autocast"):
        lift(Task("t", AROUND_FORWARD))


def test_a_module_is_left_as_it_was() -> None:
    module = Norms()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    lift_module(module, ODD[5][1])
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    module(*ODD[5][1])  # and is as real as before


SOURCE = """\
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        INIT

    def forward(self, x):
        y = x * 2
        return RESULT


def get_inputs():
    return [torch.randn(SIZE)]


def get_init_inputs():
    return []
"""
LINE = next(i for i, text in enumerate(SOURCE.splitlines(), start=1) if "RESULT" in text)


def task_of(result: str, init: str = "pass", size: str = "4, 8") -> Task:
    return Task("mine", SOURCE.replace("RESULT", result).replace("INIT", init).replace("SIZE", size))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("result", "init", "words"),
    [
        ("self.cell(y[None])[0]", "self.cell = nn.LSTM(8, 8)", f"lstm at line {LINE} is recurrent"),
        ("self.cell(y)[0]", "self.cell = nn.GRU(8, 8)", f"gru at line {LINE} is recurrent"),
        ("y if y.sum() > 0 else -y", "pass", f"decides by the numbers in a tensor at line {LINE}"),
        ("y * float(y.max())", "pass", f"at line {LINE}"),
        ("y[y > 0]", "pass", f"at line {LINE}, whose shape depends on numbers|decides by the numbers|whose shape depends"),
        ("y.to_sparse().to_dense()", "pass", f"makes a sparse tensor at line {LINE}, which no Graph holds"),
        ("F.dropout(y, 0.5)", "pass", f"depends on randomness \\(dropout at line {LINE}\\)"),
        ("y + torch.randn(4, 8)", "pass", f"depends on randomness \\(randn at line {LINE}\\)"),
        ("torch.rand_like(y)", "pass", f"depends on randomness \\(rand_like at line {LINE}\\)"),
        ("self.missing(y)", "pass", f"raises AttributeError at line {LINE}: 'Model' object has no attribute 'missing'"),
        ("F.linear(y, torch.ones(3, 9))", "pass", f"raises RuntimeError at line {LINE}"),
        ("y", "self.w = torch.load('/nowhere/weights.pt')", f"raises FileNotFoundError at line {LINE - 4}"),
        ("3.0", "pass", "returns no tensor"),
        ("torch.from_numpy(np.tanh(y.numpy()))", "pass", f"at line {LINE}"),
    ],
)
def test_what_cannot_be_lifted_is_one_sentence_with_its_line(result: str, init: str, words: str) -> None:
    with pytest.raises(LiftError, match=words) as raised:
        lift(task_of(result, init))
    assert str(raised.value).startswith("mine: ")
    assert "\n" not in str(raised.value)


class Stored(torch.autograd.Function):
    """Notes what a backward would need."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, slope: float) -> torch.Tensor:  # pyright: ignore
        ctx.save_for_backward(x)
        ctx.slope = slope
        ctx.mark_non_differentiable(x)
        return x.sigmoid() * slope if any(ctx.needs_input_grad) else x * torch.tanh(F.softplus(x)) * slope


class Apart(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # pyright: ignore
        return x.exp(), x.cos()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)


class Functions(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Stored.apply(x, 0.5), Apart.apply(x)


def test_an_autograd_function_is_what_its_forward_computes() -> None:
    x = torch.randn(4, 8)
    graph = lift_module(Functions(), [x])
    assert_same(graph, Functions(), [x])
    assert [node.op for node in graph.nodes] == [node.op for node in lift_module(Written(), [x]).nodes]


class Written(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x * torch.tanh(F.softplus(x)) * 0.5, (x.exp(), x.cos())


@pytest.mark.parametrize("equation", ["i,j->ij", "j,i->ij", "i,j->ji", "ij,j->ij", "ij,j->i", "ij,k->ikj"])
def test_an_einsum_takes_a_buffer_of_one_element(equation: str) -> None:
    """The constructor settles its number, so it is one in the Graph."""
    rank = len(equation.partition(",")[0])
    init = "self.register_buffer('one', torch.tensor([0.25]))"
    said = f"torch.einsum({equation!r}, y{'[:, 0]' if rank == 1 else '[:, :1]'}, self.one)"
    graph = assert_task_same(task_of(said, init), None)
    assert not any("einsum" in node.op for node in graph.nodes)


def test_complex_numbers_are_held_by_unknown_ops_alone() -> None:
    """Also by those that a Graph knows of real numbers: no kernel reads complex ones."""
    said = "(torch.fft.rfft(y.tanh()) * (0.5 - 2j))[..., 1:].abs().exp() + torch.fft.irfft(torch.fft.rfft(y))[..., :4]"
    graph = assert_task_same(task_of(said), None)
    kept = [node.op for node in graph.nodes if any(r.dtype == "complex64" for r in node.results)]
    assert kept == ["aten.fft_rfft.default", "aten.mul.Tensor", "aten.slice.Tensor", "aten.fft_rfft.default"]
    assert {"tanh", "exp", "add"} <= {node.op for node in graph.nodes if node.kind != "unknown"}
    again = Graph.from_json(json.loads(json.dumps(graph.to_json())))
    assert again == graph
    assert again.fingerprint == graph.fingerprint
    assert again.fingerprint != lift(task_of(said.replace("2j", "3j"))).fingerprint


def test_randomness_that_no_output_reads_does_no_harm() -> None:
    assert lift(task_of("(y, F.dropout(y, 0.5), torch.rand(3))[0]")).composition == ("mul_number",)


SCRIPTED = """
import torch
from torch import nn

@torch.jit.script
def scaled(x, scale):
    return torch.nn.functional.gelu(x) * scale

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8))
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))

    def forward(self, x):
        return self.inner(scaled(x, self.scale))

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []
"""


def test_torchscript_is_read_as_the_python_that_it_is() -> None:
    script = torch.jit.script
    assert lift(Task("mine", SCRIPTED)).composition == ("gelu", "mul_parameter", "linear", "relu")
    assert torch.jit.script is script


def test_a_lazy_module_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(LiftError, match=r"has a lazy module, .*: state them \(nn\.Linear for nn\.LazyLinear\)"):
        lift(task_of("self.l(y)", "self.l = nn.LazyLinear(8)"))


@pytest.mark.parametrize("decorator", ["@torch.compile", "@torch.compile(dynamic=True)", "@torch.compile(mode='default')"])
def test_a_helper_under_torch_compile_is_read_as_the_python_that_it_is(decorator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: Any, **__: Any) -> Any:
        pytest.fail("Dynamo was asked")

    monkeypatch.setattr("torch._dynamo.optimize", called)
    kept = torch.compile
    helped = task_of("gated(y)", "pass").pytorch_code
    helped = helped.replace("class Model", f"{decorator}\ndef gated(x):\n    return F.silu(x) * x\n\n\nclass Model")
    assert lift(Task("mine", helped)).composition == ("mul_number", "silu", "mul")
    assert torch.compile is kept


@pytest.mark.parametrize("compiled", [torch.jit.script, lambda part: torch.jit.trace(part, torch.rand(2, 8))])
def test_a_live_module_in_torchscript_is_refused_in_one_sentence(compiled: Any) -> None:
    inner = compiled(nn.Linear(8, 8))
    for module in (inner, nn.Sequential(inner, nn.ReLU())):
        with pytest.raises(LiftError, match=r"as it was before torch\.jit\.script or trace"):
            lift_module(module, [torch.rand(2, 8)])


def test_lines_are_those_of_the_forward_that_asks() -> None:
    helper = SOURCE.replace("RESULT", "self.act(self.help(y))").replace("INIT", "self.act = nn.GELU()").replace("SIZE", "4, 8")
    source = helper.replace("\n\ndef get_inputs", "\n    def help(self, z):\n        return torch.tanh(z)\n\n\ndef get_inputs")
    graph = lift(Task("mine", source))
    assert [node.op for node in graph.nodes] == ["mul", "tanh", "gelu"]
    assert [source.splitlines()[node.line - 1].strip() for node in graph.nodes] == [
        "y = x * 2",
        "return self.act(self.help(y))",
        "return self.act(self.help(y))",
    ]


def test_a_task_of_terabytes_takes_no_memory() -> None:
    graph = lift(task_of("self.fc(y).softmax(-1)", "self.fc = nn.Linear(2**20, 2**18, bias=False)", "2**20, 2**20"))
    assert graph.inputs[0].value.nbytes == 2**42
    assert graph.nodes[-1].value.shape == (2**20, 2**18)


def test_numbers_may_be_read_out_of_small_tensors_in_the_constructor() -> None:
    init = "self.keep = [1.0 - r.item() for r in torch.linspace(0, 0.5, 3)]"
    graph = lift(task_of("y * self.keep[2]", init))
    assert [node.operands[1] for node in graph.nodes] == [2.0, 0.5]


def test_little_tensors_may_make_large_ones() -> None:
    graph = lift(task_of("y + self.b[:8]", "self.register_buffer('b', torch.tensor([0.5]).repeat(2**40))"))
    assert graph.parameters[0].value.shape == (2**40,)


def test_a_buffer_of_one_number_is_that_number_unless_it_was_drawn() -> None:
    for made in ("torch.tensor(0.1)", "torch.tensor([0.1])", "torch.full((1,), 0.1)", "torch.tensor(0.05) * 2"):
        graph = lift(task_of("y * self.s", f"self.register_buffer('s', {made})"))
        assert graph.nodes[1].operands == ("v0", 0.1)
    for made in ("torch.rand(1)", "torch.randn(()) + 1", "torch.empty(1).uniform_()"):
        graph = lift(task_of("y * self.s", f"self.register_buffer('s', {made})"))
        assert graph.nodes[1].operands == ("v0", "p0")
        assert graph.parameters[0].path == "s"


def test_a_buffer_of_one_number_stays_a_tensor_where_one_is_wanted() -> None:
    init = "self.register_buffer('m', torch.zeros(1)); self.register_buffer('v', torch.ones(1))"
    graph = lift(task_of("F.batch_norm(y[:, None].mean(2), self.m, self.v)", init))
    assert [node.op for node in graph.nodes][-1] == "batch_norm_eval"
    assert [p.path for p in graph.parameters] == ["m", "v"]


@pytest.mark.parametrize("moved", ["to(x.device)", "float()", "type_as(y)", "to(y)[:8]", "contiguous()"])
@pytest.mark.parametrize("made", ["torch.linspace(0, 1, 8)", "torch.linspace(0, 1, 8).expand(999, 8)[5:]"])
def test_a_plain_attribute_that_forward_moves_or_casts_is_a_constant(made: str, moved: str) -> None:
    graph = assert_task_same(task_of(f"(y[:, None] * self.t.{moved}).sum(1)", f"self.t = {made}"), None)
    assert [(p.kind, p.path) for p in graph.parameters] == [("constant", "t")]


def test_plain_attributes_of_a_live_module_stay_what_they_are() -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    module.scale, module.forward = torch.rand(4), lambda x: module[0](x) * module.scale.to(x.device)
    scale = module.scale
    lift_module(module, [torch.rand(2, 4)])
    assert vars(module)["scale"] is scale
    assert not list(module.buffers())


@pytest.mark.parametrize(
    "convert", ["half()", "bfloat16()", "double()", "to(torch.float16)", "to('cpu', torch.double)", "float()"]
)
@pytest.mark.parametrize("part", ["self", "self.a", "self.b"])
def test_a_constructor_may_convert_large_parameters_and_is_read_as_it_is_judged(part: str, convert: str) -> None:
    tied = "self.a = nn.Linear(8, 999); self.b = nn.Embedding(999, 8); self.b.weight = self.a.weight"
    graph = lift(task_of("(self.a(y), self.b.weight.sum(0))", f"{tied}; {part}.{convert}"))
    assert [(p.path, p.value.dtype) for p in graph.parameters] == [("a.weight", "float32"), ("a.bias", "float32")]
    assert [node.op for node in graph.nodes] == ["mul", "linear", "sum"]


def test_inputs_are_read_in_the_dtype_that_they_are_judged_in() -> None:
    source = task_of("self.a(y)", "self.a = nn.Linear(8, 999).half()").pytorch_code
    graph = lift(Task("mine", source.replace("torch.randn(4, 8)", "torch.randn(4, 8).half()")))
    assert {value.dtype for value in graph.values.values()} == {"float32"}


@pytest.mark.parametrize(
    "result",
    [
        "torch.distributions.Normal(y, y.exp()).log_prob(x)",
        "torch.distributions.kl_divergence(*(torch.distributions.Normal(t, t.exp()) for t in (x, y)))",
        "torch.distributions.Categorical(logits=y).entropy()",
        "F.gaussian_nll_loss(x, y, y.exp())",
    ],
)
def test_a_check_of_numbers_that_only_raises_is_passed(result: str) -> None:
    assert not assert_task_same(task_of(result, "pass"), None).unknown


@pytest.mark.parametrize(
    "check", ["if (y > 99).any():", "if not torch.isfinite(y).all():", "if (y > 99).any() or y.isnan().any():"]
)
def test_so_is_one_of_the_module_s_own_but_no_other_condition(check: str) -> None:
    raises = task_of("y.tanh()", "pass").pytorch_code.replace(
        "return y.tanh()", f"{check}\n            raise ValueError\n        return y.tanh()"
    )
    ask = torch.Tensor.__bool__
    assert lift(Task("mine", raises)).composition == ("mul_number", "tanh")
    assert torch.Tensor.__bool__ is ask
    with pytest.raises(LiftError, match="decides by the numbers in a tensor"):
        lift(Task("mine", raises.replace("raise ValueError", "y = y + 1")))


def test_an_assertion_about_numbers_is_passed() -> None:
    held = task_of("y.tanh()", "pass").pytorch_code.replace("return y", "assert (y < 99).all()\n        return y")
    assert lift(Task("mine", held)).composition == ("mul_number", "tanh")


def test_lifting_leaves_the_random_state_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    lift(task_of("torch.tanh(y)", "self.w = nn.Parameter(torch.randn(8))"))
    assert torch.equal(torch.rand(2), expected)


def test_strides_of_inputs_are_kept() -> None:
    task = load_tasks(TESTS / "fixture_tasks" / "strided_inputs.py").tasks[0]
    assert [i.stride for i in lift(task, task.input_set("small")).inputs] == [(1, 8), (32, 2)]


def test_sizes_and_names_play_no_part_in_the_fingerprint_and_numbers_do() -> None:
    def graph(code: str, size: str = "4, 8") -> Graph:
        return lift(task_of(code, "self.a = nn.Linear(8, 8)", size))

    one = graph("F.leaky_relu(self.a(y), 0.2)")
    assert one.fingerprint == graph("F.leaky_relu(self.a(y), 0.2)", "16, 8").fingerprint
    assert one.fingerprint != graph("F.leaky_relu(self.a(y), 0.3)").fingerprint
    assert one.digest(numbers=False) == graph("F.leaky_relu(self.a(y), 0.3)").digest(numbers=False)
    assert one.composition == ("mul_number", "linear", "leaky_relu")
    assert one != graph("F.leaky_relu(self.a(y), 0.2)", "16, 8")
    renamed = lift(
        Task("mine", ast.unparse(ast.parse(task_of("F.leaky_relu(self.zz(y), 0.2)", "self.zz = nn.Linear(8, 8)").pytorch_code)))
    )
    assert renamed == one
    assert hash(renamed) == hash(one)


def test_a_task_can_be_lifted_at_an_input_set() -> None:
    task = load_tasks(TESTS / "fixture_tasks" / "add_layernorm.py").tasks[0]
    assert lift(task, InputSet("mine", {"B": 2, "S": 3, "D": 5})).inputs[0].value.shape == (2, 3, 5)


def test_lifts_in_several_threads_do_not_break_each_other() -> None:
    """torch.export keeps what it does in globals."""
    ready, modules = Barrier(3), [nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)]) for _ in range(3)]

    def lifted(module: nn.Module) -> int:
        ready.wait()
        return len(lift_module(module, [torch.randn(4, 8)]).nodes)

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lifted, modules)) == [20, 20, 20]


def test_what_another_thread_traces_meanwhile_can_be_run() -> None:
    """A lift has fx write no Python for its own graphs."""

    class Beside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with ThreadPoolExecutor(1) as threads:
                doubled = threads.submit(torch.fx.symbolic_trace, nn.Linear(8, 8)).result()
            ran.append(doubled(torch.ones(2, 8)).shape)
            return x * 2

    ran: list[Any] = []
    assert len(lift_module(Beside(), [torch.randn(4, 8)]).nodes) == 1
    assert ran == [(2, 8)]
    assert torch.fx.symbolic_trace(nn.Linear(8, 8))(torch.ones(2, 8)).shape == (2, 8)


def test_lifts_in_several_threads_leave_warnings_as_they_were() -> None:
    before, inside, second = list(warnings.filters), Event(), Event()

    def first() -> None:
        with quiet():
            inside.set()
            second.wait(0.3)  # the other one is in here meanwhile, or waits for this one

    def other() -> None:
        inside.wait()
        with quiet():
            second.set()
            thread.join(0.3)

    thread = Thread(target=first)
    thread.start()
    other()
    thread.join()
    assert warnings.filters == before


@pytest.mark.parametrize("causal", [True, False])
def test_queries_that_share_keys_are_read_as_repeated_heads(causal: bool) -> None:
    class Grouped(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    inputs = [torch.randn(2, heads, 6, 8) for heads in (4, 2, 2)]
    graph = lift_module(Grouped(), inputs)
    assert not graph.unknown
    assert_same(graph, Grouped(), inputs)
