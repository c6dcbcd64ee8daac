"""KernelBench's run directory, written and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.synthetic_run import correct, row, verdict

from kernrl.errors import UsageError
from kernrl.reports.kernelbench import eval_entry, number_tasks, read_candidates, write_kernelbench
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Stage, Status


def task(task_id: str, level: int = 2) -> Task:
    return Task(task_id, "", level=level, name=task_id.rpartition("/")[2])


TASKS = [task("level2/40_Matmul"), task("level2/3_Conv"), task("ours"), task("level1/40_Relu", 1)]


def test_directory_is_as_kernelbench_leaves_it(tmp_path: Path) -> None:
    rows = [
        row(correct("level2/40_Matmul", 2.0), member=1, text="one = 1"),
        row(correct("level2/40_Matmul", 0.5), member=0, text="zero = 0"),
        row(verdict("level2/3_Conv", Status.COMPILE_ERROR, Stage.TRACE, "no"), text="x = 1"),
        row(verdict("level1/40_Relu", Status.WRONG, Stage.CORRECTNESS, "off"), text="y = 1"),
    ]
    folders = write_kernelbench(tmp_path, TASKS, rows)
    assert [f.name for f in folders] == ["level_1", "level_2"]
    level_2 = tmp_path / "level_2"
    names = {"level_2_problem_40_sample_0_kernel.py", "level_2_problem_40_sample_1_kernel.py"}
    assert names <= {p.name for p in level_2.iterdir()}
    assert (level_2 / "level_2_problem_40_sample_1_kernel.py").read_text().strip() == "one = 1"
    evaluated = json.loads((level_2 / "eval_results.json").read_text())
    assert list(evaluated) == ["3", "40"]
    assert [e["sample_id"] for e in evaluated["40"]] == [0, 1]
    best = evaluated["40"][1]
    assert (best["compiled"], best["correctness"]) == (True, True)
    assert best["runtime"] == best["runtime_stats"]["mean"] == pytest.approx(0.040)  # milliseconds
    assert best["ref_runtime"] / best["runtime"] == pytest.approx(2.0)
    failed = evaluated["3"][0]
    assert (failed["compiled"], failed["correctness"], failed["runtime"]) == (False, False, -1.0)
    baseline = json.loads((level_2 / "baseline_time_eager.json").read_text())
    assert baseline["level2"]["40_Matmul.py"]["mean"] == pytest.approx(0.020)
    wrong = json.loads((tmp_path / "level_1" / "eval_results.json").read_text())["40"][0]
    assert (wrong["compiled"], wrong["correctness"]) == (True, False)


def test_modelled_times_are_no_runtime() -> None:
    entry = eval_entry(0, correct("a", 2.0, kind="modelled"))
    assert entry["runtime"] == -1.0
    assert entry["runtime_stats"] == {}
    assert entry["metadata"]["modelled_us"] == 40.0


def test_tasks_without_a_number_get_a_free_one() -> None:
    tasks = [task("a"), task("level2/1_x"), task("b"), task("level1/1_y", 1)]
    numbered = {t.id: key for key, t in number_tasks(tasks).items()}
    assert numbered == {"level2/1_x": (2, 1), "level1/1_y": (1, 1), "a": (2, 2), "b": (2, 3)}


@pytest.mark.parametrize("name", ["level2/40_Matmul", "level2/40", "40_Matmul", "row-40"])
def test_a_task_that_was_picked_alone_keeps_its_number(name: str) -> None:
    assert list(number_tasks([task(name)])) == [(2, 40)]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    rows = [row(correct(t.id, 2.0), member=m, text=f"# {t.id} {m}") for t in TASKS for m in range(2)]
    write_kernelbench(tmp_path, TASKS, rows)
    found, problems = read_candidates(tmp_path, TASKS)
    assert problems == []
    assert [(t.id, m) for t, m, _ in found] == [(t.id, m) for t in TASKS for m in range(2)]
    assert all(text.strip() == f"# {t.id} {m}" for t, m, text in found)


def test_files_named_after_tasks(tmp_path: Path) -> None:
    (tmp_path / "level2").mkdir()
    for name in ("level2/40_Matmul.py", "level2_3_Conv_sample_7.py", "ours_sample_1.py", "unknown.py"):
        (tmp_path / name).write_text(name)
    found, problems = read_candidates(tmp_path, TASKS)
    assert [(t.id, m) for t, m, _ in found] == [("level2/40_Matmul", 0), ("level2/3_Conv", 7), ("ours", 1)]
    assert len(problems) == 1
    assert "unknown.py" in problems[0]


def test_no_candidates_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name the files after the tasks"):
        read_candidates(tmp_path, TASKS)
    with pytest.raises(UsageError, match="no folder"):
        read_candidates(tmp_path / "absent", TASKS)
