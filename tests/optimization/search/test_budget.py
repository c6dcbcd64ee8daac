"""A budget holds whatever a phase does. Time is a clock of the test's own, which runs as it is looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from support.tiny import tiny_tasks, verdict_of
from torch import nn, randn

from kernrl.errors import UsageError
from kernrl.optimization.models.submodules import find_parts
from kernrl.optimization.search.budget import Budget, TooSmallBudgetError
from kernrl.optimization.search.proposals import Ahead
from kernrl.optimization.search.search import Limits, Search
from kernrl.optimization.search.trials import Proposal
from kernrl.verifier.base.verdict import Verdict

TASK = tiny_tasks(1)[0]


class Clock:
    """Goes on by `step` seconds whenever it is read."""

    def __init__(self, step: float = 0.0):
        self.now, self.step = 100.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Judge:
    """Needs some seconds of the clock for each verdict, or never gives one."""

    def __init__(self, clock: Clock, seconds: float, stuck: Callable[[bool], bool] = lambda fresh: False):
        self.clock, self.seconds, self.stuck, self.speedup_x = clock, seconds, stuck, lambda text: 2.0
        self.asked, self.finals_began = 0, 0.0
        self.on_fresh: Callable[[str], object] = lambda text: None

    def submit(self, task: object, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
        self.asked += 1
        if fresh and not self.finals_began:
            self.finals_began = self.clock.now
        if fresh:
            self.on_fresh(candidate)
        future: Future[Verdict] = Future()
        if not self.stuck(fresh):
            self.clock.now += self.seconds
            future.set_result(verdict_of(candidate, speedup_x=self.speedup_x(candidate)))
        return future


def texts(count: int) -> list[Proposal]:
    return [Proposal(f"class ModelNew: n = {n}", "style", str(n)) for n in range(count)]


@pytest.mark.parametrize("measured", [True, False])
def test_neither_candidates_nor_finalists_are_begun_after_the_end(measured: bool) -> None:
    clock = Clock()
    judge, budget = Judge(clock, 1.0), Budget(20.0, clock=clock)
    search = Search(TASK, judge, Limits(64, measured, in_flight=1), budget)
    search.run(texts(64))
    assert search.ended == "budget"
    assert clock.now <= 100 + 20.5  # five finalists three times would take fifteen seconds, where four are left
    assert bool(search.finals) == measured
    assert judge.asked >= 18


@pytest.mark.parametrize(("verdict_s", "kept_s"), [(0.1, 4.8), (3.0, 9.0), (9.0, 9.6)])
def test_where_verdicts_take_long_more_time_is_kept_for_the_finals(verdict_s: float, kept_s: float) -> None:
    clock = Clock()
    judge = Judge(clock, verdict_s)
    Search(TASK, judge, Limits(1000, True, in_flight=1), Budget(24.0, clock=clock)).run(texts(1000))
    left_s = 100 + 24.0 - judge.finals_began - 0.03 * 24
    assert kept_s - verdict_s <= left_s <= kept_s + 0.01  # the last that was begun ends after the time is up


@pytest.mark.parametrize(
    ("later_x", "asked", "kept"),
    [(2.0, 1, True), (2.02, 1, True), (2.5, 2, False)],
    ids=["no better one", "hardly a better one", "a better one, which is stuck"],
)
def test_what_was_timed_before_stands_where_the_finals_are_not_reached(later_x: float, asked: int, kept: bool) -> None:
    clock = Clock()

    def stuck(fresh: bool) -> bool:
        clock.now += 10.0 if fresh and clock.now > 118 else 0.0  # the finals wait until the time is up
        return fresh and clock.now > 114

    quick, whole = Judge(clock, 1.0), Judge(clock, 0.0, stuck)
    quick.speedup_x = lambda text: later_x if clock.now > 115 else 2.0
    search = Search(TASK, quick, Limits(1000, True, in_flight=1), Budget(24.0, clock=clock), finals_judge=whole)
    early = []
    whole.on_fresh = lambda text: early.append(text) if clock.now < 118 else None
    search.run(texts(1000))
    assert len(early) == asked
    assert list(search.finals) == (["style-0"] if kept else [])
    assert search.best()[0].ratio == pytest.approx(2.0 if kept else 2.5)


@pytest.mark.slow
def test_a_finalist_that_never_returns_is_not_waited_for() -> None:
    clock = Clock(step=0.3)
    search = Search(TASK, Judge(clock, 0.1, stuck=lambda fresh: fresh), Limits(5, True, in_flight=1), Budget(20.0, clock=clock))
    search.run(texts(5))
    assert len(search.trials) == 5
    assert search.finals == {}
    assert clock.now <= 100 + 22


@pytest.mark.slow
def test_styles_that_take_for_ever_to_write_hold_nothing_up() -> None:
    clock, gate, begun = Clock(step=0.5), threading.Event(), []

    def written() -> Iterator[Proposal]:
        for proposal in texts(3):
            begun.append(proposal)
            yield proposal
            gate.wait()

    source = Ahead(written())
    search = Search(TASK, Judge(clock, 0.1), Limits(64, False, in_flight=1), Budget(20.0, clock=clock))
    search.run(styles=source)
    assert search.ended == "budget"
    assert len(search.trials) == 1  # and no variant, as the other styles might be better
    source.stop()
    gate.set()
    while not source.done:
        source.poll()
    assert len(begun) <= 2


@pytest.mark.slow
def test_work_that_cannot_be_cut_is_given_up_with_a_sentence() -> None:
    gate = threading.Event()
    with pytest.raises(TooSmallBudgetError, match="the budget is too small: reading it takes longer than 20 s"):
        Budget(20.0, clock=Clock(step=3.0)).within("reading it", gate.wait)
    gate.set()


def test_what_work_gives_or_raises_comes_back() -> None:
    def fail() -> None:
        raise UsageError("no such module")

    budget = Budget(60.0)
    assert budget.within("counting", lambda: 3) == 3
    with pytest.raises(UsageError, match="no such module"):
        budget.within("failing", fail)


def test_parts_of_a_budget_begin_with_it_and_the_rest_begins_now() -> None:
    clock = Clock()
    budget = Budget(100.0, clock=clock)
    clock.now += 40
    assert budget.part(0.5).left_s == pytest.approx(10)
    assert budget.rest(3).left_s == pytest.approx(20)
    clock.now += 70
    assert budget.left_s == pytest.approx(-10)


def test_budgets_taken_from_one_another_are_stopped_together() -> None:
    budget = Budget(100.0, clock=Clock())
    taken = [budget.part(0.5), budget.rest(2), budget.now(7.0), budget.now(7.0).part(0.1)]
    assert all(one.left_s > 0 and not one.stopped for one in taken)
    taken[2].stop()
    assert all(one.left_s <= 0 and one.stopped for one in (budget, *taken))


def test_parts_of_a_model_that_are_not_reached_in_time_are_named() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)), nn.Dropout(0.5)).eval()
    parts = find_parts(model, (randn(4, 8),), Budget(1.0, clock=Clock(step=2.0)))
    assert parts.found == ()
    assert parts.left == (("", "the time for reading ended before it"),)


def test_a_second_round_has_a_budget_and_a_count_of_its_own() -> None:
    clock = Clock()
    search = Search(TASK, Judge(clock, 1.0), Limits(5, False, in_flight=1), Budget(20.0, clock=clock))
    search.run(texts(9))
    assert search.ended == "candidates"
    clock.now += 50  # the training in between
    search.go_on(Budget(4.0, clock=clock), 64, lambda progress: None)
    search.run(texts(64))
    assert search.ended == "budget"
    assert 8 <= len(search.trials) <= 10
    assert search.trials[-1].at_s == pytest.approx(59)  # one time line, the training in it
    assert len({t.proposal.key for t in search.trials}) == len(search.trials)
