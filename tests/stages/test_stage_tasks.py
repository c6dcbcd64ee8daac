"""`kernrl tasks`, from the outside: what is printed, what is written, and what is refused."""

import json
from pathlib import Path

import pytest

from kernrl import cli, console
from kernrl.config import EvalConfig
from kernrl.policy.pairs import task_messages
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import write_tasks
from kernrl.tasks.task import Solution, Task

CODE = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return FORWARD


def get_inputs():
    return [torch.randn(4, 4)]


def get_init_inputs():
    return []
"""


def task(task_id: str, forward: str = "torch.relu(x)", **fields: object) -> Task:
    return Task(id=task_id, pytorch_code=CODE.replace("FORWARD", forward), **fields)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    fused, split = Solution("fused", "FUSED = 1\n"), Solution("split", "SPLIT = 12\n")
    one = task("a", family="linear", composition=("linear", "relu"), split="train", solutions=(fused, split))
    write_tasks(path, [one, task("b", family="conv2d", composition=("conv2d", "relu", "relu"), split="heldout")])
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """stdout of a command line that ends with `code`."""
    assert cli.run(["tasks", *arguments]) == code
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command line that ends with 2."""
    assert cli.run(["tasks", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_list(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(answer(capsys, "list", str(table), "--json"))
    assert [row["id"] for row in rows] == ["a", "b"]
    assert rows[0]["solutions"] == ["fused", "split"]
    assert "conv2d → relu → relu" in answer(capsys, "list", str(table), "--split", "heldout")


def test_list_leaves_out_what_no_task_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(CODE.replace("FORWARD", "torch.relu(x)"))
    assert cli.run(["tasks", "list", str(tmp_path / "mine.py")]) == 0
    assert capsys.readouterr().out == "id    solutions\nmine  0\n"


def test_list_has_one_line_a_row_however_long_a_composition_is(tmp_path, capsys, monkeypatch) -> None:
    path = tmp_path / "long.jsonl"
    write_tasks(path, [task("a-task-of-a-long-name", family="linear", composition=("conv_transpose2d",) * 9, split="heldout")])
    assert answer(capsys, "list", str(path)).splitlines()[1].count("conv_transpose2d") == 9
    monkeypatch.setattr(console.out, "width", 80)
    monkeypatch.setattr(type(console.out), "is_terminal", property(lambda self: True))
    _, row = answer(capsys, "list", str(path)).splitlines()
    assert len(row) <= 80
    assert row.split("→")[0].split() == ["a-task-of-a-long-name", "linear", "conv_transpose2d"]
    assert "… " in row
    assert row.split()[-2:] == ["heldout", "0"]


def test_show_reference_and_solution(table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = answer(capsys, "show", str(table))
    assert "torch.relu(x)" in text
    assert "FUSED = 1" in text
    assert "other styles: split" in text
    assert "SPLIT = 12" in answer(capsys, "show", str(table), "--style", "split")
    # in a wide terminal they stand side by side
    monkeypatch.setattr(console.out, "width", 160)
    monkeypatch.setattr(type(console.out), "is_terminal", property(lambda self: True))
    wide = answer(capsys, "show", f"{table}::a").splitlines()
    assert any("import torch" in line and "FUSED = 1" in line for line in wide)
    # and where a line of one would be cut, one after the other
    monkeypatch.setattr(console.out, "width", 120)
    stacked = answer(capsys, "show", "heldout#2").splitlines()
    assert "    return [torch.randn(batch_size, rows, inner), torch.randn(batch_size, inner, columns)]" in stacked
    assert json.loads(answer(capsys, "show", f"{table}#2", "--json"))["id"] == "b"


def test_show_prompt(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "`class ModelNew(nn.Module)`" in answer(capsys, "show", str(table), "--prompt")


def test_the_prompt_that_is_shown_is_the_one_that_is_sent(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [task] = load_tasks("heldout#2").tasks
    for flags, facts, gpu in (([], True, "H200"), (["--no-facts", "--target", "L4"], False, "L4")):
        shown = answer(capsys, "show", "heldout#2", "--prompt", *flags)
        system, request = (m["content"] for m in task_messages(task, "chat", gpu=gpu, facts=facts))
        assert system in shown
        assert request in shown
        assert ("FLOP" in shown) == facts
    assert EvalConfig().facts
    assert EvalConfig().name_gpu


def test_show_refuses_an_unknown_style(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "it has fused, split" in refusal(capsys, "show", str(table), "--style", "fast")


def test_stats(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stats = json.loads(answer(capsys, "stats", str(table), "--json"))
    assert (stats["tasks"], stats["compositions"], stats["pairs"]) == (2, 2, 2)
    assert stats["op"] == {"relu": 3, "linear": 1, "conv2d": 1}
    assert stats["depth"] == {"2": 1, "3": 1}
    assert stats["style"] == {"fused": 1, "split": 1}
    assert stats["characters"]["triton_code"] == {"min": 10, "median": 10.5, "max": 11}
    assert "60.0%" in answer(capsys, "stats", str(table))
    chains = [task(f"{depth}-{n}", composition=("relu",) * depth) for depth in (4, 2, 10) for n in range(depth)]
    deep = table.with_name("deep.jsonl")
    write_tasks(deep, chains)
    said = answer(capsys, "stats", str(deep)).splitlines()
    depths = said[said.index("depth  count  share") + 1 :][:3]
    assert [line.split()[0] for line in depths] == ["2", "4", "10"]


@pytest.mark.slow
def test_check_names_the_tasks_that_cannot_teach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mixed.jsonl"
    write_tasks(path, [task("good"), task("flat", "x * 0"), task("nan", "x / 0 * 0")])
    report = json.loads(answer(capsys, "check", str(path), "--json", code=1))
    assert report["tasks"] == 3
    assert [problem.split(":")[0] for problem in report["problems"]] == ["flat", "nan"]
    assert "1 of 1 references can be used" in answer(capsys, "check", f"{path}::good")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "words"),
    [("x * 0", "same value"), ("x * float('nan')", "NaN"), ("1 / 0", "ZeroDivisionError")],
)
def test_task_file_that_cannot_teach_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], forward: str, words: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CODE.replace("FORWARD", forward))
    assert words in refusal(capsys, "check", str(file))


def test_bad_sources_exit_2(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    no_model = tmp_path / "no_model.py"
    no_model.write_text(CODE.replace("class Model", "class Net"))
    assert "defines no Model" in refusal(capsys, "list", str(no_model))
    (tmp_path / "empty").mkdir()
    assert "holds no task" in refusal(capsys, "list", str(tmp_path / "empty"))
    assert "no column 'nope'" in refusal(capsys, "list", str(table), "--map", "pytorch_code=nope")
    assert "no task of split 'train2'" in refusal(capsys, "list", str(table), "--split", "train2")


def test_bad_rows_are_named_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    write_tasks(path, [task("a")])
    path.write_text(path.read_text() + "broken\n")
    assert cli.run(["tasks", "list", str(path), "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 1
    assert "Skipped: " in captured.err
    assert "t.jsonl:2 is not JSON" in captured.err


def test_generate_writes_a_folder_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made"
    made = json.loads(answer(capsys, "generate", "--count", "6", "--workers", "1", "--out", str(out), "--json"))
    assert made == {"path": str(out / "tasks.jsonl"), "tasks": 6}
    tasks = load_tasks(out).tasks
    assert len(tasks) == 6
    assert all(t.solutions and t.composition and t.input_set("ragged") for t in tasks)
    assert json.loads((out / "config.json").read_text())["config"]["count"] == 6


@pytest.mark.slow
def test_generate_is_the_same_for_any_number_of_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for workers in ("1", "2"):
        out = str(tmp_path / workers)
        answer(capsys, "generate", "--count", "70", "--seed", "5", "--workers", workers, "--out", out)
    one, two = ((tmp_path / workers / "tasks.jsonl").read_bytes() for workers in ("1", "2"))
    assert one == two


def test_generate_refuses_a_folder_with_something_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "--out: " in refusal(capsys, "generate", "--count", "1", "--out", str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_interrupted_generate_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernrl.tasks.grammar import generate

    def interrupted(**_: object):
        yield task("a")
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "generate_tasks", interrupted)
    assert cli.run(["tasks", "generate", "--out", str(tmp_path / "made")]) == 130
    assert capsys.readouterr().err == "kernrl: Interrupted.\n"
    assert list(tmp_path.iterdir()) == []
