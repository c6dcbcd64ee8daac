"""The proof of the training methods: in which order candidates are judged, and what its table says of a run."""

import argparse
import contextlib
import json
import math
from types import SimpleNamespace

import prove_training  # pyright: ignore[reportMissingImports]
import pytest
import side_by_side  # pyright: ignore[reportMissingImports]
from support.tiny import verdict_of
from training_table import ranges, seconds_text, spent_s, training_figures, write_table  # pyright: ignore[reportMissingImports]

from kernrl.rollouts.collect import candidate_key
from kernrl.runs.run_directory import RunDirectory
from kernrl.tasks.loaders import load_tasks
from kernrl.verifier.base.verdict import Status

NO_TASKS = {"suites": [], "limit": None}


def write_rows(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def replies(tmp_path, monkeypatch):
    """Of two runs, to three tasks in blocks of two: one reply of both is the same."""
    monkeypatch.setattr(side_by_side, "BLOCK", 2)
    texts = {"start": [("c", "1"), ("a", "1"), ("a", "1")], "reinforce-0": [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")]}
    for run, pairs in texts.items():
        write_rows(tmp_path / run / "replies.jsonl", [{"task": task, "text": text} for task, text in pairs])
    return tmp_path


def unjudged(out, tasks=("c", "a", "b")):
    runs = ["start", "reinforce-0", "reinforce-1"]
    return ((task, text) for task, _, text in side_by_side.unjudged(out, runs, tasks))


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
    (tmp_path / "run" / "train.json").write_text(json.dumps({"steps": [step(40, seconds)], "settings": {}}))
    figures = training_figures(tmp_path, ["run"])
    assert figures["share_of_time"] == pytest.approx({"generate": 0.2, "verify": 0.6, "update": 0.1, "rest": 0.1})
    assert (figures["attempts_per_s"], figures["distinct_per_s"]) == (4.0, 3.0)


def test_the_time_that_a_run_took_stands_beside_the_time_that_it_was_given(tmp_path):
    for name, limit, spent in (("a", 60, (40.0, 23.0)), ("b", 60, (61.0,)), ("c", None, (8.0,))):
        (tmp_path / name).mkdir()
        facts = {"steps": [step(1, {"step": s}) for s in spent], "settings": {"time_limit_s": limit}}
        (tmp_path / name / "train.json").write_text(json.dumps(facts))
    texts = [seconds_text(training_figures(tmp_path, names)) for names in (["a"], ["b"], ["a", "b"], ["c"])]
    assert texts == ["63 of 60", "61 of 60", "62 of 60", "8"]
    assert seconds_text({}) == ""


def test_the_methods_are_given_the_same_time(tmp_path, monkeypatch):
    asked = {}
    for stage in (prove_training.best_of_n, prove_training.reward_weighted, prove_training.reinforce):
        name = stage.__name__.rpartition(".")[2]
        monkeypatch.setattr(stage, "run", lambda config, verifier, name=name: asked.update({name: config}))
    args = argparse.Namespace(
        model=tmp_path / "nano", out=tmp_path, workers=1, precision="tf32", set=[("epochs", 3)], short_steps=3, first_share=0.5,
        compile_timeout_s=6.0,
    )  # fmt: skip
    for name in ("best-of-n", "reward-weighted", "reinforce-1"):
        settings = prove_training.train_one(name, args, 77.0, None, tmp_path / name)
        assert settings["time_limit_s"] == 77.0
    assert {name: config.time_limit_s for name, config in asked.items()} == dict.fromkeys(asked, 77.0)
    assert len(asked) == 3
    # nothing else ends them
    assert (asked["best_of_n"].rounds, asked["reward_weighted"].limit, asked["reinforce"].steps) == (10_000, None, 10_000)
    # a run that is gone on with has the time of both
    folder = tmp_path / "reinforce-0"
    RunDirectory.open(folder, asked["reinforce"].model_copy(update={"output": folder}), resume=False).log(
        step=1, seconds={"step": 50.0}
    )
    assert asked["reinforce"].epochs == 3
    assert prove_training.train_one("reinforce-long", args, 20.0, None, folder)["time_limit_s"] == 70.0
    # a run of both has the time of one: what the first leaves is the second's, which starts from its model
    both = tmp_path / "best-of-n-then-reinforce-2"

    def half(config, verifier):
        asked["best_of_n"] = config
        RunDirectory.open(config.output, config, resume=False).log(step=1, seconds={"step": 40.0})

    monkeypatch.setattr(prove_training.best_of_n, "run", half)
    assert prove_training.train_one(both.name, args, 77.0, None, both)["time_limit_s"] == 77.0
    assert (asked["best_of_n"].time_limit_s, asked["reinforce"].time_limit_s) == (38.5, 37.0)
    assert asked["reinforce"].model == str(asked["best_of_n"].output / "model")
    assert (asked["reinforce"].epochs, asked["reinforce"].output) == (3, both)
    assert spent_s(prove_training.steps_of(both)) == 40.0
    even = prove_training.train_one("best-of-n-even", args, 77.0, None, tmp_path / "even")
    assert (even["adam_epsilon"], even["learning_rate"], even["time_limit_s"]) == (1e-2, 2e-3, 77.0)
    assert asked["best_of_n"].rounds == 10_000
    # choices take the same steps
    choice = prove_training.train_one("group-scaled", args, 77.0, None, tmp_path / "choice")
    assert (choice["time_limit_s"], choice["steps"], choice["advantage"]) == (None, 3, "group")
    # a reward that compares with compile has it timed, and no other run pays for that
    timed = {name: prove_training.baselines_of(name) for name in prove_training.RUNS}
    both = {name for name, baselines in timed.items() if baselines == ("eager", "compile")}
    assert both == {"reward-milestones", "reward-compile", "reward-best-known", "few-tasks-best-known"}
    assert {timed[name] for name in set(timed) - both} == {("eager",)}
    for name in prove_training.CHOICES:
        settings = prove_training.train_one(name, args, 77.0, None, tmp_path / name)
        assert tuple(settings["verifier"]["baseline"]) == timed[name]
        assert settings["verifier"]["compile_timeout_s"] == 6.0


def test_compile_is_timed_for_the_runs_alone_that_compare_with_it(tmp_path, monkeypatch):
    opened, trained = [], []

    def verifier_of(config):
        opened.append(config.baseline)
        return contextlib.nullcontext(SimpleNamespace(evaluator=SimpleNamespace(start=lambda: None), baseline=config.baseline))

    def train_one(name, args, seconds, verifier, folder):
        trained.append((name, seconds, verifier.baseline))
        return {}

    monkeypatch.setattr(prove_training, "HardenedVerifier", verifier_of)
    monkeypatch.setattr(prove_training, "make_tasks", lambda args: None)
    monkeypatch.setattr(prove_training, "train_one", train_one)
    monkeypatch.setattr(side_by_side, "replies_of", lambda *asked: [{"text": "x"}])
    runs = ["start", "reward-milestones", "best-of-n", "few-tasks-best-known", "reinforce-0", "reinforce-long"]
    given = {
        "precision": "tf32",
        "cache_dir": None,
        "compile_timeout_s": 15.0,
        "commit": None,
        "keep": [],
        "model": tmp_path / "nano",
        **NO_TASKS,
    }
    args = argparse.Namespace(out=tmp_path / "proof", runs=runs, seconds=60.0, long_seconds=300.0, budget_s=math.inf, **given)
    prove_training.train(args)
    assert opened == [("eager",), ("eager", "compile")]
    assert trained == [
        ("best-of-n", 60.0, ("eager",)),
        ("reinforce-0", 60.0, ("eager",)),
        ("reinforce-long", 300.0, ("eager",)),
        ("reward-milestones", 60.0, ("eager", "compile")),
        ("few-tasks-best-known", 60.0, ("eager", "compile")),
    ]
    assert all((tmp_path / "proof" / name / "replies.jsonl").exists() for name in runs)
    # a method gets its whole time or none
    trained.clear()
    args.out, args.budget_s = tmp_path / "another", 59.0
    prove_training.train(args)
    assert trained == []


def test_models_that_were_kept_answer_again(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(prove_training, "HardenedVerifier", lambda config: contextlib.nullcontext(config.precision))
    monkeypatch.setattr(
        side_by_side,
        "replies_of",
        lambda model, tasks, precision, verifier: asked.append((model, precision)) or [{"text": "x"}],
    )
    kept, nano, out = tmp_path / "proof", tmp_path / "nano", tmp_path / "bf16"
    for folder in (nano, kept / "reinforce-0" / "model", kept / "reinforce-1" / "model", out / "reinforce-1"):
        folder.mkdir(parents=True)
    (kept / "reinforce-0" / "train.json").write_text("{}")
    (out / "reinforce-1" / "replies.jsonl").write_text("")
    runs = ["start", "reinforce-0", "reinforce-1", "reinforce-2"]
    args = argparse.Namespace(kept=kept, out=out, runs=runs, model=nano, precision="bf16", cache_dir=None, **NO_TASKS)
    prove_training.answer(args)
    assert asked == [(nano, "bf16"), (kept / "reinforce-0" / "model", "bf16")]
    assert (out / "reinforce-0" / "train.json").exists()
    assert (out / "start" / "replies.jsonl").exists()


def test_steps_are_named_in_ranges():
    assert [ranges(steps) for steps in ([4], [1, 3, 4, 5, 9, 10], [2, 3])] == [
        "step 4",
        "steps 1, 3 to 5, 9 to 10",
        "steps 2 to 3",
    ]


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
        alarms = [[], ["76% of the attempts repeat another's source"], ["90% of the attempts repeat another's source", "x"]]
        raised = alarms if name == "reinforce-0" else [[]]
        steps = [step(16, {"step": 4.0}, reward=1.0) | {"step": n, "alarms": a} for n, a in enumerate(raised, start=1)]
        facts = {"steps": steps, "settings": {"seed": len(name)}, **about}
        (tmp_path / name / "train.json").write_text(json.dumps(facts))
    judged = ({"task": task, "key": key, "verdict": verdict} for (task, key), verdict in verdicts.items())
    (tmp_path / "verdicts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged))
    asked = {"samples": 2, "temperature": 0.8, "precision": "tf32"}
    write_table(
        tmp_path,
        tmp_path / "table",
        prove_training.RUNS,
        {"reinforce, all seeds": ["reinforce-0", "reinforce-1"]},
        asked,
        tasks,
    )
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
    assert [step["alarms"] for step in record["curves"]["reinforce-0"]] == alarms
    said = (tmp_path / "table.md").read_text().splitlines()
    assert "- reinforce-0: 76% of the attempts repeat another's source (steps 2 to 3); x (step 3)" in said
    assert "- reinforce-1: none" in said
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out
    assert not any("change_from_unchanged" in row for row in rows.values())
    # runs that differ in one choice are compared with the one that differs in none
    for name, choice in (("reinforce-0", "unchanged"), ("reinforce-1", "reward-compile")):
        (tmp_path / name).rename(tmp_path / choice)
    choices = asked | {"choices": ["unchanged", "reward-compile"]}
    write_table(tmp_path, tmp_path / "choices", prove_training.RUNS, {}, choices, tasks)
    rows = json.loads((tmp_path / "choices.json").read_text())["rows"]
    assert "change_from_unchanged" not in rows["unchanged"]
    change = rows["reward-compile"]["change_from_unchanged"]
    assert change["speed_ratio_x"]["value"] == pytest.approx(1.0)
    assert change["correct"]["value"] == pytest.approx(1 / 8)
    for name, choice in (("reinforce-0", "unchanged"), ("reinforce-1", "reward-compile")):
        (tmp_path / choice).rename(tmp_path / name)
    # runs that differ in more than their seed have no row together
    facts = json.loads((tmp_path / "reinforce-1" / "train.json").read_text())
    facts["settings"] |= {"seed": 12, "failure_weight": 3.0}
    (tmp_path / "reinforce-1" / "train.json").write_text(json.dumps(facts))
    seeds = {"reinforce, all seeds": ["reinforce-0", "reinforce-1"]}
    write_table(tmp_path, tmp_path / "table", prove_training.RUNS, seeds, asked, tasks)
    assert list(json.loads((tmp_path / "table.json").read_text())["rows"]) == [*speeds_x, "fastest of all"]


def test_tasks_to_learn_on_come_from_each_source_by_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(prove_training, "TASKS", 6)
    prove_training.make_tasks(SimpleNamespace(out=tmp_path, practise_on=["generated", "heldout"], workers=None))
    ids = [task.id for task in load_tasks(tmp_path / "tasks.jsonl").tasks]
    assert len(ids) == 6
    assert ids[1::2] == [task.id for task in load_tasks("heldout", limit=3).tasks]
    assert not set(ids[::2]) & set(ids[1::2])


def test_a_setting_of_reinforce_is_json_and_has_a_name_that_exists():
    assert prove_training.setting("failure_weight=2.5") == ("failure_weight", 2.5)
    for wrong in ("failure_weigth=2", "failure_weight", "epochs=two"):
        with pytest.raises(ValueError, match=wrong if "two" not in wrong else "Expecting value"):
            prove_training.setting(wrong)
