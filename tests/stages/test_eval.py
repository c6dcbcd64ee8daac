"""`kernrl eval`: candidates from a model and from disk, judged once each, gone on with after a kill."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import unstated
from support.synthetic_run import make_eval_run
from support.tiny import FakeVerifier, ScriptedEngine, tiny_policy, tiny_tasks, verdict_of

from kernrl import cli
from kernrl.config import EvalConfig
from kernrl.errors import UsageError
from kernrl.reports.page import lead
from kernrl.reports.run_charts import wall_seconds
from kernrl.reports.run_files import read_run
from kernrl.rollouts.collect import Collector
from kernrl.rollouts.engines.engine import Sampling
from kernrl.runs.activity import Activity
from kernrl.stages.evaluate import Limit, below, parse_limit
from kernrl.tasks.nano.lifter import Lifter
from kernrl.tasks.rows import write_tasks
from kernrl.tasks.task import Task
from kernrl.training import evaluation
from kernrl.verifier.base.verdict import Stage, Status, Verdict

OPEN_VERIFIER = evaluation.open_verifier

FAST, SLOW, WRONG = (f"class ModelNew:\n    kind = {kind!r}\n" for kind in ("fast", "slow", "wrong"))


def judge(text: str) -> Verdict:
    if "fast" in text:
        return verdict_of(text, speedup_x=2.0, compile_x=1.2)
    return verdict_of(text, speedup_x=0.5, compile_x=0.3) if "slow" in text else verdict_of(text, Status.WRONG)


@pytest.fixture(autouse=True)
def verifier(monkeypatch: pytest.MonkeyPatch) -> FakeVerifier:
    fake = FakeVerifier(judge)
    monkeypatch.setattr(evaluation, "open_verifier", lambda config: fake)
    return fake


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    write_tasks(path, tiny_tasks(3))
    return path


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    folder = tmp_path / "candidates"
    folder.mkdir()
    for name, text in (("task-0", FAST), ("task-1_sample_0", SLOW), ("task-1_sample_1", WRONG), ("task-2", FAST)):
        (folder / f"{name}.py").write_text(text)
    return folder


def evaluated(*arguments: Any, code: int = 0) -> None:
    assert cli.run(["eval", *map(str, arguments), "--quiet"]) == code


def results(output: Path) -> dict[str, Any]:
    return json.loads((output / "results.json").read_text())


def test_candidates_on_disk_need_no_model(tmp_path: Path, tasks: Path, candidates: Path) -> None:
    output = tmp_path / "out"
    evaluated("--tasks", tasks, "--from-run", candidates, "--output", output)
    figures = results(output)
    assert figures["correct"]["value"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert figures["fast_1"]["value"] == pytest.approx(2 / 3)
    assert figures["baselines"]["compile"]["fast_1"]["value"] == pytest.approx(2 / 3)
    assert set(figures["correct"]) == {"value", "low", "high"}
    assert figures["seconds"]["verify"] > 0
    assert figures["versions"]["kernrl"]
    assert wall_seconds(read_run(output)) == figures["seconds"]  # counted once
    assert cli.run(["report", str(output)]) == 0
    assert (output / "report.html").exists()
    assert cli.run(["samples", str(output), "--show", "best"]) == 0


def test_a_model_is_asked(tmp_path: Path, tasks: Path, model: Path, verifier: FakeVerifier) -> None:
    output = tmp_path / "out"
    evaluated("--tasks", tasks, "--model", model, "--output", output, "--samples", 3, "--max-tokens", 8)
    rows = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    assert {(r["task"], r["member"]) for r in rows} == {(f"task-{t}", m) for t in range(3) for m in range(3)}
    assert all(0 < r["tokens"] <= 8 for r in rows)
    assert len({r["text"] for r in rows}) > 3
    assert results(output)["pass@3"]["value"] is not None
    assert read_run(output).metrics[0]["seconds"]["generate"] > 0
    assert "ask" in results(output)["seconds"]


class Watched(FakeVerifier):
    """Each verdict takes ten seconds of a clock that only it moves; notes the line of progress before the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        super().__init__(judge)
        self.lines: list[str] = []
        self.now, self._activity = 100.0, Activity()
        monkeypatch.setattr(evaluation, "open_verifier", lambda config: self)
        monkeypatch.setattr("kernrl.runs.activity.time.perf_counter", lambda: self.now)
        monkeypatch.setattr(evaluation, "Activity", self._opened)

    def _opened(self, folder: Path) -> Activity:
        self._activity = Activity(folder)
        return self._activity

    def doing(self) -> str:
        return f"timing {self.asked[-1][0]}" if self.asked else ""

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        for one in super().verify_many(pairs):
            self.lines.append(self._activity.line())
            self.now += 10.0
            yield one
        self.lines.append(self._activity.line())


def test_the_line_says_tasks_verdicts_what_the_gpu_does_and_time_left(
    tmp_path: Path, tasks: Path, candidates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    evaluated("--tasks", tasks, "--from-run", candidates, "--output", tmp_path / "out")
    assert watched.lines == [
        "0 of 3 tasks, 0 of 4 verdicts, GPU: timing task-0",
        "1 of 3 tasks, 1 of 4 verdicts, GPU: timing task-1, about 30 s left",
        "1 of 3 tasks, 2 of 4 verdicts, GPU: timing task-1, about 20 s left",
        "2 of 3 tasks, 3 of 4 verdicts, GPU: timing task-2, about 10 s left",
        "3 of 3 tasks, 4 of 4 verdicts, GPU: timing task-2",
    ]


def test_with_a_model_the_line_says_that_of_all_rounds_and_what_is_sampled_in_this_one(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    policy = tiny_policy()

    def reply(prompt: int, sample: int, call: int) -> str:
        watched.now += 1.0
        return f"fast {call} {prompt} {sample}"

    engine = ScriptedEngine(policy.tokenizer, reply)
    tokens = [len(policy.tokenizer.encode(f"fast 1 {n} 0")) + 1 for n in range(2)]
    collector = Collector(engine, policy.tokenizer, watched, lambda verdict: None, Sampling(1, 32, 1.0))
    monkeypatch.setattr(evaluation, "open_model", lambda config, verifier: (engine, collector))
    monkeypatch.setattr(evaluation, "require_model", lambda config: None)
    monkeypatch.setattr(evaluation, "ROUND_TASKS", 2)
    evaluated("--tasks", tasks, "--model", "scripted", "--samples", 1, "--output", tmp_path / "out")
    assert isinstance(collector.prepare, Lifter)
    half, whole = f"{tokens[0]} tokens", f"{sum(tokens)} tokens"
    rounds = {"first": watched.lines[:3], "second": watched.lines[3:]}
    assert rounds == {
        "first": [
            f"0 of 3 tasks, 0 of 3 verdicts, 1 of 2 replies, {half}, {tokens[0]} tokens/s, GPU: timing task-0",
            f"1 of 3 tasks, 1 of 3 verdicts, 2 of 2 replies, {whole}, GPU: timing task-1, about 24 s left",
            f"2 of 3 tasks, 2 of 3 verdicts, 2 of 2 replies, {whole}, GPU: timing task-1, about 11 s left",
        ],
        "second": [
            f"2 of 3 tasks, 2 of 3 verdicts, 1 of 1 reply, {half}, GPU: timing task-2, about 12 s left",
            f"3 of 3 tasks, 3 of 3 verdicts, 1 of 1 reply, {half}, GPU: timing task-2",
        ],
    }


@pytest.mark.slow
def test_resume_judges_only_what_is_missing(
    tmp_path: Path, tasks: Path, model: Path, verifier: FakeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--tasks", tasks, "--model", model, "--samples", 3, "--max-tokens", 8]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    evaluated(*arguments, "--output", whole)
    evaluated(*arguments, "--output", cut)
    lines = (cut / "samples.jsonl").read_text().splitlines(keepends=True)
    (cut / "samples.jsonl").write_text("".join(lines[:4]) + lines[4][:20])  # killed while it wrote
    (cut / "results.json").unlink()
    verifier.asked.clear()
    evaluated(*arguments, "--output", cut, "--resume")
    texts = [{s["id"]: s["text"] for s in evaluation.newest_rows(run).values()} for run in (whole, cut)]
    assert texts[0] == texts[1]  # the same text is sampled again
    kept = {(row["task"], row["text"]) for row in map(json.loads, lines[:4])}
    assert not kept & set(verifier.asked)
    assert len((cut / "samples.jsonl").read_text().splitlines()) == len(lines)  # and no row is written twice
    verifier.asked.clear()
    rounds = len(read_run(cut).metrics)
    monkeypatch.setattr(evaluation, "open_model", None)  # a finished run needs no model
    evaluated(*arguments, "--output", cut, "--resume")
    assert verifier.asked == []
    assert len(read_run(cut).metrics) == rounds
    assert results(cut)["correct"] == results(whole)["correct"]


def test_resume_from_disk_looks_again_at_what_could_not_be_judged(
    tmp_path: Path, tasks: Path, candidates: Path, verifier: FakeVerifier
) -> None:
    output, arguments = tmp_path / "out", ["--tasks", tasks, "--from-run", candidates]
    verifier.judge = lambda text: verdict_of(text, Status.INFRA_ERROR) if "slow" in text else judge(text)
    evaluated(*arguments, "--output", output)
    assert results(output)["unjudged"] == 1
    verifier.judge = judge
    verifier.asked.clear()
    evaluated(*arguments, "--output", output, "--resume", "--fail-under", "correct=0.1")
    assert [task for task, _ in verifier.asked] == ["task-1"]
    assert results(output)["unjudged"] == 0
    evaluated(*arguments, "--output", output, code=2)  # without --resume a run is never written into


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("source", ["disk", "model"])
def test_an_evaluation_interrupted_in_the_middle_goes_on_where_it_was(
    tmp_path: Path,
    tasks: Path,
    model: Path,
    candidates: Path,
    verifier: FakeVerifier,
    monkeypatch: Any,
    source: str,
    number: int,
) -> None:
    output = tmp_path / "out"
    asked = ["--from-run", candidates] if source == "disk" else ["--model", model, "--samples", 3, "--max-tokens", 8]

    def run_main(*more: str) -> int:
        monkeypatch.setattr("sys.argv", ["kernrl", "eval", *map(str, ["--tasks", tasks, *asked, "--output", output]), *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code  # pyright: ignore[reportReturnType]

    def interrupted(text: str) -> Verdict:
        if len(verifier.asked) == 3:
            os.kill(os.getpid(), number)
        return judge(text)

    verifier.judge = interrupted
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert run_main() == 130
        first, kept = verifier.asked[:2], list(evaluation.newest_rows(output))
        assert len(kept) == 2
        verifier.asked.clear()
        verifier.judge = judge
        assert run_main("--resume") == 0
    finally:
        for n, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(n, handler)
    assert not set(first) & set(verifier.asked)
    assert len((output / "samples.jsonl").read_text().splitlines()) == len(evaluation.newest_rows(output)) > 2


def test_nothing_judged_is_a_failure_with_its_reason(
    tmp_path: Path, tasks: Path, candidates: Path, verifier: FakeVerifier, capsys: pytest.CaptureFixture[str]
) -> None:
    verifier.judge = lambda text: Verdict(Status.NEEDS_GPU, Stage.PLAN, "only full shapes", "task", "", "fp32")
    evaluated("--tasks", tasks, "--from-run", candidates, "--output", tmp_path / "out", code=1)
    assert "only full shapes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("fast_1=0.5", 0), ("fast_1=0.7", 1), ("compile.fast_1=0.6", 0), ("geomean_x=3", 1), ("pass@64=0.1", 1),
        ("fast1=0.5", 2), ("fast_1", 2), ("fast_1=much", 2), ("fast_0.7=0.5", 2),
    ],
)  # fmt: skip
def test_fail_under(tmp_path: Path, tasks: Path, candidates: Path, limit: str, code: int) -> None:
    output = tmp_path / "out"
    where = ("--tasks", tasks, "--from-run", candidates, "--output", output)
    evaluated(*where, "--baseline", "eager,compile", "--fail-under", limit, code=code)
    assert (output / "results.json").exists() == (code != 2)  # a bad limit is found before any work


@pytest.mark.parametrize(("limit", "remedy"), [("compile.fast_1=0", "--baseline eager,compile"), ("pass@3=0", "1, 2, 4, 6")])
def test_a_limit_to_what_is_not_measured_is_refused_at_once(
    tmp_path: Path, tasks: Path, limit: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated("--tasks", tasks, "--samples", 6, "--output", tmp_path / "out", "--fail-under", limit, code=2)
    assert remedy in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_limits_read_and_compare() -> None:
    assert parse_limit("compile.fast_1.2 = 0.25") == Limit("compile", "fast_1.2", 0.25)
    figures = {"fast_1": {"value": 0.5}, "baselines": {"eager": {"fast_1": {"value": 0.5}}}}
    assert below(Limit(None, "fast_1", 0.5), figures) is None
    assert below(Limit("eager", "fast_1", 0.51), figures) == "eager.fast_1 is 0.5, less than 0.51."
    for bad in ("nonsense=1", "fast_1=nan", "fast_1=half", "pass@0=1"):  # nothing is lower than NaN: all would pass
        with pytest.raises(UsageError, match="NAME=VALUE"):
            parse_limit(bad)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--model", "absent"], marks=pytest.mark.slow),  # the hub is asked first
        ["--model", ""],  # an unset variable, and not the shipped model
        ["--model", "x", "--from-run", "y"],
        ["--model", "nano", "--prompt-template", "absent.j2"],
        ["--from-run", "absent"],
        ["--from-run", ".", "--resume"],
        ["--engine", "server", "--server-url", ""],
        ["--engine", "server", "--server-url", "localhost:8000"],
    ],
)
def test_bad_input(tasks: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    evaluated("--tasks", tasks, *arguments, code=2)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_run_is_judged_again(tmp_path: Path, tasks: Path, candidates: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    evaluated("--tasks", tasks, "--from-run", candidates, "--output", first)
    evaluated("--tasks", tasks, "--from-run", first, "--output", second)
    evaluated("--tasks", tasks, "--from-run", first / "kernelbench" / "level_2", "--output", tmp_path / "third")
    assert results(first)["fast_1"] == results(second)["fast_1"] == results(tmp_path / "third")["fast_1"]


def test_candidates_of_other_tasks_are_named(
    tmp_path: Path, tasks: Path, candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (candidates / "stranger.py").write_text(FAST)
    assert cli.run(["eval", "--tasks", str(tasks), "--from-run", str(candidates), "--output", str(tmp_path / "o")]) == 0
    assert "stranger.py fits none of the tasks" in capsys.readouterr().err
    evaluated("--tasks", tasks, "--from-run", make_eval_run(tmp_path / "other"), "--output", tmp_path / "p", code=2)


def test_json_is_data_alone(tmp_path: Path, tasks: Path, candidates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated("--tasks", tasks, "--from-run", candidates, "--output", tmp_path / "out", "--json")
    assert json.loads(capsys.readouterr().out)["fast_1"]["value"] == pytest.approx(2 / 3)


def test_without_output_runs_are_numbered(tmp_path: Path, tasks: Path, candidates: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        evaluated("--tasks", tasks, "--from-run", candidates)
        assert (tmp_path / "checkpoints" / f"eval-{number}" / "results.json").exists()


def test_baselines_may_be_given_with_commas(tmp_path: Path, tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--baseline", "eager,compile"], ["--baseline", "eager", "--baseline", "compile"]):
        evaluated("--tasks", tasks, "--model", "x", *flags, "--dry-run", "--json")
        assert json.loads(capsys.readouterr().out)["baseline"] == ["eager", "compile"]
    evaluated("--tasks", tasks, "--model", "x", "--baseline", "eager,jit", code=2)


def test_nano_is_asked_where_nothing_is_named() -> None:
    assert EvalConfig().model == "nano"
    assert EvalConfig(from_run=Path("candidates")).model is None


def test_baselines_reach_the_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("kernrl.verifier.verifier.HardenedVerifier", lambda settings: settings)
    assert evaluation.open_verifier(EvalConfig(model="x", baseline=("compile",))).baseline == ("compile",)
    assert evaluation.open_verifier(EvalConfig(model="x")).baseline == ("eager",)


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_on_a_cpu_what_is_too_large_is_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of plain modules without stated sets: one right, one specialised, one wrong, one too large to judge."""
    monkeypatch.setattr(evaluation, "open_verifier", OPEN_VERIFIER)
    folder, candidates = tmp_path / "level2", tmp_path / "candidates"
    folder.mkdir()
    candidates.mkdir()
    unnamed = "int('16384')"  # a size that is no number of the source
    too_large = unstated.task_code(16384, 16384).replace("(batch_size, features)", f"({unnamed}, {unnamed})")
    too_large = too_large.replace("[features]", f"[{unnamed}]")
    made = {
        "1_right": (unstated.task_code(16384, 16384), unstated.CANDIDATE),
        "2_specialised": (unstated.task_code(16, 64), unstated.written_out(64)),
        "3_wrong": (unstated.task_code(16384, 4096), unstated.WRONG),
        "4_too_large": (too_large, unstated.CANDIDATE),
    }
    for name, (task, candidate) in made.items():
        (folder / f"{name}.py").write_text(task)
        (candidates / f"{name}.py").write_text(candidate)
    where = ("--tasks", folder, "--from-run", candidates, "--output", tmp_path / "out")
    on_cpu = ("--verifier.device", "cpu", "--verifier.cache-dir", tmp_path / "cache", "--verifier.workers", "1")
    evaluated(*where, *on_cpu)
    found = results(tmp_path / "out")
    assert found["statuses"] == {"correct": 2, "wrong": 1, "needs_gpu": 1}
    assert (found["samples"], found["unjudged"], found["needs_gpu"], found["specialised"]) == (3, 1, 1, 1)
    assert found["correct"]["value"] == pytest.approx(2 / 3), "of those that were judged"
    shown = capsys.readouterr().out
    assert "Judged 3 of 4" in shown
    words = " ".join(shown.split())
    assert "not correct: 1 wrong; not judged: 1 needs_gpu" in words
    page = lead(read_run(tmp_path / "out"), found, "")
    assert page.startswith("Judged 3 of 4. Of 3 candidates, ")


@pytest.mark.parametrize("command", ["eval", "reinforce"])
def test_a_server_that_is_not_there_is_said_before_anything_is_loaded_or_written(
    command: str, model: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kernrl.training.session.load_starting_policy", None)
    monkeypatch.setattr("kernrl.training.evaluation.open_verifier", None)
    monkeypatch.setattr("kernrl.http_client.FIRST_WAIT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    arguments = ["--model", str(model), "--tasks", str(tasks), "--engine", "server", "--server-url", address]
    assert cli.run([command, *arguments, "--output", str(tmp_path / "run")]) == 3
    assert f"--server-url {address}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_no_more_tasks_are_made_than_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "source_of_three.py").write_text(
        "from support.tiny import tiny_tasks\ndef tasks():\n    yield from tiny_tasks(3)\n    raise RuntimeError('a fourth')\n"
    )
    asked = EvalConfig(model="nano", tasks="source_of_three:tasks", limit=2)
    assert [task.id for task in evaluation.read_tasks(asked)] == ["task-0", "task-1"]
    with pytest.raises(UsageError, match="a fourth"):  # a level is picked from all
        evaluation.read_tasks(asked.model_copy(update={"level": 2}))
