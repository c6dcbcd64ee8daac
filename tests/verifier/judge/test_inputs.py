"""Draws: the same for the same seed, different for every other, and never a number that hides a mistake."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base.nested import flatten, rebuild
from kernrl.verifier.judge.draws import Draw, schedule, spot_draws
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.regimes import NOMINAL, REGIMES, TIMED, WIDE_REGIMES
from kernrl.verifier.judge.truth.exact import Exact
from kernrl.verifier.judge.truth.reference_answers import ReferenceAnswers

SOURCE = """
import torch
import torch.nn as nn
B = 8
D = 16


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.linear = nn.Linear(d, d)
        self.norm = nn.BatchNorm1d(d)
        self.tied = self.linear.weight
        self.register_buffer("mask", torch.tril(torch.ones(d, d)))

    def forward(self, x, scale, indices):
        return self.norm(self.linear(x) @ self.mask)[:, indices] * scale


def get_inputs():
    return [torch.rand(B, D), 2.0, torch.randint(0, D, (D,))]


def get_init_inputs():
    return [D]
"""
SETS = (InputSet(FULL), InputSet("small", {"B": 4}), InputSet("ragged", {"B": 3, "D": 13}))
TASK = Task("inputs", SOURCE, input_sets=SETS)


def made(precision: str = "fp32", **kwargs: bool) -> TaskInputs:
    return TaskInputs(TASK, SETS[1], precision, "cpu", **kwargs)


@pytest.mark.parametrize("regime", [NOMINAL, *REGIMES])
def test_inputs_that_need_gradients_are_judged_without(regime: str) -> None:
    source = SOURCE.replace("torch.rand(B, D), 2.0", "torch.rand(B, D, requires_grad=True), 2.0")
    inputs = TaskInputs(Task("gradients", source, input_sets=SETS), SETS[1], "fp32", "cpu")
    inputs.draw(Draw("small", regime, 11))
    assert not inputs.inputs[0].requires_grad


@pytest.mark.parametrize("regime", [NOMINAL, TIMED, *REGIMES])
def test_one_seed_gives_the_same_numbers_twice_and_another_gives_others(regime: str) -> None:
    a, b = made(), made()
    a.draw(Draw("small", regime, 11))
    b.draw(Draw("small", regime, 11))
    for mine, theirs in ((a.inputs, b.inputs), (a.state.values(), b.state.values())):
        assert all(torch.equal(x.nan_to_num(nan=-7.0), y.nan_to_num(nan=-7.0)) for x, y in zip(mine, theirs, strict=True))
    b.draw(Draw("small", regime, 12))
    assert not torch.equal(a.inputs[0], b.inputs[0])
    assert not torch.equal(a.state["linear.weight"], b.state["linear.weight"])


def test_no_parameter_is_an_identity_and_masks_stay() -> None:
    inputs = made()
    inputs.draw(Draw("small", "offset", 5))
    state = inputs.state
    for name in ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"):
        assert state[name].std() > 0.05, name
    assert state["norm.running_var"].min() > 0
    assert torch.equal(state["mask"], torch.tril(torch.ones(16, 16)))
    assert state["norm.num_batches_tracked"] == 0
    assert state["tied"].data_ptr() == state["linear.weight"].data_ptr() == inputs.module.linear.weight.data_ptr()


def test_how_all_tensors_are_drawn_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: waits.append(x.shape) or tolist(x))
    made()
    assert len(waits) == 2, "for inputs and for state: on a GPU that others share, each is a wait for their work too"


def test_parameters_can_be_kept() -> None:
    inputs = made(redraw_parameters=False)
    inputs.draw(Draw("small", "offset", 5))
    assert (inputs.state["norm.weight"] == 1).all()


@pytest.mark.parametrize("slopes", [1, 2, 3, 4, 5])
def test_over_the_wide_regimes_a_slope_is_below_minus_one_negative_positive_and_above_one(slopes: int) -> None:
    source = SOURCE.replace("nn.BatchNorm1d(d)", f"nn.PReLU({slopes})")
    inputs, bands = TaskInputs(Task("slopes", source, input_sets=SETS), SETS[1], "fp32", "cpu"), []
    for regime in WIDE_REGIMES:
        inputs.draw(Draw("small", regime, 5))
        bands.append(set(torch.bucketize(inputs.state["norm.weight"], torch.tensor([-1.0, 0.0, 1.0])).tolist()))
    assert set().union(*bands) == {0, 1, 2, 3}
    assert slopes < 4 or bands == [{0, 1, 2, 3}] * len(bands)


BOUNDED = """
import torch
import torch.nn as nn
B = 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(24)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(B, 24)]


def get_init_inputs():
    return []
"""


def test_numbers_behind_a_norm_reach_a_bound_and_what_is_beyond_it() -> None:
    inputs = TaskInputs(Task("bounded", BOUNDED), InputSet(FULL), "fp32", "cpu")
    for seed in range(20):
        inputs.draw(Draw(FULL, "spread", seed))
        y = inputs.module(*inputs.arguments)
        assert (y > 6.3).any(), "a relu6 that ends at 6.3 shows"
        assert ((y > 0) & (y < 6)).any()


def test_the_last_element_of_a_row_is_sometimes_the_largest() -> None:
    inputs = TaskInputs(Task("bounded", BOUNDED), InputSet(FULL, {"B": 64}), "fp32", "cpu")
    inputs.draw(Draw(FULL, "ends", 1))
    assert (inputs.inputs[0].argmax(1) == 23).float().mean() > 0.2
    assert inputs.state["norm.weight"][-1] > 2.5


def test_a_write_to_an_input_a_parameter_or_a_guard_is_seen() -> None:
    inputs = made()
    inputs.draw(Draw("small", "offset", 5))
    for place in (inputs.inputs[0], inputs.state["norm.bias"], inputs.inputs[1]):
        snapshot = inputs.snapshot()
        assert not inputs.written(snapshot)
        place.view(-1)[-1] += 1
        assert inputs.written(snapshot)
    for last_guard in (inputs.floats[-1], inputs.others[-1]):
        snapshot = inputs.snapshot()
        last_guard += 1
        assert inputs.written(snapshot)


@pytest.mark.slow
def test_a_reference_with_running_statistics_compiles_on_them() -> None:
    source = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(8), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.second(self.first(x).relu())


def get_inputs():
    return [torch.randn(16, 8)]


def get_init_inputs():
    return []
"""
    inputs = TaskInputs(Task("statistics", source), InputSet(FULL), "fp32", "cpu")
    inputs.draw(Draw(FULL, NOMINAL, 1))
    snapshot = inputs.snapshot()
    with torch.no_grad():
        torch.compile(inputs.module, backend="aot_eager", fullgraph=True)(*inputs.arguments)
    assert inputs.written(snapshot)
    assert int(inputs.state["first.num_batches_tracked"]) == 1


@pytest.mark.parametrize("regime", [NOMINAL, *REGIMES])
def test_a_draw_waits_for_no_gpu(regime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As reading a number does, and copying a table there."""
    inputs = made()
    for name in ("__bool__", "__float__", "__int__", "__index__", "item", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, lambda self, name=name: pytest.fail(f"{name} waits for the GPU"))
    monkeypatch.setattr(torch, "tensor", lambda *a, **k: pytest.fail("a table is copied to the GPU"))
    inputs.draw(Draw("small", regime, 5))


def test_schedule_asks_every_set_and_draws_no_seed_twice() -> None:
    draws = schedule(SETS, 99)
    assert {d.input_set for d in draws} == {"full", "small", "ragged"}
    assert len({d.seed for d in draws}) == len(draws)
    assert {d.regime for d in schedule(SETS, 99, ("offset",))} == {"offset"}
    assert not {d.seed for d in spot_draws(draws)} & {d.seed for d in draws}
    assert {d.input_set for d in schedule(SETS[:1], 1)} == {"full"}


def test_every_regime_reaches_the_set_whose_sizes_divide_by_nothing() -> None:
    asked: dict[str, set[str]] = {}
    for seed in range(60):
        found = {name: [d.regime for d in schedule(SETS, seed) if d.input_set == name] for name in ("small", "ragged")}
        assert found["ragged"][0] == found["small"][0] == "nominal"
        assert sorted(found["ragged"][1:]) == sorted(REGIMES)
        assert len(found["small"]) == 1 + -(-len(REGIMES) // 2)
        asked.setdefault("small", set()).update(found["small"])
    assert asked["small"] == {"nominal", *REGIMES}  # one time or another
    without = [s for s in SETS if s.name != "ragged"]
    assert sorted(d.regime for d in schedule(without, 1) if d.input_set == "small") == sorted(("nominal", *REGIMES))


def test_a_full_set_always_gets_rows_of_all_sizes_and_another_regime() -> None:
    asked = [[d.regime for d in schedule(SETS, seed) if d.input_set == "full"] for seed in range(100)]
    assert all(regimes[:2] == ["nominal", "mixed"] for regimes in asked)
    assert len({regimes[2] for regimes in asked}) > 5
    big = [[d.regime for d in schedule(SETS, seed, big=True) if d.input_set == "full"] for seed in range(100)]
    assert all(regimes[:2] == ["nominal", "mixed"] for regimes in big)
    assert {len(regimes) for regimes in big} == {2, 3}


PLAIN = BOUNDED.replace("self.norm = nn.LayerNorm(24)", "self.scale = 3.0").replace("self.norm(x)", "x.softmax(-1)")


@pytest.mark.parametrize(("precision", "lower"), [("fp32", 2), ("tf32", 2), ("bf16", 2), ("fp16", 0)])
def test_numbers_that_are_very_negative_keep_some_spread(precision: str, lower: int) -> None:
    inputs = TaskInputs(Task("plain", PLAIN), InputSet(FULL), precision, "cpu")
    for seed in range(5):
        inputs.draw(Draw(FULL, "low", seed))
        assert inputs.inputs[0].max() < -500
        assert (inputs.inputs[0].amax(1) < -10_000).sum() == lower, "of four rows: there, padding of -10,000 is the largest"
        assert all(row.unique().numel() > 4 for row in inputs.inputs[0])


def test_of_a_few_rows_some_are_tiny() -> None:
    """An epsilon of 1e-4 shows in rows of 1e-6; of seven rows each gets another lot."""
    inputs = TaskInputs(Task("plain", PLAIN), InputSet(FULL, {"B": 7}), "fp32", "cpu")
    for seed in range(20):
        inputs.draw(Draw(FULL, "mixed", seed))
        largest = inputs.inputs[0].abs().amax(1)
        assert ((largest > 0) & (largest < 1e-5)).sum() == 1
        assert (largest > 64).sum() == 1


def test_no_input_is_huge_under_sixteen_bits() -> None:
    asked = {p: {d.regime for d in schedule(SETS, 99, precision=p)} for p in ("fp32", "tf32", "bf16", "fp16")}
    assert [p for p, regimes in asked.items() if "huge" in regimes] == ["fp32", "tf32"]
    assert asked["fp32"] - asked["bf16"] == {"huge"}


def test_flatten_and_rebuild_are_inverses() -> None:
    value = [1, (2, [3]), {"a": 4}]
    assert rebuild(value, flatten(value)) == value


def test_bf16_casts_floats_and_nothing_else() -> None:
    inputs = made("bf16")
    assert inputs.inputs[0].dtype == torch.bfloat16
    assert inputs.inputs[1].dtype == torch.int64
    answer = ReferenceAnswers(inputs).answer()
    assert answer.dtypes == [torch.bfloat16] * 3
    assert [name.rpartition(".")[2] for name in answer.statistics] == ["running_mean", "running_var"]
    assert answer.truth[0].dtype == torch.float64


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 2), (1, 3, 2, 1), (2, 2, 2, 2)])
def test_float64_convolutions_by_matrix_products(dims: int, stride: int, padding: int, dilation: int, groups: int) -> None:
    g = torch.Generator().manual_seed(0)
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x = torch.randn(2, 4, *[8] * dims, generator=g, dtype=torch.float64)
    bias = torch.randn(6, generator=g, dtype=torch.float64)
    plain, transposed = getattr(F, f"conv{dims}d"), getattr(F, f"conv_transpose{dims}d")
    w = torch.randn(6, 4 // groups, *[3] * dims, generator=g, dtype=torch.float64)
    with Exact():
        mine = plain(x, w, bias, **how)
    assert torch.allclose(mine, plain(x, w, bias, **how))
    w = torch.randn(4, 6 // groups, *[3] * dims, generator=g, dtype=torch.float64)
    more = {"output_padding": stride - 1}
    with Exact():
        mine = transposed(x, w, bias, **how, **more)
    assert torch.allclose(mine, transposed(x, w, bias, **how, **more))


def test_rounding_anew_moves_a_sum_more_than_its_neighbours() -> None:
    x = torch.randn(64, 4096, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    u = 2.0**-24
    with Exact(roundoff=u):
        total, double = x.sum(1), x * 2
    moved, shifted = (total - x.sum(1)).abs(), (double - 2 * x).abs() / (2 * x.abs())
    assert 0 < shifted.max() < 2 * u
    assert moved.max() > 100 * u, "4096 numbers one after another lose more than one rounding"
    with Exact():
        assert torch.equal(x.sum(1), total) is False
        assert torch.equal(x * 2, 2 * x)


def test_timed_numbers_are_like_the_task_s_own() -> None:
    task = Task("even", CODE_OF_TWO)
    inputs = TaskInputs(task, task.input_sets[0], "fp32", "cpu")
    inputs.refresh()
    even, normal = inputs.inputs
    assert 0 <= even.min() < 0.05
    assert 0.95 < even.max() <= 1
    assert abs(normal.mean() - 1) < 0.2
    assert normal.max() > 6


CODE_OF_TWO = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b):
        return a + b
def get_inputs():
    return [torch.rand(4096), 2 * torch.randn(4096) + 1]
def get_init_inputs():
    return []
"""
