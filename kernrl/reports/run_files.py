"""Read what a run left on disk. Young, killed or broken, what can be read is, and the rest is said in a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernrl.console import counted
from kernrl.errors import UsageError
from kernrl.verifier.base.verdict import Stage, Status, Verdict

FILES = ("config.json", "metrics.jsonl", "samples.jsonl", "results.json")

UNJUDGED = (Status.INFRA_ERROR, Status.NEEDS_GPU)
"""Statuses that say nothing about the candidate: such samples are counted apart and enter no figure."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of `samples.jsonl`, without its texts: `read_row` gives those."""

    id: str
    task: str
    verdict: Verdict
    """Without its error records."""
    step: int = 0
    family: str = ""
    composition: tuple[str, ...] = ()
    tokens: int = 0
    cut: bool = False
    """Whether the reply reached the limit of tokens before its end."""
    offset: int = 0
    """Where the row starts in the file, in bytes."""

    @property
    def judged(self) -> bool:
        return self.verdict.status not in UNJUDGED

    @property
    def compiled(self) -> bool:
        """True when every authored kernel became machine code, so that the candidate could be run."""
        return self.verdict.stage in (Stage.CORRECTNESS, Stage.TIMING)


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of one run."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    """`config.json`: the resolved `config`, `argv`, `versions`, `gpu`, `commit`, `started`."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """The lines of `metrics.jsonl`, one a step: of a step that ran twice, the last."""
    samples: list[Sample] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Sentences about what is missing or could not be read."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def stage(self) -> str:
        """The command that made the run, such as `eval`; empty where nothing tells it."""
        argv = self.config.get("argv")
        return str(argv[1]) if isinstance(argv, list) and len(argv) > 1 else ""


def read_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
        UsageError: there is no such folder, or none of a run's files in it.
    """
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; name a run's directory.")
    if not any((path / name).exists() for name in FILES):
        raise UsageError(f"{path} holds no run: it has none of {', '.join(FILES)}.")
    problems: list[str] = []
    return Run(
        path,
        config=_read_object(path / "config.json", problems),
        metrics=_last_of_each_step(row for _, row in read_rows(path / "metrics.jsonl", problems)),
        samples=read_samples(path / "samples.jsonl", problems),
        results=_read_object(path / "results.json", problems),
        problems=problems,
    )


def read_samples(path: Path, problems: list[str]) -> list[Sample]:
    """The samples of a file in the order of their ids' first appearance; a later row of the same id replaces the earlier."""
    samples: dict[str, Sample] = {}
    unreadable = 0
    for offset, row in read_rows(path, problems):
        try:
            sample = _sample(row, offset)
        except (KeyError, TypeError, ValueError, AttributeError):
            unreadable += 1
        else:
            samples[sample.id] = sample
    if unreadable:
        problems.append(
            f"{path.name}: left out {counted(unreadable, 'row that is', 'rows that are')} no sample with a verdict."
        )
    return list(samples.values())


def read_rows(path: Path, problems: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset in bytes, row) of a .jsonl file; a last line that a kill cut short is left out."""
    if not path.exists():
        return
    offset = broken = 0
    with path.open("rb") as file:
        for line in file:
            start, offset = offset, offset + len(line)
            if not line.endswith(b"\n"):
                problems.append(f"{path.name}: the last line is cut short and was left out.")
                break
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                yield start, row
            else:
                broken += 1
    if broken:
        problems.append(f"{path.name}: left out {counted(broken, 'line that is', 'lines that are')} no JSON object.")


def read_row(run: Run, sample: Sample) -> dict[str, Any]:
    """A sample's whole row, with its texts and its verdict's error records."""
    with (run.path / "samples.jsonl").open("rb") as file:
        file.seek(sample.offset)
        return json.loads(file.readline())


def number(value: Any) -> float | None:
    """A finite number from JSON as a float; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < float("inf") else None


def _sample(row: dict[str, Any], offset: int) -> Sample:
    return Sample(
        id=str(row["id"]),
        task=str(row["task"]),
        verdict=replace(Verdict.from_json(row["verdict"]), errors=[]),
        step=int(row.get("step") or 0),
        family=str(row.get("family") or ""),
        composition=tuple(map(str, row.get("composition") or ())),
        tokens=int(row.get("tokens") or 0),
        cut=row.get("finish") == "length",
        offset=offset,
    )


def _read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        data = None
    if not isinstance(data, dict):
        problems.append(f"{path.name} is not a JSON object and was left out.")
        return {}
    return data


def _last_of_each_step(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    steps: dict[Any, dict[str, Any]] = {}
    for row in rows:
        if (step := number(row.get("step"))) is not None:
            steps[step] = row
    return [steps[step] for step in sorted(steps)]
