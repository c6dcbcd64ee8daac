"""The directory of a run: its settings, what happened at every step, and checkpoints to resume from."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrl import __version__
from kernrl.config import Config
from kernrl.config.resume import require_same
from kernrl.errors import UsageError
from kernrl.files import new_folder, replace_file, require_new_folder
from kernrl.policy.checkpoint import (
    commit_checkpoint,
    complete_steps,
    latest_checkpoint,
    prune_checkpoints,
    read_json,
    write_json,
)

if TYPE_CHECKING:
    from kernrl.policy.ranks import Ranks

LOCK = ".lock"
"""File of a run's folder that the process which writes there has locked."""


class RunDirectory:
    """The files of a run. `metrics.jsonl` and `samples.jsonl` are only appended to: a step that is repeated after a resume
    appears twice, and readers take its last line."""

    def __init__(self, path: Path, lock: int | None = None):
        self.path = path
        self._lock = lock
        """Descriptor of the lock, which this process holds until it ends."""

    @classmethod
    def open(cls, path: Path, config: Config, *, resume: bool) -> RunDirectory:
        """Start a run in a new folder, or resume one. A folder whose run was refused before it did anything counts as new.

        Raises:
            UsageError: the folder is not empty and `resume` is false, its run has other settings, or another process is
                writing there.
        """
        described = {"config": config.model_dump(mode="json"), "argv": sys.argv, **environment()}
        require_startable(path, config, resume=resume)
        resuming = resume and (path / "config.json").exists()
        if not resuming and not _did_nothing(path):
            new_folder(path, "--output")
        lock = _lock(path)
        if resuming:
            for lines in path.glob("*.jsonl"):
                _drop_cut_line(lines)
        else:
            write_json(path / "config.json", described)
        return cls(path, lock)

    def log(self, **metrics: Any) -> None:
        """Append one line to `metrics.jsonl`."""
        self.append("metrics.jsonl", metrics)

    def forget_after(self, step: int) -> int:
        """Remove the metrics of later steps: a resumed run takes them again, and each is to be there once.

        Returns the last step that was there, which a tracker has been told of.
        """
        lines = read_lines(self.path / "metrics.jsonl")
        kept = [line for line in lines if line["step"] <= step]
        if len(kept) < len(lines):
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
            replace_file(self.path / "metrics.jsonl", text)
        return max((line["step"] for line in lines), default=0)

    def add_sample(self, row: Mapping[str, Any]) -> None:
        """Append one line to `samples.jsonl`."""
        self.append("samples.jsonl", row)

    def add_heldout_sample(self, row: Mapping[str, Any]) -> None:
        """Append one line to `heldout.jsonl`: samples of evaluations during training."""
        self.append("heldout.jsonl", row)

    def checkpoint(
        self, step: int, write: Callable[[Path], None], ranks: Ranks | None = None, *, keep: int = 1, best: int | None = None
    ) -> Path:
        """Write the checkpoint `step_N`, then remove all but the newest `keep` and step `best`; every rank calls this."""
        final = commit_checkpoint(self.path, f"step_{step}", write, ranks)
        if ranks is None or ranks.leads:
            prune_checkpoints(self.path, keep, best)
        return final

    @property
    def history(self) -> list[dict[str, Any]]:
        """The metrics of every step so far, over every resume."""
        lines = {line["step"]: line for line in read_lines(self.path / "metrics.jsonl")}
        return [lines[step] for step in sorted(lines)]

    def latest(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        return latest_checkpoint(self.path)

    @property
    def checkpoints(self) -> list[int]:
        """Steps that have a complete checkpoint, in no order."""
        return complete_steps(self.path)

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write `results.json`."""
        write_json(self.path / "results.json", results)

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Append one line to the .jsonl file of that name."""
        # one write on an append-only descriptor: lines of several writers do not mix, and a kill cuts at most the last one
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            while line:  # a full disk takes a part of the line, and fails only when given the rest
                line = line[os.write(descriptor, line) :]
        except OSError as error:
            error.filename = str(self.path / name)
            raise
        finally:
            os.close(descriptor)


def require_startable(path: Path, config: Config, *, resume: bool) -> None:
    """Refuse a folder that a run cannot start or go on in. It needs no torch, so that a command can ask before it loads any.

    Raises:
        UsageError: the folder is not empty and `resume` is false, or its run has other settings.
    """
    if resume and (path / "config.json").exists():
        require_same(config, path, read_json(path / "config.json")["config"])
    elif not _did_nothing(path):
        if (path / "config.json").exists():
            raise UsageError(f"--output: {path} is not empty; resume the run in it with --resume, or name a new folder.")
        require_new_folder(path, "--output")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file of a run; a last line cut by a kill is left out."""
    if not path.exists():
        return []
    *whole, _cut = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in whole]


def environment() -> dict[str, Any]:
    """Versions, GPU and commit, for `config.json` and every recorded figure."""
    import torch

    found = {"kernrl": __version__, "python": platform.python_version()}
    for package in ("torch", "triton", "transformers", "accelerate", "peft"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": found,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "commit": _commit(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _lock(path: Path) -> int:
    """Lock a run's folder for this process: two at once would mix their steps. The lock ends with the process."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"--output: another process is at work in {path}; wait for it, or name another folder.") from None
    except OSError:
        pass  # a file system without locks: the user must not start two
    return descriptor


def _did_nothing(path: Path) -> bool:
    """Whether the folder holds only a run's settings, and its log: the run was refused after that, for its data or model."""
    files = {file.name for file in path.iterdir()} if path.is_dir() else {""}
    if "config.json" not in files:
        return files <= {LOCK}
    return files <= {LOCK, "config.json", "log.txt"} and "argv" in read_json(path / "config.json")


def _drop_cut_line(path: Path) -> None:
    """Remove what a kill left after the last newline, so that the next line starts a line of its own."""
    with path.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
