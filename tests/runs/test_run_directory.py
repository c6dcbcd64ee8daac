"""One directory a run: who may write there, and when it may be begun anew."""

import json
import os
import resource
from pathlib import Path

import pytest

from kernrl.config import DoctorConfig, EvalConfig, ReinforceConfig, SamplesConfig, VerifierConfig
from kernrl.errors import UsageError
from kernrl.runs.run_directory import RunDirectory


def test_a_run_that_was_refused_at_once_is_begun_anew(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path / "run", SamplesConfig(run=Path("wrong")), resume=False)
    (tmp_path / "run" / "log.txt").write_text("12:00:00 preparing pairs\n")
    RunDirectory.open(tmp_path / "run", SamplesConfig(run=Path("right")), resume=False)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["run"] == "right"


def test_what_a_run_did_is_not_written_over(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path / "run", DoctorConfig(), resume=False).log(step=1)
    with pytest.raises(UsageError, match=r"--output: .*run is not empty; resume the run in it with --resume"):
        RunDirectory.open(tmp_path / "run", DoctorConfig(), resume=False)


def test_the_config_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    for file, text in (("config.json", '{"model_type": "qwen2"}'), ("log.txt", "another program's")):
        (tmp_path / file).mkdir()
        (tmp_path / file / file).write_text(text)
        with pytest.raises(UsageError, match="is not empty"):
            RunDirectory.open(tmp_path / file, DoctorConfig(), resume=False)


def resumed(path: Path, **settings: object) -> None:
    RunDirectory.open(path, EvalConfig.model_validate({"output": path, **settings}), resume=True)


@pytest.mark.parametrize("begun", [{}, {"baseline": ("eager",)}, {"verifier": {"baseline": ("eager",)}}])
def test_a_changed_baseline_is_named_once_and_an_equal_one_is_taken(tmp_path: Path, begun: dict[str, object]) -> None:
    resumed(tmp_path, **begun)
    resumed(tmp_path, baseline=("eager",))
    resumed(tmp_path, verifier=VerifierConfig(baseline=("eager",)))
    changed: list[dict[str, object]] = [{"baseline": ("compile",)}, {"verifier": {"baseline": ("compile",)}}]
    for given in changed:
        with pytest.raises(UsageError, match=r"has --baseline eager, not compile: leave it out to go on"):
            resumed(tmp_path, **given)


def test_a_run_from_before_its_baseline_had_a_default_can_be_resumed(tmp_path: Path) -> None:
    resumed(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    described["config"]["baseline"] = []
    (tmp_path / "config.json").write_text(json.dumps(described))
    resumed(tmp_path)
    resumed(tmp_path, baseline=("eager",))


def test_a_run_goes_on_elsewhere_but_not_with_other_settings(tmp_path: Path) -> None:
    resumed(tmp_path, samples=4)
    resumed(tmp_path, samples=4, verifier={"executor": "ray", "workers": 7, "cache_dir": tmp_path})
    with pytest.raises(UsageError, match=r"has --precision unset, not tf32; --samples 4, not 8: leave them out"):
        resumed(tmp_path, samples=8, verifier={"precision": "tf32"})


def test_a_setting_that_is_newer_than_the_run_has_its_default(tmp_path: Path) -> None:
    resumed(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    for name in ("baseline", "temperature"):
        del described["config"][name]
    del described["config"]["verifier"]["baseline"]
    (tmp_path / "config.json").write_text(json.dumps(described))
    resumed(tmp_path)
    with pytest.raises(
        UsageError, match=r"is older than a setting: add --baseline eager --temperature 1.0 to go on as it began"
    ):
        resumed(tmp_path, temperature=0.5, verifier={"baseline": ("compile",)})


def test_a_value_that_was_renamed_since_the_run_is_the_same_value(tmp_path: Path) -> None:
    config = ReinforceConfig(model="m", output=tmp_path, advantage="raw")
    RunDirectory.open(tmp_path, config, resume=False)
    described = json.loads((tmp_path / "config.json").read_text())
    described["config"]["advantage"] = "none"
    (tmp_path / "config.json").write_text(json.dumps(described))
    RunDirectory.open(tmp_path, config, resume=True)
    with pytest.raises(UsageError, match=r"--advantage raw, not mean: leave it out"):
        RunDirectory.open(tmp_path, config.model_copy(update={"advantage": "mean"}), resume=True)


def test_a_disk_that_fills_up_is_named_and_the_cut_line_left_out(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, DoctorConfig(), resume=False)
    run.log(step=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as full:  # at once, and not when the next line is written
            run.log(step=2, note="x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.value.filename == str(tmp_path / "metrics.jsonl")
    run = RunDirectory.open(tmp_path, DoctorConfig(), resume=True)
    run.log(step=2)
    assert [line["step"] for line in run.history] == [1, 2]


@pytest.mark.parametrize("resume", [False, True])
def test_two_processes_do_not_write_into_one_run(tmp_path: Path, resume: bool) -> None:
    RunDirectory.open(tmp_path, DoctorConfig(), resume=False)
    child = os.fork()
    if not child:
        try:
            RunDirectory.open(tmp_path, DoctorConfig(), resume=resume)
        except UsageError as error:
            os._exit(2 if "another process is at work" in str(error) else 3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
