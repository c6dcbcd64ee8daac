"""The curve of a long run: which checkpoint stands for a minute, and what its row says."""

import argparse
import json
import math

import prove_curve as prove  # pyright: ignore[reportMissingImports]
import pytest
from support.tiny import verdict_of

from kernrl.rollouts.collect import candidate_key
from kernrl.tasks.loaders import load_tasks


@pytest.fixture
def run(tmp_path):
    """A run of 25 steps of 30 s, saved after every fourth."""
    folder = tmp_path / "run"
    folder.mkdir()
    lines = []
    for step in range(1, 26):
        seconds = {"generate": 3.0, "verify": 20.0, "update": 2.0, "step": 30.0}
        lines.append({"step": step, "attempts": 4, "reward": step / 10, "entropy": 1 / step, "seconds": seconds, "alarms": []})
        if step % 4 == 0:
            (folder / f"step_{step}").mkdir()
    lines[4]["alarms"] = ["a speedup of 18× was credited"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_minute_has_the_checkpoint_that_was_saved_last_until_then(run):
    assert prove.checkpoints(run, [4.5, 2, 10]) == {"2 min": (4, 120.0), "4.5 min": (8, 240.0), "10 min": (20, 600.0)}
    # before the first one there is none, and two minutes do not share one
    assert prove.checkpoints(run, [1.9, 2.5, 3]) == {"2.5 min": (4, 120.0)}


def test_a_minute_that_a_run_has_not_come_to_is_left_out_until_the_run_ends(run):
    assert prove.checkpoints(run, [12.4, 12.6, 60]) == {"12.4 min": (24, 720.0)}
    assert prove.checkpoints(run, [60]) == {}
    (run / "results.json").write_text("{}")
    assert prove.checkpoints(run, [60]) == {"60 min": (24, 720.0)}


def test_a_window_has_means_over_its_steps_and_different_attempts_of_a_group():
    lines = [
        {"step": 1, "reward": 1.0, "seconds": {"verify": 4.0, "step": 6.0}, "alarms": ["x"]},
        {"step": 2, "reward": 2.0, "entropy": 0.5, "seconds": {"verify": 2.0, "step": 2.0}, "alarms": None},
    ]
    samples = [{"step": s, "group": g, "key": key} for s, g, key in ((1, 0, "a"), (1, 0, "a"), (1, 1, "a"), (1, 1, "b"))]
    seen = prove.window(lines, [*samples, {"step": 2, "group": 0, "key": "c"}, {"step": 2, "group": 0, "key": "d"}])
    assert (seen["steps"], seen["reward"], seen["entropy"], seen["mismatch_kl"]) == (2, 1.5, 0.5, None)
    assert seen["seconds"] == {"generate": None, "verify": 3.0, "update": None, "step": 4.0}
    assert seen["distinct_a_group"] == pytest.approx(5 / 3)
    assert seen["alarms"] == ["x"]


def test_the_spread_over_styles():
    even = prove.styles([{"style": str(i % 20)} for i in range(40)])
    assert even == {"entropy": pytest.approx(math.log(20)), "share_of_10": 0.5, "styles": 20}
    assert prove.styles([{"style": "rows"}] * 3) == {"entropy": 0.0, "share_of_10": 1.0, "styles": 1}


def test_the_table_compares_each_checkpoint_with_the_start(run, tmp_path, capsys):
    tasks, out, verdicts = load_tasks("heldout").tasks[:2], tmp_path / "out", []
    for name, speed_x in {"start": 1.0, "2-min": 1.5, "10-min": 2.0}.items():
        rows = []
        for task in tasks:
            for member in range(2):
                text = f"```python\nwho = {name!r}, {member}\n```"
                verdict = verdict_of(text, speedup_x=speed_x, compile_x=speed_x / 2)
                verdicts.append({"task": task.id, "key": candidate_key(text), "verdict": verdict.to_json()})
                about = {"task": task.id, "member": member, "tokens": 9, "finish": "stop", "style": f"style {member}"}
                rows.append(about | {"text": text})
        (out / name).mkdir(parents=True)
        (out / name / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (out / "verdicts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in verdicts))
    (run / "config.json").write_text(json.dumps({"config": {"seed": 3}}))
    args = argparse.Namespace(run=run, out=out, suites=["heldout"], limit=2, precision="tf32")
    prove.table(args, prove.checkpoints(run, [2, 4, 10]))
    record = json.loads((out / "curve.json").read_text())
    start, early, late = record["rows"]  # what has not answered is left out
    assert [row["name"] for row in record["rows"]] == ["start", "2 min", "10 min"]
    assert (early["step"], early["run_s"], early["window"]["steps"]) == (4, 120.0, 4)
    assert (late["step"], late["window"]["steps"], late["window"]["alarms"]) == (20, 16, ["a speedup of 18× was credited"])
    assert late["change"]["speed_ratio_x"]["value"] == pytest.approx(2.0)
    assert late["against"]["compile"]["geomean_x"]["value"] == pytest.approx(1.0)
    assert "change" not in start
    assert record["settings"] == {"config": {"seed": 3}}
    printed = capsys.readouterr().out.splitlines()
    assert [line.count("|") for line in printed] == [len(prove.COLUMNS) + 1] * 5
    assert printed[-1].startswith("| 10 min | 20 | 100%")
