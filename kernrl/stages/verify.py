"""`kernrl verify`: judge one candidate, or a file of pairs."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from rich.console import Group

from kernrl import console
from kernrl.config import VerifyConfig
from kernrl.console import Lines, Prose, Result, counted
from kernrl.errors import UsageError
from kernrl.files import DRAWN, replace_file, require_ours, require_writable
from kernrl.service.client import open_verifier
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import BadRow, task_from_row
from kernrl.tasks.task import Task
from kernrl.verifier import explain
from kernrl.verifier.base.parse import MAX_SOURCE_CHARS
from kernrl.verifier.base.verdict import Status, Verdict

EXIT_CODES = {Status.CORRECT: 0, Status.INFRA_ERROR: 3, Status.NEEDS_GPU: 4}
"""Status → exit code of a single verdict; every other status is a rejection, 1."""


TEXTS = ("task", "candidate", "candidate_file", "id")
ROW = "it needs rows with the texts 'task' and 'candidate', or 'candidate_file' for a file's name"

MOST_CHARS = 100 * MAX_SOURCE_CHARS
"""What is read of a candidate's file. Code of that length is refused; /dev/zero has no end."""

CUT = '{"index": '
"""How each row of `--out` begins, even one that a kill cut short."""


def run(config: VerifyConfig) -> Result:
    """Judge, and hand over what to print.

    Raises:
        UsageError: Arguments that do not go together, or a task or file that cannot be read.
        InfrastructureError: The machinery cannot work here at all.
    """
    logging.basicConfig(format="%(message)s", handlers=[console.LogLines()], level=logging.WARNING)
    if config.pairs is not None:
        if config.task or config.candidate:
            raise UsageError("--pairs brings its own tasks and candidates: leave TASK and CANDIDATE out.")
        return _run_pairs(config, config.pairs)
    if not config.task or not config.candidate:
        raise UsageError("kernrl verify needs TASK and CANDIDATE, or --pairs with --out.")
    if config.explain is not None:
        require_ours(config.explain, DRAWN, "--explain")
    task, candidate = _task(config.task), _read_candidate(config.candidate)
    with console.waiting(f"judging {config.candidate}"), open_verifier(config) as verifier:
        verdict = verifier.verify(task, candidate)
    if config.explain is not None:
        replace_file(config.explain, explain.svg(verdict))
    return Result(verdict.to_json(), account(verdict, config.explain), EXIT_CODES.get(verdict.status, 1))


def account(verdict: Verdict, drawing: Path | None) -> Group:
    """A verdict in full, and the file in which it is drawn."""
    return Group(explain.account(verdict), *([Lines(f"drawn in {drawing}")] if drawing else []))


def _task(name: str, source: str | None = None) -> Task:
    """A task by file, `SOURCE::ID`, `SOURCE#ROW`, or by an id of `source` (the shipped suite unless given)."""
    whole = Path(name).exists() or "::" in name or "#" in name
    if not whole and name.endswith(".py"):
        raise UsageError(f"{name}: there is no such file; name a task .py, SOURCE::ID or SOURCE#ROW.")
    return load_tasks(name if whole else f"{source or 'heldout'}::{name}").tasks[0]


def _read_task(code: str, name: str) -> Task:
    """A task by its text, with the input sets that it states."""
    try:
        return task_from_row({"pytorch_code": code, "id": name}, name)
    except BadRow as error:
        raise UsageError(f"the task {error}.") from None


def _read_candidate(name: str) -> str:
    if name == "-":
        return sys.stdin.read(MOST_CHARS)
    try:
        with open(name, encoding="utf-8-sig", errors="replace") as file:
            return file.read(MOST_CHARS)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}; name a file, or '-' for stdin.") from error


# --- many ------------------------------------------------------------------------------------------------------------


def _run_pairs(config: VerifyConfig, path: Path) -> Result:
    """Judge the rows that `--out` does not hold yet. A row that cannot be read is listed, and the others are judged."""
    if config.out is None:
        raise UsageError("--pairs needs --out, the file that verdicts are written to.")
    require_writable(config.out, "--out")
    lines = _read_lines(path)
    done = _finished(config.out, len(lines))
    statuses, faults = Counter(str(one["status"]) for one in done.values()), _faults(done.values())
    rows = _Rows(config, path, lines, _by_task(lines, done))
    with _to_append(config.out) as file, open_verifier(config) as verifier, console.progress() as bar:
        progress = bar.add_task("verdicts", total=len(lines), completed=len(done))
        for position, verdict in verifier.verify_many(rows.pairs()):
            _append(file, rows.taken[position], verdict)
            statuses[str(verdict.status)] += 1
            faults += verdict.internal_error
            bar.advance(progress)
    if rows.bad and len(rows.bad) == len(lines):
        raise UsageError(next(iter(rows.bad.values())))
    return _summary(config.out, len(lines), statuses, faults, rows)


def _by_task(lines: Sequence[str], done: Container[int]) -> list[int]:
    """The rows left to judge, those of one task together, whatever their order in the file: what is prepared for a task serves
    its next candidates."""
    tasks: dict[str, list[int]] = {}
    for i in (i for i in range(len(lines)) if i not in done):
        row: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(lines[i])
        tasks.setdefault(str(row.get("task")) if isinstance(row, dict) else "", []).append(i)
    return [i for rows in tasks.values() for i in rows]


def _summary(out: Path, count: int, statuses: Counter[str], faults: int, rows: _Rows) -> Result:
    judged = count - len(rows.bad)
    said = [f"{counted(judged, 'verdict')} in {out}", *(f"{n:6d}  {status}" for status, n in statuses.most_common())]
    if unknown := statuses[str(Status.NEEDS_GPU)]:
        said.append(f"judged {judged - unknown} of {judged}: the others need a GPU")
    if faults:
        said.append(f"{faults} of them met a fault of the verifier itself; the log has its traceback")
    if rows.names:
        names = counted(rows.names, "candidate looks", "candidates look")
        said.append(f"{names} like a file's name, judged as text all the same: use 'candidate_file' for names")
    said += [reason for _, reason in sorted(rows.bad.items())]
    bad = [{"row": i + 1, "reason": reason} for i, reason in sorted(rows.bad.items())]
    summary = {
        "verdicts": judged, "statuses": dict(statuses), "internal_errors": faults, "bad_rows": bad, "out": str(out),
    }  # fmt: skip
    failed = 3 if statuses[str(Status.INFRA_ERROR)] else 0
    return Result(summary, Prose("\n".join(said)), UsageError.exit_code if rows.bad else failed)


def _to_append(path: Path) -> TextIO:
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:  # of /proc, which says that it may be written to
        raise UsageError(f"--out {path}: it cannot be written to ({error.strerror}); name another file.") from None


def _append(file: TextIO, index: int, verdict: Verdict) -> None:
    file.write(json.dumps({"index": index, **verdict.to_json()}) + "\n")
    file.flush()


def _read_lines(path: Path) -> list[str]:
    try:
        # a source may hold U+2028, which JSON leaves alone and splitlines() does not
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except OSError as error:
        raise UsageError(f"--pairs: {path}: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise UsageError(f"--pairs: {path} is not UTF-8 text.") from None
    if lines == [""]:
        raise UsageError(f"--pairs: {path} is empty; {ROW}.")
    return lines


class _Rows:
    """The rows of a file of pairs that are left to judge."""

    def __init__(self, config: VerifyConfig, path: Path, lines: list[str], left: list[int]) -> None:
        self._config, self._path, self._lines, self._left = config, path, lines, left
        self._task, self._read = cache(_task), cache(_read_task)  # many rows name one task
        self._first: dict[str, int] = {}
        """Text of a task → the first row that has it."""
        self.taken: list[int] = []
        """Rows given by `pairs`, in that order, counted from 0."""
        self.bad: dict[int, str] = {}
        """Row → why it cannot be judged."""
        self.names = 0
        """Rows whose candidate looks like the name of a file."""

    def pairs(self) -> Iterator[tuple[Task, str]]:
        """Task and candidate of each row that can be read."""
        for i in self._left:
            try:
                pair = self._pair(i)
            except (UsageError, OSError, ValueError, RecursionError) as error:
                self.bad[i] = f"{self._path}:{i + 1}: {error}"
                continue
            self.taken.append(i)
            yield pair

    def _pair(self, i: int) -> tuple[Task, str]:
        row: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(self._lines[i])
        if not isinstance(row, dict) or not all(isinstance(value, str) for key, value in row.items() if key in TEXTS):
            raise UsageError(f"this is no row; {ROW}.")
        if "task" not in row or ("candidate" in row) == ("candidate_file" in row):
            raise UsageError(f"this is no row; {ROW}.")
        task = self._task_of(row, i)
        if "candidate" in row:
            self.names += "\n" not in row["candidate"] and row["candidate"].endswith(".py")
            return task, row["candidate"]
        return task, _read_candidate(str(_beside(self._path, row["candidate_file"]) or row["candidate_file"]))

    def _task_of(self, row: dict[str, Any], index: int) -> Task:
        text = row["task"]
        if "\n" in text:
            # rows of one text are one task: what is prepared for it serves them all
            first = self._first.setdefault(text, index)
            return self._read(text, row.get("id") or f"{self._path.stem}-{first}")
        file = _beside(self._path, text)
        return self._task(str(file)) if file else self._task(text, self._config.source)


def _faults(rows: Iterable[dict[str, Any]]) -> int:
    return sum(bool(row.get("internal_error")) for row in rows)


def _finished(path: Path, count: int) -> dict[int, dict[str, Any]]:
    """Pairs whose verdict is on disk, by index. A line that a kill cut short is removed; failures are redone, but for faults
    of the verifier itself, which would come again."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise UsageError(f"--out: {path} is not a file; name another.")
    kept, whole = {}, []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            index, status = row["index"], row["status"]
        except (ValueError, KeyError, TypeError):
            if line[: len(CUT)] != CUT[: len(line)]:  # what is here would be lost
                raise UsageError(f"--out: {path} does not hold verdicts alone; name a new file.") from None
            continue
        if not 0 <= index < count:
            raise UsageError(f"--out: {path} holds verdict {index} of other pairs; name a new file.")
        if status != Status.INFRA_ERROR or row.get("internal_error"):
            kept[index] = row
            whole.append(line)
    replace_file(path, "".join(f"{line}\n" for line in whole))
    return kept


def _beside(path: Path, name: str) -> Path | None:
    """The file that a row names, looked for here and in the folder of the pairs; None where there is none."""
    if "\n" in name:
        return None
    with contextlib.suppress(OSError, ValueError):  # not every text is a possible file name
        return next((p for p in (Path(name), path.parent / name) if p.is_file()), None)
    return None
