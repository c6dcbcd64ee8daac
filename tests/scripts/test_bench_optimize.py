"""The benchmark of a suite: what is stopped is gone on with by another command, and the figures are of all modules."""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support import ROOT
from support.tiny import verdict_of

from kernrl.optimization import one_task
from kernrl.stages import optimize
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status, Verdict

NAMES = ("layernorm_chw", "mixer_token_mlp", "ffn_down_gate")


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_optimize", ROOT / "scripts" / "bench_optimize.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Verifier:
    """Stands for HardenedVerifier: styles are twice as fast as eager and as fast as compile; Ctrl-C at one module."""

    stop_at: ClassVar[list[str]] = []
    judged: ClassVar[list[str]] = []

    def unfit(self, task: Task) -> str:
        return ""

    def __init__(self, config: object):
        known = {"gpus": [], "workers": 1, "cache_dir": None, "target": "sm_90", "conditions": ["a verifier"]}
        self.evaluator = SimpleNamespace(start=lambda: None, precision_of=lambda task: task.precision, **known)
        self.input_sets = SimpleNamespace(complete=with_input_sets)

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    untimed = staticmethod(nullcontext)

    def submit(self, task: Task, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
        if len(set(self.judged)) == len(self.stop_at) == 1 and task.id not in self.judged:
            raise KeyboardInterrupt
        self.judged.append(task.id)
        future: Future[Verdict] = Future()
        future.set_result(verdict_of(candidate, Status.CORRECT, speedup_x=2.0, compile_x=1.0, task_id=task.id))
        return future


@pytest.mark.slow
def test_a_stopped_run_is_finished_by_another_command_on_another_machine(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "suite"
    source.mkdir()
    for name in NAMES:
        (source / f"{name}.py").write_text((ROOT / "tests" / "foreign" / f"{name}.py").read_text())
    monkeypatch.setattr(optimize, "HardenedVerifier", Verifier)
    monkeypatch.setattr(one_task, "styles", lambda graphs, task, *_: iter([one_task_style(task)]))
    words = [str(source), "--n", "1", "--budget", "20", "--out", "bench.json"]
    Verifier.stop_at.append("second")
    bench.main(words)
    record = json.loads(Path("bench.json").read_text())
    assert len(record["results"]) == record["modules"] == 1
    Verifier.stop_at.clear()
    bench.main(words)
    record = json.loads(Path("bench.json").read_text())
    assert sorted(r["task"] for r in record["results"]) == sorted(NAMES)
    assert record["right"] == 1.0
    eager = record["baselines"]["eager"]
    assert (eager["faster"], eager["geomean_x"], eager["timed"]) == (1.0, pytest.approx(2.0), 3)
    assert record["baselines"]["compile"]["faster"] == 0.0
    assert record["winners"] == {"style": 3}
    assert len(Verifier.judged) == 3  # none twice
    capsys.readouterr()
    bench.main(words)
    assert "has every module" in capsys.readouterr().out


def result(name: str, speedup: float | None, compile_x: float = 1.0, **more: Any) -> dict[str, Any]:
    verdict = verdict_of(name, speedup_x=speedup, compile_x=compile_x, significant=True, task_id=name)
    best = {"origin": "style", "name": "fused", "verdict": verdict.to_json()} if speedup else None
    row = {"task": name, "best": best, "by_origin": {}, "regret": {}, "spent_s": 10.0, "clock": "measured", "family": "product"}
    row |= {"judged": 12}
    return row | {"first_right_s": 2.0, "ended": "budget"} | more


def test_figures_are_of_all_modules_and_have_intervals(bench: Any) -> None:
    rows = [result("a", 2.0, 1.5), result("b", 0.5, 0.5), result("c", None), result("d", 2.0, 0.9, family="norm")]
    rows[0] |= {"by_origin": {"style": 1.6, "variant": 2.0}, "regret": {"8": 0.25, "16": 0.0}}
    rows[1] |= {"regret": {"8": None}, "by_origin": {"model": 0.5}}
    rows[3] |= {"by_origin": {"style": 2.0, "model": 1.0}, "judged": 8}
    found = bench.summary(rows)
    assert found["right"] == 0.75
    eager = found["baselines"]["eager"]
    assert eager["faster"] == 0.5  # of all four
    low, high = eager["faster_interval"][1:]
    assert low < 0.5 < high
    assert eager["geomean_x"] == pytest.approx(2 ** (1 / 3))
    low, high = eager["geomean_interval"][1:]
    assert low < eager["geomean_x"] < high
    assert found["baselines"]["compile"]["faster"] == 0.25
    assert found["variants_over_styles_x"] == pytest.approx(1.25)
    assert found["origins"] == {
        "style": {"modules": 2, "wins": 3, "alone": 0, "gain_x": pytest.approx(2**0.5)},
        "variant": {"modules": 1, "wins": 0, "alone": 0, "gain_x": pytest.approx(1.25)},
        "model": {"modules": 2, "wins": 0, "alone": 1, "gain_x": 1.0},
    }
    assert found["judged"] == {"median": 12, "fewest": 8}
    assert found["noise"]["largest"] == max(r["best"]["verdict"]["timing"]["noise"] for r in rows if r["best"])
    assert found["regret"]["8"] == {"modules": 2, "none_right": 1, "mean": 0.25}
    assert found["regret"]["16"] == {"modules": 1, "none_right": 0, "mean": 0.0}
    assert found["families"]["norm"]["geomean_x"]["compile"] == pytest.approx(0.9)
    assert found["families"]["product"]["modules"] == 3
    assert json.loads(json.dumps(found)) == found


def test_the_first_modules_are_of_different_families(bench: Any) -> None:
    tasks = list(load_tasks(str(ROOT / "tests" / "foreign")).tasks)
    taken = bench.spread(tasks)
    assert sorted(t.id for t in taken) == sorted(t.id for t in tasks)
    families = [bench.family(task.pytorch_code) for task in taken]
    assert len(set(families)) >= 8
    assert len(set(families[: len(set(families))])) == len(set(families))
    assert [t.id for t in bench.spread(tasks[::-1])] == [t.id for t in taken]


def test_what_is_done_is_recorded_while_the_run_goes_on(bench: Any, tmp_path: Path) -> None:
    out, folder = tmp_path / "bench.json", tmp_path / "run"
    record = bench.Record(out, folder, {"a": "product", "b": "norm"}, {})
    for name, ended in (("a", "budget"), ("b", "interrupted")):
        place = folder / "tasks" / name
        place.mkdir(parents=True)
        (place / "results.json").write_text(json.dumps(result(name, 2.0, ended=ended)))
    cut = folder / "tasks" / "c"
    cut.mkdir()
    (cut / "results.json").write_text('{"task": "c", ')
    record.update()
    assert [row["task"] for row in json.loads(out.read_text())["results"]] == ["a"]
    again = bench.Record(out, tmp_path / "elsewhere", {}, {})
    assert set(again.results) == {"a"}
    again.update([result("b", 1.0)])
    assert json.loads(out.read_text())["modules"] == 2


def test_a_second_search_is_made_where_the_first_was_not_faster_and_the_better_of_both_counts(
    bench: Any, tmp_path: Path
) -> None:
    untimed = result("untimed", 3.0)
    del untimed["best"]["verdict"]["timing"]["speedups_x"]["compile"]
    rows = [result("won", 2.0, 1.5), result("lost", 2.0, 0.8), result("stays", 2.0, 0.9), result("none", None), untimed]
    out = tmp_path / "bench.json"
    out.write_text(json.dumps({"results": rows}))
    tasks = [Task(row["task"], "") for row in rows]
    record = bench.Record(out, tmp_path / "run", {}, {})
    assert [task.id for task in record.search_again(tasks, "compile")] == ["none", "untimed", "lost", "stays"]
    record.update([result("lost", 2.0, 1.2), result("stays", 2.0, 0.7), result("untimed", 2.0, 1.1), result("won", 9.0, 9.0)])
    found = {row["task"]: row for row in json.loads(out.read_text())["results"]}
    ratios = {name: row["best"]["verdict"]["timing"]["speedups_x"] for name, row in found.items() if row["best"]}
    assert {name: r["compile"]["value"] for name, r in ratios.items()} == pytest.approx(
        {"won": 1.5, "lost": 1.2, "stays": 0.9, "untimed": 1.1}
    )
    assert {name: row["spent_s"] for name, row in found.items()} == {
        "won": 10,
        "lost": 20,
        "stays": 20,
        "none": 10,
        "untimed": 20,
    }
    third = bench.Record(out, tmp_path / "run", {}, {})
    assert [task.id for task in third.search_again(tasks, "compile")] == ["none"]  # those that were searched twice are done


def one_task_style(task: Task) -> Any:
    from kernrl.optimization.trials import Proposal

    return Proposal(f"class ModelNew: name = {task.id!r}", "style", "fused")
