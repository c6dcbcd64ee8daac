"""`kernrl samples`: the candidates of a run, and their verdicts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernrl.config import SamplesConfig
from kernrl.console import Code, Result, counted
from kernrl.errors import UsageError, did_you_mean
from kernrl.files import new_folder, replace_file
from kernrl.reports.run_files import read_rows
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection, Status, Verdict

BEST = "best"

MARK = "*"
MODELLED = f"{MARK} by the roofline model"

NEEDED = {"id", "step", "task", "text", "tokens", "reward", "reward_parts", "verdict"}
"""Fields of every row that kernrl writes; other rows are ignored."""


def run(config: SamplesConfig) -> Result:
    """List a run's candidates, the best first, or show one of them whole."""
    statuses = [str(status) for status in Status]
    if config.status and config.status not in statuses:
        raise UsageError(f"--status: there is no {config.status!r}: {did_you_mean(config.status, statuses)}")
    rows = read_samples(config)
    if config.export is not None:
        return export(config, rows, config.export)
    if not config.show:
        return Result(rows[: config.limit], listing(rows, config.limit))
    found = rows[0] if config.show == BEST else next((row for row in rows if row["id"] == config.show), None)
    if found is None:
        raise UsageError(f"--show: {config.run} has no candidate with the id {config.show!r} among those asked for.")
    return Result(found, whole(found))


def export(config: SamplesConfig, rows: list[dict[str, Any]], folder: Path) -> Result:
    """Write the best correct candidate of each task as a file of its own: the source that was judged, byte for byte.

    Raises:
        UsageError: none is correct, or the folder is not empty.
    """
    best: dict[str, tuple[dict[str, Any], str]] = {}
    for row in rows:
        parsed = parse_reply(row["text"])
        if row["verdict"]["status"] == Status.CORRECT and not isinstance(parsed, Rejection):
            best.setdefault(row["task"], (row, parsed.source))
    if not best:
        raise UsageError(f"--export: {config.run} has no correct candidate among those asked for.")
    new_folder(folder, "--export")
    table = Table("file", "speedup", "id", box=None, pad_edge=False)
    written: list[dict[str, Any]] = []
    for task, (row, source) in best.items():
        path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', task)}.py"
        replace_file(path, source)
        written.append({"file": str(path), "task": task, "id": row["id"], "speedup_x": row["verdict"].get("speedup_x")})
        table.add_row(path.name, _speedup(row), row["id"])
    notes = [Text(MODELLED, style="dim")] if any(MARK in _speedup(row) for row, _ in best.values()) else []
    return Result(written, Group(table, *notes, Text(f"{counted(len(written), 'kernel')} in {folder}")))


def read_samples(config: SamplesConfig) -> list[dict[str, Any]]:
    """The run's candidates that match the options, the best first; of a repeated step, those of the repetition.

    Raises:
        UsageError: the run has none.
    """
    file = config.run / "samples.jsonl"
    rows = {row["id"]: row for _, row in read_rows(file, []) if row.keys() >= NEEDED}
    if not rows:
        raise UsageError(f"{config.run} has no samples; name the folder of a run that sampled.")
    wanted = [
        row
        for row in rows.values()
        if config.step in (None, row["step"])
        and config.task in (None, row["task"])
        and config.status in (None, row["verdict"]["status"])
    ]
    if not wanted:
        raise UsageError(f"{config.run}: none of its {counted(len(rows), 'candidate')} is of that step, task and status.")
    return sorted(wanted, key=lambda row: (*_worth(row), row["tokens"], row["id"]))


def listing(rows: list[dict[str, Any]], limit: int) -> RenderableType:
    """One line a candidate. Ids are never cut, as --show takes them; columns that no row has are left out."""
    shown = rows[:limit]
    cells: dict[str, list[str]] = {
        "id": [row["id"] for row in shown],
        "task": [
            "" if row["id"].startswith(row["task"]) else row["task"] for row in shown
        ],  # the ids of an evaluation contain it
        "status": [row["verdict"]["status"] for row in shown],
        "reward": ["" if row["reward"] is None else f"{row['reward']:.3f}" for row in shown],
        "speedup": [_speedup(row) for row in shown],
        "tokens": [str(row["tokens"]) for row in shown],
        "reason": [row["verdict"]["reason"] for row in shown],
    }
    cells = {name: column for name, column in cells.items() if any(column)}
    table = Table(box=None, pad_edge=False)
    for name, column in cells.items():
        fixed = name not in ("task", "reason")
        table.add_column(name, no_wrap=fixed, min_width=max(map(len, (name, *column))) if fixed else None)
    for line in zip(*cells.values(), strict=True):
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in line))
    notes = [MODELLED] if any(MARK in cell for cell in cells.get("speedup", ())) else []
    notes += [f"and {len(rows) - limit} more (--limit)"] if len(rows) > limit else []
    return Group(table, *(Text(note, style="dim") for note in notes))


def whole(row: dict[str, Any]) -> RenderableType:
    """One candidate in full, with its verdict."""
    verdict = Verdict.from_json(row["verdict"])
    parsed = parse_reply(row["text"])
    code: RenderableType = Code(row["text"])
    if not isinstance(parsed, Rejection):
        code = Code(parsed.source)
    parts = ", ".join(f"{name} {value:g}" for name, value in (row["reward_parts"] or {}).items())
    reward = "no reward" if row["reward"] is None else f"reward {row['reward']:.3f} ({parts})"
    speedup = _speedup(row).replace(MARK, " by the roofline model")
    heading = f"{row['id']}  {row['task']}  {verdict.status}  {reward}  {speedup}"
    lines: list[RenderableType] = [Text(heading.rstrip(), style="bold"), Text(verdict.reason), code]
    return Group(*lines)


def _worth(row: dict[str, Any]) -> tuple[float, bool, float]:
    """Smaller is better: by reward where there is one, then what is correct, then what is faster."""
    reward, speedup = row["reward"], row["verdict"].get("speedup_x")
    return (
        float("inf") if reward is None else -reward,
        row["verdict"]["status"] != Status.CORRECT,
        -speedup["value"] if speedup else 0.0,
    )


def _speedup(row: dict[str, Any]) -> str:
    speedup = row["verdict"].get("speedup_x")
    if not speedup:
        return ""
    if row["verdict"]["timing"]["kind"] == "modelled":  # without noise
        return f"{speedup['value']:.2f}×{MARK}"
    return f"{speedup['value']:.2f}×{'' if speedup['significant'] else ' (noise)'}"
