"""`kernrl serve` with the verifier's cache and queue, and an evaluation that only notes what it was asked: PORT FOLDER."""

import sys
import time
from pathlib import Path

from kernrl import cli
from kernrl.tasks.task import Task
from kernrl.verifier.base.parse import Candidate, parse_reply
from kernrl.verifier.base.verdict import Stage, Status, Verdict
from kernrl.verifier.funnel import StagedEvaluator

port, folder = sys.argv[1], Path(sys.argv[2])


def evaluate(self: StagedEvaluator, task: Task, reply: str) -> Verdict:
    candidate = parse_reply(reply)
    assert isinstance(candidate, Candidate)
    time.sleep(0.2 if "hold the queue" in reply else 0.01)
    with open(folder / "judged.txt", "a") as file:
        file.write(candidate.sha + "\n")
    return Verdict(Status.CORRECT, Stage.TIMING, "", task.id, candidate.sha, task.precision)


StagedEvaluator.start, StagedEvaluator.evaluate = lambda self: None, evaluate
StagedEvaluator.conditions = property(lambda self: ["as here"])  # pyright: ignore[reportAttributeAccessIssue]
sys.argv[1:] = ["serve", "--port", port, "--queue", "32", "--workers", "2", "--device", "cpu", f"--cache-dir={folder}/cache"]
cli.main()
