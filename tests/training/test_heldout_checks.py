"""What keeps a run honest: evaluations on the way, the best checkpoint, room on the disk, steps without a lesson."""

import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiny import FakeVerifier, ScriptedEngine, tiny_policy, tiny_tasks, verdict_of
from support.toy_runs import judge, metrics, weights
from support.toy_runs import reinforce_arguments as arguments

from kernrl import console
from kernrl.cli import run
from kernrl.config import EvalConfig, ReinforceConfig, VerifierConfig
from kernrl.errors import RunError, UsageError
from kernrl.rollouts.collect import Collector
from kernrl.rollouts.engines.dialects import ServerInfo, Text
from kernrl.rollouts.engines.engine import Rollout, Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.rollouts.reward import reward
from kernrl.runs import disk_space
from kernrl.runs.run_directory import read_lines
from kernrl.tasks.rows import write_tasks
from kernrl.training import confirm_samples, open_engine, run_history, session
from kernrl.training.heldout_checks import HeldoutChecks
from kernrl.verifier.base.verdict import Status


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks that are not trained on."""
    path = tmp_path_factory.mktemp("others") / "tasks.jsonl"
    write_tasks(path, [replace(task, id=f"other-{n}") for n, task in enumerate(tiny_tasks(2))])
    return path


def checked(others: Path, every: int = 1) -> list[str]:
    return ["--evaluate-every", str(every), "--evaluate-tasks", str(others), "--evaluate-samples", "2"]


# --- evaluations and the best checkpoint ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_evaluations_are_of_the_same_tasks_and_change_nothing_of_the_training(model, tasks, tmp_path, verifier, others):
    plain, watched = tmp_path / "plain", tmp_path / "watched"
    assert run(arguments(model, tasks, plain)) == 0
    assert run(arguments(model, tasks, watched, *checked(others, every=2))) == 0
    found = metrics(watched)
    assert [step for step, line in found.items() if "heldout" in line] == [2, 3]  # the last step too
    assert {step: {k: v for k, v in line.items() if k != "heldout"} for step, line in found.items()} == metrics(plain)
    rows = read_lines(watched / "heldout.jsonl")
    assert {row["task"] for row in rows} == {"other-0", "other-1"}
    assert len(rows) == 2 * 2 * 2
    assert found[2]["heldout"]["tasks"] == 2


@pytest.mark.slow
def test_the_best_checkpoint_is_kept_and_exported(model, tasks, tmp_path, verifier, others):
    """The held-out reward falls after step 1: the model of step 1 is what comes out, however the others are pruned."""
    done = []

    def falling(text):
        task, _ = verifier.asked[-1]
        if not task.startswith("other"):
            return judge(text)
        done.append(text)
        return verdict_of(text + str(len(done)), speedup_x=10.0 / len(done))

    verifier.judge = falling
    output = tmp_path / "run"
    assert run(arguments(model, tasks, output, *checked(others), "--keep-best", "--save-every", "100")) == 0
    assert sorted(p.name for p in output.glob("step_*")) == ["step_1", "step_3"]
    results = json.loads((output / "results.json").read_text())
    assert results["best_step"] == 1
    exported, best, last = (weights(output / name)["model.norm.weight"].float() for name in ("model", "step_1", "step_3"))
    assert (exported - best).abs().max() < 0.01 * best.abs().max()  # in bf16
    assert (exported - last).abs().max() > (exported - best).abs().max()


@pytest.mark.slow
def test_figures_of_another_exam_and_steps_without_a_checkpoint_are_no_best(model, tasks, tmp_path, verifier, others):
    """Rewards fall from exam to exam and from step to step, so that the first would be the best if all were compared."""
    output, done = tmp_path / "run", []

    def falling(text):
        done.append(text)
        return verdict_of(text + str(len(done)), speedup_x=10.0 / len(done))

    verifier.judge = falling
    assert run(arguments(model, tasks, output, *checked(others), steps=1)) == 0
    more = ["reinforce", "--resume", "--output", str(output), "--quiet", "--steps"]
    assert run([*more, "2", "--evaluate-samples", "1"]) == 0
    assert run([*more, "4", "--keep-best"]) == 0  # asks two samples again
    rewards = [line["heldout"]["reward"] for line in metrics(output).values()]
    assert rewards == sorted(rewards, reverse=True)
    # step 1 had the exam of 3 and 4, and lost its checkpoint before anybody asked for the best
    assert json.loads((output / "results.json").read_text())["best_step"] == 3
    assert sorted(p.name for p in output.glob("step_*")) == ["step_3", "step_4"]


def test_the_best_step_is_the_best_of_the_last_exam() -> None:
    def line(step: int, reward: float, exam: str | None) -> dict[str, object]:
        return {"step": step, "heldout": {"reward": reward} | ({"exam": exam} if exam else {})}

    history = [line(1, 0.9, "a"), line(2, 0.5, "b"), {"step": 3}, line(4, 0.4, "b")]
    assert run_history.best_step(history, [1, 2, 4]) == 2
    assert run_history.best_step(history, [1]) == 4  # the last step is getting its checkpoint
    assert run_history.best_step(history[:1], []) == 1
    assert run_history.best_step([line(1, 0.9, None), line(2, 0.5, None)], [1]) == 1  # of a run older than that word
    assert run_history.best_step([{"step": 1}], [1]) is None


def test_an_exam_under_another_precision_is_another(tmp_path: Path) -> None:
    """A run that was begun while its tasks were fp32 goes on with `--verifier.precision fp32`, and its exam is the same."""
    tokenizer = tiny_policy().tokenizer

    def exam(stated: str, asked: Any = None) -> str:
        path = tmp_path / f"{stated}.jsonl"
        if not path.exists():
            write_tasks(path, [replace(task, precision=stated) for task in tiny_tasks(1)])
        engine = ScriptedEngine(tokenizer, lambda *_: "good")
        collector = Collector(engine, tokenizer, FakeVerifier(judge), reward, Sampling(1, 8, 1.0), style="nano")
        stand_in: Any = SimpleNamespace(
            ranks=SimpleNamespace(lead=lambda work: work()),
            lead=lambda work: work(),
            tasks=[],
            collector=collector,
            watch=SimpleNamespace(title=""),
            directory=SimpleNamespace(add_heldout_sample=lambda row: None),
        )
        config = ReinforceConfig(
            model="nano",
            output=tmp_path / "run",
            evaluate_every=1,
            evaluate_tasks=str(path),
            verifier=VerifierConfig(precision=asked),
        )
        return HeldoutChecks(stand_in, config).after_step(1, last=True)["heldout"]["exam"]

    assert exam("fp32") == exam("tf32", "fp32") == exam("fp32", "fp32")
    assert len({exam("fp32"), exam("tf32"), exam("tf32", "bf16")}) == 3


def test_a_best_of_nothing_and_an_exam_of_what_was_learnt_are_refused(model, tasks, tmp_path, verifier, capsys):
    assert run(arguments(model, tasks, tmp_path / "a", "--keep-best")) == 2
    assert run(arguments(model, tasks, tmp_path / "b", "--evaluate-every", "1", "--evaluate-tasks", str(tasks))) == 2
    said = capsys.readouterr().err
    assert "--keep-best needs --evaluate-every" in said
    assert "--evaluate-tasks: task-0 is trained on too" in said


@pytest.mark.slow
def test_best_of_n_is_evaluated_too(model, tasks, tmp_path, verifier, others, monkeypatch):
    monkeypatch.setattr(session, "stop_ids", lambda policy: (ord(" "), *range(4, 30)))  # a tiny model seldom stops
    words = ["best-of-n", "--model", str(model), "--tasks", str(tasks), "--output", str(tmp_path / "run"), "--no-lora"]
    sizes = ["--rounds", "2", "--tasks-per-round", "2", "--samples", "8", "--max-tokens", "12", "--row-tokens", "256"]
    rest = ["--threshold", "0", "--no-gradient-checkpointing", "--quiet", "--keep-best"]
    assert run([*words, *sizes, *rest, *checked(others)]) == 0
    lines = metrics(tmp_path / "run")
    assert all(lines[n]["heldout"]["attempts"] == 4 for n in (1, 2))


# --- nothing learnt ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_steps_without_a_lesson_end_the_run(model, tasks, tmp_path, verifier, capsys):
    verifier.judge = lambda text: verdict_of(text, Status.SYNTAX_ERROR)
    assert run(arguments(model, tasks, tmp_path / "run", "--max-tokens", "40", steps=9)) == 1
    assert list(metrics(tmp_path / "run")) == [1, 2, 3]
    assert "3 steps in a row learnt nothing; in the last, nothing could be learnt: " in capsys.readouterr().err
    assert run(arguments(model, tasks, tmp_path / "on", "--give-up-after", "0", steps=4)) == 1
    assert list(metrics(tmp_path / "on")) == [1, 2, 3, 4]


def test_a_step_that_learns_begins_the_count_anew():
    run_history.give_up([{"learnt": 0}, {"learnt": 0}, {"learnt": 3}, {"learnt": 0}, {"learnt": 0}], 3)
    run_history.give_up([{"learnt": 0}] * 9, 0)
    run_history.give_up([{}] * 3, 3)  # older than the count
    with pytest.raises(RunError, match="2 steps in a row"):
        run_history.give_up([{"learnt": 5}, {"learnt": 0}, {"learnt": 0}], 2)


def test_the_reason_is_named():
    from types import SimpleNamespace as Of

    def attempt(finish, status=Status.WRONG):
        return Of(rollout=Rollout(0, 0, [1], None, finish, 0), verdict=verdict_of("", status))

    def why(*attempts, fits=True):
        return run_history.why_nothing(attempts, 512, lambda a: fits)

    assert "every reply was cut at --max-tokens 512" in why(attempt("length"), attempt("length", Status.NO_CODE))
    assert "no prompt leaves room" in why(attempt("error"))
    assert "none of 2 candidates is correct (2 are wrong)" in why(attempt("stop"), attempt("length"))
    assert "--row-tokens" in why(attempt("stop", Status.CORRECT), fits=False)
    assert "earned the same" in why(attempt("stop", Status.CORRECT))


# --- room on the disk ----------------------------------------------------------------------------------------------------


def test_a_run_that_the_disk_cannot_hold_is_refused_with_its_size(model, tasks, tmp_path, verifier, monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    assert run(arguments(model, tasks, tmp_path / "run")) == 2
    policy = tiny_policy()
    size = disk_space.size_text(12 * sum(p.numel() for p in policy.model.parameters()))
    said = capsys.readouterr().err
    assert f"checkpoints take {size} each" in said
    assert "where 1 kB are free; make room, or name another disk" in said


def test_checkpoints_that_are_there_make_room_for_those_that_follow(tmp_path, monkeypatch):
    model = tiny_policy().model
    one, export = (size * sum(p.numel() for p in model.parameters()) for size in (12, 2))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: usage(10**9, 10**9, one + export))

    def room() -> None:
        disk_space.require_room(tmp_path, model, kept=2, optimizer=True, adapters=False)

    with pytest.raises(UsageError, match="make room"):
        room()
    (tmp_path / "step_5").mkdir()
    (tmp_path / "step_5" / "weights").write_bytes(bytes(one))
    room()


@pytest.mark.slow
def test_one_checkpoint_is_kept_unless_more_are_asked_for(model, tasks, tmp_path, verifier):
    assert run(arguments(model, tasks, tmp_path / "one")) == 0
    assert [p.name for p in (tmp_path / "one").glob("step_*")] == ["step_3"]
    assert run(arguments(model, tasks, tmp_path / "two", "--keep-checkpoints", "2")) == 0
    assert sorted(p.name for p in (tmp_path / "two").glob("step_*")) == ["step_2", "step_3"]


@pytest.mark.slow
def test_a_killed_run_has_each_step_once(model, tasks, tmp_path, verifier):
    output = tmp_path / "run"
    assert run(arguments(model, tasks, output, steps=3)) == 0
    with (output / "metrics.jsonl").open("a") as file:  # as if steps 4 and 5 had been taken, and their checkpoint not
        file.writelines(json.dumps({"step": n, "reward": 0.0}) + "\n" for n in (4, 5))
    shutil.rmtree(output / "model")
    assert run(["reinforce", "--output", str(output), "--resume", "--steps", "4", "--quiet"]) == 0  # no other flag is needed
    assert [line["step"] for line in read_lines(output / "metrics.jsonl")] == [1, 2, 3, 4]
    assert "entropy" in read_lines(output / "metrics.jsonl")[-1]


# --- how it is sampled, and how much -------------------------------------------------------------------------------------


def test_temperature_0_takes_the_likeliest_token_and_cuts_leave_out_the_others():
    policy = tiny_policy()
    engine = GenerateEngine(policy)
    prompt: list[int] = policy.tokenizer("ab", add_special_tokens=False)["input_ids"]  # pyright: ignore[reportAssignmentType]

    def sampled(**cuts):
        settings = {"n": 3, "max_tokens": 5, "temperature": 1.0, **cuts}
        return [r for seed in (1, 2) for r in engine.generate([prompt], Sampling(**settings, seed=seed))]

    greedy = sampled(temperature=0.0)
    assert len({tuple(r.token_ids) for r in greedy}) == 1
    assert [r.logprobs for r in greedy] == [None] * 6  # not those of the distribution that is trained
    for cut in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.999}):
        assert {tuple(r.token_ids) for r in sampled(**cut)} == {tuple(greedy[0].token_ids)}
    assert len({tuple(r.token_ids) for r in sampled()}) > 1


def test_greedy_is_one_candidate_a_task():
    assert EvalConfig(temperature=0).samples == 1
    assert EvalConfig().samples == 8
    with pytest.raises(ValueError, match="gives the same reply each time"):
        EvalConfig(temperature=0, samples=4)


def test_a_server_that_cannot_cut_says_so():
    text = Text(tiny_policy().tokenizer, whole_settings=False)
    with pytest.raises(UsageError, match=r"--min-p: this server takes --temperature and --top-p alone"):
        text.request("m", [1], Sampling(1, 8, 1.0, min_p=0.1))


def test_very_many_samples_need_a_yes(monkeypatch):
    monkeypatch.setattr(confirm_samples.sys, "stdin", None)
    confirm_samples.confirm_samples(16, 24, yes=False)
    confirm_samples.confirm_samples(100_000, 24, yes=True)
    with pytest.raises(UsageError, match=r"--samples 100000 asks for 2,400,000 replies a step: .* confirm with --yes"):
        confirm_samples.confirm_samples(100_000, 24, yes=False, what=" a step")


@pytest.mark.parametrize(("answer", "refused"), [("y", False), ("", True)])
def test_a_terminal_is_asked(monkeypatch, answer, refused):
    asked = []
    log = console.Console(force_terminal=True)
    log.input = lambda question: asked.append(question) or answer  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(confirm_samples, "log", log)
    monkeypatch.setattr(confirm_samples.sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    try:
        confirm_samples.confirm_samples(9999, 1, yes=False)
    except UsageError:
        assert refused
    else:
        assert not refused
    assert asked


def test_an_unknown_model_of_a_server_is_refused_with_its_own(monkeypatch):
    facts = ServerInfo("vllm", ("qwen",), 4096, {}, adapters=("mine",))
    monkeypatch.setattr(open_engine, "ask_server_info", lambda server: facts)

    def connect(name):
        config = EvalConfig(engine="server", server_url="http://localhost:1", server_model=name, model="m")
        return open_engine.connect(config)[2]

    assert (connect(None), connect("mine")) == ("qwen", "mine")
    with pytest.raises(UsageError, match=r"--server-model: the server has no 'qwem': did you mean 'qwen'\?"):
        connect("qwem")
