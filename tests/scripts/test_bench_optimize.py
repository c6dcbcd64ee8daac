"""The benchmark of a suite: what is stopped is gone on with by another command, and the figures are of all modules."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, ClassVar

import optimize_figures  # pyright: ignore[reportMissingImports]
import pytest
from support import ROOT
from support.tiny import verdict_of

from kernrl import cli
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
    monkeypatch.setattr(one_task, "styles", lambda graphs, task, *_, **__: iter([one_task_style(task)]))
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
    bench.main([*words, "--again", "--commit", "later"])
    twice = json.loads(Path("bench.json").read_text())
    assert len(Verifier.judged) == 6
    assert (twice["searched_twice"], twice["second_commit"], twice["commit"]) == (3, "later", record["commit"])
    capsys.readouterr()
    bench.main([*words, "--again"])
    assert "no module to search again" in capsys.readouterr().out
    assert json.loads(Path("bench.json").read_text()) == twice
    assert len(Verifier.judged) == 6
    for other in (["--precision", "fp32"], ["--n", "2"], ["--budget", "21"]):
        with pytest.raises(SystemExit):
            bench.main([*words, *other])
        assert "bench.json has" in capsys.readouterr().err


class Forked:
    """What the benchmark asks of a `subprocess.Popen`, of a fork, which has what a test put in place of the verifier.

    Beside its output is which GPU and cores it had.
    """

    def __init__(self, command: Sequence[str], *, stdout: IO[str], env: Mapping[str, str], start_new_session: bool):
        assert command[:3] == [sys.executable, "-m", "kernrl"]
        assert start_new_session
        self._has_cores = multiprocessing.Event()
        run = multiprocessing.get_context("fork").Process(target=self._run, args=(command[3:], stdout, env))
        run.start()
        self._process, self.pid, self.kill = run, run.pid, run.kill

    def _run(self, words: Sequence[str], stdout: IO[str], env: Mapping[str, str]) -> None:
        sys.stdout = stdout
        self._has_cores.wait()
        Path(stdout.name).with_suffix(".place").write_text(f"{env['CUDA_VISIBLE_DEVICES']} on {os.sched_getaffinity(0)}")
        code = cli.run(words)
        stdout.flush()
        os._exit(code)

    def wait(self) -> None:
        self._has_cores.set()
        self._process.join()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode


@pytest.mark.slow
def test_modules_are_shared_out_among_gpus(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "visible_gpus", lambda: ["4", "5"])
    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(Popen=Forked))
    monkeypatch.setattr(optimize, "HardenedVerifier", Verifier)
    monkeypatch.setattr(one_task, "styles", lambda graphs, task, *_, **__: iter([one_task_style(task)]))
    source, out = tmp_path / "suite", tmp_path / "bench.json"
    source.mkdir()
    for name in NAMES:
        (source / f"{name}.py").write_text((ROOT / "tests" / "foreign" / f"{name}.py").read_text())
    monkeypatch.setattr(bench.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    bench.main([str(source), "--n", "1", "--budget", "60", "--gpus", "2", "--out", str(out)])
    record = json.loads(out.read_text())
    assert sorted(row["task"] for row in record["results"]) == sorted(NAMES)
    assert (record["right"], record["settings"]["gpus"]) == (1.0, 2)
    cores = sorted(os.sched_getaffinity(0))
    halves = (set(cores[: len(cores) // 2]), set(cores[len(cores) // 2 : len(cores) // 2 * 2]))
    places = [(tmp_path / "run" / f"{number}.place").read_text() for number in range(2)]
    assert places == [f"{gpu} on {half}" for gpu, half in zip("45", halves, strict=True)]
    with pytest.raises(SystemExit, match="there are 2"):
        bench.main([str(source), "--gpus", "3", "--out", str(tmp_path / "other.json")])


def result(name: str, speedup: float | None, compile_x: float = 1.0, **more: Any) -> dict[str, Any]:
    verdict = verdict_of(name, speedup_x=speedup, compile_x=compile_x, significant=True, task_id=name)
    best = {"origin": "style", "name": "fused", "verdict": verdict.to_json()} if speedup else None
    row = {"task": name, "best": best, "by_origin": {}, "regret": {}, "spent_s": 10.0, "clock": "measured", "family": "product"}
    row |= {"judged": 12}
    return row | {"first_right_s": 2.0, "ended": "budget"} | more


def test_figures_are_of_all_modules_and_have_intervals() -> None:
    rows = [result("a", 2.0, 1.5), result("b", 0.5, 0.5), result("c", None), result("d", 2.0, 0.9, family="norm")]
    rows[0] |= {"by_origin": {"style": 1.6, "variant": 2.0}, "regret": {"8": 0.25, "16": 0.0}}
    rows[1] |= {"regret": {"8": None}, "by_origin": {"model": 0.5}}
    rows[3] |= {"by_origin": {"style": 2.0, "model": 1.0}, "judged": 8}
    found = optimize_figures.summary(rows)
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


class Machine:
    """Where a command of the benchmark runs: its GPU, its commit, and a clock."""

    def __init__(self, bench: Any, monkeypatch: pytest.MonkeyPatch):
        self.gpu, self.commit, self.now_s, self.date = "NVIDIA H200", "aaaaaaa", 1000.0, "2026-11-26"
        versions = {"torch": "2.11.0", "triton": "3.6.0"}
        monkeypatch.setattr(bench, "environment", lambda: {"gpu": self.gpu, "commit": self.commit, "versions": versions})
        clock = SimpleNamespace(monotonic=lambda: self.now_s, strftime=lambda form: self.date)
        monkeypatch.setattr(bench, "time", clock)


@pytest.fixture
def machine(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(bench, monkeypatch)


def searched(bench: Any, out: Path, rows: list[dict[str, Any]], *, again: bool = False) -> list[str]:
    """What a command does that finds these results; returns what it would have searched again."""
    record = bench.Record(out, out.parent / "run", {}, {"budget_s": 40.0 if again else 30.0, "n": 64}, again=again)
    waiting = record.search_again([Task(name, "") for name in record.results], "compile") if again else []
    for row in rows:
        record.update([row])
    return [task.id for task in waiting]


def test_a_record_says_what_came_of_each_kind_of_search(bench: Any, machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    record = bench.Record(out, tmp_path / "run", {}, {"budget_s": 30.0, "n": 64})
    machine.now_s += 60
    record.update([result("won", 2.0, 1.5), result("lost", 2.0, 0.8)])
    machine.commit, machine.gpu = "bbbbbbb", "NVIDIA H100"
    record = bench.Record(out, tmp_path / "run", {}, {"budget_s": 30.0, "n": 64})
    machine.now_s += 30
    record.update([result("none", None), result("stays", 2.0, 0.9)])
    once = json.loads(out.read_text())
    assert (once["wall_s"], once["modules_per_minute"]) == (90, pytest.approx(4 / 1.5))
    assert (once["gpu"], once["commit"]) == ("NVIDIA H200, NVIDIA H100", "aaaaaaa, bbbbbbb")
    assert not {"first", "searched_twice", "second_gpu"} & once.keys()
    machine.commit, machine.gpu, machine.date = "ccccccc", "NVIDIA B200", "2026-11-27"
    record = bench.Record(out, tmp_path / "run", {}, {"budget_s": 40.0, "n": 64}, again=True)
    tasks = [Task(name, "") for name in ("won", "lost", "none", "stays")]
    assert [task.id for task in record.search_again(tasks, "compile")] == ["none", "lost", "stays"]
    machine.now_s += 500
    record.update([result("lost", 2.0, 1.2), result("none", 3.0, 1.1)])
    twice = json.loads(out.read_text())
    for name in ("modules", "right", "baselines", "winners", "seconds_of_searches"):
        assert twice["first"][name] == once[name]
    assert [twice["right"], once["right"]] == [1.0, 0.75]
    assert twice["baselines"]["compile"]["faster"] == 0.75
    for name in ("gpu", "commit", "date", "versions", "wall_s", "modules_per_minute"):
        assert twice[name] == once[name]
    assert (twice["second_gpu"], twice["second_commit"], twice["second_date"]) == ("NVIDIA B200", "ccccccc", "2026-11-27")
    assert (twice["searched_twice"], twice["second_wall_s"]) == (2, 500)
    assert twice["settings"] == {"budget_s": 30.0, "n": 64, "second_budget_s": 40.0, "second_n": 64}
    machine.commit = "ddddddd"
    assert searched(bench, out, [result("stays", 2.0, 0.7)], again=True) == ["stays"]
    rows = {row["task"]: row for row in json.loads(out.read_text())["results"]}
    assert rows["stays"]["commit"] == "bbbbbbb"  # the first was better
    assert json.loads(out.read_text())["second_commit"] == "ccccccc, ddddddd"


def test_a_second_search_that_is_killed_is_gone_on_with_and_there_is_no_third(
    bench: Any, machine: Machine, tmp_path: Path
) -> None:
    out = tmp_path / "bench.json"
    names = [f"module-{number}" for number in range(5)]
    searched(bench, out, [result(name, 2.0, 0.5 + number / 100) for number, name in enumerate(names)])
    once, left = json.loads(out.read_text()), names
    for count in (2, 1, 2):
        # an interrupted one is not one that was made
        ended = [result(name, 2.0, 0.6) for name in left[:count]]
        stopped = [result(left[count], 9.0, 9.0, ended="interrupted")] if left[count:] else []
        assert searched(bench, out, [*ended, *stopped], again=True) == left
        left = left[count:]
        found = json.loads(out.read_text())
        assert found["searched_twice"] == 5 - len(left)
        assert found["first"]["baselines"] == once["baselines"]
        assert found["modules_per_minute"] == once["modules_per_minute"]
    assert searched(bench, out, [result(name, 9.0, 9.0) for name in names], again=True) == []
    assert json.loads(out.read_text())["results"] == found["results"]


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        ((2.0, 0.9), (2.0, 0.7), "first"),
        ((2.0, 0.9), (9.0, None), "first"),  # not timed against torch.compile
        ((2.0, None), (1.5, 0.7), "second"),
        ((None, None), (1.5, 0.7), "second"),
        ((2.0, 0.9), (None, None), "first"),
        ((None, None), (None, None), "first"),
    ],
)
def test_which_of_two_searches_counts(
    bench: Any, machine: Machine, tmp_path: Path, first: tuple[Any, Any], second: tuple[Any, Any], counts: str
) -> None:
    out = tmp_path / "bench.json"
    searched(bench, out, [result("a", *first)])
    once = json.loads(out.read_text())
    machine.commit = "bbbbbbb"
    searched(bench, out, [result("a", *second)], again=True)
    found = json.loads(out.read_text())
    [row] = found["results"]
    assert row["commit"] == ("aaaaaaa" if counts == "first" else "bbbbbbb")
    assert (row["spent_s"], row["searches"], row["first"]) == (20, 2, once["results"][0])
    assert (found["searched_twice"], found["commit"], found["second_commit"]) == (1, "aaaaaaa", "bbbbbbb")
    assert found["first"]["right"] == once["right"]


BY_HAND = {
    "gpu": "NVIDIA H200",
    "second_gpu": "NVIDIA H100",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "commit": "1111111",
    "second_commit": "2222222",
    "date": "2026-11-26",
    "cores": 16,
    "searched_twice": 1,
    "wall_s": 60.0,
    "modules_per_minute": 3.0,
    "first": {"modules": 3, "right": 1.0},
    "settings": {"precision": "tf32", "n": 64, "budget_s": 30, "second_budget_s": 40},
}
"""As the record of 26 November 2026 was completed: of the module that was searched twice, the first result is lost."""


@pytest.mark.parametrize("again", [True, False])
def test_a_record_that_was_completed_by_hand_is_gone_on_with(
    bench: Any, machine: Machine, tmp_path: Path, *, again: bool
) -> None:
    out = tmp_path / "bench.json"
    twice = result("twice", 2.0, 1.2, device="NVIDIA H100", commit="2222222", searches=2)
    firsts = {"device": "NVIDIA H200", "commit": "1111111", "searches": 1}
    once = [result("won", 2.0, 1.5, **firsts), result("lost", 2.0, 0.9, **firsts)]
    machine.gpu, machine.commit, machine.date = "NVIDIA B200", "3333333", "2026-11-27"
    if again:
        out.write_text(json.dumps(BY_HAND | {"results": [*once, twice]}))
        assert searched(bench, out, [result("lost", 9.0, 9.0)], again=True) == ["lost"]
        found = json.loads(out.read_text())
        for name in ("gpu", "commit", "first", "wall_s", "modules_per_minute", "date", "cores"):
            assert found[name] == BY_HAND[name], name
        assert found["versions"] == {"torch": "2.11.0", "triton": "3.6.0"}
        assert found["searched_twice"] == 2
        assert (found["second_gpu"], found["second_commit"]) == ("NVIDIA B200, NVIDIA H100", "3333333, 2222222")
        assert found["second_wall_s"] is None  # of the searches before it was not recorded
        assert found["settings"] == BY_HAND["settings"] | {"second_n": 64}
    else:
        out.write_text(json.dumps(BY_HAND | {"results": [twice]}))
        searched(bench, out, [result("new", 2.0, 1.1)])
        found = json.loads(out.read_text())
        assert (found["gpu"], found["commit"]) == ("NVIDIA H200, NVIDIA B200", "1111111, 3333333")
        assert (found["second_gpu"], found["second_commit"]) == ("NVIDIA H100", "2222222")


def test_the_figures_of_the_recorded_run_follow_from_its_results(bench: Any) -> None:
    before = json.loads((ROOT / "docs" / "benchmarks" / "optimize.json").read_text())
    record = bench.in_todays_form(before)
    found = optimize_figures.figures_of_both(record["results"], record)
    names = ("gpu", "commit", "second_gpu", "second_commit", "searched_twice", "first", "modules", "right", "baselines")
    for name in (*names, "winners", "origins", "noise", "regret", "families"):
        assert found.get(name) == before.get(name), name


def test_what_an_older_record_does_not_say_is_not_made_up(bench: Any, machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    rows = [
        result("once", 2.0, 1.5, device="NVIDIA H200", commit="1111111", searches=1),
        result("twice", 2.0, 1.2, device="NVIDIA H100", commit="2222222", searches=2),
    ]
    older = {"gpu": "NVIDIA H100", "commit": "2222222", "wall_s": 900.0, "modules_per_minute": 0.0}
    out.write_text(json.dumps(older | {"settings": {"budget": 30.0}, "results": rows}))
    searched(bench, out, [result("third", 2.0, 1.1)])
    found = json.loads(out.read_text())
    assert (found["gpu"], found["commit"]) == ("NVIDIA H200", "1111111, aaaaaaa")
    assert (found["first"], found["wall_s"], found["modules_per_minute"]) == (None, None, None)
    assert (found["searched_twice"], found["settings"]["budget_s"]) == (1, 30.0)


def test_times_of_a_gpu_and_of_the_model_are_not_mixed(bench: Any, machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    searched(bench, out, [result("a", 2.0, 0.5)])
    bench.Record(out, tmp_path / "run", {}, {}).require_same()
    machine.gpu = None
    with pytest.raises(ValueError, match="has measured times"):
        bench.Record(out, tmp_path / "run", {}, {}, again=True).require_same()


def test_a_record_holds_no_sources(bench: Any, machine: Machine, tmp_path: Path) -> None:
    found = result("a", 2.0, 0.5, ranking=[{"id": "style-0"}], graph={}, sentence="a: 2.00×")
    found["best"]["source"] = "import triton"
    searched(bench, tmp_path / "bench.json", [found])
    text = (tmp_path / "bench.json").read_text()
    assert "import triton" not in text
    assert "ranking" not in text
    nothing = result("b", None, sentence="b: none of 3 candidates is correct")
    searched(bench, tmp_path / "bench.json", [nothing])
    assert "none of 3 candidates" in (tmp_path / "bench.json").read_text()


def one_task_style(task: Task) -> Any:
    from kernrl.optimization.search.trials import Proposal

    return Proposal(f"class ModelNew: name = {task.id!r}", "style", "fused")
