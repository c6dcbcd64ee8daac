"""`kernrl verify`: judge one candidate, or a file of pairs."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from rich.logging import RichHandler

from kernrl import console
from kernrl.config import VerifyConfig
from kernrl.console import Result
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import Task
from kernrl.verifier import explain
from kernrl.verifier.base.verdict import Status, Verdict
from kernrl.verifier.verifier import HardenedVerifier

EXIT_CODES = {Status.CORRECT: 0, Status.INFRA_ERROR: 3, Status.NEEDS_GPU: 4}
"""Status → exit code of a single verdict; every other status is a rejection, 1."""


CUT = '{"index": '
"""How each row of `--out` begins, even one that a kill cut short."""


def run(config: VerifyConfig) -> Result:
    """Judge, and hand over what to print.

    Raises:
        UsageError: Arguments that do not go together, or a task or file that cannot be read.
        InfrastructureError: The machinery cannot work here at all.
    """
    logging.basicConfig(handlers=[RichHandler(console=console.log, show_time=False, show_path=False)], level=logging.WARNING)
    if config.pairs is not None:
        if config.task or config.candidate:
            raise UsageError("--pairs brings its own tasks and candidates: leave TASK and CANDIDATE out.")
        return _run_pairs(config, config.pairs)
    if not config.task or not config.candidate:
        raise UsageError("kernrl verify needs TASK and CANDIDATE, or --pairs with --out.")
    task, candidate = _task(config.task), _read_candidate(config.candidate)
    with HardenedVerifier(config) as verifier:
        verdict = verifier.verify(task, candidate)
    if config.explain is not None:
        replace_file(config.explain, explain.svg(verdict))
    return Result(verdict.to_json(), explain.account(verdict), EXIT_CODES.get(verdict.status, 1))


@cache
def _task(name: str, source: str | None = None) -> Task:
    """A task by file, `SOURCE::ID`, `SOURCE#ROW`, or by an id of `source` (the shipped suite unless given)."""
    whole = Path(name).exists() or "::" in name or "#" in name
    if not whole and name.endswith(".py"):
        raise UsageError(f"{name}: there is no such file; name a task .py, SOURCE::ID or SOURCE#ROW.")
    return load_tasks(name if whole else f"{source or 'heldout'}::{name}").tasks[0]


def _read_candidate(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}; name a file, or '-' for stdin.") from error


# --- many ------------------------------------------------------------------------------------------------------------


def _run_pairs(config: VerifyConfig, path: Path) -> Result:
    """Judge the rows that `--out` does not hold yet."""
    if config.out is None:
        raise UsageError("--pairs needs --out, the file that verdicts are written to.")
    rows = _read_pairs(path)
    done = _finished(config.out, len(rows))
    statuses = Counter(done.values())
    left = [i for i in range(len(rows)) if i not in done]
    pairs = ((_task_of(config, path, rows[i], i), _candidate_of(path, rows[i])) for i in left)
    with _open_to_append(config.out) as file, HardenedVerifier(config) as verifier, console.progress() as bar:
        progress = bar.add_task("verdicts", total=len(rows), completed=len(done))
        for position, verdict in verifier.verify_many(pairs):
            _append(file, left[position], verdict)
            statuses[str(verdict.status)] += 1
            bar.advance(progress)
    summary = {"verdicts": len(rows), "statuses": dict(statuses), "out": str(config.out)}
    lines = [f"{count:6d}  {status}" for status, count in statuses.most_common()]
    failed = statuses[str(Status.INFRA_ERROR)] > 0
    if unknown := statuses[str(Status.NEEDS_GPU)]:
        lines.append(f"judged {len(rows) - unknown} of {len(rows)}: the others need a GPU")
    return Result(summary, "\n".join([f"{len(rows)} verdicts in {config.out}", *lines]), 3 if failed else 0)


def _open_to_append(path: Path) -> TextIO:
    try:
        return open(path, "a", encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"--out: there is no folder {path.parent}; make it, or name another file.") from None


def _append(file: TextIO, index: int, verdict: Verdict) -> None:
    file.write(json.dumps({"index": index, **verdict.to_json()}) + "\n")
    file.flush()


def _read_pairs(path: Path) -> list[dict[str, Any]]:
    try:
        # a source may hold U+2028, which JSON leaves alone and splitlines() does not
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise UsageError(f"--pairs: {path}: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise UsageError(f"--pairs: {path} is not UTF-8 text.") from None
    if lines == [""]:
        raise UsageError(f"--pairs: {path} is empty; it needs rows with the texts 'task' and 'candidate'.")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not all(isinstance(row.get(k), str) for k in ("task", "candidate")):
            raise UsageError(f"{path}:{number} is not a row with the texts 'task' and 'candidate'.")
        rows.append(row)
    return rows


def _finished(path: Path, count: int) -> dict[int, str]:
    """Pairs whose verdict is on disk: index → status. A line that a kill cut short is removed; failures are redone."""
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
        if status != Status.INFRA_ERROR:
            kept[index] = status
            whole.append(line)
    replace_file(path, "".join(f"{line}\n" for line in whole))
    return kept


def _beside(path: Path, name: str) -> Path | None:
    """The file that a row names, looked for here and in the folder of the pairs; None where there is none."""
    if "\n" in name:
        return None
    with contextlib.suppress(OSError, ValueError):  # a one-line reply may not be a possible file name
        return next((p for p in (Path(name), path.parent / name) if p.is_file()), None)
    return None


def _task_of(config: VerifyConfig, path: Path, row: dict[str, Any], index: int) -> Task:
    text = row["task"]
    if "\n" in text:
        return Task(id=row.get("id") or f"{path.stem}-{index}", pytorch_code=text)
    file = _beside(path, text)
    return _task(str(file)) if file else _task(text, config.source)


def _candidate_of(path: Path, row: dict[str, Any]) -> str:
    file = _beside(path, row["candidate"])
    return file.read_text(encoding="utf-8", errors="replace") if file else row["candidate"]
