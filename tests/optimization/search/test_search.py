"""The search keeps its budget, judges equal sources once, follows what it saw, and keeps the best when interrupted."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import pytest
from support import ROOT
from support.tiny import tiny_tasks, verdict_of

from kernrl.optimization.one_task import samples_wanted
from kernrl.optimization.search.budget import Budget
from kernrl.optimization.search.finals import FINAL_ROUNDS
from kernrl.optimization.search.proposals import styles
from kernrl.optimization.search.search import Limits, Search
from kernrl.optimization.search.trials import MODEL_MARGIN, Proposal, Trial, beats, combined, ranked
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.solutions.from_graph.plausible import plausible
from kernrl.tasks.solutions.from_graph.styles import graphs_of, write_solutions
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.base.verdict import Speedup, Status, Timing, Verdict

TASK = tiny_tasks(1)[0]


def launching(warps: int, block: int = 1024, extra: str = "") -> str:
    call = f"k[(cdiv(n, {block}),)](x, BLOCK={block}, num_warps={warps})"
    return f"class ModelNew:\n    def forward(self, x):\n        {call}{extra}\n"


class Judge:
    """Judges at once, or never where `stuck` is true of the text."""

    def __init__(self, worth: Callable[[str], float | None], stuck: Callable[[str], bool] = lambda text: False):
        self.worth, self.stuck = worth, stuck
        self.asked: list[str] = []
        self.again: list[str] = []

    def submit(self, task: object, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
        (self.again if fresh else self.asked).append(candidate)
        future: Future[Verdict] = Future()
        if not self.stuck(candidate):
            speed = self.worth(candidate)
            verdict = verdict_of(candidate, speedup_x=speed) if speed else verdict_of(candidate, Status.WRONG)
            future.set_result(verdict)
        return future


def style(source: str, name: str = "style") -> Proposal:
    return Proposal(source, "style", name)


def warps_of(text: str) -> int:
    return int(re.findall(r"num_warps=(\d+)", text)[0])


def by_warps(text: str) -> float:
    """The more warps the faster, whatever the block is."""
    return 1.0 + 0.1 * math.log2(warps_of(text))


def test_variants_follow_what_was_seen() -> None:
    judge = Judge(by_warps)
    search = Search(TASK, judge, Limits(40, measured=False, in_flight=1), Budget(60.0))
    search.run([style(launching(4))])
    assert warps_of(search.best()[0].proposal.source) == 32
    ups = [warps_of(text) for text in judge.asked[1:]]
    assert ups.index(32) <= 8  # three turns up among six other steps; in an order without memory it would come far later
    assert search.ended == "no more ideas"
    origins = {t.id: t.proposal for t in search.trials}
    grandchild = next(p for p in origins.values() if p.parent and origins[p.parent].parent)
    assert str(grandchild) == f"variant of style, {origins[grandchild.parent].name} ({grandchild.name})"
    assert Trial.from_row(search.trials[-1].to_row(TASK, 0)).proposal == search.trials[-1].proposal


def test_equal_sources_are_judged_once_and_the_count_is_kept() -> None:
    judge = Judge(by_warps)
    search = Search(TASK, judge, Limits(5, measured=False, in_flight=3), Budget(60.0))
    search.run([style(launching(4)), style(launching(4), "again"), style(launching(8))])
    assert len(judge.asked) == len(set(judge.asked)) == 5
    assert search.ended == "candidates"


@pytest.mark.slow
def test_the_budget_ends_a_search_whose_candidates_never_return() -> None:
    judge = Judge(by_warps, stuck=lambda text: "slow" in text)
    search = Search(TASK, judge, Limits(10, measured=False, in_flight=2), Budget(1.0))
    search.run([style(launching(4)), style(launching(4, extra="  # slow")), style(launching(8, extra="  # slow"))])
    assert search.ended == "budget"
    assert [t.proposal.source for t in search.trials][:1] == [launching(4)]


def test_an_interrupt_keeps_what_was_found() -> None:
    def interrupt(text: str) -> float | None:
        if "num_warps=16" in text:
            raise KeyboardInterrupt
        return by_warps(text)

    search = Search(TASK, Judge(interrupt), Limits(40, measured=True, in_flight=1), Budget(60.0))
    search.run([style(launching(4))])
    assert search.ended == "interrupted"
    assert warps_of(search.best()[0].proposal.source) == 8
    assert not search.finals


def test_known_trials_are_not_judged_again_and_count() -> None:
    first = Search(TASK, Judge(by_warps), Limits(4, measured=False, in_flight=1), Budget(60.0))
    first.run([style(launching(4))])
    rows = [trial.to_row(TASK, n) for n, trial in enumerate(first.trials)]
    judge = Judge(by_warps)
    again = Search(TASK, judge, Limits(6, measured=False, in_flight=1), Budget(60.0), known=[Trial.from_row(r) for r in rows])
    again.run([style(launching(4))])
    assert len(again.trials) == 6
    assert len(judge.asked) == 2
    assert not {t.proposal.source for t in first.trials} & set(judge.asked)


def test_finalists_are_timed_again_and_one_that_turns_out_wrong_loses() -> None:
    class Lucky(Judge):
        def submit(self, task: object, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
            future = super().submit(task, candidate, fresh=fresh)
            if fresh and "lucky" in candidate:
                future = Future()
                future.set_result(verdict_of(candidate, Status.WRONG))
            return future

    judge = Lucky(lambda text: 3.0 if "lucky" in text else 1.5)
    search = Search(TASK, judge, Limits(2, measured=True, in_flight=1), Budget(60.0))
    search.run([style("class ModelNew: lucky = 1"), style("class ModelNew: honest = 1")])
    assert [t.proposal.source for t in search.best()] == ["class ModelNew: honest = 1"]
    assert len(judge.again) == 2 * FINAL_ROUNDS


def test_finalists_are_timed_by_the_judge_of_the_finals_which_sees_the_first_one_and_the_first_right_one_at_once() -> None:
    quick, whole = Judge(lambda text: None if "wrong" in text else 1.5), Judge(lambda text: 1.2)
    search = Search(TASK, quick, Limits(3, measured=True, in_flight=1), Budget(60.0), finals_judge=whole)
    texts = ["class ModelNew: wrong = 1", "class ModelNew: a = 1", "class ModelNew: b = 1"]
    search.run([style(text) for text in texts])
    assert quick.asked == texts
    assert quick.again == []
    assert whole.asked == texts[:2]  # what it compiles is ready when the finals begin
    assert len(whole.again) == 2 * FINAL_ROUNDS
    assert [t.ratio for t in search.best()[:2]] == [pytest.approx(1.2)] * 2
    assert search.trials[1].ratio == 1.5


def test_a_failure_of_the_verifier_in_the_finals_says_nothing_of_a_finalist() -> None:
    class Flaky(Judge):
        def submit(self, task: object, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
            future = super().submit(task, candidate, fresh=fresh)
            if fresh and len(self.again) == 1:
                future = Future()
                future.set_result(verdict_of(candidate, Status.INFRA_ERROR))
            return future

    judge = Flaky(lambda text: 1.5)
    search = Search(TASK, judge, Limits(1, measured=True, in_flight=1), Budget(60.0))
    search.run([style("class ModelNew: a = 1")])
    assert len(judge.again) == FINAL_ROUNDS
    assert [v.status for v in search.finals.values()] == [Status.CORRECT]


def test_a_search_is_stopped_from_another_thread_as_by_ctrl_c() -> None:
    budget = Budget(60.0)

    def judged(text: str) -> float:
        if "num_warps=16" in text:
            budget.stop()
        return by_warps(text)

    search = Search(TASK, Judge(judged), Limits(40, measured=True, in_flight=1), budget)
    search.run([style(launching(4))])
    assert search.ended == "interrupted"
    assert warps_of(search.best()[0].proposal.source) == 16
    assert not search.finals


@pytest.mark.slow
def test_one_style_that_takes_long_holds_no_variant_up_once_others_are_known() -> None:
    judge = Judge(by_warps, stuck=lambda text: "slow" in text)
    search = Search(TASK, judge, Limits(9, measured=False, in_flight=2), Budget(1.0))
    styles_of = [launching(4, extra="  # slow"), *(launching(warps) for warps in (4, 8, 2))]
    search.run([style(text) for text in styles_of])
    assert {t.proposal.origin for t in search.trials} == {"style", "variant"}
    held = Search(TASK, Judge(by_warps, judge.stuck), Limits(9, measured=False, in_flight=2), Budget(1.0))
    held.run([style(text) for text in styles_of[:3]])
    assert {t.proposal.origin for t in held.trials} == {"style"}


class Samples:
    """A model that writes one candidate at a time, and then ends."""

    def __init__(self, texts: list[str]):
        self.texts, self.stopped = list(texts), False

    def poll(self) -> Proposal | None:
        return Proposal(self.texts.pop(0), "model", "sample") if self.texts else None

    @property
    def done(self) -> bool:
        return not self.texts

    @property
    def left(self) -> int:
        return len(self.texts)

    def stop(self) -> None:
        self.stopped = True


def test_finalists_are_timed_when_no_model_samples() -> None:
    quiet, samples, order = threading.Lock(), Samples([launching(2)]), list[str]()

    def sampled() -> None:
        order.append("sampled")
        quiet.release()

    def worth(text: str) -> float:
        if samples.stopped:
            order.append("timed" if quiet.locked() else "timed beside something")
        return by_warps(text)

    quiet.acquire()  # for another task, whose samples take some time
    threading.Timer(0.3, sampled).start()
    search = Search(TASK, Judge(worth), Limits(2, measured=True, in_flight=1), Budget(60.0), quiet=quiet)
    search.run([style(launching(4))], samples=samples)
    assert order == ["sampled", *["timed"] * (2 * FINAL_ROUNDS)]
    assert not quiet.locked()


def test_samples_are_tried_before_variants_fill_the_rest() -> None:
    judge = Judge(by_warps)
    search = Search(TASK, judge, Limits(4, measured=False, in_flight=1), Budget(60.0))
    search.run([style(launching(4))], samples=Samples([launching(2, extra="  # a"), launching(2, extra="  # b")]))
    assert [t.proposal.origin for t in search.trials] == ["style", "model", "model", "variant"]


def test_styles_leave_room_for_the_samples_that_were_asked_for() -> None:
    styles_of, samples = Samples([launching(4, extra=f"  # {n}") for n in range(9)]), Samples([launching(2), launching(8)])
    search = Search(TASK, Judge(by_warps), Limits(6, measured=False, in_flight=1), Budget(60.0))
    search.run(styles=styles_of, samples=samples)
    origins = [t.proposal.source for t in search.trials]
    assert len(origins) == 6
    assert {launching(2), launching(8)} <= set(origins)


@pytest.mark.parametrize(("free", "wanted"), [(0, 0), (1, 1), (12, 3), (64, 64 - 32), (-3, 0)])
def test_a_model_that_was_named_is_asked(free: int, wanted: int) -> None:
    assert samples_wanted(free, lifted=False) == max(0, free)
    asked = samples_wanted(free, lifted=True)
    assert min(wanted, 3) <= asked <= wanted


def timed(value: float, low: float, high: float, significant: bool = True, kind: str = "measured") -> Verdict:
    timing = Timing(kind, "H200", 100 / value, {"eager": 100.0}, {"eager": Speedup(value, low, high, significant)})
    return Verdict(Status.CORRECT, verdict_of("x").stage, "", "t", "", "fp32", timing=timing)


def test_combined_timings_are_means_and_no_surer_than_the_least_sure() -> None:
    both = combined([timed(1.0, 0.9, 1.2, significant=False), timed(4.0, 3.6, 4.8)])
    speed = both.speedup()
    assert speed is not None
    assert speed.value == pytest.approx(2.0)
    assert (speed.low, speed.high) == pytest.approx((1.8, 2.4))
    assert not speed.significant


def test_noise_and_what_the_model_cannot_tell_are_no_win() -> None:
    assert not beats(timed(1.3, 0.9, 1.8, significant=False), "eager")
    assert not beats(timed(0.8, 0.7, 0.9), "eager")
    assert beats(timed(1.02, 1.015, 1.03), "eager")
    assert not beats(timed(MODEL_MARGIN - 0.01, 1, 1, False, "modelled"), "eager")
    assert beats(timed(MODEL_MARGIN + 0.01, 1, 1, False, "modelled"), "eager")
    assert not beats(timed(2.0, 1.9, 2.1), "compile")


def test_ranking_leaves_out_what_is_wrong_and_prefers_the_shorter_of_equals() -> None:
    texts = {
        "class ModelNew: long_a": 2.0,
        "class ModelNew: b": 2.0,
        "class ModelNew: c": None,
        "class ModelNew: d": 3.0,
    }
    trials = []
    for n, (text, speed) in enumerate(texts.items()):
        verdict = verdict_of(text, speedup_x=speed) if speed else verdict_of(text, Status.WRONG)
        trials.append(Trial(str(n), style(text), verdict, float(n)))
    assert [t.id for t in ranked(trials)] == ["3", "1", "0"]


def test_the_clock_of_the_budget_may_have_begun_before() -> None:
    judge = Judge(by_warps)
    search = Search(TASK, judge, Limits(9, measured=False), Budget(5.0, started=time.monotonic() - 6))
    search.run([style(launching(4))])
    assert search.ended == "budget"
    assert judge.asked == []


@pytest.mark.slow
def test_worked_styles_come_in_the_order_of_their_modelled_time() -> None:
    task = load_tasks(str(ROOT / "tests" / "fixture_tasks" / "rmsnorm_residual.py")).tasks[0]
    h200 = device_for("NVIDIA H200")
    assert h200
    found, plain = list(styles(graphs_of(task), task, h200, "fp32")), write_solutions(task)
    assert {p.source for p in found} == {s.triton_code for s in plain}
    cost = {style.name: seconds for style, seconds in plausible(graphs_of(task), h200.rates("fp32"), within=100.0)}
    order = [cost[name] for p in found if (name := p.name.removesuffix("-whole").removesuffix("-loop")) in cost]
    assert len(order) == len(found)
    assert order == sorted(order)
    assert [p.source for p in found] != [s.triton_code for s in plain]


SUMMED = """
import torch
B, K, N = 64, 128, 512
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(K, N)
    def forward(self, x):
        return torch.relu(self.l(x).sum(1))
def get_inputs(): return [torch.randn(B, K)]
def get_init_inputs(): return []
"""


@pytest.mark.slow
def test_what_does_fewer_operations_comes_unless_it_is_left_out() -> None:
    task = Task("summed", SUMMED)
    h200 = device_for("NVIDIA H200")
    assert h200
    graphs = graphs_of(task)
    everything, without = (list(styles(graphs, task, h200, "fp32", algebra=on)) for on in (True, False))
    fewer = [p for p in everything if "algebra" in p.name.split("-")]
    assert fewer
    assert not [p for p in fewer if "tl.dot" in p.source or "F.linear" in p.source]
    assert without == [p for p in everything if p not in fewer]
    assert {p.source for p in without} == {s.triton_code for s in write_solutions(task, algebra=False)}


@pytest.mark.parametrize("name", ["linear_groupnorm_leaky", "conv_groupnorm_mean"])
@pytest.mark.slow
def test_groups_that_differ_between_input_sets_are_no_crash(name: str) -> None:
    write_solutions(load_tasks(str(ROOT / "tests" / "fixture_tasks" / f"{name}.py")).tasks[0])


@pytest.mark.slow
def test_worked_styles_are_written_for_the_precision_that_they_are_judged_under() -> None:
    task = load_tasks(str(ROOT / "tests" / "fixture_tasks" / "matmul_residual_clamp.py")).tasks[0]
    h200 = device_for("NVIDIA H200")
    assert h200
    graphs = graphs_of(task)
    for precision in ("fp32", "tf32"):
        found = {p.source for p in styles(graphs, task, h200, precision)}
        assert found == {s.triton_code for s in write_solutions(replace(task, precision=precision))}
        how = {"fp32": "ieee", "tf32": "tf32"}
        assert any(f'input_precision="{how[precision]}"' in text for text in found)
