"""The bench of real sizes: a dry run of one small task without a GPU, and its figures."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import ROOT, TESTS

from kernrl.errors import UsageError

SCRIPT = ROOT / "scripts" / "bench_real_sizes.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    found = importlib.util.spec_from_file_location("bench_real_sizes", SCRIPT)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def row(status: str, planned: int, *peaks: int) -> dict[str, Any]:
    measured = dict(zip(("replay_peak", "judge_peak"), peaks, strict=False))
    memory, seconds = {"planned": planned, **measured}, {"judge": 0.25, "gpu_queue": 2.0, "parse": 0.001}
    return {"task": "t", "style": "fused", "status": status, "reason": "because", "memory": memory, "seconds": seconds}


def test_figures_of_a_phase(bench: ModuleType) -> None:
    rows = [row("correct", 100, 50, 40), row("correct", 100, 60, 60), row("infra_error", 100)]
    rows[0]["memory"] |= {"granted": 200, "replay_held": 90, "judge_held": 60}
    phase = {"rows": rows, "done": ["t"], "seconds": 1.5, "restarts": 2}
    found = bench.summary(phase)
    assert (found["verdicts_per_s"], found["infra_errors"], found["restarts"]) == (2.0, 1, 2)
    assert found["peak_over_planned"] == {"median": pytest.approx(1.05), "most": 1.2}
    lines = bench.table({"phases": {"eager,compile warm": phase}}).splitlines()
    assert lines[-4:] == [
        "| eager,compile | warm | 1 | 3 | 2 | 2.00 | – | 1 | 2 | 1 | 1.05, at most 1.20 | 0.75, at most 0.75 |",
        "",
        "eager,compile warm, mean seconds a verdict: gpu_queue 2.00, judge 0.25",
        "t fused: infra_error: because",
    ]


def test_the_steady_rate_leaves_out_the_start_and_earlier_runs(bench: ModuleType) -> None:
    assert bench.steady_per_s([1.0, 2.0, 30.0, *range(20, 30)]) == pytest.approx(1.0)
    assert bench.steady_per_s([20.0, 20.5, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0]) == pytest.approx(1.0)
    assert bench.steady_per_s([]) is bench.steady_per_s([3.0]) is None


@pytest.mark.slow
def test_tasks_are_chosen_by_what_they_hold(bench: ModuleType) -> None:
    folder = TESTS / "foreign"
    [(task, held)] = bench.chosen_tasks(folder / "climate_film_big.py", 1, 0, 1.0, 8.0, 0)
    assert task.id == "climate_film_big"
    assert held == pytest.approx(5.93, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_folder", "generated", "kinds"),
    [(3, 2, "folder, generated, folder, generated, folder"), (1, 2, "generated, generated, folder, generated, generated")],
)
def test_generated_tasks_stand_among_those_of_the_folder(
    bench: ModuleType, tmp_path: Path, of_folder: int, generated: int, kinds: str
) -> None:
    """And take the place of those that a folder lacks."""
    for i in range(of_folder):
        shutil.copy(TESTS / "foreign" / "hw3_problem2.py", tmp_path / f"task_{i}.py")
    chosen = bench.chosen_tasks(tmp_path, 5, generated, 0.0, 8.0, 0)
    assert ", ".join("generated" if task.id.startswith("generated") else "folder" for task, _ in chosen) == kinds
    assert len({task.id for task, _ in chosen}) == 5


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_a_dry_run_goes_on_where_it_was(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, one = tmp_path / "sizes.json", TESTS / "foreign" / "hw3_problem2.py"
    small = ["--tasks", "1", "--least", "0", "--most", "0.01", "--styles", "1", "--baselines", "eager", "--heats", "cold"]

    def run(out: Path) -> None:
        monkeypatch.setattr(sys, "argv", ["bench", "--out", str(out), "--source", str(one), "--device", "cpu", *small])
        bench.main()

    run(out)
    record = json.loads(out.read_text())
    assert [(name, [r["status"] for r in phase["rows"]]) for name, phase in record["phases"].items()] == [
        ("eager cold", ["correct"])
    ]
    capsys.readouterr()
    run(out)
    assert "0 tasks to do" in capsys.readouterr().err
    assert json.loads(out.read_text()) == record
    with pytest.raises(UsageError, match="would not be cold"):
        run(tmp_path / "sizes.txt")
