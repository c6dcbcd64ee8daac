"""Draws random programs: which ops, in which order and spelling, with which numbers and sizes."""

from __future__ import annotations

from math import lcm
from random import Random

from kernrl.tasks.grammar.pointwise import ACTIVATIONS, PARAMETERS, SCALARS, TENSORS, Pointwise
from kernrl.tasks.grammar.producers import draw_producer, draw_sizes
from kernrl.tasks.grammar.program import RESIDUAL, Operand, Producer, Program, Shape, Step
from kernrl.tasks.grammar.reductions import GRID_CORES, ROW_CORES, SAMPLE_CORES, Core
from kernrl.tasks.grammar.soundness import is_sound

WINDOWS = ((2, 2), (2, 2), (3, 2), (3, 1), (4, 4))
SPACE_WEIGHTS = {"rows": 4, "space": 2, "channels": 2}
"""How often a reducing op is over each space; 1 where not named."""
EAGER_US = (50.0, 3000.0)
"""Bounds of the eager time a full input set may take on an H200, by the estimate of `eager_us`."""


class Names:
    """Hands out attribute names of a module that are not in use yet: `bias`, `bias_2`, …"""

    def __init__(self, taken: str) -> None:
        self.used = {word for word in ("weight", "linear", "conv", "deconv", "x", "y") if word in taken}

    def take(self, name: str) -> str:
        """`name`, or its first free numbered form."""
        number, free = 1, name
        while free in self.used:
            number += 1
            free = f"{name}_{number}"
        self.used.add(free)
        return free


def allowed_cores(shape: Shape) -> tuple[Core, ...]:
    """The reducing ops that make sense on a value of that shape."""
    if shape.layout == "rows":
        return ROW_CORES + (SAMPLE_CORES if len(shape.dims) == 2 else ())
    if shape.layout == "flat" or all(dim == "1" for dim in shape.spatial):
        return ()
    if shape.channels == "1":
        # a mean over pixels of a mean over channels hardly differs from image to image
        return tuple(core for core in GRID_CORES if core.space == "window")
    return GRID_CORES


def allowed_kinds(shape: Shape, producer: Producer) -> tuple[tuple[Pointwise, ...], ...]:
    """The groups of pointwise ops that make sense on a value of that shape."""
    groups = [ACTIVATIONS, SCALARS]
    if shape.channels not in ("", "1"):
        # F.batch_norm takes dimension 1 for the channels, which a batch of rows has elsewhere
        batched_rows = shape.layout == "rows" and len(shape.dims) == 3
        groups.append(tuple(op for op in PARAMETERS if not (op.vector and batched_rows)))
    if shape.dims == producer.after.dims:
        groups.append(TENSORS)
    return tuple(groups)


def draw_op(rng: Random, shape: Shape, producer: Producer, cores_left: int) -> Pointwise | Core:
    """One op that may come next; cores are drawn by space first, so that frequent spaces do not crowd out others."""
    cores = allowed_cores(shape) if cores_left else ()
    if cores and rng.random() < 0.38:
        spaces = sorted({core.space for core in cores})
        space = rng.choices(spaces, weights=[SPACE_WEIGHTS.get(name, 1) for name in spaces])[0]
        menu = [core for core in cores if core.space == space]
        # what keeps the shape leaves room for more ops after it
        return rng.choices(menu, weights=[1 if core.collapses else 2 for core in menu])[0]
    groups = allowed_kinds(shape, producer)
    return rng.choice(rng.choices(groups, weights=(5, 3, 2.5, 1.5)[: len(groups)])[0])


def place_pointwise(op: Pointwise, shape: Shape, rng: Random, names: Names) -> Step:
    """Fix the numbers, operands and spelling of a pointwise op."""
    values = tuple(rng.choice(menu) for menu in op.values)
    ones = ("1",) * len(shape.spatial)
    parameter_shape = ", ".join((shape.channels, *(() if op.vector else ones)))
    operands: dict[str, Operand] = {}
    state: list[str] = []
    for placeholder, draw in zip(op.operands, op.draws * len(op.operands), strict=False):
        if op.kind == "residual":
            operands[placeholder] = Operand(RESIDUAL, "residual")
        elif op.kind == "tensor":
            operands[placeholder] = Operand(names.take(placeholder), "tensor")
        else:
            name = names.take(placeholder)
            value = draw.format(shape=parameter_shape)
            buffer = placeholder.startswith("running")
            state.append(f'self.register_buffer("{name}", {value})' if buffer else f"self.{name} = nn.Parameter({value})")
            operands[placeholder] = Operand(f"self.{name}", "channel")
    spelling = rng.choice(op.spellings)
    fields = {**dict(zip("ab", values, strict=False)), **{k: o.host for k, o in operands.items()}}
    spelling, module = _as_module(spelling.format(x="{x}", **fields), names, "act")
    return Step(op, spelling, shape, shape, values, operands, tuple(state), module)


def place_core(op: Core, shape: Shape, rng: Random, names: Names) -> Step:
    """Fix the spelling, parameters, window or groups of a reducing op."""
    spelling = rng.choice(op.spellings)
    window = rng.choice(WINDOWS[: 3 if len(shape.spatial) == 3 else 5]) if op.space == "window" else (0, 0)
    groups = rng.choice((2, 4, 8)) if op.space == "group" else 0
    is_module = spelling.startswith("nn.")
    plain = op.name == "instance_norm" and "affine" not in spelling
    affine = tuple(a for a in op.affine if (is_module and not plain) or f"{{{a}}}" in spelling)
    attribute = names.take("norm") if is_module and affine else ""
    operands: dict[str, Operand] = {}
    state: list[str] = []
    for name in affine:
        if attribute:
            operands[name] = Operand(f"self.{attribute}.{name}", "channel")
        else:
            free = names.take(name)
            operands[name] = Operand(f"self.{free}", "channel")
            state.append(f"self.{free} = nn.Parameter(torch.randn({shape.channels}))")
    rank = len(shape.spatial)
    fields: dict[str, object] = {"C": shape.channels, "G": groups, "k": window[0], "s": window[1], "d": rank}
    fields["space"] = 2 if rank == 1 else tuple(range(2, 2 + rank))
    spelling = spelling.format(x="{x}", **fields, **{k: o.host for k, o in operands.items()})
    after = _after(op, shape, spelling, window)
    if attribute:
        state = [f"self.{attribute} = {spelling}", f"nn.init.uniform_(self.{attribute}.weight, 0.5, 1.5)"]
        if "bias" in affine:
            state.append(f"nn.init.normal_(self.{attribute}.bias)")
        return Step(op, f"self.{attribute}({{x}})", shape, after, (), operands, tuple(state), "", window, groups)
    spelling, module = _as_module(spelling, names, "norm" if op.affine else "pool" if "Pool" in spelling else "softmax")
    return Step(op, spelling, shape, after, (), operands, tuple(state), module, window, groups)


def _as_module(spelling: str, names: Names, attribute: str) -> tuple[str, str]:
    """(expression of `{x}`, line of `__init__`) for a spelling that may be a module."""
    if not spelling.startswith("nn."):
        return spelling, ""
    name = names.take(attribute)
    return f"self.{name}({{x}})", f"self.{name} = {spelling}"


def _after(op: Core, shape: Shape, spelling: str, window: tuple[int, int]) -> Shape:
    """The shape that a reducing op leaves."""
    keeps_dims = "keepdim=True" in spelling or "daptive" in spelling
    dims = shape.dims
    if op.space == "window":
        size, stride = window
        return Shape((*dims[:2], *(f"({d} - {size}) // {stride} + 1" for d in dims[2:])), "grid")
    if not op.collapses:
        return shape
    if op.space == "rows":
        return Shape((*dims[:-1], "1") if keeps_dims else dims[:-1], "flat")
    if op.space == "channels":
        return Shape((dims[0], "1", *dims[2:]), "grid")
    if keeps_dims:
        return Shape((*dims[:2], *("1" for _ in dims[2:])), "grid")
    return Shape(dims[:2], "rows") if dims[1] != "1" else Shape(dims[:2], "flat")


def eager_us(program: Program, input_set: str = "full") -> float:
    """Rough time of eager float32 PyTorch on an H200: 40 TFLOP/s for products, 3.5 TB/s for everything that moves."""
    return program.flops(input_set) / 40e6 + program.eager_bytes(input_set) / 3.5e6


def draw_program(family: str, depth: int, rng: Random, max_bytes: int, only: Pointwise | Core | None = None) -> Program:
    """A sound program of `depth` ops (the producer counts as one), redrawn until every rule holds.

    `only` asks for a single given op on a bare input (level 1), which has nothing around it to hide it.
    """
    while True:
        producer, settings = draw_producer(family, rng)
        names = Names(" ".join((*producer.state, *(name for name, _ in producer.inputs))))
        steps: list[Step] = []
        shape, cores_left = producer.after, 3
        for _ in range(depth - (producer.expression != "x")):
            op = only or draw_op(rng, shape, producer, cores_left)
            if any(s.op.name == op.name for s in steps[-2:]) or (op.name == "batch_norm" and any(s.op is op for s in steps)):
                break
            step = place_core(op, shape, rng, names) if isinstance(op, Core) else place_pointwise(op, shape, rng, names)
            cores_left -= isinstance(op, Core)
            steps.append(step)
            shape = step.after
        unit = lcm(1, *(step.groups for step in steps if step.groups))
        program = Program(producer, tuple(steps), draw_sizes(family, rng, unit), settings)
        if len(program.composition) == depth and _fits(program, max_bytes) and (only is not None or is_sound(program)):
            return program


def _fits(program: Program, max_bytes: int) -> bool:
    """Valid at all three input sets, worth timing at the full one, and within memory."""
    return (
        all(program.is_valid_at(name) for name in program.sizes)
        and program.peak_bytes() <= max_bytes
        and EAGER_US[0] <= eager_us(program) <= EAGER_US[1]
    )
