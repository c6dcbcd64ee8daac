"""The command line: options made of configs, exit codes, and what goes to which stream."""

import errno
import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
import typer
from pydantic import Field
from support import ROOT

from kernrl import cli, console
from kernrl.command import command
from kernrl.config import (
    BestOfNConfig,
    EvalConfig,
    ReinforceConfig,
    RewardWeightedConfig,
    SftConfig,
    VerifierConfig,
    VerifyConfig,
)
from kernrl.console import Result
from kernrl.errors import InfrastructureError, RunError, UsageError
from kernrl.settings import ARGUMENT, GROUP, GROUPS, Config, flag_name, marks

TASK = """\
import torch
import torch.nn as nn

N = 8


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(4, N)]


def get_init_inputs():
    return [N]
"""


class Inner(Config):
    blocks: int = Field(4, ge=1, description="How many blocks.")


class Demo(Config):
    source: str = Field("here", description="Where from.", json_schema_extra=ARGUMENT)
    steps: int = Field(3, ge=1, description="How many [steps].")
    fast: bool = Field(False, description="Hurry.")
    mode: Literal["a", "b"] = Field("a", description="Which way.")
    tag: tuple[str, ...] = Field((), description="Labels.")
    note: str | None = Field(None, description="A remark.")
    inner: Inner = Inner()


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> list[Demo]:
    """A one-command app in place of kernrl's; the list collects the configs it was run with."""
    app, seen = typer.Typer(), []

    @command(app, Demo)
    def run(config: Demo) -> Result:
        """A demonstration."""
        seen.append(config)
        console.log.print("a remark")
        return Result({"steps": config.steps}, f"{config.steps} steps", exit_code=1 if config.fast else 0)

    monkeypatch.setattr(cli, "app", app)
    return seen


def test_every_field_is_an_option(demo: list[Demo]) -> None:
    line = "there --steps 5 --fast --mode b --tag x --tag y --note hm --inner.blocks 9"
    assert cli.run(line.split()) == 1
    assert demo == [
        Demo(source="there", steps=5, fast=True, mode="b", tag=("x", "y"), note="hm", inner=Inner(blocks=9)),
    ]


def test_defaults_and_files(demo: list[Demo], tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("steps = 7\nfast = true\n[inner]\nblocks = 2\n")
    assert cli.run([]) == 0
    assert cli.run(["--config", str(file), "--no-fast"]) == 0
    assert demo == [Demo(), Demo(steps=7, inner=Inner(blocks=2))]


def test_json_is_alone_on_stdout(demo: list[Demo], capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["--json"])
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"steps": 3}
    assert "a remark" in captured.err
    cli.run(["--json", "--quiet"])
    assert capsys.readouterr().err == ""


def test_dry_run_stops_at_the_config(demo: list[Demo], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--dry-run", "--steps", "4"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["steps"] == 4
    assert cli.run(["--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inner"] == {"blocks": 4}
    assert demo == []


def test_help_shows_description_and_default(demo: list[Demo], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert "How many [steps]. [default: 3]" in " ".join(text.replace("│", " ").split())
    assert "--inner.blocks" in text
    assert max(map(len, text.splitlines())) <= 80


COMMANDS = ["quickstart", "doctor", "verify", "sft", "best-of-n", "reinforce", "reward-weighted", "eval", "report", "samples",
            *(f"tasks {name}" for name in ("generate", "list", "show", "stats", "check"))]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_room_for_every_flag(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    for flag in ("--help", "--help-all"):
        assert cli.run([*name.split(), flag]) == 0
        text = capsys.readouterr().out
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80


def flags_in(text: str) -> set[str]:
    """The flags that a help text lists, not those it mentions."""
    return set(re.findall(r"^│ (--[\w.-]+)", text, re.MULTILINE))


EVERYWHERE = {"--config", "--dry-run", "--json", "--quiet", "--help", "--help-all"}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_twenty_and_help_all_the_rest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for flag in ("--help", "--help-all", "-h"):
        assert cli.run([*name.split(), flag]) == 0
        found.append(capsys.readouterr().out)
    few, every = flags_in(found[0]), flags_in(found[1])
    assert found[0] == found[2]  # what --help-all shows does not stay
    assert few <= every
    assert few >= EVERYWHERE
    assert len(few - EVERYWHERE) <= 20
    last = found[0].strip().splitlines()[-1].strip()
    assert (last == f"--help-all shows {len(every - few)} more settings.") == (few < every)
    assert "more settings" not in found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_shows_every_setting_in_its_group(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the config itself, and in the order of the groups."""
    config_class = {
        "sft": SftConfig, "best-of-n": BestOfNConfig, "reinforce": ReinforceConfig, "reward-weighted": RewardWeightedConfig,
        "eval": EvalConfig, "verify": VerifyConfig,
    }.get(name)  # fmt: skip
    assert cli.run([*name.split(), "--help-all"]) == 0
    text = capsys.readouterr().out
    panels = re.findall(r"^╭─ ([\w ]+) ─", text, re.MULTILINE)
    assert panels == [panel for panel in ("Arguments", "Options", *GROUPS, "Every command") if panel in panels]
    if config_class:
        fields = dict(config_class.model_fields)
        arguments = {name for name, field in fields.items() if "argument" in marks(field)}
        names = {key for key in fields if key not in arguments | {"verifier"}}
        names |= {f"verifier.{key}" for key in VerifierConfig.model_fields} if "verifier" in fields else set()
        if name == "eval":  # whose --baseline and --precision they are
            names -= {"verifier.baseline", "verifier.precision"}
        wanted = {flag_name(key).removeprefix("--") for key in names}
        assert {flag.removeprefix("--").removeprefix("no-") for flag in flags_in(text) - EVERYWHERE} == wanted
        ungrouped = {key for key, field in fields.items() if GROUP not in marks(field)}
        assert not ungrouped or name == "verify"


@pytest.mark.slow
def test_a_setting_that_help_leaves_out_works_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["reinforce", "--help"]) == 0
    assert "--adam-epsilon" not in flags_in(capsys.readouterr().out)
    line = "reinforce --model nano --output x --adam-epsilon 0.5 --no-verifier.cache --dry-run --json"
    assert cli.run(line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["adam_epsilon"], found["verifier"]["cache"]) == (0.5, False)


@pytest.mark.parametrize("flag", ["--verifier", "--verifier.executor"])
def test_where_candidates_are_judged_has_its_old_spelling_too(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["eval", flag, "ray://host:1", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verifier"]["executor"] == "ray://host:1"
    assert cli.run(["verify", "a", "b", flag.replace("verifier.", ""), "ray", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["executor"] == "ray"


def test_the_configs_are_small_files_without_torch() -> None:
    code = "import sys, kernrl.config; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    files = sorted((ROOT / "kernrl" / "config").glob("*.py"))
    assert len(files) > 8
    assert all(len(file.read_text().splitlines()) < 200 for file in files)


def test_a_switch_goes_both_ways(demo: list[Demo], tmp_path: Path) -> None:
    file = tmp_path / "fast.toml"
    file.write_text("fast = true\n")
    for flags, fast in (([], False), (["--fast"], True), (["--config", str(file), "--no-fast"], False)):
        assert cli.run(flags) == int(fast)
    assert [config.fast for config in demo] == [False, True, False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "many"], ["--steps should be a whole number, not 'many'"]),
        (["--steps", "0"], ["--steps should be greater than or equal to 1, not 0"]),
        (["--step", "2"], ["No such option: --step", "--steps", "--help-all` lists what there is."]),
        (["--mode", "c"], ["'--mode': 'c' is not one of 'a'"]),
        (["--config", "none.toml"], ["none.toml"]),
    ],
)
def test_bad_flags_exit_2(demo: list[Demo], capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert all(word in captured.err for word in words), captured.err


@pytest.mark.parametrize(
    ("arguments", "where"),
    [(["doctor", "now"], "kernrl doctor --help-all"), (["train"], "kernrl --help"), (["tasks", "make"], "kernrl tasks --help")],
)
def test_unknown_words_are_answered_with_where_to_look(
    capsys: pytest.CaptureFixture[str], arguments: list[str], where: str
) -> None:
    assert cli.run(arguments) == 2
    assert capsys.readouterr().err.endswith(f"; `{where}` lists what there is.\n")


MAKE_ROOM = "make room, or name another place.\n"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UsageError("--out is wrong."), 2, "kernrl: --out is wrong.\n"),
        (RunError("it broke."), 1, "kernrl: it broke.\n"),
        (InfrastructureError("the worker died."), 3, "kernrl: the worker died.\n"),
        (KeyboardInterrupt(), 130, "kernrl: Interrupted.\n"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b"), 1, f"kernrl: a/b: No space left on device; {MAKE_ROOM}"),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG), "a/b"), 1, f"kernrl: a/b: File too large; {MAKE_ROOM}"),
        (
            OSError(errno.EPERM, os.strerror(errno.EPERM), "a"),
            1,
            "kernrl: a: Operation not permitted; name another file or folder.\n",
        ),
        (
            OSError(errno.EROFS, os.strerror(errno.EROFS)),
            1,
            "kernrl: the output: Read-only file system; name another file or folder.\n",
        ),
    ],
)
def test_errors_become_a_sentence_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, sentence: str
) -> None:
    app = typer.Typer()

    @command(app, Demo)
    def run(config: Demo) -> Result:
        raise error

    monkeypatch.setattr(cli, "app", app)
    assert cli.run([]) == code
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("sft --output o --num-processes 2", "--num-processes needs --launch ddp"),
        ("eval --server-url http://x:1", "--server-url needs --engine server: add that"),
        ("reinforce --model nano --output o --weight-sync nccl", "--weight-sync needs --engine server: add that"),
        ("best-of-n --model nano --output o --engine server", "--engine server needs --server-url"),
        ("eval --verifier rays", "--verifier.executor should be 'local', 'ray', ray://HOST:PORT or http://HOST:PORT, not"),
        ("verify a b --out x", "--out needs --pairs: add that"),
        ("verify a b --source x", "--source needs --pairs: add that"),
        *(
            (f"{line} --workers 9999999999", "--workers should be less than or equal to 1024, not 9999999999")
            for line in ("verify a b", "sft --output x", "tasks generate --out x", "reinforce --model m --output x")
        ),
        ("sft --output x --launch ddp --num-processes 2000", "--num-processes should be less than or equal to 1024, not 2000."),
        ("verify --pairs x --out y --explain z", "--explain draws one candidate: leave it out, or --pairs"),
        ("verify a b --verifier rays", "--executor should be 'local', 'ray', ray://HOST:PORT or http://HOST:PORT, not 'rays'."),
    ],
)
def test_no_flag_is_taken_for_nothing(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*line.split(), "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(f"kernrl: {sentence}")


HEAVY = {
    "eval --model m --output o": "evaluate",
    "sft --output o": "sft",
    "reinforce --model m --output o": "reinforce",
    "best-of-n --model m --output o": "best_of_n",
    "reward-weighted --model m --output o": "reward_weighted",
    "optimize my.py": "optimize",
    "serve": "serve",
}
"""Command line → the stage that loads torch for it."""


@pytest.mark.parametrize("line", HEAVY)
def test_loading_torch_is_said_before_it_is_done(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = []

    class Stage(ModuleType):
        @property
        def run(self) -> Callable[[Config], Result]:
            said.append(capsys.readouterr().err)
            return lambda config: Result({})

    monkeypatch.setitem(sys.modules, f"kernrl.stages.{HEAVY[line]}", Stage("stage"))
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # other tests of the process may have loaded it, or not
    assert cli.run(line.split()) == 0
    monkeypatch.delitem(sys.modules, "torch")
    for more in ([], ["--json"], ["--quiet"]):
        assert cli.run([*line.split(), *more]) == 0
    assert said == ["", "loading torch\n", "loading torch\n", ""]  # once a process, and on stderr
    for more, code in ((["--dry-run"], 0), (["--help"], 0), (["--no-such-flag"], 2)):
        assert cli.run([*line.split(), *more]) == code
    assert "loading torch" not in capsys.readouterr().err


def test_bitsandbytes_does_not_remark_on_kernels_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    remarks = logging.getLogger("bitsandbytes.backends.cpu.ops")
    monkeypatch.setattr(remarks, "level", logging.NOTSET)
    monkeypatch.setattr(cli, "handle_signals", lambda: None)
    monkeypatch.setattr(cli, "run", lambda arguments: 0)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    with pytest.raises(SystemExit):
        cli.main()
    assert remarks.level == logging.ERROR


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @command(app, Demo)
    def run(config: Demo) -> Result:
        raise OSError(errno.EIO, "something of ours")

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(OSError, match="something of ours"):
        cli.run([])


def kernrl(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    line = [sys.executable, "-m", "kernrl", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120, **options)  # pyright: ignore


@pytest.mark.slow
def test_typo_in_a_command_is_answered() -> None:
    done = kernrl("tasks", "lsit")
    assert done.returncode == 2
    assert "Did you mean 'list'" in done.stderr


@pytest.mark.slow
def test_closed_pipe_is_no_error(tmp_path: Path) -> None:
    # more than a pipe holds
    rows = [{"name": f"t{i}", "id": f"t{i}" + "x" * 200, "pytorch_code": TASK} for i in range(600)]
    table = tmp_path / "many.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = f"{sys.executable} -m kernrl tasks list {table} FLAG | head -n 1; exit ${{PIPESTATUS[0]}}"
    for flag in ("--json", ""):
        done = subprocess.run(["bash", "-c", line.replace("FLAG", flag)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_help_whose_reader_has_gone_is_no_error() -> None:
    """`true` reads nothing, so that the first write already fails."""
    line = f"{sys.executable} -m kernrl --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["text", "json"])
def test_a_terminal_without_unicode_is_no_error(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "kernrl", "tasks", "list", "heldout", "--limit", "2", *arguments]
    ended = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.isascii()
    assert not arguments or len(json.loads(ended.stdout)) == 2


@pytest.mark.slow
def test_no_colour_where_none_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "t.py"
    file.write_text(TASK)
    plain = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")}
    assert "\x1b" not in kernrl("tasks", "show", str(file), env=plain).stdout
    forced = kernrl("tasks", "show", str(file), env=plain | {"FORCE_COLOR": "1"}).stdout
    assert "\x1b[38" in forced or "\x1b[9" in forced
    assert "\x1b[38" not in kernrl("tasks", "show", str(file), env=plain | {"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout


@pytest.mark.slow
def test_doctor_reports_and_exits_0() -> None:
    done = kernrl("doctor", "--json")
    assert done.returncode == 0
    findings = {f["name"]: f for f in json.loads(done.stdout)}
    assert {"python", "torch", "triton", "ptxas", "seccomp", "disk", "target architecture"} <= findings.keys()
    assert all(f["ok"] or f["remedy"] for f in findings.values())


@pytest.mark.slow
def test_shell_completion_knows_the_commands() -> None:
    env = os.environ | {"_KERNRL_COMPLETE": "complete_bash", "COMP_WORDS": "kernrl tasks sh", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "from kernrl.cli import main; main()"], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["show"]
