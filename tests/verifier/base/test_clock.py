"""Where a worker's time went, by name."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from kernrl.verifier.base import clock


def test_seconds_add_up_by_name_and_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 1.0, 4.0, 10.0, 10.5, 20.0])
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    spent = clock.Clock()
    for name in ("draw", "truth", "draw"):
        with spent.at(name):
            pass
    with contextlib.suppress(ValueError), spent.at("draw"):
        raise ValueError
    assert spent.take() == {"draw": 1.5, "truth": 3.0}
    assert spent.take() == {}


def test_what_nobody_asks_for_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MOST_MARKS", 3)
    spent = clock.Clock()
    for i in range(5):
        with spent.at(f"part {i}"):
            pass
    assert list(spent.take()) == ["part 2", "part 3", "part 4"]
    with spent.at("before"):
        pass
    spent.restart()
    assert spent.take() == {}
