"""Convolutions with what follows them in one kernel: a product of pixels and channels that is summed over the window's taps.

With the channels innermost, a tap is a matrix product of a shifted image, whose rows are loaded as they lie in memory. With few
channels, channels and taps are one depth. A plane is an image, or the channels of a group of it, so that a tile of pixels is
written to neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from kernrl.tasks.solutions.from_graph.codegen.assembly import Kernel
from kernrl.tasks.solutions.from_graph.codegen.index_text import Sizes, wrapped
from kernrl.tasks.solutions.from_graph.codegen.layouts import total
from kernrl.tasks.solutions.from_graph.codegen.product_tile import NoTailError, TileBody, TileLayout
from kernrl.tasks.solutions.from_graph.codegen.products import LEAST, MOST_BATCH, Place, ProductChoice, ProductWriter
from kernrl.tasks.solutions.from_graph.codegen.tile_sizes import Tiles, window_tiles
from kernrl.tasks.solutions.from_graph.codegen.view_index import BarrierError, Ix, RestartError
from kernrl.tasks.solutions.from_graph.fusion.contraction import Taps
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis
from kernrl.tasks.solutions.from_graph.lowering.sizes import Size, is_one, over, times

LEAST_PIXELS = 32
"""Pixels of an image below which a tile would be empty for the most part."""


def write_convolution(place: Place, choice: ProductChoice) -> list[Kernel]:
    """The kernel of a convolution and the group that reads it, or the two that do its work one after the other.

    Raises:
        NoTailError: The group is no tail of the convolution.
    """
    for _ in range(64):
        try:
            return _Convolution(place, choice).write()
        except RestartError:
            continue
    raise NoTailError("axes were split for ever")


class _Convolution(ProductWriter):
    phases: dict[int, Axis]
    """Dimension of the image → the axis of places within a stride, which is one of the planes'."""
    before: Sequence[str] = ()
    """Lines in front of the loop."""

    @property
    def taps(self) -> Taps:
        taps = self.product.taps
        assert taps is not None
        return taps

    def write(self) -> list[Kernel]:
        made = super().write()
        made[0].product_flops //= prod(axis.size[0] for axis in self.phases.values())
        return made

    def space(self) -> tuple[list[Axis], list[Axis], list[Axis]]:
        batch, channels, *image = (list(dim) for dim in self.dims)
        self.phases = self._phases(image)
        pixels = [a for d, dim in enumerate(image) for a in (dim[:1] if d in self.phases else dim)]
        batch += self.phases.values()
        if is_one(self.taps.groups):
            return batch, pixels, channels
        if channels and channels[0].size != self.taps.groups:
            width = over(channels[0].size, self.taps.groups)
            if width is None or len(channels) > 1:
                raise NoTailError("the tail cuts across the groups")
            self.group.split(channels[0], self.taps.groups, width)
            raise RestartError
        return [*batch, *channels[:1]], pixels, channels[1:]

    def _phases(self, image: list[list[Axis]]) -> dict[int, Axis]:
        """Of a transposed convolution, by which dimensions pixels are dealt out to planes: their places within a stride.

        All pixels of a plane then meet the same taps of the window, and the others are left out.
        """
        found = dict[int, Axis]()
        for d, axes in enumerate(image if self.taps.transposed else ()):
            stride = (self.taps.stride[d],) * self.sets
            if len(axes) == 2 and axes[1].size == stride:
                found[d] = axes[1]
            elif len(axes) == 1 and not is_one(stride) and (outer := over(axes[0].size, stride)):
                self.group.split(axes[0], outer, stride)
                raise RestartError
        return found

    def depth(self) -> dict[str, Size]:
        return self.product.depth if self.taps.flat else {"k": self.product.depth["k"]}

    def tile(self) -> Tiles:
        m, n, batch = (total(axes, self.sets) for axes in (self.m, self.n, self.batch))
        k = total(list(self.ka.values()), self.sets)[0]
        whole = self.whole and max(m if self.side == "m" else n)
        if m[0] < LEAST_PIXELS or min(n[0], k) < LEAST or max(batch) > MOST_BATCH:
            raise NoTailError("the convolution is too small")
        found = window_tiles(m[0], n[0], k, self.place.precision)
        found = [t for t in found if not whole or (t.m if self.side == "m" else t.n) >= whole]
        if self.choice.rank >= len(found):
            raise NoTailError("no tile fits")
        return found[self.choice.rank]

    def loop(self, body: TileBody, layout: TileLayout) -> list[str]:
        taps, p = self.taps, self.product
        layout.reduced = {*self.ka.values(), *self.kb.values()}
        body.open()
        if taps.flat:
            body.pinned |= set(self.ka.values())
            at = [f"@tap{d}@" for d in range(len(taps.kernel))]
            through = [Ix((self.kb[f"tap{d}"],)) for d in range(len(at))]
        else:
            self.before = self._count(body)
            at = self._tap(body)
            through = [Ix(extra=((name, 1),)) for name in at]
        guards, image = self._coordinates(body, at)
        body.say(f"valid = {' & '.join(f'({g})' for g in guards) if len(guards) > 1 else guards[0]}")
        body.inside.append("valid")
        group = () if is_one(taps.groups) else self.batch[-1:]
        try:
            a = body.factor(p.a, (Ix(self.dims[0]), Ix((*group, self.ka["k"])), *(Ix(extra=((h, 1),)) for h in image)))
            body.inside.clear()
            if taps.transposed:
                b = body.factor(p.b, (Ix((*group, self.kb["k"])), Ix(tuple(self.n)), *through))
            else:
                b = body.factor(p.b, (Ix((*group, *self.n)), Ix((self.kb["k"],)), *through))
        except BarrierError as barrier:
            raise NoTailError(f"{barrier.value} is not in memory") from None
        self.multiply(body, a, b)
        return body.close()

    def _count(self, body: TileBody) -> list[str]:
        """Lines in front of the loop: of each dimension with phases the first tap that a plane meets, and how many it meets."""
        lines = list[str]()
        for d in self.phases:
            name, stride, dilation = self._name(d), self.taps.stride[d], self.taps.dilation[d]
            common = gcd(stride, dilation)
            step, place = stride // common, self._shifted(body, d)
            size = f"@tap{d}_size@"
            lines.append(f"count_{name} = {size}")
            if step > 1:
                turn = pow(dilation // common, -1, step)
                place_in = f"{place} // {common}" if common > 1 else place
                lines[-1] = f"first_{name} = {place_in}{f' * {turn}' if turn > 1 else ''} % {step}"
                lines.append(f"count_{name} = ({size} - first_{name} + {step - 1}) // {step}")
            if common > 1:  # of a dilation that has a factor of the stride, some planes meet no tap at all
                lines.append(f"count_{name} = tl.where({place} % {common} == 0, count_{name}, 0)")
        return lines

    def _shifted(self, body: TileBody, d: int) -> str:
        """A plane's place within the stride, moved by the padding."""
        place, padding = body.coordinate(Ix((self.phases[d],))), self.taps.padding[d]
        return f"({place} + {padding})" if padding else place

    def _name(self, d: int) -> str:
        return "zyx"[3 - len(self.taps.kernel) + d]

    def _counts(self) -> list[str]:
        """How many taps a plane meets, for each dimension."""
        return [f"count_{self._name(d)}" if d in self.phases else f"@tap{d}_size@" for d in range(len(self.taps.kernel))]

    def _tap_of_phase(self, body: TileBody) -> list[str]:
        """As `_tap`, of the taps that a plane meets."""
        counts, names = self._counts(), []
        for d, count in enumerate(counts):
            inner = " * ".join(counts[d + 1 :])
            text = f"tap // {wrapped(inner)}" if inner else "tap"
            text = f"{text} % {count}" if d else text
            if d in self.phases:
                step = self.taps.stride[d] // gcd(self.taps.stride[d], self.taps.dilation[d])
                text = f"first_{self._name(d)} + {f'({text})' if ' ' in text else text} * {step}" if step > 1 else text
            names.append(f"tap_{self._name(d)}")
            body.say(f"{names[-1]} = {text}")
        return names

    def _tap(self, body: TileBody) -> list[str]:
        """The place in the window, a variable for each dimension."""
        if self.phases:
            return self._tap_of_phase(body)
        kernel, names = self.taps.kernel, []
        for d, size in enumerate(kernel):
            inner = times((1,) * self.sets, *kernel[d + 1 :])
            text = "tap" if is_one(inner) else f"tap // {body.size(inner)}"
            names.append(f"tap_{'zyx'[3 - len(kernel) + d]}")
            body.say(f"{names[-1]} = {text} % {body.size(size)}" if d else f"{names[-1]} = {text}")
        return names

    def _coordinates(self, body: TileBody, at: list[str]) -> tuple[list[str], list[str]]:
        """(conditions under which a pixel's tap lies inside of the image, its place there)."""
        taps, guards, places = self.taps, list[str](), list[str]()
        for d, tap in enumerate(at):
            stride, padding, dilation = taps.stride[d], taps.padding[d], taps.dilation[d]
            size = self.program.shapes[self.product.a][2 + d]
            out, name = body.coordinate(Ix(self.dims[2 + d])), f"{self._name(d)}_in"
            out = f"({out})" if " " in out else out
            step = tap if dilation == 1 else f"{tap} * {dilation}"
            if d in self.phases:
                name, outer = f"{name[0]}_at", body.coordinate(Ix(self.dims[2 + d][:1]))
                body.say(f"{name} = {outer} + ({self._shifted(body, d)} - {step}) // {stride}")
                guards += [f"{name} >= 0", f"{name} < {body.size(size)}"]
            elif taps.transposed:
                shift = f" + {padding}" if padding else ""
                body.say(f"{name} = {out}{shift} - {step}")
                guards += [f"{name} >= 0", f"{name} < {body.size(size)}{f' * {stride}' if stride > 1 else ''}"]
                if stride > 1:
                    guards.append(f"{name} % {stride} == 0")
                    body.say(f"{name[0]}_at = {name} // {stride}")
                    name = f"{name[0]}_at"
            else:
                body.say(f"{name} = {out}{f' * {stride}' if stride > 1 else ''} + {step}{f' - {padding}' if padding else ''}")
                if padding:
                    guards += [f"{name} >= 0", f"{name} < {body.size(size)}"]
                elif d == 0:
                    guards.append("m < @m@")
            places.append(name)
        return guards, places

    def walk(self, defined: dict[str, list[str]], loop: list[str]) -> list[str]:
        if self.taps.flat:
            return super().walk(defined, loop)
        count = " * ".join(self._counts())
        return [
            *self.before,
            "chunks = tl.cdiv(@ka@, BLOCK_K)",
            f"for step in range(0, {count} * chunks):",
            "    tap = step // chunks",
            "    start = step % chunks * BLOCK_K",
            "    ka = start + tl.arange(0, BLOCK_K)[None, :]",
            "    kb = start + tl.arange(0, BLOCK_K)[:, None]",
            *("    " + line for line in loop),
        ]

    def constants(self, sizes: Sizes, marks: dict[str, str]) -> None:
        sizes.divisor(self.product.depth["k"])
        for d, size in enumerate(self.taps.kernel):
            marks[f"@tap{d}_size@"] = sizes.divisor(size)
