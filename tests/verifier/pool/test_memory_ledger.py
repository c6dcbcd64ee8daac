"""Who may take a GPU's memory when, with made-up sizes; and what a candidate is planned to take."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kernrl.verifier.judge.memory_estimate import SetMemory
from kernrl.verifier.judge.truth.slices import Slices
from kernrl.verifier.pool.memory_ledger import GAPS, LIBRARY_BYTES, MAX_OVERTAKEN, MemoryLedger, crew, planned, usable_bytes
from kernrl.verifier.replay.device_memory import block_bytes


class Checked:
    """A ledger of 100 bytes over lanes that note what is given back, after which their processes still hold `left`."""

    def __init__(self, left: int = 0) -> None:
        self._left = left
        self.released: list[str] = []
        self.busy: set[str] = set()
        self.ledger: MemoryLedger[str] = MemoryLedger(100, self._release, self.busy.__contains__)

    def _release(self, lane: str) -> int:
        self.released.append(lane)
        return self._left

    def ran(self, lane: str, nbytes: int) -> None:
        with self.ledger.admitted(lane, nbytes):
            pass

    def waits(self, lane: str, nbytes: int, *, alone: bool = False) -> Entering:
        """Ask for memory in a thread; returns once it has entered or waits."""
        one = Entering(self.ledger, lane, nbytes, alone)
        while not one.entered.is_set() and lane not in self.ledger.waiting():
            time.sleep(0.001)
        return one


class Entering:
    """A candidate that waits for memory in a thread, and leaves when told."""

    def __init__(self, ledger: MemoryLedger[str], lane: str, nbytes: int, alone: bool) -> None:
        self.entered, self._leave = threading.Event(), threading.Event()

        def run() -> None:
            with ledger.admitted(lane, nbytes, alone=alone):
                self.entered.set()
                self._leave.wait(10)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def has_entered(self) -> bool:
        return self.entered.wait(10)

    def is_waiting(self) -> bool:
        return not self.entered.wait(0.05)

    def leave(self) -> None:
        assert self.has_entered()
        self._leave.set()
        self._thread.join(10)


def test_idle_lanes_keep_what_they_hold_until_it_is_needed() -> None:
    checked = Checked()
    for lane, nbytes in (("a", 40), ("b", 40), ("c", 20)):
        checked.ran(lane, nbytes)
    assert checked.released == []
    with checked.ledger.admitted("d", 30):
        assert checked.released == ["a"], "the one that ran least recently, and no more than is needed"
    checked.ran("b", 45)
    assert checked.released == ["a"], "there is room for 5 more"
    assert checked.ledger.held_bytes() == 95
    assert checked.ledger.held_bytes("b") == 45


def test_what_a_process_holds_by_itself_is_counted() -> None:
    checked = Checked(left=10)
    checked.ran("a", 60)
    checked.ran("b", 60)
    assert checked.released == ["a"]
    assert checked.ledger.held_bytes() == 70
    with checked.ledger.admitted("c", 95):
        assert checked.released == ["a", "b"], "no more can be had, and nobody is at work"


def test_a_lane_holds_what_it_was_admitted_for_until_it_gives_it_back() -> None:
    """A smaller candidate of the same lane leaves there what the larger one has made."""
    checked = Checked()
    checked.ran("a", 70)
    checked.ran("a", 10)
    assert checked.ledger.held_bytes() == 70
    checked.ledger.released("a", 5)
    assert checked.ledger.held_bytes() == 5


def test_the_whole_gpu_waits_for_the_others_and_nobody_overtakes_it() -> None:
    checked = Checked()
    with checked.ledger.admitted("a", 10):
        large = checked.waits("b", 95)
        small = checked.waits("c", 10)
        assert large.is_waiting()
        assert small.is_waiting()
    large.leave()
    small.leave()


def test_a_group_goes_on_in_its_lane_while_others_wait() -> None:
    """What `a` holds serves its task's next candidates: it is not asked for it between two of them, unless for too long."""
    checked = Checked()
    checked.busy.add("a")
    checked.ran("a", 60)
    large = checked.waits("b", 60)
    for _ in range(MAX_OVERTAKEN):
        checked.ran("a", 60)
    assert large.is_waiting()
    assert checked.released == []
    next_one = checked.waits("a", 60)
    assert large.has_entered()
    assert checked.released == ["a"]
    large.leave()
    next_one.leave()


def test_a_group_that_needs_more_takes_it_where_there_is_room() -> None:
    checked = Checked()
    checked.busy.add("a")
    checked.ran("a", 40)
    large = checked.waits("b", 80)
    checked.ran("a", 70)
    assert large.is_waiting()
    checked.ran("a", 95)
    assert checked.released == []
    too_much = checked.waits("a", 500)
    assert large.has_entered()
    assert checked.released == ["a"], "it waits in its turn for what there is no room for"
    large.leave()
    too_much.leave()


def test_a_lane_whose_candidates_wait_for_more_is_asked_last() -> None:
    checked = Checked()
    checked.busy.add("a")
    for lane in ("a", "b", "c"):
        checked.ran(lane, 30)
    with checked.ledger.admitted("d", 10):
        wants_more = checked.waits("a", 200)
        assert wants_more.is_waiting()
        large = checked.waits("e", 100, alone=True)
        assert large.is_waiting()
    assert large.has_entered()
    assert checked.released == ["b", "c", "d", "a"]
    large.leave()
    wants_more.leave()


def test_a_lane_that_has_no_more_candidates_gives_back() -> None:
    checked = Checked()
    checked.busy.add("a")
    checked.ran("a", 60)
    large = checked.waits("b", 60)
    assert large.is_waiting()
    checked.busy.remove("a")
    checked.ledger.wake()
    large.leave()
    assert checked.released == ["a"]


def test_two_lanes_that_both_want_more_do_not_wait_for_one_another() -> None:
    checked = Checked()
    checked.busy |= {"a", "b"}
    checked.ran("a", 50)
    checked.ran("b", 50)
    first = checked.waits("a", 80)
    second = checked.waits("b", 80)
    first.leave()
    checked.busy.remove("a")
    checked.ledger.wake()
    second.leave()
    assert checked.released == ["b", "a"]


def test_who_ran_out_is_next_and_alone_and_nobody_else_is_disturbed() -> None:
    """Six lanes: one lacked memory, two are at work, two wait, and one is idle."""
    checked = Checked()
    checked.ran("idle", 20)
    at_work = [checked.waits(lane, 25) for lane in ("a", "b")]
    assert all(one.has_entered() for one in at_work)
    checked.ledger.released("lacks")
    waiting = [checked.waits(lane, 60) for lane in ("c", "d")]
    lacks = checked.waits("lacks", 100, alone=True)
    assert lacks.is_waiting()
    assert checked.released == [], "while others are at work, that would not help"
    goes_on = checked.waits("idle", 20)
    assert goes_on.is_waiting(), "nobody enters before the one who runs alone"
    at_work[0].leave()
    assert lacks.is_waiting()
    at_work[1].leave()
    assert lacks.has_entered()
    assert sorted(checked.released) == ["a", "b", "idle"]
    assert all(one.is_waiting() for one in (*waiting, goes_on))
    checked.ledger.released("lacks")
    lacks.leave()
    for one in (waiting[0], goes_on, waiting[1]):
        one.leave()


def test_what_exceeds_the_gpu_runs_alone_rather_than_never() -> None:
    checked = Checked()
    checked.ran("a", 30)
    with checked.ledger.admitted("b", 500) as granted:
        assert granted.alone
        assert checked.released == ["a"]
        assert checked.waits("a", 1).is_waiting()


def test_what_is_free_is_taken_as_wished_unless_somebody_waits() -> None:
    ledger = Checked().ledger
    with ledger.admitted("a", 10, wished=50) as granted:
        assert granted.nbytes == 50
        with ledger.admitted("b", 20, wished=60) as rest:
            assert rest.nbytes == 50
    checked = Checked()
    checked.ran("a", 30)
    first = checked.waits("b", 60)
    assert first.has_entered()
    waits = checked.waits("c", 70)
    assert waits.is_waiting()
    with checked.ledger.admitted("a", 10, wished=40) as granted:
        assert granted.nbytes == 30, "what it has kept, and no more"
    first.leave()
    waits.leave()


def test_an_exception_gives_the_turn_on() -> None:
    ledger = Checked().ledger
    with pytest.raises(ZeroDivisionError), ledger.admitted("a", 90):
        raise ZeroDivisionError
    with ledger.admitted("b", 90):
        pass
    ledger.released("b")
    assert ledger.held_bytes() == 0


def test_a_lane_that_died_at_work_holds_nothing() -> None:
    checked = Checked()

    def dies() -> None:
        checked.ledger.released("a")
        raise OSError("died")

    with pytest.raises(OSError, match="died"), checked.ledger.admitted("a", 90):
        dies()
    checked.ran("b", 90)
    assert checked.released == []


def test_release_that_fails_leaves_the_queue_in_order() -> None:
    def fail(lane: str) -> int:
        raise OSError("gone")

    ledger: MemoryLedger[str] = MemoryLedger(100, fail)
    with ledger.admitted("a", 90):
        pass
    with pytest.raises(OSError, match="gone"), ledger.admitted("b", 90):
        pass
    with ledger.admitted("a", 95):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_many_at_once_never_exceed_the_gpu_and_all_get_their_turn(seed: int) -> None:
    """Six lanes with a queue each, as a scheduler has them; some candidates run out and come back alone."""
    drawn = random.Random(seed)
    held: dict[str, int] = {}
    mutex, most, ran = threading.Lock(), 0, 0
    lanes = {f"lane {i}": threading.Lock() for i in range(6)}

    def give_back(lane: str) -> int:
        with mutex:
            held[lane] = 1
        return 1

    ledger: MemoryLedger[str] = MemoryLedger(100, give_back, lambda lane: lanes[lane].locked())

    def works(lane: str, nbytes: int, *, alone: bool) -> None:
        nonlocal most, ran
        with ledger.admitted(lane, nbytes, alone=alone) as granted:
            assert granted.alone >= alone
            with mutex:
                # the processes keep what an earlier candidate made
                held[lane] = max(held.get(lane, 0), nbytes)
                most = max(most, sum(held.values()))
                ran += 1
            time.sleep(0.0005)

    def candidate(lane: str, nbytes: int, lacks: bool) -> None:
        with lanes[lane]:
            works(lane, nbytes, alone=False)
            if lacks:
                ledger.released(lane, give_back(lane))
                works(lane, 90, alone=True)
                ledger.released(lane, give_back(lane))
        ledger.wake()

    asked = [(f"lane {drawn.randrange(6)}", drawn.choice((5, 20, 60, 94)), drawn.random() < 0.05) for _ in range(400)]
    with ThreadPoolExecutor(24) as pool:
        list(pool.map(lambda one: candidate(*one), asked))
    assert ran == len(asked) + sum(lacks for *_, lacks in asked)
    assert most <= 100


GIB = 1 << 30
SET = SetMemory(
    inputs=2 * GIB, block=GIB, making_peak=4 * GIB, drawing_peak=5 * GIB, eager_peak=6 * GIB, output=GIB, reference=2 * GIB,
    answering_peak=9 * GIB, answer=2 * GIB, comparing_peak=3 * GIB,
)  # fmt: skip


def job(temporary: int, draws: int = 2, spot_checks: int = 1) -> Any:
    return SimpleNamespace(
        plans={"full": None}, draws=[SimpleNamespace(input_set="full")] * draws, spot_checks=spot_checks,
        held_bytes={"full": temporary + 2 * GIB}, temporary_bytes={"full": temporary},
        output_bytes={"full": GIB}, library_bytes={"full": temporary},
    )  # fmt: skip


def test_a_plan_names_the_sets_whose_reference_runs_in_slices() -> None:
    slices = Slices(64, 8, (0,), (0,))
    assert planned(job(3 * GIB), {"full": replace(SET, slices=slices)}, 1).slices == {"full": slices}
    assert planned(job(3 * GIB), {"full": SET}, 1).slices == {}
    assert planned(job(3 * GIB), {"full": None}, 1).slices == {}


def test_a_plan_adds_up() -> None:
    found = planned(job(3 * GIB), {"full": SET}, baselines=1)
    assert found.replay == block_bytes(3 * GIB) + 6 * GIB + 2 * GIB, "buffers, the reference's run, outputs of two judged calls"
    assert found.judge == 3 * 2 * GIB + 9 * GIB, "three answers are kept while a fourth is made"
    assert found.task == 6 * GIB + GIB + found.judge + 2 * GIB
    untimed = planned(job(3 * GIB), {"full": SET}, baselines=0)
    assert untimed.replay == found.replay - GIB, "without the reference's run, drawing takes most"
    assert untimed.judge == 1 * 2 * GIB + 9 * GIB
    convolves = planned(job(3 * GIB), {"full": replace(SET, workspace=8 * GIB)}, baselines=1)
    assert convolves.replay - found.replay == 8 * GIB + (2 + 1.125 - 6) * GIB, (
        "a candidate may convolve beside a copy of its inputs"
    )


def test_a_guess_refuses_nothing_but_a_candidates_own_buffers() -> None:
    found = planned(job(50 * GIB), {"full": None}, baselines=1)
    assert (found.task, found.sure) == (0, 52 * GIB)
    assert found.total > 600 * GIB


def test_a_candidates_buffers_are_its_own() -> None:
    small, large = (planned(job(n * GIB), {"full": SET}, baselines=1) for n in (1, 50))
    assert large.total - small.total == 49 * GIB
    assert large.most_judge == small.most_judge
    assert large.task == small.task


def test_a_process_may_take_what_its_graphs_keep_besides_its_peak() -> None:
    """The eager baseline's graph keeps 4 GiB, while a draw takes 3 GiB or the next baseline runs once in 4 GiB."""
    one, two = (planned(job(1 * GIB), {"full": SET}, n) for n in (1, 2))
    fixed = 2 * GIB + LIBRARY_BYTES
    assert one.most_replay == fixed + int((1 + GAPS) * (block_bytes(1 * GIB) + (4 + 5) * GIB))
    assert two.most_replay == fixed + int((1 + GAPS) * (block_bytes(1 * GIB) + (4 + 6) * GIB))
    assert one.most_judge == two.most_judge == LIBRARY_BYTES + int((1 + GAPS) * one.judge)
    assert one.total == two.total, "what is in use at once is the same"
    library = planned(job(9 * GIB), {"full": SET}, 2)
    assert library.most_replay == fixed + int((1 + GAPS) * (block_bytes(9 * GIB) + (4 + 2 + 9) * GIB)), "its calls are timed"


def test_what_a_process_was_seen_to_hold_is_planned_for_the_next_one() -> None:
    found = planned(job(1 * GIB), {"full": SET}, 1)
    assert found.at_least(0, 0) == found
    assert found.at_least(50 * GIB, 0).most == 50 * GIB + (found.most_judge or 0)
    guessed = planned(job(1 * GIB), {"full": None}, 1)
    assert guessed.at_least(50 * GIB, 60 * GIB).most == 110 * GIB


@pytest.mark.parametrize("free_gib", [4, 8, 12, 16, 24, 40])
def test_processes_leave_most_of_a_small_gpu_to_candidates(free_gib: int) -> None:
    lanes, compilers = crew(free_gib * GIB, 6, 5)
    assert (lanes, compilers) >= (1, 1)
    assert usable_bytes(free_gib * GIB, lanes, compilers) > 0.4 * free_gib * GIB
    assert crew(free_gib * GIB, 1, 0) == (1, 0)


def test_a_large_gpu_has_what_is_asked() -> None:
    assert crew(78 * GIB, 6, 5) == (6, 5)
