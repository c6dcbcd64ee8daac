"""`kernrl reinforce --overlap 1`: sampled a step ahead, corrected for it, and still a function of the seed alone."""

import threading
from dataclasses import replace

import pytest
import torch
from support.tiny import FakeVerifier, verdict_of
from support.toy_runs import Killed, judge, metrics, rewards, texts, weights
from support.toy_runs import reinforce_arguments as arguments

from kernrl.cli import run
from kernrl.rollouts.collect import Collector
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.runs.run_directory import read_lines
from kernrl.stages import reinforce
from kernrl.training import session
from kernrl.verifier.base.verdict import Status

pytestmark = pytest.mark.usefixtures("verifier")

AHEAD = ("--overlap", "1")


def versions(output):
    return {row["step"]: row["version"] for row in read_lines(output / "samples.jsonl")}


@pytest.mark.slow
def test_every_step_but_the_first_is_one_update_old(model, tasks, tmp_path):
    output = tmp_path / "run"
    assert run(arguments(model, tasks, output, *AHEAD, steps=4)) == 0
    assert versions(output) == {1: 0, 2: 0, 3: 1, 4: 2}
    lines = metrics(output)
    assert [lines[step]["staleness"] for step in (1, 2, 3, 4)] == [0, 1, 1, 1]
    assert abs(lines[1]["mismatch_kl"]) < 1e-6 < 1e-4 < lines[2]["mismatch_kl"]
    assert lines[1]["correction_mean"] == pytest.approx(1.0, abs=1e-3)
    assert abs(lines[2]["correction_mean"] - 1) > 1e-3


@pytest.mark.slow
def test_without_overlap_nothing_is_stale(model, tasks, tmp_path):
    assert run(arguments(model, tasks, tmp_path / "run")) == 0
    assert {line["staleness"] for line in metrics(tmp_path / "run").values()} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["reinforce", "grpo"])
def test_it_learns_all_the_same(model, tasks, tmp_path, loss):
    assert run(arguments(model, tasks, tmp_path / "run", *AHEAD, "--loss", loss, steps=10, samples=16)) == 0
    found = rewards(tmp_path / "run")
    assert sum(found[-2:]) / 2 > found[0] + 0.25


@pytest.mark.slow
def test_the_same_seed_gives_the_same_samples_and_the_same_loss(model, tasks, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for output in (first, second):
        assert run(arguments(model, tasks, output, *AHEAD, "--curriculum", steps=4)) == 0
    assert texts(first) == texts(second)
    assert metrics(first) == metrics(second)


class Patient(FakeVerifier):
    """Gives no verdict on the first step's candidates before the second step's are sampled."""

    def __init__(self, judge):
        super().__init__(judge)
        self.sampled = threading.Event()

    def verify_many(self, pairs):
        pairs = list(pairs)
        assert self.sampled.is_set() or self.sampled.wait(20), "the next step is not sampled meanwhile"
        return super().verify_many(iter(pairs))


@pytest.mark.slow
def test_the_next_step_is_sampled_while_this_one_is_verified(model, tasks, tmp_path, monkeypatch):
    patient = Patient(judge)
    monkeypatch.setattr(session, "open_verifier", lambda config: patient)
    calls = []
    real = GenerateEngine.generate

    def counted(self, prompts, sampling):
        calls.append(len(prompts))
        yield from real(self, prompts, sampling)
        if len(calls) == 2:
            patient.sampled.set()

    monkeypatch.setattr(GenerateEngine, "generate", counted)
    assert run(arguments(model, tasks, tmp_path / "run", *AHEAD, steps=2)) == 0


class Narrow(FakeVerifier):
    """Takes one candidate at a time, and of one call none after the first before it may go on."""

    def __init__(self, judge, held):
        super().__init__(judge)
        self.held, self.calls, self.taken = held, 0, []
        self.go_on, self.ended = threading.Event(), threading.Semaphore(0)

    def verify_many(self, pairs):
        call = self.calls = self.calls + 1

        def watched():
            for pair in pairs:
                self.taken.append(call)
                yield pair
                assert call != self.held or self.go_on.wait(20)

        try:
            yield from super().verify_many(watched())
        finally:
            self.ended.release()


@pytest.mark.slow
def test_a_step_is_sampled_whole_before_its_candidates_are_taken_which_is_after_those_of_the_step_before(
    model, tasks, tmp_path, monkeypatch
):  # fmt: skip
    narrow = Narrow(judge, held=1)
    monkeypatch.setattr(session, "open_verifier", lambda config: narrow)
    sampled = []
    real = GenerateEngine.generate

    def counted(self, prompts, sampling):
        yield from real(self, prompts, sampling)
        sampled.append(list(narrow.taken))
        if len(sampled) == 2:
            narrow.go_on.set()

    monkeypatch.setattr(GenerateEngine, "generate", counted)
    assert run(arguments(model, tasks, tmp_path / "run", *AHEAD, steps=3)) == 0
    assert sampled[1] == [1], "sampling went on while the verifier took nothing"
    assert narrow.taken == sorted(narrow.taken)
    assert set(narrow.taken) == {1, 2, 3}


def test_when_the_time_is_up_no_more_of_the_step_ahead_is_verified(model, tasks, tmp_path, monkeypatch):
    narrow = Narrow(judge, held=2)
    monkeypatch.setattr(session, "open_verifier", lambda config: narrow)
    assert run(arguments(model, tasks, tmp_path / "run", *AHEAD, "--time-limit-s", "0.001", steps=50)) == 0
    narrow.go_on.set()
    assert all(narrow.ended.acquire(timeout=20) for _ in range(narrow.calls))
    assert set(metrics(tmp_path / "run")) == {1}
    assert narrow.taken.count(1) > 2 > narrow.taken.count(2)


@pytest.mark.slow
def test_no_clock_runs_beside_an_update_and_nothing_is_sampled_then(model, tasks, tmp_path, monkeypatch):
    events = []

    class Watched(FakeVerifier):
        def untimed(self):
            events.append("untimed")
            return super().untimed()

    monkeypatch.setattr(session, "open_verifier", lambda config: Watched(judge))
    sampling = threading.Semaphore(1)
    real_generate, real_update = GenerateEngine.generate, reinforce.Learner.update

    def generate(self, prompts, settings):
        with sampling:
            yield from real_generate(self, prompts, settings)

    def update(self, rows):
        assert sampling.acquire(blocking=False), "sampled beside an update"
        sampling.release()
        assert events.count("untimed") > events.count("update")
        events.append("update")
        return real_update(self, rows)

    monkeypatch.setattr(GenerateEngine, "generate", generate)
    monkeypatch.setattr(reinforce.Learner, "update", update)
    assert run(arguments(model, tasks, tmp_path / "run", *AHEAD, steps=4)) == 0
    assert events.count("update") == 4


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while sampling", "before the update", "before the checkpoint"])
def test_a_killed_run_goes_on_as_if_nothing_had_been(model, tasks, tmp_path, monkeypatch, verifier, moment):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = (*AHEAD, "--curriculum", "--save-every", "1")
    assert run(arguments(model, tasks, whole, *flags, steps=5)) == 0
    calls = {"n": 0}

    def at_the_third(call):
        def wrapped(*args, **kwargs):
            calls["n"] += 1
            if calls["n"] == 3:
                raise Killed
            return call(*args, **kwargs)

        return wrapped

    place = {
        "while sampling": (Collector, "sample"),
        "before the update": (reinforce, "training_examples"),
        "before the checkpoint": (reinforce.Learner, "finish_step"),
    }
    with monkeypatch.context() as patch:
        owner, name = place[moment]
        patch.setattr(owner, name, at_the_third(getattr(owner, name)))
        with pytest.raises(Killed):
            run(arguments(model, tasks, killed, *flags, steps=5))
    assert list(killed.glob("step_*"))
    asked = len(verifier.asked)
    assert run(arguments(model, tasks, killed, *flags, "--resume", steps=5)) == 0
    assert texts(killed) == texts(whole)
    assert metrics(killed) == metrics(whole)
    assert versions(killed) == versions(whole)
    for name, tensor in weights(killed / "model").items():
        assert torch.equal(tensor, weights(whole / "model")[name])
    assert len(verifier.asked) > asked


@pytest.mark.slow
def test_log_probs_that_an_engine_does_not_give_are_those_of_the_weights_that_sampled(model, tasks, tmp_path, monkeypatch):
    given, worked_out = tmp_path / "given", tmp_path / "worked out"
    assert run(arguments(model, tasks, given, *AHEAD, steps=3)) == 0
    real = GenerateEngine.generate

    def silent(self, prompts, sampling):
        for rollout in real(self, prompts, sampling):
            yield replace(rollout, logprobs=None)

    monkeypatch.setattr(GenerateEngine, "generate", silent)
    assert run(arguments(model, tasks, worked_out, *AHEAD, steps=3)) == 0
    assert texts(worked_out) == texts(given)
    for step in (2, 3):
        one, other = metrics(given)[step], metrics(worked_out)[step]
        assert other["mismatch_kl"] == pytest.approx(one["mismatch_kl"], rel=1e-3)
        assert other["correction_mean"] == pytest.approx(one["correction_mean"], rel=1e-4)
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3, abs=1e-6)


def test_what_goes_wrong_ahead_ends_the_run_before_it_is_learnt_over(model, tasks, tmp_path, monkeypatch):
    calls = []
    real = GenerateEngine.generate

    def failing(self, prompts, sampling):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the engine broke")
        yield from real(self, prompts, sampling)

    monkeypatch.setattr(GenerateEngine, "generate", failing)
    with pytest.raises(RuntimeError, match="the engine broke"):
        run(arguments(model, tasks, tmp_path / "run", *AHEAD, steps=5))
    assert set(metrics(tmp_path / "run")) == {1}
    left = [thread for thread in threading.enumerate() if thread.name.startswith("rollouts")]
    for thread in left:
        thread.join(10)
    assert not any(thread.is_alive() for thread in left), "the process would not end"


@pytest.mark.parametrize("part", ["sample", "judge"])
def test_no_thread_waits_for_work_that_was_never_begun(model, tasks, tmp_path, monkeypatch, part):
    """Sampling cannot begin, or an end comes before it did."""

    def broken(self, *_, **__):
        raise RuntimeError(f"cannot {part}")

    monkeypatch.setattr(Collector, part, broken)
    with pytest.raises(RuntimeError, match=f"cannot {part}"):
        run(arguments(model, tasks, tmp_path / "run", *AHEAD, steps=3))
    left = [thread for thread in threading.enumerate() if thread.name.startswith("rollouts")]
    for thread in left:
        thread.join(10)
    assert not any(thread.is_alive() for thread in left)


def test_broken_infrastructure_is_masked_as_ever(model, tasks, tmp_path, verifier):
    verifier.judge = lambda text: verdict_of(text, Status.INFRA_ERROR) if len(verifier.asked) % 2 else judge(text)
    assert run(arguments(model, tasks, tmp_path / "run", *AHEAD, steps=2)) == 0
    assert all(line["learnt"] == line["attempts"] - line["unknown"] for line in metrics(tmp_path / "run").values())


@pytest.mark.parametrize("flags", [("--turns", "2"), ("--constant-groups", "refill")])
def test_what_cannot_be_sampled_in_one_go_is_refused(model, tasks, tmp_path, flags, capfd):
    assert run(arguments(model, tasks, tmp_path / "run", *AHEAD, *flags)) == 2
    assert f"leave out {' '.join(flags[:2] if flags[0] != '--turns' else flags[:1])}" in capfd.readouterr().err
