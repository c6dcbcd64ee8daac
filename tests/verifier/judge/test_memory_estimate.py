"""The rehearsal of a task's memory against real runs, and what keeps the peaks low."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from support import TESTS

from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.judge import inputs, structure
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.live_bytes import LiveBytes
from kernrl.verifier.judge.memory_estimate import rehearse
from kernrl.verifier.judge.regimes import REGIMES
from kernrl.verifier.judge.truth import float64_convolutions, reference_answers
from kernrl.verifier.judge.truth.reference_copy import default_dtype
from kernrl.verifier.pool.task_facts import gather_facts

MODERATE = (
    "factorized_interactions", "deep_narrow_chain", "softmax_of_one_gate", "time_series_decomp", "leaf_lesson",
    "linear_chain_logsigmoid", "transposed_1d_dilated_bias", "gaussian_policy_head", "dense_head_eval_dropout",
    "one_logit_center",
)  # fmt: skip


def foreign(name: str) -> Task:
    return load_tasks(TESTS / "foreign" / f"{name}.py").tasks[0]


def fixture(name: str) -> Task:
    return load_tasks(TESTS / "fixture_tasks" / f"{name}.py").tasks[0]


@pytest.fixture(autouse=True)
def modelled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often a small output is modelled depends on its numbers, which a rehearsal does not have: it plans for most."""
    monkeypatch.setattr(reference_answers, "FEW_ERRORS", 1)


def differences(task: Task, name: str, precision: str) -> dict[str, tuple[int, int]]:
    """Figures of the plan that are more than 10 % off, with what a real run held."""
    input_set = task.input_set(name)
    assert input_set is not None
    planned, real = (asdict(rehearse(task, input_set, precision, device)) for device in ("meta", "cpu"))
    assert planned.pop("slices") == real.pop("slices")
    return {k: (planned[k], real[k]) for k in real if abs(planned[k] - real[k]) > 0.1 * real[k] + 4096}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODERATE)
def test_the_plan_is_what_a_real_run_holds(name: str) -> None:
    assert differences(foreign(name), FULL, "tf32") == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("conv_bn_relu", "fp32"), ("convtranspose_tanh", "tf32"), ("gqa_attention", "bf16"), ("swiglu_mlp", "fp16"),
        ("rope_qk", "bf16"), ("dequant_fp8", "fp32"), ("two_pools", "fp32"), ("qkv_block", "tf32"),
        ("token_embedding_norm", "fp32"), ("argmax_rows", "fp32"), ("causal_attention", "fp32"),
        ("spectral_filter", "fp32"), ("scaled_spectrum", "tf32"), ("bag_gate", "bf16"), ("bessel_ratio", "fp32"),
        ("kl_rows", "bf16"), ("gated_recurrence", "fp32"), ("preference_loss", "fp32"), ("linear_groupnorm_leaky", "fp32"),
    ],
)  # fmt: skip
def test_the_plan_of_small_sets(name: str, precision: str) -> None:
    task = fixture(name)
    assert differences(task, task.input_sets[-1].name, precision) == {}


def test_a_transform_works_in_as_much_memory_again_and_overwrites_a_copy_of_complex_numbers() -> None:
    task = fixture("scaled_spectrum")
    peaks = {}
    for name in ("rfft(x)", "irfft(x.to(torch.complex64))"):
        source = task.pytorch_code.replace("torch.fft.rfft(x) * self.gain", f"torch.fft.{name}").replace("B = 16", "B = 4096")
        peaks[name] = rehearse(Task(name, source), InputSet(FULL), "fp32").eager_peak
    x, bins = 4 * 4096 * 256, 8 * 4096 * 129
    assert peaks["rfft(x)"] == pytest.approx(x + 2 * bins, rel=0.01), "its input, its result, and as much to work in"
    made = 4 * 4096 * 510
    assert peaks["irfft(x.to(torch.complex64))"] == pytest.approx(x + 2 * x + made + made + 2 * x, rel=0.01)


JUMPING = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(96, 64)

    def forward(self, x):
        x = self.layer(x)
        return {expression}


def get_inputs():
    return [torch.randn(512, 96)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("expression", ["F.hardshrink(x)", "x - torch.floor(x)", "torch.where((4096 * x).sin() > 0.1, x, -x)"])
def test_the_plan_of_a_result_that_jumps_has_the_two_runs_at_either_side(expression: str) -> None:
    """In each of these, some elements always lie near a jump."""
    task = Task("jumps", JUMPING.format(expression=expression))
    assert differences(task, FULL, "fp32") == {}


@pytest.mark.slow
def test_a_plan_of_gibibytes_allocates_nothing() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        found = rehearse(foreign("climate_film_big"), InputSet(FULL), "tf32")
    assert found.answering_peak > 10 << 30
    assert sum(max(event.self_cpu_memory_usage, 0) for event in profile.key_averages()) < 1 << 20


def test_live_bytes_are_what_the_allocator_handed_out() -> None:
    """The tensor that a chain begins with, and two of the chain at a time; views and in-place results are no new memory."""
    x = torch.ones(1 << 16)
    with LiveBytes() as live:
        y = (x + 1).reshape(256, 256).T.mul_(2.0)
        y = y.exp().sqrt() + 1
        assert live.now == y.nbytes
        z = y[:3]
        del y
        assert live.now == 4 << 16
        del z
    assert (live.now, live.peak) == (0, 3 * (4 << 16))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision", "counted"),
    [
        ("conv_bn_relu", "tf32", True), ("conv_bn_relu", "bf16", True), ("conv_bn_relu", "fp32", False),
        ("two_pools", "tf32", False),
    ],
)  # fmt: skip
def test_a_convolution_on_tensor_cores_takes_both_tensors_again(name: str, precision: str, counted: bool) -> None:
    task = fixture(name)
    found = rehearse(task, task.input_sets[-1], precision)
    assert (found.workspace > found.block / 4) == counted
    assert found.eager_peak >= found.inputs + found.workspace


def test_figures_in_parts_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5, 7)
    cases = [
        x, torch.softmax(x, 1), torch.softmax(x, 0), torch.nn.functional.normalize(x, dim=2), x.sort(-1).values, x.round(),
        torch.randn(2, 50).expand(20, 2, 50).contiguous(), torch.tensor(3.0), torch.arange(99.0), (x > 0).float(),
        torch.where(x > 1, torch.inf, x), torch.where(x > 1, torch.nan, x), x.to(torch.float8_e4m3fn), x[:1, :1], x.tril(),
    ]  # fmt: skip
    whole = [structure.figures(one, one) for one in cases]
    monkeypatch.setattr(structure, "AT_ONCE", 13)
    monkeypatch.setattr(structure, "LOOKED_AT", 1 << 20)
    for one, expected in zip(cases, whole, strict=True):
        torch.testing.assert_close(structure.figures(one, one), expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", ["add_layernorm", "conv_bn_relu", "kl_rows"])
def test_draws_in_parts_are_those_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = fixture(name)
    drawn = TaskInputs(task, task.input_sets[-1], "fp32", "cpu")

    def numbers() -> list[torch.Tensor]:
        found = []
        for regime in REGIMES:
            drawn.draw(Draw(FULL, regime, 5))
            found += [x.clone() for x in drawn.inputs]
        return found

    whole = numbers()
    monkeypatch.setattr(inputs, "AT_ONCE", 50)
    for a, b in zip(numbers(), whole, strict=True):
        assert torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5))


@pytest.mark.parametrize("unfolded", [1, 5_000, 40_000])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_in_parts_are_torchs(dims: int, unfolded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float64_convolutions, "UNFOLD_BYTES", unfolded)
    torch.manual_seed(0)
    x, w = torch.randn(3, 4, *[7] * dims).double(), torch.randn(6, 2, *[3] * dims).double()
    for stride, padding, dilation in [(1, 0, 1), (2, 1, 1), (1, 2, 2)]:
        lists = [[n] * dims for n in (stride, padding, dilation)]
        plain = torch.convolution(x, w, None, *lists, False, [0] * dims, 2)
        torch.testing.assert_close(float64_convolutions.convolution(x, w, *lists, 2), plain)
        extra = [int(stride > 1)] * dims
        back = torch.convolution(x, w[:4], None, *lists, True, extra, 2)
        torch.testing.assert_close(float64_convolutions.transposed_convolution(x, w[:4], *lists, extra, 2), back)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["climate_film_big", "segmentation_confidence", "giant_residual_ffn_ln", "conv3d_group_pool_logsumexp"]
)
def test_facts_of_gibibytes_allocate_nothing(name: str) -> None:
    device = device_for("sm_90")
    assert device
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        gather_facts(foreign(name), "tf32", device, on_gpu=True)
    assert sum(max(event.self_cpu_memory_usage, 0) for event in profile.key_averages()) < 1 << 20


WATCHED = """
import sys
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        weight = torch.ones(x.shape[-1], device=x.device)
        sys.modules["watch"].look(x.dtype, weight.dtype)
        return torch.softmax(x, -1) * weight


def get_inputs():
    return [torch.randn(64, 32)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_a_rehearsal_leaves_the_other_threads_of_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, elsewhere, before = list[tuple[torch.dtype, ...]](), set[object](), torch.backends.cuda.matmul.allow_tf32
    running, most = list[int](), [0]

    def look(*dtypes: torch.dtype) -> None:
        running.append(1)
        most[0] = max(most[0], len(running))
        inside.append(dtypes)
        thread = threading.Thread(target=lambda: elsewhere.add(torch.zeros(1).dtype))
        thread.start()
        thread.join()
        running.pop()

    monkeypatch.setitem(sys.modules, "watch", SimpleNamespace(look=look))
    with ThreadPoolExecutor(4) as pool:
        for precision in ("tf32", "fp32") * 4:
            pool.submit(rehearse, Task("watched", WATCHED), InputSet(FULL), precision)
    assert {(torch.float64, torch.float64), (torch.float32, torch.float32)} <= set(inside)
    assert elsewhere == {torch.float32}
    assert most == [1]
    assert torch.get_default_dtype() == torch.float32
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_what_a_reference_makes_is_as_wide_as_the_rest_unless_it_says_otherwise() -> None:
    with default_dtype(torch.float64, torch.device("meta")):
        made = [torch.zeros(2), torch.tensor([1.5]), torch.arange(3.0), torch.full((2,), 0.5), torch.linspace(0, 1, 3)]
        assert {x.dtype for x in made} == {torch.float64}
        assert torch.arange(3).dtype == torch.tensor([1]).dtype == torch.int64
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.float32
        assert torch.zeros(2).half().dtype == torch.float16
