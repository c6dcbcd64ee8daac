"""Replay of a Plan on a GPU: ATen nodes by trusted torch, authored launches by the CUDA driver. No candidate Python.

Temporaries and outputs live in one block of device memory that is filled with a poison before every run, so nothing survives
from one run, input or candidate to the next, and memory that a candidate did not write is recognised. Results of ATen calls
that allocate are torch's own and are bound when they appear.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.base import cuda_driver
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.plan.buffers import scratch_bytes
from kernrl.verifier.plan.call_aten import call_aten, plain_value, store_aten
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import CONSTANT_OP, AtenNode, LaunchNode, Plan, TensorRef, Variant
from kernrl.verifier.replay.device_memory import DeviceMemory, Modules

_SCALARS = {
    "i1": ctypes.c_bool, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
    "f32": ctypes.c_float, "f64": ctypes.c_double,
}  # fmt: skip
"""A compiled kernel's scalar types → how they are passed. Triton's unsigned types are MLIR's signless ones."""


@dataclass(slots=True)
class Opened:
    """A candidate's plan at one input set, ready to run."""

    runner: Runner
    run: Callable[[], None]
    outputs: Callable[[], list[Tensor]]
    """Forward's outputs after a run."""
    alive: Any = None
    """Memory that a captured graph writes."""


class Runner:
    """One plan bound to a task's inputs, ready to run any number of times.

    `prepare(poison)` resets the memory and runs the constructor's nodes; `run()` queues forward's. Neither waits.
    """

    def __init__(
        self, plan: Plan, kernels: Sequence[CompiledKernel], inputs: TaskInputs, memory: DeviceMemory, modules: Modules
    ):
        self._kernels, self._memory, self._modules = kernels, memory, modules
        # a graph cannot copy from the host, so constants in forward are made together with the constructor's
        constants = tuple(n for n in plan.nodes if isinstance(n, AtenNode) and n.op == CONSTANT_OP)
        nodes = tuple(n for n in plan.nodes if n not in constants) if constants else plan.nodes
        self.plan = plan = replace(plan, setup=plan.setup + constants, nodes=nodes)
        self._made = {
            ref.storage for node in plan.nodes if isinstance(node, AtenNode) for ref in _fresh(node, plan)
        }  # storages that forward's ATen calls allocate
        self._static: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self._live: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self._views: dict[TensorRef, Tensor] = {}
        self._stream = torch.cuda.current_stream().cuda_stream
        self._place(inputs)
        self.choice = [0] * len(plan.nodes)
        """Variant used at each node, for launches with several."""
        self._launches = [self._bind_any(node) if isinstance(node, LaunchNode) else None for node in plan.nodes]
        self._setup = [self._bind(node.variants[0]) if isinstance(node, LaunchNode) else None for node in plan.setup]
        self.authored = [i for i, node in enumerate(plan.nodes) if isinstance(node, LaunchNode)]
        self.computed = [i for i, node in enumerate(plan.nodes) if isinstance(node, AtenNode)]

    def _place(self, inputs: TaskInputs) -> None:
        """Find the address of every storage that has one before the run: the task's, and temporaries in our memory."""
        temps, sizes = [], []
        for i, storage in enumerate(self.plan.storages):
            if storage.kind == "temp":
                if i not in self._made:
                    temps.append(i)
                    sizes.append(storage.nbytes)
            else:
                tensor = inputs.inputs[storage.source] if storage.kind == "input" else inputs.state[storage.source]  # pyright: ignore
                self._static[i] = (tensor.untyped_storage(), int(tensor.storage_offset()) * tensor.element_size())
        scratch = scratch_bytes(self.plan, self._kernels)
        places = self._memory.lay_out([*sizes, *scratch])
        base = self._memory.block.untyped_storage()
        self._static.update({i: (base, offset) for i, offset in zip(temps, places, strict=False)})
        start = self._memory.block.data_ptr()
        self._scratch = [start + p if n else 0 for p, n in zip(places[len(temps) :], scratch, strict=True)]

    def _bind_any(self, node: LaunchNode) -> list[tuple[cuda_driver.Launch, list[tuple[Any, TensorRef]]]]:
        """The node's variants that this GPU can load; like autotuning, this skips those that need too much."""
        bound, refused = [], None
        for variant in node.variants:
            try:
                bound.append(self._bind(variant))
            except cuda_driver.CudaError as error:
                refused = error
        if not bound and refused:
            raise refused
        return bound

    def _bind(self, variant: Variant) -> tuple[cuda_driver.Launch, list[tuple[Any, TensorRef]]]:
        """A launch, and those of its pointers whose memory is allocated during the run."""
        source, kernel = self.plan.kernels[variant.kernel], self._kernels[variant.kernel]
        values: list[Any] = []
        late: list[tuple[Any, TensorRef]] = []
        given = [variant.args[name] for name in source.signature]
        if [isinstance(v, TensorRef) for v in given] != [kind.startswith("*") for kind in kernel.parameters]:
            raise cuda_driver.CudaError(f"{source.function}: the launch's arguments are not the kernel's")
        for kind, value in zip(kernel.parameters, given, strict=True):
            if isinstance(value, TensorRef):
                pointer = ctypes.c_uint64(0)
                if value.storage in self._static:
                    pointer.value = self._address(self._static[value.storage], value)
                else:
                    late.append((pointer, value))
                values.append(pointer)
            else:
                values.append(_scalar(kind, value))
        values += [ctypes.c_uint64(self._scratch[variant.kernel]), ctypes.c_uint64(0)]
        return cuda_driver.Launch(
            kernel.name, self._modules.function(kernel), variant.grid, 32 * kernel.num_warps, kernel.shared_bytes, values,
            cluster=source.num_ctas,
        ), late  # fmt: skip

    @staticmethod
    def _address(place: tuple[torch.UntypedStorage, int], ref: TensorRef) -> int:
        return place[0].data_ptr() + place[1] + ref.offset * getattr(torch, ref.dtype).itemsize

    def tensor(self, ref: TensorRef) -> Tensor:
        """A plan's view as a torch tensor over its memory."""
        if ref in self._views:
            return self._views[ref]
        storage, start = self._static.get(ref.storage) or self._live[ref.storage]
        dtype = getattr(torch, ref.dtype)
        view = torch.empty(0, dtype=dtype, device="cuda")
        view.set_(storage, start // dtype.itemsize + ref.offset, ref.shape, ref.stride)
        if ref.storage in self._static:
            self._views[ref] = view
        return view

    def prepare(self, poison: int) -> None:
        """Poison the memory and make the constructor's constants again."""
        self._memory.poison(poison)
        for node, launch in zip(self.plan.setup, self._setup, strict=True):
            if launch is None:
                store_aten(node, self.tensor, "cuda")  # pyright: ignore[reportArgumentType]
            else:
                self._launch(launch)

    def run(self, *, skip: int | None = None) -> None:
        """Queue forward's nodes on the current stream, except node `skip`."""
        self._live.clear()
        for i, (node, launches) in enumerate(zip(self.plan.nodes, self._launches, strict=True)):
            if i == skip:
                continue
            if launches is None:
                self._call(node)  # pyright: ignore[reportArgumentType]
            else:
                self._launch(launches[self.choice[i]])

    def forget(self) -> None:
        """Free the memory that ATen nodes allocated in the last run."""
        self._live.clear()

    def run_node(self, i: int) -> None:
        """Queue one node; those before it must have run."""
        launches = self._launches[i]
        if launches is None:
            self._call(self.plan.nodes[i])  # pyright: ignore[reportArgumentType]
        else:
            self._launch(launches[self.choice[i]])

    def held(self) -> tuple[list[Tensor], Any]:
        """Outputs of the run just queued or captured, and the memory that must stay alive for them."""
        outputs, alive = self.outputs(), dict(self._live)
        self._live = {}
        return outputs, alive

    def variants(self, i: int) -> int:
        """Number of variants of node `i`."""
        launches = self._launches[i]
        return len(launches) if launches else 1

    def outputs(self) -> list[Tensor]:
        """Forward's outputs, as views of the memory they are in."""
        return [self.tensor(ref) for ref in self.plan.outputs]

    def _launch(self, launch: tuple[cuda_driver.Launch, list[tuple[Any, TensorRef]]]) -> None:
        call, late = launch
        for pointer, ref in late:
            pointer.value = self._address(self._live[ref.storage], ref)
        call(self._stream)

    def _call(self, node: AtenNode) -> None:
        """Run one of forward's ATen nodes; memory that it allocates remains torch's."""
        for result, ref in zip(call_aten(node, self.tensor, "cuda"), node.outputs, strict=True):
            if ref is None or ref.storage not in self._made or ref.storage in self._live:
                continue
            if tuple(result.stride()) != ref.stride:
                result = torch.empty_strided(ref.shape, ref.stride, dtype=result.dtype, device="cuda").copy_(result)
            start = (int(result.storage_offset()) - ref.offset) * result.element_size()
            self._live[ref.storage] = (result.untyped_storage(), start)


def _fresh(node: AtenNode, plan: Plan) -> list[TensorRef]:
    """Outputs of an ATen node in newly allocated memory: temporaries that are none of its arguments."""
    given = {ref.storage for ref in _refs([*node.args, *node.kwargs.values()])}
    return [r for r in node.outputs if r is not None and r.storage not in given and plan.storages[r.storage].kind == "temp"]


def _refs(value: Any) -> list[TensorRef]:
    if isinstance(value, TensorRef):
        return [value]
    return [ref for item in value for ref in _refs(item)] if isinstance(value, (tuple, list)) else []


def _scalar(kind: str, value: Any) -> Any:
    """A scalar launch argument as a C value, by Triton's type name."""
    value = plain_value(value, "cuda")
    if kind == "f16":
        return (ctypes.c_char * 2)(*struct.pack("<e", value))
    if kind == "bf16":
        return (ctypes.c_char * 2)(*struct.pack("<f", value)[2:])
    return _SCALARS[kind](value)
