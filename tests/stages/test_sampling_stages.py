"""best-of-n, reward-weighted and the sample browser, on a toy reward."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.synthetic_run import make_eval_run
from support.tiny import FakeVerifier, tiny_tasks, verdict_of
from support.toy_runs import weights
from transformers import AutoModelForCausalLM

from kernrl.cli import run
from kernrl.config import RewardWeightedConfig
from kernrl.policy.examples import tokenize_pairs
from kernrl.policy.load import load_tokenizer
from kernrl.policy.pairs import row_pair
from kernrl.rollouts.collect import Collected
from kernrl.rollouts.reward import reward
from kernrl.runs.run_directory import read_lines
from kernrl.stages import best_of_n, reward_weighted
from kernrl.stages.reward_weighted import weights_of
from kernrl.tasks.rows import write_tasks
from kernrl.training import session
from kernrl.training.finetune_on_samples import SampleFinetuner
from kernrl.verifier.base.verdict import Status


def letters(text):
    return sum("a" <= c <= "z" for c in text) / max(1, len(text))


def judge(text):
    """The toy task: small letters. Half of them is enough to be correct, more are faster."""
    share = letters(text)
    return verdict_of(text, Status.CORRECT if share >= 0.3 else Status.WRONG, speedup_x=0.1 + 2.9 * share)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    write_tasks(path, tiny_tasks(8))
    return path


@pytest.fixture(autouse=True)
def verifier(monkeypatch):
    fake = FakeVerifier(judge)
    monkeypatch.setattr(session, "open_verifier", lambda config: fake)
    monkeypatch.setattr(session, "stop_ids", lambda policy: (ord(" "), *range(4, 30)))  # a tiny model seldom stops
    return fake


def arguments(stage, model, tasks, output, *more):
    where = ["--model", str(model), "--tasks", str(tasks), "--output", str(output), "--samples", "16"]
    sizes = ["--max-tokens", "12", "--row-tokens", "512", "--learning-rate", "0.01", "--epochs", "4"]
    whole = ["--no-lora", "--no-gradient-checkpointing"]
    return [stage, *where, *sizes, *whole, "--reward", "best-of-n", "--quiet", *more]


def lines(output):
    timed = ("seconds",)
    return [{k: v for k, v in line.items() if k not in timed} for line in read_lines(output / "metrics.jsonl")]


@pytest.mark.slow
def test_best_of_n_learns_round_after_round_and_writes_what_it_kept(model, tasks, tmp_path):
    output = tmp_path / "run"
    options = ("--rounds", "3", "--tasks-per-round", "4", "--keep-candidates", "2", "--threshold", "1.2")
    assert run(arguments("best-of-n", model, tasks, output, *options)) == 0
    found = lines(output)
    assert found[-1]["reward"] > found[0]["reward"] + 0.2
    rows = [json.loads(line) for line in (output / "kept_1.jsonl").read_text().splitlines()]
    assert len(rows) == found[0]["learnt"] > 0
    assert all(row["reward"] >= 1.2 for row in rows)
    by_task = {task: [r for r in rows if r["task"] == task] for task in {r["task"] for r in rows}}
    assert all(len(kept) <= 2 and kept == sorted(kept, key=lambda r: -r["reward"]) for kept in by_task.values())
    assert all(len({r["completion"][0]["content"] for r in kept}) == len(kept) for kept in by_task.values())
    # the dataset is one that `kernrl sft` and TRL read
    pairs = [row_pair(row) for row in rows]
    assert len(tokenize_pairs(pairs, load_tokenizer(str(model)), 512).examples) == len(rows)
    # each round asks tasks of its own
    asked = {step: {r["task"] for r in read_lines(output / "samples.jsonl") if r["step"] == step} for step in (1, 2)}
    assert not asked[1] & asked[2]
    assert AutoModelForCausalLM.from_pretrained(output / "model").dtype == torch.bfloat16


@pytest.mark.slow
def test_a_killed_round_is_made_up_without_verifying_again(model, tasks, tmp_path, verifier, monkeypatch):
    options = ("--rounds", "2", "--tasks-per-round", "3")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(arguments("best-of-n", model, tasks, whole, *options)) == 0

    def kill(*args, **kwargs):
        raise KeyboardInterrupt

    real, calls = SampleFinetuner.finetune, []
    with monkeypatch.context() as patch:
        patch.setattr(SampleFinetuner, "finetune", lambda *args: (kill if calls else calls.append(1) or real)(*args))
        assert run(arguments("best-of-n", model, tasks, killed, *options)) == 130
    assert (killed / "step_1").exists()
    before = len(verifier.asked)
    assert run(arguments("best-of-n", model, tasks, killed, *options, "--resume")) == 0
    assert len(verifier.asked) == before
    assert lines(killed) == lines(whole)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", ["1e-8", "1"])
def test_an_epsilon_far_above_gradients_makes_steps_as_long_as_they_are(model, tasks, tmp_path, epsilon):
    output = tmp_path / "run"
    one = ("--tasks-per-round", "4", "--epochs", "0.01", "--max-grad-norm", "0.001", "--adam-epsilon", epsilon)
    assert run(arguments("best-of-n", model, tasks, output, *one)) == 0
    assert lines(output)[0]["updates"] == 1
    before, after = weights(model), weights(output / "step_1")
    own = [name for name in before if name != "lm_head.weight"]  # which is the embedding's once more
    moved = torch.cat([(after[name] - before[name]).flatten() for name in own]) / 0.01
    if epsilon == "1":
        assert float(moved.norm()) == pytest.approx(0.001, rel=0.02)
    else:
        assert float(moved[moved != 0].abs().median()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
def test_a_round_is_compared_with_the_fastest_of_the_rounds_before(model, tasks, tmp_path, monkeypatch, verifier):
    def against_both(text):
        share = letters(text)
        return verdict_of(text, speedup_x=(x := 0.1 + 2.9 * share), compile_x=x)

    monkeypatch.setattr(verifier, "judge", against_both)
    options = ("--reward", "best-known", "--verifier.baseline", "eager,compile", "--threshold", "0.1", "--tasks-per-round", "2")
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    assert run(arguments("best-of-n", model, tasks, whole, *options, "--rounds", "2")) == 0
    first, second = ([r for r in read_lines(whole / "samples.jsonl") if r["step"] == step] for step in (1, 2))
    fastest = max(r["verdict"]["speedup_x"]["value"] for r in first)
    assert max(r["reward_parts"]["speed_x"] for r in first) == fastest > 1
    slow = min(second, key=lambda r: r["verdict"]["speedup_x"]["value"])
    assert slow["reward_parts"]["speed_x"] == pytest.approx(slow["verdict"]["speedup_x"]["value"] / fastest, rel=0.03)
    assert run(arguments("best-of-n", model, tasks, longer, *options, "--rounds", "1")) == 0
    assert run(arguments("best-of-n", model, tasks, longer, *options, "--rounds", "2", "--resume")) == 0
    rewards = [{r["id"]: r["reward"] for r in read_lines(output / "samples.jsonl")} for output in (whole, longer)]
    assert rewards[0] == rewards[1]


@pytest.mark.slow
def test_where_nothing_was_kept_no_model_is_exported(model, tasks, tmp_path, capsys):
    output = tmp_path / "run"
    assert run(arguments("best-of-n", model, tasks, output, "--threshold", "9", "--tasks-per-round", "2")) == 1
    assert lines(output)[0]["learnt"] == 0
    assert "no candidate earned --threshold" in lines(output)[0]["alarms"][-1]
    assert not (output / "model").exists()
    assert "nothing was learnt, so no model was exported" in capsys.readouterr().out
    assert (output / "kept_1.jsonl").read_text() == ""


@pytest.mark.slow
def test_the_best_are_set_against_the_worst(model, tasks, tmp_path, monkeypatch):
    learnt = []
    real = SampleFinetuner.finetune
    monkeypatch.setattr(SampleFinetuner, "finetune", lambda *args: learnt.extend(args[1]) or real(*args))
    output = tmp_path / "run"
    options = ("--against", "0.5", "--tasks-per-round", "4", "--keep-candidates", "2")
    assert run(arguments("best-of-n", model, tasks, output, *options)) == 0
    samples = read_lines(output / "samples.jsonl")
    best = {task: max(r["reward"] for r in samples if r["task"] == task) for task in {r["task"] for r in samples}}
    rows = [json.loads(line) for line in (output / "kept_1.jsonl").read_text().splitlines()]
    assert all(row["reward"] >= best[row["task"]] - best_of_n.MARGIN for row in rows)
    weights = [e.weight for e in learnt]
    drawn, pushed = [w for w in weights if w > 0], [w for w in weights if w < 0]
    assert drawn == [1.0] * len(rows)
    assert sum(pushed) == pytest.approx(-0.5 * len(rows))
    assert lines(output)[0]["kept"] == len(rows) < lines(output)[0]["learnt"] == len(weights)
    # what is pushed away is none of the good ones: the worst of its task first
    words = {tuple(e.completion_ids) for e in learnt if e.weight < 0}
    worst = [min((r for r in samples if r["task"] == task), key=lambda r: r["reward"])["reward"] for task in best]
    assert len(words) >= sum(low < high for low, high in zip(worst, best.values(), strict=True))


@pytest.mark.slow
def test_reward_weighted_says_why_nothing_could_be_learnt(model, tasks, tmp_path, verifier, monkeypatch, capsys):
    monkeypatch.setattr(verifier, "judge", lambda text: verdict_of(text, Status.WRONG))
    assert run(arguments("reward-weighted", model, tasks, tmp_path / "run", "--max-tokens", "60")) == 1
    said = capsys.readouterr().err
    assert "nothing could be learnt: none of 128 candidates is correct (128 are wrong); teach the model first" in said
    (line,) = lines(tmp_path / "run")
    assert line["learnt"] == 0
    assert line["alarms"][-1] in said
    assert line["attempts"] == 128
    assert not (tmp_path / "run" / "model").exists()


def test_groups_that_are_all_as_good_teach_no_difference(model, tasks, tmp_path, monkeypatch, verifier):
    monkeypatch.setattr(verifier, "judge", lambda text: verdict_of(text, speedup_x=1.0))
    assert run(arguments("best-of-n", model, tasks, tmp_path / "run", "--against", "0.5", "--tasks-per-round", "2")) == 1
    assert lines(tmp_path / "run")[0]["learnt"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["reward", "exp"])
def test_reward_weighted_raises_the_reward(model, tasks, tmp_path, weighting):
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(arguments("reward-weighted", model, tasks, first, "--weighting", weighting)) == 0
    assert run(arguments("reward-weighted", first / "model", tasks, second, "--weighting", weighting)) == 0
    assert lines(second)[0]["reward"] > lines(first)[0]["reward"] + 0.1


def test_reward_weighted_asks_block_after_block_while_there_is_time(monkeypatch, tmp_path):
    """By a clock of its own: the first block takes 8 s and each later one 4."""
    now, asked = [100.0], []

    def block(session, tasks, seed, step, *, first_group):
        assert (seed, step) == ((3, 1, first_group), 1)
        now[0] += 4.0 if asked else 8.0
        asked.append([first_group, *tasks])
        return Collected(list(tasks), {"generate": 1.0})

    monkeypatch.setattr(reward_weighted, "BLOCK", 2)
    monkeypatch.setattr(reward_weighted, "sample_and_judge", block)
    monkeypatch.setattr(reward_weighted, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    bench: Any = SimpleNamespace(tasks=list("abcdefghi"))

    def found(seconds):
        asked.clear()
        config = RewardWeightedConfig(model="m", output=tmp_path, seed=3, time_limit_s=seconds)
        return reward_weighted.sample_in_time(bench, config)

    assert found(1e-9).attempts == ["a", "b"]  # there is always something to learn from
    # 16 s are for sampling: after 8, 12 and 16 s; a fourth block would end at 20 s, and most of it be late
    assert found(20).attempts == list("abcdef")
    assert asked == [[0, "a", "b"], [2, "c", "d"], [4, "e", "f"]]
    # at 12 s: half of a third block is in time where 14.1 s are for sampling, and not where 13.9 are
    assert found(14.1 / 0.8).attempts == list("abcdef")
    assert found(13.9 / 0.8).attempts == list("abcd")
    everything = found(1000)
    assert everything.attempts == bench.tasks
    assert everything.seconds == {"generate": 5.0}


@pytest.mark.slow
def test_reward_weighted_learns_from_what_there_was_time_for(model, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(reward_weighted, "BLOCK", 3)
    assert run(arguments("reward-weighted", model, tasks, tmp_path / "run", "--time-limit-s", "1e-9")) == 0
    assert lines(tmp_path / "run")[0]["attempts"] == 48
    assert (tmp_path / "run" / "model").exists()


def test_weights_of_a_group(model, tasks, tmp_path):
    class Bench:
        def fits(self, attempt):
            return True

    class Attempt:
        def __init__(self, verdict):
            self.reward = reward(verdict, "best-of-n")

    def found(**settings):
        config = RewardWeightedConfig(output=tmp_path, model="m", **settings)
        return [weight for _, weight in weights_of(Bench(), group, config)]  # pyright: ignore

    group = [Attempt(verdict_of("", speedup_x=x)) for x in (1.0, 2.0)]
    group += [Attempt(verdict_of("", Status.WRONG)), Attempt(verdict_of("", Status.INFRA_ERROR))]
    assert found() == pytest.approx([1.3, 1.6])
    assert found(weighting="exp", weight_temperature=0.3) == pytest.approx([0.36788, 1.0, 0.0048], rel=0.01)
    group = [Attempt(verdict_of("", Status.WRONG))]
    assert found(weighting="exp") == []


def test_a_model_that_gets_nothing_right_is_told_what_to_do(model, tasks, tmp_path, verifier, capsys):
    verifier.judge = lambda text: verdict_of(text, Status.WRONG)
    assert run(arguments("reward-weighted", model, tasks, tmp_path / "run")) == 1
    assert "kernrl sft" in capsys.readouterr().err


def test_samples_of_something_else_are_no_traceback(tmp_path, capsys):
    (tmp_path / "samples.jsonl").write_text('{"id": 1}\nno JSON\n')
    assert run(["samples", str(tmp_path)]) == 2
    assert "has no samples" in capsys.readouterr().err


@pytest.mark.slow
def test_samples_lists_the_best_first_and_shows_one(model, tasks, tmp_path, capsys):
    output = tmp_path / "run"
    assert run(arguments("reward-weighted", model, tasks, output)) == 0
    capsys.readouterr()
    assert run(["samples", str(output), "--json", "--limit", "5"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 5
    assert [r["reward"] for r in rows] == sorted((r["reward"] for r in rows), reverse=True)
    assert run(["samples", str(output), "--show", "best"]) == 0
    out = capsys.readouterr().out
    assert rows[0]["id"] in out
    assert "reward" in out
    assert run(["samples", str(output), "--status", "wrong", "--task", "task-1"]) == 0
    out = capsys.readouterr().out
    assert "wrong" in out
    assert "correct" not in out


def test_an_evaluation_is_listed_by_speed_and_every_id_can_be_asked_for(tmp_path, monkeypatch, capsys):
    """On a terminal of 80 columns."""
    make_eval_run(tmp_path / "run", tasks=6, samples=2)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("kernrl.console.OwnConsole.is_terminal", True)
    assert run(["samples", str(tmp_path / "run"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    worth = [(r["verdict"]["status"] == "correct", (r["verdict"].get("speedup_x") or {}).get("value", 0)) for r in rows]
    assert worth == sorted(worth, reverse=True)
    assert run(["samples", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    for line, row in zip(lines[1:], rows, strict=False):
        speedup = row["verdict"].get("speedup_x")
        assert line.split()[0] == row["id"]
        assert speedup is None or f"{speedup['value']:.2f}×" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--status", "corect"], "did you mean 'correct'?"),
        (["--step", "9"], "none of its 128 candidates"),
        (["--show", "1-2-3"], "no candidate with the id '1-2-3'"),
    ],
)
def test_bad_questions_are_one_sentence(model, tasks, tmp_path_factory, capsys, more, sentence):
    output = tmp_path_factory.getbasetemp() / "asked"
    if not output.exists():
        assert run(arguments("reward-weighted", model, tasks, output)) == 0
    capsys.readouterr()
    assert run(["samples", str(output), *more]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert run(["samples", str(output / "nothing")]) == 2
