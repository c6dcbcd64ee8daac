"""A kernel put together: addresses and sizes are written into its lines, and its launch is made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kernrl.tasks.solutions.from_graph.codegen.emit import Body
from kernrl.tasks.solutions.from_graph.codegen.index_text import Sizes, address, wrapped
from kernrl.tasks.solutions.from_graph.codegen.layouts import Layout, total
from kernrl.tasks.solutions.from_graph.fusion.fuse import Group
from kernrl.tasks.solutions.from_graph.lowering.sizes import Names, Size


@dataclass
class Kernel:
    """A kernel and its launch."""

    name: str
    source: str
    reads: list[str]
    writes: list[str]
    arguments: list[str]
    """What is passed for each parameter; a value in memory stands as `@value@`."""
    grid: str
    constants: dict[str, str]
    traits: tuple[str, ...] = ()
    partials: dict[str, str] = field(default_factory=dict)
    """Partial results, by name → Python of their shape; memory between a kernel and the one that settles them."""
    programs: int = 0
    """How many programs the full set gets."""
    elements: int = 0
    """How many elements they go over, at the full set."""
    split: int = 1
    """In how many parts a product's sums are cut, which the next kernel adds up."""
    product_flops: int = 0
    """For how many operations of `tl.dot` the device is busy, at the full set."""
    product_clocks: float = 0.0
    """How many clocks a product takes, at the full set; 0 for a convolution."""
    turned: bool = False
    """Whether an operand of 32 bits lies with another axis innermost than the product's depth, and is loaded by pointers."""
    descriptors: dict[str, str] = field(default_factory=dict)
    """Tensor descriptors that it is passed, by name → Python that makes them."""


@dataclass
class Assembly:
    """What is known of a kernel besides its body."""

    names: Names
    name: str
    outputs: list[str]
    group: Group
    traits: list[str]
    sets: int
    persistent: bool = False
    constant: bool = False
    """Sizes are constants of the kernel: which addresses lie on 16 bytes is known when it is compiled."""

    def finish(
        self, body: Body, layout: Layout, lines: list[str], blocks: dict[str, str], start: str, warps: int, grid: str = ""
    ) -> Kernel:
        """Write addresses and sizes in, and put the kernel together."""
        sizes = Sizes(self.names, body.used | body.named | set(body.pointers.values()) | set(blocks))
        flats = layout.flats
        used = body.pinned | {a for access in body.accesses for a, f in access.factors.items() if any(f)}
        kept_total, over_total = total(layout.kept.axes, self.sets), total(layout.over.axes if layout.over else [], self.sets)
        marks: dict[str, str] = {}
        if layout.over is not None:
            marks["@over@"] = sizes.text(over_total)
        if layout.across is not None:
            marks["@across@"] = sizes.text(total(layout.across.axes, self.sets))
        for i, size in enumerate(body.sizes):
            marks[f"@size{i}@"] = sizes.text(size)
        if any("@rows@" in line for line in lines):
            marks["@rows@"] = wrapped(sizes.text(kept_total))
        if any("@total@" in line for line in (*lines, *layout.kept_lines, *layout.over_lines, layout.kept_mask)):
            marks["@total@"] = (
                sizes.text(kept_total) if layout.over else sizes.pass_on("n_elements", f"@{self.outputs[0]}@.numel()")
            )
        for flat in flats:
            flat.merge(body.accesses, body.pinned)
            for axis in flat.axes if len(flat.runs) > 1 else ():
                sizes.text(axis.size)
        defined = [flat.define(sizes, used) for flat in flats]
        for i, access in enumerate(body.accesses):
            marks[f"@at{i}@"] = address(access, flats, sizes)
        for i, axis in enumerate(self.group.axes):
            for flat in flats:
                if (run := flat.run_of(axis)) is not None:
                    marks[f"@axis{i}@"] = flat.variables[run]
        marks["@start@"] = start
        if layout.across:
            head = {"@kept@": [*layout.kept_lines, *(line for lines_ in defined for line in lines_)]}
        else:
            head = {
                "@kept@": [*layout.kept_lines, *defined[0]],
                "@over@": [*layout.over_lines, *(defined[1] if layout.over else ())],
            }
        out: list[str] = []
        for line in lines:
            stripped = line.strip()
            if stripped in head:
                indent = line[: len(line) - len(stripped)]
                out += [indent + part for part in head[stripped]]
            else:
                out.append(line)
        made = self.kernel(body, sizes, filled(out, marks), blocks, warps, self._grid(grid, layout, sizes, blocks), over_total)
        made.programs, made.elements = self._programs(grid, layout, blocks), total(self.group.axes, self.sets)[0]
        return made

    def _programs(self, grid: str, layout: Layout, blocks: dict[str, str]) -> int:
        """The grid's size at the full set."""
        count = total(layout.kept.axes, self.sets)[0]
        if layout.across and layout.over:
            sides = [total(flat.axes, self.sets)[0] for flat in (layout.over, layout.across)]
            return count * -(-sides[0] // int(blocks["BLOCK_I"])) * -(-sides[1] // int(blocks["BLOCK_J"]))
        if grid == "each":
            return count
        programs = -(-count // int(blocks["ROWS" if grid == "rows" else "BLOCK"]))
        return min(1056, programs) if self.persistent and not grid else programs

    def _grid(self, grid: str, layout: Layout, sizes: Sizes, blocks: dict[str, str]) -> str:
        count = self.names.expression(total(layout.kept.axes, self.sets)) if grid else f"@{self.outputs[0]}@.numel()"
        if layout.across and layout.over:
            sides = [self.names.expression(total(flat.axes, self.sets)) for flat in (layout.over, layout.across)]
            tiles = f"triton.cdiv({sides[0]}, {blocks['BLOCK_I']}), triton.cdiv({sides[1]}, {blocks['BLOCK_J']})"
            return f"({tiles}, {count})" if layout.planes_last else f"({count}, {tiles})"
        if grid in ("each", ""):
            if grid:
                return f"({count},)"
            if self.persistent:
                return f"(min(1056, triton.cdiv({count}, {blocks['BLOCK']})),)"
            return f"(triton.cdiv({count}, {blocks['BLOCK']}),)"
        return f"(triton.cdiv({count}, {blocks['ROWS' if grid == 'rows' else 'BLOCK']}),)"

    def kernel(
        self, body: Body, sizes: Sizes, lines: list[str], blocks: dict[str, str], warps: int, grid: str, over: Size
    ) -> Kernel:
        """The kernel with its parameters, and what a launch passes for them."""
        text = "\n".join(lines)
        parameters = [*body.descriptors, *body.pointers.values()]
        arguments = [f"@{v}@" for v in (*body.descriptors, *body.pointers)]
        for values, name in body.numbers.items():
            parameters.append(name)
            arguments.append(self.names.number(values))
        for name, host in sizes.hosts.items():
            if re.search(rf"\b{name}\b", text):
                constant = name in sizes.constexpr or (self.constant and name != "n_elements")
                parameters.append(f"{name}: tl.constexpr" if constant else name)
                arguments.append(host)
        constants = {}
        for name, value in blocks.items():
            if re.search(rf"\b{name}\b", text):
                parameters.append(f"{name}: tl.constexpr")
                wide = f"triton.next_power_of_2({self.names.expression(over)})"
                constants[name] = value if value != "@width@" else wide
        constants["num_warps"] = str(warps)
        source = f"@triton.jit\ndef {self.name}({', '.join(parameters)}):\n" + "\n".join("    " + line for line in lines) + "\n"
        reads = list(dict.fromkeys([*(value for value, _ in body.descriptors.values()), *body.pointers]))
        made = Kernel(self.name, source, reads, self.outputs, arguments, grid, constants, tuple(self.traits))
        made.descriptors = {name: text for name, (_, text) in body.descriptors.items()}
        return made


def filled(lines: list[str], marks: dict[str, str]) -> list[str]:
    """Marks replaced; what a mark stands for is put in parentheses where it has to be."""

    def put(match: re.Match[str]) -> str:
        text = marks[match[0]]
        loose = match[0].startswith("@at") or text.replace("_", "").isalnum()
        before, after = match.string[match.start() - 2 : match.start()], match.string[match.end() : match.end() + 2]
        tight = any(c in "*/%-" for c in before + after)
        return text if loose or not tight else f"({text})"

    return [re.sub(r"@\w+@", put, re.sub(r"@\w+@", put, line)) for line in lines]
