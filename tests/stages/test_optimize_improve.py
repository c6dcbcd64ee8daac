"""`kernrl optimize --improve`: the model is trained on the tasks in hand, and what it samples meanwhile and after is tried."""

from __future__ import annotations

import json
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.instant_verifier import InstantVerifier
from support.tiny import ScriptedEngine, save_tiny_policy
from transformers import AutoModelForCausalLM

from kernrl import cli
from kernrl.errors import RunError
from kernrl.optimization import improve
from kernrl.optimization.search.budget import Budget
from kernrl.rollouts.engines import generate_engine
from kernrl.runs.interrupt import TimeUp, time_limit
from kernrl.stages import best_of_n, optimize
from kernrl.tasks.task import Task
from kernrl.training import session


def engine(policy: Any, *_: Any, best: int, **__: Any) -> ScriptedEngine:
    scripted: Any = ScriptedEngine(
        policy.tokenizer, lambda prompt, sample, call: f"class ModelNew: speed = {sample % best + 1}\n"
    )
    scripted.cancel = lambda: None
    return scripted


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model; before and after its training it writes what it is told to."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "guides" / "optimize.md").read_text()
    Path("my_module.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    monkeypatch.setattr(optimize, "HardenedVerifier", type("Fresh", (InstantVerifier,), {"asked": []}))
    monkeypatch.setattr(improve, "MANY", 2)
    monkeypatch.setattr(session, "open_engine", lambda config, policy, *_: engine(policy, best=4))
    monkeypatch.setattr(session, "sound_tasks", lambda tasks, config: list(tasks))
    opened = iter([2, 9])  # the first round's, and the improved model's
    monkeypatch.setattr(generate_engine, "GenerateEngine", lambda policy, **_: engine(policy, best=next(opened)))
    return save_tiny_policy(tmp_path / "tiny")


def run(model: Path, *more: str) -> int:
    words = ["my_module.py", "--model", str(model), "--max-tokens", "64", "--n", "40", "--quiet"]
    return cli.run(["optimize", *words, "--improve", "best-of-n", *more])


def results(folder: str) -> dict[str, Any]:
    return json.loads((Path(folder) / "results.json").read_text())


@pytest.mark.slow
def test_the_model_is_trained_and_what_it_writes_is_tried_before_and_after(model: Path) -> None:
    assert run(model, "--output", "out", "--keep-model", "kept") == 0
    found = results("out")
    assert found["by_origin"]["model"] == 2
    assert found["by_origin"]["improved"] == 9
    assert found["best"]["origin"] == "improved"
    assert "was trained" in found["improved"]
    rows = [json.loads(line) for line in Path("out/candidates.jsonl").read_text().splitlines()]
    assert len({row["text"] for row in rows}) == len(rows)
    origins = [(row["origin"], row["text"]) for row in rows if row["origin"] in ("model", "improved")]
    assert {re.findall(r"\d", text)[0] for origin, text in origins if origin == "model"} == {"1", "2"}
    while_trained = [row for row in rows if row["name"].startswith("best-of-n")]
    assert {re.findall(r"\d", row["text"])[0] for row in while_trained} == {"3", "4"}  # 1 and 2 were judged before
    before, after = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (model, "kept"))
    assert any(not a.float().equal(b.float()) for a, b in zip(before.values(), after.values(), strict=True))
    left = {path.name for path in Path("out/improve-1").iterdir()}
    assert "samples.jsonl" in left
    assert not {"model", "step_1", "step_2"} & left
    assert Path("out/best.py").exists()


@pytest.mark.slow
def test_several_tasks_are_learnt_together_and_resume_leaves_them_alone(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    text = Path("my_module.py").read_text()
    (folder / "one.py").write_text(text)
    (folder / "two.py").write_text(text.replace("gelu", "silu"))
    words = ["optimize", str(folder), "--model", str(model), "--max-tokens", "64", "--n", "40", "--output", "out", "--quiet"]
    assert cli.run([*words, "--improve", "best-of-n"]) == 0
    for name in ("one", "two"):
        assert results(f"out/tasks/{name}")["by_origin"]["improved"] == 9
    asked = len(optimize.HardenedVerifier.asked)  # pyright: ignore[reportAttributeAccessIssue]
    learnt = {row["task"] for row in map(json.loads, Path("out/improve-1/samples.jsonl").read_text().splitlines())}
    assert learnt == {"one", "two"}
    assert not Path("out/improve-2").exists()
    assert asked == len(optimize.HardenedVerifier.asked)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RunError("Nothing was learnt in 3 steps."), 0, "nothing was learnt: Nothing was learnt in 3 steps."),
        (TimeUp(), 0, "the time ended in its first step"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_was_found_is_kept_however_the_training_ends(
    model: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def train(config: Any, verifier: Any) -> None:
        list(verifier.verify_many([(Task("my_module", ""), "class ModelNew: speed = 7\n")]))
        raise error

    monkeypatch.setattr(best_of_n, "run", train)
    assert run(model, "--output", "out", "--keep-model", "kept") == code
    found = results("out")
    assert found["best"]["verdict"]["timing"]["speedups_x"]["eager"]["value"] == 7
    assert found["best"]["origin"] == "improved"
    assert Path("out/best.py").exists()
    assert not Path("kept").exists()
    assert said in found["improved"]


def test_a_checkpoint_of_a_run_that_learnt_nothing_is_no_improved_model(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step_2"
    checkpoint.mkdir()
    for name in ("config.json", "COMPLETE"):
        (checkpoint / name).write_text("{}")
    lines = [{"step": 1, "learnt": 0, "alarms": ["nothing could be learnt: all wrong"]}, {"step": 2, "learnt": 0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert improve.trained(tmp_path) is None
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line | {"learnt": line["step"]}) + "\n" for line in lines))
    assert improve.trained(tmp_path) == checkpoint
    (checkpoint / "config.json").unlink()  # adapters alone
    assert improve.trained(tmp_path) is None


def test_a_step_is_as_large_as_can_be_sampled_in_time() -> None:
    budget = Budget(100.0, clock=lambda: 0.0)
    assert improve.step_size(1, budget, None) == (1, 16)
    assert improve.step_size(1, budget, 0.01) == (1, 4)  # fewer would teach nothing
    assert improve.step_size(1, budget, 0.2) == (1, 7)
    assert improve.step_size(50, budget, 1.0) == (8, 4)
    assert improve.step_size(50, budget, 100.0) == (24, 16)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "none", "--improve", "reinforce"], "--improve needs --model"),
        (
            ["--model", "nano", "--engine", "server", "--server-url", "http://localhost:1", "--improve", "best-of-n"],
            "on a server",
        ),
        (["--model", "nano", "--keep-model", "kept"], "--keep-model keeps what --improve has trained"),
        (["--model", "nano", "--improve", "best-of-n", "--keep-model", "."], "is there already"),
    ],
)
def test_a_model_that_cannot_be_trained_or_kept_is_refused(
    model: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["optimize", "my_module.py", "--output", "out", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_time_limit_ends_what_is_being_done_and_leaves_no_alarm() -> None:
    with pytest.raises(TimeUp), time_limit(0.01):
        threading.Event().wait()
    with time_limit(600):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
