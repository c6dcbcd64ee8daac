"""What `--resume` takes and refuses, and that it does so before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernrl import command, console
from kernrl.cli import run
from kernrl.config import BestOfNConfig, Config, EvalConfig, ReinforceConfig, SftConfig
from kernrl.config.resume import COMMANDS
from kernrl.errors import UsageError
from kernrl.runs.run_directory import RunDirectory
from kernrl.settings import load_config
from kernrl.training import confirm_samples


def begun(folder: Path, config: type[Config] = ReinforceConfig, **settings: Any) -> Path:
    given = {"model": "nano", "output": folder, **settings}
    RunDirectory.open(folder, load_config(config, (), given), resume=False).log(step=1)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_is_asked_for(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--resume"]) == 2
    assert capsys.readouterr().err == "kernrl: --resume needs --output, the folder of the run to go on with.\n"


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_changed_setting_is_refused_in_the_words_of_the_command_line(
    tmp_path: Path, dry: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["reinforce", "--resume", "--output", str(begun(tmp_path / "run")), *dry]
    assert run([*line, "--samples", "4", "--no-facts", "--lora-targets", "q_proj,v_proj", "--prompt", "chat"]) == 2
    assert capsys.readouterr().err == (
        f"kernrl: --resume: the run in {tmp_path}/run has --prompt unset, not chat; --facts, not --no-facts; "
        "--lora-targets all-linear, not q_proj,v_proj; --samples 16, not 4: leave them out to go on with the run's, or give "
        "another --output.\n"
    )


def test_what_does_not_change_the_weights_may_differ(tmp_path: Path) -> None:
    line = ["reinforce", "--resume", "--output", str(begun(tmp_path / "run")), "--dry-run", "--quiet"]
    assert run([*line, "--push-to-hub", "me/it", "--project", "p", "--run-name", "n", "--keep", "3"]) == 0
    exam = ["--evaluate-every", "2", "--evaluate-limit", "5", "--evaluate-samples", "1", "--evaluate-tasks", "x"]
    assert run([*line, *exam]) == 0
    line = ["sft", "--resume", "--output", str(begun(tmp_path / "sft", SftConfig)), "--dry-run", "--quiet"]
    assert run([*line, "--verify-every", "5", "--verify-tasks", "7", "--heldout-samples", "2", "--push-to-hub", "me/it"]) == 0


def test_the_best_step_is_of_one_exam(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = begun(tmp_path / "run", keep_best=True, evaluate_every=1)
    assert run(["reinforce", "--resume", "--output", str(folder), "--evaluate-limit", "5", "--dry-run"]) == 2
    assert "has --evaluate-limit 32, not 5: leave it out" in capsys.readouterr().err
    folder = begun(tmp_path / "later")
    line = ["reinforce", "--resume", "--output", str(folder), "--evaluate-limit", "5", "--dry-run"]
    assert run([*line, "--evaluate-every", "1", "--keep-best"]) == 2


def test_an_older_best_of_n_goes_on_with_the_candidates_that_it_kept(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", BestOfNConfig)
    described = json.loads((folder / "config.json").read_text())
    del described["config"]["keep_candidates"]
    described["config"]["keep"] = 7
    (folder / "config.json").write_text(json.dumps(described))
    assert resumed(folder, BestOfNConfig).keep_candidates == 7


def older(folder: Path, **settings: Any) -> Path:
    """The run as it was before tasks of ours were tf32 and prompts named the GPU."""
    described = json.loads((folder / "config.json").read_text())
    del described["config"]["name_gpu"]
    described["config"] |= settings
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def resumed(folder: Path, config: type[Config], **settings: Any) -> Any:
    found = load_config(config, (), {"output": folder, "resume": True, **settings})
    RunDirectory.open(folder, found, resume=True)
    return found


@pytest.mark.parametrize("source", ["heldout", "heldout#2", "graph-heldout", "heldout::gen-2-2026-000019"])
def test_an_older_evaluation_goes_on_under_fp32(tmp_path: Path, source: str) -> None:
    found = resumed(older(begun(tmp_path / "run", EvalConfig, tasks=source)), EvalConfig)
    assert (found.judging.precision, found.name_gpu) == ("fp32", False)
    with pytest.raises(UsageError, match="has --precision fp32, not tf32: leave it out"):
        resumed(tmp_path / "run", EvalConfig, precision="tf32")


def test_an_older_run_of_tasks_that_say_their_precision_keeps_it(tmp_path: Path) -> None:
    assert resumed(older(begun(tmp_path / "own", EvalConfig, tasks="mine.jsonl")), EvalConfig).judging.precision is None
    asked = begun(tmp_path / "asked", EvalConfig, tasks="heldout", precision="bf16")
    assert resumed(older(asked), EvalConfig).judging.precision == "bf16"
    assert resumed(begun(tmp_path / "new", EvalConfig, tasks="heldout"), EvalConfig).judging.precision is None


@pytest.mark.parametrize("config", [SftConfig, BestOfNConfig, ReinforceConfig])
def test_an_older_training_on_generated_tasks_goes_on_under_fp32(tmp_path: Path, config: type[Config]) -> None:
    found = resumed(older(begun(tmp_path / "run", config)), config)
    assert (found.verifier.precision, found.name_gpu) == ("fp32", False)
    new = resumed(begun(tmp_path / "new", config), config)
    assert (new.verifier.precision, new.name_gpu) == (None, True)


def test_an_older_best_of_n_goes_on_with_the_epsilon_that_it_had(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", BestOfNConfig)
    described = json.loads((folder / "config.json").read_text())
    del described["config"]["adam_epsilon"]
    (folder / "config.json").write_text(json.dumps(described))
    again = {"output": folder, "resume": True}
    resumed = load_config(BestOfNConfig, (), again)
    assert resumed.adam_epsilon == 1e-8
    RunDirectory.open(folder, resumed, resume=True)
    with pytest.raises(UsageError, match="older than a setting: add --adam-epsilon 1e-08 to"):
        RunDirectory.open(folder, load_config(BestOfNConfig, (), {**again, "adam_epsilon": 1e-2}), resume=True)


@pytest.mark.parametrize("command", ["sft", "best-of-n", "reinforce", "reward-weighted"])
def test_keep_says_confirm_samples_checkpoints(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = [] if command == "sft" else ["--model", "nano"]
    assert run([command, *model, "--output", "run", "--keep", "4", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keep_checkpoints"] == 4


REFUSED = """
import sys
from kernrl.cli import run

code = run(sys.argv[1:])
print(code, [name for name in ("torch", "transformers", "accelerate") if name in sys.modules])
"""


@pytest.mark.slow
def test_what_is_refused_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    folder, full = begun(tmp_path / "run"), tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    for more, said in (
        (["--output", str(full)], "is not empty; name a new folder"),
        (["--output", str(folder)], "is not empty; resume the run in it with --resume"),
        (["--output", str(folder), "--resume", "--samples", "3"], "has --samples 16, not 3"),
        (["--output", str(tmp_path / "new"), "--samples", "100000"], "--samples 100000 asks for 2,400,000 replies at a time"),
    ):
        line = [sys.executable, "-c", REFUSED, "reinforce", "--model", "nano", *more]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        assert said in done.stderr
        assert done.stdout == "2 []\n"
    assert not (tmp_path / "new").exists()


def test_a_question_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(confirm_samples, "ask", asked.append)
    config = ReinforceConfig(model="nano", output=Path("run"), samples=100_000)
    meant = confirm_samples.confirmed(config)
    confirm_samples.confirm_samples(meant.samples, 24, yes=meant.yes)
    assert asked == ["--samples 100000 asks for 2,400,000 replies at a time"]
    assert confirm_samples.confirmed(ReinforceConfig(model="nano", output=Path("run"))).yes is False


def test_a_launcher_asks_for_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that starts late finds the folder that the first has made."""
    config = ReinforceConfig(model="nano", output=begun(tmp_path / "run"))
    with pytest.raises(UsageError, match="is not empty"):
        command.startable(config, dry_run=False)
    monkeypatch.setattr(console, "launched", lambda: True)
    assert command.startable(config, dry_run=False) == config
