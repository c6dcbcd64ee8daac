"""Which lane a candidate goes to. Lanes are names here, and nothing waits for a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from kernrl.verifier.pool.affinity import LEFT_WAITING, MOST_HOMES, MOST_PASSED, Homes


class Deal:
    """Candidates that came, where each went, and how to let one go."""

    def __init__(self, lanes: str) -> None:
        self.homes = Homes(list(lanes))  # pyright: ignore[reportArgumentType]
        self.dealt: list[tuple[str, str]] = []
        self._changed = threading.Condition()
        self._leave: dict[str, Callable[[], None]] = {}

    def come(self, *tasks: str) -> None:
        """One candidate after another, named by its task's first letter."""
        for task in tasks:
            waiting = self.homes.load()
            threading.Thread(target=self._take, args=(task,), daemon=True).start()
            while self.homes.load() == waiting:
                pass

    def _take(self, task: str) -> None:
        stack = ExitStack()
        lane: Any = stack.enter_context(self.homes.lane(task[0]))
        with self._changed:
            self.dealt.append((task, lane))
            self._leave[task] = stack.close
            self._changed.notify_all()

    def wait(self, count: int) -> list[tuple[str, str]]:
        """What has been dealt, when it is so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.dealt) >= count, 10)
            return sorted(self.dealt)

    def leave(self, task: str) -> None:
        self._leave.pop(task)()


def test_a_task_stays_at_home_while_others_wait() -> None:
    deal = Deal("xy")
    deal.come("a1", "b1", "c1", "b2", "a2")
    assert deal.wait(2) == [("a1", "x"), ("b1", "y")]
    deal.leave("b1")
    assert deal.wait(3)[-1] == ("b2", "y"), "before c1, which came first"
    deal.leave("a1")
    deal.wait(4)
    assert ("a2", "x") in deal.dealt
    deal.leave("a2")
    deal.wait(5)
    assert ("c1", "x") in deal.dealt


def test_a_task_is_finished_before_another_at_home_there_goes_on() -> None:
    deal = Deal("x")
    for task, before in (("a1", None), ("b1", "a1")):
        deal.come(task)
        if before:
            deal.leave(before)
    deal.wait(2)
    deal.come("a2", "b2")
    deal.leave("b1")
    assert dict(deal.wait(3)).keys() == {"a1", "b1", "b2"}


def test_an_idle_lane_leaves_a_task_to_its_home_until_enough_wait() -> None:
    deal = Deal("xy")
    deal.come("a1", *(f"a{2 + i}" for i in range(LEFT_WAITING - 1)))
    assert deal.wait(1) == [("a1", "x")]
    assert deal.homes.load() == LEFT_WAITING
    deal.come("a9")
    assert deal.wait(2) == [("a1", "x"), ("a2", "y")]


def test_who_has_a_home_that_is_idle_goes_there() -> None:
    deal = Deal("xyz")
    deal.come("a1", "b1")
    deal.wait(2)
    deal.leave("b1")
    deal.leave("a1")
    deal.come("b2")
    assert deal.wait(3)[-1] == ("b2", "y"), "though x is idle too"


def test_nobody_is_passed_over_for_ever() -> None:
    deal = Deal("x")
    deal.come("a0", "b0")
    for i in range(MOST_PASSED):
        deal.come(f"a{i + 1}")
        deal.leave(f"a{i}")
        deal.wait(i + 2)
    assert "b0" not in dict(deal.dealt)
    deal.come("a99")
    deal.leave(f"a{MOST_PASSED}")
    deal.wait(MOST_PASSED + 2)
    assert "b0" in dict(deal.dealt)


def test_only_so_many_homes_are_remembered() -> None:
    homes = Homes(["x"])  # pyright: ignore[reportArgumentType]
    for i in range(MOST_HOMES + 5):
        with homes.lane(f"task {i}"):
            pass
    assert len(homes._homes) == MOST_HOMES
    assert homes.load() == 0
