"""Tasks that cannot tell right from wrong are left out before anything is learned from them, and the reason is said."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import EXHAUSTIVE, ROOT, suite

from kernrl.config import BestOfNConfig, SftConfig, VerifierConfig
from kernrl.errors import UsageError
from kernrl.tasks.task import InputSet, Task
from kernrl.training import lint_tasks
from kernrl.training.lint_tasks import fitting_tasks, sound_tasks
from kernrl.training.session import read_tasks
from kernrl.training.sft_data import read_pairs

SOURCE = """
import torch
import torch.nn as nn
N = 64


class Model(nn.Module):
    def forward(self, x):
        return torch.{op}


def get_inputs():
    return [torch.randn(N, N)]


def get_init_inputs():
    return []
"""
SETS = (InputSet("full"), InputSet("small", {"N": 8}))
GOOD = Task("good", SOURCE.format(op="tanh(x)"), input_sets=SETS)
BLIND = Task("blind", SOURCE.format(op="relu(x - 1e9)"), input_sets=SETS)
IDENTITY = Task("identity", SOURCE.format(op="add(x, 0.0)"), input_sets=SETS)
BROKEN = Task("broken", SOURCE.format(op="no_such_function(x)"), input_sets=SETS)
LARGE = Task("large", SOURCE.format(op="relu(x - 1e9)"))

CONSTANT = ("share_of_one",)
"""Tasks of the suite whose output is the same whatever goes in: faithful candidates are right, and nothing can be learned."""
KINDS = sorted(path.stem for path in (ROOT / "tests" / "fixture_tasks").glob("*.py"))
LINTED = KINDS if EXHAUSTIVE else sorted({*KINDS[::4], *CONSTANT})
"""By day a quarter; `tests/verifier` judges candidates of every one."""


@pytest.fixture
def config(tmp_path: Path) -> VerifierConfig:
    return VerifierConfig(cache_dir=tmp_path / "cache", device="cpu")


@pytest.mark.slow
def test_each_unsound_task_is_left_out_with_a_sentence(config: VerifierConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert sound_tasks([BLIND, GOOD, IDENTITY, BROKEN], config) == [GOOD]
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["Skipped"] * 3
    assert said[0] == "Skipped: blind: an output of zeros passes for right, so it cannot tell right from wrong."
    assert "identity: a copy of the input passes" in said[1]
    assert "broken" in said[2]
    assert "no_such_function" in said[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", LINTED)
def test_an_honest_task_of_every_kind_passes(name: str, config: VerifierConfig, capsys: pytest.CaptureFixture[str]) -> None:
    task = suite.fixture_task(name)
    if name in CONSTANT:
        assert sound_tasks([task, GOOD], config) == [GOOD]
    else:
        assert sound_tasks([task], config) == [task]
    assert (name in capsys.readouterr().err) == (name in CONSTANT)


def test_no_task_left_is_an_error(config: VerifierConfig) -> None:
    with pytest.raises(UsageError, match=r"no task can be learned from. blind: an output of zeros .* wrong\.$"):
        sound_tasks([BLIND], config)


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_tasks_that_state_no_small_shapes_are_linted_at_derived_ones(
    config: VerifierConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Task("plain", GOOD.pytorch_code)
    assert sound_tasks([LARGE, plain], config) == [plain]
    assert "large: an output of zeros passes" in capsys.readouterr().err


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_tasks_without_any_small_shapes_wait_for_a_gpu(config: VerifierConfig, capsys: pytest.CaptureFixture[str]) -> None:
    nameless = Task("nameless", LARGE.pytorch_code.replace("(N, N)", "(int('64'), int('64'))"))
    assert sound_tasks([nameless, GOOD], config) == [nameless, GOOD]
    assert "1 of 2 tasks" in capsys.readouterr().err


@pytest.mark.slow
def test_answers_are_kept_by_what_a_task_asks(config: VerifierConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    sound_tasks([BLIND, GOOD], config, tell=False)
    asked: list[str] = []
    monkeypatch.setattr(lint_tasks, "lint", lambda task, *_, **__: asked.append(task.id) or [])
    renamed = Task("renamed", GOOD.pytorch_code, input_sets=SETS)
    assert sound_tasks([BLIND, renamed], config, tell=False) == [renamed]
    assert asked == []
    other = Task("good", GOOD.pytorch_code, input_sets=(InputSet("full"), InputSet("small", {"N": 9})))
    assert sound_tasks([other], config, tell=False) == [other]
    assert sound_tasks([GOOD], config.model_copy(update={"precision": "bf16"}), tell=False) == [GOOD]
    assert asked == ["good", "good"]


def test_generated_tasks_are_not_asked_again(config: VerifierConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(lint_tasks, "lint")
    made = Task("gen", BLIND.pytorch_code, composition=("relu",), input_sets=SETS)
    assert sound_tasks([made], config) == [made]


def test_a_runs_random_numbers_do_not_depend_on_the_lint(config: VerifierConfig) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    sound_tasks([GOOD], config)
    assert torch.equal(torch.rand(4), expected)


def table(folder: Path) -> Path:
    """Both tasks as rows, with a solution each."""
    path = folder / "tasks.jsonl"
    rows = [
        {"id": f"{task.id}-{n}", "pytorch_code": task.pytorch_code, "triton_code": f"# {task.id}", "split": split}
        | {"input_sets": [{"name": s.name, "constants": dict(s.constants)} for s in SETS]}
        for n, split in enumerate(("train", "train", "validation"))
        for task in (GOOD, BLIND)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_both_doors_to_training_are_guarded(config: VerifierConfig, tmp_path: Path) -> None:
    source = str(table(tmp_path))
    improve = BestOfNConfig(model="nano", output=tmp_path / "run", tasks=source, verifier=config)
    assert {task.id for task in read_tasks(improve)} == {"good-0", "good-1", "good-2"}
    sft = SftConfig(model="nano", output=tmp_path / "sft", data=source, verifier=config)
    answers = [pair.completion for split in ("train", "validation") for pair in read_pairs(sft, split)]
    assert len(answers) == 3
    assert all("# good" in answer for answer in answers)


def test_a_task_larger_than_the_gpu_is_left_out_before_anything_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    small, huge = Task("small", "…"), Task("huge", "…")
    verifier = SimpleNamespace(unfit=lambda task: "huge: judging it takes 900.0 GiB." if task is huge else "")
    assert fitting_tasks([small, huge], verifier) == [small]
    assert "Skipped: huge: judging it takes 900.0 GiB." in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"^huge: judging it takes 900\.0 GiB"):
        fitting_tasks([huge], verifier)
    elsewhere = SimpleNamespace(unfit=lambda task: "")
    assert fitting_tasks([huge], elsewhere) == [huge], "a server elsewhere says it with the first verdict"
