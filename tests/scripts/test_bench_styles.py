"""The bench of worked styles: two tasks without a GPU, and its summary of rows made by hand."""

import contextlib
import json
import sys

import bench_styles  # pyright: ignore[reportMissingImports]
import pytest
import torch
from support.pool_of_threads import pool_of_threads

from kernrl.errors import UsageError
from kernrl.tasks.task import Task


def style(name, us, *, eager_x=None, compile_x=None, significant=True, status="correct"):
    one = {"style": name, "status": status, "reason": "", "notes": []}
    if us:
        found = {"eager": eager_x, "compile": compile_x}
        one |= {"us": us, "speedups_x": {k: [x, 0.9 * x, 1.1 * x, significant] for k, x in found.items() if x}}
    return one


def row(task, family, floor_us, *styles):
    return {"task": task, "precision": "tf32", "family": family, "ops": ["mm", "relu"], "floor_us": floor_us, "styles": styles}


ROWS = [
    # a wrong style is never the best, nor is one without times
    row(
        "a",
        "product",
        2.5,
        style("cheat", 1.0, eager_x=9.0, compile_x=9.0, status="wrong"),
        style("split", 8.0, eager_x=1.0, compile_x=0.5),
        style("fused-algebra", 5.0, eager_x=4.0, compile_x=0.8),
        style("untimed", 0),
    ),
    row("b", "product", 9.0, style("split", 10.0, eager_x=1.0, compile_x=0.9)),
    # slower, though not beyond the noise
    row("c", "rows", 1.0, style("split", 10.0, eager_x=2.0, compile_x=0.98, significant=False)),
    row("d", "rows", 1.0, style("split", 0, status="crash")),
]


def test_the_best_style_is_the_fastest_correct_one():
    names = [(bench_styles.best(row) or {}).get("style") for row in ROWS]
    assert names == ["fused-algebra", "split", "split", None]
    assert bench_styles.best(ROWS[0], algebra=False)["style"] == "split"


def test_the_table_is_of_the_best_styles_by_family():
    assert bench_styles.table(ROWS, "eager", "tf32").splitlines() == [
        "| against eager, tf32 | tasks | geometric mean | not slower | faster |",
        "|---|---:|---:|---:|---:|",
        "| product | 2 | 2.000 | 100% | 50% |",  # √(4 · 1)
        "| rows | 1 | 2.000 | 100% | 0% |",
        "| all | 3 | 2.000 | 100% | 33% |",
    ]
    # 0.8, 0.9 and 0.98, of which the last is within the noise
    assert bench_styles.table(ROWS, "compile", "tf32").splitlines()[-1] == "| all | 3 | 0.890 | 33% | 0% |"
    assert len(bench_styles.table(ROWS, "compile", "bf16").splitlines()) == 2


def test_what_is_missing_is_told_from_the_floor():
    assert [bench_styles.missing(row, "compile") for row in ROWS] == [
        "a (product): fused-algebra 0.80, 2.0 times the floor; mm relu",
        "b (product): split 0.90, at the floor as counted: the compiler does less; mm relu",
        None,
        "d: no correct style (Counter({'crash': 1}))",
    ]


def test_the_summary():
    parts = bench_styles.report(ROWS, ["eager", "compile"]).split("\n\n")
    assert parts[2:5] == [
        "tf32, best style: split 2, fused-algebra 1",
        "tf32, algebra is best on 1 of 4 tasks, 1.60 times faster there",
        "tf32, verdicts: correct 5, wrong 1, crash 1",
    ]
    assert parts[5].startswith("tf32, behind compile or without a style: 3\na (product)")


def test_two_records_stand_side_by_side():
    before = [row("a", "product", 4.0, style("old", 10.0)), row("c", "rows", 1.0, style("old", 40.0)), ROWS[3]]
    assert bench_styles.beside(ROWS, before).splitlines()[2:] == [
        "| a | old | 10.0 | fused-algebra | 5.0 | 2.00 |",
        "| c | old | 40.0 | split | 10.0 | 4.00 |",
        "| all 2 | | | | | 2.828 |",
    ]


def test_named_tasks_come_first():
    every = [Task(name, "") for name in "abcdef"]
    order = [t.id for t in bench_styles.in_order(every, ["e", "none", "b"], 0)]
    assert order[:2] == ["e", "b"]
    assert sorted(order) == list("abcdef")
    assert order == [t.id for t in bench_styles.in_order(every, ["e", "none", "b"], 0)]
    with pytest.raises(UsageError, match="--target Z9: no such GPU"):
        bench_styles.rates_of("Z9", "tf32")


@pytest.mark.slow
def test_two_tasks_are_judged_and_a_second_call_has_nothing_to_do(cpu_verifier, tmp_path, monkeypatch, capsys):
    asked, every, threads = [], bench_styles.write_solutions, torch.get_num_threads()

    def opened(config):
        asked.append(config)
        return contextlib.nullcontext(cpu_verifier)

    monkeypatch.setattr(bench_styles, "HardenedVerifier", opened)
    monkeypatch.setattr(bench_styles, "ProcessPoolExecutor", pool_of_threads)
    monkeypatch.setattr(bench_styles, "write_solutions", lambda task: every(task)[:2])
    out = tmp_path / "styles.json"
    line = ["bench_styles.py", "--out", str(out), "--device", "cpu", "--limit", "2", "--precision", "fp32"]
    monkeypatch.setattr(sys, "argv", line)
    bench_styles.main()
    torch.set_num_threads(threads)
    record = json.loads(out.read_text())
    said = capsys.readouterr()
    assert (asked[0].device, asked[0].target, asked[0].cache) == ("cpu", "H200", False)
    rows = {row["task"]: row for row in record["rows"]}
    # half of them foreign, half generated; Graphs that hold too little or too much are skipped
    assert sorted(rows) == ["abs_pos_patch_merge", "generated-1"]
    assert record["left_out"] == []
    for found in rows.values():
        assert [s["status"] for s in found["styles"]] == ["correct"] * 2, found["styles"]
        assert len({s["style"] for s in found["styles"]}) == 2
        assert found["clock"].startswith("modelled on ")
        assert found["floor_us"] > 0
        for one in found["styles"]:
            value = one["speedups_x"]["eager"][0]
            assert value == pytest.approx(found["baseline_us"]["eager"] / one["us"])
    assert rows["abs_pos_patch_merge"]["family"] == "convolution"
    assert bench_styles.report(record["rows"], ["eager"]) in said.out
    assert said.err == "\n2 judged, 0 left out, 0 to do\n"
    bench_styles.main()
    assert len(asked) == 1
    assert capsys.readouterr().out == said.out
    assert json.loads(out.read_text()) == record
