"""Styles: the ways in which one program is answered, from one fused kernel to one kernel an op, and how they are written down.

Styles of one task differ in speed, which is what a policy that already writes correct kernels has left to learn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from kernrl.tasks.grammar.pointwise import HELPERS, PARAMETERS
from kernrl.tasks.grammar.program import RESIDUAL, Operand, Program, Step
from kernrl.tasks.grammar.write_reference import imports_for, init_arguments
from kernrl.tasks.solutions.addressing import tile_for
from kernrl.tasks.solutions.launch_code import Launch, host_dims
from kernrl.tasks.solutions.pointwise_kernels import PointGrid, gemm_kernel, point_kernel, window_kernel
from kernrl.tasks.solutions.stage import WHOLE_LIMIT, Fusion, Stage, fits_whole, partition, reduced_length
from kernrl.tasks.solutions.tile import helpers_of
from kernrl.tasks.solutions.tile_kernels import stats_and_apply, walking_kernel, whole_kernel
from kernrl.tasks.task import Solution

Head = Literal["library", "bare", "dot", "none"]
"""The producer by the library, by the library without its bias, as a `tl.dot` kernel of ours, or absent."""
Passes = Literal["whole", "walk", "welford", "stats"]
"""The reduced set in registers, walked in chunks, walked with merged moments, or its moments in a kernel of their own."""


@dataclass(frozen=True, slots=True)
class Style:
    """One way to answer; a stage that cannot follow a choice takes the nearest that it can."""

    head: Head
    fusion: Fusion
    passes: Passes = "whole"
    point_grid: PointGrid = "flat"
    several_rows: bool = False
    in_place: bool = False
    block: int = 1024
    warps: int = 4
    gemm_blocks: tuple[int, int, int] = (64, 64, 32)
    palette: int = 0


MAX_CHARACTERS = 6000
"""Longest solution handed out: about 1,500 tokens of a byte-pair encoding trained on such text."""

PALETTES: tuple[dict[str, str], ...] = (
    {},
    {"offs": "offsets", "BLOCK": "BLOCK_SIZE"},
    {"x_ptr": "in_ptr", "row": "line", "cols": "col"},
)
"""Other names for the same things, applied to a whole solution."""


def _kernel_name(stage: Stage, alone: bool) -> str:
    if alone:
        return "fused_kernel"
    cores = stage.cores
    if not cores:
        return "pointwise_kernel"
    if stage.space == "window":
        return "pool_kernel"
    bodies = {core.body for core in cores}
    if bodies & {"norm", "rms"}:
        return "norm_kernel"
    return "softmax_kernel" if bodies & {"softmax", "log_softmax"} else "reduce_kernel"


class Writer:
    """Turns stages into launches in one style."""

    def __init__(self, program: Program, style: Style) -> None:
        self.program, self.style = program, style
        self.constants: Mapping[str, int] = program.constants("full")
        self.used: set[str] = set()
        self.traits: dict[str, None] = {}

    @property
    def label(self) -> str:
        """The style as it came out, such as `library-fused-whole-persistent`."""
        head = [] if self.style.head == "none" else [self.style.head]
        return "-".join([*head, self.style.fusion, *self.traits])

    def name(self, base: str) -> str:
        """`base`, numbered when it is taken."""
        number, free = 1, base
        while free in self.used:
            number += 1
            free = f"{base}_{number}"
        self.used.add(free)
        return free

    def launches(self, stage: Stage, alone: bool, fresh: bool) -> tuple[Launch, ...]:
        """The kernels of one stage; `fresh` says that its input is a buffer nobody else needs."""
        style, options = self.style, f"num_warps={self.style.warps}"
        base = _kernel_name(stage, alone)
        if not stage.space:
            grid = (
                "flat" if stage.before.layout == "flat" or min(stage.before.at(self.constants)[1:]) == 1 else style.point_grid
            )
            in_place = style.in_place and fresh and grid != "lines"
            self.traits |= {} if grid == "flat" else {grid: None}
            return (point_kernel(stage, self.name(base), grid, style.block, options, in_place),)
        if stage.space == "window":
            return (window_kernel(stage, self.name(base), min(style.block, 1024), options),)
        return self._reducing(stage, base)

    def _reducing(self, stage: Stage, base: str) -> tuple[Launch, ...]:
        style = self.style
        cores = [step for step in stage.steps if step.core]
        length = max(reduced_length(step, self.constants) for step in cores)
        whole = all(fits_whole(step, self.constants) for step in cores)
        body = cores[0].core.body if cores[0].core else ""
        walks = style.passes != "whole" and not (style.passes == "stats" and body not in ("norm", "rms"))
        if whole and (len(cores) > 1 or not walks):
            return (self._whole(stage, base, length),)
        several = style.several_rows and stage.space not in ("batch", "channels") and length <= WHOLE_LIMIT
        tile = tile_for(stage, several)
        blocks, options = self._chunks(stage, several, length)
        if style.passes == "stats" and body in ("norm", "rms"):
            self.traits["stats"] = None
            return stats_and_apply(stage, tile, (self.name("stats_kernel"), self.name("apply_kernel")), blocks, options)
        welford = style.passes == "welford" and body == "norm" and tile.shape == "[BLOCK]"
        self.traits["welford" if welford else "walk"] = None
        return (walking_kernel(stage, tile, self.name(base), blocks, options, welford),)

    def _whole(self, stage: Stage, base: str, length: int) -> Launch:
        width = 1 << (length - 1).bit_length()
        self.traits["whole"] = None
        if stage.space == "channels":
            pixels = max(16, min(128, 4096 // width))
            blocks = {"BLOCK_C": "triton.next_power_of_2(C)", "BLOCK": str(pixels)}
            return whole_kernel(stage, tile_for(stage, False), self.name(base), blocks, "num_warps=4")
        several = self.style.several_rows and width <= 1024
        self.traits |= {"rows": None} if several else {}
        tile = tile_for(stage, several)
        blocks = {"BLOCK": f"triton.next_power_of_2({tile.sizes['n']})", "ROWS": str(max(2, min(16, 2048 // width)))}
        warps = 16 if width >= 8192 else 8 if width >= 2048 else 4
        return whole_kernel(stage, tile, self.name(base), blocks, f"num_warps={warps}")

    def _chunks(self, stage: Stage, several: bool, length: int) -> tuple[dict[str, str], str]:
        """Block constants and options of a kernel that walks."""
        if stage.space == "channels":
            return {"BLOCK_C": "4", "BLOCK": "256"}, "num_warps=4"
        if stage.space == "batch" and stage.before.layout == "rows":
            return {"ROWS": "32", "BLOCK": "32"}, "num_warps=4"
        if several:
            return {"ROWS": "4", "BLOCK": "512"}, "num_warps=4"
        # each lane sums by itself, and float32 loses digits over thousands of terms: longer sets get more lanes
        widest = 8192 if length > 1 << 18 else 4096 if stage.space == "batch" else 2048
        block = max(256, min(widest, 1 << (length - 1).bit_length()))
        return {"BLOCK": str(block)}, f"num_warps={16 if block >= 8192 else 8 if block >= 2048 else 4}"


def _bias_step(program: Program) -> Step:
    """The producer's bias as a pointwise step of the solution."""
    add = next(op for op in PARAMETERS if op.name == "add_param")
    shape = program.producer.after
    return Step(add, "", shape, shape, operands={"bias": Operand(program.producer.bias, "channel")})


def _head(program: Program, writer: Writer) -> tuple[list[Launch], list[str], list[Step]]:
    """(launches, lines of forward, steps left) of the producer."""
    style, producer, steps = writer.style, program.producer, list(program.steps)
    if style.head == "bare":
        return [], [f"x = {producer.bare}"], [_bias_step(program), *steps]
    if style.head == "library":
        return [], [f"x = {producer.expression if style.palette != 1 else producer.functional or producer.expression}"], steps
    if style.head == "none":
        return [], [], steps
    count = next((i for i, step in enumerate(steps) if step.core), len(steps))
    count = count if style.fusion == "fused" else min(count, 1)
    made = gemm_kernel(steps[:count], writer.name("gemm_kernel"), producer, style.gemm_blocks, "num_warps=4", producer.after)
    return [made], [], steps[count:]


def write_solution(program: Program, style: Style) -> Solution:
    """The source of `ModelNew` and its kernels, labelled with the style as it came out."""
    writer = Writer(program, style)
    launches, forward, steps = _head(program, writer)
    if launches:
        forward = [*launches[0].host, *(["x = out"] if steps else [])]
    if program.has_residual:
        forward.append(f"{RESIDUAL} = x")
    stages = partition(steps, style.fusion, writer.constants)
    unpacked = f"{', '.join(host_dims(program.producer.after))} = x.shape" if launches else ""
    for index, stage in enumerate(stages):
        fresh = (index > 0 or style.head != "none") and not program.has_residual
        made = writer.launches(stage, alone=len(stages) == 1 and not launches, fresh=fresh)
        for item in made:
            lines = [line for line in item.host if line != unpacked]
            unpacked = next((line for line in item.host if line.endswith("= x.shape")), unpacked)
            forward += lines
        launches += made
        if index + 1 < len(stages):
            forward.append("x = out")
            unpacked = unpacked if stage.before.dims == stage.after.dims else ""
    return Solution(writer.label, _module(program, launches, [*forward, "return out"], style))


def _module(program: Program, launches: list[Launch], forward: list[str], style: Style) -> str:
    """Imports, helpers, kernels and the class, in that order."""
    helpers = sorted({name for item in launches for name in helpers_of(item.steps)})
    forward = "\n".join(forward).replace("out = x\nreturn out", "return x").replace("out = x\nx = out\n", "").split("\n")
    arguments = ", ".join(["self", *init_arguments(program)])
    body = [
        "class ModelNew(nn.Module):",
        f"    def __init__({arguments}):",
        "        super().__init__()",
        *(f"        {line}" for line in program.state),
        "",
        f"    def forward(self, {', '.join(name for name, _ in program.inputs)}):",
        *(f"        {line}" for line in forward),
        "",
    ]
    imports = [*imports_for("\n".join(body)), "import triton", "import triton.language as tl"]
    blocks = ["\n".join(imports) + "\n"]
    blocks += [HELPERS[name] for name in helpers] + [item.source for item in launches] + ["\n".join(body)]
    text = "\n\n".join(blocks)
    for old, new in PALETTES[style.palette].items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


def draw_styles(program: Program, rng: Random) -> list[Style]:
    """Styles that suit the program, a fused one first and the others in random order."""
    producer = program.producer
    library: tuple[Head, ...] = (
        ("none",) if producer.expression == "x" else ("library", "bare") if _can_bare(program) else ("library",)
    )
    cores = [step.core for step in program.steps if step.core]

    def style(head: Head, fusion: Fusion, passes: Passes = "whole", **more: object) -> Style:
        block, warps = rng.choice(((256, 2), (512, 4), (1024, 4), (1024, 8), (2048, 8), (4096, 8)))
        knobs: dict[str, object] = {
            "block": block,
            "warps": warps,
            "point_grid": rng.choice(("flat", "flat", "lines", "persistent")),
            "several_rows": rng.random() < 0.3,
            "in_place": rng.random() < 0.3,
            "gemm_blocks": rng.choice(((64, 64, 32), (64, 64, 16), (32, 64, 32), (128, 64, 16))),
            "palette": rng.choice((0, 0, 1, 2)),
        }
        return Style(head, fusion, passes, **{**knobs, **more})  # pyright: ignore[reportArgumentType]

    menu: list[Style] = []
    if program.steps:
        menu += [style(rng.choice(library), "fused"), style(rng.choice(library), "split", rng.choice(("whole", "walk")))]
        if cores:
            menu.append(style(rng.choice(library), "fused", "walk"))
        if any(core.body in ("norm", "rms") for core in cores):
            menu += [style(rng.choice(library), "fused", "stats"), style(rng.choice(library), "fused", "welford")]
        if len(program.steps) > 1:
            menu.append(style(rng.choice(library), "unfused"))
        menu.append(style(library[-1], "fused", point_grid="lines", several_rows=True))
    if producer.gemm and not program.has_residual:
        menu += [style("dot", "fused"), style("dot", "fused", "walk", gemm_blocks=(64, 64, 32)), style("dot", "split")]
    first, rest = menu[:1], menu[1:]
    rng.shuffle(rest)
    return first + rest


def _can_bare(program: Program) -> bool:
    """The bias can move into a kernel: there is one, and no residual wants the producer's own output."""
    return bool(program.producer.bare) and not program.has_residual


def write_solutions(program: Program, rng: Random) -> tuple[Solution, ...]:
    """Three to six worked solutions of different text, each with its style's label."""
    count = rng.randint(3, 6)
    made: dict[str, Solution] = {}
    for style in draw_styles(program, rng):
        solution = write_solution(program, style)
        if len(solution.triton_code) <= MAX_CHARACTERS:
            made.setdefault(solution.triton_code, solution)
    return tuple(told_apart(list(made.values())[:count]))


def told_apart(solutions: Iterable[Solution]) -> Iterator[Solution]:
    """The solutions, with the second of one style called `style-2`, and so on."""
    seen: Counter[str] = Counter()
    for solution in solutions:
        seen[solution.style] += 1
        number = seen[solution.style]
        yield solution if number == 1 else replace(solution, style=f"{solution.style}-{number}")
