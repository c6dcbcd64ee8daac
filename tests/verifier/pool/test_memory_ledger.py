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
from kernrl.verifier.pool.memory_ledger import MemoryLedger, planned
from kernrl.verifier.replay.device_memory import block_bytes


class Checked:
    """A ledger of 100 bytes over lanes that note what is given back."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.ledger: MemoryLedger[str] = MemoryLedger(100, self.released.append)


def waits(ledger: MemoryLedger[str], lane: str, nbytes: int) -> tuple[threading.Thread, threading.Event]:
    entered = threading.Event()

    def run() -> None:
        with ledger.admitted(lane, nbytes):
            entered.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, entered


def test_idle_lanes_keep_what_they_hold_until_it_is_needed() -> None:
    checked = Checked()
    for lane, nbytes in (("a", 40), ("b", 40), ("c", 20)):
        with checked.ledger.admitted(lane, nbytes):
            pass
    assert checked.released == []
    with checked.ledger.admitted("d", 30):
        assert checked.released == ["a"], "the one that ran least recently, and no more than is needed"
    with checked.ledger.admitted("b", 45):
        assert checked.released == ["a"], "a lane's own is given back by itself"
    assert checked.ledger.held_bytes() == 95


def test_the_whole_gpu_waits_for_the_others_and_nobody_overtakes_it() -> None:
    ledger = Checked().ledger
    with ledger.admitted("a", 10):
        large, has_begun = waits(ledger, "b", 95)
        while not ledger._queue:
            time.sleep(0.001)
        small, overtook = waits(ledger, "c", 10)
        assert not has_begun.wait(0.05)
        assert not overtook.is_set()
    for thread, entered in ((large, has_begun), (small, overtook)):
        thread.join(10)
        assert entered.is_set()


def test_what_exceeds_the_gpu_runs_alone_rather_than_never() -> None:
    checked = Checked()
    with checked.ledger.admitted("a", 30):
        pass
    with checked.ledger.admitted("b", 500):
        assert checked.released == ["a"]


def test_an_exception_gives_the_turn_on() -> None:
    ledger = Checked().ledger
    with pytest.raises(ZeroDivisionError), ledger.admitted("a", 90):
        raise ZeroDivisionError
    with ledger.admitted("b", 90):
        pass
    ledger.released("b")
    assert ledger.held_bytes() == 0


def test_release_that_fails_leaves_the_queue_in_order() -> None:
    def fail(lane: str) -> None:
        raise OSError("gone")

    ledger: MemoryLedger[str] = MemoryLedger(100, fail)
    with ledger.admitted("a", 90):
        pass
    with pytest.raises(OSError, match="gone"), ledger.admitted("b", 90):
        pass
    with ledger.admitted("a", 95):
        pass


@pytest.mark.slow
def test_many_at_once_never_exceed_the_gpu() -> None:
    held: dict[str, int] = {}
    mutex, most = threading.Lock(), 0
    lanes = {f"lane {i}": threading.Lock() for i in range(4)}

    def give_back(lane: str) -> None:
        with mutex:
            held[lane] = 0

    ledger: MemoryLedger[str] = MemoryLedger(100, give_back)

    def candidate(i: int) -> None:
        nonlocal most
        drawn = random.Random(i)
        lane, nbytes = f"lane {drawn.randrange(4)}", drawn.choice((5, 20, 60, 100))
        with lanes[lane], ledger.admitted(lane, nbytes):
            with mutex:
                held[lane] = nbytes
                most = max(most, sum(held.values()))
            time.sleep(0.0005)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(candidate, range(400)))
    assert most == 100


GIB = 1 << 30
SET = SetMemory(
    inputs=2 * GIB, block=GIB, making_peak=4 * GIB, drawing_peak=5 * GIB, eager_peak=6 * GIB, output=GIB, reference=2 * GIB,
    answering_peak=9 * GIB, answer=2 * GIB, comparing_peak=3 * GIB,
)  # fmt: skip


def job(temporary: int, draws: int = 2, spot_checks: int = 1) -> Any:
    return SimpleNamespace(
        plans={"full": None}, draws=[SimpleNamespace(input_set="full")] * draws, spot_checks=spot_checks,
        held_bytes={"full": temporary + 2 * GIB}, temporary_bytes={"full": temporary}, output_bytes={"full": GIB},
    )  # fmt: skip


def test_a_plan_adds_up() -> None:
    found = planned(job(3 * GIB), {"full": SET}, baselines=True)
    assert found.replay == block_bytes(3 * GIB) + 6 * GIB + 2 * GIB, "buffers, the reference's run, outputs of two judged calls"
    assert found.judge == 3 * 2 * GIB + 9 * GIB, "three answers are kept while a fourth is made"
    assert found.task == 6 * GIB + GIB + found.judge + 2 * GIB
    untimed = planned(job(3 * GIB), {"full": SET}, baselines=False)
    assert untimed.replay == found.replay - GIB, "without the reference's run, drawing takes most"
    assert untimed.judge == 1 * 2 * GIB + 9 * GIB
    convolves = planned(job(3 * GIB), {"full": replace(SET, workspace=8 * GIB)}, baselines=True)
    assert convolves.replay - found.replay == 8 * GIB + (2 + 1.25 - 6) * GIB, (
        "a candidate may convolve beside a copy of its inputs"
    )


def test_a_guess_refuses_nothing_but_a_candidates_own_buffers() -> None:
    found = planned(job(50 * GIB), {"full": None}, baselines=True)
    assert (found.task, found.sure) == (0, 52 * GIB)
    assert found.total > 600 * GIB


def test_a_candidates_buffers_are_its_own() -> None:
    small, large = (planned(job(n * GIB), {"full": SET}, baselines=True) for n in (1, 50))
    assert large.total - small.total == 49 * GIB
    assert large.task == small.task
