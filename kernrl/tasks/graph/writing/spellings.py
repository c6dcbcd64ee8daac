"""How PyTorch spells the ops of a Graph: as a function, a method, an operator or a module, each with its arguments.

A spelling is an expression of the operands `{x}`, `{y}`, `{z}` …; one of form `module` is what `__init__` makes, and is
called with `{x}` alone. `write.py` chooses among them.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from kernrl.tasks.graph.graph import Node

Spelling = tuple[str, str]
"""(form, text): form is `functional`, `method`, `operator` or `module`."""

FUNCTIONS = {
    "relu": "F.relu torch.relu .relu nn.ReLU", "silu": "F.silu nn.SiLU", "mish": "F.mish nn.Mish",
    "sigmoid": "torch.sigmoid F.sigmoid .sigmoid nn.Sigmoid", "tanh": "torch.tanh F.tanh .tanh nn.Tanh",
    "hardswish": "F.hardswish nn.Hardswish", "hardsigmoid": "F.hardsigmoid nn.Hardsigmoid", "selu": "F.selu torch.selu nn.SELU",
    "log_sigmoid": "F.logsigmoid nn.LogSigmoid", "softsign": "F.softsign nn.Softsign",
    "tanhshrink": "F.tanhshrink nn.Tanhshrink",
    "abs": "torch.abs .abs", "square": "torch.square .square", "neg": "torch.neg .neg", "sin": "torch.sin .sin",
    "exp": "torch.exp .exp", "sqrt": "torch.sqrt .sqrt", "rsqrt": "torch.rsqrt .rsqrt", "log": "torch.log .log",
}  # fmt: skip
"""Ops of one operand and no attribute → their names; `.relu` is a method."""

WRITTEN_OUT = {
    "silu": ("{x} * torch.sigmoid({x})", "{x} * {x}.sigmoid()"),
    "mish": ("{x} * torch.tanh(F.softplus({x}))",),
    "hardswish": ("{x} * F.relu6({x} + 3) / 6",),
    "softsign": ("{x} / (1 + torch.abs({x}))",),
    "tanhshrink": ("{x} - torch.tanh({x})",),
    "square": ("{x} * {x}", "{x} ** 2", "torch.pow({x}, 2)", "{x}.pow(2)"),
    "neg": ("-{x}",),
    "rsqrt": ("1 / torch.sqrt({x})",),
}
"""Ops as operators of others. `{x}` stands there more than once: only for a variable."""

OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "pow": "**"}


def spellings(node: Node, rank: int, rng: Random) -> list[Spelling]:
    """Every spelling of a node whose first operand has `rank` axes; parametrised modules are written by `write.py`."""
    op, a = node.op, dict(node.attributes)
    if op in FUNCTIONS:
        return [_named(name) for name in FUNCTIONS[op].split()] + [("operator", text) for text in WRITTEN_OUT.get(op, ())]
    if op in OPERATORS or op in ("maximum", "minimum"):
        return _binary(op)
    for table in (_activation, _reduction, _pool, _view):
        if found := table(op, a, rank, rng):
            return found
    raise NotImplementedError(f"no spelling of {op}")


def _named(name: str) -> Spelling:
    if name.startswith("."):
        return "method", "{x}" + name + "()"
    return ("module", name + "()") if name.startswith("nn.") else ("functional", name + "({x})")


def _binary(op: str) -> list[Spelling]:
    if op in ("maximum", "minimum"):
        return [("functional", f"torch.{op}({{x}}, {{y}})"), ("functional", f"torch.{op[:3]}({{x}}, {{y}})")]
    both: list[Spelling] = [("operator", f"{{x}} {OPERATORS[op]} {{y}}"), ("functional", f"torch.{op}({{x}}, {{y}})")]
    return [*both, ("method", f"{{x}}.{op}({{y}})")]


def _activation(op: str, a: dict[str, Any], rank: int, rng: Random) -> list[Spelling]:
    pair = lambda f, m, text: [("functional", f"F.{f}({{x}}, {text})"), ("module", f"nn.{m}({text})")]  # noqa: E731
    match op:
        case "leaky_relu":
            return pair("leaky_relu", "LeakyReLU", rng.choice(("{0}", "negative_slope={0}")).format(a["negative_slope"]))
        case "elu" | "celu":
            return pair(op, op.upper(), rng.choice(("{0}", "alpha={0}")).format(a["alpha"]))
        case "softshrink" | "hardshrink":
            return pair(op, op.capitalize(), f"{a['lambd']}")
        case "gelu":
            text = "approximate='tanh'" if a["approximate"] == "tanh" else ""
            return [
                ("functional", f"F.gelu({{x}}{', ' * bool(text)}{text})"),
                ("module", f"nn.GELU({text})"),
                ("operator", _gelu(a)),
            ]
        case "softplus":
            return pair(op, "Softplus", f"beta={a['beta']}, threshold={a['threshold']}")
        case "clamp":
            return _clamp(a["min"], a["max"])
    return []


def _gelu(a: dict[str, Any]) -> str:
    if a["approximate"] == "tanh":
        return f"0.5 * {{x}} * (1 + torch.tanh({math.sqrt(2 / math.pi)} * ({{x}} + 0.044715 * torch.pow({{x}}, 3))))"
    return "0.5 * {x} * (1.0 + torch.erf({x} / 2 ** 0.5))"


def _clamp(low: float | None, high: float | None) -> list[Spelling]:
    named = ", ".join(f"{k}={v}" for k, v in (("min", low), ("max", high)) if v is not None)
    found: list[Spelling] = [("functional", f"torch.clamp({{x}}, {named})"), ("method", f"{{x}}.clamp({named})")]
    if low is not None and high is not None:
        found += [("functional", f"F.hardtanh({{x}}, {low}, {high})"), ("module", f"nn.Hardtanh({low}, {high})")]
        found.append(("method", f"{{x}}.clamp(min={low}).clamp(max={high})"))
    return found


def _axes(dim: tuple[int, ...], rank: int, rng: Random) -> str:
    """One axis as a number, several as a tuple or list, counted from either end."""
    shown = [d - rank for d in dim] if rng.random() < 0.4 else list(dim)
    if len(shown) == 1:
        return str(shown[0])
    return str(shown) if rng.random() < 0.4 else str(tuple(shown))


def _reduction(op: str, a: dict[str, Any], rank: int, rng: Random) -> list[Spelling]:
    if "dim" not in a or op in ("squeeze", "unsqueeze", "layer_norm", "rms_norm", "unflatten"):
        return []
    dim, axes = a["dim"], _axes(a["dim"], rank, rng)
    if op in ("softmax", "log_softmax") and len(dim) > 1:
        first, last = dim[0], dim[-1]
        return [("method", f"{{x}}.flatten({first}, {last}).{op}({first}).view_as({{x}})")]
    if op in ("softmax", "log_softmax"):
        module = "Softmax" if op == "softmax" else "LogSoftmax"
        found: list[Spelling] = [("functional", f"{f}.{op}({{x}}, dim={axes})") for f in ("F", "torch")]
        return [*found, ("method", f"{{x}}.{op}({axes})"), ("module", f"nn.{module}(dim={axes})")]
    keep = ", keepdim=True" if a["keepdim"] else rng.choice(("", "", ", keepdim=False"))
    if op == "norm":
        return [("functional", f"torch.norm({{x}}, p=2, dim={axes}{keep})"), ("method", f"{{x}}.norm(p=2, dim={axes}{keep})")]
    if op not in ("sum", "mean", "amax", "amin", "logsumexp", "var", "std"):
        return []
    found = [("functional", f"torch.{op}({{x}}, dim={axes}{keep})"), ("method", f"{{x}}.{op}(dim={axes}{keep})")]
    if op in ("amax", "amin") and len(dim) == 1:
        found.append(("functional", f"torch.{op[1:]}({{x}}, dim={axes}{keep}){rng.choice(('[0]', '.values'))}"))
    if op in ("mean", "amax") and a["keepdim"] and 3 <= rank <= 5 and dim == tuple(range(2, rank)):
        kind, module = ("avg", "Avg") if op == "mean" else ("max", "Max")
        found.append(("functional", f"F.adaptive_{kind}_pool{rank - 2}d({{x}}, 1)"))
        found.append(("module", f"nn.Adaptive{module}Pool{rank - 2}d(1)"))
    if not a["keepdim"] and len(dim) == 1:
        found.append(("method", f"{{x}}.{op}(dim={dim[0]}, keepdim=True).squeeze({dim[0]})"))
    return found


def plain(numbers: tuple[int, ...]) -> str:
    """`2` for (2, 2), else the tuple."""
    return str(numbers[0]) if len(set(numbers)) == 1 else str(numbers)


def _pool(op: str, a: dict[str, Any], rank: int, rng: Random) -> list[Spelling]:
    kind, _, rest = op.partition("_pool")
    if kind not in ("avg", "max") or not rest:
        return []
    text = f"{plain(a['kernel_size'])}"
    if a["stride"] != a["kernel_size"] or rng.random() < 0.4:
        text += f", stride={plain(a['stride'])}"
    if any(a["padding"]):
        text += f", padding={plain(a['padding'])}"
    return [("functional", f"F.{op}({{x}}, {text})"), ("module", f"nn.{kind.capitalize()}Pool{rest}({text})")]


def _view(op: str, a: dict[str, Any], rank: int, rng: Random) -> list[Spelling]:
    match op:
        case "flatten":
            end = a["end_dim"] - rank
            found: list[Spelling] = [
                ("functional", f"torch.flatten({{x}}, {a['start_dim']}, {end})"),
                ("method", f"{{x}}.flatten({a['start_dim']}, {end})"),
            ]
            if end == -1 and a["start_dim"] == 1:
                found += [("module", "nn.Flatten()"), ("method", "{x}.reshape({x}.shape[0], -1)"), ("method", "{x}.flatten(1)")]
            return found
        case "squeeze":
            return [("method", "{x}" + "".join(f".squeeze({d})" for d in reversed(a["dim"])))]
        case "unsqueeze":
            return [("method", "{x}" + "".join(f".unsqueeze({d})" for d in a["dim"]))]
        case "reshape":
            return [("method", f"{{x}}.reshape({', '.join(map(str, a['shape']))})")]
        case "permute":
            moved = [i for i, d in enumerate(a["dims"]) if i != d]
            found = [
                ("method", f"{{x}}.permute({', '.join(map(str, a['dims']))})"),
                ("functional", f"torch.permute({{x}}, {a['dims']})"),
            ]
            if len(moved) == 2:
                found.append(("method", f"{{x}}.transpose({moved[0]}, {moved[1]})"))
                found.append(("method", f"{{x}}.transpose({moved[0] - rank}, {moved[1] - rank})"))
            return found
    return []
