"""Memory that `forward` allocates for what kernels write."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernrl.tasks.solutions.from_graph.codegen.assembly import Kernel
from kernrl.tasks.solutions.from_graph.fusion.fuse import Group
from kernrl.tasks.solutions.from_graph.host_values import HostValues
from kernrl.tasks.solutions.from_graph.lowering.sizes import Shape


class HostMemory(HostValues):
    """Which shape, type and layout a tensor has that `forward` makes."""

    algebra: bool
    """What is written comes from the Graph that algebra leaves."""
    orders: dict[str, tuple[int, ...]]
    wide: set[str]
    """Values that are float32 in memory whatever the task's precision: statistics."""
    shown: set[str]
    """What calls of the library read, or `forward` returns, perhaps through views: of the task's precision, as eager has it."""

    def _keeps_precision(self, value: str) -> bool:
        """Statistics stay float32, whatever the precision of the rest; so does what algebra makes of them, which is small."""
        if self.algebra:
            size, inputs = (prod(s[0] for s in self.program.shapes[v]) for v in (value, self._largest_input()))
            return size * 8 > inputs
        unit = self.s.plan.unit_of[value]
        return not (
            isinstance(unit, Group) and unit.reduced and not any(a in unit.reduced for d in unit.layouts[value] for a in d)
        )

    def allocation(self, value: str, kernel: Kernel) -> str:
        shape, dtype = self.program.shapes[value], self.program.dtypes[value]
        last = ""
        if value in self.orders and len(shape) > 3:
            last = f", memory_format=torch.channels_last{'_3d' if len(shape) == 5 else ''}"
        likes = [r for r in kernel.reads if r in self.program.shapes and r in self.host and r not in kernel.writes]
        floats = [r for r in likes if self.program.dtypes[r] == "float32"]
        own = value in self.shown or self._keeps_precision(value)
        typed = [r for r in floats if r not in self.wide] or self._given(likes if dtype == "float32" else floats)
        if dtype == "float32" and not own:
            self.wide.add(value)
        for like in typed if own and value not in self.orders else ():
            if self._shaped_alike(like, shape) and dtype == "float32":
                return f"torch.empty_like({self.host[like]})"
        model = (typed or likes or [next(v for v in self.host if v in self.program.shapes)])[0]
        like = self.host[model]
        if dtype == "float32" and self.program.dtypes[model] != "float32":  # nothing but whole numbers is read
            model = next(iter(self._given([value])), None)
        sizes = [self.names.expression(s) for s in shape]
        shown = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
        kind = f"{self.host[model]}.dtype" if dtype == "float32" and own and model else f"torch.{dtype}"
        return f"torch.empty({shown}, device={like}.device, dtype={kind}{last})"

    def _largest_input(self) -> str:
        return max(self.program.graph.inputs, key=lambda i: i.value.numel).value.name

    def _given(self, reads: Sequence[str]) -> list[str]:
        """Where a kernel reads nothing but statistics: the tensors that the task brings, whose dtype is its precision's."""
        held = [i.value.name for i in self.program.graph.inputs] + [
            p.value.name for p in self.program.graph.parameters if p.path
        ]
        return [v for v in held if self.program.dtypes[v] == "float32"] if reads else []

    def _shaped_alike(self, like: str, shape: Shape) -> bool:
        return self.program.shapes[like] == shape and like not in self.orders and not like.startswith("p")
