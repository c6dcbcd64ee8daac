"""`kernrl quickstart`: every command it shows is one that works, and it tells what came of them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support import ROOT, TESTS

from kernrl import cli
from kernrl.config import BestOfNConfig, GenerateConfig, QuickstartConfig, ReinforceConfig
from kernrl.config.resume import with_names_of_today
from kernrl.settings import flatten
from kernrl.stages import quickstart
from kernrl.stages.quickstart import HELD_OUT, ON_CPU, ON_GPU, SHOWN, story
from kernrl.tasks.loaders import load_tasks

MEASURED = ROOT / "docs" / "benchmarks" / "training.json"

STUB = """
import sys
from itertools import pairwise
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.synthetic_run import make_eval_run
name = sys.argv[1]
if name == {fails!r}:
    sys.exit("it broke")
if name == "eval":
    output = Path(sys.argv[sys.argv.index("--output") + 1])
    make_eval_run(output, skill=0.3 if output.name == "before" else 0.9)
if name == "optimize":
    output = Path(sys.argv[sys.argv.index("--output") + 1])
    output.mkdir()
    (output / "results.json").write_text('{{"sentence": "heldout: 2.00x the speed of eager.", "file": "best.py"}}')
print("printed by", name)
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of kernrl, which makes runs up; it works in an empty folder, with no GPU."""
    path = tmp_path / "stub.py"
    path.write_text(STUB.format(tests=str(TESTS), fails=""))
    monkeypatch.setattr(quickstart, "program", lambda: [sys.executable, str(path)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("size", [ON_CPU, ON_GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("full", [False, True])
def test_every_command_is_one(size: quickstart.Size, full: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in story(QuickstartConfig(full=full), tmp_path, size):
        assert cli.run([*shlex.split(step.command), "--dry-run"]) == 0, step.command
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["best-of-n", "reinforce"])
@pytest.mark.parametrize("size", [ON_CPU, ON_GPU], ids=["cpu", "gpu"])
def test_it_takes_what_was_measured_but_for_its_size(
    size: quickstart.Size, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "best-of-n").mkdir()  # as it will be when reinforce starts from it
    (tmp_path / "best-of-n" / "model").symlink_to(ROOT / "checkpoints" / "nano")
    [line] = [step.command for step in story(QuickstartConfig(), tmp_path, size) if step.command.startswith(command)]
    assert cli.run([*shlex.split(line), "--dry-run"]) == 0
    settings = dict(flatten(tomllib.loads(capsys.readouterr().out)))
    config = {"best-of-n": BestOfNConfig, "reinforce": ReinforceConfig}[command]
    runs = json.loads(MEASURED.read_text())["settings"]["runs"]
    measured = dict(flatten(with_names_of_today(config, runs[{"reinforce": "reinforce-0"}.get(command, command)])))
    differ = {name for name in measured if settings.get(name) != measured[name]}
    sizes = {"rounds", "tasks_per_round", "steps", "limit", "save_every", "max_tokens", "seed", "time_limit_s"}
    sizes |= {"verifier.precision", "name_gpu"}  # what the tasks name already, and what is not for nano
    assert differ <= sizes | ({"samples", "tasks_per_step", "updates_per_epoch"} if size is ON_CPU else set())


def test_its_tasks_are_judged_under_tf32(tmp_path: Path) -> None:
    assert {task.precision for source in (HELD_OUT, SHOWN) for task in load_tasks(source, limit=2).tasks} == {"tf32"}
    assert GenerateConfig(out=tmp_path).precision == "tf32"
    for step in story(QuickstartConfig(), tmp_path, ON_CPU):
        assert "precision" not in step.command


def test_each_step_starts_from_what_was_made_before(tmp_path: Path) -> None:
    made: set[str] = set()
    for step in story(QuickstartConfig(full=True), tmp_path, ON_GPU):
        words = shlex.split(step.command)
        options = dict(pairwise(words))
        needed = [options[flag].removesuffix("/model") for flag in ("--model", "--data", "--tasks") if flag in options]
        assert {name for name in needed if name.startswith(str(tmp_path))} <= made
        made.add(options.get("--output", options.get("--out", "")))


@pytest.mark.slow
def test_it_says_what_changed(stub: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["quickstart", "--json"]) == 0
    shown = capfd.readouterr()
    data = json.loads(shown.out)
    assert data["before"]["correct"]["value"] < data["after"]["correct"]["value"]
    assert data["change"]["correct"]["value"] > 0
    commands = [shlex.split(line[2:])[2] for line in shown.err.splitlines() if line.startswith("$ ")]
    assert commands == ["tasks", "eval", "tasks", "best-of-n", "reinforce", "eval", "report", "optimize"]
    assert data["optimized"].startswith("heldout: 2.00x")
    assert [shlex.split(step["command"])[1] for step in data["steps"]] == commands
    assert shown.err.count("printed by") == len(commands)


@pytest.mark.slow
def test_the_optimised_module_is_the_last_that_it_says(stub: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["quickstart", "--output", "out"]) == 0
    said, read, check, own = capfd.readouterr().out.rstrip().splitlines()[-4:]
    assert said == "The module of step 1, optimised: heldout: 2.00x the speed of eager."
    assert read == "Read it: out/optimize/best.py"
    assert re.fullmatch(r"Check it: \S*python[\d.]* out/optimize/best.py", check)
    assert own.endswith(" optimize my_module.py")


@pytest.mark.slow
def test_again_straight_after(stub: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert cli.run(["quickstart", "--quiet"]) == 0
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"quickstart-1", "quickstart-2"}
    assert cli.run(["quickstart", "--output", "checkpoints/quickstart-1"]) == 2


def test_a_step_that_fails_ends_it(stub: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stub.write_text(STUB.format(tests=str(TESTS), fails="best-of-n"))
    assert cli.run(["quickstart"]) == 1
    error = capfd.readouterr().err
    assert "it broke" in error
    assert error.splitlines()[-1].startswith("kernrl: `")
    assert "reinforce" not in error.replace("reinforce/model", "")


@pytest.mark.slow
def test_a_step_ends_before_an_interrupted_quickstart_does(stub: Path, tmp_path: Path) -> None:
    stub.write_text(
        "import os, pathlib, signal, time\n"
        "def end(*_):\n"
        "    time.sleep(0.5)\n"
        "    pathlib.Path('saved').touch()\n"
        "    os._exit(130)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(60)\n"
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    try:
        assert cli.run(["quickstart", "--quiet"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "saved").exists()


def test_from_nothing_needs_a_gpu(stub: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["quickstart", "--full"]) == 2
    assert "--full" in capfd.readouterr().err
    assert not (tmp_path / "checkpoints").exists()


def test_without_the_trained_nano_nothing_is_begun(
    stub: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages" / "kernrl" / "policy" / "shipped_nano.py"
    monkeypatch.setattr("kernrl.policy.shipped_nano.__file__", str(installed))
    assert cli.run(["quickstart"]) == 2
    assert "there is no trained nano in" in capfd.readouterr().err
    assert not (tmp_path / "checkpoints").exists()


def test_without_the_model_that_is_named_nothing_is_begun(
    stub: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["quickstart", "--model", str(tmp_path / "absent")]) == 2
    assert "there is no such folder" in capfd.readouterr().err
    assert not (tmp_path / "checkpoints").exists()


def test_what_is_shown_can_be_called() -> None:
    command = quickstart.program()
    assert command == ["kernrl"] or Path(command[0]).exists()
