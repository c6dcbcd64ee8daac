"""A task as a row of a table, in the four forms that are read and the two that are written.

Ours: `id, level, name, family, composition, split, instruction, precision, pytorch_code, solutions, input_sets`.
KernelBench's: `code, level, name, problem_id`. The difficulty labels': `instruction, pytorch_code, difficulty`.
KernelBook's: `python_code, entry_point, triton_code`, where `entry_point` names the module.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from kernrl.errors import UsageError, did_you_mean
from kernrl.files import atomic_write
from kernrl.syntax import parse_python
from kernrl.tasks.constants import Constant, override_constants
from kernrl.tasks.task import FULL, InputSet, Solution, Task

COLUMNS: dict[str, tuple[str, ...]] = {
    "pytorch_code": ("pytorch_code", "code", "python_code"),
    "entry_point": ("entry_point",),
    "id": ("id",),
    "problem_id": ("problem_id",),
    "level": ("level", "difficulty"),
    "name": ("name",),
    "family": ("family",),
    "composition": ("composition",),
    "split": ("split",),
    "instruction": ("instruction",),
    "precision": ("precision",),
    "solutions": ("solutions",),
    "triton_code": ("triton_code",),
    "input_sets": ("input_sets",),
}
"""Field → the columns it is read from when `--map` says nothing, in order of preference."""

CONTRACT = ("Model", "get_inputs", "get_init_inputs")


class BadRow(ValueError):
    """Why a row is no task; the message completes the sentence "the row ..."."""


def task_to_row(task: Task) -> dict[str, Any]:
    """A task as JSON-able data in our own form: `task_from_row(task_to_row(task)) == task`, for a task without `same_numbers`,
    which are always derived."""
    fields = [field.name for field in dataclasses.fields(task) if field.name != "same_numbers"]
    return {name: getattr(task, name) for name in fields} | {
        "composition": list(task.composition),
        "input_sets": [_set_to_row(s) for s in task.input_sets],
        "solutions": [{"style": s.style, "triton_code": s.triton_code} for s in task.solutions],
    }


def task_from_row(row: Mapping[str, Any], fallback_id: str, columns: Mapping[str, str] | None = None) -> Task:
    """Read a task from a row in any of the forms.

    Args:
        row: Column → value.
        fallback_id: The id of a row that has none.
        columns: Field → column, for the fields whose column is not the usual one.

    Raises:
        BadRow: A column is missing or holds the wrong kind of value, or the code breaks the contract.
    """
    fields = {field: _cell(row, field, columns or {}) for field in COLUMNS}
    code = _text(fields, "pytorch_code")
    if not code:
        raise BadRow(f"has no column {' or '.join(COLUMNS['pytorch_code'])}; its columns are {', '.join(row)}")
    entry = _text(fields, "entry_point")
    code = _named(code, entry, "Model")
    check_contract(code)
    level = _level(fields["level"])
    return Task(
        id=_text(fields, "id") or _kernelbench_id(fields, level) or fallback_id,
        pytorch_code=code,
        level=level,
        name=_text(fields, "name").removesuffix(".py") or entry,
        family=_text(fields, "family"),
        composition=tuple(_list(fields, "composition", str)),
        split=_text(fields, "split"),
        instruction=_text(fields, "instruction"),
        precision=_text(fields, "precision") or "fp32",
        input_sets=_input_sets(fields) or stated_input_sets(code),
        solutions=_solutions(fields, entry),
    )


def check_contract(code: str) -> None:
    """Raise BadRow unless `code` parses and binds `Model`, `get_inputs` and `get_init_inputs` at its top level."""
    bound = _all_bound(code)
    missing = [name for name in CONTRACT if name not in bound]
    if missing:
        candidate = ", but ModelNew: it is a candidate and no task" if "ModelNew" in bound else ""
        raise BadRow(f"has code that defines no {' and no '.join(missing)}{candidate or _other_model(code, missing)}")


def _all_bound(code: str) -> set[str]:
    """Names that are bound at the top level. Raises BadRow when `code` does not parse."""
    try:
        tree = parse_python(code)
    except (SyntaxError, ValueError) as error:
        where = f"{error.msg} in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else str(error)
        raise BadRow(f"has code that is not Python: {where}") from None
    return {name for statement in tree.body for name in _names_bound(statement)}


def _other_model(code: str, missing: list[str]) -> str:
    """What to do where only the module has another name."""
    classes = [one for one in parse_python(code).body if isinstance(one, ast.ClassDef)]
    modules = [one.name for one in classes if any("Module" in ast.unparse(base) for base in one.bases)]
    if missing != ["Model"] or not modules:
        return ""
    return f": if {modules[-1]} is the module, write Model = {modules[-1]} below it"


def _named(code: str, name: str, wanted: str) -> str:
    """The code, in which what is bound as `name` is also bound as `wanted`."""
    if not name or name == wanted or name not in (bound := _all_bound(code)):
        return code
    if wanted in bound:
        raise BadRow(f"has the entry_point {name}, and code that defines another {wanted}")
    return f"{code.rstrip()}\n\n\n{wanted} = {name}\n"


def stated_input_sets(code: str) -> tuple[InputSet, ...]:
    """The full set, and those that the source itself states: `INPUT_SETS = {"small": {"N": 16}, …}` at its top level.

    Raises BadRow when that is no literal of this form, or names what is no constant.
    """
    stated = next(
        (s.value for s in parse_python(code).body if isinstance(s, ast.Assign) and "INPUT_SETS" in _names_bound(s)), None
    )
    if stated is None:
        return (InputSet(FULL),)
    try:
        sets = [InputSet(str(name), _constants(constants)) for name, constants in ast.literal_eval(stated).items()]
        for input_set in sets:
            override_constants(code, input_set.constants, where="INPUT_SETS")
    except UsageError as error:
        raise BadRow(f"has INPUT_SETS that do not fit: {str(error).rstrip('.')}") from None
    except (ValueError, TypeError, AttributeError):
        raise BadRow("has INPUT_SETS that are not a literal {name: {constant: whole number or tuple}}") from None
    return (*(() if any(s.name == FULL for s in sets) else (InputSet(FULL),)), *sets)


def parse_columns(pairs: Iterable[str], fields: Collection[str] = tuple(COLUMNS)) -> dict[str, str]:
    """`["pytorch_code=source"]` → `{"pytorch_code": "source"}`, for `--map`; raises UsageError.

    Args:
        fields: What may be mapped: those of a task, unless a reader knows of others.
    """
    columns = {}
    for pair in pairs:
        field, equals, column = pair.partition("=")
        if not (field and equals and column):
            raise UsageError(f"--map {pair}: write FIELD=COLUMN, such as pytorch_code=source.")
        if field not in fields:
            raise UsageError(f"--map {pair}: there is no field {field!r}: {did_you_mean(field, list(fields))}")
        columns[field] = column
    return columns


def write_tasks(path: Path, tasks: Iterable[Task]) -> int:
    """Write tasks in our own form, one JSON object a line, whole or not at all; returns how many.

    Raises:
        UsageError: `path` exists already.
    """
    return _write_lines(path, map(task_to_row, tasks))


def write_difficulty_labels(path: Path, tasks: Iterable[Task]) -> int:
    """Write tasks as `{instruction, pytorch_code, difficulty}` lines, the level being the difficulty; returns how many.

    Raises:
        UsageError: `path` exists already.
    """
    rows = ({"instruction": t.instruction, "pytorch_code": t.pytorch_code, "difficulty": t.level} for t in tasks)
    return _write_lines(path, rows)


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    count = 0
    with atomic_write(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _names_bound(statement: ast.stmt) -> Collection[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return (statement.name,)
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    return ()


def _cell(row: Mapping[str, Any], field: str, columns: Mapping[str, str]) -> Any:
    if field in columns:
        if columns[field] not in row:
            raise BadRow(f"has no column {columns[field]!r}, which --map names; its columns are {', '.join(row)}")
        return row[columns[field]]
    return next((row[column] for column in COLUMNS[field] if row.get(column) is not None), None)


def _text(fields: Mapping[str, Any], field: str) -> str:
    value = fields[field]
    if value is not None and not isinstance(value, str):
        raise BadRow(f"has a {field} that is not text: {value!r:.60}")
    return value or ""


def _list(fields: Mapping[str, Any], field: str, kind: type) -> list[Any]:
    value = fields[field] if fields[field] is not None else []
    if not isinstance(value, list | tuple) or not all(isinstance(item, kind) for item in value):
        raise BadRow(f"has a {field} that is not a list of {kind.__name__}: {value!r:.60}")
    return list(value)


def _level(value: Any) -> int:
    """2, "2", "level2" and "level_2" are level 2; a row that does not say is level 2 as well."""
    if value is None:
        return 2
    match = re.fullmatch(r"(?:level[ _]?)?(\d+)", str(value).strip().lower())
    if isinstance(value, bool) or match is None:
        raise BadRow(f"has a level that is not a number: {value!r:.60}")
    return int(match[1])


def _kernelbench_id(fields: Mapping[str, Any], level: int) -> str:
    """`level2/40_name`, the same from a table as from a folder; KernelBench's names carry the number, others' may not."""
    number, name = fields["problem_id"], _text(fields, "name").removesuffix(".py")
    if number is None:
        return ""
    return f"level{level}/{name}" if name.startswith(f"{number}_") else f"level{level}/{number}"


def _input_sets(fields: Mapping[str, Any]) -> tuple[InputSet, ...]:
    sets = _list(fields, "input_sets", dict)
    try:
        # a parquet table gives every row all the constants of the file, most of them null
        read = [InputSet(s["name"], _constants(s["constants"]), bool(s.get("derived"))) for s in sets]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadRow(f"has input_sets that are not a list of {{name, constants}}: {sets!r:.60}") from None
    return tuple(read)


def _set_to_row(input_set: InputSet) -> dict[str, Any]:
    row = {"name": input_set.name, "constants": dict(input_set.constants)}
    return row | {"derived": True} if input_set.derived else row


def _constants(values: Mapping[str, Any]) -> dict[str, Constant]:
    return {
        name: tuple(map(int, value)) if isinstance(value, list | tuple) else int(value)
        for name, value in values.items()
        if value is not None
    }


def _solutions(fields: Mapping[str, Any], entry: str) -> tuple[Solution, ...]:
    rows = _list(fields, "solutions", dict)
    try:
        solutions = [Solution(row["style"], row["triton_code"]) for row in rows]
    except KeyError as error:
        raise BadRow(f"has a solution without {error}") from None
    single = _text(fields, "triton_code")
    if entry:  # KernelBook's answers name their class after the module
        with contextlib.suppress(BadRow):
            single = _named(single, f"{entry}New", "ModelNew")
    return tuple([*solutions, Solution("given", single)] if single else solutions)
