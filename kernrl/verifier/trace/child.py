"""Inside the sandbox: run a candidate on tensors without memory, and record what it would launch.

Nothing in this process is trusted once the candidate's module has been executed: its answer is decoded by `codec.decode` and
checked by `checks.check_plan` elsewhere.
"""

from __future__ import annotations

import abc
import dataclasses
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

from kernrl.tasks.task import FULL
from kernrl.verifier.base import compat
from kernrl.verifier.plan.codec import decode_spec, encode
from kernrl.verifier.plan.plan import Plan, TensorSpec, TraceSpec
from kernrl.verifier.rpc.frames import Channel
from kernrl.verifier.trace.launch import fake_cuda
from kernrl.verifier.trace.launch.launches import Launches
from kernrl.verifier.trace.record_forward import record_forward
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.recording import recording
from kernrl.verifier.trace.state import guards, untouched
from kernrl.verifier.trace.state.open_files import check_closed, open_files
from kernrl.verifier.trace.state.other_shapes import Earlier
from kernrl.verifier.trace.untraceable import WITHOUT_SHAPE, Untraceable, none_swallowed, without_shape

_launches: Launches | None = None

_WARM_UP = """
import torch, triton
import triton.language as tl
@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
@triton.autotune([triton.Config({"B": 16}), triton.Config({"B": 32})], key=["n"])
@triton.jit
def product(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i[:, None] * B + i[None, :], mask=i[None, :] < n, other=0.0)
    tl.store(y + i, tl.sum(tl.exp(tl.dot(a, a)), 1))
@triton.jit
def rows(x, y, rows, n, scale, eps, B: tl.constexpr, BIAS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total, top = tl.zeros((B,), tl.float32), tl.full((B,), -float("inf"), tl.float32)
    for start in range(0, n, B):
        at = start + tl.arange(0, B)
        inside = (at < n) & (row < rows)
        v = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
        total += v
        top = tl.maximum(top, tl.where(inside, v, -float("inf")))
    mean, most = tl.sum(total, 0) / n, tl.max(top, axis=0)
    if BIAS:
        mean += eps
    for start in range(0, n, B):
        at = start + tl.arange(0, B)
        v = tl.load(x + row * n + at, mask=at < n)
        v = tl.sigmoid(gelu(v - mean)) * tl.rsqrt(mean * mean + eps) + tl.minimum(most, scale)
        tl.store(y + row * n + (at % n) // 1, v, mask=at < n)
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.gn = torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4)
        self.linear, self.up = torch.nn.Linear(4, 4), torch.nn.ConvTranspose2d(4, 4, 3)
    def forward(self, x):
        with torch.profiler.record_function("warm-up"):  # keeps a module in a global
            pass
        x = torch.nn.functional.max_pool2d(self.up(self.gn(self.bn(self.conv(x)))), 2).mean((2, 3))
        y = torch.empty_like(x)
        product[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](self.linear(x), y, x.numel())
        z = torch.empty_like(y)
        rows[(x.shape[0],)](y, z, x.shape[0], x.numel(), 0.5, 1e-5, B=64, BIAS=True, num_warps=4)
        return z.view(-1)
"""
_WARM_UP_STATE = {
    "conv.weight": (4, 4, 3, 3), "conv.bias": (4,), "linear.weight": (4, 4), "linear.bias": (4,),
    "up.weight": (4, 4, 3, 3), "up.bias": (4,),
}  # fmt: skip


def _dense(*shape: int) -> TensorSpec:
    return TensorSpec("float32", shape, torch.empty(shape, device="meta").stride())


def prepare(settings: dict[str, Any]) -> None:
    """Once in the fork server: fake a GPU, intercept launches, and trigger every lazy import with an example of our own."""
    global _launches
    torch.set_num_threads(1)
    _launches = Launches(fake_cuda.install(settings["target"]))
    _launches.install()
    compat.skip_unused_checks()
    compat.skip_locations()
    state = {n: _dense(*shape) for n, shape in _WARM_UP_STATE.items()}
    full = TraceSpec(FULL, (), (_dense(2, 4, 8, 8),), state, True, "fp32", settings["target"], modes_differ=True)
    ragged = dataclasses.replace(full, input_set="ragged", inputs=(_dense(3, 4, 7, 9),))
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for plan in trace(_WARM_UP, [full, ragged]):
                encode(plan)
        finally:
            os.chdir(here)
    sys.modules.pop("candidate")
    linecache.clearcache()
    _launches = Launches(_launches.target)
    _launches.install()
    compat.hash_libraries()
    guards.install()
    untouched.remember()


def handle(channel: Channel) -> None:
    """Answer one request: a header frame, then one frame a plan."""
    request = json.loads(channel.recv() or b"{}")
    try:
        plans = trace(request["source"], [decode_spec(s) for s in request["specs"]])
    except Exception as error:
        try:
            status, reason = describe(error)
        except Exception:  # its text is the candidate's own code
            status, reason = "trace_error", f"{type(error).__name__}, which does not say what is wrong{_where(error)}."
        channel.send(json.dumps({"reject": [status, reason[:2000]]}).encode())
        return
    channel.send(json.dumps({"plans": len(plans)}).encode())
    for plan in plans:
        channel.send(encode(plan))


def describe(error: BaseException) -> tuple[str, str]:
    """(status, one sentence) for an exception that a candidate raised."""
    untraceable = next((e for e in _chain(error) if isinstance(e, Untraceable)), None)
    if untraceable is not None:
        return "untraceable", f"{untraceable}{_where(error)}."
    text = str(error).strip()
    if isinstance(error, triton.compiler.errors.CompilationError):
        # each function that is called in the kernel adds its own line, and the innermost says what is wrong
        innermost = [e for e in _chain(error) if isinstance(e, triton.compiler.errors.CompilationError)][-1]
        cause = innermost.__cause__ or innermost
        detail = f" ({type(cause).__name__}: {cause})" if cause is not error else ""
        return "compile_error", f"{text}{detail}"
    if isinstance(error, SyntaxError):
        return "syntax_error", f"{error.msg} at line {error.lineno}."
    if operator := without_shape(error):
        return "untraceable", f"{operator} {WITHOUT_SHAPE}{_where(error)}."
    if "Cannot access accelerator device" in text:
        return "untraceable", f"torch.device(0) asks a GPU of which kind it is: write torch.device('cuda', 0){_where(error)}."
    if any(said in text for said in _ASKS_A_GPU):
        return "untraceable", f"this asks a GPU itself, and a trace has none: leave it out{_where(error)}."
    if isinstance(error, ModuleNotFoundError):
        text += ", and candidates have torch, triton and numpy: do without it"
    return "trace_error", f"{type(error).__name__}: {text}{_where(error)}."


_ASKS_A_GPU = (
    *("ATen_cuda", "compiled without CUDA", "not compiled with CUDA", "no NVIDIA driver", "No CUDA GPUs are available"),
    *("'torch._C' has no attribute '_cuda", "CUDA error: "),
)
"""How torch says, with and without CUDA, that it finds no GPU."""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []  # the causes that a candidate sets may go round
    while error is not None and not any(error is one for one in seen):
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _where(error: BaseException) -> str:
    """The candidate's line that raised, or ''."""
    try:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("candidate.py")]
    except (SyntaxError, UnicodeError):  # the file says that it is in another encoding
        return ""
    return f" [line {frames[-1].lineno}: {(frames[-1].line or '').strip()[:120]}]" if frames else ""


def trace(source: str, specs: list[TraceSpec]) -> list[Plan]:
    """Execute the candidate's module once and record its forward for every input set."""
    assert _launches is not None
    untouched.load_ahead(source)
    untouched.begin()
    at_import, files = Recorder(), open_files()
    _launches.begin(at_import)
    with recording(at_import):
        module = _load(source)
    untouched.check_untouched()
    check_closed(files)
    plans, earlier, shapes = [], [at_import], list[Earlier]()
    keeps = bool(at_import.storages)
    for spec in specs:
        plan = None if keeps else _try(module, spec, earlier, shapes)
        if plan is None:
            # tensors made at module level, or once for all calls, belong to every plan: make them again in this one
            keeps = True
            recorder = Recorder()
            _launches.begin(recorder)
            with recording(recorder):
                plan = _record(_load(source), spec, recorder, shapes)
            earlier.append(recorder)
        plans.append(plan)
    untouched.check_untouched(at_end=True)
    check_closed(files)
    return plans


def _try(module: types.ModuleType, spec: TraceSpec, earlier: list[Recorder], shapes: list[Earlier]) -> Plan | None:
    """The plan at one input set; None if the module kept a tensor of an earlier one, such as a table in an `lru_cache`."""
    assert _launches is not None
    recorder = Recorder()
    recorder.foreign = {key for one in earlier for key in one.storage_keys()}
    _launches.begin(recorder)
    try:
        with recording(recorder):
            plan = _record(module, spec, recorder, shapes)
    except Exception:
        if not recorder.uses_foreign:
            raise
        return None
    earlier.append(recorder)
    return None if recorder.uses_foreign else plan


def _load(source: str) -> types.ModuleType:
    # Triton reads a function's source from its file
    path = os.path.abspath("candidate.py")
    with open(path, "w") as file:
        file.write(source)
    module = types.ModuleType("candidate")
    module.__file__ = path
    vars(module).update(guards.builtins_of_a_candidate())
    untouched.add_module("candidate", module)
    with none_swallowed(), guards.importing():
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # less this file's `annotations`
    return module


def _record(module: types.ModuleType, spec: TraceSpec, recorder: Recorder, shapes: list[Earlier]) -> Plan:
    assert _launches is not None
    if not isinstance(getattr(module, "ModelNew", None), type):
        raise TypeError("the code defines no class ModelNew")
    cls = module.ModelNew
    if type(cls) not in (type, abc.ABCMeta):
        raise Untraceable("ModelNew has a metaclass, which decides what is made of it: use a plain class")
    _check_home(cls, module)
    before = compat.kernel_sources()
    plan = record_forward(cls, spec, recorder, _launches.kernels, again=True, earlier=shapes)
    after = compat.kernel_sources()
    if any(after.get(kernel) != source for kernel, source in before.items()):
        raise Untraceable("a kernel's source is replaced while forward() runs: define each kernel once")
    for kernel in after:
        _launches.check_kernel(kernel.value)
    _check_home(cls, module)
    if module.ModelNew is not cls:
        raise Untraceable("the name ModelNew stands for another class after forward(): define it once")
    return plan


def _check_home(cls: type, module: types.ModuleType) -> None:
    if cls.__module__ != module.__name__ or sys.modules.get(module.__name__) is not module:
        raise Untraceable("ModelNew says that it is of another module: leave its name as it is")
