"""Write a Graph as PyTorch, in one of many hands: lifting what was written gives back the Graph."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from copy import copy
from random import Random
from typing import Any

import numpy as np

from kernrl.tasks.graph.graph import Graph, Node, Operand
from kernrl.tasks.graph.ops import OPS
from kernrl.tasks.graph.writing.hands import STAGES, VALUES, Hand
from kernrl.tasks.graph.writing.helper_method import end_in_helper, reads
from kernrl.tasks.graph.writing.spellings import PLACES, NoSpellingError, Size, number_text, plain, spellings, varies

NEED_TENSORS = ("maximum", "minimum", "atan2", "logical_and", "logical_or", "logical_xor", "matmul")
"""Ops whose operands are never numbers."""

ROLES = {2: ("batch_size", "features"), 3: ("batch_size", "channels", "length")}
ROLES |= {4: ("batch_size", "channels", "height", "width"), 5: ("batch_size", "channels", "depth", "height", "width")}
"""What the axes of an input are called, by its rank."""


def write(graph: Graph, hand: Hand, rng: Random) -> str:
    """The source of a task: `Model`, its constants, `get_inputs` and `get_init_inputs`.

    Args:
        graph: With tensors of floats alone as inputs.
        hand: Who writes; `rng` makes the choices that are left.

    Raises:
        NoSpellingError: There is no way to write one of its ops.
    """
    return _Writer([graph], 0, hand, rng).source()


def write_at_sizes(graphs: Sequence[Graph], hand: Hand, rng: Random) -> tuple[str, list[dict[str, int]]]:
    """The source of a task, and the constants that make it each of the other Graphs: those that are not what they are in it.

    A constant of its own is each size that is another in any of the Graphs, so what must be equal stays equal.

    Args:
        graphs: The task's, and the same ops at other sizes.
        hand: As of `write`.

    Raises:
        NoSpellingError: As `write`, or some number in the text is no constant and would have to be another one.
    """
    writers = [_Writer(graphs, at, hand, copy(rng)) for at in range(len(graphs))]
    source, *others = [writer.source() for writer in writers]
    if any(other != source for other in others):
        raise NoSpellingError("there is no spelling that is the same at all sizes")
    sizes = writers[0].sizes
    return source, [{name: s[i] for name, s in sizes.items() if s[i] != s[0]} for i in range(1, len(graphs))]


class _Writer:
    def __init__(self, graphs: Sequence[Graph], at: int, hand: Hand, rng: Random) -> None:
        """`at`: the Graph whose numbers are written, where they have no name; constants are the first one's."""
        self.graph, self.hand, self.rng = graphs[at], hand, rng
        self.values = self.graph.values
        at_all = [graph.values for graph in graphs]
        self.shapes = {name: tuple(zip(*(v[name].shape for v in at_all), strict=True)) for name in self.values}
        """Value → its sizes, each at all Graphs."""
        self.nodes = {n.value.name: [graph.producers[n.value.name] for graph in graphs] for n in self.graph.nodes}
        """Value → the node that makes it in each Graph."""
        self.sizes: dict[str, Size] = {}
        """Constant → what it is at all Graphs, where it is a size."""
        self.init: list[str] = []
        self.forward: list[str] = []
        self.constants: dict[str, object] = {}
        self.used: list[str] = []
        """Constants that `__init__` takes."""
        self.names: set[str] = {"self", "torch", "nn", "F", "Model"}
        self.text: dict[str, str] = {}
        """Value → the expression that reads it in `forward`."""
        self.modules: dict[str, str] = {}
        """Value → the constructor that makes it of its first operand, while it may still join a Sequential."""
        self.sources: dict[str, str] = {}
        """Value → the expression that its Sequential is called with."""
        self.arguments: list[str] = []
        reads = [name for node in self.graph.nodes for name in node.reads]
        self.readers = Counter([*reads, *(o for o in self.graph.outputs if isinstance(o, str))])
        """Value → how often it is read; twice by one node that reads it twice."""
        self.left = dict(self.readers)

    def _body(self) -> None:
        """All of `forward`, and what `__init__` makes for it."""
        self.arguments = arguments = _arguments(self.rng, len(self.graph.inputs))
        for given, argument in zip(self.graph.inputs, arguments, strict=True):
            self.names.add(argument)
            self.text[given.value.name] = argument
        for node in self.graph.nodes:
            self._node(node)
        returned = [self._read(o) for o in self.graph.outputs]
        self.forward.append("return " + (returned[0] if self.graph.structure == "*" else ", ".join(returned)))

    def _node(self, node: Node) -> None:
        made = self._parametrised(node) or self._plain(node)
        form, text = made
        first = next(iter(node.reads), "")
        if form == "module":
            before = self.modules.pop(first, None) if self.hand.sequential and self.readers[first] == 1 else None
            steps = f"{before}\n{text}" if before else text
            source = self.sources.pop(first) if before else self._read(first)
            if self.hand.sequential and self.readers[node.value.name] == 1:
                self.modules[node.value.name] = steps
                self.sources[node.value.name] = source
                return
            text = f"self.{self._module(steps)}({source})"
        self._keep(node, text)

    def _module(self, steps: str) -> str:
        """An attribute that holds the module, or a Sequential of several."""
        parts = steps.split("\n")
        name = self._name(self.rng.choice(("act", "norm", "block", "op", "stage")) if len(parts) == 1 else "net")
        self.init.append(f"self.{name} = " + (parts[0] if len(parts) == 1 else f"nn.Sequential({', '.join(parts)})"))
        return name

    def _keep(self, node: Node, text: str) -> None:
        """Give the value a variable, or leave it to be written where it is read."""
        name = node.value.name
        if self.readers[name] == 1 and self.rng.random() < self.hand.inline:
            self.text[name] = f"({text})"
            return
        first = next(iter(node.reads), "")
        held = self.text.get(first, "")
        pending = [text for value, text in self.text.items() if value != first and self.left.get(value)]
        pending += self.sources.values()
        free = re.fullmatch(r"\w+", held) is not None and self.left[first] == 0 and not any(reads(t, held) for t in pending)
        reuse = free and (self.hand.variables == "rebind" or self.rng.random() < 0.3)
        variable = held if reuse else self._name(self.rng.choice(VALUES))
        if self.hand.comments and self.rng.random() < 0.3:
            self.forward.append(f"# {node.op.replace('_', ' ')}")
        mine = re.fullmatch(rf"{re.escape(held)} ([-+*/]) (.+)", text) if held else None
        own = self.graph.producers.get(first)
        if (
            self.hand.in_place
            and reuse
            and mine
            and own
            and own.kind != "view"
            and not any(reader.kind == "view" for reader in self.graph.readers[first])
            and (node.value.shape, node.value.dtype) == (self.values[first].shape, self.values[first].dtype)
        ):
            self.forward.append(f"{variable} {mine[1]}= {mine[2]}")
        else:
            self.forward.append(f"{variable} = {text}")
        self.text[name] = variable

    def _read(self, operand: Operand) -> str:
        """The expression for an operand."""
        if operand is None:
            return "None"
        if not isinstance(operand, str):
            return self._number(operand)
        if operand in self.modules:  # a Sequential ends here
            steps, source = self.modules.pop(operand), self.sources.pop(operand)
            self.text[operand] = f"self.{self._module(steps)}({source})"
        if operand in self.left:
            self.left[operand] -= 1
        return self.text[operand] if operand in self.text else self._parameter(operand)

    def _number(self, number: float) -> str:
        where = self.hand.scalars
        rounded = where == "buffer" and float(str(np.float32(number))) != number  # it would be another number
        if where == "literal" or rounded or isinstance(number, bool) or not math.isfinite(number):
            return number_text(number)
        name = self._name(self.rng.choice(("scale", "alpha", "factor", "value", "eps_shift", "gain")))
        if where == "global":
            return self._constant(name, number)
        given = self._size_argument(self._constant(name, number)) if where == "argument" else repr(number)
        if where == "buffer":
            self.init.append(f'self.register_buffer("{name}", torch.tensor({number!r}))')
        else:
            self.init.append(f"self.{name} = {given}")
        return f"self.{name}"

    def _parameter(self, name: str) -> str:
        held = next(p for p in self.graph.parameters if p.value.name == name)
        attribute = self._name(self.rng.choice(("weight", "bias", "scale_param", "shift", "gamma", "beta", "theta")))
        shape = ", ".join(self._size(s, self._role(held.value.shape, i)) for i, s in enumerate(self.shapes[name]))
        if held.kind == "buffer":
            self.init.append(f'self.register_buffer("{attribute}", torch.rand({shape or "()"}) + 0.5)')
        elif not held.value.shape:
            self.init.append(f"self.{attribute} = nn.Parameter(torch.tensor({self.rng.choice((0.5, 1.2, 2.0))}))")
        else:
            self.init.append(f"self.{attribute} = nn.Parameter({self.hand.parameter_draw.format(shape)})")
        self.text[name] = f"self.{attribute}"
        return self.text[name]

    def _role(self, shape: Sequence[int], axis: int) -> str:
        roles = ROLES.get(len(shape) + 1, ROLES[2])
        return roles[min(axis + 1, len(roles) - 1)]

    def _plain(self, node: Node) -> tuple[str, str]:
        """An op without parameters of its own, in a form of the hand's choice."""
        if node.kind == "create":
            return "functional", self._created(node)
        source = node.reads[0]
        choices = spellings(node, self.values, self.rng, self.shapes)
        simple = re.fullmatch(r"\w+", self.text.get(source, "")) is not None
        once = [c for c in choices if c[1].count("{x}") < 2]
        if not simple and not once:
            variable = self._name(self.rng.choice(VALUES))
            self.left[source] += 1
            self.forward.append(f"{variable} = {self._read(source)}")
            self.text[source] = variable
        elif not simple:
            choices = once
        if not isinstance(node.operands[0], str):  # a number in front has no method
            choices = [c for c in choices if c[0] == "operator"]
            if not choices or (node.op == "div" and node.operands[0] != 1):  # torch divides 1 and multiplies the rest
                raise NoSpellingError(f"there is no spelling of {node.op} of a number")
        form, text = self.rng.choices(choices, weights=[self.hand.forms[f] for f, _ in choices])[0]
        if form == "module":
            return form, text
        if node.op in NEED_TENSORS and not all(isinstance(o, str) for o in node.operands):
            raise NoSpellingError(f"there is no spelling of {node.op} with a number")
        swap = node.op in ("add", "mul") and form == "operator" and self.rng.random() < 0.25
        read = [self._read(o) for o in node.operands]
        if swap and len(read) > 1:
            text = text.replace("{x}", "{0}").replace("{y}", "{x}").replace("{0}", "{y}")
        for place, expression in zip(PLACES, read, strict=False):
            text = text.replace(place, expression)
        return form, text

    def _created(self, node: Node) -> str:
        """A tensor that `forward` makes, on the device of its first input; a length that is an input's has that one's name."""
        a = _attributes(node)
        place = f"dtype=torch.{a['dtype']}, device={self.arguments[0]}.device"
        if node.op == "full":
            if node.reads:
                raise NoSpellingError("there is no spelling of full with a tensor")
            return f"torch.full({a['shape']}, {number_text(node.operands[0])}, {place})"
        start, end = a["start"], a["end"]
        if not isinstance(end - start, int) or a["step"] != 1:
            return f"torch.arange({start}, {end}, {a['step']}, {place})"
        length = tuple(n["end"] - n["start"] for n in self.nodes[node.value.name])
        shapes = [self.shapes[i.value.name] for i in self.graph.inputs]
        shape, axis = next(((s, d) for s in shapes for d, n in enumerate(s) if n == length), ((), 0))
        named = len(shape) in ROLES and not _is_small(length)
        name = self._global(length, ROLES[len(shape)][axis]) if named else str(end - start)
        return f"torch.arange({f'{start}, {name} + {start}' if start else name}, {place})"

    def _parametrised(self, node: Node) -> tuple[str, str] | None:
        """Layers that hold parameters: a module, or the functional form with parameters of its own."""
        as_module = self.rng.random() < 0.75
        if not node.reads:
            return None
        as_module = as_module and self._holds(node)
        op, a = node.op, _attributes(node)
        rest = node.operands[1:]
        x = self.shapes[node.reads[0]]
        if op == "linear":
            out, inner = self.shapes[node.reads[1]]
            if as_module:
                sizes = f"{self._size(inner, 'in_features')}, {self._size(out, 'out_features')}"
                return "module", f"nn.Linear({sizes}{'' if rest[1] else ', bias=False'})"
            return "functional", f"F.linear({', '.join(self._read(o) for o in node.operands)})"
        if node.kind == "convolution":
            return self._convolution(node, as_module)
        if op == "prelu":
            if as_module:
                [slopes] = self.shapes[node.reads[1]]
                return "module", f"nn.PReLU({'' if set(slopes) == {1} else self._size(slopes, 'channels')})"
            return None
        eps = f", eps={a['eps']}" if a.get("eps", 1e-5) != 1e-5 else ""
        if op == "batch_norm":
            momentum = f", momentum={a['momentum']}" if a["momentum"] != 0.1 else ""
            if (
                self._holds(node)
                and bool(rest[0]) == bool(rest[1])
                and bool(rest[2]) == bool(rest[3])
                and len(x) in range(2, 6)
            ):
                text = f"nn.BatchNorm{max(1, len(x) - 2)}d({self._size(x[1], 'channels')}{eps}{momentum}"
                text += "" if rest[0] else ", affine=False"
                return "module", text + ("" if rest[2] else ", track_running_stats=False") + ")"
            y, weight, bias, mean, variance = (self._read(o) for o in node.operands)
            return "functional", f"F.batch_norm({y}, {mean}, {variance}, {weight}, {bias}, training=True{momentum}{eps})"
        if op == "batch_norm_eval":
            if as_module and bool(rest[2]) == bool(rest[3]) and len(x) in range(2, 6):
                affine = "" if rest[2] else ", affine=False"
                return "module", f"nn.BatchNorm{max(1, len(x) - 2)}d({self._size(x[1], 'channels')}{eps}{affine}).eval()"
            return "functional", f"F.batch_norm({', '.join(self._read(o) for o in node.operands)}{eps})"
        if op in ("layer_norm", "rms_norm"):
            if a["dim"] != tuple(range(len(x) - len(a["dim"]), len(x))):
                raise NoSpellingError(f"there is no spelling of {op} over axes that are not the last")
            return self._trailing_norm(node, as_module, [x[d] for d in a["dim"]])
        if op == "group_norm":
            if as_module and bool(rest[0]) == bool(rest[1]):
                text = f"nn.GroupNorm({a['num_groups']}, {self._size(x[1], 'channels')}{eps}"
                return "module", text + ("" if rest[0] else ", affine=False") + ")"
            y, weight, bias = (self._read(o) for o in node.operands)
            return "functional", f"F.group_norm({y}, {a['num_groups']}, {weight}, {bias}{eps})"
        if op == "instance_norm":
            if as_module and 3 <= len(x) <= 5 and bool(rest[0]) == bool(rest[1]):
                affine = ", affine=True" if rest[0] else ""
                return "module", f"nn.InstanceNorm{len(x) - 2}d({self._size(x[1], 'channels')}{eps}{affine})"
            y, weight, bias = (self._read(o) for o in node.operands)
            return "functional", f"F.instance_norm({y}, weight={weight}, bias={bias}{eps})"
        return None

    def _holds(self, node: Node) -> bool:
        """Whether a module can hold all that a node reads but its first operand: parameters that nothing else reads."""
        own = {p.value.name: p.kind for p in self.graph.parameters}
        held = [o for o in node.operands[1:] if o is not None]
        running = {"batch_norm": node.operands[3:5], "batch_norm_eval": node.operands[1:3]}.get(node.op, ())
        return all(
            isinstance(o, str) and self.readers[o] == 1 and own.get(o) == ("buffer" if o in running else "parameter")
            for o in held
        )

    def _trailing_norm(self, node: Node, as_module: bool, sizes: list[Size]) -> tuple[str, str]:
        shape = ", ".join(self._size(s, "features") for s in sizes)
        shape = shape if len(sizes) == 1 else f"[{shape}]"
        kind, eps = ("LayerNorm" if node.op == "layer_norm" else "RMSNorm"), node["eps"]
        moves, held = any(map(varies, sizes)), [o for o in node.operands[1:] if o]
        as_module = as_module or (moves and not held)
        if as_module and len({bool(o) for o in node.operands[1:]}) == 1:  # a module has both or neither
            affine = "" if node.operands[1] else ", elementwise_affine=False"
            return "module", f"nn.{kind}({shape}, eps={eps}{affine})"
        x, *rest = (self._read(o) for o in node.operands)
        numbers = f"{self._held(held[0])}.shape" if moves else str([size[0] for size in sizes])
        return "functional", f"F.{node.op}({x}, {numbers}, {', '.join(rest)}, eps={eps})"

    def _held(self, value: Operand) -> str:
        """The attribute that a parameter is held by, for a size of it: `forward` is handed none."""
        text = self.text.get(value, "") if isinstance(value, str) else ""
        if not re.fullmatch(r"self\.\w+", text):
            raise NoSpellingError("there is no spelling of a size that no parameter has")
        return text

    def _convolution(self, node: Node, as_module: bool) -> tuple[str, str]:
        weight, a = self.shapes[node.reads[1]], _attributes(node)
        groups: Size = tuple(n["groups"] for n in self.nodes[node.value.name])
        transposed = "transpose" in node.op
        options = [
            f"{name}={plain(a[name]) if isinstance(a[name], tuple) else a[name]}"
            for name in ("stride", "padding", "output_padding", "dilation", "groups")
            if name in a and a[name] != OPS[node.op].attributes[name]
        ]
        read = [] if as_module else [self._read(o) for o in node.operands]
        if varies(groups):  # a depthwise one has as many as channels
            each = 1 if transposed else weight[0][0] // groups[0]
            held = "" if as_module else f"{self._held(node.reads[1])}.shape[0]" + f" // {each}" * (each > 1)
            options[-1] = f"groups={held or self._size(groups, 'channels')}"
        if not as_module:
            return "functional", f"F.{node.op}({', '.join([*read, *options])})"
        whole = tuple(n * g for n, g in zip(weight[1], groups, strict=True))
        inner, out = (weight[0], whole) if transposed else (whole, weight[0])
        kind = f"Conv{'Transpose' if transposed else ''}{node.op[-2]}d"
        sizes = [self._size(inner, "in_channels"), self._size(out, "out_channels"), plain(self.values[node.reads[1]].shape[2:])]
        return "module", f"nn.{kind}({', '.join([*sizes, *options, *([] if node.operands[2] else ['bias=False'])])})"

    def _name(self, wanted: str) -> str:
        """That name, with a number behind it where it is taken."""
        if wanted in ("act", "norm", "block", "op", "stage") and self.rng.random() < 0.3:
            wanted = self.rng.choice(STAGES)
        name, n = wanted, 1
        while name in self.names:
            n += 1
            name = f"{wanted}{n}"
        self.names.add(name)
        return name

    def _constant(self, name: str, value: object) -> str:
        shown = name.upper() if self.hand.upper else name
        self.constants[shown] = value
        return shown

    def _size(self, size: Size, role: str) -> str:
        """A size inside `__init__`: the constant of that role and number, handed to it; small ones as they are."""
        return str(size[0]) if _is_small(size) else self._size_argument(self._global(size, role))

    def _global(self, size: Size, role: str) -> str:
        role = (
            role
            if not role.startswith(("in_", "out_"))
            else {"in_features": "features", "in_channels": "channels"}.get(role, role)
        )
        same = [n for n, held in self.sizes.items() if held == size and n.lower().startswith(role)]
        name = same[0] if same else self._constant(self._name(role), size[0])
        self.sizes[name] = size
        return name

    def _size_argument(self, constant: str) -> str:
        if constant not in self.used:
            self.used.append(constant)
        return constant.lower()

    def source(self) -> str:
        """The whole file."""
        if any(i.value.dtype != "float32" for i in self.graph.inputs) or any(p.data for p in self.graph.parameters):
            raise NoSpellingError("its inputs and parameters are not all floats that are drawn")
        self._body()
        hand = self.hand
        inputs = []
        for given in self.graph.inputs:
            shape = self.shapes[given.value.name]
            roles = ROLES.get(len(shape), ("size",) * len(shape))
            inputs.append(", ".join("1" if set(s) == {1} else self._global(s, r) for s, r in zip(shape, roles, strict=True)))
        taken = [constant.lower() for constant in self.used]
        hint = ": int" if hand.hints else ""
        tensor = ": torch.Tensor" if hand.hints else ""
        body = [f"class Model({hand.base}):"]
        if hand.docs:
            body.append(
                f'    """{hand.docs.format(ops=", ".join(n.op for n in self.graph.nodes))}"""'.replace('\n"""', '\n    """')
            )
        body += [
            "",
            f"    def __init__({', '.join(['self', *(name + hint for name in taken)])}):",
            f"        {hand.super_call}",
        ]
        body += [f"        {line}" for line in self.init]
        forward, helper = end_in_helper(self.forward, self.arguments) if hand.helper else (self.forward, [])
        arguments = ", ".join(["self", *(name + tensor for name in self.arguments)])
        body += ["", f"    def forward({arguments}){' -> torch.Tensor' if hand.hints and self.graph.structure == '*' else ''}:"]
        body += [f"        {line}" for line in forward] + helper
        constants = self._assignments()
        functions = [
            "def get_inputs():",
            f"    return [{', '.join(f'torch.randn({shape or ()})' for shape in inputs)}]",
            "",
            "",
        ]
        functions += ["def get_init_inputs():", f"    return [{', '.join(self.used)}]", ""]
        parts = [constants, body] if hand.constants_above else [body, constants]
        text = "\n".join(line for part in parts if part for line in ["", "", *part]) + "\n\n\n" + "\n".join(functions)
        imports = ["import torch", self.rng.choice(("import torch.nn as nn", "from torch import nn"))]
        imports += ["import torch.nn.functional as F"] if "F." in text else []
        return "\n".join(imports) + text

    def _assignments(self) -> list[str]:
        whole = [(n, v) for n, v in self.constants.items() if isinstance(v, int)]
        rest = [f"{n} = {v!r}" for n, v in self.constants.items() if not isinstance(v, int)]
        if self.hand.grouped and len(whole) > 1:
            return [f"{', '.join(n for n, _ in whole)} = {', '.join(str(v) for _, v in whole)}", *rest]
        return [f"{n} = {v}" for n, v in whole] + rest


def _is_small(size: Size) -> bool:
    """A size that is written as a number: small, and the same at all Graphs."""
    return size[0] < 8 and not varies(size)


def _attributes(node: Node) -> dict[str, Any]:
    return dict(node.attributes)


def _arguments(rng: Random, count: int) -> list[str]:
    """Names of `forward`'s arguments."""
    first = rng.choice(("x", "x", "x", "inp", "inputs", "input_tensor", "data"))
    others = rng.choice(
        (("y", "w_ext", "extra", "other", "more"), ("b", "c", "d", "e", "g"), ("skip", "gate", "mask_in", "aux", "side"))
    )
    return [first, *others, *(f"input_{i}" for i in range(count))][:count]
