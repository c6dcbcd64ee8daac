"""What an earlier search of a task left behind, as far as it still holds: trials, and results.

A verdict holds for one reference under one precision policy, by one clock on one device, and for one version of the
verifier. Rows and results say which (`judged_under`). After the module was edited, or on another machine, the same file
would be a trial of something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernrl.console import counted
from kernrl.files import replace_file
from kernrl.optimization.search.trials import Proposal, Trial, ranked
from kernrl.runs.run_directory import read_lines
from kernrl.tasks.task import Task, task_fingerprint
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.verifier import HardenedVerifier

CANDIDATES = "candidates.jsonl"

JUDGED_AGAIN = 4
"""Of the candidates that may be tried, one in so many may be an earlier one that is judged anew: the fastest right ones."""

Under = Mapping[str, Any]
"""What a verdict depends on besides the candidate."""

WHAT_DIFFERS = {
    "task": "the module was another one then",
    "precision": "the precision was another one then",
    "clock": "times of a GPU and of the roofline model are not compared",
    "conditions": "the device, a version or a limit was another one then",
}
"""Part of `Under` → why what was judged under another one says nothing now."""


def judged_under(task: Task, verifier: HardenedVerifier) -> dict[str, Any]:
    """What verdicts on candidates of a task depend on now. The verifier must have started.

    Args:
        task: As it was given, without derived input sets.
    """
    evaluator = verifier.evaluator
    return {
        "task": task_fingerprint(task),
        "precision": evaluator.precision_of(task),
        "clock": "measured" if evaluator.gpus else "modelled",
        "conditions": list(evaluator.conditions),
    }


def difference(before: Under | None, now: Under) -> str:
    """Why what was judged `before` does not hold `now`; '' where it does. Rows of older runs say nothing of it."""
    if before is None:
        return "its rows do not say against which module they were judged"
    return next((why for part, why in WHAT_DIFFERS.items() if before.get(part) != now[part]), "")


@dataclass(frozen=True)
class Earlier:
    """Trials of an earlier search."""

    known: tuple[Trial, ...] = ()
    """Those that still hold."""
    again: tuple[Proposal, ...] = ()
    """Right ones of those that do not, the fastest first: to be judged anew."""
    numbered: int = 0
    """How many numbers of trials are taken: those that the verifier failed on have rows, too."""
    said: str = ""
    """A sentence where some do not hold."""


def read_earlier(folder: Path, task: Task, now: Under, candidates: int) -> Earlier:
    """The trials in a folder. Rows that no longer hold are moved to a file of their own.

    Args:
        candidates: How many may be tried.
    """
    rows = read_lines(folder / CANDIDATES)
    stale = [row for row in rows if difference(row.get("under"), now)]
    held = [row for row in rows if not difference(row.get("under"), now)]
    known = [trial for trial in map(Trial.from_row, held) if trial.verdict.status is not Status.INFRA_ERROR]
    if not stale:
        return Earlier(tuple(known), numbered=len(rows))
    _set_aside(folder, stale, held)
    right = ranked(map(Trial.from_row, stale))[: max(1, candidates // JUDGED_AGAIN)]
    again = [replace(t.proposal, parent="", step=("", "")) for t in right]
    why = difference(stale[0].get("under"), now)
    fastest = f"the fastest {len(again)} of them are judged anew" if len(again) > 1 else "the fastest is judged anew"
    said = (
        f"{task.id}: {counted(len(stale), 'candidate')} of the earlier search {'do' if len(stale) > 1 else 'does'} not count: "
        f"{why}{'; ' + fastest if again else ''}."
    )
    return Earlier(tuple(known), tuple(again), len(rows), said)


def _set_aside(folder: Path, stale: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> None:
    """Move rows to the next free `candidates-N.jsonl`."""
    number = 1
    while (aside := folder / f"candidates-{number}.jsonl").exists():
        number += 1
    for path, rows in ((aside, stale), (folder / CANDIDATES, held)):
        replace_file(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def finished(folder: Path, now: Under, *, improve: bool) -> dict[str, Any] | None:
    """The results of a task that is done, as far as the settings ask and as they still hold.

    Args:
        improve: Whether a model is trained on the tasks.
    """
    try:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if difference(results.get("under"), now):
        return None
    searched = results["ended"] != "not searched"
    return results if not searched or not improve or results.get("improved") else None
