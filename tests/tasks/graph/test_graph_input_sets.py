"""Small and ragged sets that are derived: they run, keep the computation, and leave alone what is no size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.graph_cases import assert_task_same

from kernrl.errors import UsageError
from kernrl.tasks.constants import Constant, module_constants, names_in_the_model, override_constants, sizes_in_words
from kernrl.tasks.graph.input_sets import MOST_LIFTS, derive_input_sets, with_input_sets
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import BadRow, stated_input_sets, task_from_row, task_to_row
from kernrl.tasks.task import InputSet, Task, load_reference
from kernrl.tasks.task_check import check_task

ASSIGNED = """\
# größer
N = 128
M: int = 64
BIG = 4 * 32  # a product
SHIFT = 1 << 5
POWER = 2**6
SHAPE = (3, 64,
         32)
SIZES = [16, 24]
height = width = 96
A, B = 8, 16
RATE = 0.5
FOLLOWS = N * 2
NAME = "x"
FLAG = True
FIRST = 1
FIRST = 2
"""


def test_constants_are_numbers_and_tuples_of_them() -> None:
    assert module_constants(ASSIGNED) == {
        "N": 128, "M": 64, "BIG": 128, "SHIFT": 32, "POWER": 64, "SHAPE": (3, 64, 32), "SIZES": (16, 24), "height": 96,
        "width": 96, "A": 8, "B": 16, "RATE": 0.5, "FIRST": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"N": 7},
        {"M": 5, "BIG": 9, "SHIFT": 3, "POWER": 11},
        {"SHAPE": (3, 13, 17)},
        {"SIZES": (5, 7)},
        {"height": 11},
        {"height": 11, "width": 13},
        {"height": 11, "width": 11},
        {"A": 3},
        {"A": 3, "B": 100},
        {"FIRST": 12345},
    ],
)
def test_overriding_changes_those_names_and_no_other(change: dict[str, Constant]) -> None:
    source = override_constants(ASSIGNED, change)
    expected: dict[str, object] = {}
    exec(ASSIGNED, expected)
    expected |= change
    expected["FOLLOWS"] = expected["N"] * 2  # pyright: ignore[reportOperatorIssue]
    if "SIZES" in change:
        expected["SIZES"] = list(change["SIZES"])  # pyright: ignore[reportArgumentType]
    found: dict[str, object] = {}
    exec(source, found)
    assert {k: v for k, v in found.items() if k != "__builtins__"} == {k: v for k, v in expected.items() if k != "__builtins__"}
    assert source.startswith("# größer")


@pytest.mark.parametrize(
    ("change", "words"),
    [({"FOLLOWS": 3}, "names 'FOLLOWS'"), ({"SHAPE": (3, 4)}, "gives 'SHAPE' the value"), ({"N": (1, 2)}, "gives 'N'")],
)
def test_what_cannot_be_overridden_is_said(change: dict[str, Constant], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        override_constants(ASSIGNED, change)


HELD = """\
CFG = {"rows": 64, "shape": (8, 9), 7: 8, "rate": 0.5, "name": "größer"}
more = dict(rows=5 * 8, columns=6)
class Config:
    rows: int = 16
    columns = 2
    left = right = 3
made = Config(rows=1) if False else Config()
CFG["late"] = 4
gone = dict(rows=1)
gone = None
"""


def test_numbers_that_one_name_holds_together_are_constants_too() -> None:
    held = {"CFG.rows": 64, "CFG.shape": (8, 9), "CFG.rate": 0.5, "more.rows": 40, "more.columns": 6}
    assert module_constants(HELD) == {**held, "Config.rows": 16, "Config.columns": 2}
    found: dict[str, Any] = {}
    exec(override_constants(HELD, {"CFG.shape": (1, 2), "more.columns": 11, "Config.rows": 13, "Config.columns": 5}), found)
    assert found["CFG"] == {"rows": 64, "shape": (1, 2), 7: 8, "rate": 0.5, "name": "größer", "late": 4}
    assert found["more"] == {"rows": 40, "columns": 11}
    assert (found["made"].rows, found["made"].columns, found["Config"].left) == (13, 5, 3)
    with pytest.raises(UsageError, match=r"names 'CFG\.late'"):
        override_constants(HELD, {"CFG.late": 1})


SETTINGS = """\
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Settings:
    rows: int = 512
    width: int = 256


MORE = {"out": 96, "window": 64}


class Model(nn.Module):
    def __init__(self, settings: Settings, out):
        super().__init__()
        self.layer = nn.Linear(settings.width, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


def get_inputs():
    return [torch.randn(Settings.rows, Settings.width)]


def get_init_inputs():
    return [Settings(), MORE["out"]]
"""


@pytest.mark.slow
def test_sizes_in_settings_change_unless_the_model_reads_them_by_name() -> None:
    for found in derive_input_sets(Task("t", SETTINGS)):
        assert set(found.constants) == {"Settings.rows", "Settings.width", "MORE.out"}
        assert_task_same(Task("t", SETTINGS), found)
    reading = SETTINGS.replace("settings.width", "Settings.width")
    assert all(set(found.constants) == {"MORE.out"} for found in derive_input_sets(Task("t", reading)))


TASK = """\
import torch
import torch.nn as nn

BATCH, CHANNELS = 64, 128
SIZE = (96, 80)
HEADS = 8
KERNEL = 9
SCALE = 16
WIDTH = HEADS * 64
LIMIT = 4 * 64


class Model(nn.Module):
    def __init__(self, channels, kernel, heads, width, scale, limit):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, kernel, groups=heads, padding=kernel // 2)
        self.norm = nn.GroupNorm(heads, width)
        self.fc = nn.Linear(width, limit)
        self.scale = scale

    def forward(self, x):
        x = self.norm(self.conv(x)) * self.scale
        return torch.softmax(self.fc(x.mean((2, 3))) * self.fc.in_features**-0.5, dim=-1)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, *SIZE)]


def get_init_inputs():
    return [CHANNELS, KERNEL, HEADS, WIDTH, SCALE, LIMIT]
"""


@pytest.mark.slow
def test_sizes_change_and_nothing_else_does() -> None:
    task = Task("t", TASK)
    small, ragged = derive_input_sets(task)
    for found in (small, ragged):
        assert found.derived
        assert {"BATCH", "CHANNELS", "SIZE", "LIMIT"} <= found.constants.keys()
        assert not {"HEADS", "KERNEL", "SCALE"} & found.constants.keys()
        assert found.constants["CHANNELS"] % 8 == 0  # pyright: ignore[reportOperatorIssue]
        graph = assert_task_same(task, found)
        assert graph.digest(numbers=False) == lift(task).digest(numbers=False)
        assert [n.op for n in graph.nodes] == [n.op for n in lift(task).nodes]
    assert all(n % 2 for n in (ragged.constants["LIMIT"], *ragged.constants["SIZE"]))  # pyright: ignore[reportGeneralTypeIssues, reportOperatorIssue]
    assert len({ragged.constants["LIMIT"], *ragged.constants["SIZE"]}) == 3  # pyright: ignore[reportGeneralTypeIssues]


@pytest.mark.slow
def test_where_a_number_moves_there_are_sets_that_keep_it() -> None:
    """A scale of `LIMIT**-0.5` is another one at each limit, so the limit stays."""
    task = with_input_sets(Task("t", TASK.replace("in_features**", "out_features**")))
    assert all(lift(task, found).fingerprint != lift(task).fingerprint for found in task.input_sets[1:])
    assert [s.name for s in task.same_numbers] == ["small", "ragged"]
    for found in task.same_numbers:
        assert found.derived
        assert {"BATCH", "CHANNELS", "SIZE"} == found.constants.keys()
        assert assert_task_same(task, found).fingerprint == lift(task).fingerprint
    assert not with_input_sets(Task("t", CHAIN)).same_numbers


@pytest.mark.slow
def test_sets_that_keep_a_number_are_none_where_they_stay_large() -> None:
    """What is divided by the number of columns has that many, 16 million in the second task."""
    divided = CHAIN.replace("torch.cat([x[:, :half], y], 1) @ x.t()", "(x.mean(0) + y.sum() * 0) / x.shape[1]")
    small = divided.replace("rows, half)", "rows)").replace("rows = cols = 512", "rows, cols = 512, 1024")
    assert with_input_sets(Task("t", small)).same_numbers
    large = small.replace("1024", "4096 * 4096")
    assert [s.name for s in with_input_sets(Task("t", large)).input_sets] == ["full", "small", "ragged"]
    assert not with_input_sets(Task("t", large)).same_numbers


CHAIN = """\
import torch
import torch.nn as nn

rows = cols = 512
half = 256


class Model(nn.Module):
    def forward(self, x, y):
        return torch.cat([x[:, :half], y], 1) @ x.t()


def get_inputs():
    return [torch.randn(rows, cols), torch.randn(rows, half)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_numbers_that_hang_together_change_together() -> None:
    """cols is twice half: neither can move alone."""
    for found in derive_input_sets(Task("t", CHAIN)):
        assert found.constants["cols"] == 2 * found.constants["half"]  # pyright: ignore[reportOperatorIssue]
        assert found.constants["rows"] != found.constants["cols"]
        assert_task_same(Task("t", CHAIN), found)


ATTENTION = """\
import torch
import torch.nn as nn

BATCH, TIME, WIDTH, HEADS = 16, 512, 768, 12
TABLE = 2 * 32
DROPPED = TABLE + 4


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        TIME = heads
        self.heads, self.qk = TIME, nn.Linear(width, 2 * width)
        self.register_buffer("table", torch.randn(DROPPED, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k = self.qk(x + self.table[:, None].mean(0)).view(b, t, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return torch.softmax(q @ k.mT, dim=-1)


def get_inputs():
    return [torch.randn(BATCH, TIME, WIDTH)]


def get_init_inputs():
    return [WIDTH, HEADS]
"""


@pytest.mark.slow
def test_a_number_of_heads_stays_since_no_shape_tells_it() -> None:
    small, ragged = derive_input_sets(Task("t", ATTENTION))
    for found in (small, ragged):
        assert {"BATCH", "TIME", "WIDTH"} == found.constants.keys()
        assert found.constants["WIDTH"] % 12 == 0  # pyright: ignore[reportOperatorIssue]


def test_what_the_model_reads_by_its_name_is_known() -> None:
    assert names_in_the_model(ATTENTION) & set(module_constants(ATTENTION)) == {"TABLE"}
    helper = "N = 8\nM = 9\ndef f():\n    return N\nclass Base:\n    size = f()\n    def forward(self):\n        return M\n"
    helper += "class Model(Base):\n    pass"
    assert {"N", "f", "Base"} <= names_in_the_model(helper)
    assert "M" not in names_in_the_model(helper)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(0, 64, 9))
def test_sets_of_tasks_that_have_lost_theirs(index: int) -> None:
    task = load_tasks("heldout").tasks[index]
    bare = replace(task, input_sets=(InputSet("full"),))
    sets = derive_input_sets(bare)
    assert [s.name for s in sets] == ["small", "ragged"]
    for found in sets:
        graph = assert_task_same(bare, found)
        assert max(value.numel for value in graph.values.values()) < 300_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "forward",
    [
        "x[:, :7].sum(1)",
        "x.view(-1, 16).sum(1)",
        "x * (x.shape[1] - 31) * 0.5 if x.shape[1] > 12 else x",
        "x if len(x) % 2 == 0 else x + 1",
    ],
)
def test_the_computation_stays(forward: str) -> None:
    code = CHAIN.replace("torch.cat([x[:, :half], y], 1) @ x.t()", forward)
    task = Task("t", code)
    for found in derive_input_sets(task):
        assert lift(task, found).digest(numbers=False) == lift(task).digest(numbers=False)


LINEAR = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, made, heads=8):
        super().__init__()
        self.layer = nn.Linear(features, made)
        self.norm = nn.GroupNorm(heads, made)

    def forward(self, x, y):
        return self.norm(self.layer(x)) + y


def get_inputs(rows=3000):
    return [torch.randn(rows, 4 * 256), torch.randn((rows, 512)).clamp(-100, 100)]


def get_init_inputs():
    return [1024, 512]
"""


def test_numbers_written_out_where_inputs_are_made_are_constants() -> None:
    assert module_constants(LINEAR) == {
        "get_inputs.0": 3000, "get_inputs.1": 1024, "get_inputs.2": 512, "get_inputs.3": -100, "get_inputs.4": 100,
        "get_init_inputs.0": 1024, "get_init_inputs.1": 512,
    }  # fmt: skip
    changes: dict[str, Constant] = {"get_inputs.0": 7, "get_inputs.1": 24, "get_init_inputs.0": 24}
    changed = override_constants(LINEAR, changes)
    assert sizes_in_words(LINEAR, changes) == "3000 as 7, 1024 as 24"
    written = "def get_inputs():\n    return [torch.randn(8, 8, 4)]\n"
    sizes = {"get_inputs.0": 11, "get_inputs.1": 13, "get_inputs.2": 4}
    assert sizes_in_words(written, sizes) == "get_inputs.0=11, get_inputs.1=13"
    assert sizes_in_words(written, {"get_inputs.0": 8}) == "8 as 8"
    assert sizes_in_words(ASSIGNED, {"N": 7, "SHAPE": (1, 2, 3)}) == "N=7, SHAPE=(1, 2, 3)"
    assert "rows=7)" in changed
    assert "torch.randn(rows, 24), torch.randn((rows, 512))" in changed
    assert "return [24, 512]" in changed


@pytest.mark.slow
def test_sizes_without_a_name_change_together() -> None:
    small, ragged = derive_input_sets(Task("t", LINEAR))
    for found in (small, ragged):
        now = found.constants
        assert now["get_inputs.0"] < 3000  # pyright: ignore[reportOperatorIssue]
        assert now["get_inputs.1"] == now["get_init_inputs.0"] != 1024
        assert now["get_inputs.2"] == now["get_init_inputs.1"] != 512
        assert not {"get_inputs.3", "get_inputs.4"} & now.keys()  # a bound is no size
        assert_task_same(Task("t", LINEAR), found)
    assert ragged.constants["get_inputs.1"] % 2  # pyright: ignore[reportOperatorIssue]
    fixed = LINEAR.replace("nn.Linear(features, made)", "nn.Linear(1024, 512)")  # and so no more than the rows can change
    assert [list(found.constants) for found in derive_input_sets(Task("t", fixed))] == [["get_inputs.0"]] * 2
    square = LINEAR.replace("4 * 256", "512").replace("1024", "512").replace("3000", "512")
    assert [found.name for found in derive_input_sets(Task("t", square))] == ["small", "ragged"]


POINTING = """\
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, given=16, rows=10):
        super().__init__()
        self.layer, self.table = nn.Linear(given, rows), nn.Embedding(rows, given)

    def forward(self, x, y):
        return {forward}


def get_inputs():
    return [torch.randn(64, 128), {drawn}]


def get_init_inputs():
    return [128, 10]
"""


@pytest.mark.parametrize(
    ("forward", "drawn"),
    [
        ("F.cross_entropy(self.layer(x), y)", "torch.randint(0, 10, (64,))"),
        ("self.table(y) + x", "torch.randint(10, (64,))"),
        ("self.table(y.long()) + x", "torch.randint(0, high=10, size=(64,)).float()"),
        ("torch.gather(x, 1, y).relu()", "torch.randint(0, 128, (64, 128))"),
        ("torch.gather(x, 1, y).relu()", "torch.randint_like(torch.empty(64, 128, dtype=torch.long), 128)"),
    ],
)
def test_labels_and_indices_fit_what_they_point_into(forward: str, drawn: str) -> None:
    task = Task("t", POINTING.format(forward=forward, drawn=drawn))
    found = derive_input_sets(task)
    assert check_task(task).input_sets[1:] == found
    assert [each.name for each in found] == ["small", "ragged"]
    for each in found:
        reference = load_reference(task, each)
        for _ in range(40):
            reference.Model(*reference.get_init_inputs())(*reference.get_inputs())


def test_a_reference_that_the_cpu_refuses_whatever_its_numbers_are_keeps_its_sets() -> None:
    refusing = POINTING.format(forward="self.table(y) + x if x.is_meta else self.none", drawn="torch.randint(10, (64,))")
    refusing = refusing.replace("x.is_meta", "isinstance(x, torch._subclasses.FakeTensor)")
    assert [each.name for each in derive_input_sets(Task("t", refusing))] == ["small", "ragged"]


def test_nothing_is_derived_where_nothing_can_change() -> None:
    assert derive_input_sets(Task("t", CHAIN.replace("512", "4").replace("256", "2"))) == ()
    assert derive_input_sets(Task("t", CHAIN.replace("@ x.t()", "@ x.t()[x.t() > 0]"))) == ()
    assert derive_input_sets(Task("t", "raise ValueError")) == ()


@pytest.mark.slow
def test_an_axis_of_one_stays_one_and_no_other_becomes_one() -> None:
    task = Task("t", CHAIN.replace("torch.cat([x[:, :half], y], 1) @ x.t()", "x.unsqueeze(1).softmax(1)"))
    for found in derive_input_sets(task):
        assert [1 in v.shape for v in lift(task, found).values.values()] == [1 in v.shape for v in lift(task).values.values()]


def test_stated_sets_are_taken_as_they_are(tmp_path: Path) -> None:
    stated = Task("t", CHAIN, input_sets=(InputSet("full"), InputSet("small", {"rows": 4})))
    assert with_input_sets(stated, tmp_path) is stated
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_derived_sets_are_kept_by_source(tmp_path: Path) -> None:
    code = CHAIN + "# kept\n"
    first = with_input_sets(Task("a", code), tmp_path)
    [kept] = (tmp_path / "input_sets").iterdir()
    rows = json.loads(kept.read_text())
    assert [row["name"] for row in rows["sets"]] == ["small", "ragged"]
    assert rows["same_numbers"] == []

    def found_with(text: str, folder: Path) -> Task:
        (folder / "input_sets").mkdir(parents=True)
        (folder / "input_sets" / kept.name).write_text(text)
        return with_input_sets(Task("b", code), folder)

    sets = [{"name": "small", "constants": {"rows": 9, "SIZE": [3, 5]}}]
    same = [{"name": "ragged", "constants": {"rows": 7}}]
    read = found_with(json.dumps({"sets": sets, "same_numbers": same}), tmp_path / "another")
    assert read.input_sets[1:] == (InputSet("small", {"rows": 9, "SIZE": (3, 5)}, derived=True),)
    assert read.same_numbers == (InputSet("ragged", {"rows": 7}, derived=True),)
    assert found_with("not json", tmp_path / "broken").input_sets == first.input_sets
    assert found_with(json.dumps(sets), tmp_path / "older").input_sets == first.input_sets
    assert MOST_LIFTS > 10


@pytest.mark.slow
def test_a_file_may_state_its_sets(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TASK + '\nINPUT_SETS = {"small": {"BATCH": 2, "SIZE": (16, 9)}, "odd": {"LIMIT": 7}}\n')
    [task] = load_tasks(file).tasks
    assert task.input_sets == (
        InputSet("full"), InputSet("small", {"BATCH": 2, "SIZE": (16, 9)}), InputSet("odd", {"LIMIT": 7}),
    )  # fmt: skip
    assert lift(task, task.input_set("small")).inputs[0].value.shape == (2, 128, 16, 9)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ('{"small": {"NOPE": 3}}', "'NOPE'"),
        ('{"small": {"SIZE": (1, 2, 3)}}', "'SIZE'"),
        ('{"small": BATCH}', "not a literal"),
        ('{"small": 3}', "not a literal"),
        ("7", "not a literal"),
    ],
)
def test_sets_that_do_not_fit_are_refused(stated: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadRow, match=words):
        stated_input_sets(f"{TASK}\nINPUT_SETS = {stated}\n")
    file = tmp_path / "mine.py"
    file.write_text(f"{TASK}\nINPUT_SETS = {stated}\n")
    with pytest.raises(UsageError, match="INPUT_SETS"):
        load_tasks(file)


def test_rows_carry_tuples_and_say_what_was_derived() -> None:
    sets = (InputSet("full"), InputSet("small", {"SIZE": (16, 9)}), InputSet("ragged", {"BATCH": 3}, derived=True))
    task = Task("t", TASK, input_sets=sets)
    row = json.loads(json.dumps(task_to_row(task)))
    assert row["input_sets"][1] == {"name": "small", "constants": {"SIZE": [16, 9]}}
    assert task_from_row(row, "other") == task
    old = {"id": "t", "pytorch_code": TASK, "input_sets": [{"name": "small", "constants": {"BATCH": 4}}]}
    assert task_from_row(old, "other").input_sets == (InputSet("small", {"BATCH": 4}),)
