"""Evaluate a Graph with plain torch: the independent check that lifting and rewriting kept the meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernrl.tasks.graph.graph import Graph, Node, Operand
from kernrl.tasks.graph.ops import OPS
from kernrl.tasks.graph.quick_shapes import FLOAT, quick_shape

Result = Tensor | int | float | bool | None


def run(
    graph: Graph, inputs: Sequence[Tensor], parameters: Mapping[str, Tensor], *, double: bool = False
) -> tuple[Result, ...]:
    """The Graph's outputs, flattened, in order.

    Args:
        inputs: One tensor for each of `graph.inputs`, of its shape.
        parameters: Path → tensor, for every parameter that has a path.
        double: Make in float64 what the Graph makes or casts to float32, for operands that are float64.
    """
    known: dict[str, Tensor] = {i.value.name: t for i, t in zip(graph.inputs, inputs, strict=True)}
    for p in graph.parameters:
        dtype = torch.float64 if double and p.value.dtype == "float32" else getattr(torch, p.value.dtype)
        written = torch.tensor(p.data, dtype=dtype).reshape(p.value.shape) if p.data else None
        known[p.value.name] = parameters[p.path] if written is None else written
    for node in graph.nodes:
        results = evaluate(node, [known[o] if isinstance(o, str) else o for o in node.operands], double=double)
        known.update(zip((r.name for r in node.results), results, strict=True))
    return tuple(known[o] if isinstance(o, str) else o for o in graph.outputs)


def evaluate(node: Node, operands: Sequence[Tensor | Operand], *, double: bool = False) -> tuple[Tensor, ...]:
    """The results of one node."""
    attributes = dict(node.attributes)
    if double and attributes.get("dtype") == "float32":
        attributes["dtype"] = "float64"
    if node.op not in OPS:
        return _unknown(node.op, operands, attributes)
    return (_function(node.op)(*operands, **attributes),)


@lru_cache(maxsize=65536)
def infer(op: str, operands: tuple[Any, ...], attributes: tuple[tuple[str, Any], ...]) -> tuple[tuple[int, ...], str]:
    """(shape, dtype) of what a known op gives; a tensor operand is written as its `(shape, dtype)`.

    Raises whatever torch raises for operands that do not fit, a RuntimeError where it only asserts.
    """
    if (shape := quick_shape(op, operands, dict(attributes))) is not None:
        return shape, FLOAT
    made = [torch.empty(o[0], dtype=getattr(torch, o[1]), device="meta") if isinstance(o, tuple) else o for o in operands]
    where = {"device": "meta"} if OPS[op].kind == "create" else {}
    try:
        out = _function(op)(*made, **dict(attributes), **where)
    except AssertionError as error:  # of functions of the meta device, such as pixel_shuffle's in torch 2.11
        raise RuntimeError(str(error)) from error
    return tuple(out.shape), str(out.dtype).removeprefix("torch.")


def _unknown(op: str, operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Call the ATen overload: attributes are its arguments, with `"%i"` in the place of an operand."""

    def fill(item: Any) -> Any:
        if isinstance(item, tuple):
            return [fill(part) for part in item]
        if isinstance(item, str) and item.startswith("%"):
            return operands[int(item[1:])]
        return getattr(torch, item.removeprefix("torch.")) if isinstance(item, str) and item.startswith("torch.") else item

    overload: Any = reduce(getattr, op.split("."), torch.ops)
    arguments = {name: fill(item) for name, item in attributes.items()}
    flags = {a.name: a.kwarg_only for a in overload._schema.arguments}
    positional = [arguments[name] for name, keyword in flags.items() if name in arguments and not keyword]
    out = overload(*positional, **{name: v for name, v in arguments.items() if flags[name]})
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def _tensor(x: Any, like: Any) -> Tensor:
    """A number beside a tensor, where torch's function takes tensors alone."""
    return x if isinstance(x, Tensor) else torch.full((), x, dtype=like.dtype, device=like.device)


def _with_tensors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(a: Any, b: Any) -> Tensor:
        like = a if isinstance(a, Tensor) else b
        return function(_tensor(a, like), _tensor(b, like))

    return call


def _prod(x: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    out = x
    for d in dim:
        out = out.prod(dim=d, keepdim=True)
    return out if keepdim else out.squeeze(dim)


def _arg(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """argmax and argmin: over one dimension, or over all."""

    def call(x: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
        if len(dim) == 1:
            return function(x, dim=dim[0], keepdim=keepdim)
        out = function(x)
        return out.reshape([1] * x.dim()) if keepdim else out

    return call


def _softmax(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    if len(dim) == 1:
        return torch.softmax(x, dim[0])
    e = torch.exp(x - torch.amax(x, dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def _layer_norm(x: Tensor, weight: Any = None, bias: Any = None, *, dim: tuple[int, ...], eps: float) -> Tensor:
    if dim == tuple(range(x.dim() - len(dim), x.dim())):
        return F.layer_norm(x, [x.shape[d] for d in dim], weight, bias, eps)
    centred = x - x.mean(dim, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dim, keepdim=True) + eps)


def _rms_norm(x: Tensor, weight: Any = None, *, dim: tuple[int, ...], eps: float) -> Tensor:
    out = x * torch.rsqrt(x.square().mean(dim, keepdim=True) + eps)
    return out if weight is None else out * weight


def _instance_norm(x: Tensor, weight: Any = None, bias: Any = None, *, eps: float) -> Tensor:
    return F.group_norm(x, x.shape[1], weight, bias, eps)


def _batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *, momentum: float | None, eps: float) -> Tensor:
    # the running statistics stay as they are: they are no output
    return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)


def _chunk(x: Tensor, chunks: int, dim: int, index: int) -> Tensor:
    size = x.shape[dim] // chunks
    return x.narrow(dim, index * size, size)


def _slice(x: Tensor, dim: int, start: int, stop: int, step: int) -> Tensor:
    return x[(slice(None),) * dim + (slice(start, stop, step),)]


def _unsqueeze(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    for d in dim:
        x = x.unsqueeze(d)
    return x


def _pad(x: Tensor, padding: tuple[int, ...], mode: str, value: float) -> Tensor:
    return F.pad(x, padding, mode, value) if mode == "constant" else F.pad(x, padding, mode)


def _create(dtype: str) -> torch.dtype:
    return getattr(torch, dtype)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{op: _with_tensors(getattr(torch, op)) for op in ("maximum", "minimum", "atan2")},
    **{op: _with_tensors(getattr(torch, op)) for op in ("logical_and", "logical_or", "logical_xor")},
    "log_sigmoid": F.logsigmoid,
    "cast": lambda x, dtype: x.to(_create(dtype)),
    "batch_norm_eval": lambda x, mean, var, w, b, eps: F.batch_norm(x, mean, var, w, b, False, 0.0, eps),
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "group_norm": lambda x, weight, bias, num_groups, eps: F.group_norm(x, num_groups, weight, bias, eps),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "prod": _prod,
    "argmax": _arg(torch.argmax),
    "argmin": _arg(torch.argmin),
    "norm": lambda x, dim, keepdim, p: torch.linalg.vector_norm(x, p, dim, keepdim),
    "softmax": _softmax,
    "log_softmax": lambda x, dim: x - torch.logsumexp(x, dim, keepdim=True),
    "einsum": lambda *operands, equation: torch.einsum(equation, *operands),
    "adaptive_max_pool1d": F.adaptive_max_pool1d,  # torch's own gives the indices too
    "avg_pool1d": lambda x, divisor_override, **rest: F.avg_pool1d(x, **rest),
    "unsqueeze": _unsqueeze,
    "expand": lambda x, shape: x.expand(shape),
    "slice": _slice,
    "chunk": _chunk,
    "cat": lambda *parts, dim: torch.cat(parts, dim),
    "pad": _pad,
    "flip": lambda x, dim: torch.flip(x, dim),
    "roll": lambda x, shifts, dim: torch.roll(x, shifts, dim),
    "repeat": lambda x, repeats: x.repeat(repeats),
    "embedding": lambda weight, indices: F.embedding(indices, weight),
    "gather": lambda x, indices, dim: torch.gather(x, dim, indices),
    "index_select": lambda x, indices, dim: torch.index_select(x, dim, indices),
    "full": lambda value, shape, dtype, device=None: torch.full(shape, value, dtype=_create(dtype), device=device),
    "arange": lambda start, end, step, dtype, device=None: torch.arange(start, end, step, dtype=_create(dtype), device=device),
}
"""Op → the function that computes it, where torch has none of the op's own name that takes its attributes."""


def _function(op: str) -> Callable[..., Tensor]:
    return FUNCTIONS.get(op) or getattr(torch, op, None) or getattr(F, op)
