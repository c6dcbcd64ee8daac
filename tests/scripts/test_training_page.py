"""The loop in docs/guides/own_loop.md is short and learns as it is printed; the notes on training show what is recorded."""

import json
import math
import re

import bench_updates  # pyright: ignore[reportMissingImports]
import pytest
import torch
import training_table  # pyright: ignore[reportMissingImports]
from support import ROOT
from support.tiny import FakeVerifier, save_tiny_policy, tiny_tasks, verdict_of

from kernrl.policy.examples import Example
from kernrl.policy.load import load_tokenizer
from kernrl.tasks.rows import write_tasks
from kernrl.training.session import prompt_style

PAGE = ROOT / "docs" / "guides" / "own_loop.md"
NOTES = ROOT / "docs" / "notes"
RECORDS = ROOT / "docs" / "benchmarks"


def loop() -> str:
    found = re.search(r"<!-- loop -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    return found[1]


def judge(text):
    share = sum("a" <= c <= "z" for c in text) / max(1, len(text))
    return verdict_of(text, speedup_x=0.1 + 2.9 * share)


def test_the_shipped_nano_is_asked_in_its_form():
    assert "style=prompt_style(policy.tokenizer)" in loop()
    assert prompt_style(load_tokenizer(str(ROOT / "checkpoints" / "nano"))) == "graph-fast"


def test_it_is_short():
    assert sum(bool(line.strip()) for line in loop().splitlines()) <= 41


@pytest.mark.slow
def test_it_learns(tmp_path, monkeypatch, capsys):
    save_tiny_policy(tmp_path / "checkpoints" / "sft" / "model")
    (tmp_path / "tasks").mkdir()
    write_tasks(tmp_path / "tasks" / "tasks.jsonl", tiny_tasks(40))
    verifier = FakeVerifier(judge)
    monkeypatch.setattr("kernrl.verifier.verifier.HardenedVerifier", lambda: verifier)
    monkeypatch.chdir(tmp_path)
    small = loop()
    for theirs, ours in (("max_tokens=2048", "max_tokens=8"), ("n=8", "n=16"), ("lr=1e-5", "lr=1e-2")):
        assert theirs in small
        small = small.replace(theirs, ours)
    before = torch.random.get_rng_state()
    exec(compile(small, str(PAGE), "exec"), {})
    assert torch.equal(before, torch.random.get_rng_state())
    assert len(capsys.readouterr().out.splitlines()) == 10

    def mean(asked):
        return sum(judge(text).timing.speedups_x["eager"].value for _, text in asked) / len(asked)

    assert mean(verifier.asked[-64:]) > mean(verifier.asked[:64]) + 0.8


@pytest.mark.slow
def test_a_worked_solution_passes_through_the_real_verifier(cpu_verifier):
    from support.tiny import ScriptedEngine, tiny_policy

    from kernrl.rollouts.collect import Collector
    from kernrl.rollouts.engines.engine import Sampling
    from kernrl.rollouts.reward import reward
    from kernrl.tasks.grammar.generate import generate_tasks

    (task,) = generate_tasks(level=2, count=1, seed=0, split="train", workers=1)
    right = task.solutions[0].triton_code
    replies = (right, right.replace("tl.store(", "tl.store(7 + ", 1), "Sorry.", right)
    tokenizer = tiny_policy().tokenizer
    engine = ScriptedEngine(tokenizer, lambda prompt, sample, call: replies[sample])
    collector = Collector(engine, tokenizer, cpu_verifier, reward, Sampling(4, 1, 1.0), style="nano")
    found = collector.collect([task], (0, 1))
    assert [str(a.verdict.status) for a in found.attempts] == ["correct", "crash", "no_code", "correct"]
    assert [a.reward.value for a in found.attempts if a.reward] == pytest.approx([0.7, 0.0, 0.0, 0.7])
    # modelled time is no measured speedup
    assert found.attempts[0].verdict.timing.kind == "modelled"
    assert [a.repeated for a in found.attempts] == [True, False, False, False]
    assert found.seconds["trace"] > 0


def test_the_note_shows_what_update_rules_gained():
    record = json.loads((RECORDS / "update_rules.json").read_text())
    assert bench_updates.table(record) in (NOTES / "2026-11-21-update-rules.md").read_text()
    assert {name: row["rule"] for name, row in record["rules"].items()}.items() <= bench_updates.RULES.items()


def test_under_best_known_a_group_is_asked_for_the_second_time():
    group = [
        bench_updates.Judged(Example([1], [2]), [0.0], verdict_of("", speedup_x=eager_x, compile_x=compile_x))
        for eager_x, compile_x in ((4.0, 2.0), (2.0, 1.0), (1.0, 0.5))
    ]
    found = bench_updates.values_of(group, "best-known", 10.0)
    assert found == pytest.approx([1.0, 1 - math.log(2), 0.1])  # 1 − ln 4 is below the least of what is correct
    assert bench_updates.values_of(group, "milestones", 10.0) == [3.0, 2.0, 1.0]


def rows(name):
    return json.loads((RECORDS / f"{name}.json").read_text())["rows"]


def methods_note():
    return " ".join((NOTES / "2026-11-22-training-methods.md").read_text().split())


def test_the_note_shows_what_the_methods_gained():
    assert " ".join(training_table.markdown_table(rows("training_fp32")).split()) in methods_note()


@pytest.mark.parametrize(
    "name", ["training", "training_foreign", "training_fp32", "training_small_rate", "training_large_rate"]
)
def test_the_tables_beside_the_records_are_current(name):
    assert training_table.markdown_table(rows(name)) in (RECORDS / f"{name}.md").read_text()


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("training_small_rate", "reinforce, all seeds"),
        ("training_large_rate", "reinforce, all seeds"),
        ("training_large_rate", "reinforce-long"),
    ],
)
def test_the_note_says_what_earlier_recipes_gained(name, run):
    change = rows(name)[run]["change"]
    speed = "{value:.2f} times [{low:.2f}, {high:.2f}]".format(**change["speed_ratio_x"])
    correct = " | {:.1f} [{:.1f}, {:.1f}]".format(*(100 * change["correct"][k] for k in ("value", "low", "high")))
    assert speed + correct.replace("-", "−") in methods_note()
