"""Prepares tasks beside the lanes, in a process without answers, inputs or candidates.

Inductor works for seconds on a baseline. It needs shapes and a GPU's properties, not the GPU's memory: here the reference gets
tensors that have the sizes of the lanes' tensors, and one byte of memory for each storage. What is compiled for them lands in
Inductor's folder on disk, where the lanes' processes find it by graph, precision flags, GPU and versions.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernrl.errors import UsageError
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base import cuda_driver
from kernrl.verifier.base.compat import storage_key
from kernrl.verifier.base.gpu_memory_limit import limit_gpu_memory
from kernrl.verifier.base.nested import flatten, rebuild
from kernrl.verifier.base.precision import policy_flags
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.memory_estimate import SetMemory, rehearse, without_contents
from kernrl.verifier.replay.compiled_reference import CompiledReference, warm_up

log = logging.getLogger(__name__)

COMPILING_BYTES = 256 << 20
"""Most that a process takes of the GPU's memory while it compiles. What needs more, since it measures, is left to the lane."""

Claim = Callable[[int], Tensor]
"""A uint8 tensor of so many bytes on the GPU, whose memory is never touched."""


class TaskPreparer:
    """The process's commands."""

    def __init__(self) -> None:
        self._on_gpu = False

    def healthy(self) -> bool:
        """Whether CUDA still works here, if it has been used."""
        return not self._on_gpu or cuda_driver.works()

    def use_gpu(self) -> None:
        """Set up CUDA, which disturbs what others time, before the first `compile`."""
        torch.cuda.set_stream(torch.cuda.Stream())  # as in the lanes
        limit_gpu_memory(COMPILING_BYTES, lambda: None)
        cuda_driver.claimed(1)
        self._on_gpu = True

    def warm_up(self) -> None:
        """Make ready for the first `compile`."""
        warm_up()

    def memory(self, task: Task, precision: str, names: Sequence[str]) -> dict[str, SetMemory | None]:
        """What each of those input sets takes; None where its reference cannot be rehearsed. Allocates nothing."""
        return {name: self._rehearsed(task, precision, name) for name in names}

    @staticmethod
    def _rehearsed(task: Task, precision: str, name: str) -> SetMemory | None:
        input_set = task.input_set(name)
        assert input_set is not None
        try:
            return rehearse(task, input_set, precision)
        except UsageError:
            raise
        except Exception as error:  # whatever a reference does on tensors without contents
            log.info("%s: its memory is guessed at the %s set: %s", task.id, name, error)
            return None

    def compile(self, task: Task, precision: str, baselines: Sequence[str]) -> None:
        """Have Inductor compile these baselines into its folder. What cannot be compiled in this way, or at all, is left to the
        lane, which says why."""
        input_set = task.input_set(FULL)
        assert input_set is not None
        with contextlib.suppress(Exception):
            compile_without_memory(task, input_set, precision, baselines, cuda_driver.claimed)
        torch.compiler.reset()


def compile_without_memory(task: Task, input_set: InputSet, precision: str, baselines: Sequence[str], claim: Claim) -> None:
    """Compile a task's baselines for inputs that have sizes and no memory."""
    with without_contents():
        inputs = TaskInputs(task, input_set, precision, "meta")
    module, arguments = claimed(inputs, claim)
    for name in baselines:
        reference = CompiledReference(module, name)
        with policy_flags(precision, autotune=True), torch.no_grad():
            reference.compile(arguments)


def claimed(inputs: TaskInputs, claim: Claim) -> tuple[nn.Module, list[object]]:
    """The module and forward's arguments of inputs on the meta device, with tensors of the same layout in claimed memory."""
    blocks: dict[int, Tensor] = {}
    made: dict[int, Tensor] = {}

    def on_gpu(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            key = storage_key(tensor)
            if key not in blocks:
                blocks[key] = claim(max(1, tensor.untyped_storage().nbytes()))
            block = blocks[key]
            view = torch.empty(0, dtype=tensor.dtype, device=block.device)
            view.set_(block.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
            as_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(view, requires_grad=tensor.requires_grad) if as_parameter else view
        return made[id(tensor)]

    for module in inputs.module.modules():
        tables: list[Any] = [module._parameters, module._buffers, vars(module)]
        for table in tables:
            table.update({name: on_gpu(value) for name, value in table.items() if isinstance(value, Tensor)})
    leaves = [on_gpu(leaf) if isinstance(leaf, Tensor) else leaf for leaf in flatten(inputs.arguments)]
    return inputs.module, rebuild(inputs.arguments, leaves)
