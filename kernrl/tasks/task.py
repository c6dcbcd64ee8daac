"""Task: a PyTorch reference, the shapes it is asked at, and how to run it.

A task keeps KernelBench's contract: its source defines `Model`, `get_inputs` and `get_init_inputs`, and an answer
defines `ModelNew` with the same constructor and `forward`. Shapes are module-level constants of that source, whole numbers
and tuples of them, so an input set is nothing but other values for those constants.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernrl.errors import UsageError
from kernrl.tasks.constants import Constant, override_constants
from kernrl.tasks.eval_mode import judged_mode
from kernrl.tasks.init_arguments import in_order

FULL, SMALL, RAGGED = "full", "small", "ragged"
"""Names of input sets: the source as written (timed), sizes an interpreter can manage, and sizes that divide by nothing."""


@dataclass(frozen=True, slots=True)
class InputSet:
    """One choice of shapes: values for module-level constants of the task's source."""

    name: str
    """`full`, `small`, `ragged`, or any other name."""
    constants: Mapping[str, Constant] = field(default_factory=dict)
    """Constant name → value. `full` overrides nothing."""
    derived: bool = False
    """Found by rescaling the source's numbers, where the task itself states no set of that name."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A worked Triton answer to a task, written by rule."""

    style: str
    triton_code: str


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked: a reference module with its shapes, and where it came from."""

    id: str
    pytorch_code: str
    level: int = 2
    name: str = ""
    family: str = ""
    """The kind of producer the program starts from, such as `linear` or `conv2d`."""
    composition: tuple[str, ...] = ()
    """The op sequence, which alone decides the split."""
    split: str = ""
    """`train`, `validation` or `heldout`; the split of the dataset it was read from; or empty."""
    instruction: str = ""
    precision: str = "fp32"
    """Default precision policy: fp32, tf32, bf16 or fp16."""
    input_sets: tuple[InputSet, ...] = (InputSet(FULL),)
    same_numbers: tuple[InputSet, ...] = ()
    """Derived sets at which every number of the task (a scale, the divisor of a mean) is what it is at full size; none where
    that holds for the derived ones of `input_sets`."""
    solutions: tuple[Solution, ...] = ()

    def input_set(self, name: str) -> InputSet | None:
        """The input set of that name, or None."""
        return next((s for s in self.input_sets if s.name == name), None)

    def source_at(self, input_set: InputSet) -> str:
        """The reference's source with the input set's constants written in."""
        return override_constants(self.pytorch_code, input_set.constants, where=self.id)


def task_fingerprint(task: Task) -> str:
    """Hash of a task's source and shapes, but not its name."""
    sets = [[s.name, sorted(s.constants.items()), *(["derived"] if s.derived else [])] for s in task.input_sets]
    others = [[sorted(s.constants.items()) for s in task.same_numbers]] if task.same_numbers else []
    return hashlib.sha256(json.dumps([task.pytorch_code, sets, *others]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reference:
    """A task's source, executed: the callables of KernelBench's contract."""

    Model: Callable[..., Any]
    get_inputs: Callable[[], Sequence[Any]]
    get_init_inputs: Callable[[], Sequence[Any]]


def load_reference(task: Task, input_set: InputSet | None = None) -> Reference:
    """Execute a task's source (trusted code: tasks are the user's own) at one input set.

    Raises UsageError, with the task's id, when the source does not run or lacks a part of the contract.
    """
    source = task.source_at(input_set or InputSet(FULL))
    filename = f"<task {task.id}>"
    module = types.ModuleType("kernrl_task")
    module.__file__ = filename
    # inspect.getsource and tracebacks find the text here; nothing is written to disk
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules.setdefault(module.__name__, module)
    try:
        exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)  # less this file's `annotations`
    except Exception as error:
        alone = isinstance(error, ModuleNotFoundError)
        hint = ". A task is one file: what it imports must be installed, or on PYTHONPATH" if alone else ""
        raise UsageError(f"{task.id}: the task's source does not run: {type(error).__name__}: {error}{hint}") from error
    parts = [module.__dict__.get(name) for name in ("Model", "get_inputs", "get_init_inputs")]
    missing = [name for name, part in zip(("Model", "get_inputs", "get_init_inputs"), parts, strict=True) if part is None]
    if missing:
        raise UsageError(f"{task.id}: the task's source defines no {' and no '.join(missing)}.")
    for name, part in zip(("Model", "get_inputs", "get_init_inputs"), parts, strict=True):
        if not callable(part):
            raise UsageError(f"{task.id}: the task's source sets {name} to {part!r:.40}: give that another name.")
    model, get_inputs, get_init_inputs = parts

    def arguments() -> Any:
        given = get_init_inputs()  # pyright: ignore[reportOptionalCall]
        try:
            return in_order(model, given)
        except TypeError as error:
            raise UsageError(f"{task.id}: get_init_inputs does not fit Model: {error}.") from error

    return Reference(judged_mode(model, source), get_inputs, arguments)  # pyright: ignore[reportArgumentType]
