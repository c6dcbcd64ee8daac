"""A Graph as a task in plain calls: the reference of a module whose own source cannot stand alone.

A part of a model may need a config object, a base class and ten other files to be made. What it computes at some inputs is a
Graph, and that can be written out: parameters under the paths that they have in the module, one call a line. Sizes become
constants, so that small and ragged sets can be derived. Lifting what was written gives back the Graph, or it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from torch import Tensor

from kernrl.errors import UsageError
from kernrl.tasks.graph.graph import Graph, Node, Operand, Parameter
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.graph.ops import SIZED
from kernrl.tasks.task import Task

NAMED_FROM = 8
"""Sizes below this stay numbers."""
MOST_DATA = 4096
"""Most whole numbers of a buffer (a table of positions) that are written out."""

OPERATORS = {"add": "+", "sub": "-", "mul": "*", "pow": "**", "matmul": "@", "bitwise_and": "&", "bitwise_or": "|"}
OPERATORS |= {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "bitwise_xor": "^"}
FUNCTIONAL = "silu mish hardswish hardsigmoid selu softsign tanhshrink leaky_relu elu celu gelu softplus softshrink hardshrink"
FUNCTIONAL = (*FUNCTIONAL.split(), "threshold", "pixel_shuffle", "pixel_unshuffle", "linear")
"""Ops under `torch.nn.functional` that take their attributes by name."""

TEMPLATES = {
    "log_sigmoid": "F.logsigmoid({0})",
    "cast": "{0}.to(torch.{dtype})",
    "prod": "torch.prod({0}, dim={dim[0]}, keepdim={keepdim})",
    "argmax": "torch.argmax({0}, dim={dim[0]}, keepdim={keepdim})",
    "argmin": "torch.argmin({0}, dim={dim[0]}, keepdim={keepdim})",
    "norm": "torch.linalg.vector_norm({0}, {p}, dim={dim}, keepdim={keepdim})",
    "softmax": "F.softmax({0}, dim={dim[0]})",
    "log_softmax": "F.log_softmax({0}, dim={dim[0]})",
    "group_norm": "F.group_norm({0}, {num_groups}, {1}, {2}, {eps})",
    "instance_norm": "F.instance_norm({0}, weight={1}, bias={2}, eps={eps})",
    "batch_norm_eval": "F.batch_norm({0}, {1}, {2}, {3}, {4}, False, 0.0, {eps})",
    "batch_norm": "F.batch_norm({0}, None, None, {1}, {2}, True, 0.0, {eps})",
    "flatten": "{0}.flatten({start_dim}, {end_dim})",
    "unflatten": "{0}.unflatten({dim}, {sizes})",
    "squeeze": "{0}.squeeze({dim})",
    "reshape": "{0}.reshape({shape})",
    "permute": "{0}.permute({dims})",
    "expand": "{0}.expand({shape})",
    "select": "{0}.select({dim}, {index})",
    "chunk": "{0}.chunk({chunks}, {dim})[{index}]",
    "embedding": "F.embedding({1}, {0})",
    "gather": "torch.gather({0}, {dim}, {1})",
    "index_select": "torch.index_select({0}, {dim}, {1})",
    "repeat": "{0}.repeat({repeats})",
    "flip": "torch.flip({0}, {dim})",
    "roll": "torch.roll({0}, {shifts}, {dim})",
    "full": "torch.full({shape}, {0}, dtype=torch.{dtype}, device={device})",
    "arange": "torch.arange({start}, {end}, {step}, dtype=torch.{dtype}, device={device})",
}
"""Op → its call, `{0}` the first operand, `{dim}` an attribute."""


class CannotStandAloneError(UsageError):
    """A module that cannot be written as a task of its own; the message says why."""


def task_of_graph(graph: Graph, task_id: str, tensors: Mapping[str, Tensor], precision: str = "fp32") -> Task:
    """A task that computes the Graph, whose inputs are those of the Graph in order and whose parameters keep their paths.

    Args:
        tensors: Path → tensor of the module, for buffers whose whole numbers matter, such as positions.

    Raises:
        CannotStandAloneError: An op has no plain call, or what was written would compute another Graph.
    """
    task = Task(task_id, _Writer(graph, tensors).source(), name=task_id, precision=precision)
    try:
        again = lift(task)
    except UsageError as error:
        raise CannotStandAloneError(f"{task_id} cannot be written as a task of its own: {error}") from error
    if _computation(again) != _computation(graph):
        raise CannotStandAloneError(f"{task_id} cannot be written as a task of its own: it would compute something else.")
    return task


def _computation(graph: Graph) -> list[Any]:
    """Ops, attributes and results in order; numbers of values may differ."""
    return [(n.op, n.attributes, [(r.shape, r.dtype) for r in n.results]) for n in graph.nodes] + [graph.structure]


class _Writer:
    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor]):
        self.graph, self.tensors = graph, tensors
        sizes = [s for held in (*graph.inputs, *graph.parameters) for s in held.value.shape]
        self.names = {size: f"SIZE_{size}" for size in dict.fromkeys(sizes) if size >= NAMED_FROM}
        self.text: dict[str, str] = {}
        self.init: list[str] = []
        self.base = "nn.Module"

    def source(self) -> str:
        """The whole file."""
        arguments = [f"x{i}" for i in range(len(self.graph.inputs))]
        self.text |= {i.value.name: a for i, a in zip(self.graph.inputs, arguments, strict=True)}
        self._containers()
        for parameter in self.graph.parameters:
            self._hold(parameter)
        forward = [self._line(node) for node in self.graph.nodes]
        returned = iter([self._operand(o) for o in self.graph.outputs])
        result = "".join(next(returned) if c == "*" else c for c in self.graph.structure)
        constants = [f"{name} = {size}" for size, name in self.names.items()]
        first = "super().__init__()" if self.base == "nn.Module" else self.base.partition("|")[2]
        lines = ["import torch", "import torch.nn.functional as F", "from torch import nn", "", *constants, "", ""]
        used = [name for name in self.names.values() if any(name.lower() in line for line in self.init)]
        taken = ", ".join(["self", *map(str.lower, used)])  # arguments, so that an answer's constructor follows the sizes
        lines += [f"class Model({self.base.partition('|')[0]}):", f"    def __init__({taken}):", f"        {first}"]
        lines += [f"        {line}" for line in self.init]
        lines += ["", f"    def forward({', '.join(['self', *arguments])}):", *(f"        {line}" for line in forward)]
        lines += [f"        return {result}", "", "", "def get_inputs():"]
        drawn = [self._draw(i.value.shape, i.value.dtype, i.value.name) for i in self.graph.inputs]
        return "\n".join(
            [
                *lines,
                f"    return [{', '.join(drawn)}]",
                "",
                "",
                "def get_init_inputs():",
                f"    return [{', '.join(used)}]",
                "",
            ]
        )

    # --- parameters ------------------------------------------------------------------------------------------------

    def _containers(self) -> None:
        """Modules that hold parameters, under their paths; one whose children have numbers is a list."""
        paths = [p.path.split(".") for p in self.graph.parameters if p.path]
        for part in (part for path in paths for part in path):
            if not part.isdigit() and not part.isidentifier():
                raise CannotStandAloneError(f"the parameter name {part!r} is no Python name.")
        holders: dict[tuple[str, ...], int | None] = {}
        for path in paths:
            if path[-1].isdigit():
                raise CannotStandAloneError(f"{'.'.join(path)} is a list of parameters, for which there is no rule.")
            for end in range(len(path)):
                child = path[end]
                count = int(child) + 1 if child.isdigit() else None
                before = holders.get(tuple(path[:end]))
                holders[tuple(path[:end])] = max(count or 0, before or 0) or None
        for holder, count in holders.items():
            made = f"[nn.Module() for _ in range({count})]"
            if not holder:
                self.base = f"nn.ModuleList|super().__init__({made})" if count else "nn.Module"
            elif count:
                self.init.append(f"{_bound(holder)} = nn.ModuleList({made})")
            elif not (holder[-1].isdigit()):
                self.init.append(f"{_bound(holder)} = nn.Module()")

    def _hold(self, parameter: Parameter) -> None:
        value = parameter.value
        if not parameter.path:
            data = f"torch.tensor({list(parameter.data)!r}, dtype=torch.{value.dtype}, device={self._device()})"
            self.text[value.name] = f"{data}.reshape({value.shape!r})"
            return
        *holder, name = parameter.path.split(".")
        self.text[value.name] = _bound(parameter.path.split("."))
        if parameter.kind == "parameter":
            scale = prod(value.shape[1:]) ** -0.5 if len(value.shape) > 1 else 0.5
            self.init.append(
                f"{_bound([*holder, name])} = nn.Parameter(torch.randn({self._shape(value.shape).lower()}) * {scale:.4g})"
            )
        else:
            made = self._buffer(parameter)
            self.init.append(f"{_bound(holder)}.register_buffer({name!r}, {made})")

    def _buffer(self, parameter: Parameter) -> str:
        value, shape = parameter.value, self._shape(parameter.value.shape).lower()
        if value.dtype.startswith("float") or value.dtype.startswith("bfloat"):
            drawn = f"torch.rand({shape}) + 0.5" if parameter.path.endswith("var") else f"torch.randn({shape})"
            return f"({drawn}).to(torch.{value.dtype})"
        if value.dtype == "bool":
            return f"torch.rand({shape}) > 0.5"
        tensor = self.tensors.get(parameter.path)
        if tensor is None or tensor.numel() > MOST_DATA:
            raise CannotStandAloneError(f"the numbers of the buffer {parameter.path} are too many to be written out.")
        return f"torch.tensor({tensor.tolist()!r}, dtype=torch.{value.dtype})"

    # --- nodes -----------------------------------------------------------------------------------------------------

    def _line(self, node: Node) -> str:
        if node.op in ("tuple", "list") or len(node.results) != 1 or node.kind == "unknown":
            raise CannotStandAloneError(f"{node.op} has no rule.")
        name = node.value.name
        self.text[name] = name
        return f"{name} = {self._call(node)}"

    def _call(self, node: Node) -> str:
        op, operands = node.op, [self._operand(o) for o in node.operands]
        sized = SIZED.get(op, ())
        given = {k: self._sizes(v) if k in sized else v for k, v in node.attributes}
        raw: dict[str, Any] = dict(node.attributes)
        if op in ("maximum", "minimum") and not all(isinstance(o, str) for o in node.operands):
            tensor, number = operands if isinstance(node.operands[0], str) else operands[::-1]
            return f"torch.clamp({tensor}, {'min' if op == 'maximum' else 'max'}={number})"
        if op == "div":
            mode = raw["rounding_mode"]
            return f"torch.div({', '.join(operands)}, rounding_mode={mode!r})" if mode else " / ".join(operands)
        if op in OPERATORS:
            return f" {OPERATORS[op]} ".join(operands)
        if op in ("softmax", "log_softmax") and len(raw["dim"]) > 1:
            first, last = raw["dim"][0], raw["dim"][-1]
            return f"{operands[0]}.flatten({first}, {last}).{op}({first}).view_as({operands[0]})"
        rank = len(self.graph.values[node.reads[0]].shape) if node.reads else 0
        if op == "rms_norm" and raw["dim"] != tuple(range(rank - len(raw["dim"]), rank)):
            x = operands[0]
            scaled = f"{x} * torch.rsqrt({x}.pow(2).mean({raw['dim']!r}, keepdim=True) + {raw['eps']!r})"
            return scaled + (f" * {operands[1]}" if node.operands[1:] and node.operands[1] is not None else "")
        if op in ("layer_norm", "rms_norm"):
            count = len(raw["dim"])
            rest = ", ".join(operands[1:])
            return f"F.{op}({operands[0]}, {operands[0]}.shape[-{count}:], {rest + ', ' * bool(rest)}eps={raw['eps']!r})"
        if op == "unsqueeze":
            return operands[0] + "".join(f".unsqueeze({d})" for d in raw["dim"])
        if op == "slice":
            step = f":{raw['step']}" if raw["step"] != 1 else ""
            return f"{operands[0]}[{':, ' * raw['dim']}{given['start']}:{given['stop']}{step}]"
        if op == "cat":
            return f"torch.cat([{', '.join(operands)}], {raw['dim']})"
        if op == "einsum":
            return f"torch.einsum({raw['equation']!r}, {', '.join(operands)})"
        if op == "pad":
            value = f", value={raw['value']!r}" if raw["mode"] == "constant" else ""
            return f"F.pad({operands[0]}, {raw['padding']!r}, mode={raw['mode']!r}{value})"
        if op in TEMPLATES:
            operands += ["None"] * (5 - len(operands))
            return TEMPLATES[op].format(*operands, **given, device=self._device())
        if op == "avg_pool1d":
            raw.pop("divisor_override")
        where = "F" if op in FUNCTIONAL or "pool" in op or op.startswith("conv") else "torch"
        named = [f"{name}={self._sizes(value) if name == 'groups' else repr(value)}" for name, value in raw.items()]
        return f"{where}.{op}({', '.join([*operands, *named])})"

    def _operand(self, operand: Operand) -> str:
        if isinstance(operand, str):
            return self.text[operand]
        if isinstance(operand, float) and (operand != operand or abs(operand) == float("inf")):
            return f'float("{operand}")'
        return f"({operand!r})" if isinstance(operand, int | float) and operand < 0 else repr(operand)

    def _device(self) -> str:
        if not self.graph.inputs:
            raise CannotStandAloneError("it has no input, and no device to make tensors on.")
        return "x0.device"

    # --- sizes -----------------------------------------------------------------------------------------------------

    def _sizes(self, value: Any) -> str:
        if isinstance(value, tuple):
            return f"({', '.join(self._sizes(v) for v in value)}{',' * (len(value) == 1)})"
        if not isinstance(value, int) or isinstance(value, bool) or value < NAMED_FROM:
            return repr(value)
        if value in self.names:
            return self.names[value]
        for size, name in self.names.items():  # heads times width, height times width
            rest, over = divmod(value, size)
            if not over and (rest in self.names or rest < NAMED_FROM):
                return f"{name} * {self.names.get(rest, rest)}"
        part = next((n for n in self.names if n % value == 0 and n // value < 4 * NAMED_FROM), None)
        return f"{self.names[part]} // {part // value}" if part else repr(value)

    def _shape(self, shape: tuple[int, ...]) -> str:
        return ", ".join(self.names.get(s, str(s)) for s in shape) or "()"

    def _draw(self, shape: tuple[int, ...], dtype: str, name: str) -> str:
        if dtype.startswith(("float", "bfloat")):
            return f"torch.randn({self._shape(shape)})"
        if dtype == "bool":
            return f"torch.rand({self._shape(shape)}) > 0.5"
        return f"torch.randint(0, {self._most(name)}, ({self._shape(shape)},), dtype=torch.{dtype})"

    def _most(self, name: str) -> str:
        """A bound on whole numbers: the size that they index, or 2."""
        for node in self.graph.readers[name]:
            if node.op in ("embedding", "gather", "index_select"):
                held = self.graph.values[node.reads[0]].shape
                size = held[0] if node.op == "embedding" else held[node["dim"]]
                return self.names.get(size, str(size))
        return "2"


def _bound(path: Any) -> str:
    return "self" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path)
