"""The comparison of choices of styles: what a run came to, and which runs count."""

import argparse
import json
from pathlib import Path

import prove_style_choice as prove  # pyright: ignore[reportMissingImports]


def ended(folder: Path, correct: float, wins: float, speed: float) -> None:
    found = {"correct": {"value": correct}, "tasks": 64, "baselines": {"eager": {"fast_1": {"value": 1.0}}}}
    found["baselines"]["compile"] = {"fast_1": {"value": wins}, "geomean_x": {"value": speed}}
    for part, results in (("sft", {"pairs": 5, "tokens": 7, "validation_loss": 0.1, "train_s": 2.0}), ("eval", found)):
        (folder / part).mkdir(parents=True)
        (folder / part / "results.json").write_text(json.dumps(results))


def test_a_line_for_each_choice_is_the_mean_over_the_seeds_that_ended(tmp_path, capsys):
    ended(tmp_path / "fast-0", 0.9, 0.4, 1.0)
    ended(tmp_path / "fast-2", 1.0, 0.6, 1.2)
    ended(tmp_path / "uniform-0", 1.0, 0.2, 0.8)
    (tmp_path / "uniform-0" / "eval" / "results.json").unlink()
    prove.table(argparse.Namespace(out=tmp_path, steps=1, tasks="heldout", precision="tf32"))
    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        "fast: 2 seeds; correct 0.950 (0.900, 1.000); fast_1 against eager 1.000 (1.000, 1.000); geomean_x against eager "
        "unknown; fast_1 against compile 0.500 (0.400, 0.600); geomean_x against compile 1.100 (1.000, 1.200)"
    )
    rows = json.loads((tmp_path / "choice.json").read_text())["rows"]
    assert sorted(rows) == ["fast-0", "fast-2"]
    assert rows["fast-2"] == {
        "pairs": 5, "tokens": 7, "validation_loss": 0.1, "train_s": 2.0, "correct": 1.0, "tasks": 64,
        "eager": {"fast_1": 1.0, "geomean_x": None}, "compile": {"fast_1": 0.6, "geomean_x": 1.2},
    }  # fmt: skip
