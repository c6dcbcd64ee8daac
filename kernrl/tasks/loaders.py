"""Find tasks wherever people keep them: a file, a KernelBench folder, a table, a dataset, or the shipped suite.

A row that is no task is reported with its file and line, and the rest loads.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernrl.console import counted
from kernrl.errors import UsageError
from kernrl.tasks.rows import BadRow, check_contract, stated_input_sets, task_from_row
from kernrl.tasks.task import Task
from kernrl.user_code import is_import_path, load_function

SHIPPED = {"heldout": "heldout_level2.jsonl"}
"""Word → file of the suites that come with kernrl."""

PRECISION = "tf32"
"""Of the tasks of `MADE`, as of those of `SHIPPED`. A row or file that states none is fp32."""

MADE = ("graph-heldout", "graph-deep", "graph-single", "graph-train")
"""Words for suites that are made on the spot, of random Graphs in many coding styles: see `kernrl/tasks/nano/suites.py`."""

TABLES = (".jsonl", ".json", ".parquet")


@dataclass(frozen=True, slots=True)
class Problem:
    """A row or file that is no task."""

    where: str
    """`tasks.jsonl:12`, a path, or a dataset's row."""
    reason: str

    def __str__(self) -> str:
        return f"{self.where} {self.reason}."


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """What a source held: at least one task, and what could not be read."""

    tasks: tuple[Task, ...]
    problems: tuple[Problem, ...]


Entries = Iterator[tuple[int, Task | Problem]]
"""Row number (from 1; the problem's number in a KernelBench folder) and what is there, in the source's order."""


def load_tasks(
    source: str | Path,
    *,
    split: str | None = None,
    revision: str | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> LoadedTasks:
    """Load tasks.

    Args:
        source: A task `.py` file; a folder in KernelBench's layout, or one with `tasks.jsonl` in it; a `.jsonl`, `.json` or
            `.parquet` table; a saved `datasets` folder; a dataset id of the hub; or a word of `SHIPPED` or `MADE`.
            `SOURCE::ID` picks the task with that id, `SOURCE#ROW` the one in that row, counted from 1. Or a function of the
            user's by import path, `package.module:name`, which returns tasks or rows.
        split: Only this split of the tasks; `level_2` is every task of level 2; for a dataset, one of its own splits.
        revision: Commit or tag of a hub dataset; refused for any other source.
        columns: Field → column, as `parse_columns` reads `--map`.
        limit: Stop after this many tasks.

    Raises:
        UsageError: There is nothing of that name, or no task in it; one sentence with the first problem.
    """
    base, task_id, row = _pick(str(source))
    most = 1 if task_id or row else limit
    tasks: dict[str, Task] = {}
    problems: list[Problem] = []
    for number, entry in _entries(base, split, revision, columns or {}):
        if row not in (None, number):
            continue
        if isinstance(entry, Problem):
            problems.append(entry)
        elif task_id in (None, entry.id) and split in (None, entry.split, f"level_{entry.level}"):
            if entry.id in tasks:
                problems.append(Problem(f"{base}, row {number},", f"repeats the id {entry.id!r}"))
            tasks.setdefault(entry.id, entry)
        if len(tasks) == most:
            break
    if not tasks:
        what = (
            f" with the id {task_id!r}"
            if task_id
            else f" in row {row}"
            if row is not None
            else f" of split {split!r}"
            if split
            else ""
        )
        raise UsageError(f"{source}: there is no task{what}{_because(problems)}.")
    return LoadedTasks(tuple(tasks.values()), tuple(problems))


def _because(problems: list[Problem]) -> str:
    if not problems:
        return ""
    more = f", and {counted(len(problems) - 1, 'more row is no task', 'more rows are no tasks')}" if len(problems) > 1 else ""
    return f": {problems[0].where} {problems[0].reason}{more}"


def _pick(source: str) -> tuple[str, str | None, int | None]:
    """Split `SOURCE::ID` and `SOURCE#ROW`."""
    base, separator, task_id = source.partition("::")
    if separator:
        return base, task_id, None
    match = re.fullmatch(r"(.+)#(\d+)", source)
    return (match[1], None, int(match[2])) if match else (source, None, None)


def read_rows(source: str | Path, *, split: str | None = None, revision: str | None = None) -> Iterator[Row] | None:
    """The raw rows of a source that is a table or a dataset; None where it is one or more task files.

    Raises:
        UsageError: There is nothing of that name, or it cannot be read.
    """
    base = str(source)
    if not base:
        raise UsageError(f"the source of tasks is empty: name a file, a folder, a dataset id or {' or '.join(SHIPPED)!r}.")
    if base in MADE:
        raise UsageError(f"{base} is a suite that is made on the spot, and has no rows to read; name a file or a dataset.")
    path = _shipped(SHIPPED[base]) if base in SHIPPED else Path(base)
    if revision and (path.exists() or base in SHIPPED):
        raise UsageError(f"--revision: {base} is not a dataset of the hub.")
    if path.is_file():
        if path.suffix in TABLES:
            return _table(path)
        if path.suffix != ".py":
            raise UsageError(f"{base}: a source is a .py, {', '.join(TABLES)} file or a folder.")
        return None
    if path.is_dir():
        if (path / "tasks.jsonl").is_file():
            return _table(path / "tasks.jsonl")
        is_dataset = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
        return _saved_dataset(path, split) if is_dataset else None
    # `data/typo` beside a folder `data` is a typo, not a dataset to ask the hub for
    if re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not path.parent.exists():
        return _hub(base, split, revision)
    words = ", ".join([*SHIPPED, *MADE])
    raise UsageError(f"{base}: there is no such file or folder, and it is neither a dataset id nor one of {words}.")


def _own_entries(path: str, columns: Mapping[str, str]) -> Entries:
    """What a user's function returns: tasks, or rows as a table has them."""
    for number, entry in enumerate(_returned(path), start=1):
        try:
            if not isinstance(entry, Task | Mapping):
                raise BadRow(f"is a {type(entry).__name__}, where a task or a row (a mapping) is wanted")
            yield number, entry if isinstance(entry, Task) else task_from_row(entry, f"row-{number}", columns)
        except BadRow as error:
            yield number, Problem(f"{path}, row {number},", str(error))


def _returned(path: str) -> Iterator[Any]:
    """What a user's function returns, one by one: it may be a generator, and without an end."""
    function = load_function(path, "the source of tasks")
    try:
        yield from function()
    except UsageError:
        raise
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        where = f" ({Path(line.filename).name}, line {line.lineno})" if line.filename != __file__ else ""
        said = f"{type(error).__name__}: {str(error).rstrip('.')}{where}"
        raise UsageError(f"the source of tasks {path}: it should return tasks or rows: {said}.") from error


def _entries(base: str, split: str | None, revision: str | None, columns: Mapping[str, str]) -> Entries:
    if is_import_path(base) and not Path(base).exists():
        return _own_entries(base, columns)
    if base in MADE:
        from kernrl.tasks.nano.suites import suite  # which loads torch

        return enumerate((replace(task, precision=PRECISION) for task in suite(base)), start=1)
    rows = read_rows(base, split=split, revision=revision)
    return _rows(rows, columns) if rows is not None else _python_files(_task_files(Path(base)))


def _task_files(path: Path) -> list[Path]:
    """The task files of a folder in KernelBench's layout, or the one file."""
    if path.is_file():
        return [path]
    # a clone of KernelBench keeps its levels one folder down
    root = path / "KernelBench" if (path / "KernelBench").is_dir() else path
    levels = sorted(folder for folder in root.glob("level*") if folder.is_dir())
    files = [file for folder in levels or [root] for file in sorted(folder.glob("*.py"), key=_problem_number)]
    if not files:
        raise UsageError(f"{path}: the folder holds no task: no tasks.jsonl, no dataset, no .py file, no level*/ folder.")
    return files


def _problem_number(file: Path) -> tuple[int, str]:
    match = re.match(r"(\d+)_", file.name)
    return (int(match[1]) if match else 0, file.name)


def _python_files(files: Iterable[Path]) -> Entries:
    """One task a file; `level2/40_name.py` is problem 40 of level 2, with the id `level2/40_name`."""
    for position, file in enumerate(files, start=1):
        level = re.fullmatch(r"level_?(\d+)", file.parent.name)
        number = _problem_number(file)[0] or position
        try:
            code = file.read_text(encoding="utf-8-sig")
            check_contract(code)
            sets = stated_input_sets(code)
        except (BadRow, UnicodeDecodeError) as error:
            yield number, Problem(str(file), str(error) if isinstance(error, BadRow) else "is not UTF-8 text")
            continue
        except OSError as error:  # a link to nowhere, a folder of such a name
            yield number, Problem(str(file), f"cannot be read: {error.strerror}")
            continue
        task_id = f"level{level[1]}/{file.stem}" if level else file.stem
        yield number, Task(task_id, code, level=int(level[1]) if level else 2, name=file.stem, input_sets=sets)


Row = tuple[str, Mapping[str, Any] | BadRow]
"""Where a row is, and what it holds or why it cannot be read."""


def _rows(rows: Iterable[Row], columns: Mapping[str, str]) -> Entries:
    for number, (where, row) in enumerate(rows, start=1):
        try:
            if isinstance(row, BadRow):
                raise row
            yield number, task_from_row(row, fallback_id=f"row-{number}", columns=columns)
        except BadRow as error:
            yield number, Problem(where, str(error))


def _table(path: Path) -> Iterator[Row]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        try:
            batches = pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=256)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((f"{path}, row {n}", row) for n, row in enumerate(rows, start=1))
        except (pyarrow.ArrowException, OSError) as error:
            raise UsageError(f"{path}: this is not a parquet file: {str(error).rstrip('.')}.") from None
    elif path.suffix == ".json":
        yield from _json_array(path)
    else:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _parse_line(line)


def _json_array(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UsageError(f"{path}: this is not JSON: {error}.") from None
    if not isinstance(rows, list):
        raise UsageError(f"{path}: a .json source is one array of rows; one object a line goes into a .jsonl file.")
    for number, row in enumerate(rows, start=1):
        yield f"{path}, row {number}", row if isinstance(row, dict) else BadRow("is not a JSON object")


def _parse_line(line: str) -> Mapping[str, Any] | BadRow:
    try:
        row = json.loads(line)
    except ValueError as error:
        return BadRow(f"is not JSON: {error}")
    return row if isinstance(row, dict) else BadRow("is not a JSON object")


def _saved_dataset(path: Path, split: str | None) -> Iterator[Row]:
    import datasets

    return _dataset_rows(str(path), datasets.load_from_disk(str(path)), split)


def _hub(name: str, split: str | None, revision: str | None) -> Iterator[Row]:
    import datasets
    from datasets import config as hub_client

    from kernrl.hub import NO_ANSWER, ask_hub, unknown

    said = ask_hub("dataset", name, revision)
    if said == "unknown":
        raise UsageError(f"{name}: there is no such file here, and {unknown('dataset')}.")
    before = hub_client.HF_HUB_OFFLINE
    try:
        hub_client.HF_HUB_OFFLINE = said == "silent"  # then what was downloaded is read at once
        loaded = datasets.load_dataset(name, revision=revision)
    except Exception as error:  # the hub's client raises many kinds, and all mean the same to the user
        first_line = str(error).partition("\n")[0].rstrip(".")
        why = NO_ANSWER if said == "silent" else f"the dataset cannot be loaded: {first_line}"
        raise UsageError(f"{name}: there is no such file here, and {why}.") from error
    finally:
        hub_client.HF_HUB_OFFLINE = before
    return _dataset_rows(name, loaded, split)


def _dataset_rows(name: str, loaded: Any, split: str | None) -> Iterator[Row]:
    """Rows of a `Dataset`, or of the wanted splits of a `DatasetDict`; a split's name is its rows' split."""
    splits = loaded if isinstance(loaded, Mapping) else {"": loaded}
    for split_name, rows in splits.items():
        # `level_2` may be a split of the dataset or a level found in its rows
        if split in splits and split_name != split:
            continue
        for number, row in enumerate(rows, start=1):
            where = f"{name}, split {split_name}, row {number}" if split_name else f"{name}, row {number}"
            yield where, {"split": split_name, **row}


def _shipped(file_name: str) -> Path:
    """A data file of kernrl: inside the package where it was installed from a wheel, beside it in a checkout."""
    package = Path(__file__).parents[1]
    found = next((p for p in (package / "data" / file_name, package.parent / "data" / file_name) if p.is_file()), None)
    if found is None:
        raise UsageError(f"the shipped suite {file_name} is missing from this installation; reinstall kernrl.")
    return found
