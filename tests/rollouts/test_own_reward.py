"""A reward of the user's own, by import path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernrl import cli
from kernrl.config import BestOfNConfig
from kernrl.errors import RunError, UsageError
from kernrl.rollouts.own_reward import own_reward
from kernrl.training.session import reward_of
from kernrl.verifier.base.verdict import Stage, Status, Verdict


def verdict(status: Status) -> Verdict:
    return Verdict(status, Stage.TIMING, "", "t", "sha", "fp32")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory, which is not on the path."""
    (tmp_path / "own_rewards_for_a_test.py").write_text(
        "number = 3\n"
        "def short(verdict): return 2 * verdict.correct\n"
        "def raises(verdict): return 1 / 0\n"
        "def words(verdict): return 'good'\n"
        "def infinite(verdict): return float('inf')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield "own_rewards_for_a_test"
    sys.modules.pop("own_rewards_for_a_test", None)


def test_it_is_used_in_place_of_a_preset(module: str, tmp_path: Path) -> None:
    worth = reward_of(BestOfNConfig(model="nano", output=tmp_path / "o", reward=f"{module}:short"))
    correct, wrong = worth(verdict(Status.CORRECT)), worth(verdict(Status.WRONG))
    assert (correct and correct.value, wrong and wrong.value) == (2.0, 0.0)
    assert correct
    assert correct.parts == {"own": 2.0}


@pytest.mark.parametrize("status", [Status.INFRA_ERROR, Status.NEEDS_GPU])
def test_what_could_not_be_judged_is_not_asked_about(module: str, status: Status) -> None:
    assert own_reward(f"{module}:raises")(verdict(status)) is None


@pytest.mark.parametrize(("name", "said"), [("raises", "raised ZeroDivisionError"), ("words", "'good'"), ("infinite", "inf")])
def test_what_it_gets_wrong_is_one_sentence(module: str, name: str, said: str) -> None:
    with pytest.raises(RunError, match=said):
        own_reward(f"{module}:{name}")(verdict(Status.CORRECT))


@pytest.mark.parametrize(
    ("name", "said"),
    [("missing", "has no 'missing'"), ("number", "number is no function")],
)
def test_what_is_not_there_is_one_sentence(module: str, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--reward {module}:{name}: .*{said}"):
        own_reward(f"{module}:{name}")
    with pytest.raises(UsageError, match="--reward no_such_module:f: no_such_module cannot be imported"):
        own_reward("no_such_module:f")


def test_the_flag_takes_presets_and_paths_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["best-of-n", "--model", "nano", "--output", "o", "--reward", "fastest", "--dry-run"]) == 2
    assert (
        "--reward should be hierarchical, best-of-n, milestones, log-speed, best-known or an import path"
        in capsys.readouterr().err
    )
    assert cli.run(["best-of-n", "--model", "nano", "--output", "o", "--reward", "my.rewards:fn", "--dry-run"]) == 0
