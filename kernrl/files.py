"""Write files whole or not at all, and never over someone's work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from kernrl.errors import UsageError

DRAWN = 'data-made-by="kernrl"'
"""An attribute of the drawings that kernrl makes, by which `require_ours` knows them."""


@contextmanager
def atomic_write(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file that appears at `path` only when the block ends well, already on disk.

    The text goes to a temporary file beside `path`, which an exception removes.

    Raises:
        UsageError: `path` exists already, its folder does not, or takes no files.
    """
    refuse_existing(path)
    require_writable(path)
    with _beside(path) as temporary:
        with open(temporary, "x", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        refuse_existing(path)
        os.rename(temporary, path)
    _sync_folder(path.parent)


def replace_file(path: Path, text: str) -> None:
    """Write a UTF-8 file that can be made again, over the old one: a reader sees that or the new one, never a half.

    Raises:
        UsageError: The folder of `path` does not exist.
    """
    require_folder_of(path)
    with _beside(path) as temporary:
        with open(temporary, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A name in the same folder, whose file an exception removes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
    except BaseException as error:
        with suppress(OSError):  # a read-only disk refuses this too, and the first refusal is the one to tell
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename) in ("None", str(temporary)):
            error.filename = str(path)  # of a full disk it names no file, of others the temporary one
            if isinstance(error, FileNotFoundError) and path.parent.is_dir():  # such as /proc
                raise UsageError(f"{path}: no file can be created in {path.parent}; name another folder.") from None
        raise


def require_writable_folder(path: Path, flag: str) -> None:
    """Raise UsageError when nothing can be written in a folder, or in the one where it is to be made; names `flag`."""
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not os.access(there, os.W_OK):
        which = "it" if there == path else there
        raise UsageError(f"{flag} {path}: {which} cannot be written to; name another folder.")


def require_new_folder(path: Path, flag: str) -> None:
    """Raise UsageError for a folder that has something in it, a file, or a place that cannot be written to; names `flag`."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{flag}: {path} is a file; name a folder.")
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"{flag}: {path} is not empty; name a new folder, or empty this one.")
    require_writable_folder(path, flag)


def new_folder(path: Path, flag: str) -> Path:
    """Make a folder, or take an empty one.

    Raises:
        UsageError: It has something in it, is a file, or cannot be made; the sentence names `flag`.
    """
    require_new_folder(path, flag)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
        raise UsageError(f"{flag}: {path} cannot be made ({error.strerror}: {error.filename}); name another folder.") from None
    return path


def next_folder(parent: Path, stem: str) -> Path:
    """The first of `stem-1`, `stem-2`, … that is not in `parent`."""
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"


def refuse_existing(path: Path) -> None:
    """Raise UsageError when there is something at `path`."""
    if path.exists():
        raise UsageError(f"{path} exists already; name another file, or move this one away.")


def require_ours(path: Path, mark: str, flag: str) -> None:
    """Raise UsageError when a file cannot be written there, or another one than ours, which has `mark` in its head and can be
    made again, would be lost."""
    require_writable(path, flag)
    if path.exists() and mark not in path.read_text(encoding="utf-8", errors="replace")[:1000]:
        raise UsageError(f"{flag} {path}: it exists and was not written by kernrl; name another file.")


def require_folder_of(path: Path, flag: str = "") -> None:
    """Raise UsageError when the folder that a file is to go into is not there."""
    if not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {path.parent}; make it, or name another file.".lstrip())


def require_writable(path: Path, flag: str = "") -> None:
    """Raise UsageError when a file cannot be written there, before what is to be written in it is worked for."""
    require_folder_of(path, flag)
    if path.is_dir():
        raise UsageError(f"{flag} {path}: it is a folder; name a file.".lstrip())
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{flag} {path}: {path.parent} cannot be written to; name a file in another folder.".lstrip())


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
