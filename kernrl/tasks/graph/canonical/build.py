"""Build a Graph node by node, in canonical form.

`add` gives every computation one form as it grows: attributes are completed and axes counted from the front, equal nodes
are one, operands of commutative ops are put in order, and `rewrites.py` replaces spellings by what they spell. `finish`
drops what no output reads and orders and names the rest. The lifter and the generator both build with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from kernrl.tasks.graph.graph import Graph, Input, Node, Operand, Parameter, Value
from kernrl.tasks.graph.ops import OPS, REQUIRED, SIZED, SIZED_IF_UNKNOWN
from kernrl.tasks.graph.run import infer

Rewrite = Callable[["Builder", str, tuple[Operand, ...], dict[str, Any]], str | None]
"""The value that an op gives in another form, or None where it is canonical as it stands: `rewrites.rewrite`."""

FLOATS = ("float64", "float32", "bfloat16", "float16")


class Builder:
    """A Graph that grows. Values are named as they come; `finish` names them anew."""

    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite
        self.line = 0
        """Source line of the nodes that are added next."""
        self._inputs: list[Input] = []
        self._parameters: dict[str, Parameter] = {}
        self._values: dict[str, Value] = {}
        self._nodes: dict[str, Node] = {}
        self._same: dict[tuple[Any, ...], str] = {}
        self._orders: dict[str, tuple[int, int, str, int]] = {}

    def input(
        self, shape: Sequence[int], dtype: str, place: tuple[int | str, ...], argument: str = "", stride: tuple[int, ...] = ()
    ) -> str:
        """A tensor that `forward` is given; returns its name."""
        value = self._hold(Value(f"x{len(self._inputs)}", tuple(shape), dtype), 1, place)
        self._inputs.append(Input(value, place, argument, stride))
        return value.name

    def parameter(self, shape: Sequence[int], dtype: str, kind: str, path: str, data: tuple[Any, ...] = ()) -> str:
        """A tensor that the module holds; returns its name."""
        value = self._hold(Value(f"p{len(self._parameters)}", tuple(shape), dtype), 2, (len(shape), data))
        self._parameters[value.name] = Parameter(value, kind, path, data)  # pyright: ignore[reportArgumentType]
        return value.name

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, in order."""
        return [i.value.name for i in self._inputs]

    def value(self, name: str) -> Value:
        """The value of that name."""
        return self._values[name]

    def node(self, operand: Operand, *ops: str) -> Node | None:
        """The node that gives `operand`, if there is one, and it is one of `ops` where any are named."""
        found = self._nodes.get(operand) if isinstance(operand, str) else None
        return found if found and (not ops or found.op in ops) else None

    def is_parameter(self, operand: Operand) -> bool:
        """`operand` is a tensor of the module."""
        return operand in self._parameters

    def held(self, name: str) -> Parameter:
        """The tensor of the module of that name."""
        return self._parameters[name]

    def add(self, op: str, *operands: Operand, **attributes: Any) -> str:
        """The name of the value that a known op gives, in whatever form is canonical.

        Attributes that are left out have the table's defaults; axes may be negative.
        Raises whatever torch raises for operands that do not fit.
        """
        complete = self._complete(op, operands, attributes)
        operands = self._numbers(op, operands)
        if OPS[op].commutative:
            operands = (*sorted(operands[:2], key=self._order), *operands[2:])
        return self._rewrite(self, op, operands, complete) or self.place(op, operands, complete)

    def place(self, op: str, operands: tuple[Operand, ...], attributes: dict[str, Any]) -> str:
        """Add a node as it is, unless there is the same one already; returns its value's name."""
        key = (op, *((type(o), o) for o in operands), *((k, type(v), v) for k, v in attributes.items()))
        if key not in self._same:
            given = tuple((self.value(o).shape, self.value(o).dtype) if isinstance(o, str) else o for o in operands)
            pairs = tuple(attributes.items())
            self._same[key] = self._append(op, operands, pairs, [infer(op, given, pairs)])[0]
        return self._same[key]

    def unknown(
        self, op: str, operands: tuple[Operand, ...], attributes: dict[str, Any], results: Iterable[tuple[Sequence[int], str]]
    ) -> list[str]:
        """Add a node of an op that the table does not know; returns the names of its results."""
        return self._append(op, operands, tuple(attributes.items()), [(tuple(shape), dtype) for shape, dtype in results])

    def finish(self, outputs: Sequence[Operand], structure: str = "*") -> Graph:
        """The Graph of those outputs."""
        nodes, outputs = _fold_squeezes(self._live(outputs), outputs)
        names: dict[str, str] = {i.value.name: i.value.name for i in self._inputs}
        parameters: list[Parameter] = []
        ordered: list[Node] = []
        given = 0
        for node in _depth_first(nodes, outputs):
            for read in node.reads:
                if read in self._parameters and read not in names:
                    names[read] = f"p{len(parameters)}"
                    parameters.append(_renamed(self._parameters[read], names))
            for result in node.results:
                names[result.name] = f"v{given}"
                given += 1
            operands = tuple(names[o] if isinstance(o, str) else o for o in node.operands)
            ordered.append(
                replace(node, operands=operands, results=tuple(replace(r, name=names[r.name]) for r in node.results))
            )
        for o in outputs:  # a module may return its parameter
            if o in self._parameters and o not in names:
                names[o] = f"p{len(parameters)}"  # pyright: ignore[reportArgumentType]
                parameters.append(_renamed(self._parameters[o], names))  # pyright: ignore[reportArgumentType]
        returned = tuple(names[o] if isinstance(o, str) else o for o in outputs)
        return Graph(tuple(self._inputs), tuple(parameters), tuple(ordered), returned, structure)

    def _hold(self, value: Value, rank: int, identity: Any) -> Value:
        self._values[value.name] = value
        self._orders[value.name] = (rank, 0, repr(identity), len(self._orders))
        return value

    def _append(
        self,
        op: str,
        operands: tuple[Operand, ...],
        attributes: tuple[tuple[str, Any], ...],
        results: Sequence[tuple[tuple[int, ...], str]],
    ) -> list[str]:
        values = tuple(Value(f"n{len(self._values) + i}", *result) for i, result in enumerate(results))
        node = Node(op, operands, attributes, values, self.line)
        read = [self._orders[o] if isinstance(o, str) else o for o in operands]
        depth = 1 + max((-o[1] for o in read if isinstance(o, tuple)), default=0)
        # sizes play no part, or the same module would be ordered otherwise at another input set
        sized = SIZED.get(op, () if op in OPS else SIZED_IF_UNKNOWN)
        identity = [op, [o[::2] if isinstance(o, tuple) else o for o in read], [kv for kv in attributes if kv[0] not in sized]]
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()
        for i, value in enumerate(values):
            self._values[value.name], self._nodes[value.name] = value, node
            self._orders[value.name] = (0, -depth, f"{digest}.{i}", len(self._orders))
        return [value.name for value in values]

    def _order(self, operand: Operand) -> tuple[Any, ...]:
        """What sorts operands: deeper results first, then inputs, parameters and numbers."""
        return self._orders[operand] if isinstance(operand, str) else (3, 0, repr(operand), 0)

    def _complete(self, op: str, operands: tuple[Operand, ...], attributes: dict[str, Any]) -> dict[str, Any]:
        """All attributes of the op in the table's order, each in its one form."""
        table = OPS[op].attributes
        if strange := set(attributes) - set(table):
            raise TypeError(f"{op} has no attribute {', '.join(strange)}")
        first = next((self.value(o) for o in operands if isinstance(o, str)), None)
        rank = len(first.shape) if first else 0
        complete = {}
        for name, default in table.items():
            value = attributes.get(name, default)
            if value is REQUIRED:
                raise TypeError(f"{op} needs {name}")
            if isinstance(value, list | tuple):
                value = tuple(value)
            if name == "dim":
                value = _axes(op, value, rank)
            elif name in ("start_dim", "end_dim", "dims"):
                value = tuple(d % rank for d in value) if isinstance(value, tuple) else value % max(rank, 1)
            elif isinstance(default, float) or (op == "clamp" and first and first.dtype in FLOATS):
                value = float(value) if isinstance(value, int) else value
            complete[name] = value
        return complete

    def _numbers(self, op: str, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        """Numbers beside floating-point tensors as floats: `x * 2` is `x * 2.0`."""
        beside = operands[1:] if op == "where" else operands
        if OPS[op].kind != "pointwise" or not any(isinstance(o, str) and self.value(o).dtype in FLOATS for o in beside):
            return operands
        return tuple(float(o) if isinstance(o, int) else o for o in operands)

    def _live(self, outputs: Sequence[Operand]) -> list[Node]:
        """The nodes that the outputs need, in the order in which they were added."""
        wanted, stack = set(), [o for o in outputs if isinstance(o, str)]
        while stack:
            name = stack.pop()
            node = self._nodes.get(name)
            if node and node.value.name not in wanted:
                wanted.add(node.value.name)
                stack += node.reads
        return [node for name, node in self._nodes.items() if name in wanted]


def _axes(op: str, dim: Any, rank: int) -> int | tuple[int, ...]:
    """Axes counted from the front; ascending where their order says nothing."""
    if op == "unsqueeze":  # axes of the result
        return tuple(sorted(d % (rank + len(dim)) for d in dim))
    if OPS[op].kind in ("reduction", "normalization") or op in ("squeeze", "flip", "roll"):
        dims = tuple(range(rank)) if dim is None else (dim,) if isinstance(dim, int) else dim
        dims = tuple(d % rank for d in dims) if rank else ()
        return dims if op == "roll" else tuple(sorted(dims))
    return dim % max(rank, 1)


def _renamed(parameter: Parameter, names: dict[str, str]) -> Parameter:
    return replace(parameter, value=replace(parameter.value, name=names[parameter.value.name]))


def _depth_first(nodes: Sequence[Node], outputs: Sequence[Operand]) -> list[Node]:
    """In the order in which outputs, from the first on, need them: the same for every order that an author chose."""
    giver = {r.name: node for node in nodes for r in node.results}
    done: dict[str, Node] = {}
    stack = [(o, False) for o in reversed(outputs) if o in giver]
    while stack:
        name, ready = stack.pop()
        node = giver[name]  # pyright: ignore[reportArgumentType]
        if node.value.name in done:
            continue
        if ready:
            done[node.value.name] = node
            continue
        stack.append((name, True))
        stack += [(read, False) for read in reversed(node.reads) if read in giver]
    return list(done.values())


def _fold_squeezes(nodes: Sequence[Node], outputs: Sequence[Operand]) -> tuple[list[Node], list[Operand]]:
    """`squeeze(relu(mean(x, keepdim=True)))` as `relu(mean(x))`, where nothing else reads what lies between."""
    found = {node.value.name: node for node in nodes}
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for read in node.reads:
            readers.setdefault(read, []).append(node)
    alias: dict[str, str] = {}
    for node in nodes:
        if node.kind != "reduction" or not node["keepdim"]:
            continue
        chain, here = [node], node
        while here.value.name not in outputs and len(readers.get(here.value.name, ())) == 1:
            here = readers[here.value.name][0]
            if here.op == "squeeze" and here["dim"] == node["dim"]:
                for part in chain:
                    attributes = (
                        tuple((k, k != "keepdim" and v) for k, v in part.attributes) if part is node else part.attributes
                    )
                    result = replace(part.value, shape=here.value.shape)
                    found[part.value.name] = replace(part, attributes=attributes, results=(result,))
                alias[here.value.name] = chain[-1].value.name
                del found[here.value.name]
                break
            if here.kind != "pointwise" or len(here.reads) != 1:
                break
            chain.append(here)

    def swap(operands: Sequence[Operand]) -> list[Operand]:
        return [alias.get(o, o) if isinstance(o, str) else o for o in operands]

    return [replace(node, operands=tuple(swap(node.operands))) for node in found.values()], swap(outputs)
