"""What a Graph costs: bytes and FLOPs of every op, which ops can be one kernel, and the least time that takes.

Fusion follows three rules, and nothing is assumed of a compiler:

1. A view costs nothing. It belongs to the kernel of what it is a view of; of an input, to the first one that reads it.
2. A pointwise op joins the kernel of its deepest operand, whatever that is: a product's epilogue, a norm's tail. Pointwise
   ops whose results one later kernel alone reads, element by element, join that one.
3. A reduction or normalization joins the kernel of its operand where all ops there are pointwise, or reduce over the same
   axes. Anything else starts a kernel: products, convolutions, pools, scans, and what is unknown.

A kernel reads every value that comes from outside once, of a slice, a table or an image with long strides what is taken of it,
and writes every value that is read outside or returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernrl.tasks.graph.graph import Graph, Node, Value

PER_ELEMENT = {"gelu": 10, "mish": 12, "silu": 6, "sigmoid": 5, "tanh": 8, "softplus": 8, "elu": 6, "selu": 6, "erf": 8}
PER_ELEMENT |= {"softmax": 8, "log_softmax": 8, "logsumexp": 6, "hardswish": 4, "batch_norm_eval": 4}
PER_ELEMENT |= dict.fromkeys(("layer_norm", "group_norm", "instance_norm", "batch_norm"), 8)
"""Floating-point operations for one element, roughly; 1 for every other op. A roofline hardly sees the difference."""


SECTOR_BYTES = 32
"""Read from memory at once."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device can do at most."""

    name: str
    bytes_per_s: float
    product_flops_per_s: float
    """Of matrix products and convolutions, under the task's precision policy."""
    flops_per_s: float
    """Of everything else."""

    def seconds(self, nbytes: int, product_flops: int, flops: int) -> float:
        """The longest of what moving, multiplying and the rest take."""
        return max(nbytes / self.bytes_per_s, product_flops / self.product_flops_per_s, flops / self.flops_per_s)


@dataclass(frozen=True, slots=True)
class Kernel:
    """Nodes that could be one kernel."""

    nodes: tuple[Node, ...]
    reads: tuple[Value, ...]
    read_bytes: int
    writes: tuple[Value, ...]
    product_flops: int
    flops: int

    @property
    def nbytes(self) -> int:
        """Bytes that it moves at least."""
        return self.read_bytes + sum(v.nbytes for v in self.writes)

    def __str__(self) -> str:
        return " + ".join(node.op for node in self.nodes if node.kind != "view") or self.nodes[0].op


def node_bytes(graph: Graph, node: Node) -> int:
    """Bytes that an op by itself moves: every operand read once, every result written; a view moves none."""
    if node.kind == "view":
        return 0
    return sum(bytes_read(graph, node, name) for name in dict.fromkeys(node.reads)) + sum(r.nbytes for r in node.results)


def bytes_read(graph: Graph, node: Node, name: str) -> int:
    """Bytes that an op reads of an operand: of what it copies or is a view of, no more than it makes."""
    value, made = graph.values[name], node.value
    if name != node.reads[0]:
        return value.nbytes
    if node.kind in ("view", "move"):
        return min(value.nbytes, made.nbytes)
    window = _window(graph, node)
    if not window:
        return value.nbytes
    rank, sector = len(window), max(1, SECTOR_BYTES * value.numel // max(1, value.nbytes))
    window = (*window[:-1], max(window[-1], sector))
    met = [min(n, places * wide) for n, places, wide in zip(value.shape[-rank:], made.shape[-rank:], window, strict=True)]
    return value.nbytes * prod(met) // max(1, prod(value.shape[-rank:]))


def _window(graph: Graph, node: Node) -> tuple[int, ...]:
    """What an op reads along each of the last axes of its first operand for one element; () for other ops than windows."""
    if node.kind == "convolution" and "transpose" not in node.op:
        return graph.values[node.reads[1]].shape[2:]
    return tuple(node["kernel_size"]) if node.kind == "pool" and "adaptive" not in node.op else ()


def node_flops(graph: Graph, node: Node) -> int:
    """Floating-point operations of an op: two for each multiply and add of a product; an unknown op has none."""
    values = graph.values
    shapes = [values[name].shape for name in node.reads]
    out = node.value.numel
    match node.kind:
        case "product" if node.op == "einsum":
            return 2 * prod(
                {c: n for term, s in zip(_terms(node), shapes, strict=False) for c, n in zip(term, s, strict=False)}.values()
            )
        case "product":
            return 2 * out * shapes[0][-1]
        case "convolution":
            weight = shapes[1]
            multiplies = prod(shapes[0]) * weight[1] if "transpose" in node.op else out * weight[1]
            return 2 * multiplies * prod(weight[2:])
        case "pool":
            return out * prod(node["kernel_size"]) if "adaptive" not in node.op else prod(shapes[0])
        case "pointwise":
            return out * PER_ELEMENT.get(node.op, 1)
        case "reduction" | "normalization" | "scan":
            return prod(shapes[0]) * PER_ELEMENT.get(node.op, 1)
    return 0


def product_flops(graph: Graph) -> int:
    """FLOPs of all its products and convolutions."""
    return sum(node_flops(graph, node) for node in graph.nodes if node.kind in ("product", "convolution"))


def _terms(node: Node) -> list[str]:
    return node["equation"].partition("->")[0].split(",")


def kernels(graph: Graph) -> list[Kernel]:
    """The kernels that the rules above make of a Graph, in an order in which they can run."""
    group: dict[str, int] = {}  # value → number of its kernel
    members: list[list[Node]] = []
    given = _views_of_inputs(graph)
    for node in graph.nodes:
        if node.value.name in given:
            continue
        home = _home(graph, node, group, members)
        if home is None:
            home = len(members)
            members.append([])
        members[home].append(node)
        group.update((r.name, home) for r in node.results)
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    for number in reversed(range(len(members))):
        later = _reader(members[number], number, readers, group)
        if later is not None:
            group.update((r.name, later) for node in members[number] for r in node.results)
            members[later] = members[number] + members[later]
            members[number] = []
    members = [nodes for nodes in members if nodes]
    for node in reversed(graph.nodes):
        if node.value.name in given:
            using = (nodes for nodes in members if any(node.value.name in other.reads for other in nodes))
            next(using, members[0] if members else []).insert(0, node)
    return [_kernel(graph, nodes, given) for nodes in members]


def _reader(nodes: list[Node], number: int, readers: Mapping[str, list[Node]], group: Mapping[str, int]) -> int | None:
    """The later kernel that a pointwise one can join: the only one that reads its results, and element by element."""
    if any(node.kind not in ("pointwise", "view") for node in nodes):
        return None
    found: set[int] = set()
    for result in (r for node in nodes for r in node.results):
        for reader in readers.get(result.name, ()):
            if (home := group[reader.value.name]) == number:
                continue
            if reader.kind != "pointwise" or reader.value.numel != result.numel:
                return None
            found.add(home)
    return found.pop() if len(found) == 1 else None


def _views_of_inputs(graph: Graph) -> dict[str, str]:
    """Views of inputs and parameters that are read by others: what each is a view of."""
    made: set[str] = set()
    found: dict[str, str] = {}
    read = {name for node in graph.nodes for name in node.reads}
    for node in graph.nodes:
        whole = found.get(node.reads[0], node.reads[0]) if node.kind == "view" else ""
        name = node.value.name
        if whole and whole not in made and name in read and name not in graph.outputs:
            found[name] = whole
        else:
            made |= {r.name for r in node.results}
    return found


def _home(graph: Graph, node: Node, group: Mapping[str, int], members: Sequence[list[Node]]) -> int | None:
    """The kernel that a node joins."""
    given = [name for name in node.reads if name in group]
    if not given or node.kind not in ("view", "pointwise", "reduction", "normalization"):
        return None
    home = max(group[name] for name in given)
    if node.kind in ("view", "pointwise"):
        return home
    axes = _axes(graph, node)
    for other in members[home]:
        if other.kind not in ("view", "pointwise") and (
            other.kind not in ("reduction", "normalization") or _axes(graph, other) != axes
        ):
            return None
    return home


def _axes(graph: Graph, node: Node) -> tuple[int, ...]:
    """The axes over which a node reduces."""
    rank = len(graph.values[node.reads[0]].shape)
    if node.op in ("instance_norm", "group_norm"):
        return tuple(range(2, rank)) if node.op == "instance_norm" else (-1, node["num_groups"])
    return (0, *range(2, rank)) if node.op == "batch_norm" else node["dim"]


def _kernel(graph: Graph, nodes: list[Node], given: Mapping[str, str]) -> Kernel:
    values, inside = graph.values, {r.name for node in nodes for r in node.results}
    reads: dict[str, int] = {}
    for node in nodes:
        for name in dict.fromkeys(name for name in node.reads if name not in inside or name in given):
            whole = given.get(name, name)
            if node.value.name not in given:  # a view itself reads nothing
                reads[whole] = reads.get(whole, 0) + bytes_read(graph, node, name)
    wanted = set(graph.outputs) | {name for node in graph.nodes if node.value.name not in inside for name in node.reads}
    wanted -= given.keys()
    # a view of what is written anyway takes no room of its own
    kept = [n for n in nodes if n.kind != "view" or n.reads[0] not in wanted or n.reads[0] not in inside]
    writes = [r.name for node in kept for r in node.results if r.name in wanted]
    flops = [(node.kind in ("product", "convolution"), node_flops(graph, node)) for node in nodes]
    return Kernel(
        nodes=tuple(nodes),
        reads=tuple(values[name] for name in reads),
        read_bytes=sum(min(values[name].nbytes, read) for name, read in reads.items()),
        writes=tuple(values[name] for name in writes),
        product_flops=sum(n for is_product, n in flops if is_product),
        flops=sum(n for is_product, n in flops if not is_product),
    )


def roofline_s(graph: Graph, rates: Rates) -> tuple[float, float]:
    """(seconds with one kernel an op, seconds with the kernels of `kernels`): neither can be undercut that way."""
    apart = 0.0
    for node in graph.nodes:
        is_product, flops = node.kind in ("product", "convolution"), node_flops(graph, node)
        apart += rates.seconds(node_bytes(graph, node), flops if is_product else 0, 0 if is_product else flops)
    return apart, sum(rates.seconds(k.nbytes, k.product_flops, k.flops) for k in kernels(graph))


def bytes_text(nbytes: float) -> str:
    """`12.6 MB`: decimal units, three digits."""
    return _unit(nbytes, "B")


def flops_text(flops: float) -> str:
    """`2.15 GFLOP`."""
    return _unit(flops, "FLOP")


def _unit(number: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5 or prefix == "T":
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    raise AssertionError


def facts_text(graph: Graph, rates: Rates | None = None) -> str:
    """A short block for a prompt: every op with its result, bytes and FLOPs, what could fuse, and the roofline."""
    lines = ["Shapes and costs, op by op:"]
    for node in graph.nodes:
        if node.kind != "view":
            cost = f"{bytes_text(node_bytes(graph, node))}, {flops_text(node_flops(graph, node))}"
            lines.append(f"- {node.op} -> {node.value}: {cost}")
    fused = kernels(graph)
    several = [str(kernel) for kernel in fused if sum(n.kind != "view" for n in kernel.nodes) > 1]
    lines.append(f"Could be one kernel: {'; '.join(several)}." if several else "No two ops can be one kernel.")
    apart, together = sum(node_bytes(graph, n) for n in graph.nodes), sum(k.nbytes for k in fused)
    count = f"{len(fused)} fused kernel{'s'[: len(fused) != 1]}"
    lines.append(f"Memory moved: {bytes_text(apart)} op by op, {bytes_text(together)} with {count}.")
    if rates:
        slow, fast = roofline_s(graph, rates)
        lines.append(f"At the limits of the {rates.name}: {slow * 1e6:.4g} us op by op, {fast * 1e6:.4g} us fused.")
    return "\n".join(lines)
