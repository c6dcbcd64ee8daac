"""What other draws keep of the task's own: zeros, equal elements, probabilities, masks and tables."""

from __future__ import annotations

import pytest
import torch

from kernrl.tasks.task import Task
from kernrl.verifier.judge import structure
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.regimes import NOMINAL, REGIMES, TIMED

MODULE = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.PReLU(8)
        self.norm = nn.LayerNorm(16)
        self.running = nn.BatchNorm1d(8)
    def forward(self, *args):
        return args[0]
def get_init_inputs():
    return []
def get_inputs():
    return [INPUT]
"""
KINDS = {
    "triangular": "torch.tril(torch.randn(16, 16))",
    "halves": "torch.randn(8, 8).repeat(1, 2)",
    "symmetric": "(lambda a: a + a.T)(torch.randn(16, 16))",
    "probabilities": "torch.softmax(torch.randn(8, 16), -1)",
    "unit": "torch.nn.functional.normalize(torch.randn(8, 16), dim=-1)",
    "mask": "(torch.rand(8, 16) > 0.5).float()",
    "labels": "torch.randint(0, 9, (8, 16)).float()",
    "infinite": "torch.zeros(8, 16).masked_fill(torch.rand(8, 16) > 0.5, float('-inf'))",
    "sorted": "torch.rand(8, 16).sort(-1).values",
    "plain": "torch.rand(8, 16)",
    "indices": "torch.randint(0, 9, (8, 16))",
}


def drawn(kind: str, regime: str, seed: int = 3) -> tuple[torch.Tensor, TaskInputs]:
    task = Task(kind, MODULE.replace("INPUT", KINDS[kind]))
    inputs = TaskInputs(task, task.input_sets[0], "fp32", "cpu")
    inputs.draw(Draw("full", regime, seed))
    return inputs.inputs[0], inputs


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
def test_structure_survives_every_regime(regime: str) -> None:
    x = drawn("triangular", regime)[0]
    assert (x.triu(1) == 0).all()
    x = drawn("halves", regime)[0]
    assert torch.equal(x[:, :8], x[:, 8:])
    x = drawn("symmetric", regime)[0]
    assert torch.equal(x, x.T)
    x = drawn("probabilities", regime)[0]
    assert (x >= 0).all()
    assert torch.allclose(x.sum(-1), torch.ones(8))
    assert torch.allclose(drawn("unit", regime)[0].norm(dim=-1), torch.ones(8))
    assert set(drawn("mask", regime)[0].unique().tolist()) <= {0.0, 1.0}
    x = drawn("labels", regime)[0]
    assert torch.equal(x, x.round())
    assert x.max() < 9
    assert set(drawn("infinite", regime)[0].unique().tolist()) == {0.0, float("-inf")}
    assert (drawn("sorted", regime)[0].diff(dim=-1) >= 0).all()
    assert 0 <= drawn("indices", regime)[0].min() <= drawn("indices", regime)[0].max() < 9


@pytest.mark.parametrize("kind", ["mask", "labels", "indices", "probabilities"])
def test_what_keeps_its_values_is_fresh_in_every_draw(kind: str) -> None:
    assert not torch.equal(drawn(kind, "large", 3)[0], drawn(kind, "large", 4)[0])


def test_regimes_are_what_they_say() -> None:
    x = drawn("plain", "far")[0]
    assert 999 < x.mean() < 1001
    assert 0.5 < x.std() < 1.5
    assert drawn("plain", "negative")[0].max() < 0
    assert drawn("plain", "huge")[0].abs().median() > 65_504
    assert drawn("plain", "ties")[0].unique().numel() <= 5
    assert (drawn("plain", "level")[0] == drawn("plain", "level")[0][:, :1]).all()
    x = drawn("plain", "nonfinite")[0]
    assert 0 < (~x.isfinite()).sum() <= 8
    x = drawn("plain", "parameters")[0]
    assert 0 <= x.min() < x.max() < 1


PARAMETERS = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(16))
        self.start = nn.Parameter(torch.cat([torch.zeros(8), torch.ones(8)]))
        self.mask = nn.Parameter(torch.eye(16), requires_grad=False)
        self.gain = nn.Parameter(torch.ones(16, dtype=torch.complex64))
        self.register_buffer("table", torch.polar(torch.ones(16), torch.arange(16.0)))
    def forward(self, z):
        return z * self.gain
def get_init_inputs():
    return []
def get_inputs():
    return [torch.randn(8, 16, dtype=torch.complex64)]
"""


def test_parameters_of_two_values_and_complex_ones_are_drawn_anew() -> None:
    task = Task("parameters", PARAMETERS)
    inputs = TaskInputs(task, task.input_sets[0], "fp32", "cpu")
    table = inputs.state["table"].clone()
    seen = []
    for seed in (3, 4):
        inputs.draw(Draw("full", NOMINAL, seed))
        assert (inputs.state["mix"] != 0).all()
        assert (inputs.state["start"] != 0).all()
        assert torch.equal(inputs.state["mask"], torch.eye(16)), "what has no gradients may be a mask"
        assert torch.equal(inputs.state["table"], table), "a table that is always the same stays"
        assert (inputs.state["gain"].imag != 0).all()
        assert torch.equal(dict(inputs.module.named_parameters())["gain"], inputs.state["gain"]), (
            "the module reads what was drawn"
        )
        seen.append({name: inputs.state[name].clone() for name in ("mix", "start", "gain")})
    assert not any(torch.equal(seen[0][name], seen[1][name]) for name in seen[0])


def test_regimes_change_complex_inputs() -> None:
    task = Task("parameters", PARAMETERS)
    inputs = TaskInputs(task, task.input_sets[0], "fp32", "cpu")
    [z] = inputs.inputs
    for regime, least in (("large", 30.0), ("far", 900.0)):
        inputs.draw(Draw("full", regime, 3))
        assert min(z.real.abs().mean(), z.imag.abs().mean()) > least, regime
    assert z.dtype == torch.complex64
    assert z.data_ptr() == inputs.arguments[0].data_ptr()


def test_parameters_get_both_signs_and_large_magnitudes_and_variances_do_not() -> None:
    state = drawn("plain", "parameters")[1].state
    for name in ("act.weight", "norm.weight", "norm.bias", "running.weight"):
        assert state[name].min() < 0 < 1 < state[name].abs().max(), name
    assert state["running.running_var"].min() > 0
    near = drawn("plain", NOMINAL)[1].state
    assert near["norm.weight"].min() > 0, "on the task's own inputs, near the initial values"
    low = drawn("plain", "low")[1].state
    assert -301 < low["norm.bias"].min() <= low["norm.bias"].max() < -299


def test_timed_numbers_come_from_the_same_draws_as_judged_ones() -> None:
    x, inputs = drawn("labels", TIMED)
    seen = []
    for _ in range(2):
        before = inputs.state["norm.weight"].clone()
        inputs.refresh()
        assert torch.equal(x, x.round()), "granularity"
        assert not torch.equal(before, inputs.state["norm.weight"]), "parameters, too"
        seen.append(x.clone())
    assert not torch.equal(*seen)
    judged, timed = drawn("triangular", NOMINAL)[1], drawn("triangular", TIMED)[1]
    assert torch.equal(judged.inputs[0], timed.inputs[0])
    assert torch.equal(judged.state["act.weight"], timed.state["act.weight"])


LARGE = {
    **{
        kind: text.replace("8, 16", "256, 64").replace("8, 8", "256, 32").replace("16, 16", "128, 128")
        for kind, text in KINDS.items()
    },
    "mask, but for a row": "(torch.rand(256, 64) > 0.5).float().index_fill(0, torch.tensor(255), 0.25)",
    "labels, but for a row": "torch.randint(0, 9, (256, 64)).float().index_fill(0, torch.tensor(255), 0.25)",
    "probabilities, but for a row": "torch.cat([torch.softmax(torch.randn(255, 64), -1), torch.rand(1, 64)])",
    "sorted, but for a row": "torch.cat([torch.rand(255, 64).sort(-1).values, torch.rand(1, 64)])",
    "mostly zero": "torch.randn(256, 64) * (torch.rand(256, 64) > 0.6)",
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_input_has_the_structure_of_its_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at in parts, of which the first may decide, and by samples of its pairs."""
    torch.manual_seed(5)
    first, second = (eval(LARGE[kind], {"torch": torch}) for _ in range(2))
    [whole] = structure.structures([first], [second])
    monkeypatch.setattr(structure, "AT_ONCE", 1000)
    monkeypatch.setattr(structure, "LOOKED_AT", 128)
    [found] = structure.structures([first], [second])
    assert found.freedom is whole.freedom
    assert (found.mean, found.std) == pytest.approx((whole.mean, whole.std), nan_ok=True)
