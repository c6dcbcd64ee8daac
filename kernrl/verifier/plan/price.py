"""What a plan costs: bytes moved, arithmetic, and time by a roofline model.

In the model, every tensor that a node reads or writes crosses device memory once, arithmetic runs at the vendor's peak, and
a node takes the longer of the two plus a launch. Where a launch was profiled (`interpret/profile.py`) it costs what it was
seen to do: sectors loaded again come from the second-level cache, a launch of few programs uses few multiprocessors, and a
program waits for memory in each trip of a loop. These times are called `modelled` wherever they are shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernrl.verifier.base.devices import Device
from kernrl.verifier.plan import aten, ttir
from kernrl.verifier.plan.kernel_flops import KernelFlops, kernel_flops
from kernrl.verifier.plan.plan import CONSTANT_OP, AtenNode, LaunchNode, Node, Plan, TensorRef, Variant, walk_refs

LAUNCH_US = 2.0
"""Device time between dependent nodes of a CUDA graph: an assumption, close to what Hopper GPUs show."""

CACHE_FACTOR = 3.0
"""Bandwidth of the second-level cache over that of device memory: an assumption between 2 (A100) and 4 (L40S)."""

LATENCY_US = 0.7
"""From asking device memory to the answer, as measured on Hopper GPUs; a trip of a loop waits for it once."""


@dataclass(frozen=True, slots=True)
class LaunchProfile:
    """What one launch was seen to do, summed over its programs."""

    programs: int
    loaded_bytes: Mapping[int, float]
    """32-byte sectors loaded, in bytes, by storage; each access of each trip counts."""
    stored_bytes: Mapping[int, float]
    stored_at_most: Mapping[int, float]
    """Upper bound of the elements stored, by storage."""
    dot_flops: Mapping[str, float]
    point_flops: float
    rounds: float
    """How often a program waits for memory, one wait after another."""
    pipelined_rounds: float
    """The same in loops around a `tl.dot`, whose loads the compiler prefetches."""
    unknown_trips: bool
    """Whether a loop's length depends on loaded numbers."""
    overflows: bool = False
    """Whether indices of 32 bits overflow, so that other elements are accessed than are meant."""


Profiles = Mapping[tuple[int, int], LaunchProfile]
"""By position of the node in the plan, and of the variant in the node."""


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
    """Whether some launch could not be profiled, or has loops of unknown length: its cost is then too low."""


def price(plan: Plan, device: Device, precision: str = "fp32", profiles: Profiles | None = None) -> Price:
    """Cost of a plan's forward. float32 library products run under `precision`; autotuned launches count at their fastest.

    With `profiles`, launches cost what they were seen to do; without, what their arguments say.
    """
    nodes = tuple(_node(i, n, plan, device, precision, profiles or {}) for i, n in enumerate(plan.nodes))
    return Price(
        device=device.name,
        nodes=nodes,
        bytes_moved=sum(n.bytes_moved for n in nodes),
        flops=sum(n.flops for n in nodes),
        launches=sum(1 for n in nodes if n.kind == "authored"),
        unfused=sum(1 for n in nodes if n.kind == "unfused"),
        modelled_us=sum(n.us for n in nodes),
        unknown=profiles is not None and not all(_known(i, n, profiles) for i, n in enumerate(plan.nodes)),
    )


def _known(position: int, node: Node, profiles: Profiles) -> bool:
    if not isinstance(node, LaunchNode):
        return True
    seen = [profiles.get((position, number)) for number in range(len(node.variants))]
    return all(profile is not None and not profile.unknown_trips for profile in seen)


def physical_floor_us(plan: Plan, device: Device) -> float:
    """Time that any program needs for this reference plan: bytes of inputs, state and outputs over peak bandwidth.

    Memory that is read in part counts in part, and what is gathered from not at all: all indices may be the same. Peak
    bandwidth is never reached, so this errs on the low side.
    """
    seen: dict[int, set[TensorRef]] = {}
    for node in plan.nodes:
        source = _gathered_from(node)
        for ref in (r for r in _operands(node) if r != source):
            if plan.storages[ref.storage].kind != "temp":
                seen.setdefault(ref.storage, set()).add(ref)
    moved = sum(min(plan.storages[s].nbytes, sum(r.nbytes for r in refs)) for s, refs in seen.items())
    moved += sum(ref.nbytes for ref in plan.outputs)
    return moved / (device.bandwidth_gb_s * 1e3)


def least_modelled_us(plan: Plan, device: Device, precision: str) -> float:
    """Shortest modelled time that is believed for a candidate, from the reference's plan.

    A candidate's price depends on its own plan: on views of its buffers, and on loops whose trip counts may be unknown. So a
    candidate counts as moving at least the reference's data, and as doing at least half of its products (a causal mask can
    save that much), in one launch.
    """
    products = sum(flops_of(n.op, n.args, n.outputs) for n in plan.nodes if isinstance(n, AtenNode))
    half = any(o.dtype in ("float16", "bfloat16") for o in plan.outputs)
    unit = "half" if half else "tf32" if precision == "tf32" else "fp32"
    return max(physical_floor_us(plan, device) + LAUNCH_US, _us(0, {unit: products / 2}, 0.0, device))


def flops_of(op: str, args: tuple[object, ...], outputs: tuple[TensorRef | None, ...]) -> float:
    """Floating-point operations of a library call (2 for each multiply-add); 0 for any other op."""
    name, out = aten.base_name(op), outputs[0] if outputs else None
    refs = [r for a in args for r in walk_refs(a)]
    if out is None or name not in aten.LIBRARY or len(refs) < 2:
        return 0.0
    if "conv" in name:
        # each output element of a convolution, or each input element of a transposed one, meets one window of the kernel
        x, w = refs[0], refs[1]
        transposed = len(args) > 6 and args[6] is True
        places = x.numel if transposed else out.numel
        return 2.0 * places * math.prod(w.shape[1:])
    left = refs[1] if name.startswith(("add", "badd")) else refs[0]
    return 2.0 * out.numel * (left.shape[-1] if left.shape else 1)


def _operands(node: AtenNode | LaunchNode) -> Iterable[TensorRef]:
    args = (*node.args, *node.kwargs.values()) if isinstance(node, AtenNode) else node.variants[0].args.values()
    return (ref for a in args for ref in walk_refs(a))


def _gathered_from(node: Node) -> TensorRef | None:
    """The operand of which a node reads what its indices ask for."""
    found = isinstance(node, AtenNode) and node.args and aten.base_name(node.op) in aten.GATHERS and node.args[0]
    return found if isinstance(found, TensorRef) else None


def _node(position: int, node: Node, plan: Plan, device: Device, precision: str, profiles: Profiles) -> NodeCost:
    if isinstance(node, LaunchNode):
        seen = [profiles.get((position, number)) for number in range(len(node.variants))]
        costs = [
            _profiled(v, p, plan, device) if p else _launch(v, plan, device) for v, p in zip(node.variants, seen, strict=True)
        ]
        return min(costs, key=lambda cost: cost.us)
    name = aten.base_name(node.op)
    written = {r for r in node.outputs if r is not None}
    read = set() if name in aten.FILL or node.op == CONSTANT_OP else set(_operands(node)) - written
    source, made = _gathered_from(node), sum(r.nbytes for r in written)
    moved = made + sum(min(r.nbytes, made) if r == source else r.nbytes for r in read)
    flops = flops_of(node.op, node.args, node.outputs)
    kind = "library" if name in aten.LIBRARY else "fill" if name in aten.FILL or node.op == CONSTANT_OP else "unfused"
    half = bool(written) and next(iter(written)).dtype in ("float16", "bfloat16")
    unit = "half" if half else "tf32" if precision == "tf32" else "fp32"
    return NodeCost(node.op, kind, moved, flops, _us(moved, {unit: flops}, 0.0, device))


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
        done = KernelFlops({}, 0.0)
    flops = sum(done.dot_flops.values()) + done.point_flops
    return NodeCost(kernel.function, "authored", moved, flops, _us(moved, done.dot_flops, done.point_flops, device))


def _profiled(variant: Variant, seen: LaunchProfile, plan: Plan, device: Device) -> NodeCost:
    kernel = plan.kernels[variant.kernel]
    sides = [*seen.loaded_bytes.items(), *seen.stored_bytes.items()]
    # of a storage that is smaller than what is loaded, the rest is loaded again: from the cache
    moved = sum(min(seen_bytes, plan.storages[s].nbytes if 0 <= s < len(plan.storages) else 0) for s, seen_bytes in sides)
    cached = sum(seen_bytes for _, seen_bytes in sides) / (CACHE_FACTOR * device.bandwidth_gb_s * 1e3)
    throughput = max(_us(int(moved), seen.dot_flops, seen.point_flops, device) - LAUNCH_US, cached)
    # a multiprocessor holds 64 warps in at most 32 programs; more than fit wait for their turn
    waves = max(1.0, seen.programs / (device.sm_count * min(32, 64 / kernel.num_warps)))
    waits = waves * LATENCY_US * (seen.rounds + seen.pipelined_rounds / max(1, kernel.num_stages))
    us = max(throughput / min(1.0, seen.programs / device.sm_count), waits) + LAUNCH_US
    return NodeCost(kernel.function, "authored", int(moved), sum(seen.dot_flops.values()) + seen.point_flops, us)


def _us(moved: int, products: Mapping[str, float], pointwise: float, device: Device) -> float:
    rates = {"half": device.half_tflops, "tf32": device.tf32_tflops, "fp32": device.fp32_tflops}
    memory = moved / (device.bandwidth_gb_s * 1e3)
    arithmetic = sum(flops / (rates[unit] * 1e6) for unit, flops in products.items()) + pointwise / (device.fp32_tflops * 1e6)
    return max(memory, arithmetic) + LAUNCH_US
