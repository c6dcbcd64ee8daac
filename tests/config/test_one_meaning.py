"""A flag means one thing, and a setting has one flag: what changed its name, and what older runs and files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernrl.cli import run
from kernrl.config import EvalConfig, OptimizeConfig, ReinforceConfig, SftConfig, VerifierConfig
from kernrl.errors import UsageError
from kernrl.runs.run_directory import RunDirectory
from kernrl.settings import load_config


def dry(line: str, capsys: pytest.CaptureFixture[str]) -> dict:
    assert run([*line.split(), "--dry-run", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["reinforce", "best-of-n", "reward-weighted"])
def test_greedy_candidates_teach_nothing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = [command, "--model", "nano", "--output", "run", "--dry-run", "--temperature"]
    assert run([*line, "0"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "kernrl: --temperature should be above 0: greedy candidates of a task are all the same, and these stages learn from "
        "how they differ.\n"
    )
    assert run([*line, "0.01"]) == 0


def test_a_search_samples_as_the_other_commands_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize", "my.py", "--temperature", "0", "--dry-run"]) == 2
    said = "--temperature should be above 0: greedy candidates of a task are all the same, and a search wants different ones."
    assert capsys.readouterr().err == f"kernrl: {said}\n"
    found = dry("optimize my.py --top-p 0.9 --top-k 5 --min-p 0.1", capsys)
    assert (found["top_p"], found["top_k"], found["min_p"]) == (0.9, 5, 0.1)
    assert run(["optimize", "my.py", "--budget", "soon", "--dry-run"]) == 2
    assert "--budget is a time such as 120s, 2m or 1h, not 'soon'." in capsys.readouterr().err


def test_one_baseline_whatever_it_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry("eval --verifier.baseline compile,eager", capsys)["baseline"] == ["compile", "eager"]
    found = dry("optimize my.py --verifier.baseline compile --verifier.precision bf16", capsys)
    assert (found["baseline"], found["precision"]) == (["compile"], "bf16")
    for command in ("eval", "optimize my.py"):
        for flag in ("--precision", "--verifier.precision"):
            found = dry(f"{command} {flag} tf32", capsys)
            assert (found["precision"], found["verifier"].get("precision")) == ("tf32", None)
        dry(f"{command} --baseline compile --verifier.baseline compile", capsys)
        assert run([*command.split(), "--baseline", "compile", "--verifier.baseline", "eager", "--dry-run"]) == 2
        assert "--baseline is given twice" in capsys.readouterr().err
        assert run([*command.split()[:1], "--help-all"]) == 0
        assert "--verifier.baseline" not in capsys.readouterr().out
    file = tmp_path / "settings.toml"
    file.write_text('[verifier]\nbaseline = ["eager", "max-autotune"]\n')
    for config in (EvalConfig, OptimizeConfig):
        more = {"source": "my.py"} if config is OptimizeConfig else {}
        assert load_config(config, [file], more).baseline == ("eager", "max-autotune")
        with pytest.raises(UsageError, match="one setting: leave the one in the table out"):
            load_config(config, [file], more | {"baseline": ("compile",)})


def test_what_a_dry_run_writes_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.toml"
    for line in (
        "eval --baseline compile",
        "eval --verifier.baseline compile",
        "eval --precision bf16",
        "optimize my.py",
        "optimize my.py --baseline compile",
    ):
        assert run([*line.split(), "--dry-run"]) == 0
        file.write_text(capsys.readouterr().out)
        assert dry(f"{line.split()[0]} --config {file}", capsys) == dry(line, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["reinforce", "best-of-n", "reward-weighted"])
def test_in_training_the_baseline_is_the_one_that_is_rewarded(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"{command} --model nano --output run --verifier.baseline eager,compile"
    assert dry(f"{line} --reward-baseline compile", capsys)["reward_baseline"] == "compile"
    found = dry(f"{line} --baseline compile", capsys)
    assert (found["reward_baseline"], "baseline" in found) == ("compile", False)
    assert run([*line.split(), "--baseline", "compile", "--reward-baseline", "eager", "--dry-run"]) == 2
    assert "--reward-baseline is given twice" in capsys.readouterr().err
    assert run([command, "--help-all"]) == 0
    assert " --baseline" not in capsys.readouterr().out
    file = tmp_path / "settings.toml"
    for key in ("baseline", "reward_baseline"):
        file.write_text(f'{key} = "compile"\n')
        assert dry(f"{line} --config {file}", capsys)["reward_baseline"] == "compile"
    file.write_text('baseline = "compile"\nreward_baseline = "eager"\n')
    assert run([*line.split(), "--config", str(file), "--dry-run"]) == 2
    assert "'reward_baseline' is given twice" in capsys.readouterr().err


def test_an_older_training_run_goes_on_with_the_baseline_that_it_rewarded(tmp_path: Path) -> None:
    table = {"baseline": ("eager", "compile")}
    config = ReinforceConfig(model="nano", output=tmp_path, reward_baseline="compile", verifier=VerifierConfig(**table))
    kept = config.model_dump(mode="json")
    kept["baseline"] = kept.pop("reward_baseline")
    (tmp_path / "config.json").write_text(json.dumps({"config": kept, "argv": []}))
    resumed = load_config(ReinforceConfig, (), {"output": tmp_path, "resume": True})
    assert resumed.reward_baseline == "compile"
    RunDirectory.open(tmp_path, resumed, resume=True)


def test_an_older_optimisation_goes_on_with_the_baselines_that_it_used(tmp_path: Path) -> None:
    kept = OptimizeConfig(source="my.py").model_dump(mode="json")  # its table says ("eager",), which nobody read
    (tmp_path / "config.json").write_text(json.dumps({"config": kept, "argv": []}))
    resumed = load_config(OptimizeConfig, (), {"source": "my.py", "output": tmp_path, "resume": True})
    assert resumed.judging.baseline == ("eager", "compile")


def test_an_older_evaluation_goes_on_under_its_precision(tmp_path: Path) -> None:
    kept = EvalConfig().model_dump(mode="json")
    del kept["precision"]
    kept["verifier"] |= {"precision": "tf32", "baseline": ["eager"]}
    (tmp_path / "config.json").write_text(json.dumps({"config": kept, "argv": []}))
    resumed = load_config(EvalConfig, (), {"output": tmp_path, "resume": True})
    assert resumed.judging.precision == "tf32"
    RunDirectory.open(tmp_path, resumed, resume=True)


def test_an_older_sft_goes_on(tmp_path: Path) -> None:
    kept = SftConfig(output=tmp_path, validate_every=7).model_dump(mode="json")
    kept["evaluate_every"] = kept.pop("validate_every")
    (tmp_path / "config.json").write_text(json.dumps({"config": kept, "argv": []}))
    resumed = load_config(SftConfig, (), {"output": tmp_path, "resume": True})
    assert resumed.validate_every == 7
    RunDirectory.open(tmp_path, resumed, resume=True)


def test_the_old_name_of_a_flag_leads_to_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sft", "--output", "run", "--evaluate-every", "3"]) == 2
    assert "--validate-every" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("made_by", "what"),
    [
        (
            {"argv": ["kernrl", "best-of-n", "--model", "nano"]},
            "was made by `kernrl best-of-n`, and this is `kernrl reinforce`",
        ),
        ({"command": "tasks generate"}, "was made by `kernrl tasks generate`, and this is `kernrl reinforce`"),
        (None, "there is no run in {}: name the folder of one, or give --model to begin one"),
    ],
)
def test_resuming_what_another_command_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made_by: dict[str, object] | None, what: str
) -> None:
    if made_by is not None:
        (tmp_path / "config.json").write_text(json.dumps({"config": {"model": "nano"}, **made_by}))
    assert run(["reinforce", "--output", str(tmp_path), "--resume", "--dry-run"]) == 2
    assert what.format(tmp_path) in capsys.readouterr().err
