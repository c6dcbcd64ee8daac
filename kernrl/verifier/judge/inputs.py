"""Inputs on which a candidate is judged. Drawn from a secret seed, after the candidate has been traced.

One block of memory holds forward's tensors and the reference's state, with guard zones between them. Comparing the block with
a snapshot shows a write to an input, to a parameter, or out of bounds. Two processes that draw the same task with the same
seed on the same kind of device get the same numbers.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernrl.tasks.task import FULL, InputSet, Reference, Task, load_reference
from kernrl.verifier.base.precision import COMPUTE_DTYPE, cast_dtype
from kernrl.verifier.judge.input_ranges import ValueRange, value_ranges

ALIGN_BYTES = 512
GUARD_BYTES = 512

POISONS = (0xFF, 0x3C)
"""Fill bytes. 0xFF is NaN in every float type and -1 in every integer type. 0x3C is a small finite number in all of them; it
shows a kernel whose result is multiplied by zero, where NaN would look like a difference."""

NOMINAL = "nominal"
"""The regime of the task's own `get_inputs`."""


def _mixed(z: Tensor, u: Tensor) -> Tensor:
    """Each row (index of the first axis) as it is, +3, −3, ×64, ×1e-3 or mostly zeros, at random."""
    if not z.dim() or not z.numel():
        return z
    lot = (u.reshape(z.shape[0], -1)[:, 0] * 6).floor().reshape(-1, *[1] * (z.dim() - 1))
    factor = torch.where(lot == 2, 64.0, torch.where(lot == 3, 1e-3, 1.0))
    return torch.where((lot == 4) & (u >= 0.05), 0.0, torch.addcmul(3.0 * (lot == 1) - 3.0 * (lot == 5), z, factor))


REGIMES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "normal": lambda z, _: z,
    "uniform": lambda _, u: u,
    "offset": lambda z, _: z + 3.0,
    "negative": lambda z, _: z - 3.0,
    "large": lambda z, _: z * 64.0,
    "small": lambda z, _: z * 1e-3,
    "sparse": lambda z, u: z * (u < 0.05),
    "mixed": _mixed,
    "one_hot": lambda _, u: torch.zeros_like(u).scatter_(-1, u.argmax(-1, keepdim=True), 1.0) if u.dim() else u.round(),
}
"""Regime → function of standard normal `z` and uniform [0, 1) `u`, both of the input's shape."""

BIG_BYTES = 256 << 20
"""Plans that hold more than this get fewer draws if the task has no small sets: each draw costs a float64 reference."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One set of inputs for a candidate, determined by its seed."""

    input_set: str
    regime: str
    seed: int
    """Secret; 63 bits."""


def schedule(
    sets: Sequence[InputSet], seed: int, regimes: Sequence[str] | None = None, *, big: bool = False
) -> tuple[Draw, ...]:
    """The draws a candidate is judged on, cheap ones first.

    Small and ragged sets cover all regimes between them. The full set, where a draw is expensive, gets the task's own inputs
    and `mixed`, which combines the regimes. A task with one set gets all its regimes there. Timed calls run on what `refresh`
    draws, which is like the task's own inputs, so every kind of timed input has been judged at full size. `regimes` narrows
    the choice, to test what each regime is worth.
    """
    others = [s.name for s in sets if s.name != FULL]
    if not others:
        plan = {FULL: [NOMINAL, "small", "mixed"] if big else [NOMINAL, "normal", "offset", "large", "small", "one_hot"]}
    elif len(others) == 1:
        plan = {others[0]: [NOMINAL, "normal", "offset", "negative", "large", "small", "sparse", "one_hot"]}
    else:
        turns = [NOMINAL, "offset", "small", "one_hot"], [NOMINAL, "negative", "normal", "large", "sparse"]
        plan = {name: turns[i % 2] for i, name in enumerate(others)}
    if others and any(s.name == FULL for s in sets):
        plan[FULL] = [NOMINAL, "mixed"]
    pairs = [(name, regime) for name, asked in plan.items() for regime in asked if regimes is None or regime in regimes]
    return tuple(Draw(name, regime, (seed + 7919 * i) % (1 << 63)) for i, (name, regime) in enumerate(pairs))


class Seeds:
    """Secret seeds of the draws, by task. A seed serves 32 candidates, so that a group shares its answers."""

    def __init__(self) -> None:
        self._secret, self._mutex = secrets.token_bytes(16), threading.Lock()
        self._served: Counter[str] = Counter()

    def next(self, task_key: str) -> int:
        """The seed for the next candidate of a task; 63 bits."""
        with self._mutex:
            turn = self._served[task_key] // 32
            self._served[task_key] += 1
        digest = hashlib.blake2b(f"{turn} {task_key}".encode(), key=self._secret, digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1


def flatten(value: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flatten(item)]
    return [value]


def rebuild(value: Any, leaves: list[Any]) -> Any:
    """`value` with its leaves replaced, in order, by `leaves` (consumed)."""
    if isinstance(value, dict):
        return {k: rebuild(v, leaves) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = [rebuild(v, leaves) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return leaves.pop(0)


@dataclass(slots=True)
class _Slot:
    """A tensor's place in the block, and how its numbers are drawn."""

    view: Tensor
    range: ValueRange | None
    """None for a tensor that always holds `kept`."""
    kept: Tensor | None


def _seed(device: torch.device, seed: int) -> None:
    """Seed the device's default generator alone: torch.manual_seed takes 0.2 ms to visit every backend."""
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)
    else:
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
        _seed(self.device, 0)
        self.module = self._construct(reference, 0)
        given = self._nominal(0)
        leaves = flatten(given)
        state = {k: v for k, v in self.module.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}
        slots = self._lay_out([*state.values(), *(leaf for leaf in leaves if isinstance(leaf, Tensor))])
        self._state_slots, self._input_slots = slots[: len(state)], slots[len(state) :]
        self.state = {name: slot.view for name, slot in zip(state, self._state_slots, strict=True)}
        """The reference's parameters and buffers by `state_dict` key, as views of the block."""
        self.inputs = [slot.view for slot in self._input_slots]
        """Forward's tensors, flattened, as views of the block."""
        views = iter(self.inputs)
        self.arguments = rebuild(given, [next(views) if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        """Forward's arguments, whose tensors are `inputs`."""
        self._plan_state(redraw_parameters, self._constants(reference))
        bind(self.module, self.state)

    def _construct(self, reference: Reference, seed: int) -> nn.Module:
        """The reference's module; its initial values depend on the seed."""
        _seed(self.device, seed)
        with torch.device(self.device):
            module = reference.Model(*reference.get_init_inputs())
        return module.to(self.device, COMPUTE_DTYPE[self.precision])

    def _constants(self, reference: Reference) -> set[str]:
        """Buffers that are the same in every construction, such as a table of frequencies: constants, which a candidate may
        write out. Running statistics also start out the same, but they are state."""
        names = [n for n, _ in self.module.named_buffers() if not n.endswith(("running_mean", "running_var"))]
        if not any(n in self.state and self.state[n].is_floating_point() for n in names):
            return set()
        again = dict(self._construct(reference, 1).named_buffers())
        return {n for n in names if n in self.state and torch.equal(self.state[n], again[n])}

    def _nominal(self, seed: int) -> list[Any]:
        """What `get_inputs` returns under a seed, made on this device and cast to the policy's dtype."""
        _seed(self.device, seed)
        with torch.device(self.device):
            given = list(self._get_inputs())
        cast = [
            leaf.to(self.device, cast_dtype(leaf.dtype, self.precision)) if isinstance(leaf, Tensor) else leaf
            for leaf in flatten(given)
        ]
        return rebuild(given, cast)

    def _lay_out(self, tensors: list[Tensor]) -> list[_Slot]:
        """A slot for each tensor: floating ones in a block of the policy's dtype, others in a byte block. Tied ones share."""
        dtype = COMPUTE_DTYPE[self.precision]
        size = {True: GUARD_BYTES, False: GUARD_BYTES}
        starts: dict[int, int] = {}
        for tensor in tensors:
            if id(tensor) not in starts:
                floating = tensor.dtype == dtype
                starts[id(tensor)] = size[floating]
                end = size[floating] + _extent(tensor) * tensor.element_size() + GUARD_BYTES
                size[floating] = -(-end // ALIGN_BYTES) * ALIGN_BYTES
        self.floats = torch.empty(size[True] // dtype.itemsize, dtype=dtype, device=self.device).normal_()
        self.others = torch.full((size[False],), 0x5A, dtype=torch.uint8, device=self.device)
        views: dict[int, Tensor] = {}
        for tensor in tensors:
            if id(tensor) not in views:
                block = self.floats if tensor.dtype == dtype else self.others
                start, unit = starts[id(tensor)], block.element_size()
                flat = block[start // unit : (start + _extent(tensor) * tensor.element_size()) // unit].view(tensor.dtype)
                views[id(tensor)] = flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset())
                views[id(tensor)].copy_(tensor.detach())
        drawn = zip(views.items(), value_ranges(list(views.values())), strict=True)
        slots = {key: _Slot(view, found, None if found else view.clone()) for (key, view), found in drawn}
        return [slots[id(tensor)] for tensor in tensors]

    def _plan_state(self, redraw_parameters: bool, constants: set[str]) -> None:
        """Low and width of every state element, flat, so that one expression redraws the whole state except `constants`."""
        for name, slot in zip(self.state, self._state_slots, strict=True):
            if slot.range and (not redraw_parameters or name in constants):
                slot.range, slot.kept = None, slot.view.clone()
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
        if draw.regime == NOMINAL:
            fresh = [leaf for leaf in flatten(self._nominal(draw.seed)) if isinstance(leaf, Tensor)]
            for view, leaf in zip(self.inputs, fresh, strict=True):
                view.copy_(leaf)
        _seed(self.device, draw.seed ^ 0x5DEECE66D)
        if self._low.numel():
            uniform = torch.rand_like(self._low)
            torch.addcmul(self._low, uniform, self._width, out=uniform)
            if draw.regime == "small" and not any(slot.range for slot in self._input_slots):
                uniform *= 1e-3  # without floating inputs, as in a table look-up, only the state can be small
            self.floats[: uniform.numel()].copy_(uniform)
        for slot in (*self._state_slots, *(self._input_slots if draw.regime != NOMINAL else ())):
            if slot.kept is not None:
                slot.view.copy_(slot.kept)
        if draw.regime != NOMINAL:
            for slot in self._input_slots:
                if slot.range:
                    z = torch.randn(slot.view.shape, device=self.device)
                    u = torch.rand(slot.view.shape, device=self.device)
                    slot.view.copy_(REGIMES[draw.regime](z, u))

    def refresh(self) -> None:
        """New numbers for the floating inputs, in the same memory: the inputs of each timed call.

        Normal or uniform, with the mean and deviation of the task's own inputs: a kernel must not recognise a timed call by
        its inputs, nor be timed on inputs unlike its user's.
        """
        for slot in self._input_slots:
            if slot.range and slot.range.even:
                slot.view.uniform_(slot.range.low, slot.range.high)
            elif slot.range:
                mean, width = (slot.range.low + slot.range.high) / 2, slot.range.high - slot.range.low
                slot.view.normal_(mean, width / math.sqrt(12.0))

    def scale(self, factor: float) -> None:
        """Multiply the floating inputs, in place."""
        for slot in self._input_slots:
            if slot.range:
                slot.view.mul_(factor)

    def snapshot(self) -> tuple[Tensor, Tensor]:
        """A copy of the block, guards included."""
        return self.floats.clone(), self.others.clone()

    def written(self, snapshot: tuple[Tensor, Tensor]) -> Tensor:
        """A 0-dim bool tensor: whether the block differs from its snapshot, bit for bit."""
        bits = {2: torch.int16, 4: torch.int32}[self.floats.element_size()]
        floats = (self.floats.view(bits) != snapshot[0].view(bits)).any()
        return floats | (self.others != snapshot[1]).any()


def bind(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Make a module's parameters and buffers use the given tensors' memory (no copy)."""
    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor) and name in state:
                tensor.data = state[name]
