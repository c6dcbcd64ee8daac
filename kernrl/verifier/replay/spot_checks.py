"""Judges a candidate while it is timed: some timed calls compute on draws that the judge can answer, drawn as all are."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kernrl.verifier.judge.draws import SPOT_CHECKS, Draw
from kernrl.verifier.judge.inputs import POISONS, TaskInputs
from kernrl.verifier.replay.device_memory import DeviceMemory
from kernrl.verifier.replay.job import Replayed
from kernrl.verifier.replay.runner import Opened
from kernrl.verifier.replay.shared_outputs import SharedOutputs


class SpotChecks:
    """Chooses the timed calls that are judged, and collects their results.

    The first judged call is one of the first two. Each gap after it is drawn from twice the number of calls so far, and from
    two at the start. So a kernel that cheats in a share of its calls, early or late, is likely to cheat in a judged one,
    however few calls there are.
    """

    def __init__(
        self, opened: Opened, inputs: TaskInputs, draws: Sequence[Draw], positions: Sequence[int], outputs: SharedOutputs,
        memory: DeviceMemory, checks: int = SPOT_CHECKS,
    ):  # fmt: skip
        """`positions`: which of `draws` serve judged calls, `checks` + 1 or more, each used once: no two are alike."""
        self._opened, self._inputs, self._draws, self._positions = opened, inputs, draws, list(positions)
        self._outputs, self._memory = outputs, memory
        self._left, self._calls, self._next = checks, 0, secrets.randbelow(2)
        self._now: int | None = None
        self._snapshot: Any = None
        self.result = Replayed()
        self.flags: list[Tensor] = []
        outputs.clear()

    def before(self) -> None:
        """Before a call, untimed: new inputs and poisoned buffers; now and then, a draw that the judge can answer."""
        self._now = None
        call, self._calls = self._calls, self._calls + 1
        if self._left and call == self._next:
            self._next = call + 1 + secrets.randbelow(2 * self._calls if self._calls > 2 else 2)
            self._left, self._now = self._left - 1, self._positions.pop()
            self._inputs.draw(self._draws[self._now])
            self._snapshot = self._inputs.snapshot()
        else:
            self._inputs.refresh()
        self._opened.runner.prepare(POISONS[1])

    def after(self) -> None:
        """After a call, untimed: keep the outputs of a judged call."""
        if self._now is None:
            return
        self.result.asked.append(self._now)
        self.result.shown.append([self._outputs.put(y) for y in self._opened.outputs()])
        self.flags += [self._inputs.written(self._snapshot), self._memory.overrun()]
        self._snapshot = None  # as large as the inputs, and not needed in the calls that follow

    def last(self) -> None:
        """One more judged call after everything else."""
        self._now = self._positions.pop()
        self._inputs.draw(self._draws[self._now])
        self._snapshot = self._inputs.snapshot()
        self._opened.runner.prepare(POISONS[1])
        self._opened.run()
        self.after()
