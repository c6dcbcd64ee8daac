"""Inside the sandbox: run a candidate on tensors without memory and say what it would launch.

Nothing in this process is trusted once the candidate's module has been executed; its answer is decoded and checked by
`plan.decode` and `checks.check_plan` elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import linecache
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator
from typing import Any

import torch
import triton

from kernrl.verifier import pretend
from kernrl.verifier.launches import Launches
from kernrl.verifier.plan import (
    AtenNode,
    LaunchNode,
    Node,
    Plan,
    TensorRef,
    TensorSpec,
    TraceSpec,
    decode_spec,
    encode,
    tensor_specs,
    walk_refs,
)
from kernrl.verifier.recorder import CUDA, Recorder, Untraceable
from kernrl.verifier.zygote import Channel

_launches: Launches | None = None

_WARM_UP = '''
import torch, triton
import triton.language as tl
@triton.autotune([triton.Config({"B": 16}), triton.Config({"B": 32})], key=["n"])
@triton.jit
def k(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i[:, None] * B + i[None, :], mask=i[None, :] < n, other=0.0)
    tl.store(y + i, tl.sum(tl.exp(tl.dot(a, a)), 1))
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.gn = torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4)
        self.linear, self.up = torch.nn.Linear(4, 4), torch.nn.ConvTranspose2d(4, 4, 3)
    def forward(self, x):
        x = torch.nn.functional.max_pool2d(self.up(self.gn(self.bn(self.conv(x)))), 2).mean((2, 3))
        y = torch.empty_like(x)
        k[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](self.linear(x), y, x.numel())
        return y
'''
_WARM_UP_STATE = {
    "conv.weight": (4, 4, 3, 3), "conv.bias": (4,), "linear.weight": (4, 4), "linear.bias": (4,),
    "up.weight": (4, 4, 3, 3), "up.bias": (4,),
}  # fmt: skip


def _dense(*shape: int) -> TensorSpec:
    return TensorSpec("float32", shape, torch.empty(shape, device="meta").stride())


def prepare(settings: dict[str, Any]) -> None:
    """Once in the zygote: pretend a GPU, take over launches, and touch every lazy import on an example of our own."""
    global _launches
    torch.set_num_threads(1)
    _launches = Launches(pretend.install(settings["target"]))
    _launches.install()
    state = {n: _dense(*shape) for n, shape in _WARM_UP_STATE.items()}
    spec = TraceSpec("full", (), (_dense(2, 4, 8, 8),), state, True, "fp32", settings["target"])
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            trace(_WARM_UP, [spec])
        finally:
            os.chdir(here)
    sys.modules.pop("candidate")
    linecache.clearcache()
    _launches = Launches(_launches.target)
    _launches.install()


def handle(channel: Channel) -> None:
    """Answer one request: a header frame, then a frame a plan."""
    request = json.loads(channel.recv() or b"{}")
    try:
        plans = trace(request["source"], [decode_spec(s) for s in request["specs"]])
    except Exception as error:
        status, reason = describe(error)
        channel.send(json.dumps({"reject": [status, reason[:2000]]}).encode())
        return
    channel.send(json.dumps({"plans": len(plans)}).encode())
    for plan in plans:
        channel.send(encode(plan))


def describe(error: BaseException) -> tuple[str, str]:
    """(status, one sentence) for an exception that came out of a candidate."""
    untraceable = next((e for e in _chain(error) if isinstance(e, Untraceable)), None)
    if untraceable is not None:
        return "untraceable", f"{untraceable}{_where(error)}."
    text = str(error).strip()
    if isinstance(error, triton.compiler.errors.CompilationError):
        cause = error.__cause__
        detail = f" ({type(cause).__name__}: {cause})" if cause is not None else ""
        return "compile_error", f"{text}{detail}"
    if isinstance(error, SyntaxError):
        return "syntax_error", f"{error.msg} at line {error.lineno}."
    if "meta tensors" in text or "'Meta' backend" in text or "data-dependent" in text:
        return "untraceable", f"an operation's result depends on tensor values: {text.splitlines()[0]}{_where(error)}."
    return "trace_error", f"{type(error).__name__}: {text}{_where(error)}."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _where(error: BaseException) -> str:
    """The candidate's own line that raised, if one did."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("candidate.py")]
    return f" [line {frames[-1].lineno}: {(frames[-1].line or '').strip()[:120]}]" if frames else ""


def trace(source: str, specs: list[TraceSpec]) -> list[Plan]:
    """Execute the candidate's module once and record its forward for every input set."""
    assert _launches is not None
    at_import = Recorder()
    _launches.begin(at_import)
    with at_import.recording():
        module = _load(source)
    plans = []
    for spec in specs:
        recorder = Recorder()
        _launches.begin(recorder)
        with recorder.recording():
            if at_import.storages:
                # tensors made at module level belong to every plan: make them again in each
                module = _load(source)
            plans.append(_record(module, spec, recorder))
    return plans


def _load(source: str) -> types.ModuleType:
    # Triton reads a function's source from its file
    path = os.path.abspath("candidate.py")
    with open(path, "w") as file:
        file.write(source)
    module = types.ModuleType("candidate")
    module.__file__ = path
    sys.modules["candidate"] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def _record(module: types.ModuleType, spec: TraceSpec, recorder: Recorder) -> Plan:
    assert _launches is not None
    if not isinstance(getattr(module, "ModelNew", None), type):
        raise TypeError("the code defines no class ModelNew")
    model = module.ModelNew(*spec.init_inputs)
    if not isinstance(model, torch.nn.Module):
        raise TypeError("ModelNew is no torch.nn.Module")
    unmatched = _bind_state(model, spec, recorder)
    model.train(spec.training)
    setup, recorder.nodes = recorder.nodes, []
    sources = iter(range(sum(1 for _ in tensor_specs(spec.inputs))))
    inputs = [_materialise(a, recorder, sources) for a in spec.inputs]
    with torch.no_grad():
        returned = model(*inputs)
    outputs = tuple(recorder.ref(t) for t in _outputs(returned, recorder))
    return _finish(spec, recorder, _needed_setup(setup, recorder, outputs, unmatched), outputs)


def _materialise(value: Any, recorder: Recorder, sources: Iterator[int]) -> Any:
    if isinstance(value, TensorSpec):
        return recorder.empty(value, "input", next(sources))
    if isinstance(value, list | tuple):
        return type(value)(_materialise(v, recorder, sources) for v in value)
    return value


def _outputs(value: Any, recorder: Recorder) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if recorder.is_cpu(value):
            raise ValueError("forward returns a CPU tensor: make it with device=x.device")
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _outputs(item, recorder)
    elif isinstance(value, dict):
        yield from _outputs(list(value.values()), recorder)
    else:
        raise TypeError(f"forward returns a {type(value).__name__}, not tensors")


def _bind_state(model: torch.nn.Module, spec: TraceSpec, recorder: Recorder) -> dict[int, str]:
    """Let the model's parameters and buffers stand for the reference's: by name, else the next of the same shape.

    Returns the storages of parameters that found no counterpart, with their names.
    """
    mine = [*model.named_parameters(), *model.named_buffers()]
    free = dict(spec.state)
    pairs = {name: name for name, t in mine if name in free and free[name].shape == tuple(t.shape)}
    for name in pairs:
        free.pop(name)
    for name, tensor in mine:
        if name not in pairs:
            key = next((k for k, s in free.items() if s.shape == tuple(tensor.shape)), None)
            if key is not None and isinstance(tensor, torch.nn.Parameter):
                pairs[name] = key
                free.pop(key)
    unmatched = {}
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(spec.precision)
    for name, tensor in mine:
        if name in pairs:
            _stand_for(tensor, spec.state[pairs[name]], pairs[name], recorder)
        else:
            if half is not None and tensor.is_floating_point():
                tensor.data = tensor.data.to(half)
            if isinstance(tensor, torch.nn.Parameter):
                unmatched[recorder.ref(tensor).storage] = f"{name} {list(tensor.shape)}"
        # the module is moved to the GPU after construction
        recorder.place(tensor, CUDA)
    return unmatched


def _stand_for(tensor: torch.Tensor, spec: TensorSpec, key: str, recorder: Recorder) -> None:
    ref = recorder.ref(tensor)
    same = (ref.dtype, ref.stride, ref.offset) == (spec.dtype, spec.stride, 0)
    if not same or recorder.storages[ref.storage].kind != "temp":
        # cast by the precision policy, or two parameters over one memory
        tensor.data = recorder.empty(spec)
    recorder.adopt(tensor, "state", key)


def _reads(node: Node) -> set[int]:
    if isinstance(node, LaunchNode):
        return {r.storage for v in node.variants for a in v.args.values() for r in walk_refs(a)}
    return {r.storage for a in (*node.args, *node.kwargs.values()) for r in walk_refs(a)}


def _writes(node: Node) -> set[int]:
    """Storages a node may change; a launch may write through any pointer it is given."""
    return _reads(node) if isinstance(node, LaunchNode) else {r.storage for r in node.outputs if r is not None}


_RANDOM = ("rand", "normal", "uniform", "bernoulli", "dropout", "multinomial", "exponential")


def _needed_setup(setup: list[Node], recorder: Recorder, outputs: tuple[TensorRef, ...], unmatched: dict[int, str]) -> list[Node]:
    """The constructor's nodes that forward depends on. Initialisation of what became state is not among them."""
    state = {i for i, s in enumerate(recorder.storages) if s.kind == "state"}
    wanted = {s for n in recorder.nodes for s in _reads(n)} | {o.storage for o in outputs}
    kept: list[Node] = []
    for node in reversed(setup):
        written = _writes(node) - state
        if not written & wanted:
            continue
        random = isinstance(node, AtenNode) and any(word in node.op for word in _RANDOM)
        if random and (names := [name for number, name in unmatched.items() if number in wanted]):
            known = ", ".join(recorder.storages[i].source or "" for i in sorted(state)) or "none"  # pyright: ignore[reportArgumentType, reportCallIssue]
            raise Untraceable(
                f"the parameter {names[0]} has no counterpart in the reference: give parameters the reference's names and shapes"
                f" (matched so far: {known[:300]})"
            )
        if random:
            raise Untraceable("__init__ makes random values that are no parameter of the reference: they cannot be reproduced")
        if _reads(node) & state:
            raise Untraceable(
                "__init__ computes a tensor from a parameter, and weights change after construction: compute it in forward()"
            )
        wanted |= _reads(node)
        kept.append(node)
    return kept[::-1]


def _finish(spec: TraceSpec, recorder: Recorder, setup: list[Node], outputs: tuple[TensorRef, ...]) -> Plan:
    """Number anew the storages that are used, in order of first use; inputs and state first."""
    assert _launches is not None
    used = {s for n in (*setup, *recorder.nodes) for s in _reads(n) | _writes(n)} | {o.storage for o in outputs}
    order = {"input": 0, "state": 1, "temp": 2}
    kept = sorted(used, key=lambda i: (order[recorder.storages[i].kind], i))
    numbers = {old: new for new, old in enumerate(kept)}

    def renumber(arg: Any) -> Any:
        if isinstance(arg, TensorRef):
            return dataclasses.replace(arg, storage=numbers[arg.storage])
        return tuple(renumber(a) for a in arg) if isinstance(arg, tuple) else arg

    @functools.singledispatch
    def node(_: Any) -> Any:
        raise TypeError

    @node.register
    def _(n: AtenNode) -> AtenNode:
        return AtenNode(n.op, renumber(n.args), {k: renumber(v) for k, v in n.kwargs.items()}, renumber(n.outputs))

    @node.register
    def _(n: LaunchNode) -> LaunchNode:
        variants = (dataclasses.replace(v, args={k: renumber(a) for k, a in v.args.items()}) for v in n.variants)
        return LaunchNode(tuple(variants))

    return Plan(
        spec.input_set,
        tuple(recorder.storages[i] for i in kept),
        tuple(node(n) for n in setup),
        tuple(node(n) for n in recorder.nodes),
        renumber(outputs),
        tuple(_launches.kernels),
    )
