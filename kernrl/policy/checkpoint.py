"""Atomic checkpoints: staged, fsynced, marked COMPLETE, then renamed into place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from kernrl.errors import RunError, UsageError
from kernrl.files import replace_file

if TYPE_CHECKING:
    from kernrl.policy.ranks import Ranks

COMPLETE = "COMPLETE"

TORCH_CANNOT_WRITE = ("PytorchStreamWriter", "inline_container", "iostream error")
"""Words in the RuntimeErrors that torch.save raises on a full disk."""


def commit_checkpoint(parent: Path, name: str, write: Callable[[Path], None], ranks: Ranks | None = None) -> Path:
    """Let `write` fill a staging directory, then make it `parent/name` in one rename.

    A kill at any moment leaves either no `parent/name` or a complete one. A directory of that name is replaced.

    Args:
        write: called on every rank with the same directory, on a file system that all of them share.
        ranks: that call this together; None for this process alone.
    """
    leads, meet = (ranks.leads, ranks.meet) if ranks else (True, lambda: None)
    staging, final = parent / f".staging-{name}", parent / name
    if leads:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    meet()
    try:
        write(staging)
        meet()
        if leads:
            publish(staging, final)
        meet()
    except BaseException as error:
        if leads:
            shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, SafetensorError) or any(words in str(error) for words in TORCH_CANNOT_WRITE):
            raise RunError(f"{final} could not be written ({error}); make room, or name another place.") from error
        raise
    return final


def publish(staging: Path, final: Path) -> None:
    """Mark a staged checkpoint as complete, and rename it into place."""
    (staging / COMPLETE).write_text("")
    readers = staging.stat().st_mode & 0o666  # by the umask; safetensors writes files that only their owner can read
    for file in sorted(staging.rglob("*")):
        if file.is_file():
            with suppress(PermissionError):  # a mounted bucket has no file modes
                file.chmod(readers)
        _fsync(file)
    _fsync(staging)
    if final.exists():  # only where a step is repeated after a resume
        shutil.rmtree(final)
    os.replace(staging, final)
    _fsync(final.parent)


def latest_checkpoint(run: Path) -> Path | None:
    """The complete `step_N` directory with the highest N, or None."""
    return run / f"step_{max(steps)}" if (steps := complete_steps(run)) else None


def complete_steps(run: Path) -> list[int]:
    """The N of every complete `step_N` directory, in no order."""
    return [int(d.name[5:]) for d in run.glob("step_*") if d.name[5:].isdigit() and (d / COMPLETE).exists()]


def prune_checkpoints(run: Path, keep: int, best: int | None = None) -> None:
    """Remove all but the `keep` newest complete step directories, and that of step `best`."""
    steps = sorted((d for d in run.glob("step_*") if d.name[5:].isdigit()), key=lambda d: int(d.name[5:]))
    for old in steps[:-keep]:
        if old.name != f"step_{best}":
            shutil.rmtree(old)


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically: a reader sees the old file or the new one."""
    replace_file(path, json.dumps(data, indent=2))


def read_json(path: Path) -> Any:
    """Read JSON. Raises UsageError where the file is missing or is not JSON."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist.") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from None


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
