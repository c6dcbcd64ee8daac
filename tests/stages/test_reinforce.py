"""`kernrl reinforce` on a toy reward: it learns, it is deterministic, and a killed run goes on as if nothing had been."""

import json
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.forked import run_forked
from support.tiny import tiny_policy, verdict_of
from support.toy_runs import Killed, judge, metrics, rewards, texts, weights
from support.toy_runs import reinforce_arguments as arguments
from transformers import AutoModelForCausalLM, GenerationConfig

from kernrl.cli import run
from kernrl.config import ReinforceConfig
from kernrl.errors import RunError
from kernrl.policy.examples import Example
from kernrl.rollouts.batch import pack_rollouts
from kernrl.runs.run_directory import read_lines
from kernrl.stages import reinforce
from kernrl.tasks.nano.lifter import Lifter
from kernrl.training import returns, session
from kernrl.verifier.base.verdict import Status

pytestmark = pytest.mark.usefixtures("verifier")


@pytest.mark.slow
def test_an_update_is_the_policy_gradient(model, tasks, tmp_path):
    """Against a gradient made by hand: no packing, no fused loss, double precision."""
    sizes = {"tasks_per_step": 4, "max_tokens": 8, "row_tokens": 256, "lora": False}
    exact = {"learning_rate": 1.0, "max_grad_norm": 1e9, "reward": "best-of-n"}
    where = {"model": str(model), "tasks": str(tasks), "output": tmp_path / "run"}
    config = ReinforceConfig.model_validate({**where, **sizes, **exact})
    with session.open_session(config) as opened:
        assert isinstance(opened.collector.prepare, Lifter)
        learner = reinforce.Learner(opened, config)
        examples, logprobs = reinforce.training_examples(opened, config, reinforce.sample_groups(learner, 1))
        rows = list(pack_rollouts(examples, logprobs, row_tokens=256, pad_id=opened.pad_id))
        assert len(rows) > 1
        learner.optimizer = torch.optim.SGD(learner.trainable)  # pyright: ignore[reportAttributeAccessIssue]
        before = {name: p.detach().clone() for name, p in opened.policy.model.named_parameters()}
        learner.update(rows)
        rate = learner.learning_rate
        step = {name: (before[name] - p.detach()) / rate for name, p in opened.policy.model.named_parameters()}

    plain = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").double()
    for e, noted in zip(examples, logprobs, strict=True):
        scores = plain(torch.tensor([e.prompt_ids + e.completion_ids])).logits[0].log_softmax(-1)
        found = scores[len(e.prompt_ids) - 1 : -1].gather(1, torch.tensor(e.completion_ids)[:, None])[:, 0]
        assert found.tolist() == pytest.approx(noted, abs=1e-4)
        (-e.weight * found.sum() / sum(len(e.completion_ids) for e in examples)).backward()
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(step[name].double(), parameter.grad, rtol=1e-3, atol=1e-4)


def test_what_fits_one_row_is_padded_little():
    examples = [Example([1] * 100, [2] * 30, 1.0), Example([1] * 90, [2] * 50, -1.0)]
    (row,) = pack_rollouts(examples, [None, None], row_tokens=4096, pad_id=0)
    assert row.row.input_ids.shape == (1, 512)
    assert row.row.num_targets == 80
    assert int(row.row.cu_seqlens.max()) == 512
    first, second = pack_rollouts(examples, [[-1.0] * 30, [-1.0] * 50], row_tokens=200, pad_id=0)
    for part, noted in ((first, 30), (second, 50)):
        assert part.row.input_ids.shape == (1, 200)
        assert part.rollout_logprobs is not None
        assert int((part.rollout_logprobs == -1).sum()) == noted


@pytest.mark.slow
def test_the_rate_rises_and_goes_on_where_it_was(model, tasks, tmp_path):
    output = tmp_path / "run"
    options = ("--warmup-steps", "3")
    assert run(arguments(model, tasks, output, *options, steps=2)) == 0
    assert run(arguments(model, tasks, output, *options, "--resume", steps=6)) == 0
    rates = [line["learning_rate"] for line in read_lines(output / "metrics.jsonl")]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "middle"), [("linear", 0.55), ("cosine", 0.55), ("constant", 1.0)])
def test_the_rate_falls_to_a_tenth_by_the_last_step_where_asked(model, tasks, tmp_path, schedule, middle):
    output = tmp_path / "run"
    assert run(arguments(model, tasks, output, "--warmup-steps", "1", "--schedule", schedule, steps=4)) == 0
    rates = [line["learning_rate"] for line in read_lines(output / "metrics.jsonl")]
    last = 1.0 if schedule == "constant" else 0.1
    assert [rate / 0.01 for rate in rates] == pytest.approx([0.5, 1.0, middle, last])


@pytest.mark.parametrize(("schedule", "half"), [("linear", 0.55), ("cosine", 0.55), ("constant", 1.0)])
def test_the_rate_falls_with_the_time_where_time_ends_the_run(schedule, half):
    config = ReinforceConfig.model_validate(
        {"model": "m", "output": "o", "learning_rate": 1.0, "warmup_steps": 1, "schedule": schedule, "time_limit_s": 80}
    )

    def rate(step, seconds):
        return reinforce.Learner.learning_rate.fget(SimpleNamespace(config=config, step=step, seconds=seconds))  # pyright: ignore

    assert rate(0, 0.0) == 0.5
    assert rate(3, 40.0) == pytest.approx(half)
    assert rate(9, 80.0) == pytest.approx(1.0 if schedule == "constant" else 0.1)
    # whichever ends it first
    assert rate(99, 40.0) == rate(9, 80.0)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "as_long_as_gradients"), [("1e-8", False), ("1", True)])
def test_how_far_weights_without_much_gradient_move(model, tasks, tmp_path, epsilon, as_long_as_gradients):
    output = tmp_path / "run"
    assert run(arguments(model, tasks, output, "--warmup-steps", "0", "--adam-epsilon", epsilon, steps=1)) == 0
    (line,) = read_lines(output / "metrics.jsonl")
    before, after = weights(model), weights(output / "step_1")
    own = [name for name in before if name != "lm_head.weight"]  # which is the embedding's once more
    moved = torch.cat([(after[name] - before[name]).flatten() for name in own]) / line["learning_rate"]
    if as_long_as_gradients:
        assert float(moved.norm()) == pytest.approx(line["grad_norm"], rel=0.02)
    else:
        assert float(moved[moved != 0].abs().median()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["reinforce", "grpo"])
def test_the_loop_raises_a_toy_reward(model, tasks, tmp_path, loss):
    assert run(arguments(model, tasks, tmp_path / "run", "--loss", loss, steps=8, samples=16)) == 0
    found = rewards(tmp_path / "run")
    assert sum(found[-2:]) / 2 > found[0] + 0.25


@pytest.mark.slow
def test_the_sign_of_the_advantage_is_what_raises_it(model, tasks, tmp_path, monkeypatch):
    real = returns.group_advantages
    monkeypatch.setattr(returns, "group_advantages", lambda *args, **kwargs: -real(*args, **kwargs))
    assert run(arguments(model, tasks, tmp_path / "run", steps=8, samples=16)) == 0
    found = rewards(tmp_path / "run")
    assert sum(found[-2:]) / 2 < found[0]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_samples_and_the_same_loss(model, tasks, tmp_path):
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    assert run(arguments(model, tasks, first)) == run(arguments(model, tasks, second)) == 0
    assert run(arguments(model, tasks, other, "--seed", "1")) == 0
    assert texts(first) == texts(second) != texts(other)
    assert metrics(first) == metrics(second)


@pytest.mark.slow
def test_a_line_says_what_a_step_did(model, tasks, tmp_path):
    output = tmp_path / "run"
    assert run(arguments(model, tasks, output)) == 0
    lines = read_lines(output / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert {"reward", "correct", "fast_1", "speed_geomean_x", "length", "truncated", "duplicates", "alarms"} <= set(line)
        assert {"loss", "entropy", "grad_norm", "mismatch_kl", "correction_mean"} <= set(line)
        assert {"ask", "generate", "verify", "update", "step", "trace"} <= set(line["seconds"])
        assert line["attempts"] == 8
        # sampler and trainer are the same weights in the same precision here
        assert abs(line["mismatch_kl"]) < 1e-6
        assert line["correction_mean"] == pytest.approx(1.0, abs=1e-3)
    assert 0 < lines[0]["entropy"] < 6
    results = json.loads((output / "results.json").read_text())
    assert results["last"]["step"] == 3
    assert weights(output / "model")["model.norm.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("device", "processes", "price", "expected"),
    [("cpu", 1, 3.0, {}), ("cuda", 1, None, {"gpu_hours": 0.5}), ("cuda", 2, 3.0, {"gpu_hours": 1.0, "cost": 3.0})],
)
def test_gpu_time_has_a_price_where_one_is_given(device, processes, price, expected):
    machine: Any = SimpleNamespace(accelerator=SimpleNamespace(device=torch.device(device)), size=processes)
    nothing: Any = None
    opened = session.Session(machine, *[nothing] * 6, gpu_hour_price=price, activity=nothing, watch=nothing)
    assert opened.gpu_time(1800) == expected


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while sampling", "after the verdicts", "before the checkpoint"])
def test_a_kill_loses_at_most_the_step_in_flight(model, tasks, tmp_path, monkeypatch, verifier, moment):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(arguments(model, tasks, whole, "--curriculum", steps=4)) == 0

    def kill(*args, **kwargs):
        raise Killed

    calls = {"n": 0}

    def third(call, when_killed=kill):
        def wrapped(*args, **kwargs):
            calls["n"] += 1
            return (when_killed if calls["n"] == 3 else call)(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        if moment == "while sampling":
            patch.setattr(verifier, "judge", lambda text: kill() if len(verifier.asked) == calls["n"] + 20 else judge(text))
            calls["n"] = len(verifier.asked)
        elif moment == "after the verdicts":
            patch.setattr(reinforce, "training_examples", third(reinforce.training_examples))
        else:
            patch.setattr(reinforce.Learner, "finish_step", third(reinforce.Learner.finish_step))
        with pytest.raises(Killed):
            run(arguments(model, tasks, killed, "--curriculum", steps=4))
    assert (killed / "step_2").exists()
    assert not (killed / "step_3").exists()
    verified = {(row["task"], row["text"]) for row in read_lines(killed / "samples.jsonl")}
    asked_before = len(verifier.asked)

    assert run(arguments(model, tasks, killed, "--curriculum", "--resume", steps=4)) == 0
    assert metrics(killed) == metrics(whole)
    assert texts(killed) == texts(whole)
    end, expected = weights(killed / "model"), weights(whole / "model")
    assert all(torch.equal(end[name], expected[name]) for name in expected)
    # and nothing that had a verdict was verified again
    assert verified
    assert not verified & set(verifier.asked[asked_before:])


@pytest.mark.slow
@pytest.mark.parametrize(("options", "compares"), [([], True), (["--curriculum"], False)])
def test_harder_tasks_of_a_curriculum_are_no_fall_of_correctness(model, tasks, tmp_path, monkeypatch, options, compares):
    given, measure = [], reinforce.step_metrics

    def measured(collected, first_length, before):
        given.append(before)
        return measure(collected, first_length, before)

    monkeypatch.setattr(reinforce, "step_metrics", measured)
    assert run(arguments(model, tasks, tmp_path / "run", *options, steps=2)) == 0
    assert [before is not None for before in given] == [compares] * 2
    step_1 = metrics(tmp_path / "run")[1]
    assert given[0] is None or given[0].last[0] == (step_1["correct"], step_1["tasks"])


@pytest.mark.slow
def test_what_is_best_known_is_known_again_after_a_kill(model, tasks, tmp_path, monkeypatch, verifier):
    def judge_against_both(text):
        speedup = judge(text).speedup()
        assert speedup
        return verdict_of(text, speedup_x=speedup.value, compile_x=speedup.value)

    monkeypatch.setattr(verifier, "judge", judge_against_both)
    options = ("--reward", "best-known", "--verifier.baseline", "eager,compile", "--save-every", "2", "--speed-cap", "10")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(arguments(model, tasks, whole, *options, steps=5)) == 0

    # by hand: all tasks of the toy verifier have one name; intervals are ± 1 %, without noise
    best, steps = 1.0, {}
    for row in sorted(read_lines(whole / "samples.jsonl"), key=lambda r: (r["step"], r["group"], r["member"])):
        steps.setdefault(row["step"], []).append(row)
    for rows in steps.values():
        speeds = [row["verdict"]["speedup_x"]["value"] for row in rows]
        for row, x in zip(rows, speeds, strict=True):
            clear = best == 1.0 or max(x / best, best / x) > 1.01 / 0.99
            assert row["reward_parts"]["speed_x"] == pytest.approx(x / best if clear else 1.0)
        for x in speeds:
            best = x if x > (best * 1.01 / 0.99 if best > 1 else 1.0) else best
    assert best > 1.0

    real, calls = reinforce.training_examples, []

    def kill_the_fourth(*args):
        calls.append(1)
        if len(calls) == 4:
            raise Killed
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(reinforce, "training_examples", kill_the_fourth)
        with pytest.raises(Killed):
            run(arguments(model, tasks, killed, *options, steps=5))
    assert not (killed / "step_3").exists()  # steps 3 and 4 are taken again, and their samples are there
    assert run(arguments(model, tasks, killed, *options, "--resume", steps=5)) == 0
    assert metrics(killed) == metrics(whole)
    first, again = ({r["id"]: r["reward"] for r in read_lines(f / "samples.jsonl")} for f in (whole, killed))
    assert again == first


CHILD = """
import os, signal, sys, threading, time
from pathlib import Path
from support.tiny import FakeVerifier
from support.toy_runs import judge
from kernrl.cli import run
from kernrl.training import session

def kill_itself(reached, moment_s):
    while not reached.exists():
        time.sleep(0.002)
    time.sleep(moment_s)
    os.kill(os.getpid(), signal.SIGKILL)

session.open_verifier = lambda config: FakeVerifier(judge)
threading.Thread(target=kill_itself, args=(Path(sys.argv[1]), float(sys.argv[2])), daemon=True).start()
sys.exit(run(sys.argv[3:]))
"""
"""A thread of the run sends the signal: another process could come too late on a machine with much to do."""


@pytest.mark.slow
def test_sigkill_at_any_moment(model, tasks, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    steps = 14
    assert run(arguments(model, tasks, whole, steps=steps)) == 0
    for reached, moment_s in ((3, "0.03"), (7, "0.01")):
        when = [str(killed / f"step_{reached}"), moment_s]
        code = run_forked(CHILD, *when, *arguments(model, tasks, killed, "--resume", steps=steps))
        assert code == -signal.SIGKILL
    assert run(arguments(model, tasks, killed, "--resume", steps=steps)) == 0
    assert metrics(killed) == metrics(whole)
    assert texts(killed) == texts(whole)


@pytest.mark.slow
def test_a_finished_run_can_be_made_longer(model, tasks, tmp_path):
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    assert run(arguments(model, tasks, whole, steps=3)) == run(arguments(model, tasks, longer, steps=2)) == 0
    assert run(arguments(model, tasks, longer, "--resume", steps=3)) == 0
    assert metrics(longer) == metrics(whole)
    assert run(arguments(model, tasks, longer, "--resume", steps=3)) == 0
    assert json.loads((longer / "results.json").read_text())["last"]["step"] == 3
    assert run(arguments(model, tasks, longer, "--resume", "--gamma", "0.9", steps=3)) == 2


@pytest.mark.slow
def test_a_run_stops_when_its_time_is_spent(model, tasks, tmp_path):
    output = tmp_path / "run"
    assert run(arguments(model, tasks, output, "--time-limit-s", "1e-9", "--save-every", "10", steps=5)) == 0
    assert list(metrics(output)) == [1]
    assert (output / "step_1").exists()
    assert run(arguments(model, tasks, output, "--time-limit-s", "1e9", "--save-every", "10", "--resume", steps=3)) == 0
    assert list(metrics(output)) == [1, 2, 3]


def test_a_tracker_that_is_not_installed_is_named_before_anything_runs(model, tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("kernrl.config.shared.tracking.find_spec", lambda name: None)
    assert run(arguments(model, tasks, tmp_path / "run", "--report-to", "wandb")) == 2
    assert "pip install 'kernrl[wandb]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_a_difference_nothing_is_learnt(model, tasks, tmp_path, verifier):
    verifier.judge = lambda text: verdict_of(text, Status.WRONG)
    output = tmp_path / "run"
    assert run(arguments(model, tasks, output, steps=1)) == 1
    assert metrics(output)[1]["learnt"] == 0
    assert not (output / "model").exists()  # it would be the starting model under another name
    assert json.loads((output / "results.json").read_text())["model"] is None
    before = tiny_policy().model.state_dict()
    after = AutoModelForCausalLM.from_pretrained(output / "step_1").state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_kept_groups_without_a_difference_teach_nothing_either(model, tasks, tmp_path, verifier, capfd):
    verifier.judge = lambda text: verdict_of(text, Status.WRONG)
    output = tmp_path / "run"
    keep = ("--constant-groups", "keep", "--entropy-coef", "0.1")  # the bonus moves weights; no verdict does
    assert run(arguments(model, tasks, output, *keep, steps=5)) == 1
    found = metrics(output)
    assert list(found) == [1, 2, 3]
    assert all(line["learnt"] == line["learnt_tokens"] == 0 for line in found.values())
    assert all("nothing could be learnt: " in line["alarms"][-1] for line in found.values())
    assert not (output / "model").exists()
    assert "3 steps in a row learnt nothing" in capfd.readouterr().err


@pytest.mark.slow
def test_broken_infrastructure_is_masked_and_a_run_of_nothing_else_stops(model, tasks, tmp_path, verifier, capfd):
    verifier.judge = lambda text: verdict_of(text, Status.INFRA_ERROR) if len(verifier.asked) % 2 else judge(text)
    assert run(arguments(model, tasks, tmp_path / "half", steps=1)) == 0
    line = metrics(tmp_path / "half")[1]
    assert line["unknown"] > 0
    assert line["learnt"] == line["attempts"] - line["unknown"]
    verifier.judge = lambda text: verdict_of(text, Status.INFRA_ERROR)
    assert run(arguments(model, tasks, tmp_path / "none", steps=1)) == 1
    assert "No candidate could be judged (infra_error)" in capfd.readouterr().err


def test_groups_that_teach_nothing_are_made_up_for(model, tasks, tmp_path, verifier):
    constant = {"task-0", "task-1"}

    def judge_by_task(text):
        task, _ = verifier.asked[-1]
        return verdict_of(text, Status.WRONG) if task in constant else judge(text)

    verifier.judge = judge_by_task
    assert run(arguments(model, tasks, tmp_path / "run", "--constant-groups", "refill", "--tasks-per-step", "4", steps=1)) == 0
    rows = read_lines(tmp_path / "run" / "samples.jsonl")
    groups = {row["group"]: row["task"] for row in rows}
    assert len(groups) > 4
    assert sum(task not in constant for task in groups.values()) >= 4
    assert len({row["id"] for row in rows}) == len(rows)


@pytest.mark.slow
def test_turns_learn_from_what_came_after(model, tasks, tmp_path):
    output = tmp_path / "run"
    assert (
        run(arguments(model, tasks, output, "--turns", "2", "--gamma", "0.5", "--row-tokens", "512", "--max-tokens", "40")) == 0
    )
    rows = read_lines(output / "samples.jsonl")
    assert {row["turn"] for row in rows} == {1, 2}
    second = {(r["step"], r["group"], r["member"]) for r in rows if r["turn"] == 2}
    assert second <= {(r["step"], r["group"], r["member"]) for r in rows if r["turn"] == 1 and r["finish"] == "stop"}


@pytest.mark.parametrize(("model_name", "turns", "said"), [("nano", 2, True), ("nano", 1, False), ("some/model", 2, False)])
def test_turns_of_nano_are_remarked_on(monkeypatch, tmp_path, capsys, model_name, turns, said):
    def stop(*args):
        raise RunError("far enough.")

    monkeypatch.setattr(reinforce, "open_session", stop)
    config = ReinforceConfig(model=model_name, output=tmp_path, turns=turns)
    with pytest.raises(RunError, match="far enough"):
        reinforce.run(config)
    assert ("cannot read what it is told between turns" in capsys.readouterr().err) == said


OPTIONS = {
    "several updates": ("--loss", "grpo", "--epochs", "2", "--updates-per-epoch", "2"),
    "a reference": ("--beta", "0.1", "--kl-estimator", "k2"),
    "an entropy bonus": ("--entropy-coef", "0.01"),
    "dual clip": ("--loss", "dapo", "--epsilon-high", "0.28", "--delta", "3", "--epochs", "2"),
    "sequence masks": ("--correction", "sequence_mask"),
    "batch advantages": ("--advantage", "batch"),
    "no baseline": ("--advantage", "raw"),
    "all groups": ("--constant-groups", "keep"),
    **{
        f"loss {name}": ("--loss", name, "--epochs", "2")
        for name in ("bnpo", "dr_grpo", "cispo", "sapo", "gspo", "luspo", "gmpo")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(model, tasks, tmp_path, options):
    output = tmp_path / "run"
    assert run(arguments(model, tasks, output, *options, steps=2)) == 0
    lines = metrics(output)
    assert all(torch.isfinite(torch.tensor(line["loss"])) and line["grad_norm"] > 0 for line in lines.values())
    if "--beta" in options:
        assert abs(lines[1]["kl_ref"]) < 1e-6 < lines[2]["kl_ref"]
    if "--epochs" in options:
        assert lines[1]["ratio_max"] > 1.0 + 1e-4


@pytest.mark.slow
def test_lora(model, tasks, tmp_path):
    pytest.importorskip("peft")
    output = tmp_path / "run"
    options = ("--lora", "--lora-rank", "4", "--beta", "0.1")
    assert run(arguments(model, tasks, output, *options, steps=1)) == 0
    assert run(arguments(model, tasks, output, *options, "--resume", steps=2)) == 0
    assert run(arguments(model, tasks, tmp_path / "whole", *options, steps=2)) == 0
    lines = metrics(tmp_path / "whole")
    assert abs(lines[1]["kl_ref"]) < 1e-6 < lines[2]["kl_ref"]
    assert metrics(output) == lines
    settings = GenerationConfig.from_pretrained(output / "model")
    assert settings.eos_token_id == tiny_policy().tokenizer.eos_token_id
