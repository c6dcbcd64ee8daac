"""The float64 reference in slices: the same as in one run, planned as it runs, and left out where samples depend on others."""

from __future__ import annotations

from random import Random

import pytest
import torch
from support import TESTS
from torch import Tensor

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.sample import Draft, sample
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.judge import judge_server
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.judge_server import Judge
from kernrl.verifier.judge.memory_estimate import rehearse
from kernrl.verifier.judge.regimes import NOMINAL
from kernrl.verifier.judge.truth import find_slices as finding
from kernrl.verifier.judge.truth.find_slices import find_slices
from kernrl.verifier.judge.truth.reference_answers import ReferenceAnswers
from kernrl.verifier.judge.truth.slices import Slices

FOREIGN = (
    "autoencoder_error", "mean_attention_map", "conv3d_group_pool_logsumexp", "muscle_envelope", "portfolio_risk_rows",
    "transposed_1d_dilated_bias", "delta_memory_read", "object_claims", "linear_attention_softplus", "lidar_bev_hardsigmoid",
)  # fmt: skip


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "SLICED_BYTES", 0)
    monkeypatch.setattr(finding, "SLICE_BYTES", 1 << 9)
    monkeypatch.setattr(finding, "MOST_SLICES", 5)


def made(init: str, forward: str, *shapes: tuple[int, ...], name: str = "made") -> Task:
    """A task of a constructor's and a `forward`'s lines in x and y."""
    body = [f"        {line}" for line in init.splitlines()], [f"        {line}" for line in forward.splitlines()]
    inputs = ", ".join(f"torch.randn{shape}" for shape in shapes or ((12, 4, 10), (12, 10)))
    lines = [
        "import torch", "import torch.nn as nn", "import torch.nn.functional as F", "", "",
        "class Model(nn.Module):", "    def __init__(self):", "        super().__init__()", *body[0], "",
        "    def forward(self, x, y):", *body[1], "", "", "def get_inputs():", f"    return [{inputs}]", "", "",
        "def get_init_inputs():", "    return []", "",
    ]  # fmt: skip
    return Task(name, "\n".join(lines))


def truths(
    task: Task, input_set: InputSet, slices: Slices | None, precision: str = "fp32"
) -> tuple[list[Tensor], Slices | None]:
    """The float64 truth on one draw, and the slices in which it was made."""
    inputs = TaskInputs(task, input_set, precision, "cpu")
    inputs.draw(Draw(input_set.name, NOMINAL, 3))
    reference = ReferenceAnswers(inputs, slices=slices)
    return reference.answer().truth, reference.slices


def assert_same(task: Task, input_set: InputSet, slices: Slices) -> bool:
    """Whether the truth was made in slices; if so, that it is what one run gives."""
    (ours, used), (whole, _) = truths(task, input_set, slices), truths(task, input_set, None)
    assert len(ours) == len(whole)
    for a, b in zip(ours, whole, strict=True):
        scale = float(b.abs().max()) if b.is_floating_point() and b.numel() else 0.0
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12 * scale, equal_nan=True)
        assert [i for i in range(a.dim()) if a.stride(i) == 1] == [i for i in range(b.dim()) if b.stride(i) == 1]
    return used is not None


def start(d: Draft) -> None:
    """A small first input."""
    d.x = d.input(*d.rng.choice([(9, 20), (12, 16), (5, 4, 12), (4, 3, 8, 8), (3, 8, 6, 6, 6), (7, 9, 6)]))


def of_random_graph(seed: int) -> Task:
    rng = Random(f"slices {seed}")
    return Task(f"random-{seed}", write(sample(rng, 5, start=start, most=1 << 14), Hand.draw(rng), rng))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_tasks_have_the_same_truth(seed: int) -> None:
    task = of_random_graph(seed)
    if slices := find_slices(task, InputSet(FULL)):
        assert_same(task, InputSet(FULL), slices)


@pytest.mark.slow
def test_many_random_tasks_have_slices() -> None:
    assert sum(find_slices(of_random_graph(seed), InputSet(FULL)) is not None for seed in range(24)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_modules_have_the_same_truth(name: str) -> None:
    task = with_input_sets(load_tasks(TESTS / "foreign" / f"{name}.py").tasks[0])
    smallest = task.input_set("small")
    assert smallest
    slices = find_slices(task, smallest)
    assert slices
    assert assert_same(task, smallest, slices)


BATCH = 12
FORCED = Slices(BATCH, 5, (0, 0), (0,))
"""What a plan would say of modules of which a Graph shows too little."""


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ('self.register_buffer("h", torch.ones(10))', "out = x + self.h\nself.h.copy_(x.mean((0, 1)))\nreturn out"),
        ('self.register_buffer("h", torch.ones(10))', "out = x + self.h\nself.h.data.mul_(2)\nreturn out"),
        ('self.register_buffer("h", torch.ones(10))', "out = x + self.h\nself.h = self.h * 2\nreturn out"),
        ("self.h = [torch.ones(10)]", "self.h[0].mul_(1 if x.shape[0] == 12 else 2)\nreturn x + self.h[0]"),
        ("self.kept = []", "self.kept.append(x)\nreturn x * (1 if x.shape[0] == 12 else len(self.kept))"),
        ("self.scale = 1.0", "out = x * self.scale\nself.scale = 1.0 if x.shape[0] == 12 else 3.0\nreturn out"),
        ("self.bn = nn.BatchNorm1d(4)", "return self.bn(x)"),
        ("self.bn = nn.BatchNorm1d(4)", "self.bn(x)\nreturn x * 2"),
        (
            'self.register_buffer("running_mean", torch.zeros(4))\nself.register_buffer("running_var", torch.ones(4))',
            "F.batch_norm(x, self.running_mean, self.running_var, training=True)\nreturn x * 2",
        ),
        ("", "assert x.shape[0] == 12\nreturn x + y[:, None]"),
        ("", "return x.mean(0, keepdim=True)"),
        ("", "return (x * 2).floor() + y[:, None]"),
        ("", "return x, y.sum(1)"),
    ],
)  # fmt: skip
def test_what_depends_on_other_slices_runs_whole(init: str, forward: str) -> None:
    assert not assert_same(made(init, forward), InputSet(FULL), FORCED)


def test_every_slice_gets_the_arguments_as_they_were() -> None:
    task = made("", "x = x + y\ny += 1\nreturn x", (12, 10), (10,))
    whole_numbers = task.pytorch_code.replace("torch.randn(10,)", "torch.arange(10)")
    task = Task("made", whole_numbers)
    assert assert_same(task, InputSet(FULL), Slices(12, 5, (0, None), (0,)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "forward",
    [
        "return x.softmax(0)", "return x - x.mean(0)", "return y @ y.T", "return x.flip(0)", "return x.cumsum(0)",
        "return x.reshape(-1, 10).softmax(0)", "return (x + y[:, None]) / x.shape[0]", "return torch.dropout(x, 0.5, True)",
        "return x * torch.rand(x.shape[0], 1, 1)", "assert x.shape[0] == 12\nreturn x + y[:, None]", "return x, x.mean()",
    ],
)  # fmt: skip
def test_what_a_graph_shows_to_depend_on_other_samples_has_no_slices(forward: str) -> None:
    found = find_slices(made("", forward), InputSet(FULL))
    assert found is None or found.size != BATCH, "only along other axes"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "axes"),
    [
        ("return x.softmax(2) + y[:, None]", (0,)),
        ("return x.permute(2, 0, 1) * 2, y.sum(1)", (1, 0)),
        ("return [(x * 2, y), x.mean(1)]", (0, 0, 0)),
        ('return {"b": y.T * 2, "a": x * 2}', (0, 2)),
        ("return x.argmax(2), (x > 0) & (y[:, None] > 0)", (0, 0)),
        ("return x.double() + y[:, None].half()", (0,)),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_outputs_of_slices_are_put_together(forward: str, axes: tuple[int, ...], precision: str) -> None:
    task = made("", forward)
    slices = find_slices(task, InputSet(FULL))
    assert slices
    assert slices.outputs == axes
    used = truths(task, InputSet(FULL), slices, precision)[1]
    assert (used is not None) == (">" not in forward), "a comparison jumps"
    assert_same(task, InputSet(FULL), slices)


def test_the_last_slice_may_be_shorter_and_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MOST_SLICES", 3)
    ordinary = made("", "return x + y[:, None]", (13, 4, 10), (13, 10))
    assert find_slices(ordinary, InputSet(FULL)) == Slices(13, 5, (0, 0), (0,))
    picky = made("", "assert x.shape[0] != 3\nreturn x.sum((1, 2)) + y.sum(1)", (13, 4, 10), (13, 10))
    assert find_slices(picky, InputSet(FULL)) is None


def test_small_tasks_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    task = made("", "return torch.tanh(x) + y[:, None]", (1 << 10, 64, 1 << 10), (1 << 10, 1 << 10))
    monkeypatch.undo()
    assert find_slices(task, InputSet(FULL)) is not None
    smaller = made("", "return torch.tanh(x) + y[:, None]", (1 << 10, 16, 1 << 10), (1 << 10, 1 << 10))
    assert find_slices(smaller, InputSet(FULL)) is None


WIDE = made("", "return torch.tanh(x[:, :, None] * x[:, None]).exp().mean((1, 2)) + y", (24, 50, 40), (24, 40), name="wide")


@pytest.mark.slow
def test_the_plan_says_what_runs_in_slices_and_how_little_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rounding is not modelled, in a run of its own, which takes as much."""
    sliced, real = (rehearse(WIDE, InputSet(FULL), "bf16", device) for device in ("meta", "cpu"))
    assert sliced.slices is not None
    assert sliced.slices == real.slices
    assert abs(sliced.answering_peak - real.answering_peak) < 0.1 * real.answering_peak
    monkeypatch.setattr(finding, "SLICED_BYTES", 1 << 40)
    whole = rehearse(WIDE, InputSet(FULL), "bf16")
    assert whole.slices is None
    assert sliced.answering_peak < 0.7 * whole.answering_peak


def test_the_plan_knows_what_turns_out_to_run_whole() -> None:
    assert find_slices(made("", "return x.floor()"), InputSet(FULL)) is not None
    assert rehearse(made("", "return x.floor()"), InputSet(FULL), "bf16").slices is None


def test_the_judge_makes_its_answers_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, draws = Judge("cpu"), [Draw(FULL, NOMINAL, 3)]
    slices = find_slices(WIDE, InputSet(FULL))
    assert slices
    references = list[ReferenceAnswers]()
    monkeypatch.setattr(judge_server, "ReferenceAnswers", lambda *a: references.append(ReferenceAnswers(*a)) or references[-1])
    judge.prepare(WIDE, "fp32", draws, {FULL: slices})
    judge.prepare(made("", "return x + y[:, None]"), "fp32", draws)
    assert [reference.slices for reference in references] == [slices, None]
