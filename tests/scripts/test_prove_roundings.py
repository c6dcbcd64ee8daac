"""The proof on roundings: honest programs are not refused, wrong ones are, and what is refused is said."""

import json
import sys

import prove_roundings as prove  # pyright: ignore[reportMissingImports]
import pytest
import torch

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.loaders import load_tasks
from kernrl.verifier.judge.draws import schedule
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.truth.reference_answers import ReferenceAnswers


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Run the script for two held-out tasks; returns the lines of its record."""

    def run(precision):
        out = tmp_path / "refused.jsonl"
        words = ["--precision", precision, "--seeds", "1", "--limit", "2", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["prove_roundings.py", *words])
        prove.main()
        return [json.loads(line) for line in out.read_text().splitlines()]

    return run


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_programs_round_in_their_own_way(asked, precision, capsys):
    assert asked(precision) == []
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{2 * len(prove.PROGRAMS[precision])} programs of 2 tasks, ")
    assert said[1] == "refused: 0 programs, 0 draws"


def test_a_program_that_is_wrong_is_refused(asked, monkeypatch, capsys):
    outputs_of = prove.outputs_of
    monkeypatch.setattr(prove, "outputs_of", lambda *given: [[y * 1.01 for y in row] for row in outputs_of(*given)])
    rows = asked("tf32")
    assert len(rows) == 2 * len(prove.PROGRAMS["tf32"])
    draw = rows[0]["refused"][0]
    assert draw["excess"] > 1
    assert {"regime", "index", "got", "expected"} <= set(draw)
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith(f"refused: {len(rows)} programs, ")
    assert f"  1 × {rows[0]['task']}, cut, {draw['regime']}" in said


def test_outputs_are_rounded_to_the_policy():
    task = with_input_sets(load_tasks("heldout", limit=1).tasks[0])
    small = task.input_set("small")
    assert small
    reference = ReferenceAnswers(TaskInputs(task, small, "bf16", "cpu"))
    draws = schedule([small], 0, precision="bf16")[:2]
    fused, partly = (prove.outputs_of(program, reference, draws, 1) for program in ("fused", "partly"))
    assert {y.dtype for row in fused + partly for y in row} == {torch.bfloat16}
    assert any((a != b).any() for x, y in zip(fused, partly, strict=True) for a, b in zip(x, y, strict=True))
