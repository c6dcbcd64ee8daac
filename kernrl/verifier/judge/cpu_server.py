"""The judge without a GPU: a process that holds the answers, and sees only outputs that an interpreter has left for it."""

from __future__ import annotations

import resource
from collections.abc import Sequence

from kernrl.tasks.task import Task
from kernrl.verifier.base.shared_memory import SharedMemory, StoredTensor
from kernrl.verifier.base.verdict import ErrorRecord
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.judge_server import Judge

KEPT_BYTES = 128 << 20
"""Bytes of answers that a process keeps for the other candidates of a group."""

MEMORY_BYTES = 8 << 30
"""Memory limit of the process: a reference that needs more fails, instead of exhausting the machine."""


class CpuJudge:
    """A judge process's commands. No part of a candidate runs here, not even a library call that it chose."""

    def __init__(self, *, redraw_parameters: bool = True):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        self._judge = Judge("cpu", redraw_parameters=redraw_parameters, kept_bytes=KEPT_BYTES)

    def healthy(self) -> bool:
        """Always true: an exception leaves nothing behind here."""
        return True

    def compare(
        self, task: Task, precision: str, draws: Sequence[Draw], asked: Sequence[int], memory: SharedMemory,
        shown: Sequence[Sequence[StoredTensor]],
    ) -> list[ErrorRecord]:  # fmt: skip
        """`Judge.compare` on outputs that lie in an interpreter's memory."""
        opened = memory.open()
        outputs = [[one.read(opened) for one in row] for row in shown]
        return self._judge.compare(task, precision, draws, asked, outputs)

    def has_idle_op(self, task: Task, precision: str, draws: Sequence[Draw]) -> bool:
        """`Judge.has_idle_op`."""
        return self._judge.has_idle_op(task, precision, draws)
