"""Defaults chosen by the model: nano takes what was measured, any other model other values; `--dry-run` shows both."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.tiny import save_tiny_policy

from kernrl.cli import run
from kernrl.config import BestOfNConfig, EvalConfig, ReinforceConfig, RewardWeightedConfig, SftConfig
from kernrl.config.by_model import NANO_SHAPE, ByModel, is_nano
from kernrl.config.resume import with_names_of_today
from kernrl.errors import UsageError
from kernrl.policy.nano import VOCAB_SIZE, nano_config
from kernrl.runs.run_directory import RunDirectory
from kernrl.settings import Config, flatten

COMMANDS: dict[str, type[Config]] = {
    "best-of-n": BestOfNConfig,
    "reinforce": ReinforceConfig,
    "reward-weighted": RewardWeightedConfig,
}
MEASURED = json.loads((ROOT / "docs" / "benchmarks" / "training.json").read_text())["settings"]["runs"]
"""What the runs of docs/notes/2026-11-27-training-fast-nano.md were made with."""

OWN = {"steps", "rounds", "limit", "save_every", "time_limit_s", "seed", "verifier.precision", "name_gpu"}
"""Settings of the measurement, which ends by the clock and names its precision, and one that is not for nano."""

HUB_ID = "Qwen/Qwen2.5-Coder-1.5B-Instruct"


def resolved(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--output", "none", "--dry-run"]) == 0
    return dict(flatten(tomllib.loads(capsys.readouterr().out)))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("model", ["nano", str(ROOT / "checkpoints" / "nano")], ids=["name", "folder"])
def test_nano_takes_what_was_measured(command: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = resolved(capsys, command, "--model", model)
    today = with_names_of_today(COMMANDS[command], MEASURED[{"reinforce": "reinforce-0"}.get(command, command)])
    measured = {name: value for name, value in flatten(today) if name not in OWN}
    assert len(measured) >= 12
    assert {name: found.get(name) for name in measured} == measured
    assert found["lora"] is False


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hub_model_takes_other_values(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, nano = (resolved(capsys, command, "--model", model) for model in (HUB_ID, "nano"))
    assert found["lora"]
    assert found["gradient_checkpointing"]
    assert found["learning_rate"] < 2e-4
    assert found["reward"] == "hierarchical"
    assert not found["modelled_speed"]
    same = {name for name, field in COMMANDS[command].model_fields.items() if isinstance(field.default_factory, ByModel)}
    assert not {name for name in same if found.get(name) == nano.get(name)}


@pytest.mark.parametrize("command", COMMANDS)
def test_all_weights_take_a_lower_rate_than_adapters(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    adapters, whole = (resolved(capsys, command, "--model", HUB_ID, flag) for flag in ("--lora", "--no-lora"))
    assert adapters["learning_rate"] == pytest.approx(10 * whole["learning_rate"])


@pytest.mark.parametrize("flags", [("--engine", "server", "--server-url", "http://x:1"), ("--launch", "fsdp2")])
def test_there_are_no_adapters_where_they_would_be_refused(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert resolved(capsys, "reinforce", "--model", HUB_ID, *flags)["lora"] is False


def test_what_is_given_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "some.toml"
    file.write_text("samples = 5\n[verifier]\ncompile_timeout_s = 60\n")
    found = resolved(capsys, "reinforce", "--model", "nano", "--config", str(file), "--learning-rate", "1e-5")
    given = (found["samples"], found["learning_rate"], found["verifier.compile_timeout_s"])
    assert given == (5, 1e-5, 60)
    assert found["tasks_per_step"] == 24


def test_a_source_of_tasks_is_taken_whole(tmp_path: Path) -> None:
    assert RewardWeightedConfig(model="nano", output=tmp_path).limit == 240
    assert RewardWeightedConfig(model="nano", output=tmp_path, tasks="mine.jsonl").limit is None


def test_nano_is_told_by_its_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = nano_config(VOCAB_SIZE).to_dict()
    assert {name: made[name] for name in NANO_SHAPE} == NANO_SHAPE
    nano_config(640).save_pretrained(tmp_path / "small_vocabulary")
    assert is_nano(str(tmp_path / "small_vocabulary"))
    assert not is_nano(str(save_tiny_policy(tmp_path / "tiny")))  # nano's tokenizer, another model
    (tmp_path / "broken").mkdir()
    for text in ("[]", "{", "\xff"):
        (tmp_path / "broken" / "config.json").write_text(text, encoding="latin-1")
        assert not is_nano(str(tmp_path / "broken"))
    monkeypatch.chdir(ROOT / "checkpoints" / "nano")
    assert not is_nano("")
    assert not is_nano("nobody/nano")


def test_a_baseline_that_is_not_timed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["reinforce", "--model", "nano", "--output", "x", "--reward-baseline", "compile", "--dry-run"]
    assert run(line) == 2
    assert "--reward-baseline compile is not timed: add --verifier.baseline eager,compile" in capsys.readouterr().err
    assert run([*line, "--verifier.baseline", "eager,compile"]) == 0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("reward", ["milestones", "best-known"])
def test_a_reward_that_compares_with_compile_needs_it_timed(
    command: str, reward: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [command, "--model", "nano", "--output", str(tmp_path / "run"), "--reward", reward, "--dry-run"]
    for more in ([], ["--resume"]):
        assert run([*line, *more]) == 2
        assert capsys.readouterr().err == (
            f"kernrl: --reward {reward} compares with eager and compile, and compile is not timed: add --verifier.baseline "
            "eager,compile, or choose another reward.\n"
        )
    assert run([*line, "--verifier.baseline", "compile"]) == 2
    assert "and eager is not timed: add --verifier.baseline compile,eager" in capsys.readouterr().err
    assert run([*line, "--verifier.baseline", "compile,eager"]) == 0


# --- going on with a run ---------------------------------------------------------------------------------------------


def reinforce(**settings: Any) -> ReinforceConfig:
    return ReinforceConfig.model_validate({"model": "nano", **settings})


def test_a_weight_of_failures_that_would_do_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reinforce", "--model", HUB_ID, "--output", "none", "--dry-run", "--failure-weight", "4"]
    assert run(words) == 2
    assert "--failure-weight does nothing under --advantage loo: give --advantage rank" in capsys.readouterr().err
    assert (
        resolved(capsys, "reinforce", "--model", HUB_ID, "--failure-weight", "4", "--advantage", "rank")["failure_weight"] == 4
    )
    assert resolved(capsys, "reinforce", "--model", "nano", "--failure-weight", "4")["failure_weight"] == 4


def begun(folder: Path, config: Config, **changes: Any) -> Path:
    """A run's `config.json`, with some settings as an older version had them."""
    folder.mkdir()
    settings = config.model_dump(mode="json") | changes
    (folder / "config.json").write_text(json.dumps({"config": settings, "argv": ["kernrl"]}))
    return folder


def test_a_run_begun_under_other_defaults_goes_on_with_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = reinforce(output=tmp_path / "run", verifier={"precision": "tf32", "workers": 3})
    run_folder = begun(tmp_path / "run", before, samples=8, learning_rate=1e-5, gone_since=1)
    again = {"output": run_folder, "resume": True}
    found = reinforce(**again, steps=7, verifier={"workers": 2})
    assert (found.samples, found.learning_rate, found.steps) == (8, 1e-5, 7)
    assert (found.verifier.precision, found.verifier.workers, found.verifier.compile_timeout_s) == ("tf32", 2, 15)
    assert reinforce(output=run_folder).samples == 16
    assert reinforce(output=tmp_path / "another", resume=True).samples == 16
    line = ["reinforce", "--model", "nano", "--output", str(run_folder), "--resume", "--dry-run"]
    assert run(line) == 0
    assert tomllib.loads(capsys.readouterr().out)["samples"] == 8


def test_an_older_run_whose_reward_saw_eager_alone_goes_on(tmp_path: Path) -> None:
    older = begun(tmp_path / "run", reinforce(output=tmp_path / "run"), reward="milestones")
    found = reinforce(output=older, resume=True)
    assert (found.reward, found.verifier.baseline) == ("milestones", ("eager",))
    RunDirectory.open(older, found, resume=True)


def test_settings_newer_than_the_run_are_as_they_were_for_every_model(tmp_path: Path) -> None:
    older = begun(tmp_path / "run", reinforce(output=tmp_path / "run"))
    described = json.loads((older / "config.json").read_text())
    del described["config"]["adam_epsilon"]
    (older / "config.json").write_text(json.dumps(described))
    again = {"output": older, "resume": True}
    with pytest.raises(UsageError, match=r"older than a setting: add --adam-epsilon 1e-08 to"):
        RunDirectory.open(older, reinforce(**again), resume=True)
    RunDirectory.open(older, reinforce(**again, adam_epsilon=1e-8), resume=True)


@pytest.mark.parametrize("origin", [{"from_run": Path("candidates")}, {"model": "some/model"}])
def test_an_evaluation_goes_on_from_what_it_judged(tmp_path: Path, origin: dict[str, Any]) -> None:
    folder = begun(tmp_path / "run", EvalConfig(output=tmp_path / "run", samples=3, **origin))
    found = EvalConfig(output=folder, resume=True)
    assert (found.samples, found.from_run, found.model) == (3, origin.get("from_run"), origin.get("model"))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"config": 3}', '{"model_type": "qwen2"}'])
def test_a_folder_that_holds_no_run_settles_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert SftConfig(output=tmp_path, resume=True).model_dump(exclude={"output", "resume"}) == SftConfig(
        output=tmp_path
    ).model_dump(exclude={"output", "resume"})


def test_a_copy_of_nano_elsewhere_is_nano(tmp_path: Path) -> None:
    shutil.copy(ROOT / "checkpoints" / "nano" / "config.json", tmp_path)
    assert BestOfNConfig(model=str(tmp_path), output=tmp_path).rounds == 3


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("reinforce", "--samples 1 has nothing to compare under --advantage loo: give 2 or more"),
        ("best-of-n", "--samples 1 has no worst candidate to learn --against: give 2 or more, or --against 0"),
    ],
)
def test_one_sample_has_nothing_to_be_compared_with(
    command: str, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--samples", "1", *(["--against", "0.5"] if command == "best-of-n" else [])]
    assert run([command, "--model", "m", "--output", str(tmp_path / "run"), *flags]) == 2
    assert remedy in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_one_sample_is_enough_where_nothing_is_compared(tmp_path: Path) -> None:
    assert ReinforceConfig(model="m", output=tmp_path, samples=1, advantage="raw").samples == 1
    assert BestOfNConfig(model="m", output=tmp_path, samples=1).against == 0
