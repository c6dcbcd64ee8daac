"""What a task's reference says of it: shapes, settings and a plan; what cannot be traced is refused in a sentence."""

from types import SimpleNamespace

import pytest
from support.front import HEAD, dense, ops, plan_of, spec, trace

from kernrl.errors import UsageError
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base.verdict import Rejection
from kernrl.verifier.plan.plan import AtenNode
from kernrl.verifier.trace.reference_spec import outputs_of, reference_plan, spec_of

TASK = Task("t", """
import torch, torch.nn as nn
N = 128
class Model(nn.Module):
    def __init__(self, i, o, shape):
        super().__init__()
        self.linear, self.bn, self.b = nn.Linear(i, o), nn.BatchNorm1d(o), nn.Parameter(torch.randn(shape))
    def forward(self, x, scale):
        return torch.relu(self.bn(self.linear(x))) * scale + self.b
def get_inputs():
    return [torch.rand(N, 64), 2.0]
def get_init_inputs():
    return [64, 32, (32,)]
""")  # fmt: skip


def test_specs_of_a_task():
    found = spec_of(TASK, InputSet("ragged", {"N": 13}), "fp16", "sm_90")
    assert found.inputs == (dense(13, 64, dtype="float16"), 2.0)
    assert found.init_inputs == (64, 32, (32,))
    assert list(found.state)[:3] == ["b", "linear.weight", "linear.bias"]
    assert found.state["bn.num_batches_tracked"].dtype == "int64"
    assert found.training
    assert outputs_of(TASK, InputSet(FULL), "fp32", "sm_90") == (dense(128, 32),)


def test_the_reference_is_a_plan_too():
    plan = reference_plan(TASK, InputSet(FULL), "fp32", "sm_90")
    assert ops(plan) == [
        "aten.addmm.default",
        "aten.native_batch_norm.default",
        "aten.relu.default",
        "aten.mul.Tensor",
        "aten.add.Tensor",
    ]
    assert {s.source for s in plan.storages if s.kind == "state"} == {
        "b",
        "linear.weight",
        "linear.bias",
        "bn.weight",
        "bn.bias",
    }


CONFIGURED = (
    HEAD
    + """
import dataclasses
@dataclasses.dataclass
class Inner:
    rate: float = 0.5
class Config:
    width = 32
    def __init__(self):
        self.rows, self.inner, self.seen = 8, Inner(), {1, 2}
    @property
    def size(self):
        return self.rows * self.width
    def scaled(self):
        return 0
class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.rate = config.inner.rate * config.size
    def forward(self, x):
        return %s * self.rate
def get_inputs():
    return [torch.rand(Config().rows, Config.width)]
def get_init_inputs():
    return [Config()]
"""
)


def test_a_constructor_may_take_an_object_that_holds_settings():
    task = Task("t", CONFIGURED % "x")
    (settings,) = spec_of(task, InputSet(FULL), "fp32", "sm_90").init_inputs
    assert vars(settings) == {"inner": SimpleNamespace(rate=0.5), "rows": 8, "size": 256, "width": 32}
    plan = plan_of((CONFIGURED % "launch(x)").replace("Model(", "ModelNew("), spec_of(task, InputSet(FULL), "fp32", "sm_90"))
    assert [n.args[1] for n in plan.nodes if isinstance(n, AtenNode) and n.op == "aten.mul.Tensor"] == [128.0]


HELD = """
import datetime, enum, pathlib
import numpy as np, torch
class Kind(enum.IntEnum):
    SAME = 1
class Inner:
    def __init__(self, outer):
        self.outer, self.rate, self.number = outer, 0.5, np.float32(0.5)
class Config:
    rows = 8
    def __init__(self):
        self.inner, self.folder = Inner(self), pathlib.Path("a")
    @property
    def missing(self):
        raise RuntimeError("not yet")
    @property
    def another(self):
        return Config()
class Model(torch.nn.Module):
    def __init__(self, setting):
        super().__init__()
    def forward(self, x):
        return x
def get_inputs():
    return [torch.rand(4)]
def get_init_inputs():
    return [%s]
"""


def test_settings_that_hold_themselves_or_cannot_be_read_are_left_out():
    (found,) = spec_of(Task("t", HELD % "Config()"), InputSet(FULL), "fp32", "sm_90").init_inputs
    assert vars(found).keys() == {"rows", "inner", "another"}
    assert (found.rows, found.inner, found.another.rows) == (8, SimpleNamespace(rate=0.5), 8)


@pytest.mark.parametrize(("made", "number"), [("np.float64(0.5)", 0.5), ("Kind.SAME", 1)])
def test_a_setting_that_is_a_number_stays_one(made, number):
    (found,) = spec_of(Task("t", HELD % made), InputSet(FULL), "fp32", "sm_90").init_inputs
    assert found == number


@pytest.mark.parametrize("made", ["np.float32(0.5)", "pathlib.Path('a')", "datetime.date(2020, 1, 1)"])
def test_a_value_of_a_library_is_no_object_of_settings(made):
    """Its parts are of its own kind, without end."""
    with pytest.raises(UsageError, match=r"an input of type (float32|PosixPath|date) is not supported"):
        spec_of(Task("t", HELD % made), InputSet(FULL), "fp32", "sm_90")


TRUNCATED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.empty(32, 32))
        nn.init.trunc_normal_(self.w, std=0.02)
        nn.init.trunc_normal_(self.w, mean=3.0)
    def forward(self, x):
        return {} @ self.w
def get_inputs():
    return [torch.rand(8, 32)]
def get_init_inputs():
    return []
"""


def test_an_initialiser_that_draws_until_it_likes_the_numbers_is_traced():
    task = Task("t", HEAD + TRUNCATED.format("x"))
    assert ops(reference_plan(task, InputSet(FULL), "fp32", "sm_90")) == ["aten.mm.default"]
    source = (HEAD + TRUNCATED.format("launch(x)")).replace("Model(", "ModelNew(")
    assert ops(plan_of(source, spec_of(task, InputSet(FULL), "fp32", "sm_90"))) == ["aten.mm.default"]
    found = trace(source, spec(dense(8, 32)))
    assert isinstance(found, Rejection)
    assert "w [32, 32]" in found.reason, "of which nobody knows the numbers"


COUNTING = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(32, momentum=None)
    def forward(self, x):
        return self.norm(x)
def get_inputs():
    return [torch.rand(8, 32)]
def get_init_inputs():
    return []
"""


def test_a_reference_whose_batch_norm_counts_its_batches_is_traced():
    plan = reference_plan(Task("t", HEAD + COUNTING), InputSet(FULL), "fp32", "sm_90")
    assert ops(plan)[-1:] == ["aten.native_batch_norm.default"]


SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return {returned}


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""

FORWARDS = {
    "a size of its result": ("torch.bincount(x.long().flatten())", r"torch\.bincount returns without numbers"),
    "a size, by torch's own words": ("x[x.nonzero()[:, 0]]", r"torch\.nonzero returns without numbers"),
    "a size, given as a tensor": ("x.repeat_interleave(x[:, 0].long(), 0)", "repeat_interleave returns without numbers"),
    "the host": ("x * x.max().item()", r"reads a tensor's value on the host \(\.item\(\)\); the sizes"),
    "the host, within torch": ("torch.corrcoef(x)", r"on the host \(torch\.equal, or a check of torch's own\); the sizes"),
    "the host, in a window": (
        "torch.istft(torch.view_as_complex(x.view(1, 8, 8, 2)), 14, window=torch.ones(14))",
        r"on the host \(torch\.istft, which looks at its window's numbers\); the sizes",
    ),
}


@pytest.mark.parametrize("device", ["cuda", "cpu", "x.device.type"])
def test_a_reference_that_switches_autocast_on_is_refused_by_its_line(device):
    named = device if "." in device else repr(device)
    source = SOURCE.replace("        return {returned}", f"        with torch.autocast({named}):\n            return x @ x.mT")
    with pytest.raises(UsageError, match=r"cannot be traced: it switches on torch\.autocast at line 8: leave that out"):
        reference_plan(Task("t", source), InputSet(FULL), "fp32", "sm_90")
    off = source.replace(f"autocast({named})", f"autocast({named}, enabled=False)")
    assert ops(reference_plan(Task("t", off), InputSet(FULL), "fp32", "sm_90")) == ["aten.mm.default"]


@pytest.mark.parametrize("needing", FORWARDS)
def test_a_reference_that_depends_on_numbers_is_told_on_which(needing):
    returned, told = FORWARDS[needing]
    with pytest.raises(UsageError, match=f"cannot be traced: .*{told}") as caught:
        reference_plan(Task("t", SOURCE.format(returned=returned)), InputSet(FULL), "fp32", "sm_90")
    said = str(caught.value)
    assert said.endswith("must not depend on the numbers in tensors")
    assert len(said) < 220  # torch's own has 900


def test_what_is_no_tensor_is_named():
    with pytest.raises(UsageError, match="forward returns a float, not tensors"):
        reference_plan(Task("t", SOURCE.format(returned="x, 3.0")), InputSet(FULL), "fp32", "sm_90")


def test_a_transform_of_bfloat16_is_refused_with_what_to_do():
    source = SOURCE.format(returned="torch.fft.rfft(x).abs()")
    assert reference_plan(Task("t", source), InputSet(FULL), "fp32", "sm_90").outputs[0].shape == (8, 9)
    with pytest.raises(UsageError, match=r"torch\.fft has no BFloat16 numbers: leave --precision out, or cast in forward$"):
        reference_plan(Task("t", source), InputSet(FULL), "bf16", "sm_90")
    cast = SOURCE.format(returned="torch.fft.rfft(x.float()).abs().to(x.dtype)")
    assert reference_plan(Task("t", cast), InputSet(FULL), "bf16", "sm_90").outputs[0].dtype == "bfloat16"
