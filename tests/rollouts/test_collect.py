"""Collecting: verification beside sampling, duplicates once, turns, and what a step comes to in numbers."""

import math
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.tiny import FakeVerifier, ScriptedEngine, tiny_policy, tiny_tasks, verdict_of

from kernrl.policy.examples import prompt_text
from kernrl.policy.pairs import task_messages
from kernrl.rollouts.collect import Collector, candidate_key, feedback
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.fall_of_correctness import Correctness
from kernrl.rollouts.reward import reward
from kernrl.rollouts.step_metrics import speed_geomean_x, step_metrics
from kernrl.tasks.prompt import PRECISIONS
from kernrl.verifier.base.verdict import Status

FENCED = "Here it is.\n```python\nclass ModelNew: pass\n```\n"
OTHER_WORDS = "Another way to say it:\n```python\nclass ModelNew: pass\n```"


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_policy().tokenizer


def judge(text):
    if "infra" in text:
        return verdict_of(text, Status.INFRA_ERROR)
    return verdict_of(text, Status.CORRECT, speedup_x=2.0) if "good" in text else verdict_of(text, Status.WRONG)


GOOD = 0.7 + 0.3 * math.log(2, 3)
"""The default reward of what is twice as fast."""


def collector(tokenizer, replies, verifier=None, n=2, finish="stop", **more):
    engine = ScriptedEngine(tokenizer, replies, finish)
    return Collector(engine, tokenizer, verifier or FakeVerifier(judge), reward, Sampling(n, 64, 1.0), style="nano", **more)


def test_attempts_come_in_a_fixed_order_with_their_rewards(tokenizer):
    c = collector(tokenizer, lambda prompt, sample, call: f"good {sample}" if prompt else f"bad {sample}")
    found = c.collect(tiny_tasks(2), (0, 1), first_group=5)
    assert [(a.group, a.member, a.text) for a in found.attempts] == [
        (5, 0, "bad 0"), (5, 1, "bad 1"), (6, 0, "good 0"), (6, 1, "good 1"),
    ]  # fmt: skip
    assert [a.reward.value for a in found.attempts if a.reward] == pytest.approx([0.0, 0.0, GOOD, GOOD])
    assert all(a.prompt_ids[-1] == tokenizer.convert_tokens_to_ids("<|assistant|>") for a in found.attempts)
    assert found.seconds["trace"] == pytest.approx(0.04)
    assert {"ask", "generate", "verify"} <= set(found.seconds)


def test_tasks_are_prepared_together_before_they_are_asked_and_that_is_counted(tokenizer, monkeypatch):
    tasks, prepared, now = tiny_tasks(2), [], [0.0]
    monkeypatch.setattr("kernrl.rollouts.collect.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def prepare(given):
        assert not c.engine.calls
        prepared.append(given)
        now[0] += 3.0

    c = collector(tokenizer, lambda prompt, sample, call: "good", prepare=prepare)
    found = c.collect(tasks, (0, 1))
    assert prepared == [tasks]
    assert found.seconds["ask"] == 3.0


@pytest.mark.parametrize("settings", [{}, {"name_gpu": False}, {"precision": "bf16"}, {"facts": True}])
def test_a_chat_prompt_names_precision_and_gpu(tokenizer, settings):
    """Every stage asks through a collector."""
    c = replace(collector(tokenizer, lambda prompt, sample, call: "good"), style="chat", **settings)
    c.collect([replace(tiny_tasks(1)[0], precision="tf32")], (0, 1))
    [(asked,)] = [prompts for prompts, _ in c.engine.calls]
    assert PRECISIONS[settings.get("precision", "tf32")] in asked
    assert ("kernels for an NVIDIA H200, as" in asked) is settings.get("name_gpu", True)


def test_nano_is_asked_without_a_gpu(tokenizer):
    c = collector(tokenizer, lambda prompt, sample, call: "good")
    c.verifier.gpu = lambda: pytest.fail("nobody needs it")  # asking starts a verifier
    [task] = tiny_tasks(1)
    c.collect([task], (0, 1))
    assert c.engine.calls[0][0] == [prompt_text(task_messages(task, "nano"), tokenizer)]


def test_equal_sources_are_verified_once_within_and_across_groups_and_calls(tokenizer):
    verifier = FakeVerifier(judge)
    one, two = tiny_tasks(2)
    c = collector(tokenizer, lambda prompt, sample, call: (FENCED, OTHER_WORDS)[sample], verifier)
    found = c.collect([one, one, two], (0, 1))
    # the same code in other words is the same candidate; for another task it is not
    assert [task for task, _ in verifier.asked] == [one.id, two.id]
    assert sum(a.repeated for a in found.attempts) == 4
    again = c.collect([one], (0, 2))
    assert len(verifier.asked) == 2
    assert [a.verdict for a in again.attempts] == [a.verdict for a in found.attempts[:2]]


def test_broken_infrastructure_has_no_reward_and_is_asked_again(tokenizer):
    verifier = FakeVerifier(judge)
    c = collector(tokenizer, lambda prompt, sample, call: "infra", verifier, n=1)
    assert c.collect(tiny_tasks(1), (0, 1)).attempts[0].reward is None
    c.collect(tiny_tasks(1), (0, 2))
    assert len(verifier.asked) == 2


class EagerVerifier(FakeVerifier):
    """Takes pairs in a thread of its own, as one with a pool does, and says when it got the first."""

    def __init__(self, judge):
        super().__init__(judge)
        self.first = threading.Event()

    def verify_many(self, pairs):
        taken = []

        def feed():
            for pair in pairs:
                taken.append(pair)
                self.first.set()

        thread = threading.Thread(target=feed)
        thread.start()
        thread.join()
        for index in reversed(range(len(taken))):
            yield index, self.judge(taken[index][1])


def test_verification_starts_before_sampling_ends(tokenizer):
    verifier = EagerVerifier(judge)
    seen = []

    def replies(prompt, sample, call):
        if (prompt, sample) == (1, 0):  # the last to be sampled
            seen.append(verifier.first.is_set())
        return f"{prompt} {sample}"

    found = collector(tokenizer, replies, verifier).collect(tiny_tasks(2), (0, 1))
    assert seen == [True]
    assert [(a.group, a.member, a.text) for a in found.attempts] == [
        (0, 0, "0 0"), (0, 1, "0 1"), (1, 0, "1 0"), (1, 1, "1 1"),
    ]  # fmt: skip


def test_every_attempt_is_told_of_the_moment_it_is_judged(tokenizer):
    told = []
    c = collector(tokenizer, lambda prompt, sample, call: str(sample))
    found = c.collect(tiny_tasks(1), (0, 1), on_attempt=told.append)
    assert sorted(told, key=lambda a: a.order) == found.attempts


def test_the_verdict_goes_back_to_the_model_in_the_next_turn(tokenizer):
    c = collector(tokenizer, lambda prompt, sample, call: f"good {sample}" if call == 2 else f"bad {sample}", turns=2)
    found = c.collect(tiny_tasks(1), (0, 1))
    assert [(a.member, a.turn, a.text) for a in found.attempts] == [
        (0, 1, "bad 0"), (1, 1, "bad 1"), (0, 2, "good 0"), (1, 2, "good 0"),
    ]  # fmt: skip
    first, second = c.engine.calls
    assert (first[1].n, second[1].n) == (2, 1)
    assert first[1].seed != second[1].seed
    for prompt, before in zip(second[0], ("bad 0", "bad 1"), strict=True):
        assert prompt.startswith(first[0][0] + before)
        assert "the first element differs" in prompt
    assert [[a.turn for a in t] for t in found.trajectories()] == [[1, 2], [1, 2]]
    assert [[(a.turn, a.member) for a in g] for g in found.groups()] == [[(1, 0), (1, 1)], [(2, 0), (2, 1)]]


def test_a_cut_reply_ends_its_trajectory(tokenizer):
    c = collector(tokenizer, lambda prompt, sample, call: "bad", turns=3, finish="length")
    assert {a.turn for a in c.collect(tiny_tasks(1), (0, 1)).attempts} == {1}


def test_a_prompt_without_room_is_no_code(tokenizer):
    c = collector(tokenizer, lambda prompt, sample, call: "", finish="error", n=1)
    (attempt,) = c.collect(tiny_tasks(1), (0, 1)).attempts
    assert attempt.verdict.status is Status.NO_CODE
    assert attempt.reward is not None
    assert attempt.reward.value == 0.0


def test_feedback_says_what_to_do():
    assert "wrong" in feedback(verdict_of("", Status.WRONG))
    assert "2.00 times" in feedback(verdict_of("", speedup_x=2.0))
    assert "as fast as" in feedback(verdict_of("", speedup_x=1.01, significant=False))
    assert "correct" in feedback(verdict_of(""))


def test_the_key_is_of_the_code_alone():
    assert candidate_key(FENCED) == candidate_key(OTHER_WORDS) != candidate_key("no code here")


def test_a_step_in_numbers(tokenizer):
    def replies(prompt, sample, call):
        return ("good", "good", "bad", "infra")[sample]

    found = collector(tokenizer, replies, n=4).collect(tiny_tasks(1), (0, 1))
    metrics = step_metrics(found, first_length=1.0)
    assert metrics["attempts"] == 4
    assert metrics["unknown"] == 1
    assert metrics["reward"] == pytest.approx(2 / 3 * GOOD)
    assert metrics["correct"] == metrics["fast_1"] == pytest.approx(2 / 3)
    assert metrics["speed_geomean_x"] == pytest.approx(2.0)
    assert metrics["duplicates"] == 0.25
    assert metrics["statuses"] == {"correct": 2, "wrong": 1, "infra_error": 1}
    assert metrics["alarms"] == ["replies are 5.0 times as long as in the first step"]


def test_a_fall_of_correctness_is_an_alarm(tokenizer):
    right = collector(tokenizer, lambda prompt, sample, call: "good").collect(tiny_tasks(24), (0, 1))
    wrong = collector(tokenizer, lambda prompt, sample, call: "bad").collect(tiny_tasks(24), (0, 1))
    before = Correctness()
    metrics = step_metrics(right, before=before)
    assert metrics["alarms"] == []
    assert metrics["tasks"] == 24
    before.take(metrics["correct"], metrics["tasks"])
    found = step_metrics(wrong, before=before)
    assert found["alarms"] == ["0% of the attempts are correct, where 100% of the best steps were"]


def test_alarms_of_a_gamed_reward(tokenizer):
    def hacked(text):
        return verdict_of(text, Status.POLICY) if "bad" in text else verdict_of(text, speedup_x=40.0)

    c = collector(tokenizer, lambda prompt, sample, call: ("good", "bad")[sample], FakeVerifier(hacked))
    alarms = step_metrics(c.collect(tiny_tasks(1), (0, 1)))["alarms"]
    assert alarms == ["50% of the attempts broke the rules", "a speedup of 40× was credited"]


def test_fast_1_needs_more_than_noise():
    assert verdict_of("", speedup_x=1.1).faster()
    assert not verdict_of("", speedup_x=1.1, significant=False).faster()
    assert not verdict_of("", Status.WRONG, speedup_x=9.0).faster()
    assert not verdict_of("", speedup_x=1.1).faster(baseline="compile")
    assert speed_geomean_x([verdict_of("", speedup_x=4.0), verdict_of("", speedup_x=1.0)]) == pytest.approx(2.0)
    assert speed_geomean_x([verdict_of("")]) is None


def test_wins_within_the_noise_are_counted_apart(tokenizer):
    speeds = {"good": (1.1, True), "better": (1.01, False), "bad": (0.9, False)}
    c = collector(
        tokenizer, lambda prompt, sample, call: list(speeds)[sample],
        FakeVerifier(lambda text: verdict_of(text, speedup_x=speeds[text][0], significant=speeds[text][1])), n=3,
    )  # fmt: skip
    metrics = step_metrics(c.collect(tiny_tasks(1), (0, 1)))
    assert (metrics["fast_1"], metrics["fast_1_plain"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))


def test_a_modelled_win_counts_and_is_said_to_be_modelled(tokenizer):
    def modelled(text):
        verdict = verdict_of(text, speedup_x=1.5, significant=False)
        assert verdict.timing
        return replace(verdict, timing=replace(verdict.timing, kind="modelled"))

    c = collector(tokenizer, lambda prompt, sample, call: ("good", "bad")[sample], FakeVerifier(modelled))
    metrics = step_metrics(c.collect(tiny_tasks(1), (0, 1)))
    assert (metrics["fast_1"], metrics["speed_geomean_x"]) == (1.0, pytest.approx(1.5))
    assert metrics["modelled"]


def test_one_answer_to_everything_is_worth_a_look(tokenizer):
    c = collector(tokenizer, lambda prompt, sample, call: "same" if sample else "other", FakeVerifier(judge), n=8)
    metrics = step_metrics(c.collect(tiny_tasks(1), (0, 1)))
    assert metrics["duplicates"] == 0.75
    assert metrics["alarms"] == ["75% of the attempts repeat another's source"]
