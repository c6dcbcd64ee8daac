"""Values of a Graph as Python of `forward`: tensors in memory, views of them, and numbers."""

from __future__ import annotations

from kernrl.tasks.solutions.from_graph.calls_by_name import constant
from kernrl.tasks.solutions.from_graph.fusion.stored import Schedule
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Operand, Program, Varies
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError, Names, Shape, is_one


class HostValues:
    """What `forward` calls the values that it has."""

    program: Program
    s: Schedule
    names: Names
    host: dict[str, str]
    """Value in memory → Python of it."""

    def _base(self, value: str) -> str:
        """What a chain of views looks at."""
        while (op := self.s.plan.giver.get(value)) and op.kind == "view":
            value = op.reads[0]
        return value

    def value(self, value: str) -> str:
        """Python of a value in memory, or of a view of one."""
        if value in self.host:
            return self.host[value]
        op = self.s.plan.giver[value]
        if op.kind != "view":
            raise CannotWriteError(f"{value} is not in memory")
        x, shape = self.value(op.reads[0]), self.program.shapes[value]
        before = self.program.shapes[op.reads[0]]
        if op.how == "permute":
            return f"{x}.permute({', '.join(map(str, op.dims))})"
        if op.how == "expand":
            sizes = ["-1" if a == b else self.names.expression(b) for a, b in zip(before, shape, strict=True)]
            return f"{x}.expand({', '.join(sizes)})"
        if op.how == "slice":
            d = op.dims[0]
            start, length = op.start or (0,), shape[d]
            stop = tuple(a + n * op.step for a, n in zip(start, length, strict=True))
            text = [
                self.names.expression(start) if any(start) else "",
                "" if stop == before[d] else self.names.expression(stop),
            ]
            step = f":{op.step}" if op.step != 1 else ""
            return f"{x}[{':, ' * d}{text[0]}:{text[1]}{step}]"
        return self._reshaped(x, before, shape)

    def _reshaped(self, x: str, before: Shape, shape: Shape) -> str:
        plain = [s for s in shape if not is_one(s)]
        if plain == [s for s in before if not is_one(s)] and len(shape) == len(before) + 1:
            fitting = [i for i in range(len(shape)) if [*shape[:i], *shape[i + 1 :]] == list(before) and is_one(shape[i])]
            if fitting:  # else ones have moved as well
                return f"{x}.unsqueeze({fitting[0]})"
        for start in range(len(before)):
            end = start + len(before) - len(shape)
            if end > start and before[:start] == shape[:start] and before[end + 1 :] == shape[start + 1 :]:
                if end == len(before) - 1:
                    return f"{x}.flatten({start})"
                return f"{x}.flatten({start}, {end})"
        texts: list[str] = []
        for size in shape:
            try:
                texts.append(self.names.expression(size))
            except CannotWriteError:
                texts.append("-1")
        if texts.count("-1") > 1:
            raise CannotWriteError("the sizes of a view are unknown")
        return f"{x}.reshape({', '.join(texts)})"

    def _operand(self, operand: Operand) -> str:
        if isinstance(operand, str):
            return self.value(operand)
        if isinstance(operand, Varies):
            return self.names.number(operand.values)
        return constant(operand)
