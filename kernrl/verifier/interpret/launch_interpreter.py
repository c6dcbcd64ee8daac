"""Run a kernel's TTIR on the CPU, all cases and all programs of a batch side by side, with every access bounds-checked.

Each value is a torch tensor whose first dimension is the cases (runs of the same plan on other numbers) and whose second is
the programs; either has size 1 where all agree, as cases do on nearly all addresses. A pointer is a byte address in a virtual
memory where storage `i` begins at `i << 40`, so any access beyond its storage is detected. Loops and branches on which
programs disagree run under a mask. Where programs can tell in which order they run, they run one at a time in a given order.
Made for correctness at small shapes, not for speed.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.interpret import hints, mathops
from kernrl.verifier.interpret.checked_memory import CheckedMemory
from kernrl.verifier.interpret.descriptors import Descriptor, make_descriptor
from kernrl.verifier.interpret.races import atomic_kind
from kernrl.verifier.interpret.ttir_types import DTYPES, read_type, result_type, widest_tile
from kernrl.verifier.plan.ttir import Block, Function, Op, TtirError

BATCH_ELEMENTS = 1 << 18
MAX_PROGRAMS = 1 << 26
"""One for every element of the largest plan that is interpreted; far more is a grid that nobody launches."""


class TooSlow(RuntimeError):
    """The deadline passed."""


class Waiting(RuntimeError):
    """A program waits for one that has not run yet."""


class LaunchInterpreter:
    """Runs the programs of one launch, batch by batch."""

    def __init__(self, function: Function, memory: CheckedMemory, grid: tuple[int, int, int], deadline: float) -> None:
        """`deadline` by time.process_time()."""
        self.function, self.memory, self.grid, self.deadline = function, memory, grid, deadline
        self.values: dict[int, Any] = {}
        self.programs = torch.zeros(1, dtype=torch.int64)
        self.widest = widest_tile(function)

    def run(self, arguments: Sequence[Tensor], order: Sequence[int] | None = None) -> None:
        """Run every program, one at a time if an `order` is given. `arguments`: one tensor [1, 1] for each parameter; pointers
        are addresses. Raises Fault, Race, FalseHint, Waiting, TooSlow and TtirError."""
        total, batch = math.prod(self.grid), max(1, BATCH_ELEMENTS // (self.widest * self.memory.cases))
        if total > MAX_PROGRAMS:
            raise TtirError(f"a grid of {total} programs, which is too large for the interpreter")
        self.memory.in_turn = order is not None
        if order is not None:
            batches = [(number, number + 1) for number in order]
        else:
            batches = [(first, min(first + batch, total)) for first in range(0, total, batch)]
        for first, end in batches:
            self._check_time()
            self.memory.first_program = first
            if order is not None and self.memory.races:
                self.memory.races.begin(first)
            self.programs = torch.arange(first, end)
            self.values = dict(zip(self.function.params, arguments, strict=True))
            self._body(torch.ones(1, len(self.programs), dtype=torch.bool))

    def _body(self, active: Tensor) -> None:
        """Run the function's blocks in order. A forward branch sends programs to either side."""
        waiting = {next(iter(self.function.body)): active}
        for label, block in self.function.body.items():
            here = waiting.pop(label, None)
            if here is None or not here.any():
                continue
            last = self.block(block, here)
            for target, mask, values in self._targets(last, here):
                if target not in self.function.body or target == label:
                    raise TtirError("a branch backwards")
                arguments = self.function.body[target].args
                for argument, value in zip(arguments, values, strict=True):
                    self.values[argument] = self._merge(mask, value, self.values.get(argument))
                waiting[target] = waiting.get(target, torch.zeros_like(mask)) | mask
        if waiting:
            raise TtirError("a branch backwards")

    def _targets(self, last: Op, here: Tensor) -> list[tuple[str, Tensor, list[Any]]]:
        labels = re.findall(r"\^(\w+)(\()?", last.text)
        if last.name == "cf.br":
            return [(labels[0][0], here, [self.values[v] for v in last.operands])]
        if last.name == "cf.cond_br":
            condition = self._of(last.operands[0])
            if len(last.operands) > 1:
                raise TtirError("a conditional branch with values")
            return [(labels[0][0], here & condition, []), (labels[1][0], here & ~condition, [])]
        return []

    def block(self, block: Block, active: Tensor) -> Op:
        """Run a block's operations for the active programs; returns the terminator, which is not run."""
        for op in block.ops:
            self._check_time()
            if op.name in ("tt.return", "cf.br", "cf.cond_br") or op.name in _TERMINATORS:
                return op
            results = self._operation(op, active)
            if "tt." in op.text and (hint := hints.read(op.text)):
                results = [hints.check(hint, results[0], active)]
            for number, value in zip(op.results, results, strict=True):
                self.values[number] = value
        return _NO_YIELD

    def _check_time(self) -> None:
        """Called at every operation, and wherever nothing else is: around loops without operations. Raises TooSlow."""
        if time.process_time() > self.deadline:
            raise TooSlow

    def _of(self, number: int) -> Any:
        return self.values[number]

    def _operation(self, op: Op, active: Tensor) -> Sequence[Any]:
        handler = _HANDLERS.get(op.name)
        if handler is not None:
            return handler(self, op, active)
        arguments = [self._of(v) for v in op.operands]
        return [mathops.evaluate(op, arguments, result_type(op).dtype)]

    # --- control -------------------------------------------------------------------------------------------------

    def _for(self, op: Op, active: Tensor) -> Sequence[Any]:
        low, high, step = (self._of(v) for v in op.operands[:3])
        body = op.regions[0]["entry"]
        carried = [self._of(v) for v in op.operands[3:]]
        index = low
        while True:
            self._check_time()
            going = active & (index < high)
            if not going.any():
                return carried
            self.values[body.args[0]] = index
            for argument, value in zip(body.args[1:], carried, strict=True):
                self.values[argument] = value
            last = self.block(body, going)
            carried = [self._merge(going, self._of(v), old) for v, old in zip(last.operands, carried, strict=True)]
            index = index + step

    def _while(self, op: Op, active: Tensor) -> Sequence[Any]:
        test, body = op.regions[0]["entry"], op.regions[1]["entry"]
        carried = [self._of(v) for v in op.operands]
        results: list[Any] = [None] * len(op.results)
        going = active
        while True:
            self._check_time()
            for argument, value in zip(test.args, carried, strict=True):
                self.values[argument] = value
            condition = self.block(test, going)
            passed = [self._of(v) for v in condition.operands[1:]]
            results = [self._merge(going, new, old) for new, old in zip(passed, results, strict=True)]
            going = going & self._of(condition.operands[0])
            if not going.any():
                return results
            for argument, value in zip(body.args, passed, strict=True):
                self.values[argument] = value
            last = self.block(body, going)
            before = carried
            carried = [self._merge(going, self._of(v), old) for v, old in zip(last.operands, carried, strict=True)]
            if self.memory.in_turn:
                # with the same memory and the same values, a program that runs alone would do the same for ever
                if not self.memory.changed and all(map(_equal, before, carried)):
                    raise Waiting
                self.memory.changed = False

    def _if(self, op: Op, active: Tensor) -> Sequence[Any]:
        condition = self._of(op.operands[0])
        results: list[Any] = [None] * len(op.results)
        for region, taken in zip(op.regions, (active & condition, active & ~condition), strict=False):
            if taken.any():
                last = self.block(region["entry"], taken)
                results = [self._merge(taken, self._of(v), old) for v, old in zip(last.operands, results, strict=True)]
        return results

    def _merge(self, mask: Tensor, new: Any, old: Any) -> Any:
        """`new` where the mask holds, `old` elsewhere. Undefined values may become anything."""
        if old is None or old is new or bool(mask.all()) or isinstance(new, Descriptor):
            return new
        return torch.where(mask.reshape(*mask.shape, *[1] * (new.dim() - 2)), new, old)

    def _reduce(self, op: Op, active: Tensor) -> Sequence[Any]:
        """Combine halves until one element is left; every tile size is a power of two.

        Lanes of a warp exchange their shares with each other, so each has another one on its left: at every second step the
        halves change places, which a function that tells left from right (the later of two, a decayed sum) does not survive.
        """
        axis, region = self._axis(op), op.regions[0]["entry"]
        values = self._tiles(op)
        while values[0].shape[axis] > 1:
            half = values[0].shape[axis] // 2
            left, right = [v.narrow(axis, 0, half) for v in values], [v.narrow(axis, half, half) for v in values]
            values = self._combine(region, *((left, right) if half.bit_length() % 2 else (right, left)))
        return [v.squeeze(axis) for v in values]

    def _scan(self, op: Op, active: Tensor) -> Sequence[Any]:
        """Inclusive prefix combination in log2(n) steps of doubling distance."""
        axis, region = self._axis(op), op.regions[0]["entry"]
        values = self._tiles(op)
        backwards = "reverse = true" in op.text
        values = [v.flip(axis) if backwards else v for v in values]
        size, distance = values[0].shape[axis], 1
        while distance < size:
            kept = [v.narrow(axis, 0, distance) for v in values]
            left = [v.narrow(axis, 0, size - distance) for v in values]
            right = [v.narrow(axis, distance, size - distance) for v in values]
            values = [torch.cat(pair, axis) for pair in zip(kept, self._combine(region, left, right), strict=True)]
            distance *= 2
        return [v.flip(axis) if backwards else v for v in values]

    def _combine(self, region: Block, left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        for argument, value in zip(region.args, [*left, *right], strict=True):
            self.values[argument] = value
        last = self.block(region, torch.ones(1, 1, dtype=torch.bool))
        return [torch.broadcast_to(self._of(v), left[0].shape) for v in last.operands]

    def _tiles(self, op: Op) -> list[Tensor]:
        """Operands of a reduction or scan at full size: a constant tile is stored as one element, and what is the same in all
        cases or programs once."""
        shape = read_type(op.types.partition("->")[0].strip(" (")).shape
        values = [self._of(v) for v in op.operands]
        lead = [max(v.shape[i] for v in values) for i in range(2)]
        return [v.expand(*lead, *shape) for v in values]

    def _axis(self, op: Op) -> int:
        found = re.search(r"axis = (\d+)", op.text)
        if found is None:
            raise TtirError("a reduction without an axis")
        return int(found[1]) + 2

    # --- memory --------------------------------------------------------------------------------------------------

    def _masked(self, mask: Tensor | None, address: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Addresses and mask for all programs of the batch: one row if all cases agree on both, otherwise one for each case."""
        here = active.reshape(*active.shape, *[1] * (address.dim() - 2))
        here = here if mask is None else here & mask
        lead = map(max, here.shape[:2], address.shape[:2])
        shape = (*lead, *address.shape[2:])
        return address.expand(shape), here.expand(shape)

    def _load(self, op: Op, active: Tensor) -> Sequence[Any]:
        address, *rest = (self._of(v) for v in op.operands)
        dtype = DTYPES[read_type(op.types).element]
        address, mask = self._masked(rest[0] if rest else None, address, active)
        other = rest[1] if len(rest) > 1 else None
        return [self.memory.load(address, mask, other, dtype, volatile="isVolatile = true" in op.text)]

    def _store(self, op: Op, active: Tensor) -> Sequence[Any]:
        address, value, *rest = (self._of(v) for v in op.operands)
        address, mask = self._masked(rest[0] if rest else None, address, active)
        self.memory.store(address, value, mask)
        return []

    def _atomic(self, op: Op, active: Tensor) -> Sequence[Any]:
        address, value, *rest = (self._of(v) for v in op.operands)
        address, mask = self._masked(rest[0] if rest else None, address, active)
        return [self.memory.update(atomic_kind(op), address, value, mask)]

    def _compare_and_swap(self, op: Op, active: Tensor) -> Sequence[Any]:
        address, compared, value = (self._of(v) for v in op.operands)
        address, mask = self._masked(None, address, active)
        return [self.memory.update("cas", address, value, mask, compared)]

    def _make_descriptor(self, op: Op, active: Tensor) -> Sequence[Any]:
        return [make_descriptor(op, [self._of(v) for v in op.operands])]

    def _through(self, descriptor: Descriptor, indices: Sequence[Tensor], active: Tensor) -> tuple[Tensor, Tensor]:
        address, mask = descriptor.addresses(indices)
        return self._masked(mask, address, active)

    def _descriptor_load(self, op: Op, active: Tensor) -> Sequence[Any]:
        descriptor, *indices = (self._of(v) for v in op.operands)
        address, mask = self._through(descriptor, indices, active)
        loaded = self.memory.load(address, mask, None, descriptor.block.dtype)
        return [loaded.reshape(*loaded.shape[:2], *result_type(op).shape)]

    def _descriptor_store(self, op: Op, active: Tensor) -> Sequence[Any]:
        # tt.descriptor_store %desc[%i, %j], %value
        descriptor, *indices, value = (self._of(v) for v in op.operands)
        address, mask = self._through(descriptor, indices, active)
        self.memory.store(address, value.reshape(*value.shape[:2], *descriptor.block.shape), mask)
        return []

    def _descriptor_reduce(self, op: Op, active: Tensor) -> Sequence[Any]:
        # tt.descriptor_reduce add, %desc[%i, %j], %value
        descriptor, *indices, value = (self._of(v) for v in op.operands)
        address, mask = self._through(descriptor, indices, active)
        self.memory.update(atomic_kind(op), address, value.reshape(*value.shape[:2], *descriptor.block.shape), mask)
        return []

    # --- indices -------------------------------------------------------------------------------------------------

    def _program_id(self, op: Op, active: Tensor) -> Sequence[Any]:
        x, y, _ = self.grid
        per_axis = {"x": self.programs % x, "y": self.programs // x % y, "z": self.programs // (x * y)}
        return [per_axis[op.text.split()[0]].to(torch.int32).unsqueeze(0)]

    def _num_programs(self, op: Op, active: Tensor) -> Sequence[Any]:
        return [torch.tensor([[self.grid["xyz".index(op.text.split()[0])]]], dtype=torch.int32)]

    def _addptr(self, op: Op, active: Tensor) -> Sequence[Any]:
        pointer, offset = (self._of(v) for v in op.operands)
        return [pointer + offset.long() * DTYPES[read_type(op.types).element].itemsize]


def _equal(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b))


_NO_YIELD = Op("scf.yield", [], [], "")
"""Terminator of a block that is printed without a yield."""
_TERMINATORS = frozenset(("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return"))
_HANDLERS: dict[str, Callable[[LaunchInterpreter, Op, Tensor], Sequence[Any]]] = {
    "scf.for": LaunchInterpreter._for,
    "scf.while": LaunchInterpreter._while,
    "scf.if": LaunchInterpreter._if,
    "tt.reduce": LaunchInterpreter._reduce,
    "tt.scan": LaunchInterpreter._scan,
    "tt.load": LaunchInterpreter._load,
    "tt.store": LaunchInterpreter._store,
    "tt.atomic_rmw": LaunchInterpreter._atomic,
    "tt.atomic_cas": LaunchInterpreter._compare_and_swap,
    "tt.make_tensor_descriptor": LaunchInterpreter._make_descriptor,
    "tt.descriptor_load": LaunchInterpreter._descriptor_load,
    "tt.descriptor_store": LaunchInterpreter._descriptor_store,
    "tt.descriptor_reduce": LaunchInterpreter._descriptor_reduce,
    "tt.get_program_id": LaunchInterpreter._program_id,
    "tt.get_num_programs": LaunchInterpreter._num_programs,
    "tt.addptr": LaunchInterpreter._addptr,
    "tt.split": lambda launch, op, active: launch._tiles(op)[0].unbind(-1),
    "llvm.intr.assume": lambda launch, op, active: hints.assume(launch.values[op.operands[0]], active),
    "tt.assert": lambda launch, op, active: [],
    "ttg.barrier": lambda launch, op, active: [],
    "gpu.barrier": lambda launch, op, active: [],
}
