"""Judging what a candidate does while it is timed: some timed calls compute on draws whose answers the judge has."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from kernrl.verifier.judge.inputs import POISONS, TaskInputs
from kernrl.verifier.replay.job import Replayed
from kernrl.verifier.replay.runner import Runner

if TYPE_CHECKING:
    from kernrl.verifier.replay.server import ReplayServer

SPOT_CHECKS = 5
"""Timed calls that are judged, at most."""


@dataclass(slots=True)
class Opened:
    """A candidate's plan at one input set, ready to run."""

    runner: Runner
    run: Callable[[], None]
    outputs: Callable[[], list[Tensor]]
    """Forward's outputs after a run."""
    alive: Any = None
    """Memory that a captured graph writes."""


class SpotChecks:
    """Which calls of a timed candidate are judged, and what they showed.

    The first is one of the first two, and each gap after it is drawn from twice as many calls as there have been, from two at
    the start: so whichever share of its calls a kernel cheats in, early or late, a judged one is likely to be among them,
    however few calls there are.
    """

    def __init__(self, server: ReplayServer, opened: Opened, inputs: TaskInputs, draws: list[int]):
        self._server, self._opened, self._inputs, self._draws = server, opened, inputs, draws
        self._left, self._calls, self._next = SPOT_CHECKS, 0, secrets.randbelow(2)
        self._now: int | None = None
        self.result, self.flags = Replayed(), []
        server.outbox.clear()

    def before(self) -> None:
        """Untimed: fresh numbers, poisoned buffers; now and then, a draw whose answer the judge has."""
        self._now = None
        call, self._calls = self._calls, self._calls + 1
        if self._left and call == self._next:
            self._next = call + 1 + secrets.randbelow(2 * self._calls if self._calls > 2 else 2)
            self._left, self._now = self._left - 1, secrets.choice(self._draws)
            self._inputs.draw(self._server.job.draws[self._now])
            self._snapshot = self._inputs.snapshot()
        else:
            self._inputs.refresh()
        self._opened.runner.prepare(POISONS[1])

    def after(self) -> None:
        """Untimed: keep what a judged call gave."""
        if self._now is None:
            return
        self.result.asked.append(self._now)
        self.result.shown.append([self._server.outbox.put(y) for y in self._opened.outputs()])
        self.flags += [self._inputs.written(self._snapshot), self._server.arena.overrun()]

    def last(self) -> None:
        """One more judged call after everything else."""
        self._now = self._draws[0]
        self._inputs.draw(self._server.job.draws[self._now])
        self._snapshot = self._inputs.snapshot()
        self._opened.runner.prepare(POISONS[1])
        self._opened.run()
        self.after()
