"""The TraceSpec and the Plan of a task's reference, which is trusted; made on tensors without memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from kernrl.errors import UsageError
from kernrl.tasks.no_autocast import without_autocast
from kernrl.tasks.task import InputSet, Reference, Task, load_reference
from kernrl.verifier.base.precision import COMPUTE_DTYPE, cast_dtype, is_float8
from kernrl.verifier.plan.plan import Arg, AtenNode, Plan, Special, TensorSpec, TraceSpec
from kernrl.verifier.trace.finish_plan import reads, writes
from kernrl.verifier.trace.record_forward import record_forward
from kernrl.verifier.trace.recorder import Recorder, dtype_name
from kernrl.verifier.trace.recording import recording
from kernrl.verifier.trace.untraceable import ADVICE, Untraceable, without_shape

DEEPEST = 4
"""Objects of settings inside one another that are read."""

T = TypeVar("T")


def spec_of(task: Task, input_set: InputSet, precision: str, target: str) -> TraceSpec:
    """Shapes and dtypes of a task at one input set, under one precision policy. Cached.

    Raises UsageError if the task's source does not run, or if it has inputs of an unsupported type.
    """
    if precision not in COMPUTE_DTYPE:
        raise UsageError(f"precision {precision!r} is none of {', '.join(COMPUTE_DTYPE)}.")
    return _spec(task.id, task.pytorch_code, input_set.name, tuple(sorted(input_set.constants.items())), precision, target)


def judged_spec_of(task: Task, input_set: InputSet, precision: str, target: str) -> TraceSpec:
    """`spec_of`, and what else candidates are held to: how outputs are nested, and whether train and eval differ. Cached."""
    spec = spec_of(task, input_set, precision, target)
    constants = tuple(sorted(input_set.constants.items()))
    nesting, differ = _behaviour(task.id, task.pytorch_code, input_set.name, constants, precision, target)
    return dataclasses.replace(spec, nesting=nesting, modes_differ=differ)


@functools.lru_cache(maxsize=4096)
def _behaviour(
    task_id: str, source: str, name: str, constants: tuple[tuple[str, int], ...], precision: str, target: str
) -> tuple[str, bool | None]:
    """How the reference nests its outputs, and whether it does the same in train and eval mode."""
    nesting = ""
    try:
        plan, nesting = _recorded(task_id, source, name, constants, precision, target)
        other, _ = _recorded(task_id, source, name, constants, precision, target, other_mode=True)
    except _REFUSED:
        return nesting, None
    return nesting, plan != other


_REFUSED = (RuntimeError, TypeError, ValueError, NotImplementedError)
"""What recording raises for a reference that cannot be traced."""


@functools.lru_cache(maxsize=64)  # the plans of a task are asked for together
def _recorded(
    task_id: str, source: str, name: str, constants: tuple[tuple[str, int], ...], precision: str, target: str,
    *, other_mode: bool = False,
) -> tuple[Plan, str]:  # fmt: skip
    """The reference's forward as a plan, and how it nests its outputs; `other_mode`: in eval for train, or train for eval.

    Raises one of `_REFUSED` if the forward depends on tensor values.
    """
    spec = _spec(task_id, source, name, constants, precision, target)
    if other_mode:
        spec = dataclasses.replace(spec, training=not spec.training)
    recorder = Recorder()
    with without_autocast():
        reference = load_reference(Task(id=task_id, pytorch_code=source), InputSet(name, dict(constants)))
        with recording(recorder):
            plan = record_forward(_with_momentum(reference.Model), spec, recorder, [])
    return plan, recorder.nesting


def _with_momentum(model: Any) -> Any:
    """A reference whose batch norms have a momentum: without one they read how many batches there were, and no tensor that is
    recorded has numbers. Nothing that is asked of the plan depends on it."""

    @functools.wraps(model, updated=())
    def made(*args: Any) -> torch.nn.Module:
        module = model(*args)
        for part in module.modules():
            if isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.momentum is None:
                part.momentum = 1.0
        return module

    return made


def reference_plan(task: Task, input_set: InputSet, precision: str, target: str) -> Plan:
    """The reference's forward as a plan of ATen calls, to price it and to show it.

    Raises UsageError if the reference's forward depends on tensor values.
    """
    spec_of(task, input_set, precision, target)  # its complaints are sentences already
    constants = tuple(sorted(input_set.constants.items()))
    try:
        plan = _recorded(task.id, task.pytorch_code, input_set.name, constants, precision, target)[0]
    except _REFUSED as error:
        raise UsageError(f"{task.id}: the reference cannot be traced: {_why(error)}") from error
    if drawing := _random_op(plan):
        raise UsageError(
            f"{task.id}: the reference draws random numbers ({drawing}), and no answer can be compared with those: "
            "draw them in get_inputs, or call eval() in the constructor."
        )
    return plan


def _random_op(plan: Plan) -> str:
    """An operator that draws what an output depends on; '' if none does."""
    wanted = {ref.storage for ref in plan.outputs}
    for node in reversed(plan.nodes):
        if writes(node) & wanted:
            wanted |= reads(node)
            if isinstance(node, AtenNode) and _draws(node.op):
                return node.op
    return ""


def _draws(op: str) -> bool:
    """Whether an operator's result depends on a seed."""
    name, _, overload = op.removeprefix("aten.").partition(".")
    packet = getattr(torch.ops.aten, name, None)
    found = getattr(packet, overload or "default", None)
    return found is not None and torch.Tag.nondeterministic_seeded in found.tags


_NEEDS_VALUES = "the sizes and the path of a forward must not depend on the numbers in tensors"


def _why(error: Exception) -> str:
    """A sentence for what recording a reference raised: torch's own of tensors without memory are of use to its developers."""
    text = str(error)
    if text.endswith(ADVICE):  # to who writes a candidate
        return f"{text.removesuffix(ADVICE)}; {_NEEDS_VALUES}"
    if text.startswith("Unsupported dtype"):  # of a Fourier transform
        return f"torch.fft has no {text.split()[-1]} numbers: leave --precision out, or cast in forward"
    if operator := without_shape(error):
        named = operator.replace("aten::", "torch.").removesuffix("()")
        return f"torch does not know what {named} returns without numbers; {_NEEDS_VALUES}"
    return text


def outputs_of(task: Task, input_set: InputSet, precision: str, target: str) -> tuple[TensorSpec, ...]:
    """The reference's outputs, flattened, as `checks.check_plan` compares them. Cached."""
    return _outputs(task.id, task.pytorch_code, input_set.name, tuple(sorted(input_set.constants.items())), precision, target)


@functools.lru_cache(maxsize=4096)
def _outputs(
    task_id: str, source: str, name: str, constants: tuple[tuple[str, int], ...], precision: str, target: str
) -> tuple[TensorSpec, ...]:
    plan = reference_plan(Task(id=task_id, pytorch_code=source), InputSet(name, dict(constants)), precision, target)
    return tuple(TensorSpec(o.dtype, o.shape, o.stride) for o in plan.outputs)


@functools.lru_cache(maxsize=4096)
def _spec(
    task_id: str, source: str, name: str, constants: tuple[tuple[str, int], ...], precision: str, target: str
) -> TraceSpec:
    task = Task(id=task_id, pytorch_code=source)
    reference = load_reference(task, InputSet(name, dict(constants)))
    init_inputs = _without_memory(reference.get_init_inputs)
    inputs = _without_memory(reference.get_inputs)

    def build() -> torch.nn.Module:
        return reference.Model(*init_inputs)

    model = _build(task_id, build, reference)
    state: dict[str, TensorSpec] = {}
    seen: set[int] = set()
    for key, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            # the policy's cast of a module takes float8 along
            state[key] = _tensor_spec(tensor.float() if is_float8(tensor.dtype) else tensor, precision)
    return TraceSpec(
        input_set=name,
        init_inputs=tuple(_setting(v, precision, task_id) for v in init_inputs),
        inputs=tuple(_arg(v, precision, task_id) for v in inputs),
        state=state,
        training=model.training,
        precision=precision,
        target=target,
        names=tuple(n for n, p in inspect.signature(model.forward).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD),
    )


def _build(task_id: str, build: Callable[[], torch.nn.Module], reference: Reference) -> torch.nn.Module:
    try:
        return _without_memory(build)
    except Exception as error:
        raise UsageError(f"{task_id}: Model(*get_init_inputs()) raises {type(error).__name__}: {error}") from error


def _without_memory(make: Callable[[], T]) -> T:
    """Call `make` on meta tensors, or on real ones if it needs a value, as some constructors do."""
    try:
        with recording(Recorder()):
            return make()
    except (Untraceable, NotImplementedError, RuntimeError):
        return make()


def _tensor_spec(tensor: torch.Tensor, precision: str) -> TensorSpec:
    return TensorSpec(dtype_name(cast_dtype(tensor.dtype, precision)), tuple(tensor.shape), tuple(tensor.stride()))


def _setting(value: Any, precision: str, task_id: str, outer: tuple[object, ...] = ()) -> Arg:
    """An argument of the constructor: also an object that holds settings, of which a candidate gets the plain values.

    `outer`: the objects that it was found in, which it may hold in turn.
    """
    try:
        return _arg(value, precision, task_id)
    except UsageError:
        settings = _settings(value)
        if not settings or len(outer) == DEEPEST or any(one is value for one in outer):
            raise
    found = SimpleNamespace()
    for name, held in settings.items():
        with contextlib.suppress(UsageError):  # a candidate that reads it gets an AttributeError
            setattr(found, name, _setting(held, precision, task_id, (*outer, value)))
    return found


def _settings(value: Any) -> dict[str, Any]:
    """The public attributes of an object that is neither a function nor a value of a library (a path, a date, a number of
    numpy), less its methods and what cannot be read."""
    library = type(value).__module__.partition(".")[0]
    is_value = library in sys.stdlib_module_names and not hasattr(value, "__dict__")
    if callable(value) or is_value or library in ("builtins", "torch", "numpy"):
        return {}
    found: dict[str, Any] = {}
    for name in dir(value):
        if not name.startswith("_"):
            with contextlib.suppress(Exception):  # a property may raise
                found[name] = getattr(value, name)
    return {name: held for name, held in found.items() if not callable(held)}


def _arg(value: Any, precision: str, task_id: str) -> Arg:
    if isinstance(value, torch.Tensor):
        return _tensor_spec(value, precision)
    if isinstance(value, list | tuple):
        return type(value)(_arg(v, precision, task_id) for v in value)
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _arg(v, precision, task_id) for name, v in value.items()}
    if isinstance(value, torch.dtype):
        return Special("dtype", dtype_name(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"{task_id}: an input of type {type(value).__name__} is not supported: use tensors, numbers, strings, lists, dicts."
    )
