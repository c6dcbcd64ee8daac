"""A wish to interrupt, however often it is said at once; and no wish but an order, said again later."""

from __future__ import annotations

import os
import signal

import pytest
from accelerate import Accelerator

from kernrl.policy.ranks import Ranks
from kernrl.runs import interrupt
from kernrl.runs.interrupt import SAME_SIGNAL_S, StopAfterStep


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def ranks() -> Ranks:
    return Ranks(Accelerator(cpu=True))


@pytest.mark.parametrize("number", StopAfterStep.SIGNALS)
def test_a_process_and_its_group_told_at_once_finish_their_step(clock: list[float], ranks: Ranks, number: int) -> None:
    with StopAfterStep(ranks) as wish:
        assert not wish.wanted()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        clock[0] += SAME_SIGNAL_S
        os.kill(os.getpid(), number)
        assert wish.wanted()


def test_once_more_ends_at_once(clock: list[float], ranks: Ranks) -> None:
    with StopAfterStep(ranks):
        os.kill(os.getpid(), signal.SIGTERM)
        clock[0] += SAME_SIGNAL_S + 0.1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_nohup_is_respected(ranks: Ranks) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopAfterStep(ranks) as wish:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not wish.wanted()
    finally:
        signal.signal(signal.SIGHUP, before)
