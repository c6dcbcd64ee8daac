"""Every place where tasks are kept, every form of row, and what is said of the bad ones."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernrl.errors import UsageError
from kernrl.files import atomic_write, new_folder
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import BadRow, parse_columns, task_from_row, task_to_row, write_difficulty_labels, write_tasks
from kernrl.tasks.task import InputSet, Solution, Task

CODE = "class Model: ...\nN = 4\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n"
FULL_TASK = Task(
    id="linear-0001",
    pytorch_code=CODE,
    level=2,
    name="linear_relu",
    family="linear",
    composition=("linear", "relu"),
    split="heldout",
    instruction="Fuse ünïcode.",
    precision="tf32",
    input_sets=(InputSet("full"), InputSet("ragged", {"N": 3})),
    solutions=(Solution("fused", "import triton\n"), Solution("split", "x = 1\n")),
)


def jsonl(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def kernelbench(root: Path) -> Path:
    """A folder in KernelBench's layout, with two levels; 10 comes after 2."""
    for name in ("level1/1_first.py", "level2/10_tenth.py", "level2/2_second.py"):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CODE)
    return root


def ids(source: object, **options: Any) -> list[str]:
    loaded = load_tasks(str(source), **options)
    assert not loaded.problems
    return [task.id for task in loaded.tasks]


# forms of row


def test_our_own_form_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    other = Task(id="b", pytorch_code=CODE)
    assert write_tasks(path, [FULL_TASK, other]) == 2
    assert load_tasks(path).tasks == (FULL_TASK, other)
    assert load_tasks(tmp_path).tasks == (FULL_TASK, other)
    row = json.loads(path.read_text().splitlines()[0])
    assert row == task_to_row(FULL_TASK) == task_to_row(replace(FULL_TASK, same_numbers=(InputSet("small"),)))
    assert row["input_sets"][1] == {"name": "ragged", "constants": {"N": 3}}


def test_difficulty_labels_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "difficulty_labels.jsonl"
    write_difficulty_labels(path, [FULL_TASK])
    row = {"instruction": "Fuse ünïcode.", "pytorch_code": CODE, "difficulty": 2}
    assert json.loads(path.read_text()) == row
    assert load_tasks(path).tasks == (Task(id="row-1", pytorch_code=CODE, level=2, instruction="Fuse ünïcode."),)


def test_kernelbench_columns() -> None:
    row = {"code": CODE, "level": 1, "name": "19_ReLU.py", "problem_id": 19}
    task = task_from_row(row, "row-1")
    assert (task.id, task.level, task.name) == ("level1/19_ReLU", 1, "19_ReLU")
    assert task_from_row(row | {"name": "ReLU"}, "row-1").id == "level1/19"


@pytest.mark.parametrize("value", [3, "3", "level3", "level_3", "Level 3"])
def test_levels_are_read_however_they_are_written(value: object) -> None:
    assert task_from_row({"pytorch_code": CODE, "difficulty": value}, "x").level == 3


def test_single_triton_column_is_a_solution() -> None:
    task = task_from_row({"pytorch_code": CODE, "triton_code": "import triton"}, "x")
    assert task.solutions == (Solution("given", "import triton"),)


BOOK = {
    "python_code": "from torch import nn\n\n\nclass Part(nn.Module): ...\n\n\nclass Net(nn.Module): ...\n"
    "def get_inputs(): return []\ndef get_init_inputs(): return [[], {}]\n",
    "entry_point": "Net",
    "triton_code": "class NetNew: ...\n",
    "uuid": 7,
}


def test_kernelbook_columns() -> None:
    task = task_from_row(BOOK, "row-1")
    assert (task.id, task.name) == ("row-1", "Net")
    assert task.pytorch_code == BOOK["python_code"] + "\n\nModel = Net\n"
    assert task.solutions == (Solution("given", "class NetNew: ...\n\n\nModelNew = NetNew\n"),)
    assert task_from_row(BOOK | {"python_code": CODE, "entry_point": "Model"}, "x").pytorch_code == CODE
    assert task_from_row(BOOK | {"triton_code": "class ("}, "x").solutions == (Solution("given", "class ("),)


def test_an_entry_point_beside_another_model_is_refused() -> None:
    with pytest.raises(BadRow, match="has the entry_point Net, and code that defines another Model"):
        task_from_row(BOOK | {"python_code": f"{BOOK['python_code']}class Model: ...\n"}, "x")


def test_a_module_of_another_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(str(BOOK["python_code"]))
    with pytest.raises(UsageError, match=r"defines no Model: if Net is the module, write Model = Net below it\.$"):
        load_tasks(tmp_path / "net.py")


# places


def test_kernelbench_folder(tmp_path: Path) -> None:
    kernelbench(tmp_path / "KernelBench")
    everything = ["level1/1_first", "level2/2_second", "level2/10_tenth"]
    assert ids(tmp_path) == everything
    assert ids(tmp_path / "KernelBench") == everything
    assert ids(tmp_path / "KernelBench" / "level2") == everything[1:]
    assert ids(tmp_path, split="level_1") == everything[:1]
    assert ids(tmp_path, limit=2) == everything[:2]


def test_one_task_is_picked_by_id_or_row(tmp_path: Path) -> None:
    kernelbench(tmp_path)
    assert ids(f"{tmp_path}::level2/10_tenth") == ["level2/10_tenth"]
    assert ids(f"{tmp_path}/level2#10") == ["level2/10_tenth"]
    table = jsonl(tmp_path / "t.jsonl", [{"id": "a", "code": CODE}, "broken", {"id": "c", "code": CODE}])
    assert ids(f"{table}#3") == ["c"]
    with pytest.raises(UsageError, match="no task with the id 'z'"):
        load_tasks(f"{table}::z")
    with pytest.raises(UsageError, match=r"t\.jsonl:2 is not JSON"):
        load_tasks(f"{table}#2")


def test_python_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    assert load_tasks(file).tasks == (Task(id="mine", pytorch_code=CODE, name="mine"),)


def test_parquet_and_json(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [task_to_row(FULL_TASK), task_to_row(Task(id="b", pytorch_code=CODE, input_sets=(InputSet("small", {"M": 2}),)))]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    tasks = load_tasks(tmp_path / "t.parquet").tasks
    assert tasks[0] == FULL_TASK
    # arrow gives all structs the same keys; the ones another row brought in must not come back
    assert tasks[1].input_sets == (InputSet("small", {"M": 2}),)
    (tmp_path / "t.json").write_text(json.dumps(rows))
    assert load_tasks(tmp_path / "t.json").tasks[0] == FULL_TASK


def test_saved_dataset_with_kernelbench_splits(tmp_path: Path) -> None:
    import datasets

    def level(n: int) -> datasets.Dataset:
        return datasets.Dataset.from_list([{"code": CODE, "level": n, "name": f"{i}_x", "problem_id": i} for i in (1, 2)])

    datasets.DatasetDict({"level_1": level(1), "level_2": level(2)}).save_to_disk(str(tmp_path / "kb"))
    assert ids(tmp_path / "kb") == ["level1/1_x", "level1/2_x", "level2/1_x", "level2/2_x"]
    assert ids(tmp_path / "kb", split="level_2") == ["level2/1_x", "level2/2_x"]
    level(1).save_to_disk(str(tmp_path / "one"))
    assert ids(tmp_path / "one") == ["level1/1_x", "level1/2_x"]


def test_hub_dataset_passes_the_revision_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[object] = []

    def fake(name: str, revision: str | None) -> object:
        asked.append((name, revision))
        return {"level_1": [{"code": CODE, "problem_id": 1, "level": 1}], "level_2": [{"code": CODE, "problem_id": 1}]}

    monkeypatch.setattr("kernrl.hub.ask_hub", lambda *args: "there")
    monkeypatch.setattr(datasets, "load_dataset", fake)
    assert ids("someone/bench", revision="abc", split="level_1") == ["level1/1"]
    assert asked == [("someone/bench", "abc")]


def test_split_of_rows(tmp_path: Path) -> None:
    rows = [{"id": s, "code": CODE, "split": s} for s in ("train", "heldout")]
    table = jsonl(tmp_path / "t.jsonl", rows)
    assert ids(table, split="heldout") == ["heldout"]
    with pytest.raises(UsageError, match="no task of split 'validation'"):
        load_tasks(table, split="validation")


def test_columns_are_mapped(tmp_path: Path) -> None:
    table = jsonl(tmp_path / "t.jsonl", [{"source": CODE, "key": "k", "code": "not this"}])
    assert ids(table, columns=parse_columns(["pytorch_code=source", "id=key"])) == ["k"]
    with pytest.raises(UsageError, match=r"t\.jsonl:1 has no column 'nope', which --map names; its columns are source, key"):
        load_tasks(table, columns={"pytorch_code": "nope"})
    with pytest.raises(UsageError, match="did you mean 'pytorch_code'"):
        parse_columns(["pytorch_cod=source"])
    with pytest.raises(UsageError, match="FIELD=COLUMN"):
        parse_columns(["source"])


# what is wrong


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ({"text": "x"}, "has no column pytorch_code or code or python_code; its columns are text"),
        ({"code": 3}, "pytorch_code that is not text: 3"),
        ({"code": "def ("}, "not Python"),
        ({"code": CODE.replace("Model", "Net")}, "defines no Model"),
        ({"code": "class Model: ..."}, "defines no get_inputs and no get_init_inputs"),
        ({"code": CODE, "level": "hard"}, "level that is not a number: 'hard'"),
        ({"code": CODE, "composition": "linear"}, "composition that is not a list"),
        ({"code": CODE, "solutions": [{"style": "a"}]}, "solution without 'triton_code'"),
        ({"code": CODE, "input_sets": [{"name": "full"}]}, "input_sets"),
        ({"id": "good", "code": CODE}, "repeats the id 'good'"),
    ],
)
def test_bad_row_is_reported_and_the_rest_loads(tmp_path: Path, row: object, reason: str) -> None:
    good = {"id": "good", "code": CODE}
    table = jsonl(tmp_path / "t.jsonl", [good, row, good | {"id": "last"}])
    loaded = load_tasks(table)
    assert [task.id for task in loaded.tasks] == ["good", "last"]
    [problem] = loaded.problems
    assert reason in str(problem)
    assert "t.jsonl" in problem.where
    assert "2" in problem.where


def test_bad_file_of_a_folder_is_reported(tmp_path: Path) -> None:
    kernelbench(tmp_path)
    (tmp_path / "level2" / "3_bad.py").write_bytes(b"\xff\xfe")
    loaded = load_tasks(tmp_path)
    assert len(loaded.tasks) == 3
    assert [str(p) for p in loaded.problems] == [f"{tmp_path}/level2/3_bad.py is not UTF-8 text."]


def test_a_link_to_nowhere_does_not_hide_the_other_tasks(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "b.py").symlink_to("/nowhere/b.py")
    (tmp_path / "c.py").mkdir()
    loaded = load_tasks(str(tmp_path))
    assert [task.id for task in loaded.tasks] == ["a"]
    assert [str(problem) for problem in loaded.problems] == [
        f"{tmp_path}/b.py cannot be read: No such file or directory.",
        f"{tmp_path}/c.py cannot be read: Is a directory.",
    ]


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "bad.py").write_text("x = 1\n")
    (tmp_path / "none.jsonl").write_text("\n")
    (tmp_path / "fake.parquet").write_text("x")
    cases = {
        "empty": "holds no task",
        "notes.txt": "a source is a .py",
        "bad.py": "bad.py has code that defines no Model",
        "none.jsonl": "there is no task",
        "fake.parquet": "not a parquet file",
        "missing.jsonl": "there is no such file",
    }
    for name, words in cases.items():
        with pytest.raises(UsageError, match=words) as raised:
            load_tasks(tmp_path / name)
        assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="--revision"):
        load_tasks(tmp_path / "bad.py", revision="abc")


# files


def test_writers_refuse_to_overwrite_and_leave_nothing_half_done(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    write_tasks(path, [FULL_TASK])
    before = path.read_text()
    with pytest.raises(UsageError, match="exists already"):
        write_tasks(path, [FULL_TASK])
    assert path.read_text() == before

    def broken() -> Iterable[Task]:
        yield FULL_TASK
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tasks(tmp_path / "other.jsonl", broken())
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.jsonl"]


def test_atomic_write_does_not_replace_what_came_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(UsageError, match="exists already"), atomic_write(path) as file:  # noqa: PT012
        file.write("ours")
        path.write_text("theirs")
    assert path.read_text() == "theirs"


def test_new_folder(tmp_path: Path) -> None:
    assert new_folder(tmp_path / "a" / "b", "--out").is_dir()
    new_folder(tmp_path / "a" / "b", "--out")
    with pytest.raises(UsageError, match=r"^--out: .* is not empty"):
        new_folder(tmp_path / "a", "--out")
    (tmp_path / "f").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        new_folder(tmp_path / "f", "--out")


def test_a_function_of_the_users_is_a_source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tasks_of_a_test.py").write_text(
        "from kernrl.tasks.loaders import load_tasks\n"
        "def make():\n"
        "    shipped = load_tasks('heldout', limit=2).tasks\n"
        "    return [shipped[0], {'id': 'mine', 'pytorch_code': shipped[1].pytorch_code}, {'pytorch_code': 'x = 1'}]\n"
    )
    loaded = load_tasks("tasks_of_a_test:make")
    first = load_tasks("heldout", limit=1).tasks[0]
    assert loaded.tasks[0] == first
    assert loaded.tasks[1].id == "mine"
    assert str(loaded.problems[0]).startswith("tasks_of_a_test:make, row 3, has code that defines no Model")
    assert load_tasks("tasks_of_a_test:make::mine").tasks[0].id == "mine"
    (tmp_path / "sources_of_a_test.py").write_text(
        "import itertools\nfrom kernrl.tasks.loaders import load_tasks\n"
        "def number():\n    return 3\n\ndef lost():\n    return open('nowhere.jsonl')\n\ndef texts():\n    return ['abc']\n\n"
        "def endless():\n    yield from itertools.repeat(load_tasks('heldout', limit=1).tasks[0])\n"
    )
    for name, reason in (
        ("number", "it should return tasks or rows: TypeError: 'int' object is not iterable"),
        ("lost", r"FileNotFoundError: .*nowhere.jsonl' \(sources_of_a_test.py, line 7\)"),
        ("texts", "row 1, is a str, where a task or a row"),
    ):
        with pytest.raises(UsageError, match=reason):
            load_tasks(f"sources_of_a_test:{name}")
    assert len(load_tasks("sources_of_a_test:endless", limit=1).tasks) == 1
    with pytest.raises(
        UsageError, match="the source of tasks tasks_of_a_test:other: the module tasks_of_a_test has no 'other'"
    ):
        load_tasks("tasks_of_a_test:other")


def test_code_that_is_not_python_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text("import torch\nclass Model(torch.nn.Module:\n    pass\n")
    with pytest.raises(UsageError, match=r"my\.py has code that is not Python: invalid syntax in line 2\.$"):
        load_tasks(str(tmp_path / "my.py"))
