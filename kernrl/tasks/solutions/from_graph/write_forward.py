"""`forward` of an answer: library calls, launches, and the memory between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kernrl.tasks.graph.graph import Graph, Node, Parameter
from kernrl.tasks.solutions.from_graph.codegen.convolution_tile import write_convolution
from kernrl.tasks.solutions.from_graph.codegen.described_products import write_described
from kernrl.tasks.solutions.from_graph.codegen.kernels import Choice, GroupWriter, Kernel, write_kernel
from kernrl.tasks.solutions.from_graph.codegen.product_tile import NoTailError
from kernrl.tasks.solutions.from_graph.codegen.products import Place, ProductChoice, write_product
from kernrl.tasks.solutions.from_graph.codegen.register_tiles import write_tile
from kernrl.tasks.solutions.from_graph.codegen.view_index import BarrierError
from kernrl.tasks.solutions.from_graph.fusion.contraction import Contraction, Taps, convolution, products_with_tails, readers
from kernrl.tasks.solutions.from_graph.fusion.fuse import Group, Mode, partition
from kernrl.tasks.solutions.from_graph.fusion.stored import Schedule, schedule
from kernrl.tasks.solutions.from_graph.fusion.tiles import TileCutter, is_tile
from kernrl.tasks.solutions.from_graph.host_memory import HostMemory
from kernrl.tasks.solutions.from_graph.library_calls import keyword_arguments, library_call
from kernrl.tasks.solutions.from_graph.lowering.builder import Bare, How
from kernrl.tasks.solutions.from_graph.lowering.lower import lower
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op, Program
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError, Names, Size, over


@dataclass(frozen=True, slots=True)
class Style:
    """One way to answer."""

    name: str
    mode: Mode = "fused"
    merged: bool = False
    bare: Bare = "convolution"
    choice: Choice = field(default_factory=Choice)
    channels_last: bool = False
    product: ProductChoice | None = None
    """Products are kernels too, each with its tail; None leaves them to the library."""
    algebra: bool = False
    """Written from the Graph that algebra leaves, which has fewer operations than the task asks for."""
    pads: bool = False
    """Padding is a way of reading, and no call of the library."""
    levels: bool = False
    """Long reductions are reductions of rows, and then of what these leave."""
    direct: bool = False
    """Convolutions of each channel by itself, and products of few terms or with one column, are sums in kernels."""
    tiles: bool = False
    """A program holds all that several reductions go over, of whatever axes."""

    @property
    def taught(self) -> bool:
        """Whether nano's replies are written in it: they do no fewer ops than the listing has, and make no descriptors.

        A descriptor takes rows of whole 16 bytes only, and replies are judged at sizes that nano is not told.
        """
        return not self.algebra and not (self.product and self.product.described)


@dataclass
class Answer:
    """What is new in an answer: kernels, and the lines of `forward`."""

    kernels: list[Kernel] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    library: list[str] = field(default_factory=list)
    """Ops of the Graph that are left to the library."""
    calls: list[Op] = field(default_factory=list)
    """The same as work."""
    program: Program | None = None

    @property
    def traits(self) -> tuple[str, ...]:
        """How its kernels came out."""
        return tuple(dict.fromkeys(t for k in self.kernels for t in k.traits))


def write_forward(
    graphs: Sequence[Graph],
    style: Style,
    arguments: Sequence[str],
    taken: set[str],
    functional: str,
    names: Callable[[set[str]], Names] = Names,
    precision: str = "fp32",
) -> Answer:
    """Kernels and `forward` of a Graph in one style.

    Args:
        arguments: Python of each input of the Graph.
        taken: Names that mean something in the answer's file.
        functional: How the file calls `torch.nn.functional`.
        names: Makes what names sizes, of the names that are taken.
        precision: The task's policy, which products are written for.

    Raises:
        CannotWriteError: There is no rule for some part of it, or its chain of ops is too long.
    """
    forced: set[str] = set()
    apart: set[str] = set()
    for _ in range(16):
        try:
            return _Forward(graphs, style, arguments, names(set(taken)), functional, (forced, apart), precision).run()
        except _ApartError as error:
            apart.add(error.value)
        except _TurnedError as error:
            forced |= error.views
        except BarrierError as barrier:
            if barrier.value in forced:
                raise CannotWriteError(f"{barrier.value} can be computed nowhere") from None
            forced.add(barrier.value)
        except RecursionError:
            raise CannotWriteError("its chain of ops is too long") from None
    raise CannotWriteError("its views cut across each other")


MOST_PARTS = 64


def _is_part(size: Size) -> bool:
    """A number that views cut axes by: the same at every set, where there are several."""
    return len(size) > 1 and len(set(size)) == 1 and 1 < size[0] <= MOST_PARTS


class _ApartError(Exception):
    """What follows a convolution is no tail of it: a kernel has to write the convolution for it."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


class _TurnedError(Exception):
    """Values would be written in another order than what their kernels read, and are read back in that of these views."""

    def __init__(self, views: set[str]) -> None:
        super().__init__(*views)
        self.views = views


class _Forward(HostMemory):
    def __init__(
        self,
        graphs: Sequence[Graph],
        style: Style,
        arguments: Sequence[str],
        names: Names,
        functional: str,
        memory: tuple[set[str], set[str]],
        precision: str,
    ) -> None:
        """`memory`: values that must be in memory, and of those the ones that a kernel writes and does nothing else."""
        self.style, self.functional, self.precision = style, functional, precision
        self.windows = bool(style.product and style.product.windows)
        pads = style.pads or self.windows
        how = How(style.merged, style.bare, style.channels_last, self.windows, pads, style.direct, style.levels)
        self.forced, self.apart = memory
        self.program = lower(graphs, how, self.forced)
        plan = partition(self.program, style.mode, self.apart, TileCutter if style.tiles else None)
        self.s: Schedule = schedule(plan, self.forced | self.apart, lean=style.pads)
        self.names = names
        self.host = {}
        self.algebra, self.orders, self.wide = style.algebra, {}, set()
        of_library = {r for op in self.program.ops if op.kind == "library" for r in op.reads}
        self.shown = {self._base(v) for v in (*of_library, *(o for o in self.program.outputs if isinstance(o, str)))}
        self.answer = Answer(program=self.program)
        for value in self.program.last:
            rank = len(self.program.shapes[value])
            self.orders[value] = (0, *range(2, rank), 1)
        self._order_apart()
        for op in self.program.ops:
            if op.kind == "window":
                self._sizes_behind(op, op.window)
            elif op.how == "slice" and op.step > 1:
                self._sizes_behind_steps(op)
            elif op.how == "slice":
                self._sizes_of_slices(op)
            elif self.windows and op.kind == "library" and (found := convolution(self.program, op)):
                self._sizes_behind_taps(op, found.taps)
        graph = graphs[0]
        for node in graph.nodes:
            parted = ("num_groups", "chunks", "upscale_factor", "downscale_factor", "output_size")
            parted += ("groups",) if self.windows else ()
            held = [v if isinstance(v, tuple) else (v,) for k, v in node.attributes if k in parted]
            found = {n for numbers in held for n in numbers if isinstance(n, int) and n > 1}
            self.names.divisors += sorted((found | {v * v for v in found}) - {1} - set(self.names.divisors))
        parts = {s[0] for op in self.program.ops if op.how == "reshape" for s in self.program.shapes[op.value] if _is_part(s)}
        self.names.divisors += sorted(parts - set(self.names.divisors))
        for held, expression in zip(graph.inputs, arguments, strict=True):
            if held.stride:
                self.host[held.value.name] = held.value.name
                self._say(f"{held.value.name} = {expression}.contiguous()")
            else:
                self.host[held.value.name] = expression
            self.names.add(self.host[held.value.name], self.program.shapes[held.value.name])
        for p in graph.parameters:
            self.host[p.value.name] = bound(p.path) if p.kind != "constant" else p.value.name
            if p.kind == "constant":
                self._say(f"{p.value.name} = {beside(p, self.host[graph.inputs[0].value.name])}")
            self.names.add(bound(p.path) if p.path else p.value.name, self.program.shapes[p.value.name])

    def _order_apart(self) -> None:
        """Transposed convolutions that go by strides are written with the channels innermost, as their pixels lie apart."""
        for value in self.apart:
            raw, rank = self.s.plan.giver.get(f"{value}_raw"), len(self.program.shapes[value])
            taps = found.taps if raw and (found := convolution(self.program, raw)) else None
            if taps and taps.transposed and max(taps.stride) > 1 and rank > 3 and value not in self.program.outputs:
                self.orders[value] = (0, *range(2, rank), 1)

    def _sizes_behind_taps(self, op: Op, taps: Taps | None) -> None:
        """Of a convolution that is a kernel, nothing tells the sizes but those before it."""
        if taps is None or any(len(set(size)) > 1 for size in taps.kernel):
            return
        kernel = tuple(size[0] for size in taps.kernel)
        window = {"kernel_size": kernel, "stride": taps.stride, "padding": taps.padding, "dilation": taps.dilation}
        if not taps.transposed:
            self._sizes_behind(op, window)
            return
        before, after = (self.program.shapes[v][2:] for v in (op.reads[0], op.value))
        for a, b, stride in zip(before, after, taps.stride, strict=True):
            self.names.spread[b] = (a, b[0] - a[0] * stride, stride)
            phase = over(b, (stride,) * len(b))  # the pixels of one place within a stride
            if phase and stride > 1 and phase != a:
                self.names.windows[phase] = (a, 1 + a[0] - phase[0], 1)

    def _sizes_behind(self, op: Op, window: dict[str, tuple[int, ...]]) -> None:
        """The sizes behind a window follow from those before it."""
        before, after = self.program.shapes[op.reads[0]], self.program.shapes[op.value]
        if op.how.startswith("pad"):
            for a, b in zip(before, after, strict=True):
                if a != b:
                    self.names.windows[b] = (a, 1 + a[0] - b[0], 1)
            return
        rank = len(window["kernel_size"])
        rows = zip(*(window[k] for k in ("kernel_size", "stride", "padding", "dilation")), strict=True)
        for d, (count, stride, padding, dilation) in enumerate(rows, len(after) - rank):
            if before[d] != after[d]:
                self.names.windows[after[d]] = (before[d], dilation * (count - 1) + 1 - 2 * padding, stride)

    def _sizes_behind_steps(self, op: Op) -> None:
        """Of every other element, and the like, from a first one to the end."""
        before, after = (self.program.shapes[v][op.dims[0]] for v in (op.reads[0], op.value))
        start = set(op.start or (0,))
        if len(start) == 1 and all((n - 1 - min(start)) // op.step + 1 == m for n, m in zip(before, after, strict=True)):
            self.names.windows.setdefault(after, (before, 1 + min(start), op.step))

    def _sizes_of_slices(self, op: Op) -> None:
        """Of an axis less a few of its elements, which are as many at every set."""
        before, after = (self.program.shapes[v][op.dims[0]] for v in (op.reads[0], op.value))
        gaps = {n - m for n, m in zip(before, after, strict=True)}
        if len(gaps) == 1 and before != after and len(set(after)) > 1:
            self.names.cuts.setdefault(after, (before, gaps.pop()))

    def run(self) -> Answer:
        if not any(isinstance(u, Group) for u in self.s.units):
            raise CannotWriteError("nothing is left for a kernel")
        if turned := self._turned_round():
            raise _TurnedError(turned)
        groups = sum(isinstance(u, Group) for u in self.s.units)
        tails = products_with_tails(self.s, windows=self.windows) if self.style.product else {}
        waiting = {product.op.value for product in tails.values()}
        for unit in self.s.units:
            if isinstance(unit, Group):
                if not (unit in tails and self._product(unit, tails[unit], groups == 1)):
                    self._launch(unit, groups == 1)
            elif unit.value not in waiting:
                self._library(unit)
        if self.style.product and not any(k.product_flops for k in self.answer.kernels):
            raise CannotWriteError("no product has a tail that fits its tile")
        structure = self.program.graph.structure
        returned = iter(self.value(o) if isinstance(o, str) else repr(o) for o in self.program.outputs)
        self._say("return " + "".join(next(returned) if c == "*" else c for c in structure))
        return self.answer

    def _say(self, *lines: str) -> None:
        self.answer.lines += [*self.names.unpack(), *lines]

    def _turned_round(self) -> set[str]:
        """Views of what kernels write that have the order of what those kernels read, and through which alone it is read."""
        found: set[str] = set()
        if not self.style.pads or self.style.channels_last:
            return found
        readers: dict[str, list[Op]] = {}
        for op in self.program.ops:
            for read in dict.fromkeys(op.reads):
                readers.setdefault(read, []).append(op)
        for value in self.s.stored:
            group, last = self.s.plan.unit_of[value], value
            while len(ops := readers.get(last, [])) == 1 and ops[0].kind == "point" and last not in self.program.outputs:
                if self.program.shapes[ops[0].value] != self.program.shapes[value]:
                    break
                last = ops[0].value
            if len(ops) != 1 or ops[0].how != "permute" or last in self.program.outputs or not isinstance(group, Group):
                continue
            order = [d for d in ops[0].dims if group.layouts[value][d]]
            if not order or order[-1] == max(order) or (self.style.tiles and is_tile(group)):
                continue
            if ops[0].value.removesuffix("_view") in self.forced:
                continue  # it is written for another reason
            writer = GroupWriter(self.s, group, self.names, self.style.choice, self.orders, "")
            if writer.innermost(value) == order[-1]:
                found.add(ops[0].value)
        return found

    # library calls

    def _library(self, op: Op) -> None:
        node = self.program.graph.nodes[op.node]
        self.answer.library.append(node.op)
        self.answer.calls.append(op)
        operands = [self._operand(o) for o in op.operands]
        while operands and operands[-1] == "None":
            operands.pop()
        results = [self.names.free(r.removesuffix("_raw")) for r in op.results]
        if any(r in self.program.last for r in op.reads):
            text = self._channels_last(node, op, operands, self.functional)
        else:
            text = library_call(op, operands, self.program.graphs, self.names, self.functional, self.host)
            turned = node.kind not in ("product", "unknown") and any(map(self._turned, op.reads))
            if node.op == "einsum" or turned:
                text += ".contiguous()"  # the call gives what it was given: axes that lie in another order
        self._say(f"{', '.join(results)} = {text}")
        for value, result in zip(op.results, results, strict=True):
            self.host[value] = result
            self.names.add(result, self.program.shapes[value])

    def _turned(self, value: str) -> bool:
        """A tensor of `forward` whose axes may lie in another order in memory than its own."""
        while (op := self.s.plan.giver.get(value)) and op.kind == "view":
            if op.how in ("permute", "expand"):
                return True
            value = op.reads[0]
        return value in self.orders

    def _channels_last(self, node: Node, op: Op, operands: list[str], f: str) -> str:
        if node.op[-2] == "1":
            raise CannotWriteError("the library has no convolution of rows with the channels innermost")
        last = "torch.channels_last" if node.op[-2] == "2" else "torch.channels_last_3d"
        name = self.names.free(f"{op.results[0].removesuffix('_raw')}_weight")
        self._say(f"{name} = {operands[1]}.contiguous(memory_format={last})")
        operands[1] = name
        shown = keyword_arguments(op, self.program.graphs, self.names)
        rank = len(self.program.shapes[op.value])
        self.orders[op.value] = (0, *range(2, rank), 1)
        return f"{f}.{node.op}({', '.join([*operands, *shown])}).contiguous(memory_format={last})"

    # launches

    def _launch(self, group: Group, alone: bool, parts: dict[str, int] | None = None) -> None:
        base = "fused_kernel" if alone else "reduce_kernel" if group.reduced else "pointwise_kernel"
        name = self.names.free(base)
        if self.style.tiles and is_tile(group):
            self._launched(write_tile(self.s, group, self.names, self.orders, name))
            return
        for kernel in write_kernel(self.s, group, self.names, self.style.choice, self.orders, name, parts):
            self._launched(kernel)

    def _product(self, group: Group, product: Contraction, alone: bool) -> bool:
        """A product with its tail in one kernel; False where it has to stay with the library, which has been called then."""
        assert self.style.product is not None
        if product.taps and not product.taps.flat:
            product = replace(product, b=self._weight(product))
        value, wide = product.op.value, frozenset(v for v in self.program.shapes if self._base(v) in self.wide)
        keep = len(readers(self.s, value)) > 1
        place = Place(self.s, group, product, self.names, self.orders, self.precision, keep, wide)
        described = write_described if self.style.product.described else write_product
        try:
            made = (write_convolution if product.taps else described)(place, self.style.product)
        except NoTailError:
            own = value.removesuffix("_raw")
            if product.taps and own not in self.apart:
                raise _ApartError(own) from None
            self._library(product.op)
            return False
        for kernel in made:
            self._launched(kernel)
        if made[0].split > 1:
            self._launch(group, alone, {value: made[0].split})
        return True

    def _weight(self, product: Contraction) -> str:
        """The weight of a convolution with the channels that are summed over innermost, and the window's taps before them."""
        value, rank = f"{product.b}_last", len(self.program.shapes[product.b])
        if value not in self.host:
            transposed = product.taps is not None and product.taps.transposed
            order = (1, *range(2, rank), 0) if transposed else (0, *range(2, rank), 1)
            name = self.names.free(f"{product.op.value.removesuffix('_raw')}_weight")
            self._say(f"{name} = {self.value(product.b)}.permute({', '.join(map(str, order))}).contiguous()")
            self.host[value], self.orders[value] = name, order
            self.program.shapes[value], self.program.dtypes[value] = self.program.shapes[product.b], "float32"
        return value

    def _launched(self, kernel: Kernel) -> None:
        allocations = []
        for value, shape in kernel.partials.items():
            self.host[value] = self.names.free(value)
            device = next(self.host[r] for r in kernel.reads if r in self.host)
            allocations.append(f"{self.host[value]} = torch.empty({shape}, device={device}.device, dtype=torch.float32)")
        for value in kernel.writes:
            result = self.names.free(value)
            allocations.append(f"{result} = {self.allocation(value, kernel)}")
            self.host[value] = result
        for name, text in kernel.descriptors.items():
            self.host[name] = self.names.free(name)
            allocations.append(f"{self.host[name]} = {self._placed(text)}")
        constants = [f"{k}={v}" for k, v in kernel.constants.items()]
        launch = f"{kernel.name}[{kernel.grid}]({', '.join([*kernel.arguments, *constants])})"
        self._say(*allocations, self._placed(launch))
        for value in kernel.writes:
            self.names.add(self.host[value], self.program.shapes[value])
        self.answer.kernels.append(kernel)

    def _placed(self, text: str) -> str:
        """Python with its values in memory written in."""
        return re.sub(r"@(\w+)@", lambda m: self.value(m[1]), text)


def beside(constant: Parameter, x: str) -> str:
    """Python of a plain attribute, or of a tensor that `forward` writes out, on the device of x."""
    if constant.path:  # which no `.to(device)` of the module moves
        return f"{bound(constant.path)}.to({x}.device)"
    shaped = f".reshape({constant.value.shape})" if len(constant.value.shape) > 1 else ""
    return f"torch.tensor({list(constant.data)}, device={x}.device){shaped}"


def bound(path: str) -> str:
    """A parameter's path as Python: `stack.1.weight` is `self.stack[1].weight`."""
    text = "self"
    for part in path.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text
