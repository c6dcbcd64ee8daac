"""The proof of the training methods: in which order candidates are judged, and what its table says of a run."""

import json

import prove_training  # pyright: ignore[reportMissingImports]
import pytest
from support.tiny import verdict_of
from training_table import training_figures, write_table  # pyright: ignore[reportMissingImports]

from kernrl.rollouts.collect import candidate_key
from kernrl.tasks.loaders import load_tasks
from kernrl.verifier.base.verdict import Status


def write_rows(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def replies(tmp_path, monkeypatch):
    """Of two runs, to three tasks in blocks of two: one reply of both is the same."""
    monkeypatch.setattr(prove_training, "BLOCK", 2)
    texts = {"start": [("c", "1"), ("a", "1"), ("a", "1")], "reinforce-0": [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")]}
    for run, pairs in texts.items():
        write_rows(tmp_path / run / "replies.jsonl", [{"task": task, "text": text} for task, text in pairs])
    return tmp_path


def unjudged(out, tasks=("c", "a", "b")):
    runs = ["start", "reinforce-0", "reinforce-1"]
    return ((task, text) for task, _, text in prove_training.unjudged(out, runs, tasks))


def test_each_block_of_tasks_is_judged_by_turns(replies):
    first, second, third, fourth = unjudged(replies)
    assert (first, {second, third}, fourth) == (("c", "1"), {("a", "1"), ("a", "2")}, ("b", "1"))
    assert list(unjudged(replies, ["b"])) == [("b", "1")]


def test_what_another_has_judged_is_left_out_and_late_replies_have_their_turn(replies):
    order = unjudged(replies)
    assert next(order) == ("c", "1")
    write_rows(replies / "verdicts.jsonl", [{"task": "b", "key": candidate_key("1")}])
    write_rows(replies / "reinforce-1" / "replies.jsonl", [{"task": "c", "text": "3"}, {"task": "b", "text": "1"}])
    assert sorted(order) == [("a", "1"), ("a", "2"), ("c", "3")]


def step(attempts, seconds, **more):
    return {"step": 1, "attempts": attempts, "duplicates": 0.25, "seconds": seconds, **more}


def test_the_phases_of_a_step_share_its_time(tmp_path):
    seconds = {"generate": 2.0, "verify": 6.0, "update": 1.0, "step": 10.0}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.json").write_text(json.dumps({"steps": [step(40, seconds)]}))
    figures = training_figures(tmp_path, ["run"])
    assert figures["share_of_time"] == pytest.approx({"generate": 0.2, "verify": 0.6, "update": 0.1, "rest": 0.1})
    assert (figures["attempts_per_s"], figures["distinct_per_s"]) == (4.0, 3.0)


@pytest.mark.slow
def test_the_table_compares_each_run_with_the_start(tmp_path, capsys):
    tasks = load_tasks("heldout").tasks[:4]
    speeds_x = {"start": 1.0, "reinforce-0": 1.5, "reinforce-1": 1.5}
    verdicts = {}
    for name, speed_x in speeds_x.items():
        (tmp_path / name).mkdir()
        rows = []
        for task in tasks:
            for member in range(2):
                text = f"```python\nwho = {name!r}, {member}\n```"
                wrong = name == "reinforce-0" and task is tasks[0] and member == 0
                verdict = verdict_of(text, Status.WRONG if wrong else Status.CORRECT, speedup_x=None if wrong else speed_x)
                verdicts.setdefault((task.id, candidate_key(text)), verdict.to_json())
                rows.append({"task": task.id, "member": member, "tokens": 9, "finish": "stop", "text": text})
        (tmp_path / name / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        about = {"versions": {"torch": "1", "triton": "2"}, "gpu": "G", "commit": "c", "started": "2026-11-22T01:02:03+0000"}
        facts = {"steps": [step(16, {"step": 4.0}, reward=1.0)], "settings": {"seed": len(name)}, **about}
        (tmp_path / name / "train.json").write_text(json.dumps(facts))
    judged = ({"task": task, "key": key, "verdict": verdict} for (task, key), verdict in verdicts.items())
    (tmp_path / "verdicts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged))
    asked = {"samples": 2, "temperature": 0.8, "precision": "tf32"}
    write_table(tmp_path, tmp_path / "table", prove_training.RUNS, ["reinforce-0", "reinforce-1"], asked, tasks)
    record = json.loads((tmp_path / "table.json").read_text())
    rows = record["rows"]
    assert record["settings"] == asked | {"runs": {key: {"seed": 11} for key in ("reinforce-0", "reinforce-1")}}
    assert list(rows) == ["start", "reinforce-0", "reinforce-1", "reinforce, all seeds", "fastest of all"]
    assert rows["reinforce-0"]["change"]["speed_ratio_x"]["value"] == pytest.approx(1.5)
    assert rows["reinforce-1"]["change"]["correct"]["value"] == 0
    assert rows["fastest of all"]["samples"] == len(tasks)
    assert rows["fastest of all"]["change"]["speed_ratio_x"]["value"] == pytest.approx(1.5)
    assert rows["reinforce-0"]["best_geomean_x"]["eager"]["value"] == pytest.approx(1.5)
    assert rows["reinforce-0"]["distinct_a_task"] == 2
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out
