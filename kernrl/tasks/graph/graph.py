"""Graph: the one description of what a task computes, however its module is written.

A Graph is a list of nodes in the order in which they can run. Each node applies one op (`ops.py`: `linear`, `gelu`,
`softmax`, `mean` …, before any decomposition) to values and gives values. Values have a name, a shape and a dtype:

- `x0, x1 …` are the tensors that `forward` is given, in order; `Input.place` says where in its arguments each one is;
- `p0, p1 …` are parameters, buffers and other tensors of the module, in order of their first use; `Parameter.path` is
  the attribute that holds each one (`norm.weight`), by which an answer binds it;
- `v0, v1 …` are what nodes give. Any value may be read any number of times, by any later node, and be an output.

An operand of a node is the name of a value, a number, or None where an optional operand is left out (a bias). Numbers that
broadcast like tensors are operands (`mul(v0, 2.0)`); all others are attributes (`leaky_relu(v0, negative_slope=0.1)`).

    x0: float32[128, 64]   x
    p0: float32[256, 64]   fc.weight
    p1: float32[256]       fc.bias
    v0 = linear(x0, p0, p1)                       float32[128, 256]
    v1 = mul(v0, 0.5)                             float32[128, 256]
    v2 = sum(v1, dim=(1,), keepdim=True)          float32[128, 1]
    return v2

`lift.py` makes Graphs in canonical form: one Graph for all spellings of a computation. Two Graphs are equal when they
compute the same at the same sizes; the words of the author (argument names, paths, lines) are kept, and not compared.
Nothing here imports torch: `run.py` evaluates a Graph.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from kernrl.tasks.graph.ops import OPS, REQUIRED, RESHAPES, SIZED, SIZED_IF_UNKNOWN, Kind

Number = bool | int | float
Operand = str | Number | None
"""The name of a value, a number, or an optional operand that is left out."""
Attribute = str | Number | None | tuple["Attribute", ...]

ITEM_BYTES = {
    "complex128": 16,
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "complex32": 4,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
}
"""dtype → bytes; every other has one byte."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor at one input set."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch names it, without `torch.`: `float32`, `int64`, `bool`."""

    @property
    def numel(self) -> int:
        """How many elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.numel * ITEM_BYTES.get(self.dtype, 1)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that `forward` is given."""

    value: Value
    place: tuple[int | str, ...]
    """Where it is: `(1,)` is the second argument, `(1, 0)` the first entry of that, `("mask",)` a keyword argument."""
    argument: str = field(default="", compare=False)
    """The author's name for the argument that holds it."""
    stride: tuple[int, ...] = ()
    """Strides in elements; empty when it is contiguous."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that the module holds."""

    value: Value
    kind: Literal["parameter", "buffer", "constant"]
    """`constant`: a plain tensor attribute, or a tensor that `forward` writes out."""
    path: str = field(default="", compare=False)
    """Attribute of the module: `norm.weight`. Empty where `forward` writes the tensor out."""
    data: tuple[Number, ...] = ()
    """The numbers of a tensor that `forward` writes out, in order."""


@dataclass(frozen=True, slots=True)
class Node:
    """One op, placed."""

    op: str
    operands: tuple[Operand, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    """Every attribute of the op by name. Of an unknown op: every argument of the ATen call, `"%1"` for the second operand."""
    results: tuple[Value, ...]
    """One for every known op; `topk` and its like, which are unknown, have several."""
    line: int = field(default=0, compare=False)
    """Line of the task's source from 1, of the `forward` that asks for it; 0 when that is not known."""

    @property
    def kind(self) -> Kind | Literal["unknown"]:
        """What work it is."""
        return OPS[self.op].kind if self.op in OPS else "unknown"

    @property
    def value(self) -> Value:
        """Its first result."""
        return self.results[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values it reads, in order, each as often as it is read."""
        return tuple(o for o in self.operands if isinstance(o, str))

    def __getitem__(self, name: str) -> Any:
        """The attribute of that name; raises KeyError."""
        return dict(self.attributes)[name]

    def __str__(self) -> str:
        defaults = OPS[self.op].attributes if self.op in OPS else {}
        shown = [f"{k}={v!r}" for k, v in self.attributes if defaults.get(k, REQUIRED) != v and "%" not in str(v)]
        operands = list(self.operands)
        while operands and operands[-1] is None:
            operands.pop()
        words = [o if isinstance(o, str) else repr(o) for o in operands]
        return f"{', '.join(r.name for r in self.results)} = {self.op}({', '.join(words + shown)})"


@dataclass(frozen=True, slots=True)
class Graph:
    """What a task computes, at one input set."""

    inputs: tuple[Input, ...]
    parameters: tuple[Parameter, ...]
    """Those that are read, in order of their first use."""
    nodes: tuple[Node, ...]
    outputs: tuple[Operand, ...]
    """What `forward` returns, flattened: a value, or a number or None that it returns as it is."""
    structure: str = "*"
    """How the outputs are nested, each one a `*`: `*`, `(*, *)`, `{'loss': *, 'rest': [*, *]}`."""

    @property
    def values(self) -> dict[str, Value]:
        """Name → value, of all values."""
        held = [i.value for i in self.inputs] + [p.value for p in self.parameters]
        return {v.name: v for v in [*held, *(r for node in self.nodes for r in node.results)]}

    @property
    def producers(self) -> dict[str, Node]:
        """Name of a value → the node that gives it."""
        return {r.name: node for node in self.nodes for r in node.results}

    @property
    def readers(self) -> dict[str, list[Node]]:
        """Name of a value → the nodes that read it, in order."""
        found: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                found[name].append(node)
        return found

    @property
    def unknown(self) -> tuple[Node, ...]:
        """The nodes whose op is not of the table."""
        return tuple(node for node in self.nodes if node.op not in OPS)

    @property
    def composition(self) -> tuple[str, ...]:
        """The ops in order, which decide the split: no sizes, numbers, names, nor views that only regroup dimensions.

        Arithmetic says what it is done with: `add_number`, `add_parameter`, `add_input`; `add` alone joins two earlier values.
        """
        return tuple(_word(node) for node in self.nodes if node.op not in RESHAPES)

    @property
    def fingerprint(self) -> str:
        """A digest of the computation at any size: ops, wiring, numbers, ranks and dtypes."""
        return self.digest(numbers=True)

    def digest(self, *, numbers: bool) -> str:
        """`fingerprint`, or the same without the numbers that are not whole (a scale, an epsilon)."""
        text = json.dumps([_place(self), *_without_sizes(self, numbers)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def listing(self) -> str:
        """The Graph as text: a line for each input and parameter, a line for each node, and what is returned."""
        held = [(i.value, i.argument or ".".join(map(str, i.place))) for i in self.inputs]
        held += [(p.value, p.path or repr(list(p.data))) for p in self.parameters]
        lines = [(f"{v.name}: {v}", words) for v, words in held]
        lines += [(str(node), ", ".join(map(str, node.results))) for node in self.nodes]
        width = max(len(left) for left, _ in lines) if lines else 0
        returned = iter(o if isinstance(o, str) else repr(o) for o in self.outputs)
        last = "return " + "".join(next(returned) if c == "*" else c for c in self.structure)
        return "\n".join([*(f"{left:<{width}}   {right}".rstrip() for left, right in lines), last])

    def to_json(self) -> dict[str, Any]:
        """As plain JSON data; `from_json` gives the Graph back."""
        return {
            "inputs": [
                _value_row(i.value) | {"place": list(i.place), "argument": i.argument, "stride": list(i.stride)}
                for i in self.inputs
            ],
            "parameters": [
                _value_row(p.value) | {"kind": p.kind, "path": p.path, "data": list(p.data)} for p in self.parameters
            ],
            "nodes": [
                {
                    "op": n.op,
                    "operands": [{"value": o} if isinstance(o, str) else _number_out(o) for o in n.operands],
                    "attributes": {k: _number_out(v) for k, v in n.attributes},
                    "results": [_value_row(r) for r in n.results],
                    "line": n.line,
                }
                for n in self.nodes
            ],
            "outputs": [{"value": o} if isinstance(o, str) else _number_out(o) for o in self.outputs],
            "structure": self.structure,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Graph:
        """The Graph that `to_json` wrote."""
        return cls(
            inputs=tuple(
                Input(_value(i), tuple(i["place"]), argument=i["argument"], stride=tuple(i["stride"])) for i in data["inputs"]
            ),
            parameters=tuple(
                Parameter(_value(p), p["kind"], path=p["path"], data=tuple(map(_number_in, p["data"])))
                for p in data["parameters"]
            ),
            nodes=tuple(
                Node(
                    op=n["op"],
                    operands=tuple(_operand(o) for o in n["operands"]),
                    attributes=tuple((k, _number_in(v)) for k, v in n["attributes"].items()),
                    results=tuple(_value(r) for r in n["results"]),
                    line=n["line"],
                )
                for n in data["nodes"]
            ),
            outputs=tuple(_operand(o) for o in data["outputs"]),
            structure=data["structure"],
        )


ARITHMETIC = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "where", "prelu", "matmul")
"""Ops whose word in a composition says what kind of operand they have."""


def _word(node: Node) -> str:
    if node.op not in ARITHMETIC:
        return node.op
    kinds = ["number" if not isinstance(o, str) else {"x": "input", "p": "parameter"}.get(o[0], "") for o in node.operands]
    named = sorted(kind for kind in kinds if kind)
    # an op before the first one reads inputs, which says nothing: `add_parameter` of x0 as of v3
    if "input" in named and ("" not in kinds):
        named.remove("input")
    return "_".join([node.op, *dict.fromkeys(named)])


def _place(graph: Graph) -> list[Any]:
    return [[list(i.place) for i in graph.inputs], list(graph.outputs), graph.structure]


def _without_sizes(graph: Graph, numbers: bool) -> Iterator[list[Any]]:
    """What a digest sees of each value and node: ranks and dtypes in place of shapes."""

    def kept(item: Any) -> Any:
        if isinstance(item, tuple):
            return [kept(part) for part in item]
        return "number" if isinstance(item, float) and not numbers else repr(item)

    for held in (*graph.inputs, *graph.parameters):
        yield [held.value.name, len(held.value.shape), held.value.dtype]
    values = graph.values
    for node in graph.nodes:
        sized = SIZED.get(node.op, () if node.op in OPS else SIZED_IF_UNKNOWN)
        if node.kind == "convolution":
            yield list(values[node.reads[1]].shape[2:])  # the window is no size, it is what is computed
            if node["groups"] == values[node.reads[0]].shape[1] > 1:
                sized = ("groups",)  # a depthwise one stays depthwise
        attributes = [[k, "size" if k in sized else kept(v)] for k, v in node.attributes]
        results = [[r.name, len(r.shape), r.dtype] for r in node.results]
        yield [node.op, [kept(o) for o in node.operands], attributes, results]


def _value_row(value: Value) -> dict[str, Any]:
    return {"name": value.name, "shape": list(value.shape), "dtype": value.dtype}


def _value(row: Mapping[str, Any]) -> Value:
    return Value(row["name"], tuple(row["shape"]), row["dtype"])


def _operand(item: Any) -> Operand:
    return item["value"] if isinstance(item, dict) and "value" in item else _number_in(item)


def _number_out(item: Any) -> Any:
    """Infinity, NaN and complex numbers are not JSON: `{"float": "inf"}`, `{"complex": "2j"}`."""
    if isinstance(item, tuple):
        return [_number_out(part) for part in item]
    if isinstance(item, complex):
        return {"complex": repr(item)}
    return {"float": repr(item)} if isinstance(item, float) and (item != item or abs(item) == float("inf")) else item


def _number_in(item: Any) -> Any:
    if isinstance(item, list):
        return tuple(_number_in(part) for part in item)
    if not isinstance(item, dict):
        return item
    return complex(item["complex"]) if "complex" in item else float(item["float"])
