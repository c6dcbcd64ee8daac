"""The foreign tasks: each keeps the contract and runs without memory, and as a suite they are many, large and unlike."""

from __future__ import annotations

import ast
import re
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from support import TESTS
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernrl.errors import UsageError
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import Task, load_reference

FOLDER = TESTS / "foreign"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
GIB = 2**30
IMPORTS = {"__future__", "collections", "dataclasses", "functools", "math", "torch", "typing"}
HOUSEKEEPING = {"clone", "detach", "empty", "lift_fresh", "new_full", "ones_like"}
"""Ops that say nothing of what is computed."""


class Meter(TorchDispatchMode):
    """Records the ops of a run, and the bytes alive at its peak as eager would hold them."""

    def __init__(self, held: list[torch.Tensor]) -> None:
        super().__init__()
        self.calls: list[torch._ops.OpOverload] = []
        self.peak = self.now = 0
        self._alive: dict[int, int] = {}
        self._hold(held)

    def _hold(self, tensors: list[torch.Tensor]) -> None:
        for storage in (tensor.untyped_storage() for tensor in tensors):
            key = storage._cdata
            if key not in self._alive:
                self._alive[key] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._release, key)
        self.peak = max(self.peak, self.now)

    def _release(self, key: int) -> None:
        self.now -= self._alive.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        result = func(*args, **(kwargs or {}))
        self._hold(tensors_of(result))
        return result


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True)
class Run:
    """What a run of a task under fake tensors showed."""

    calls: tuple[torch._ops.OpOverload, ...]
    calls_again: tuple[torch._ops.OpOverload, ...]
    """Those of the same module's second run."""
    peak_bytes: int
    output: Any
    state: tuple[torch.Tensor, ...]
    inputs: tuple[torch.Tensor, ...]
    inputs_changed: bool

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops, without views and housekeeping; an in-place op is the op."""
        aten = (call for call in self.calls if call.namespace == "aten" and not call.is_view)
        names = (call.overloadpacket.__name__.rstrip("_") for call in aten)
        return tuple(name for name in names if name not in HOUSEKEEPING)


def run(name: str, source: str) -> Run:
    reference = load_reference(Task(name, source))
    with FakeTensorMode(), torch.no_grad():
        model = reference.Model(*reference.get_init_inputs())
        inputs = reference.get_inputs()
        state, given = [*model.parameters(), *model.buffers()], tensors_of(inputs)
        versions = [tensor._version for tensor in given]
        meter = Meter([*state, *given])
        with meter:
            output = model(*inputs)
        with Meter([]) as again:
            model(*inputs)
    changed = versions != [tensor._version for tensor in given]
    return Run(tuple(meter.calls), tuple(again.calls), meter.peak, output, tuple(state), tuple(given), changed)


def problems(name: str, source: str) -> Iterator[str]:
    """Whatever is wrong with a task file."""
    imported = {alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "." for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    if strange := {module.partition(".")[0] for module in imported} - IMPORTS:
        yield f"imports {strange}"
    seen = run(name, source)
    outputs = [seen.output] if isinstance(seen.output, torch.Tensor) else seen.output
    if not isinstance(outputs, list | tuple) or not outputs or not all(isinstance(out, torch.Tensor) for out in outputs):
        yield "returns something else than tensors"
        return
    if any(out.dtype != torch.float32 for out in outputs):
        yield "returns something else than float32"
    if any(out.numel() == 0 for out in outputs):
        yield "returns an empty tensor"
    if not seen.inputs:
        yield "has no tensor for an input"
    if not all(isinstance(tensor, FakeTensor) for tensor in (*seen.state, *seen.inputs, *outputs)):
        yield "made a tensor that takes memory"
    if seen.inputs_changed:
        yield "writes to its inputs"
    if random := [call.name() for call in seen.calls if torch.Tag.nondeterministic_seeded in call.tags]:
        yield f"draws random numbers: {random}"
    if seen.calls != seen.calls_again:
        yield "computes something else the second time"
    if len(seen.ops) < 3:
        yield "has fewer than three ops"
    if seen.peak_bytes > 8 * GIB:
        yield f"takes {seen.peak_bytes / GIB:.1f} GiB"


@cache
def measured(name: str) -> Run:
    return run(name, FILES[name].read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_file_is_a_task(name: str) -> None:
    assert list(problems(name, FILES[name].read_text(encoding="utf-8"))) == []


def test_folder_loads_as_users_load_theirs() -> None:
    loaded = load_tasks(FOLDER)
    assert loaded.problems == ()
    assert {task.id for task in loaded.tasks} == set(FILES)


GOOD = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)
        self.calls = 0

    def forward(self, x):
        y = torch.tanh(self.linear(x)) + 1.0
        return y


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return [8]
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("return y", "return y", None),
        ("from torch import nn", "from torch import nn\nimport os.path", "imports"),
        ("return y", "return y.shape", "something else than tensors"),
        ("return y", "return y.argmax(1)", "something else than float32"),
        ("return y", "return y[:0]", "empty"),
        ("return y", "return y + torch.rand_like(y)", "random"),
        ("return y", "return nn.functional.dropout(y, 0.1)", "random"),
        ("return y", "return nn.functional.dropout(y, 0.1, training=False)", None),
        ("return y", "self.calls += 1\n        return y.relu() if self.calls % 2 else y", "the second time"),
        ("y = torch.tanh(self.linear(x)) + 1.0", "y = self.linear(x)", "fewer than three"),
        ("torch.tanh(self.linear(x))", "torch.tanh(self.linear(x.mul_(2.0)))", "writes to its inputs"),
        ("torch.randn(4, 8)", "torch.randn(2**28, 8)", "GiB"),
    ],
)
def test_a_bad_file_is_noticed(old: str, new: str, problem: str | None) -> None:
    source = GOOD.replace(old, new)
    found = list(problems("bad", source))
    assert found == [] if problem is None else any(problem in text for text in found), found


def test_a_task_without_a_tensor_for_an_input_is_noticed() -> None:
    source = GOOD.replace("self.linear(x)", "self.linear.weight * x").replace("torch.randn(4, 8)", "4.0")
    assert "has no tensor for an input" in list(problems("bad", source))


def test_a_tensor_that_takes_memory_is_noticed() -> None:
    """One that is made as the file is read could be as large as the task."""
    source = GOOD.replace("class Model", "z = torch.randn(4, 8)\n\n\nclass Model").replace("8)]", "8), z]")
    assert "made a tensor that takes memory" in list(problems("bad", source.replace("self, x", "self, x, unused")))
    with pytest.raises(AssertionError, match="FakeTensor"):
        run("bad", source.replace("self, x", "self, x, z").replace("return y", "return y + z"))


@pytest.mark.parametrize("missing", ["Model", "get_inputs", "get_init_inputs"])
def test_a_missing_part_is_noticed(missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        run("bad", re.sub(rf"\b{missing}\b", "Other", GOOD))


def test_control_flow_on_data_is_noticed() -> None:
    with pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
        run("bad", GOOD.replace("return y", "return y if y.sum() > 0 else -y"))


def test_peak_counts_what_eager_holds() -> None:
    """Input, weight, bias and output stay; of a chain of temporaries two are alive at a time."""
    tensor = 4 * 8 * 4
    state = 8 * 8 * 4 + 8 * 4
    assert run("chain", GOOD).peak_bytes == state + 3 * tensor
    in_place = GOOD.replace("torch.tanh(self.linear(x)) + 1.0", "self.linear(x).tanh_().add_(1.0)")
    assert run("in_place", in_place).peak_bytes == state + 2 * tensor
    assert run("in_place", in_place).ops == run("chain", GOOD).ops == ("addmm", "tanh", "add")


@pytest.mark.slow
def test_suite_is_large_and_varied() -> None:
    assert len(FILES) >= 110
    gib = sorted(measured(name).peak_bytes / GIB for name in FILES)
    assert sum(size >= 1 for size in gib) >= 35
    assert sum(0.1 <= size < 1 for size in gib) >= 35
    assert sum(size < 0.1 for size in gib) >= 20
    assert max(max(tensor.shape, default=0) for name in FILES for tensor in measured(name).state) >= 16_384
    times = Counter(measured(name).ops for name in FILES)
    assert len(times) >= 110
    assert max(times.values()) <= 2
    assert 5 <= sum(not isinstance(measured(name).output, torch.Tensor) for name in FILES) < len(FILES) / 2


HANDS = {
    r'\A(#.*\n)*\s*("""|\'\'\')': 15,  # a docstring on top
    r"super\(\w+, self\)": 10,
    r"nn\.Sequential": 8,
    r"nn\.Module(List|Dict)|ParameterList": 5,
    r"register_buffer": 10,
    r"nn\.Parameter": 30,
    r"einsum": 8,
    r"import torch\.nn\.functional as F": 25,
    r"from torch import nn": 8,
    r"-> (torch\.)?Tensor": 8,
    r"@dataclass|NamedTuple|dict\(|^\w+ = \{": 5,
    r"^\w+ = \w+ = \w+": 3,  # a chain of constants
    r"^\w+, \w+(, \w+)* = ": 15,
    r"^(class|def) (?!Model|get_)\w+": 15,  # a helper of its own
    r"    def (?!__init__|forward)\w+\(self": 5,
    r"@(staticmethod|property)": 3,
    r"\.[a-z]\w*[a-z0-9]_\(": 6,  # in place
    r"def forward\(self, \w+[^,)]*, \w+": 15,  # several inputs
}
"""How a file is written (a regular expression), and in how many files at least."""


@pytest.mark.parametrize("hand", HANDS)
def test_many_hands(hand: str) -> None:
    found = [name for name, path in FILES.items() if re.search(hand, path.read_text(encoding="utf-8"), re.MULTILINE)]
    assert HANDS[hand] <= len(found) < len(FILES) * 0.75, found


def test_constants_stand_above_and_below_the_class() -> None:
    above = 0
    for path in FILES.values():
        body = ast.parse(path.read_text(encoding="utf-8")).body
        model = next(i for i, node in enumerate(body) if isinstance(node, ast.ClassDef) and node.name == "Model")
        constants = [i for i, node in enumerate(body) if isinstance(node, ast.Assign | ast.AnnAssign)]
        above += bool(constants) and max(constants) < model
    assert len(FILES) * 0.2 < above < len(FILES) * 0.9
