"""Records a module's forward as a plan: builds the module, calls it, and holds further calls against the first.

Used for candidates inside the sandbox and for references outside it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kernrl.tasks.task import FULL
from kernrl.verifier.base.compat import no_torch_functions
from kernrl.verifier.base.nested import flatten, nesting
from kernrl.verifier.plan.plan import (
    KernelSource,
    Node,
    Plan,
    TraceSpec,
    tensor_specs,
)
from kernrl.verifier.trace import running_statistics
from kernrl.verifier.trace.call_arguments import arguments, computed, keywords, parameter, partly_computed, sliced, whole
from kernrl.verifier.trace.finish_plan import derived_from_state, finish, move_to_forward, needed_setup
from kernrl.verifier.trace.parameters import bind_state
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.state import guards, other_modes, other_names, other_programs, untouched
from kernrl.verifier.trace.state.counts_ahead import aheads, set_ahead, set_names_ahead
from kernrl.verifier.trace.state.other_shapes import Earlier, check_other_shapes
from kernrl.verifier.trace.state.own_methods import check_methods
from kernrl.verifier.trace.state.python_state import changed, kept, remembered
from kernrl.verifier.trace.state.repeat_calls import (
    AGAIN,
    WITH_GRADIENTS,
    Call,
    DoesSomethingElse,
    check_calls,
    check_other_mode,
    check_same,
    check_state,
)
from kernrl.verifier.trace.untraceable import Untraceable, none_swallowed

_OTHERWISE = f"{AGAIN} with inputs that are parts of larger tensors, or that are passed by name"


def record_forward(
    cls: type,
    spec: TraceSpec,
    recorder: Recorder,
    kernels: list[KernelSource],
    *,
    again: bool = False,
    earlier: list[Earlier] | None = None,
) -> Plan:
    """The plan of `cls(*init_inputs).forward(*inputs)`. Call it within `recording(recorder)`.

    `kernels` is filled by launches while forward runs. `again`: check that further calls do the same, also after one at the
    shapes of `earlier`, to which these are added. Raises Untraceable, and whatever `cls` raises.
    """
    with none_swallowed() if again else contextlib.nullcontext():
        model = cls(*spec.init_inputs)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{cls.__name__} is no torch.nn.Module")
    if again and type(model) is not cls:
        raise Untraceable(f"{cls.__name__}(...) makes a {type(model).__name__}, another class: define one class, ModelNew")
    if again and cls.__call__ is not torch.nn.Module.__call__:
        raise Untraceable(f"{cls.__name__} has a __call__ of its own: write the work in forward()")
    if again:
        check_methods(model, cls.__module__)
    unmatched = bind_state(model, spec, recorder)
    _set_mode(model, spec)
    setup, recorder.nodes = recorder.nodes, []
    recorder.statistics = {recorder.ref(place.own).storage for place in running_statistics.places(model)}
    derived = derived_from_state(setup, recorder)
    inputs = arguments(spec, whole(recorder))
    first = _call(model, inputs, recorder, strict=again)
    recorder.nesting = first.nesting
    count, outputs = len(kernels), tuple(first.outputs)
    if again:
        _call_again(model, spec, recorder, kernels, setup, first, inputs, earlier if earlier is not None else [])
    recorder.nodes = list(first.nodes)
    setup = move_to_forward(setup, derived, recorder, outputs)
    if again:
        outputs += running_statistics.returned(spec, recorder, kernels[:count])
    return finish(spec, recorder, needed_setup(setup, recorder, outputs, unmatched), outputs, kernels[:count])


def _call(
    model: torch.nn.Module,
    inputs: list[Any],
    recorder: Recorder,
    *,
    strict: bool,
    gradients: Callable[[], Any] = torch.no_grad,
    names: Sequence[str] = (),
) -> Call:
    """Call a module. `strict`: refuse what a candidate may not do to its inputs and outputs. `gradients`: torch's mode.

    `names`: those of the last inputs, which are passed by these.
    """
    recorder.nodes, start = [], len(recorder.storages)
    before, running = _places(inputs, recorder), running_statistics.places(model)
    with gradients(), guards.inside_forward(), none_swallowed() if strict else contextlib.nullcontext():
        on = torch.is_grad_enabled()
        by_position = len(inputs) - len(names)
        returned = model(*inputs[:by_position], **dict(zip(names, inputs[by_position:], strict=True)))
        if strict and torch.is_grad_enabled() is not on:
            raise Untraceable("forward() leaves gradients switched on or off: use torch.no_grad() as a context")
    running_statistics.settle(running, recorder)
    returned_as = recorder.ref if strict else recorder.arg  # a reference's are what they are read as
    tensors = list(_outputs(returned, inputs, recorder, strict=strict))
    outputs = tuple(returned_as(t) for t in tensors)
    if strict and _places(inputs, recorder) != before:
        raise Untraceable("forward() changes what an input stands for (its memory, shape or attributes): leave inputs alone")
    if strict:
        _check_handed(recorder, recorder.handed[-1:])
        recorder.handed.append(([*_leaves(inputs), *tensors], [*before, *_places(tensors, recorder)]))
    given = [place[0].storage for place in before]
    return Call(given, recorder.nodes, outputs, start, len(recorder.storages), nesting(returned))


def _check_handed(recorder: Recorder, calls: Sequence[tuple[list[torch.Tensor], list[Any]]]) -> None:
    """Raise Untraceable if inputs and outputs of earlier calls, which are their caller's, stand for something else by now."""
    for tensors, before in calls:
        if _places(tensors, recorder) != before:
            raise Untraceable(
                "forward() changes what an input or output of an earlier call stands for (its memory or shape): keep none of "
                "them for later calls"
            )


def _places(inputs: list[Any], recorder: Recorder) -> list[tuple[Any, ...]]:
    """Of each input tensor: its view, its memory's bytes, what autograd knows of it, and how many attributes it has."""
    with no_torch_functions():
        found: list[tuple[Any, ...]] = []
        for t in _leaves(inputs):
            memory = t.untyped_storage()
            found.append((recorder.ref(t), memory.nbytes(), t.requires_grad, _has_gradient(t), len(vars(t)), len(vars(memory))))
        return found


def _call_again(
    model: torch.nn.Module,
    spec: TraceSpec,
    recorder: Recorder,
    kernels: list[KernelSource],
    setup: list[Node],
    first: Call,
    inputs: list[Any],
    earlier: list[Earlier],
) -> None:
    """Hold further calls against the first (`repeat_calls`), and what the module remembers after them."""
    if spec.nesting and first.nesting != spec.nesting:
        raise Untraceable(f"forward() returns {first.nesting}, and the reference {spec.nesting}: return the same structure")

    usual = spec.input_set == FULL  # the sizes that users have
    home = type(model).__module__
    named = functools.partial(other_names.as_another, home, other_names.others())

    @contextlib.contextmanager
    def script() -> Iterator[None]:
        with other_names.as_script(home), other_modes.varied(recorder, _float_type(spec)), other_programs.trained(model):
            yield

    # in use, gradients are on unless somebody turns them off
    modes = grad, inference, no_grad = torch.enable_grad, torch.inference_mode, torch.no_grad
    # What is remembered is looked at after each part. A count that comes round in one must be seen in another, whichever of the
    # modes it moves in, under a name, as a script or in both: so no part has two calls of one kind, and one has a single call.
    if usual:
        ways = [
            [(named, grad)],
            [(named, inference), (script, grad)],
            [(named, no_grad), (script, inference)],
            [(script, no_grad)],
        ]
    else:
        ways = [[(script, no_grad)], [(named, grad), (script, inference)]]

    names = keywords(model, spec)

    def call(
        given: list[Any],
        place: Callable[[], Any] = contextlib.nullcontext,
        gradients: Callable[[], Any] = torch.no_grad,
        of: torch.nn.Module = model,
    ) -> Call:
        by_name = names if place is named and gradients is no_grad else ()
        with place():
            try:
                return _call(of, given, recorder, strict=True, gradients=gradients, names=by_name)
            except Untraceable:
                raise
            except Exception:  # perhaps it takes no such inputs, and says so: nothing wrong is returned
                given = arguments(spec, whole(recorder))
            try:
                return _call(of, given, recorder, strict=True, gradients=gradients)
            except Untraceable:
                raise
            except Exception:  # perhaps it is for inference alone, and says so
                return _call(of, given, recorder, strict=True)

    def fresh() -> list[Any]:
        return arguments(spec, sliced(recorder))

    def again(given: list[Any]) -> Call:
        return call(given, script, next(gradients))

    def check_way(later: Call, expected: Call, when: str) -> None:
        try:
            check_same(later, expected, recorder, kernels, when)
        except DoesSomethingElse:
            if with_gradients(expected):
                raise Untraceable(WITH_GRADIENTS) from None
            raise

    def with_gradients(expected: Call) -> bool:
        """Whether calls differ with gradients, or with frozen parameters, and agree otherwise: a reason that authors know."""

        def differs(mode: Any = no_grad, *, frozen: bool = False, needed: bool = False) -> bool:
            recorder.frozen, given = frozen, arguments(spec, whole(recorder))
            for tensor in _leaves(given) if needed else ():
                tensor.requires_grad_(tensor.is_floating_point())
            try:
                check_same(call(given, gradients=mode), expected, recorder, kernels)
            except Exception:
                return True
            finally:
                recorder.frozen = False
            return False

        ways: list[dict[str, Any]] = [{"mode": grad}, {"frozen": True}, {"mode": grad, "needed": True}]
        return any(differs(**one) and differs(**one) for one in ways) and not differs()

    def check_ways(expected: Call, given: list[Any]) -> Call:
        """Forward may be called in several ways, and whatever is counted in one of them must decide nothing; the last call."""
        last = expected

        def call_in(part: list[tuple[Any, Any]]) -> None:
            nonlocal last
            for way in part:
                # at first what was given before, which may be kept as the latest, and at the end, when it is not
                on_given = way is ways[-1][-1] or (usual and way is ways[0][0])
                last = call(given if on_given else fresh(), *way)
                check_way(last, expected, AGAIN if on_given else _OTHERWISE)

        moved = _moved(model, [functools.partial(call_in, part) for part in ways])
        if usual:
            check_tables(expected)
        if not moved:
            return last
        for ahead in aheads():
            if others := set_ahead(model, moved, ahead):
                raise Untraceable(
                    f"forward() keeps a count or a history ({others[0]}), by which later calls may do something else"
                )
            check_calls(again, fresh, expected, fresh(), recorder, kernels)
        for answer in (True, False):
            set_ahead(model, moved, 0, answer)
            check_calls(again, fresh, expected, fresh(), recorder, kernels)
        set_ahead(model, moved, 0)
        return last

    tables = untouched.library_tables() if usual else {}

    def check_tables(expected: Call) -> None:
        """What libraries hold must be as it was before a round of calls, or another one: no change of theirs comes round."""
        nonlocal tables
        for further in (itertools.chain(*ways), ()):
            before, tables = tables, untouched.library_tables()
            if not (moved := changed(before, tables)):
                return
            for way in further:
                check_same(call(fresh(), *way), expected, recorder, kernels)
        raise Untraceable(f"forward() keeps a count or a history ({moved[0]}), by which later calls may do something else")

    gradients = itertools.cycle(modes)
    last = check_ways(first, inputs)
    check_state(setup, first.nodes, recorder, kernels)
    mine = Earlier.of(spec, first, last, kernels)

    def construct() -> Callable[[TraceSpec], Call]:
        other = _another(model, spec, recorder)
        bind_state(other, spec, recorder)
        _set_mode(other, spec)
        return lambda at: _call(other, arguments(at, whole(recorder)), recorder, strict=True)

    def check_in_a_program(expected: Call) -> None:
        """A copy of the module has to do the same; or the module itself, where it cannot be copied."""
        for other, copies in (*other_programs.copies(model, recorder), (model, {})):
            other_programs.put_in_a_program(other, recorder)
            try:
                later = call(arguments(spec, partly_computed(spec, recorder)), gradients=grad, of=other)
            except Untraceable:
                raise
            except Exception:
                if other is model:
                    raise
                continue  # nothing wrong is returned
            other_programs.check_own_state(later, copies, recorder, kernels)
            check_same(later, expected, recorder, kernels, f"{AGAIN} {other_programs.IN_A_PROGRAM}", copies)
            return

    # a constructor that counts at other sizes counts nothing of theirs
    if usual and (counted := _counts_objects(model, spec, recorder)):
        for ahead in aheads():
            set_names_ahead(model, counted, ahead)
            check_other_shapes(mine, [mine], construct, kernels)
    check_other_shapes(mine, earlier, construct, kernels)
    earlier.append(mine)
    latest = first
    if spec.modes_differ is not None:
        modes_of_parts = [(part, part.training) for part in model.modules()]
        model.train(not spec.training)
        mode = "eval" if spec.training else "train"
        given = fresh()
        later = check_other_mode(call, given, first, recorder, kernels, mode=mode, differs=spec.modes_differ)
        if later is None:
            for part, training in modes_of_parts:
                part.training = training
        elif usual:
            check_ways(later, given)
        latest = later or first
    if usual:  # at the end, since autograd may leave a history on what a module keeps
        place = random.SystemRandom().choice((named, script))
        check_way(call(arguments(spec, computed(recorder)), place, grad), latest, f"{AGAIN} on inputs that need gradients")
        check_in_a_program(latest)
        # last of all: a parameter that a module keeps is its own from then on, and takes no other tensor's place
        later = call(arguments(spec, parameter(recorder)), place, inference)
        check_same(later, latest, recorder, kernels, f"{AGAIN} on parameters")
    _check_handed(recorder, recorder.handed)


def _moved(model: torch.nn.Module, parts: Sequence[Callable[[], None]]) -> list[str]:
    """What a part of a round of calls leaves otherwise than it found it: counts, and what grows; not what only the first round
    makes, such as a table for each way of calling."""
    found: list[str] = []
    before = _remembered(model)
    for _ in range(2):
        found = []
        for call in parts:
            call()
            after = _remembered(model)
            found += changed(before, after)
            before = after
        if not found:  # another round would be this one over again
            break
    return [*dict.fromkeys(found)]


def _remembered(model: torch.nn.Module) -> dict[str, Any]:
    return remembered(model) | untouched.library_names()


def _another(model: torch.nn.Module, spec: TraceSpec, recorder: Recorder) -> torch.nn.Module:
    """Another object of the module's class."""
    recorder.nodes = []  # a value that the constructor reads may depend on none of forward's
    return type(model)(*spec.init_inputs)


def _counts_objects(model: torch.nn.Module, spec: TraceSpec, recorder: Recorder) -> list[str]:
    """Where the constructor counts the objects made: whoever makes several gets the same every time.

    Raises Untraceable for a count that cannot be set."""
    _another(model, spec, recorder)  # what is made with the first objects, such as a table, is there now
    before = kept(model)
    _another(model, spec, recorder)
    moved = changed(before, kept(model))
    if left := set_names_ahead(model, moved, 0):
        raise Untraceable(
            f"the constructor keeps a count or a history ({left[0]}), by which later objects may do something else"
        )
    return moved


def _set_mode(model: torch.nn.Module, spec: TraceSpec) -> None:
    """In the reference's mode. Where it is already, its parts keep their own: a batch norm may be frozen when it is made."""
    if model.training != spec.training:
        model.train(spec.training)


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


def _float_type(spec: TraceSpec) -> torch.dtype:
    """The type of the first input of floating point."""
    types = (getattr(torch, one.dtype) for one in tensor_specs(spec.inputs))
    return next((one for one in types if one.is_floating_point), torch.float32)


def _outputs(value: Any, inputs: list[Any], recorder: Recorder, *, strict: bool) -> Iterator[torch.Tensor]:
    for leaf in flatten(value):
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"forward returns a {type(leaf).__name__}, not tensors")
        if recorder.is_cpu(leaf):
            raise ValueError("forward returns a CPU tensor: make it with device=x.device")
        if any(leaf is one for one in _leaves(inputs)):  # the plan's checks say of an input that it is one
            yield leaf
            continue
        if strict and type(leaf) is torch.nn.Parameter:
            raise Untraceable("forward() returns a parameter: return a plain tensor, such as a copy of it")
        if strict and (type(leaf) is not torch.Tensor or vars(leaf) or vars(leaf.untyped_storage()) or _has_gradient(leaf)):
            raise Untraceable("forward() returns a tensor with a class or attributes of its own: return plain tensors")
        yield leaf


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and tensor.grad is not None
