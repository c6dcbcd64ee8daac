"""Read an exported program call by call, as a Graph."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernrl.errors import UsageError
from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.canonical.rewrites import rewrite
from kernrl.tasks.graph.graph import Graph, Node, Operand
from kernrl.tasks.graph.lifting.aten_ops import ATEN, DROPOUTS, IDENTITIES, TAKE_NUMBERS
from kernrl.tasks.graph.lifting.memory import Memory, place, same_memory, traced
from kernrl.tasks.graph.lifting.scalars import Scalar, as_written, computed, real
from kernrl.tasks.graph.lifting.trace import Traced

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
REMEDY = "a hub model, which reads the source, may still answer it"


class LiftError(UsageError):
    """A reference that cannot be lifted: one sentence with the line and the reason."""


class Reading:
    """One exported program, read call by call."""

    def __init__(self, traced: Traced, module: nn.Module, where: str, title: str) -> None:
        self.b, self.traced, self.module, self.where, self.title = Builder(rewrite), traced, module, where, title
        self.env: dict[Any, Any] = {}
        """fx node → name of its value, number, or list of these."""
        self.memory = Memory(self.b, self.env)
        self.paths: dict[str, str] = {}
        """Path of a tensor of the module → the first path under which it is held; tied ones have several."""
        firsts: dict[int, str] = {}
        for held in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
            self.paths.update((path, firsts.setdefault(id(tensor), path)) for path, tensor in held)
        self.changed: list[Any] = []
        """What in-place calls overwrite, so that a buffer of one number is no constant."""
        self.held: dict[str, str] = {}
        """First path → name of its value."""

    def graph(self) -> Graph:
        """The whole program as a Graph, or LiftError."""
        program = self.traced.program
        self._placeholders(program)
        outputs = self._nodes(program.graph_module, program.graph_module.graph)
        if not all(self.memory.fresh(o) for o in outputs if isinstance(o, torch.fx.Node)):
            raise LiftError(f"{self.title}: returns a tensor that was overwritten through a view; {REMEDY}.")
        leaves = [self.env[o] if isinstance(o, torch.fx.Node) else o for o in outputs]
        leaves = [leaf.tensor(self.b) if isinstance(leaf, Scalar) else leaf for leaf in leaves]
        if not any(isinstance(leaf, str) for leaf in leaves):
            raise LiftError(f"{self.title}: the reference returns no tensor.")
        structure = _structure(program.call_spec.out_spec, len(leaves))
        graph = self.b.finish(leaves, structure)
        self._check(graph)
        return graph

    def _placeholders(self, program: torch.export.ExportedProgram) -> None:
        """Inputs, parameters and buffers; a buffer of one number is that number."""
        specs = program.graph_signature.input_specs
        nodes = [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]
        paths, _ = pytree.tree_flatten_with_path(self.traced.args)
        given = iter(paths)
        calls = [
            n for n in program.graph_module.graph.nodes if isinstance(n.target, torch._ops.OpOverload) and n.all_input_nodes
        ]
        self.changed = [traced(n.all_input_nodes[0]) for n in calls if n.target._schema.is_mutable]
        names = list(inspect.signature(type(self.module).forward).parameters.values())[1:]
        for node, spec in zip(nodes, specs, strict=True):
            value = node.meta.get("val")
            self.memory.add(node)
            if spec.kind.name == "USER_INPUT":
                path, leaf = next(given)
                place = tuple(_key(part) for part in path)
                self.env[node] = self._input(leaf, place, names) if isinstance(leaf, Tensor) else leaf
            elif isinstance(value, Tensor):
                self.env[node] = self._held(spec, value, program)
            else:
                self.env[node] = None

    def _input(self, leaf: Tensor, place: tuple[int | str, ...], names: list[inspect.Parameter]) -> str:
        position = place[0] if isinstance(place[0], int) else len(names)
        argument = names[position].name if position < len(names) and names[position].kind.name != "VAR_POSITIONAL" else ""
        stride = () if leaf.is_contiguous() else tuple(leaf.stride())
        return self.b.input(tuple(leaf.shape), _dtype(leaf), place, argument, stride)

    def _held(self, spec: Any, value: Tensor, program: torch.export.ExportedProgram) -> Any:
        """A tensor of the module; a number where it is a buffer of one, which the constructor settled."""
        kind = {"PARAMETER": "parameter", "BUFFER": "buffer"}.get(spec.kind.name, "constant")
        if spec.target not in self.paths:  # a plain attribute
            kind = "constant"
        path = self.paths.get(str(spec.target), str(spec.target))
        if path in self.held:
            return self.held[path]
        fixed = not path.endswith(("running_mean", "running_var")) and not any(same_memory(value, c) for c in self.changed)
        if kind != "parameter" and path in self.traced.numbers and fixed:
            number = self.traced.numbers[path]
            if not number.is_complex() and "num_batches" not in path:
                return Scalar(as_written(number), tuple(number.shape), lambda: self._tensor(value, kind, path))
        data: tuple[Any, ...] = ()
        if kind == "constant" and _attribute(self.module, path) is None:
            constant = real(program.constants.get(path))
            if constant is not None and constant.numel() == 1 and not constant.is_complex():
                return Scalar(as_written(constant), tuple(constant.shape))
            data = tuple(constant.flatten().tolist()) if constant is not None else ()
            path = ""
        return self._tensor(value, kind, path, data)

    def _tensor(self, value: Tensor, kind: str, path: str, data: tuple[Any, ...] = ()) -> str:
        """A tensor of the module as a value; one for each path."""
        if path not in self.held or not path:
            self.held[path] = self.b.parameter(tuple(value.shape), _dtype(value), kind, path, data)
        return self.held[path]

    def _nodes(self, owner: nn.Module, graph: torch.fx.Graph) -> Sequence[Any]:
        """Read every call of a graph; returns what it returns."""
        for node in graph.nodes:
            if node.op == "output":
                return node.args[0]
            if node.op == "call_function":
                self.b.line = _line(node, self.where) or self.b.line
                self._call(owner, node)
        return ()

    def _call(self, owner: nn.Module, node: torch.fx.Node) -> None:
        target: Any = node.target
        if getattr(target, "__name__", "") == "getitem":
            of: Any = node.args[0]
            self.env[node] = self.env[of][node.args[1]]  # pyright: ignore[reportArgumentType]
            self.memory.add(node, of.all_input_nodes)
        elif isinstance(target, torch._ops.OpOverload):
            self._aten(node, target)
        elif "wrap_with_set_grad_enabled" in str(target):
            self._within(owner, node, 1)
        elif "wrap_with_autocast" in str(target) and node.args[2] is False:  # what is switched off changes nothing
            self._within(owner, node, 4)
        else:
            raise LiftError(f"{self.title}: {_said(target)}{self._at()} is no op of a Graph; {REMEDY}.")

    def _within(self, owner: nn.Module, node: torch.fx.Node, place: int) -> None:
        """Read a graph inside a call: argument `place` of the call names it, and the arguments after that are its inputs."""
        name: Any = node.args[place]
        inner: Any = getattr(owner, str(name.target))
        for hole, filler in zip((n for n in inner.graph.nodes if n.op == "placeholder"), node.args[place + 1 :], strict=True):
            self.env[hole] = self.env[filler]  # pyright: ignore[reportArgumentType]
            self.memory.share(hole, filler, whole=True)
        self.env[node] = [self.env[o] for o in self._nodes(inner, inner.graph)]
        self.memory.add(node)

    def _aten(self, node: torch.fx.Node, target: torch._ops.OpOverload) -> None:
        name = target._schema.name.partition("::")[2]
        if name.startswith(("_assert", "sym_")) or name == "_set_grad_enabled":
            return
        if name in ("item", "_local_scalar_dense"):
            raise LiftError(
                f"{self.title}: reads a number out of a tensor{self._at()}; make it an argument of the constructor."
            )
        for read in node.all_input_nodes:
            if not self.memory.fresh(read):
                raise LiftError(f"{self.title}: reads a tensor{self._at()} that was overwritten through a view; {REMEDY}.")
        in_place = name.endswith("_") and not name.endswith("__")
        arguments = self._arguments(node, target)
        result = self._said(name.rstrip("_") if in_place else name, target, arguments, node)
        self.env[node] = result
        if in_place and place(traced(node)) == place(traced(node.all_input_nodes[0])):  # unlike `unsqueeze_`
            if isinstance(result, str) and self.b.value(result).dtype != _dtype(traced(node)):
                result = self.b.add("cast", result, dtype=_dtype(traced(node)))
            self.memory.share(node, node.all_input_nodes[0], whole=True)
            self.memory.overwrite(node, result)
        else:
            self.memory.add(node, node.all_input_nodes)

    def _arguments(self, node: torch.fx.Node, target: torch._ops.OpOverload) -> dict[str, Any]:
        """Every argument of the call by the schema's name, defaults too."""

        def read(item: Any) -> Any:
            if isinstance(item, torch.fx.Node):
                return self.env[item]
            return [read(part) for part in item] if isinstance(item, list | tuple) else item

        schema = target._schema.arguments
        given = {a.name: item for a, item in zip(schema, node.args, strict=False)} | node.kwargs
        return {a.name: read(given[a.name]) if a.name in given else a.default_value for a in schema}

    def _said(self, name: str, target: torch._ops.OpOverload, arguments: dict[str, Any], node: torch.fx.Node) -> Any:
        """The call in the Graph's ops."""
        value = node.meta.get("val")
        shapes = [v for v in pytree.tree_leaves(value) if isinstance(v, Tensor)]
        if any(v.layout != torch.strided for v in shapes):
            raise LiftError(
                f"{self.title}: makes a sparse tensor{self._at()}, which no Graph holds; keep it dense, with a mask."
            )
        if any(not isinstance(s, int) for v in shapes for s in v.shape):
            raise LiftError(
                f"{self.title}: makes a tensor{self._at()} whose shape depends on numbers; mask instead of selecting."
            )
        if name in IDENTITIES and isinstance(arguments.get("self"), Scalar):
            return arguments["self"]
        if (
            len(shapes) == 1
            and not target._schema.is_mutable
            and shapes[0].numel() == 1
            and (number := computed(target, arguments))
        ):
            return number
        numeric = name in TAKE_NUMBERS
        known = {k: (v.number if numeric else v.tensor(self.b)) if isinstance(v, Scalar) else v for k, v in arguments.items()}
        listed = ((k, v) for k, v in known.items() if isinstance(v, list))
        known |= {k: [one.tensor(self.b) if isinstance(one, Scalar) else one for one in v] for k, v in listed}
        used: set[Any] = {int(str(u.args[1])) for u in node.users if getattr(u.target, "__name__", "") == "getitem" and u.users}
        known |= {"name": name, "used": used, "result_dtype": _dtype(shapes[0]) if shapes else ""}
        if isinstance(known.get("dtype"), torch.dtype):
            known["dtype"] = str(known["dtype"]).removeprefix("torch.")
        random = (name in DROPOUTS and arguments.get("train") and arguments.get("p")) or (
            name == "rrelu" and arguments.get("training")
        )
        out = None
        if name in ATEN and shapes and not random and not self._complex(shapes, node):
            try:
                out = ATEN[name](self.b, known)
            except (RuntimeError, KeyError, TypeError, IndexError, ValueError, AttributeError, ArithmeticError):
                out = None  # a form that the rule does not know
        if out is None or (isinstance(out, str) and self.b.value(out).shape != tuple(shapes[0].shape)):
            return self._unknown(target, arguments, shapes, value)
        if isinstance(out, str) and not isinstance(value, Tensor):
            return [out] + [None] * (len(shapes) - 1)  # indices that nothing reads
        return out

    def _complex(self, results: Sequence[Tensor], node: torch.fx.Node) -> bool:
        """Whether a call reads or gives complex numbers, which the ops of a Graph do not know."""
        read = [n.meta.get("val") for n in node.all_input_nodes]
        return any(isinstance(t, Tensor) and t.is_complex() for t in pytree.tree_leaves([*results, *read]))

    def _unknown(self, target: torch._ops.OpOverload, arguments: dict[str, Any], shapes: list[Tensor], value: Any) -> Any:
        """The call as it is."""
        operands: list[Operand] = []

        def written(item: Any) -> Any:
            if isinstance(item, Scalar):
                item = item.tensor(self.b)
            if isinstance(item, str) and item in self.b._values:
                operands.append(item)
                return f"%{len(operands) - 1}"
            if isinstance(item, list | tuple):
                return tuple(written(part) for part in item)
            return str(item) if isinstance(item, torch.dtype) else item

        dropped = ("device", "layout", "pin_memory", "memory_format")
        attributes = {k: written(v) for k, v in arguments.items() if k not in dropped}
        name, overload = target._schema.name.partition("::")[2], target._overloadname
        if target._schema.is_mutable and hasattr(getattr(torch.ops.aten, name.rstrip("_"), None), overload):
            name = name.rstrip("_")  # what an in-place call gives, its other form gives too
        op = f"{target.namespace}.{name}.{overload}"
        results = self.b.unknown(op, tuple(operands), attributes, [(tuple(v.shape), _dtype(v)) for v in shapes])
        return results[0] if isinstance(value, Tensor) else results

    def _at(self) -> str:
        return f" at line {self.b.line}" if self.b.line else ""

    def _check(self, graph: Graph) -> None:
        """Refuse what no kernel could be written for: randomness, recurrence."""
        for node in graph.nodes:
            at = f" at line {node.line}" if node.line else ""
            if node.op in ATEN or node.kind != "unknown":
                continue
            name = node.op.split(".")[1]
            if name in RECURRENT:
                raise LiftError(f"{self.title}: {_plainly(node)}{at} is recurrent, which no Graph holds; {REMEDY}.")
            if _random(node):
                raise LiftError(
                    f"{self.title}: the result depends on randomness ({_plainly(node)}{at}); "
                    "no answer can be compared with it: draw numbers in get_inputs, or call eval() in the constructor."
                )


def _structure(spec: Any, count: int) -> str:
    def text(item: Any) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{k!r}: {text(v)}" for k, v in item.items()) + "}"
        if isinstance(item, list):
            return "[" + ", ".join(map(text, item)) + "]"
        if isinstance(item, tuple):
            return "(" + ", ".join(map(text, item)) + ("," if len(item) == 1 else "") + ")"
        return str(item)

    return text(pytree.tree_unflatten(["*"] * count, spec))


def _key(part: Any) -> int | str:
    for name in ("idx", "key", "name"):
        if hasattr(part, name):
            return getattr(part, name)
    return str(part)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _attribute(module: nn.Module, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _line(node: torch.fx.Node, where: str) -> int:
    found = re.findall(rf'File "{re.escape(where)}", line (\d+)', node.meta.get("stack_trace") or "")
    return int(found[-1]) if found else 0


def _random(node: Node) -> bool:
    namespace, name, overload = node.op.split(".")
    tags = getattr(getattr(getattr(torch.ops, namespace), name), overload).tags
    return torch.Tag.nondeterministic_seeded in tags


def _plainly(node: Node) -> str:
    return node.op.split(".")[1] if "." in node.op else node.op


def _said(target: Any) -> str:
    return getattr(target, "__name__", str(target))
