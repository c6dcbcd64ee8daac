"""Many spellings of one computation give one Graph, and each Graph computes what its module does."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernrl.tasks.graph.lift import lift_module
from graph_cases import assert_same

IMAGE, ROWS, HEADS, VOLUME = (2, 8, 6, 10), (4, 12), (2, 3, 5, 4), (2, 4, 3, 5, 6)

# name, shapes of the inputs x, y, …; then spellings: the lines of forward, or (lines of __init__, lines of forward)
Spelling = str | tuple[str, str]
W = "self.w = nn.Parameter(torch.randn(12, 7)); self.b = nn.Parameter(torch.randn(7))"
V = "self.w = nn.Parameter(torch.randn(7, 12)); self.b = nn.Parameter(torch.randn(7))"
C = "self.p = nn.Parameter(torch.rand(8, 1, 1) + 0.5)"

CASES: list[tuple[str, tuple[tuple[int, ...], ...], list[Spelling]]] = [
    (
        "relu",
        (ROWS,),
        ["F.relu(x)", "x.relu()", ("self.a = nn.ReLU()", "self.a(x)"), "torch.clamp(x, min=0)", "x.clamp_min(0.0)"]
        + ["torch.where(x > 0, x, 0.0)", "F.relu_(x * 1)"]
        + [("self.a = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))", "self.a(x.clone())")]
        + [("self.register_buffer('zero', torch.tensor(0.0))", "torch.max(x, self.zero)")],
    ),
    (
        "silu",
        (ROWS,),
        ["F.silu(x)", "x * torch.sigmoid(x)", ("self.a = nn.SiLU()", "self.a(x)"), "torch.sigmoid(x).mul(x)"]
        + ["x / (1 + torch.exp(-x))", "s = x.sigmoid(); s *= x; return s", "x * (1 / (1 + torch.exp(-x)))"],
    ),
    ("mish", (ROWS,), ["F.mish(x)", "x * torch.tanh(F.softplus(x))", ("self.a = nn.Mish()", "self.a(x)")]),
    (
        "hardswish",
        (ROWS,),
        ["F.hardswish(x)", "x * F.relu6(x + 3) / 6", "x * (F.relu6(x + 3.0) / 6.0)", "x * F.hardsigmoid(x)"]
        + ["x * torch.clamp(x + 3, 0, 6) / 6", "x * F.hardtanh(3 + x, 0.0, 6.0) * (1 / 6)"],
    ),
    ("hardsigmoid", (ROWS,), ["F.hardsigmoid(x)", "F.relu6(x + 3) / 6", "torch.clamp(x + 3.0, 0.0, 6.0) / 6.0"]),
    (
        "gelu",
        (ROWS,),
        ["F.gelu(x)", "0.5 * x * (1 + torch.erf(x / math.sqrt(2)))", "x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476))"]
        + ["x * (0.5 * (torch.erf(x / 1.41421356) + 1.0))", ("self.a = nn.GELU()", "self.a(x)")],
    ),
    (
        "gelu_tanh",
        (ROWS,),
        ["F.gelu(x, approximate='tanh')", ("self.a = nn.GELU('tanh')", "self.a(x)")]
        + ["0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))"]
        + ["0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))"]
        + ["x * (1 + torch.tanh((x + x**3 * 0.044715) * math.sqrt(2 / math.pi))) * 0.5"],
    ),
    ("softsign", (ROWS,), ["F.softsign(x)", "x / (1 + x.abs())", "x / (torch.abs(x) + 1.0)"]),
    ("tanhshrink", (ROWS,), ["F.tanhshrink(x)", "x - torch.tanh(x)", ("self.a = nn.Tanhshrink()", "self.a(x)")]),
    (
        "leaky_relu",
        (ROWS,),
        ["F.leaky_relu(x, 0.2)", ("self.a = nn.LeakyReLU(0.2)", "self.a(x)"), "torch.where(x > 0, x, 0.2 * x)"]
        + [("self.slope = 0.2", "F.leaky_relu(x, negative_slope=self.slope)"), "torch.where(x >= 0, x, x * 0.2)"],
    ),
    ("sigmoid", (ROWS,), ["torch.sigmoid(x)", "x.sigmoid()", "F.sigmoid(x)", "1 / (1 + torch.exp(-x))"]),
    (
        "hardtanh",
        (ROWS,),
        ["F.hardtanh(x, -0.5, 2.0)", "x.clamp(-0.5, 2.0)", "x.clamp(min=-0.5).clamp(max=2.0)"]
        + ["torch.clamp(torch.clamp_max(x, 2.0), min=-0.5)", "torch.clip(x, -0.5, 2)"]
        + [("self.lo, self.hi = -0.5, 2.0", "torch.clamp(x, self.lo, self.hi)")],
    ),
    ("relu6", (ROWS,), ["F.relu6(x)", "F.relu(x).clamp(max=6)", "x.clamp(0, 6)", ("self.a = nn.ReLU6()", "self.a(x)")]),
    ("square", (ROWS,), ["x * x", "x ** 2", "x.pow(2)", "torch.square(x)", "torch.pow(x, 2.0)"]),
    ("double", (ROWS,), ["x + x", "2 * x", "x * 2.0", "torch.add(x, x)", "torch.mul(x, 2)", "torch.add(x, x, alpha=1)"]),
    ("reciprocal", (ROWS,), ["1 / x", "torch.reciprocal(x)", "x ** -1", "x.pow(-1.0)"]),
    ("rsqrt", (ROWS,), ["torch.rsqrt(x.abs())", "1 / torch.sqrt(x.abs())", "x.abs() ** -0.5", "x.abs().pow(0.5).reciprocal()"]),
    ("negate", (ROWS,), ["-x", "x * -1", "torch.neg(x)", "-1.0 * x"]),
    ("minus", (ROWS, ROWS), ["x - y", "x + (-y)", "torch.sub(x, y)", "-y + x", "torch.rsub(y, x)"]),
    ("shift", (ROWS,), ["x - 0.5", "x + (-0.5)", "torch.sub(x, 0.5)", "x.add(-0.5)", ("self.s = 0.5", "x - self.s")]),
    (
        "scale from anywhere",
        (ROWS,),
        ["x * 1.7", ("self.s = 1.7", "x * self.s"), ("self.register_buffer('s', torch.tensor(1.7))", "x * self.s")]
        + [("self.register_buffer('s', torch.tensor([1.7]))", "self.s * x"), ("self.s = torch.tensor(1.7)", "x * self.s")]
        + ["x.mul_(1.7)", "x * torch.tensor(1.7)", ("self.half = 0.85", "x * (self.half + self.half)")],
    ),
    ("interpolate", (ROWS, ROWS), ["torch.lerp(x, y, 0.3)", "x + 0.3 * (y - x)", "(y - x).mul(0.3).add(x)"]),
    ("addcmul", (ROWS, ROWS), ["torch.addcmul(x, x, y, value=0.5)", "x + 0.5 * (x * y)", "x + (y * x) * 0.5"]),
    (
        "linear",
        (ROWS,),
        [("self.l = nn.Linear(12, 7)", "self.l(x)"), (V, "F.linear(x, self.w, self.b)"), (V, "x @ self.w.t() + self.b")]
        + [(V, "torch.addmm(self.b, x, self.w.T)"), (V, "torch.einsum('bi,oi->bo', x, self.w) + self.b")]
        + [(V, "torch.matmul(x, self.w.transpose(0, 1)).add(self.b)"), ("self.l = nn.Sequential(nn.Linear(12, 7))", "self.l(x)")],
    ),
    (
        "matmul",
        (ROWS,),
        [(W, "x @ self.w + self.b"), (W, "torch.addmm(self.b, x, self.w)"), (W, "torch.mm(x, self.w) + self.b")]
        + [(W, "F.linear(x, self.w.t(), self.b)"), (W, "torch.einsum('ij,jk->ik', x, self.w) + self.b")]
        + [(W, "y = x.matmul(self.w); y += self.b; return y")],
    ),
    (
        "bmm",
        ((3, 4, 5), (3, 5, 6)),
        ["torch.bmm(x, y)", "x @ y", "torch.matmul(x, y)", "torch.einsum('bij,bjk->bik', x, y)", "torch.einsum('nab,nbc->nac', x, y)"]
        + ["torch.baddbmm(x.new_zeros(1), x, y, beta=0)"],
    ),
    (
        "attention scores",
        (HEADS, HEADS),
        ["q = x @ y.transpose(-2, -1); return (q * 0.5).softmax(-1)", "torch.softmax(0.5 * (x @ y.mT), 3)"]
        + ["torch.einsum('bhid,bhjd->bhij', x, y).mul(0.5).softmax(dim=-1)"],
    ),
    (
        "attention",
        (HEADS, HEADS, HEADS),
        ["F.scaled_dot_product_attention(x, y, z)", "((x @ y.transpose(-2, -1)) * 4 ** -0.5).softmax(-1) @ z"],
    ),
    (
        "einsum channels",
        (IMAGE,),
        [("self.w = nn.Parameter(torch.randn(5, 8))", "torch.einsum('bchw,oc->bohw', x, self.w)")]
        + [("self.w = nn.Parameter(torch.randn(5, 8))", "F.linear(x.permute(0, 2, 3, 1), self.w).permute(0, 3, 1, 2)")],
    ),
    ("outer", ((5,), (7,)), ["torch.outer(x, y)", "x[:, None] * y[None, :]", "torch.einsum('i,j->ij', x, y)", "x.unsqueeze(1) * y.unsqueeze(0)"]),
    ("dot", ((5,), (5,)), ["torch.dot(x, y)", "(x * y).sum()", "torch.einsum('i,i->', x, y)"]),
    (
        "global average",
        (IMAGE,),
        ["x.mean((2, 3))", "x.mean(dim=[-1, -2])", "F.adaptive_avg_pool2d(x, 1).flatten(1)", "x.flatten(2).mean(-1)"]
        + ["x.mean(3).mean(2)", "F.adaptive_avg_pool2d(x, (1, 1)).squeeze(-1).squeeze(-1)", "x.view(2, 8, -1).mean(dim=2)"]
        + [("self.p = nn.AdaptiveAvgPool2d(1)", "self.p(x).view(x.size(0), -1)"), "x.mean((2, 3), keepdim=True)[:, :, 0, 0]"]
        + ["F.avg_pool2d(x, (6, 10)).reshape(2, 8)", "torch.mean(x, dim=(-2, -1), keepdim=True).squeeze()"],
    ),
    (
        "global max",
        (IMAGE,),
        ["x.amax((2, 3), keepdim=True)", "F.adaptive_max_pool2d(x, 1)", "x.max(3, keepdim=True)[0].max(2, keepdim=True)[0]"]
        + ["torch.amax(x, dim=(-1, -2)).view(2, 8, 1, 1)", "F.max_pool2d(x, x.shape[2:])", "x.flatten(2).max(-1).values[..., None, None]"],
    ),
    ("max of rows", (ROWS,), ["torch.max(x, dim=1)[0]", "x.amax(1)", "x.max(-1).values", "torch.max(x, 1, keepdim=True).values.squeeze(1)"]),
    ("sum", (ROWS,), ["x.sum()", "torch.sum(x, dim=(0, 1))", "x.sum(1).sum(0)", "x.flatten().sum()", "x.sum(dim=-1).sum()"]),
    ("std", (ROWS,), ["x.std(1)", "torch.sqrt(x.var(dim=-1))", "x.var(1).sqrt()", "torch.std(x, dim=1, unbiased=True)"]),
    ("length", (ROWS,), ["x.norm(dim=1)", "torch.norm(x, p=2, dim=-1)", "torch.linalg.norm(x, dim=1)", "torch.linalg.vector_norm(x, 2, 1)"]),
    (
        "normalize",
        (ROWS,),
        ["F.normalize(x, dim=1)", "x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)", "F.normalize(x, p=2.0, dim=-1)"],
    ),
    (
        "softmax",
        (ROWS,),
        ["F.softmax(x, dim=-1)", "x.softmax(1)", ("self.s = nn.Softmax(dim=1)", "self.s(x)")]
        + ["e = torch.exp(x - x.amax(1, keepdim=True)); return e / e.sum(1, keepdim=True)"]
        + ["e = (x - x.max(-1, keepdim=True).values).exp(); return e / e.sum(-1, keepdim=True)"],
    ),
    (
        "softmax of space",
        (IMAGE,),
        ["x.flatten(2).softmax(-1).view_as(x)", "F.softmax(x.reshape(2, 8, 60), dim=2).reshape(2, 8, 6, 10)"]
        + ["torch.softmax(x.view(2 * 8, -1), 1).view(2, 8, 6, 10)"],
    ),
    ("softmin", (ROWS,), ["F.softmin(x, dim=1)", "(-x).softmax(-1)"]),
    (
        "logsumexp",
        (ROWS,),
        ["torch.logsumexp(x, 1, keepdim=True)", "x.logsumexp(-1).unsqueeze(1)", "torch.logsumexp(x, dim=[1])[:, None]"],
    ),
    (
        "x minus mean",
        (IMAGE,),
        ["x - x.mean(1, keepdim=True)", "x - x.mean(-3).unsqueeze(1)", "x - torch.mean(x, dim=1)[:, None]"]
        + ["x - x.mean(1, keepdim=True).expand_as(x)", "x + -x.mean(dim=1, keepdim=True)"],
    ),
    (
        "layer norm",
        (ROWS,),
        [("self.n = nn.LayerNorm(12)", "self.n(x)")]
        + [("self.w = nn.Parameter(torch.ones(12)); self.b = nn.Parameter(torch.zeros(12))", "F.layer_norm(x, (12,), self.w, self.b)")]
        + [
            (
                "self.w = nn.Parameter(torch.ones(12)); self.b = nn.Parameter(torch.zeros(12))",
                "m = x.mean(-1, keepdim=True); v = x.var(-1, keepdim=True, unbiased=False); "
                "return (x - m) / torch.sqrt(v + 1e-5) * self.w + self.b",
            ),
            (
                "self.w = nn.Parameter(torch.ones(12)); self.b = nn.Parameter(torch.zeros(12))",
                "d = x - x.mean(-1, keepdim=True); return self.b + self.w * (d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5))",
            ),
        ],
    ),
    (
        "rms norm",
        (ROWS,),
        [("self.n = nn.RMSNorm(12, eps=1e-6)", "self.n(x)")]
        + [("self.g = nn.Parameter(torch.ones(12))", "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g")]
        + [("self.g = nn.Parameter(torch.ones(12))", "self.g * (x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-6))")]
        + [("self.g = nn.Parameter(torch.ones(12))", "F.rms_norm(x, [12], self.g, 1e-6)")],
    ),
    (
        "rms norm over channels",
        (IMAGE,),
        ["x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)", "x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt()"],
    ),
    (
        "instance norm",
        (IMAGE,),
        ["F.instance_norm(x)", ("self.n = nn.InstanceNorm2d(8)", "self.n(x)"), ("self.n = nn.GroupNorm(8, 8, affine=False)", "self.n(x)")],
    ),
    (
        "group norm",
        (IMAGE,),
        [("self.n = nn.GroupNorm(4, 8)", "self.n(x)")]
        + [("self.w = nn.Parameter(torch.ones(8)); self.b = nn.Parameter(torch.zeros(8))", "F.group_norm(x, 4, self.w, self.b)")],
    ),
    (
        "batch norm in eval",
        (IMAGE,),
        [("self.n = nn.BatchNorm2d(8).eval()", "self.n(x)")]
        + [("self.n = nn.BatchNorm2d(8)", "n = self.n; return F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias)")]
        + [("self.n = nn.BatchNorm2d(8); self.eval()", "F.batch_norm(x, self.n.running_mean, self.n.running_var, self.n.weight, self.n.bias, training=self.training)")],
    ),
    (
        "batch norm in training",
        (IMAGE,),
        [("self.n = nn.BatchNorm2d(8)", "self.n(x)")]
        + [("self.n = nn.Sequential(nn.BatchNorm2d(8))", "self.n(x)")]
        + [("self.n = nn.BatchNorm2d(8)", "n = self.n; return F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, training=True)")],
    ),
    (
        "dropout that does nothing",
        (ROWS,),
        ["torch.tanh(x)", ("self.d = nn.Dropout(0.5).eval()", "self.d(torch.tanh(x))"), ("self.d = nn.Dropout(p=0.0)", "self.d(x).tanh()")]
        + ["F.dropout(x.tanh(), 0.3, training=False)", "torch.tanh(x).contiguous().clone()", "x.tanh().to(torch.float32) if x.dtype == torch.float32 else x.tanh()"],
    ),
    (
        "convolution",
        (IMAGE,),
        [("self.c = nn.Conv2d(8, 4, 3, padding=1)", "self.c(x)"), ("self.c = nn.Conv2d(8, 4, (3, 3), padding='same')", "self.c(x)")]
        + [("self.c = nn.Conv2d(8, 4, 3)", "F.conv2d(x, self.c.weight, self.c.bias, stride=(1, 1), padding=(1, 1))")]
        + [("self.c = nn.Sequential(nn.Conv2d(8, 4, 3, 1, 1))", "self.c(x)")],
    ),
    (
        "transposed convolution",
        (IMAGE,),
        [("self.c = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)", "self.c(x)")]
        + [("self.c = nn.ConvTranspose2d(8, 4, 3)", "F.conv_transpose2d(x, self.c.weight, self.c.bias, stride=2, padding=1, output_padding=1)")],
    ),
    (
        "weight norm",
        (ROWS,),
        [("self.l = nn.utils.parametrizations.weight_norm(nn.Linear(12, 7))", "self.l(x)")]
        + [("self.g = nn.Parameter(torch.ones(7, 1)); self.v = nn.Parameter(torch.randn(7, 12)); self.b = nn.Parameter(torch.zeros(7))", "F.linear(x, self.v * (self.g / self.v.norm(dim=1, keepdim=True)), self.b)")],
    ),
    ("max pool", (IMAGE,), ["F.max_pool2d(x, 2)", ("self.p = nn.MaxPool2d(2, stride=2)", "self.p(x)"), "F.max_pool2d(x, (2, 2), stride=(2, 2))"]),
    ("average pool", (IMAGE,), ["F.avg_pool2d(x, 2)", ("self.p = nn.AvgPool2d((2, 2))", "self.p(x)"), "F.avg_pool2d(x, [2, 2], [2, 2], 0)"]),
    (
        "parameter per channel",
        (IMAGE,),
        [(C, "x * self.p"), (C, "self.p * x"), (C, "torch.mul(x, self.p)"), (C, "x *= self.p; return x"), (C, "x * self.p.expand(8, 6, 10)")],
    ),
    ("swap", (HEADS,), ["x.transpose(1, 2)", "x.permute(0, 2, 1, 3)", "torch.swapaxes(x, 2, 1)", "torch.movedim(x, 1, 2)", "x.transpose(-3, -2).contiguous()"]),
    ("flatten", (IMAGE,), ["x.flatten(1)", "x.view(2, -1)", "x.reshape(x.shape[0], -1)", "torch.flatten(x, start_dim=1)", ("self.f = nn.Flatten()", "self.f(x)")]),
    ("view before or behind", (IMAGE,), ["F.relu(x.flatten(1))", "F.relu(x).flatten(1)", "x.view(2, -1).clamp(min=0)"]),
    ("halves", (IMAGE,), ["a, b = x.chunk(2, 1); return a * b", "x[:, :4] * x[:, 4:]", "a, b = torch.split(x, 4, dim=1); return b * a", "x.narrow(1, 0, 4) * x.narrow(1, 4, 4)"]),
    ("gated linear unit", (IMAGE,), ["F.glu(x, dim=1)", "a, b = x.chunk(2, dim=1); return a * torch.sigmoid(b)", ("self.g = nn.GLU(1)", "self.g(x)")]),
    ("stack", (ROWS, ROWS), ["torch.stack([x, y], 1)", "torch.cat([x[:, None], y[:, None]], dim=1)", "torch.stack((x, y), dim=-2)"]),
    ("residual", (ROWS,), ["x + torch.tanh(x)", "y = torch.tanh(x); return y + x", "y = x.tanh(); y += x; return y", "torch.add(x.tanh(), x)"]),
    (
        "helpers and containers",
        (ROWS,),
        [
            ("self.a = nn.Linear(12, 12); self.b = nn.Linear(12, 12)", "self.b(F.relu(self.a(x)))"),
            ("self.net = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12))", "self.net(x)"),
            ("self.zz = nn.Linear(12, 12); self.aa = nn.Linear(12, 12)", "for f in (self.zz, torch.relu, self.aa):\n    x = f(x)\nreturn x"),
            ("self.m = nn.ModuleList([nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12)])", "for m in self.m: x = m(x)\nreturn x"),
        ],
    ),
    ("no grad", (ROWS,), ["torch.tanh(x) * 2", "with torch.no_grad():\n    y = x.tanh()\n    y = y * 2\nreturn y"]),
    ("masked", (ROWS,), ["x.masked_fill(x > 1, 0.5)", "torch.where(x > 1, 0.5, x)", "torch.where(~(x > 1), x, 0.5)", "x.masked_fill_(x > 1, 0.5)"]),
    ("mean squared", (ROWS, ROWS), ["F.mse_loss(x, y)", "((x - y) ** 2).mean()", "torch.mean(torch.square(x - y))"]),
    ("volume", (VOLUME,), ["x.mean((2, 3, 4), keepdim=True)", "F.adaptive_avg_pool3d(x, 1)", ("self.p = nn.AdaptiveAvgPool3d((1, 1, 1))", "self.p(x)")]),
]  # fmt: skip

PAIRS = [(name, shapes, spellings[0], other) for name, shapes, spellings in CASES for other in spellings[1:]]


def module_of(spelling: Spelling, count: int) -> nn.Module:
    """The module that a spelling describes."""
    init, forward = spelling if isinstance(spelling, tuple) else ("pass", spelling)
    body = forward if "return " in forward else f"return {forward}"
    if "\n" not in body:
        body = "\n".join(part.strip() for part in body.split("; "))
    source = "\n".join(
        [
            "class Model(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            textwrap.indent("\n".join(init.split("; ")), " " * 8),
            f"    def forward(self, {', '.join('xyz'[:count])}):",
            textwrap.indent(body, " " * 8),
        ]
    )
    scope: dict[str, Any] = {"nn": nn, "torch": torch, "F": F, "math": __import__("math")}
    exec(source, scope)
    torch.manual_seed(0)
    return scope["Model"]()


def test_there_are_many_pairs() -> None:
    assert len(PAIRS) >= 60


@pytest.mark.parametrize(("name", "shapes", "one", "other"), PAIRS, ids=[f"{p[0]}: {p[3]}"[:70] for p in PAIRS])
def test_two_spellings_give_one_graph(name: str, shapes: tuple[tuple[int, ...], ...], one: Spelling, other: Spelling) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(shape) for shape in shapes]
    graphs = []
    for spelling in (one, other):
        module = module_of(spelling, len(shapes))
        graphs.append(lift_module(module, inputs))
        assert not graphs[-1].unknown, graphs[-1].listing()
        assert_same(graphs[-1], module, inputs)
    first, second = graphs
    assert first == second, f"{first.listing()}\n\n{second.listing()}"
    assert first.fingerprint == second.fingerprint
    assert first.composition == second.composition
