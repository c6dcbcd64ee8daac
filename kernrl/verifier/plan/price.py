"""What a plan costs: bytes moved, arithmetic, and time by a roofline model.

Library calls are priced from their operands (`library_time.py`), and launches from what they were seen to do (`launch_time.py`,
`interpret/profile.py`). What one node leaves in the L2 cache, the next reads from there. A launch that was not profiled moves
its arguments once and computes at the peak rate. These times are called `modelled` wherever shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernrl.verifier.base.devices import Device
from kernrl.verifier.plan import aten, ttir
from kernrl.verifier.plan.cache_contents import CacheContents
from kernrl.verifier.plan.kernel_flops import KernelFlops, kernel_flops
from kernrl.verifier.plan.launch_time import CACHE_BYTES_PER_US, START_US, LaunchProfile, Profiles, launch_us
from kernrl.verifier.plan.library_time import (
    BANDWIDTH_SHARE,
    LATENCY_US,
    LAUNCH_US,
    cost_of,
    fourier_flops,
    multiply_add_flops,
    pairs_of_three,
    peak,
)
from kernrl.verifier.plan.plan import (
    CONSTANT_OP,
    ITEM_BYTES,
    Arg,
    AtenNode,
    LaunchNode,
    Node,
    Plan,
    TensorRef,
    Variant,
    walk_refs,
)

SECTOR_BYTES = 32
"""Read from memory at once."""

GRAPH_US = 3.0
"""What a CUDA graph takes besides its nodes, as measured between events on an H200."""


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Cost of one node."""

    name: str
    """The ATen op or the kernel's name."""
    kind: str
    """`authored`, `library`, `unfused` or `fill`."""
    bytes_moved: int
    flops: float
    us: float
    guessed: bool = False
    """Whether it has loops of which arguments alone do not say the length: it may do far more."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a plan costs on one device."""

    device: str
    nodes: tuple[NodeCost, ...]
    bytes_moved: int
    flops: float
    launches: int
    """Authored launches."""
    unfused: int
    """ATen nodes that a kernel could have included."""
    modelled_us: float
    unknown: bool = False
    """Whether some launch could not be profiled, or has loops of unknown length: its cost may then be too low."""


def price(plan: Plan, device: Device, precision: str = "fp32", profiles: Profiles | None = None) -> Price:
    """Cost of a plan's forward. float32 library products run under `precision`; autotuned launches count at their fastest.

    With `profiles`, launches cost what they were seen to do; without, what their arguments say.
    """
    cache = CacheContents(device)
    nodes = tuple(_node(i, n, plan, device, precision, profiles or {}, cache) for i, n in enumerate(plan.nodes))
    return Price(
        device=device.name,
        nodes=nodes,
        bytes_moved=sum(n.bytes_moved for n in nodes),
        flops=sum(n.flops for n in nodes),
        launches=sum(1 for n in nodes if n.kind == "authored"),
        unfused=sum(1 for n in nodes if n.kind == "unfused"),
        modelled_us=sum(n.us for n in nodes) + GRAPH_US,
        unknown=any(node.guessed for node in nodes)
        if profiles is None
        else not all(_fully_profiled(i, n, profiles) for i, n in enumerate(plan.nodes)),
    )


def _fully_profiled(position: int, node: Node, profiles: Profiles) -> bool:
    if not isinstance(node, LaunchNode):
        return True
    seen = [profiles.get((position, number)) for number in range(len(node.variants))]
    return all(profile is not None and not profile.unknown_trips for profile in seen)


def physical_floor_us(plan: Plan, device: Device) -> float:
    """Time that any program needs for this reference plan: bytes of inputs, state and outputs over peak bandwidth.

    Memory that is read in part counts in part, and so does what is needed only for a part of what is made of it; what is
    gathered from not at all, as all indices may be the same, nor what a mask may leave unread. Peak bandwidth is never
    reached, so this errs on the low side.
    """
    needed: dict[int, dict[TensorRef, float]] = {}  # of each storage, the bytes of its views
    for ref in plan.outputs:
        if plan.storages[ref.storage].kind == "temp":
            needed.setdefault(ref.storage, {})[ref] = ref.nbytes
    unread = _selected_from(plan)
    for node in reversed(plan.nodes):
        share = _needed_share(node, plan, needed)
        source = _gathered_from(node)
        for ref in (r for r in _read(node) if r != source):
            views = needed.setdefault(ref.storage, {})
            views[ref] = max(views.get(ref, 0.0), share * ref.nbytes * _window_share(node, ref))
    given = [s for s, storage in enumerate(plan.storages) if storage.kind != "temp" and s not in unread]
    moved = sum(min(plan.storages[s].nbytes, sum(needed.get(s, {}).values())) for s in given)
    moved += sum(ref.nbytes for ref in plan.outputs)
    return moved / (device.bandwidth_gb_s * 1e3)


def _needed_share(node: Node, plan: Plan, needed: dict[int, dict[TensorRef, float]]) -> float:
    """The largest share of a result of the node that is needed later; what it makes whole is not needed before."""
    made = [r for r in node.outputs if r is not None] if isinstance(node, AtenNode) else []
    if not made or any(plan.storages[r.storage].kind != "temp" for r in made):
        return 1.0
    share = max(min(1.0, sum(needed.get(r.storage, {}).values()) / max(1, r.nbytes)) for r in made)
    for ref in made:
        if ref.nbytes == plan.storages[ref.storage].nbytes:
            needed.pop(ref.storage, None)
    return share


def _read(node: Node) -> Iterable[TensorRef]:
    """Tensors whose elements a node reads."""
    fills = isinstance(node, AtenNode) and (aten.base_name(node.op) in aten.FILL or node.op == CONSTANT_OP)
    return () if fills else _operands(node)


def _window_share(node: Node, ref: TensorRef) -> float:
    """The share of an image that a node reads, whose windows may leave gaps: its stride is longer than they are."""
    made = node.outputs[0] if isinstance(node, AtenNode) and node.outputs else None
    if not isinstance(node, AtenNode) or made is None or not node.args or node.args[0] != ref:
        return 1.0
    if aten.base_name(node.op) in aten.CUTS:
        return min(1.0, made.numel / max(1, ref.numel))
    window = aten.window(node.op, node.args)
    if not window or len(window) > min(len(ref.shape), len(made.shape)):
        return 1.0
    window = list(window)
    if ref.stride[-1] == 1:  # memory is read by sectors
        window[-1] = max(window[-1], SECTOR_BYTES // ITEM_BYTES[ref.dtype])
    images = zip(ref.shape[-len(window) :], made.shape[-len(window) :], window, strict=True)
    return math.prod(min(size, places * wide) / max(1, size) for size, places, wide in images)


def least_modelled_us(plan: Plan, device: Device, precision: str) -> float:
    """Shortest modelled time that is believed for a candidate, from the reference's plan.

    A candidate's price depends on its own plan: on views of its buffers, and on loops whose trip counts may be unknown. So a
    candidate counts as moving at least the reference's data, and as doing at least half of its products (a causal mask can
    save that much), in one launch. Of a Fourier transform, few frequencies may be wanted.
    """
    calls = [n for n in plan.nodes if isinstance(n, AtenNode) and aten.base_name(n.op) not in aten.FOURIER]
    products = sum(flops_of(n.op, n.args, n.outputs) for n in calls)
    half = any(o.dtype in ("float16", "bfloat16") for o in plan.outputs)
    unit = "half" if half else "tf32" if precision == "tf32" else "fp32"
    moving = physical_floor_us(plan, device) / BANDWIDTH_SHARE + LAUNCH_US
    return GRAPH_US + max(moving, _us(0, {unit: products / 2}, 0.0, device))


def flops_of(op: str, args: tuple[Arg, ...], outputs: tuple[TensorRef | None, ...]) -> float:
    """Floating-point operations of library calls, attention and distances: 2 for each multiply-add, of complex numbers 8. 0 for
    any other op."""
    name, out = aten.base_name(op), outputs[0] if outputs else None
    refs = [r for a in args for r in walk_refs(a)]
    if out is not None and refs and name in aten.FOURIER:
        return fourier_flops(refs[0], out, args)
    if out is None or not refs or name not in aten.LIBRARY | aten.ATTENTION | aten.DISTANCES:
        return 0.0
    each, last = multiply_add_flops(out), refs[0].shape[-1] if refs[0].shape else 1
    if name in aten.DISTANCES:
        return each * out.numel * last
    if len(refs) < 2:
        return 0.0
    if name in aten.ATTENTION:  # each query meets each key, and their weights each value
        keys = math.prod(refs[1].shape[-2:-1])
        return each * keys * (refs[0].numel + out.numel)
    if name == "_trilinear":
        times, first, second, _ = pairs_of_three(args)
        return each * times * (math.prod(first) + math.prod(second))
    if "conv" in name:
        # each output element of a convolution, or each input element of a transposed one, meets one window of the kernel
        x, w = refs[0], refs[1]
        transposed = len(args) > 6 and args[6] is True
        places = x.numel if transposed else out.numel
        return each * places * math.prod(w.shape[1:])
    left = refs[1] if name.startswith(("add", "badd")) else refs[0]
    depth = left.shape[-1] if left.shape else 1
    if name == "addbmm":  # the products of a batch are added
        depth *= math.prod(left.shape[:-2])
    return each * out.numel * depth


def _operands(node: AtenNode | LaunchNode) -> Iterable[TensorRef]:
    args = (*node.args, *node.kwargs.values()) if isinstance(node, AtenNode) else node.variants[0].args.values()
    return (ref for a in args for ref in walk_refs(a))


def _selected_from(plan: Plan) -> set[int]:
    """The storages of which a selection takes some elements, of them or of what is computed from each by itself."""
    found: set[int] = set()
    for node in reversed(plan.nodes):
        if not isinstance(node, AtenNode) or not (made := [r for r in node.outputs if r is not None]):
            continue
        name = aten.base_name(node.op)
        through = name in aten.POINT and all(r.storage in found for r in made)
        if name in aten.SELECTS or through:
            found |= {r.storage for r in _operands(node) if r.numel == made[0].numel and r.dtype != "bool"}
    return found


def _gathered_from(node: Node) -> TensorRef | None:
    """The operand of which a node reads what its indices ask for."""
    found = isinstance(node, AtenNode) and node.args and aten.base_name(node.op) in aten.GATHERS and node.args[0]
    return found if isinstance(found, TensorRef) else None


def _bagged_bytes(node: AtenNode, table: TensorRef) -> int:
    """What an embedding bag reads of its table: a row for each index."""
    rows = node.args[1] if len(node.args) > 1 else None
    return rows.numel * table.nbytes // max(1, table.shape[0]) if isinstance(rows, TensorRef) and table.shape else table.nbytes


def _node(
    position: int, node: Node, plan: Plan, device: Device, precision: str, profiles: Profiles, cache: CacheContents
) -> NodeCost:
    if isinstance(node, LaunchNode):
        seen = [profiles.get((position, number)) for number in range(len(node.variants))]
        pairs = list(zip(node.variants, seen, strict=True))
        costs = [_profiled(v, p, plan, device, cache) if p else _launch(v, plan, device) for v, p in pairs]
        for storage in dict.fromkeys(s for p in seen if p for s in (*p.loaded_bytes, *p.stored_bytes)):
            cache.touch(storage, _size(plan, storage))
        return min(costs, key=lambda cost: cost.us)
    name = aten.base_name(node.op)
    written = {r for r in node.outputs if r is not None}
    read = set(_read(node)) - written
    source, made = _gathered_from(node), sum(r.nbytes for r in written)
    gathered = _bagged_bytes(node, source) if source is not None and name in aten.BAGS else made
    sizes = {r: min(r.nbytes, gathered) if r == source else int(r.nbytes * _window_share(node, r)) for r in read}
    moved = made + sum(sizes.values())
    flops = flops_of(node.op, node.args, node.outputs)
    kind = "library" if name in aten.LIBRARY else "fill" if name in aten.FILL or node.op == CONSTANT_OP else "unfused"
    half = bool(written) and next(iter(written)).dtype in ("float16", "bfloat16")
    unit = "half" if half else "tf32" if precision == "tf32" else "fp32"
    cost = cost_of(node, device, unit)
    cached = sum(size * cache.share(r.storage) for r, size in sizes.items())
    for ref in (*read, *written):
        cache.touch(ref.storage, _size(plan, ref.storage))
    bandwidth = device.bandwidth_gb_s * 1e3 * BANDWIDTH_SHARE
    main = max((moved - cached) / bandwidth, moved / (device.sm_count * CACHE_BYTES_PER_US), cost.us)
    us = main + cost.extra_bytes / bandwidth + cost.launches * (LAUNCH_US + START_US + LATENCY_US)
    return NodeCost(node.op, kind, moved, flops, us)


def _size(plan: Plan, storage: int) -> int:
    return plan.storages[storage].nbytes if 0 <= storage < len(plan.storages) else 0


def _launch(variant: Variant, plan: Plan, device: Device) -> NodeCost:
    kernel = plan.kernels[variant.kernel]
    touched = ttir.access(kernel.ttir)
    values = list(variant.args.values())
    moved = 0
    for position, value in enumerate(values):
        if isinstance(value, TensorRef):
            moved += value.nbytes * ((position in touched.reads) + (position in touched.writes))
    scalars = {i: v for i, v in enumerate(values) if isinstance(v, int) and not isinstance(v, bool)}
    try:
        done = kernel_flops(kernel.ttir, scalars, variant.grid)
    except ttir.TtirError:
        done = KernelFlops({}, 0.0, guessed=True)
    flops = sum(done.dot_flops.values()) + done.point_flops
    us = _us(moved, done.dot_flops, done.point_flops, device)
    return NodeCost(kernel.function, "authored", moved, flops, us, done.guessed)


def _profiled(variant: Variant, seen: LaunchProfile, plan: Plan, device: Device, cache: CacheContents) -> NodeCost:
    kernel = plan.kernels[variant.kernel]
    moved = crossing = 0.0
    for storage, loaded in seen.loaded_bytes.items():
        # of a storage that is smaller than what is loaded, the rest is loaded again: from the cache
        once = min(loaded, _size(plan, storage))
        moved += once
        crossing += once * (1.0 - cache.share(storage))
    stored = sum(min(count, _size(plan, storage)) for storage, count in seen.stored_bytes.items())
    sizes = {storage: _size(plan, storage) for storage in seen.loaded_bytes}
    us = launch_us(seen, kernel, crossing + stored, device, sizes) + LAUNCH_US
    done = sum(seen.dot_flops.values()) + seen.point_flops
    return NodeCost(kernel.function, "authored", int(moved + stored), done, us)


def _us(moved: int, products: Mapping[str, float], pointwise: float, device: Device) -> float:
    memory = moved / (device.bandwidth_gb_s * 1e3)
    arithmetic = sum(flops / peak(device, unit) for unit, flops in products.items()) + pointwise / (device.fp32_tflops * 1e6)
    return max(memory, arithmetic) + LAUNCH_US
