"""How PyTorch spells the ops of a Graph: as a function, a method, an operator or a module, each with its arguments.

A spelling is an expression of the operands `{x}`, `{y}`, `{z}` …; one of form `module` is what `__init__` makes, and is
called with `{x}` alone. `write.py` chooses among them, and gives the names of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

from kernrl.tasks.graph.canonical.views import axis_groups
from kernrl.tasks.graph.graph import Node, Value

Spelling = tuple[str, str]
"""(form, text): form is `functional`, `method`, `operator` or `module`."""

PLACES = ("{x}", "{y}", "{z}", *(f"{{{i}}}" for i in range(3, 24)))
"""What stands for the operands in a spelling, in order."""


class NoSpellingError(Exception):
    """A Graph that cannot be written; the message says for want of what."""


FUNCTIONS = {
    "relu": "F.relu torch.relu .relu nn.ReLU", "silu": "F.silu nn.SiLU", "mish": "F.mish nn.Mish",
    "sigmoid": "torch.sigmoid F.sigmoid .sigmoid nn.Sigmoid", "tanh": "torch.tanh F.tanh .tanh nn.Tanh",
    "hardswish": "F.hardswish nn.Hardswish", "hardsigmoid": "F.hardsigmoid nn.Hardsigmoid", "selu": "F.selu torch.selu nn.SELU",
    "log_sigmoid": "F.logsigmoid nn.LogSigmoid", "softsign": "F.softsign nn.Softsign",
    "tanhshrink": "F.tanhshrink nn.Tanhshrink",
    "abs": "torch.abs .abs", "square": "torch.square .square", "neg": "torch.neg .neg", "sin": "torch.sin .sin",
    "exp": "torch.exp .exp", "sqrt": "torch.sqrt .sqrt", "rsqrt": "torch.rsqrt .rsqrt", "log": "torch.log .log",
    "expm1": "torch.expm1 .expm1", "exp2": "torch.exp2 .exp2", "erf": "torch.erf .erf", "erfc": "torch.erfc .erfc",
    "log1p": "torch.log1p .log1p", "log2": "torch.log2 .log2", "log10": "torch.log10 .log10", "cos": "torch.cos .cos",
    "tan": "torch.tan .tan", "asin": "torch.asin .asin", "acos": "torch.acos .acos", "atan": "torch.atan .atan torch.arctan",
    "sinh": "torch.sinh .sinh", "cosh": "torch.cosh .cosh", "floor": "torch.floor .floor", "ceil": "torch.ceil .ceil",
    "round": "torch.round .round", "trunc": "torch.trunc .trunc", "sign": "torch.sign .sign",
    "logical_not": "torch.logical_not .logical_not", "isnan": "torch.isnan .isnan", "isinf": "torch.isinf .isinf",
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

OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "pow": "**", "remainder": "%"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGIC = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}


Size = tuple[int, ...]
"""A size at each of the Graphs that are written."""
Shape = tuple[Size, ...]


def spellings(node: Node, values: Mapping[str, Value], rng: Random, shapes: Mapping[str, Shape]) -> list[Spelling]:
    """Every spelling of a node; modules with parameters are written by `write.py`.

    Args:
        values: Of the Graph, by name. Numbers in a spelling are of it.
        shapes: Value → its shape at each of the Graphs: what varies follows from others, where there is a way to say it.

    Raises:
        NoSpellingError: The op has none, or none with these attributes.
    """
    op, a, shape = node.op, dict(node.attributes), values[node.reads[0]].shape
    rank = len(shape)
    if op in FUNCTIONS:
        return [_named(name) for name in FUNCTIONS[op].split()] + [("operator", text) for text in WRITTEN_OUT.get(op, ())]
    for found in (
        _binary(op, a),
        _choice(node, values),
        _activation(op, a, rank, rng),
        _reduction(op, a, rank, rng),
        _pool(op, a, rank, rng),
        _view(op, a, shapes[node.reads[0]], shapes[node.value.name], rng),
        _part(op, a, shape, rng),
        _move(node, a, rank, rng),
    ):
        if found:
            return found
    raise NoSpellingError(f"there is no spelling of {op} with {a}" if a else f"there is no spelling of {op}")


def _named(name: str) -> Spelling:
    if name.startswith("."):
        return "method", "{x}" + name + "()"
    return ("module", name + "()") if name.startswith("nn.") else ("functional", name + "({x})")


def _binary(op: str, a: dict[str, Any]) -> list[Spelling]:
    if op in ("maximum", "minimum"):
        return [("functional", f"torch.{op}({{x}}, {{y}})"), ("functional", f"torch.{op[:3]}({{x}}, {{y}})")]
    if op == "atan2":
        return [("functional", "torch.atan2({x}, {y})"), ("method", "{x}.atan2({y})")]
    if op == "fmod":
        return [("functional", "torch.fmod({x}, {y})"), ("method", "{x}.fmod({y})")]
    if op == "div" and (mode := a["rounding_mode"]):
        found: list[Spelling] = [("functional", f"torch.div({{x}}, {{y}}, rounding_mode={mode!r})")]
        return [*found, ("operator", "{x} // {y}")] if mode == "floor" else found
    if sign := (OPERATORS | COMPARISONS | LOGIC).get(op):
        both: list[Spelling] = [("operator", f"{{x}} {sign} {{y}}"), ("functional", f"torch.{op}({{x}}, {{y}})")]
        return [*both, ("method", f"{{x}}.{op}({{y}})")]
    return []


def _choice(node: Node, values: Mapping[str, Value]) -> list[Spelling]:
    """`where`, and a mask that is filled with a number."""
    if node.op != "where":
        return []
    found: list[Spelling] = [("functional", "torch.where({x}, {y}, {z})")]
    number, x = node.operands[1:]
    if isinstance(x, str) and not isinstance(number, str) and values[x].shape == node.value.shape:
        found.append(("method", "{z}.masked_fill({x}, {y})"))
    return found


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
        case "threshold":
            return pair("threshold", "Threshold", f"{a['threshold']}, {a['value']}")
        case "prelu":  # with a weight that is made of others; `write.py` writes the module
            return [("functional", "F.prelu({x}, {y})")]
        case "cast":
            known = {"float32": "float", "int64": "long", "bool": "bool", "int32": "int", "float64": "double"}
            found: list[Spelling] = [("method", f"{{x}}.to(torch.{a['dtype']})")]
            return [*found, ("method", f"{{x}}.{known[a['dtype']]}()")] if a["dtype"] in known else found
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


REDUCTIONS = ("softmax", "log_softmax", "sum", "mean", "amax", "amin", "logsumexp", "var", "std", "norm")
REDUCTIONS += ("argmax", "argmin", "prod", "any", "all")


def number_text(number: object) -> str:
    """A number as Python: infinity has no literal."""
    return f"float('{number}')" if isinstance(number, float) and not math.isfinite(number) else repr(number)


def _reduction(op: str, a: dict[str, Any], rank: int, rng: Random) -> list[Spelling]:
    if op in ("cumsum", "cumprod", "logcumsumexp"):
        shown = rng.choice((a["dim"], a["dim"] - rank))
        return [("functional", f"torch.{op}({{x}}, dim={shown})"), ("method", f"{{x}}.{op}(dim={shown})")]
    if op not in REDUCTIONS:
        return []
    dim, axes = a["dim"], _axes(a["dim"], rank, rng)
    if op in ("softmax", "log_softmax") and len(dim) > 1:
        first, last = dim[0], dim[-1]
        if dim != tuple(range(first, last + 1)):
            return []
        return [("method", f"{{x}}.flatten({first}, {last}).{op}({first}).view_as({{x}})")]
    if op in ("softmax", "log_softmax"):
        module = "Softmax" if op == "softmax" else "LogSoftmax"
        found: list[Spelling] = [("functional", f"{f}.{op}({{x}}, dim={axes})") for f in ("F", "torch")]
        return [*found, ("method", f"{{x}}.{op}({axes})"), ("module", f"nn.{module}(dim={axes})")]
    keep = ", keepdim=True" if a["keepdim"] else rng.choice(("", "", ", keepdim=False"))
    if op == "norm":
        p = 2 if a["p"] == 2 else number_text(a["p"])
        return [
            ("functional", f"torch.norm({{x}}, p={p}, dim={axes}{keep})"),
            ("method", f"{{x}}.norm(p={p}, dim={axes}{keep})"),
        ]
    if op in ("argmax", "argmin", "prod", "any", "all") and len(dim) > 1:
        if op in ("argmax", "argmin"):  # over everything, or nothing that PyTorch has
            whole = len(dim) == rank and not a["keepdim"]
            return [("functional", f"torch.{op}({{x}})"), ("method", f"{{x}}.{op}()")] if whole else []
        kept = ", keepdim=True" if a["keepdim"] else ""
        return [("method", "{x}" + "".join(f".{op}(dim={d}{kept})" for d in reversed(dim)))]
    if op in ("var", "std") and a["correction"] != 1:
        keep += (
            rng.choice((", unbiased=False", ", correction=0")) if a["correction"] == 0 else f", correction={a['correction']}"
        )
    found = [("functional", f"torch.{op}({{x}}, dim={axes}{keep})"), ("method", f"{{x}}.{op}(dim={axes}{keep})")]
    if op in ("amax", "amin") and len(dim) == 1:
        found.append(("functional", f"torch.{op[1:]}({{x}}, dim={axes}{keep}){rng.choice(('[0]', '.values'))}"))
    if op in ("mean", "amax") and a["keepdim"] and 3 <= rank <= 5 and dim == tuple(range(2, rank)):
        kind, module = ("avg", "Avg") if op == "mean" else ("max", "Max")
        found.append(("functional", f"F.adaptive_{kind}_pool{rank - 2}d({{x}}, 1)"))
        found.append(("module", f"nn.Adaptive{module}Pool{rank - 2}d(1)"))
    if not a["keepdim"] and len(dim) == 1 and a.get("correction", 1) == 1:
        found.append(("method", f"{{x}}.{op}(dim={dim[0]}, keepdim=True).squeeze({dim[0]})"))
    return found


def plain(numbers: tuple[int, ...]) -> str:
    """`2` for (2, 2), else the tuple."""
    return str(numbers[0]) if len(set(numbers)) == 1 else str(numbers)


def _pool(op: str, a: dict[str, Any], rank: int, rng: Random) -> list[Spelling]:
    kind, _, rest = op.partition("_pool")
    if not rest or kind.removeprefix("adaptive_") not in ("avg", "max"):
        return []
    module = f"nn.{''.join(map(str.capitalize, kind.split('_')))}Pool{rest}"
    if "adaptive" in kind:
        text = plain(a["output_size"])
        return [("functional", f"F.{op}({{x}}, {text})"), ("module", f"{module}({text})")]
    text = f"{plain(a['kernel_size'])}"
    if a["stride"] != a["kernel_size"] or rng.random() < 0.4:
        text += f", stride={plain(a['stride'])}"
    if any(a["padding"]):
        text += f", padding={plain(a['padding'])}"
    if "dilation" in a and set(a["dilation"]) != {1}:
        text += f", dilation={plain(a['dilation'])}"
    if a["ceil_mode"]:
        text += ", ceil_mode=True"
    if not a.get("count_include_pad", True):
        text += ", count_include_pad=False"
    if divisor := a.get("divisor_override"):
        text += f", divisor_override={divisor}"
    return [("functional", f"F.{op}({{x}}, {text})"), ("module", f"{module}({text})")]


def _view(op: str, a: dict[str, Any], shape: Shape, after: Shape, rng: Random) -> list[Spelling]:
    rank = len(shape)
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
            sizes = _reshaped(a["shape"], shape, after)
            return [("method", f"{{x}}.reshape({sizes})"), ("functional", f"torch.reshape({{x}}, [{sizes}])")]
        case "unflatten":
            sizes = list(a["sizes"])
            sizes[max(range(len(sizes)), key=lambda i: (varies(after[a["dim"] + i]), sizes[i]))] = -1
            shown = f"{a['dim']}, {tuple(sizes)}"
            return [("method", f"{{x}}.unflatten({shown})"), ("module", f"nn.Unflatten({shown})")]
        case "expand":
            new = len(a["shape"]) - rank
            sizes = [-1 if i >= new and after[i] == shape[i - new] else n for i, n in enumerate(a["shape"])]
            return [("method", f"{{x}}.expand({', '.join(map(str, sizes))})")]
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


def varies(size: Size) -> bool:
    """Whether a size is not the same at all Graphs."""
    return len(set(size)) > 1


def _reshaped(numbers: tuple[int, ...], shape: Shape, after: Shape) -> str:
    """The sizes of a reshape: those that stay follow the operand, and one is left open."""
    sizes = ["1"] * len(after)
    for ours, theirs in axis_groups(tuple(s[0] for s in shape), tuple(s[0] for s in after)):
        same = {after[t]: o for o in ours for t in theirs if shape[o] == after[t]}
        for t in theirs:
            at, follows = same.get(after[t]), after[t][0] >= 8 or varies(after[t])
            sizes[t] = f"{{x}}.shape[{at}]" if at is not None and follows else str(numbers[t])
    free = [t for t, text in enumerate(sizes) if text.isdigit() and after[t][0] > 1]
    if free:
        sizes[max(free, key=lambda t: (varies(after[t]), after[t][0]))] = "-1"
    return ", ".join(sizes)


def _indexed(d: int, index: str, rank: int) -> str:
    """An index of one axis, the others whole."""
    return "{x}[..., " + index + "]" if d == rank - 1 and rank > 2 else "{x}[" + ":, " * d + index + "]"


def _part(op: str, a: dict[str, Any], shape: tuple[int, ...], rng: Random) -> list[Spelling]:
    """Parts of an axis."""
    match op:
        case "select":
            d, index = a["dim"], a["index"]
            return [("operator", _indexed(d, str(index), len(shape))), ("method", f"{{x}}.select({d}, {index})")]
        case "slice":
            d, start, stop, step = a["dim"], a["start"], a["stop"], a["step"]
            end = shape[d]
            half = f"{{x}}.shape[{d}] // 2" if end % 2 == 0 and end >= 8 else ""
            first = "" if start == 0 else half if half and start == end // 2 else str(start)
            last = "" if stop >= end else half if half and stop == end // 2 else str(stop - end if end - stop < 4 else stop)
            found: list[Spelling] = [("operator", _indexed(d, f"{first}:{last}" + f":{step}" * (step != 1), len(shape)))]
            if step == 1 and start == 0 and last == str(stop):
                found.append(("method", f"{{x}}.narrow({d}, 0, {stop})"))
            return found
        case "chunk" if shape[a["dim"]] > a["chunks"]:  # pieces of one are slices
            d = rng.choice((a["dim"], a["dim"] - len(shape)))
            return [
                ("functional", f"torch.chunk({{x}}, {a['chunks']}, dim={d})[{a['index']}]"),
                ("method", f"{{x}}.chunk({a['chunks']}, dim={d})[{a['index']}]"),
            ]
    return []


def _move(node: Node, a: dict[str, Any], rank: int, rng: Random) -> list[Spelling]:
    """Elements in other places."""
    op = node.op
    match op:
        case "cat":
            parts = ", ".join(PLACES[: len(node.operands)])
            d = rng.choice((a["dim"], a["dim"] - rank))
            return [("functional", f"torch.{name}([{parts}], dim={d})") for name in ("cat", "concat")]
        case "pad":
            return _padded(a, rank)
        case "flip":
            return [("functional", f"torch.flip({{x}}, {list(a['dim'])})"), ("method", f"{{x}}.flip({a['dim']})")]
        case "roll":
            shown = f"{a['shifts']}, {a['dim']}" if len(a["dim"]) > 1 else f"shifts={a['shifts'][0]}, dims={a['dim'][0]}"
            return [("functional", f"torch.roll({{x}}, {shown})"), ("method", f"{{x}}.roll({shown})")]
        case "repeat":
            return [("method", f"{{x}}.repeat({', '.join(map(str, a['repeats']))})")]
        case "tril" | "triu":
            shown = f", diagonal={a['diagonal']}" if a["diagonal"] else ""
            return [("functional", f"torch.{op}({{x}}{shown})"), ("method", f"{{x}}.{op}({shown[2:]})")]
        case "pixel_shuffle" | "pixel_unshuffle":
            factor = a["upscale_factor" if op == "pixel_shuffle" else "downscale_factor"]
            module = "PixelShuffle" if op == "pixel_shuffle" else "PixelUnshuffle"
            return [("functional", f"F.{op}({{x}}, {factor})"), ("module", f"nn.{module}({factor})")]
    return []


def _padded(a: dict[str, Any], rank: int) -> list[Spelling]:
    padding, mode, value = a["padding"], a["mode"], a["value"]
    count = len(padding) // 2
    if mode != "constant":
        found: list[Spelling] = [("functional", f"F.pad({{x}}, {padding}, mode={mode!r})")]
        kind = {"reflect": "Reflection", "replicate": "Replication", "circular": "Circular"}[mode]
        return [*found, ("module", f"nn.{kind}Pad{count}d({plain(padding)})")] if rank == count + 2 <= 5 else found
    found = [("functional", f"F.pad({{x}}, {padding}" + (f", value={number_text(value)})" if value else ")"))]
    if rank == count + 2 <= 5:
        found.append(("module", f"nn.ConstantPad{count}d({plain(padding)}, {number_text(value)})"))
        if not value:
            found.append(("module", f"nn.ZeroPad{count}d({plain(padding)})"))
    return found
