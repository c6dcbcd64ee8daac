"""Inputs on which a candidate is judged. Drawn from a secret seed, after the candidate has been traced.

One block of memory holds forward's tensors and the reference's state, with guard zones between them. Comparing the block with
a snapshot shows a write to an input, to a parameter, or out of bounds. Two processes that draw the same task with the same
seed on the same kind of device get the same numbers.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kernrl.tasks.task import InputSet, Reference, Task, load_reference
from kernrl.verifier.base.nested import flatten, rebuild
from kernrl.verifier.base.precision import COMPUTE_DTYPE, as_pairs, cast_dtype, cast_module, is_float8
from kernrl.verifier.base.strides import unexpanded
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.input_ranges import ValueRange, value_ranges
from kernrl.verifier.judge.regimes import (
    HUGE,
    HUGE_FACTOR,
    LOW,
    LOW_BIAS,
    NOMINAL,
    REGIMES,
    SHIFTS,
    TIMED,
    WIDE_REGIMES,
    changed,
    extremes,
    lowered,
    uniform_by_rows,
)
from kernrl.verifier.judge.structure import Freedom, Structure, structures

ALIGN_BYTES = 512
GUARD_BYTES = 512

AT_ONCE = 1 << 24
"""Elements of an input that are changed together."""

POISONS = (0xFF, 0x3C)
"""Fill bytes. 0xFF is NaN in every float type and -1 in every integer type. 0x3C is a small finite number in all of them; it
shows a kernel whose result is multiplied by zero, where NaN would look like a difference."""


@dataclass(slots=True)
class _Slot:
    """A tensor's place in the block, and how its numbers are drawn."""

    view: Tensor
    """Of complex numbers, pairs of real ones [..., 2]."""
    tensor: Tensor
    """The same memory, as the task has it."""
    range: ValueRange | None = None
    """None for state that always holds `kept`, and for inputs that follow the task's own draws."""
    kept: Tensor | None = None
    structure: Structure | None = None
    """Of an input."""
    zero: Tensor | None = None
    """Where a drawn parameter is zero by construction; None if nowhere."""


def _seed(device: torch.device, seed: int) -> None:
    """Seed what a task may draw from. torch.manual_seed takes 0.2 ms to visit every backend, so the device's alone."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)
    torch.default_generator.manual_seed(seed)


def _extent(tensor: Tensor) -> int:
    """Number of elements from a tensor's first to its last in memory, gaps included."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0


class TaskInputs:
    """Inputs and state of one input set under one precision policy, on one device.

    `module` is the reference with its parameters living in the block. `draw` overwrites inputs and state in place.
    """

    def __init__(
        self, task: Task, input_set: InputSet, precision: str, device: torch.device | str, *, redraw_parameters: bool = True
    ):
        self.input_set, self.precision, self.device = input_set.name, precision, torch.device(device)
        reference = load_reference(task, input_set)
        self._get_inputs = reference.get_inputs
        self._is_parameter: dict[str, bool] = {}
        self._extremes = extremes(precision)
        self.module = self._construct(reference, 0)
        given, again = self._nominal(0), self._nominal(1)
        leaves = flatten(given)
        first, second = ([leaf for leaf in flatten(own) if isinstance(leaf, Tensor)] for own in (given, again))
        found = structures([as_pairs(x) for x in first], [as_pairs(x) for x in second])
        del again, second
        state = {k: v for k, v in self.module.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}
        slots = self._lay_out([*state.values(), *map(unexpanded, first)])
        self._state_slots, self._input_slots = slots[: len(state)], slots[len(state) :]
        self.state = {name: slot.tensor for name, slot in zip(state, self._state_slots, strict=True)}
        """The reference's parameters and buffers by `state_dict` key, as views of the block."""
        running = ("running_mean", "running_var")
        self.statistics = [name for name in self.state if self.module.training and name.endswith(running)]
        """Of the state, what every call in training mode changes."""
        self.inputs = [slot.tensor.expand(leaf.shape) for slot, leaf in zip(self._input_slots, first, strict=True)]
        """Forward's tensors, flattened, as views of the block; expanded ones as the task expands them."""
        views = iter(self.inputs)
        self.arguments = rebuild(given, [next(views) if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        """Forward's arguments, whose tensors are `inputs`."""
        for slot, structure in zip(self._input_slots, found, strict=True):
            slot.structure = structure
        self._plan_ranges(redraw_parameters, self._constants(reference))
        bind(self.module, self.state)
        self.held: tuple[int, ...] = ()
        """Positions of the inputs that the last draw has left as the task draws them, since the reference takes no others."""
        self._held = HeldState(self.module, self.state)

    def _construct(self, reference: Reference, seed: int) -> nn.Module:
        """The reference's module; its initial values depend on the seed."""
        _seed(self.device, seed)
        # without gradients: a weight that hooks compute, as weight_norm's, could not be copied with the module
        with torch.device(self.device), torch.no_grad():
            module = reference.Model(*reference.get_init_inputs())
        return cast_module(module.to(self.device), COMPUTE_DTYPE[self.precision])

    def _constants(self, reference: Reference) -> set[str]:
        """Buffers that are the same in every construction, such as a table of frequencies: constants, which a candidate may
        write out. Running statistics also start out the same, but they are state."""
        names = [n for n, _ in self.module.named_buffers() if not n.endswith(("running_mean", "running_var"))]
        if not any(n in self.state and as_pairs(self.state[n]).is_floating_point() for n in names):
            return set()
        again = dict(self._construct(reference, 1).named_buffers())
        return {n for n in names if n in self.state and torch.equal(self.state[n], again[n])}

    def _nominal(self, seed: int) -> list[Any]:
        """What `get_inputs` returns under a seed, made on this device and cast to the policy's dtype."""
        _seed(self.device, seed)
        with torch.device(self.device):
            given = list(self._get_inputs())  # the only place where inputs come from: judged, spot-checked and timed
        return rebuild(given, [self._cast(leaf) if isinstance(leaf, Tensor) else leaf for leaf in flatten(given)])

    def _cast(self, leaf: Tensor) -> Tensor:
        leaf = leaf.detach()  # candidates are for inference, and inputs are written to in place
        return unexpanded(leaf).to(self.device, cast_dtype(leaf.dtype, self.precision)).expand(leaf.shape)

    def _lay_out(self, tensors: list[Tensor]) -> list[_Slot]:
        """A slot for each tensor: floating ones in a block of the policy's dtype, others in a byte block. Tied ones share.

        Two blocks, since `torch.compile` takes no inputs that lie in one, are written to, and differ in dtype.
        """
        dtype = COMPUTE_DTYPE[self.precision]
        size = {True: GUARD_BYTES, False: GUARD_BYTES}
        starts: dict[int, int] = {}
        real = {id(tensor): as_pairs(tensor.detach()) for tensor in tensors}
        for key, tensor in real.items():
            floating = tensor.dtype == dtype
            starts[key] = size[floating]
            end = size[floating] + _extent(tensor) * tensor.element_size() + GUARD_BYTES
            size[floating] = -(-end // ALIGN_BYTES) * ALIGN_BYTES
        self.floats = torch.empty(size[True] // dtype.itemsize, dtype=dtype, device=self.device).normal_()
        self.others = torch.full((size[False],), 0x5A, dtype=torch.uint8, device=self.device)
        slots: dict[int, _Slot] = {}
        for given in tensors:
            if id(given) not in slots:
                tensor = real[id(given)]
                block = self.floats if tensor.dtype == dtype else self.others
                start, unit = starts[id(given)], block.element_size()
                flat = block[start // unit : (start + _extent(tensor) * tensor.element_size()) // unit].view(tensor.dtype)
                view = flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset())
                slots[id(given)] = _Slot(view.copy_(tensor), torch.view_as_complex(view) if given.is_complex() else view)
        return [slots[id(tensor)] for tensor in tensors]

    def _plan_ranges(self, redraw_parameters: bool, constants: set[str]) -> None:
        """The range of every state element, flat, so that one expression redraws the whole state except `constants`."""
        slots = [*self._state_slots, *(s for s in self._input_slots if s.structure and s.structure.freedom is Freedom.ANEW)]
        module_state = self.module.state_dict(keep_vars=True)
        gradients = [module_state[name].requires_grad for name in self.state]
        for slot, found in zip(slots, value_ranges([slot.view for slot in slots], gradients), strict=True):
            slot.range = found
        trained = {id(p) for p in self.module.parameters()}
        for name, slot in zip(self.state, self._state_slots, strict=True):
            other_type = slot.view.dtype != COMPUTE_DTYPE[self.precision]  # complex numbers under a 16-bit policy stay wide
            if not slot.range or not redraw_parameters or name in constants or other_type:
                slot.range, slot.kept = None, slot.view.clone()
            elif slot.range.sparse:
                slot.zero = slot.view == 0
            self._is_parameter[name] = id(module_state[name]) in trained
        redrawn = [(slot, slot.range) for slot in self._state_slots if slot.range]
        end = max((slot.view.storage_offset() + _extent(slot.view) for slot, _ in redrawn), default=0)
        self._low = torch.zeros(end, device=self.device)
        self._width = torch.ones(end, device=self.device)
        for slot, found in redrawn:
            place = slot.view.shape, slot.view.stride(), slot.view.storage_offset()
            self._low.as_strided(*place).fill_(found.low)
            self._width.as_strided(*place).fill_(found.high - found.low)

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self.floats.nbytes + self.others.nbytes

    def draw(self, draw: Draw) -> None:
        """Fill inputs and state in place with the numbers of a draw."""
        own = [as_pairs(unexpanded(leaf)) for leaf in flatten(self._nominal(draw.seed)) if isinstance(leaf, Tensor)]
        _seed(self.device, draw.seed ^ 0x5DEECE66D)
        self.held = draw.held
        biases = self._draw_state(draw.regime)
        if draw.regime in (NOMINAL, TIMED):
            for slot, leaf in zip(self._input_slots, own, strict=True):
                slot.view.copy_(leaf)
            return
        for i, (slot, leaf) in enumerate(zip(self._input_slots, own, strict=True)):
            structure = slot.structure
            assert structure
            if i in draw.held:
                slot.view.copy_(leaf)
                continue
            if slot.range:
                leaf = torch.rand(leaf.shape, device=self.device) * (slot.range.high - slot.range.low) + slot.range.low
                structure = Structure(Freedom.FREE, structure.mean, structure.std)
            if structure.freedom is Freedom.OWN:
                slot.view.copy_(leaf)
                continue
            uniform = leaf if REGIMES[draw.regime].pointwise else uniform_by_rows(leaf.shape, self.device)
            # every regime looks at one row at a time (an index of the first axis), so a large tensor is changed in parts
            rows = max(1, AT_ONCE * leaf.shape[0] // leaf.numel()) if leaf.dim() > 1 and leaf.numel() else 0
            cut = [x.split(rows) if rows else (x,) for x in (slot.view, leaf, uniform)]
            for view, own_part, u in zip(*cut, strict=True):
                made = changed(own_part, draw.regime, structure, self._extremes, u)
                if draw.regime == LOW and not biases:
                    made = lowered(made, structure, self._extremes, u)
                if is_float8(view.dtype):  # of the two types, one would make infinities of numbers beyond its largest
                    made = made.clamp(torch.finfo(view.dtype).min, torch.finfo(view.dtype).max)
                view.copy_(made)

    def _draw_state(self, regime: str) -> bool:
        """Fill the state in place; returns whether the regime has moved biases.

        Near the initial values, but never at one that hides a parameter (a weight of ones, a bias of zeros). In regimes that
        are `wide`, parameters that start as one number or with one sign get both signs, and magnitudes below and above one.
        """
        # without floating inputs, as in a table look-up, only the state can be small, or far from zero
        table = not any(self._moves(slot) for slot in self._input_slots)
        if self._low.numel():
            uniform = torch.rand_like(self._low)
            torch.addcmul(self._low, uniform, self._width, out=uniform)
            if table and regime in ("small", HUGE):
                uniform *= 1e-3 if regime == "small" else HUGE_FACTOR
            self.floats[: uniform.numel()].copy_(uniform)
        wide, biases = regime in REGIMES and REGIMES[regime].wide, False
        for i, (name, slot) in enumerate(zip(self.state, self._state_slots, strict=True)):
            if slot.kept is not None:
                slot.view.copy_(slot.kept)
            elif slot.range and self._is_parameter[name]:
                if wide and slot.range.one_sided:
                    slot.view.copy_(self._wide(slot, WIDE_REGIMES.index(regime) + i, REGIMES[regime].reach))
                if regime in REGIMES and REGIMES[regime].ends != 1.0 and slot.view.dim():
                    slot.view[-1:].mul_(REGIMES[regime].ends)
                if regime in SHIFTS and table and slot.view.dim() > 1:
                    slot.view.add_(min(SHIFTS[regime], self._extremes.shift))
                if regime == LOW and name.endswith("bias"):
                    slot.view.add_(LOW_BIAS)
                    biases = True
                if slot.zero is not None:
                    slot.view.masked_fill_(slot.zero, 0.0)
        return biases

    def _wide(self, slot: _Slot, turn: int, reach: float) -> Tensor:
        """Numbers for a parameter, a quarter of them from each of four bands: below −1, up to 0, up to 1 and above 1.

        Drawn one by one, a parameter of few elements would often miss a band. `turn` moves the bands on: over the wide
        regimes, a parameter of one element meets all four.
        """
        assert slot.range
        reach *= max(1.0, abs(slot.range.low), abs(slot.range.high))
        band = ((torch.randperm(slot.view.numel(), device=self.device) + turn) % 4).reshape(slot.view.shape)
        # a table of the bands' ends would have to be copied to the GPU, which waits for it
        low, high = (band - 2.0).masked_fill_(band == 0, -reach), (band - 1.0).masked_fill_(band == 3, reach)
        return torch.lerp(low, high, torch.rand(slot.view.shape, device=self.device))

    def call(self) -> list[Tensor]:
        """Call the module; the tensors that it returns, complex ones as pairs."""
        outputs = [as_pairs(y) for y in flatten(self.module(*self.arguments)) if isinstance(y, Tensor)]
        self.settle()
        return outputs

    def settle(self) -> None:
        """After a call of the module by others: see `HeldState`."""
        self._held.settle()

    def refresh(self) -> None:
        """New numbers in the same memory: the inputs and parameters of a timed call, drawn as judged ones are."""
        self.draw(Draw(self.input_set, TIMED, secrets.randbits(63)))

    def scale(self, factor: float) -> None:
        """Multiply the floating inputs that a regime may change, in place."""
        for i, slot in enumerate(self._input_slots):
            if i not in self.held and self._moves(slot) and not is_float8(slot.view.dtype):
                slot.view.mul_(factor)

    @staticmethod
    def _moves(slot: _Slot) -> bool:
        """Whether regimes change this input."""
        return slot.range is not None or bool(slot.structure and slot.structure.freedom is not Freedom.OWN)

    def snapshot(self) -> tuple[Tensor, Tensor]:
        """A copy of the block, guards included."""
        return self.floats.clone(), self.others.clone()

    def written(self, snapshot: tuple[Tensor, Tensor]) -> Tensor:
        """A 0-dim bool tensor: whether the block differs from its snapshot, bit for bit."""
        floats, others = (
            (now.view(torch.int64) != then.view(torch.int64)).any()
            for now, then in zip((self.floats, self.others), snapshot, strict=True)
        )
        return floats | others


def bind(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Make a module's parameters and buffers use the given tensors' memory (no copy)."""
    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor) and name in state:
                tensor.data = state[name]


class HeldState:
    """A module's parameters and buffers, bound to given memory. Forward may also put new tensors in their places, such as
    `self.running_mean = 0.9 * self.running_mean + 0.1 * mean`; the next draw would not reach those."""

    def __init__(self, module: nn.Module, state: dict[str, Tensor]):
        self._places: list[tuple[dict[str, Any], str, Tensor, Tensor]] = []
        for prefix, part in module.named_modules(remove_duplicate=False):
            for table in (part._parameters, part._buffers):
                for key, own in table.items():
                    name = f"{prefix}.{key}" if prefix else key
                    if own is not None and name in state:
                        self._places.append((table, key, own, state[name]))

    def settle(self) -> None:
        """Put the module's own tensors back, and in them what forward has made of them, as if it had written to them."""
        for table, key, own, memory in self._places:
            now = table.get(key)
            if now is own and own.data_ptr() == memory.data_ptr():
                continue
            with torch.no_grad():
                if isinstance(now, Tensor) and now.shape == memory.shape:
                    memory.copy_(now)
                own.data = memory
            table[key] = own
