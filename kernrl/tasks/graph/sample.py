"""Random Graphs over the ops that level 2 is made of: any order, any axes, free numbers, several producers.

A Graph is built op by op with `Builder`, which keeps it canonical: a draw that a rewrite swallows (`x * 1.0`) is drawn
again. `writing/write.py` writes it as PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random

from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.canonical.rewrites import rewrite
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.ops import RESHAPES

UNARY = (
    "relu", "silu", "mish", "sigmoid", "tanh", "hardswish", "hardsigmoid", "selu", "log_sigmoid", "softsign", "tanhshrink",
    "abs", "square", "leaky_relu", "elu", "celu", "gelu", "softplus", "clamp", "softshrink", "hardshrink", "neg", "sin", "exp",
)  # fmt: skip
BOUNDED = {"sigmoid", "tanh", "hardsigmoid", "softsign", "sin", "clamp", "log_sigmoid", "logsumexp"}
"""With the norms and softmax, what makes small numbers of exponentials again."""
NUMBERS = (0.1, 0.25, 0.3, 0.5, 0.7, 1.5, 2.0, 2.5, 3.0, 5.0, 10.0)
MOST_ELEMENTS = 2**28
"""Largest tensor drawn: 1 GiB of float32."""


@dataclass
class Draft:
    """A Graph that grows, the value to go on from, and those that may be read again."""

    b: Builder
    rng: Random
    x: str = ""
    earlier: list[str] = field(default_factory=list)
    paths: int = 0
    most: int = 0
    """Elements of the largest tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the value to go on from."""
        return self.b.value(self.x).shape

    def parameter(self, *shape: int, kind: str = "parameter") -> str:
        """A new tensor of the module."""
        self.paths += 1
        return self.b.parameter(shape, "float32", kind, f"p{self.paths}")

    def input(self, *shape: int) -> str:
        """A new tensor that `forward` is given."""
        return self.b.input(shape, "float32", (len(self.b.inputs),))


Step = Callable[[Draft], "str | None"]
"""Adds to a draft; returns the value to go on from, or None where nothing fits."""


def sample(
    rng: Random,
    ops: int,
    *,
    tries: int = 200,
    start: Callable[[Draft], None] | None = None,
    first: Step | None = None,
    steps: Mapping[Step, float] | None = None,
    outputs: Callable[[Random, Draft], list[str]] | None = None,
    most: int | None = None,
) -> Graph:
    """A random Graph of `ops` ops, views not counted; of fewer where the last draws fit nothing.

    Deterministic in the state of `rng`.

    Args:
        start: Draws the first input, in place of this file's own.
        first: The first step, where it fits.
        steps: What may come next and how often, in place of `STEPS`.
        outputs: Chooses what is given back.
        most: Largest tensor, in elements, in place of `MOST_ELEMENTS`.
    """
    draft = Draft(Builder(rewrite), rng, most=most or MOST_ELEMENTS)
    (start or _start)(draft)
    count, choices = 0, dict(steps or STEPS)
    for turn in range(tries):
        if count >= ops:
            break
        step = first if first and turn == 0 else rng.choices(list(choices), weights=list(choices.values()))[0]
        before = draft.x
        draft.earlier.append(before)
        try:
            found = step(draft)
        except (RuntimeError, ValueError):
            found = None  # it does not fit these shapes
        if found is None or found == before or not _fits(draft.b.value(found).shape, draft.most):
            draft.earlier.pop()
            continue
        draft.x = found
        count = sum(node.op not in RESHAPES for node in draft.b.finish([found]).nodes)
    returned = (outputs or _outputs)(rng, draft)
    structure = "*" if len(returned) == 1 else f"({', '.join('*' * len(returned))})"
    return _rebuilt(draft.b.finish(returned, structure))


def _outputs(rng: Random, draft: Draft) -> list[str]:
    """The last value, and seldom one of before."""
    return [draft.x, rng.choice(draft.earlier[1:])] if rng.random() < 0.05 and draft.earlier[1:] else [draft.x]


def _fits(shape: Sequence[int], most: int) -> bool:
    return 0 < prod(shape) <= most and 0 not in shape


def _rebuilt(graph: Graph) -> Graph:
    """The Graph without the inputs that only a draw that did not fit would have read."""
    read = {name for node in graph.nodes for name in node.reads} | set(graph.outputs)
    b = Builder(rewrite)
    names: dict[str, str] = {}
    for i in graph.inputs:
        if i.value.name in read:
            names[i.value.name] = b.input(i.value.shape, i.value.dtype, (len(names),))
    for p in graph.parameters:
        names[p.value.name] = b.parameter(p.value.shape, p.value.dtype, p.kind, p.path)
    for node in graph.nodes:
        operands = tuple(names[o] if isinstance(o, str) else o for o in node.operands)
        names[node.value.name] = b.place(node.op, operands, dict(node.attributes))
    return b.finish([names[o] if isinstance(o, str) else o for o in graph.outputs], graph.structure)


def _start(d: Draft) -> None:
    """The first input: rows, images or volumes, a batch of matrices."""
    rng = d.rng
    batch = rng.choice((4, 8, 16, 32, 64, 128))
    kind = rng.choice(("rows", "rows", "image", "image", "line", "volume", "heads"))
    if kind == "rows":
        shape = (batch * rng.choice((1, 8, 16)), rng.choice((256, 512, 768, 1024, 2048, 4096, 8192)))
    elif kind == "heads":
        shape = (batch, rng.choice((64, 128, 256)), rng.choice((32, 64, 96, 128)))
    else:
        rank = {"line": 1, "image": 2, "volume": 3}[kind]
        sides = {1: (512, 1000, 2048), 2: (24, 32, 48, 64, 112), 3: (12, 16, 24)}[rank]
        shape = (batch, rng.choice((3, 8, 16, 24, 32, 64)), *(rng.choice(sides) for _ in range(rank)))
    d.x = d.input(*shape)


def unary(d: Draft) -> str | None:
    """An activation or another op of one operand."""
    op, rng = d.rng.choice(UNARY), d.rng
    numbers: dict[str, dict[str, object]] = {
        "leaky_relu": {"negative_slope": rng.choice((0.01, 0.05, 0.1, 0.2, 0.3))},
        "elu": {"alpha": rng.choice((0.5, 1.0, 1.5))},
        "celu": {"alpha": rng.choice((0.5, 1.0, 1.5))},
        "gelu": {"approximate": rng.choice(("none", "none", "tanh"))},
        "softplus": {"beta": rng.choice((1.0, 1.0, 2.0))},
        "clamp": {"min": rng.choice((None, -1.0, -0.5, 0.1)), "max": rng.choice((0.5, 1.0, 2.0))},
        "softshrink": {"lambd": rng.choice((0.25, 0.5))},
        "hardshrink": {"lambd": rng.choice((0.25, 0.5))},
    }
    return None if op == "exp" and _exponential(d) else d.b.add(op, d.x, **numbers.get(op, {}))


def _exponential(d: Draft) -> bool:
    """x is made of exponentials, and nothing has bounded them: theirs would overflow where a rounding says so."""
    made: set[str] = set()
    graph = d.b.finish([d.x])
    for node in graph.nodes:
        bounded = node.op in BOUNDED or node.kind == "normalization"
        if node.op == "exp" or (not bounded and any(name in made for name in node.reads)):
            made.add(node.value.name)
    return graph.outputs[0] in made


def number(d: Draft) -> str:
    """Arithmetic with a number."""
    op, n = d.rng.choice(("add", "sub", "mul", "div", "mul")), d.rng.choice(NUMBERS)
    return d.b.add(op, n, d.x) if op == "sub" and d.rng.random() < 0.3 else d.b.add(op, d.x, n)


def _broadcastable(d: Draft, batch: bool = False) -> tuple[int, ...]:
    """A shape that broadcasts to x: some axes, the others 1; the first one only if `batch`."""
    rng, shape = d.rng, d.shape
    kinds = ["channel", "channel", "channel", "one", "some"]
    kind = rng.choice(kinds) if len(shape) > 1 else rng.choice(("one", "all"))
    if kind == "one":
        return rng.choice(((1,), ()))
    if kind == "all":
        return shape
    axis = 1 if len(shape) > 2 else len(shape) - 1
    kept = {axis} if kind == "channel" else {a for a in range(not batch, len(shape)) if rng.random() < 0.6}
    sizes = [s if a in kept else 1 for a, s in enumerate(shape)]
    return tuple(sizes[min(kept, default=len(sizes) - 1) :])


def parameter(d: Draft) -> str:
    """Arithmetic with a parameter."""
    op = d.rng.choice(("add", "add", "mul", "sub", "maximum", "minimum"))
    return d.b.add(op, d.x, d.parameter(*_broadcastable(d)))


def further_input(d: Draft) -> str:
    """Arithmetic with a further input."""
    op = d.rng.choice(("add", "mul", "sub"))
    known = [i for i in d.b.inputs if d.b.value(i).shape == d.shape and i != d.x]
    other = (
        d.rng.choice(known)
        if known and d.rng.random() < 0.5
        else d.input(*(d.shape if d.rng.random() < 0.7 else _broadcastable(d, batch=True)))
    )
    return d.b.add(op, d.x, other)


def earlier(d: Draft) -> str | None:
    """Join with a value from before: a residual, a gate, or a reduced value broadcast back."""
    fitting = [e for e in d.earlier if e != d.x and _joins(d.b.value(e).shape, d.shape)]
    return d.b.add(d.rng.choice(("add", "mul", "sub", "add")), d.x, d.rng.choice(fitting)) if fitting else None


def _joins(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or 1 in (a, b) for a, b in zip(one, other, strict=True))


def _axes(d: Draft) -> tuple[int, ...]:
    """Channels, space, the last axis, everything but the batch, or any."""
    rank = len(d.shape)
    choices = [
        (max(rank - 1, 0),),
        tuple(range(1, rank)),
        tuple(range(2, rank)),
        (1,),
        tuple(a for a in range(rank) if d.rng.random() < 0.4),
    ]
    fitting = [c for c in choices if c and max(c) < rank and prod(d.shape[a] for a in c) > 1]
    return d.rng.choice(fitting) if fitting else ()


def reduce(d: Draft) -> str | None:
    """A reduction."""
    axes = _axes(d)
    op = d.rng.choice(("sum", "mean", "mean", "amax", "amin", "logsumexp", "var", "std", "norm"))
    return d.b.add(op, d.x, dim=axes, keepdim=d.rng.random() < 0.6) if axes else None


def centre(d: Draft) -> str | None:
    """The distance to a mean."""
    axes = _axes(d)
    return d.b.add("sub", d.x, d.b.add("mean", d.x, dim=axes, keepdim=True)) if axes else None


def softmax(d: Draft) -> str | None:
    """A softmax, or its logarithm."""
    axes = _axes(d)
    return d.b.add(d.rng.choice(("softmax", "log_softmax")), d.x, dim=axes[:1]) if axes else None


def norm(d: Draft) -> str | None:
    """A normalization."""
    rng, shape, rank = d.rng, d.shape, len(d.shape)
    if rank < 2 or prod(shape[1:]) < 8:
        return None
    kind = rng.choice(("layer", "rms", "batch", "eval", *(("group", "instance") if rank > 2 else ("group",))))
    affine = rng.random() < 0.8
    if kind in ("layer", "rms"):
        dim = tuple(range(rng.choice(range(1, rank)), rank))
        sizes = [shape[a] for a in dim]
        weight = d.parameter(*sizes) if affine else None
        if kind == "rms":
            return d.b.add("rms_norm", d.x, weight, dim=dim, eps=rng.choice((1e-5, 1e-6)))
        return d.b.add(
            "layer_norm", d.x, weight, d.parameter(*sizes) if affine else None, dim=dim, eps=rng.choice((1e-5, 1e-6))
        )
    weight, bias = (d.parameter(shape[1]), d.parameter(shape[1])) if affine else (None, None)
    if kind == "group":
        groups = [g for g in (2, 4, 8, 16, 32) if shape[1] % g == 0 and g < shape[1]]
        return d.b.add("group_norm", d.x, weight, bias, num_groups=rng.choice(groups)) if groups else None
    if kind == "instance":
        return d.b.add("instance_norm", d.x, weight, bias) if prod(shape[2:]) > 8 else None
    running = (d.parameter(shape[1], kind="buffer"), d.parameter(shape[1], kind="buffer"))
    if kind == "eval":
        return d.b.add("batch_norm_eval", d.x, *running, weight, bias)
    return d.b.add("batch_norm", d.x, weight, bias, *(running if rng.random() < 0.6 else (None, None))) if rank < 6 else None


def pool(d: Draft) -> str | None:
    """A pool."""
    rng, rank = d.rng, len(d.shape) - 2
    if rank not in (1, 2, 3) or min(d.shape[2:]) < 6:
        return None
    k = rng.choice((2, 2, 3, 4))
    stride, padding = rng.choice((k, k, 1, 2)), rng.choice((0, 0, k // 2))
    kernel = {"kernel_size": (k,) * rank, "stride": (stride,) * rank, "padding": (padding,) * rank}
    return d.b.add(f"{rng.choice(('avg', 'max'))}_pool{rank}d", d.x, **kernel)


def product(d: Draft) -> str | None:
    """A linear layer, a matmul with a weight or an input, or a convolution of any kind."""
    rng, shape, rank = d.rng, d.shape, len(d.shape)
    if rank in (3, 4, 5) and shape[1] < 512 and min(shape[2:]) > 5 and rng.random() < 0.85:
        return _convolution(d)
    if rank < 2 or shape[-1] > 8192:
        return None
    out = rng.choice((32, 64, 128, 256, 512, 1024))
    kind = rng.choice(("linear", "linear", "matmul", "input")) if rank == 2 else rng.choice(("linear", "bmm"))
    if kind == "linear":
        return d.b.add("linear", d.x, d.parameter(out, shape[-1]), d.parameter(out) if rng.random() < 0.8 else None)
    if kind == "matmul":
        return d.b.add("matmul", d.x, d.parameter(shape[-1], out))
    return d.b.add("matmul", d.x, d.input(*shape[:-2], shape[-1], out))


def _convolution(d: Draft) -> str:
    rng, channels, rank = d.rng, d.shape[1], len(d.shape) - 2
    out = rng.choice((8, 16, 24, 32, 64, 96))
    k, stride, dilation = rng.choice((1, 3, 3, 3, 5)), rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2))
    groups = rng.choice([1, 1, 1, *(g for g in (2, 4, 8) if channels % g == 0 and out % g == 0)])
    numbers = {"stride": (stride,) * rank, "padding": (rng.choice((0, k // 2)),) * rank, "dilation": (dilation,) * rank}
    bias = d.parameter(out) if rng.random() < 0.8 else None
    if rng.random() < 0.35:
        output_padding = (int(stride > 1 and rng.random() < 0.4),) * rank
        weight = d.parameter(channels, out // groups, *(k,) * rank)
        return d.b.add(f"conv_transpose{rank}d", d.x, weight, bias, groups=groups, output_padding=output_padding, **numbers)
    weight = d.parameter(out, channels // groups, *(k,) * rank)
    return d.b.add(f"conv{rank}d", d.x, weight, bias, groups=groups, **numbers)


def view(d: Draft) -> str | None:
    """A flatten, a transpose, or an axis dropped or added."""
    rank = len(d.shape)
    if rank < 3:
        return d.b.add("unsqueeze", d.x, dim=(1,)) if rank == 2 and d.rng.random() < 0.2 else None
    if d.rng.random() < 0.5:
        return d.b.add("flatten", d.x, start_dim=d.rng.choice((1, 2)), end_dim=-1) if rank > 3 else None
    dims = list(range(rank))
    dims[-1], dims[-2] = dims[-2], dims[-1]
    return d.b.add("permute", d.x, dims=tuple(dims))


STEPS: dict[Step, float] = {
    unary: 6.0, number: 3.0, parameter: 2.5, further_input: 0.7, earlier: 0.8, reduce: 1.5, centre: 0.3, softmax: 0.8,
    norm: 1.6, pool: 0.9, product: 2.0, view: 0.4,
}  # fmt: skip
"""What may come next, and how often it is drawn."""
