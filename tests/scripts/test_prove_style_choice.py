"""The comparison of choices of styles: which models count, and what is said of them."""

import argparse
import json

import prove_style_choice as prove  # pyright: ignore[reportMissingImports]
import pytest
from support.tiny import verdict_of

from kernrl.rollouts.collect import candidate_key
from kernrl.tasks.loaders import load_tasks
from kernrl.verifier.base.verdict import Status

SPEEDS_X = {"start": 1.0, "fast-0": 2.0, "fast-2": 1.0, "uniform-0": 0.5}
"""Of each model that has answered, over `torch.compile`; half of what `uniform-0` wrote is wrong."""


@pytest.fixture
def proof(tmp_path):
    """Models that have ended and answered, one that has not answered, and one that has not ended."""
    tasks, verdicts = load_tasks("heldout").tasks[:2], []
    for name in (*SPEEDS_X, "tagged-1"):
        (tmp_path / name / "sft" / "model").mkdir(parents=True)
        if name == "start":
            continue
        taught = {"pairs": 5, "tokens": 7, "validation_loss": 0.1, "train_s": 2.0, "steps": 9}
        (tmp_path / name / "sft" / "results.json").write_text(json.dumps(taught))
    (tmp_path / "uniform-1" / "sft").mkdir(parents=True)
    for name, speed_x in SPEEDS_X.items():
        rows = []
        for task in tasks:
            for member in range(2):
                text = f"```python\nwho = {name!r}, {member}\n```"
                wrong = name == "uniform-0" and member == 1
                status = Status.WRONG if wrong else Status.CORRECT
                verdict = verdict_of(text, status, speedup_x=None if wrong else 3.0, compile_x=speed_x)
                verdicts.append({"task": task.id, "key": candidate_key(text), "verdict": verdict.to_json()})
                rows.append({"task": task.id, "member": member, "tokens": 9, "finish": "stop", "text": text})
        (tmp_path / name / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "verdicts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in verdicts))
    args = argparse.Namespace(
        out=tmp_path, model=tmp_path / "start" / "sft" / "model", suites=["heldout"], steps=1, seeds=prove.SEEDS
    )
    args.precision = "tf32"
    return args, tasks


def test_a_line_for_each_choice_is_the_mean_over_the_seeds_that_answered(proof, capsys):
    args, tasks = proof
    assert list(prove.models(args)) == ["start", "uniform-0", "fast-0", "fast-2", "tagged-1"]
    prove.table(args, tasks)
    start, uniform, fast = capsys.readouterr().out.splitlines()
    assert start.startswith("start: models 1, tasks 2; correct 1.000 (1.000)")
    assert uniform.startswith("uniform: models 1, tasks 2; correct 0.500 (0.500)")
    assert fast == (
        "fast: models 2, tasks 2; correct 1.000 (1.000, 1.000); fast_1 against eager 1.000 (1.000, 1.000); "
        "geomean_x against eager 3.000 (3.000, 3.000); fast_1 against compile 0.500 (1.000, 0.000); "
        "geomean_x against compile 1.500 (2.000, 1.000)"
    )
    record = json.loads((args.out / "choice.json").read_text())
    assert list(record["rows"]) == ["start", "uniform-0", "fast-0", "fast-2"]
    whole = record["choices"]
    assert list(whole) == ["uniform", "fast"]
    assert whole["fast"]["samples"] == 8
    assert whole["fast"]["against"]["compile"]["fast_1"]["value"] == 0.5
    assert whole["fast"]["beside"]["uniform"]["correct"]["value"] == 0.5
    assert whole["uniform"]["beside"]["fast"]["speed_ratio_x"]["value"] == 1.0
    row = record["rows"]["fast-0"]
    assert {key: row[key] for key in ("pairs", "tokens", "validation_loss", "train_s")} == {
        "pairs": 5, "tokens": 7, "validation_loss": 0.1, "train_s": 2.0
    }  # fmt: skip
    assert "pairs" not in record["rows"]["start"]
    assert row["change"]["correct"]["value"] == 0
    assert record["rows"]["uniform-0"]["change"]["correct"]["value"] == -0.5


def test_without_a_model_to_go_on_from_nothing_is_compared_with_it(proof, capsys):
    args, tasks = proof
    args.model = None
    prove.table(args, tasks)
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["uniform", "fast"]
    assert "change" not in json.loads((args.out / "choice.json").read_text())["rows"]["fast-0"]
