"""Replay of a Plan on the CPU: ATen nodes by trusted torch, authored launches by reading their TTIR (`machine.py`).

No candidate Python runs here, as on a GPU: the same plan, the same IR that is compiled. Every access is checked, so a
kernel that leaves its buffers is a `crash` with the place, and memory that nobody wrote is poison. Rounding differs from
a GPU's in the last bits (order of sums, approximations); TF32 products are rounded as the tensor cores do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.machine import Machine, TooSlow
from kernrl.verifier.memory import STORAGE_BITS, Fault, Memory
from kernrl.verifier.plan import CONSTANT_OP, ITEM_BYTES, AtenNode, LaunchNode, Node, Plan, Special, TensorRef, Variant
from kernrl.verifier.ttir import TtirError, parse
from kernrl.verifier.verdict import Rejection, Status

POISON = 0xFF
"""NaN in every float type, -1 in every integer."""

MAX_PLAN_BYTES = 1 << 30
"""At shapes small enough to be interpreted, an honest plan holds a few MiB."""

_PARAMETERS = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unable(Rejection):
    """The interpreter came to its own limits, which may not be the candidate's: a GPU might say otherwise."""


def interpret(
    plan: Plan,
    tensors: Mapping[int | str, Tensor],
    *,
    timeout_s: float = 60.0,
    skip: int | None = None,
    poison: int = POISON,
    turn: int = 0,
) -> list[Tensor] | Rejection:
    """Forward's outputs on CPU tensors, keyed as `Storage.source` is: inputs by position, state by key.

    `tensors` have the spec's dtype and strides and are not changed. `skip` leaves out one node, to see whether it matters;
    `poison` is the byte that fresh memory is filled with; an autotuned launch of n variants runs number `turn` mod n. Rejected
    with `crash` for an access out of bounds; Unable with `timeout` past `timeout_s`, `needs_gpu` for what cannot be
    interpreted, `crash` for an ATen call that torch refuses here.
    """
    deadline = time.monotonic() + timeout_s
    held = sum(s.nbytes for s in plan.storages)
    if held > MAX_PLAN_BYTES:
        return Unable(Status.NEEDS_GPU, f"The plan holds {held >> 20} MiB, too much for the interpreter.")
    replay = _Replay(plan, tensors, deadline, poison, turn)
    try:
        for node in plan.setup:
            replay.node(node)
        for position, node in enumerate(plan.nodes):
            if position != skip:
                replay.node(node)
        return [replay.tensor(ref).clone() for ref in plan.outputs]
    except Fault as fault:
        return Rejection(Status.CRASH, f"{replay.where}: {fault}.")
    except TooSlow:
        return Unable(Status.TIMEOUT, f"{replay.where} takes longer than {timeout_s:.3g} s in the interpreter.")
    except TtirError as error:
        return Unable(Status.NEEDS_GPU, f"{replay.where}: {error}.")
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError) as error:
        # torch refuses an ATen call, as it would on a GPU, most likely
        return Unable(Status.CRASH, f"{replay.where}: {str(error).splitlines()[0] if str(error) else type(error).__name__}.")


class _Replay:
    """A plan's memory on the CPU, and how to run its nodes on it."""

    def __init__(self, plan: Plan, tensors: Mapping[int | str, Tensor], deadline: float, poison: int, turn: int) -> None:
        self.plan, self.deadline, self.turn, self.where = plan, deadline, turn, "the plan"
        self.storages: list[Tensor] = []
        for storage in plan.storages:
            if storage.source is None:
                self.storages.append(torch.full((storage.nbytes,), poison, dtype=torch.uint8))
            else:
                self.storages.append(_bytes_of(tensors[storage.source], storage.nbytes))

    def tensor(self, ref: TensorRef) -> Tensor:
        """A plan's view as a torch tensor over its memory."""
        whole = self.storages[ref.storage]
        usable = whole.numel() // ITEM_BYTES[ref.dtype] * ITEM_BYTES[ref.dtype]
        return whole[:usable].view(getattr(torch, ref.dtype)).as_strided(ref.shape, ref.stride, ref.offset)

    def node(self, node: Node) -> None:
        if isinstance(node, AtenNode):
            self.where = node.op
            if time.monotonic() > self.deadline:
                raise TooSlow
            self._call(node)
        else:
            assert isinstance(node, LaunchNode)
            self._launch(node.variants[self.turn % len(node.variants)])

    def _call(self, node: AtenNode) -> None:
        if node.op == CONSTANT_OP:
            dtype = getattr(torch, node.kwargs["dtype"].value)
            results: Any = torch.tensor([_plain(v) for v in node.args[0]], dtype=dtype).reshape(node.args[1])
        else:
            _, packet, overload = node.op.split(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload)
            results = operator(*(self._value(a) for a in node.args), **{k: self._value(v) for k, v in node.kwargs.items()})
        for result, ref in zip(_leaves(results), node.outputs, strict=True):
            if ref is not None and result is not None:
                home = self.tensor(ref)
                if home.data_ptr() != result.data_ptr():
                    home.copy_(result)

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, TensorRef):
            return self.tensor(arg)
        if isinstance(arg, tuple | list):
            return [self._value(a) for a in arg]
        return _plain(arg)

    def _launch(self, variant: Variant) -> None:
        kernel = self.plan.kernels[variant.kernel]
        self.where = kernel.function
        function = parse(kernel.ttir)
        arguments = [self._argument(k, v) for k, v in zip(function.param_types, variant.args.values(), strict=True)]
        memory = Memory(dict(enumerate(self.storages)))
        Machine(function, memory, variant.grid, self.deadline).run(arguments)

    def _argument(self, kind: str, value: Any) -> Tensor:
        if isinstance(value, TensorRef):
            return torch.tensor([(value.storage << STORAGE_BITS) + value.offset * ITEM_BYTES[value.dtype]])
        value = _plain(value)
        if kind == "i64" and value >= 1 << 63:
            value -= 1 << 64
        if kind not in _PARAMETERS:
            raise TtirError(f"a parameter of type {kind}")
        return torch.tensor([value], dtype=_PARAMETERS[kind])


def _bytes_of(tensor: Tensor, nbytes: int) -> Tensor:
    """A private copy of the bytes a tensor spans, in its own strides."""
    span = torch.full((nbytes,), POISON, dtype=torch.uint8)
    flat = span[: nbytes // tensor.element_size() * tensor.element_size()].view(tensor.dtype)
    flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    return span


def _plain(arg: Any) -> Any:
    if not isinstance(arg, Special):
        return arg
    if arg.kind in ("float", "complex"):
        return {"float": float, "complex": complex}[arg.kind](arg.value)
    return torch.device("cpu") if arg.kind == "device" else getattr(torch, arg.value)


def _leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, tuple | list) else [value]
