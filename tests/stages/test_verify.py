"""`kernrl verify` from outside: what it prints, what it exits with, and how a file of pairs goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import TESTS

from kernrl import cli
from kernrl.errors import InfrastructureError
from kernrl.files import DRAWN
from kernrl.stages import verify
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Stage, Status, Verdict

TASK = TESTS / "fixture_tasks" / "mish_chain.py"
GOOD = TESTS / "honest" / "mish_chain_flat.py"


class Fake:
    """Says `correct` of what holds the word good, `infra_error` of what holds broken, else `wrong`; remembers what it saw."""

    seen: list[tuple[str, str]]

    def __init__(self, config: object) -> None:
        pass

    def verify(self, task: Task, candidate: str) -> Verdict:
        Fake.seen.append((task.id, candidate))
        status = Status.CORRECT if "good" in candidate else Status.INFRA_ERROR if "broken" in candidate else Status.WRONG
        return Verdict(status, Stage.CORRECTNESS, "because", task.id, "0", "fp32")

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        yield from reversed([(i, self.verify(*pair)) for i, pair in enumerate(pairs)])

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    Fake.seen = []
    monkeypatch.setattr(verify, "open_verifier", Fake)
    return Fake


@pytest.mark.parametrize(("text", "code"), [("good", 0), ("bad", 1), ("broken", 3)])
def test_exit_codes_and_json(
    fake: type[Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int
) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(text)
    assert cli.run(["verify", str(TASK), str(path), "--json"]) == code
    row = json.loads(capsys.readouterr().out)
    assert row["correct"] is (code == 0)
    assert {"status", "stage", "reason", "speedup_x", "baseline", "timing", "errors", "plan", "seconds", "versions"} <= set(row)


@pytest.mark.parametrize(
    "arguments",
    [[], [str(TASK)], [str(TASK), "no/such/file"], ["no/such/task.py", str(GOOD)], ["--pairs", "no/such"], ["--tasks"]],
)
def test_bad_input_is_one_sentence_and_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", *arguments]) == 2
    assert capsys.readouterr().err.strip()


def test_infrastructure_that_cannot_work_is_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: object) -> Any:
        raise InfrastructureError("the sandbox cannot be started.")

    monkeypatch.setattr(verify, "open_verifier", broken)
    assert cli.run(["verify", str(TASK), str(GOOD)]) == 3


def write_pairs(path: Path, *candidates: str) -> None:
    keys = ["candidate_file" if c.endswith(".py") else "candidate" for c in candidates]
    rows = [{"task": str(TASK), key: c} for key, c in zip(keys, candidates, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_pairs_are_written_with_their_index_and_resumed(fake: type[Fake], tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "verdicts.jsonl"
    (tmp_path / "file.py").write_text("good, from a file")
    write_pairs(pairs, "good\n", "file.py", "bad\n", "broken\n")
    arguments = ["verify", "--pairs", str(pairs), "--out", str(out)]
    assert cli.run(arguments) == 3
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {r["index"]: r["status"] for r in rows} == {0: "correct", 1: "correct", 2: "wrong", 3: "infra_error"}
    assert [r["index"] for r in rows] == [3, 2, 1, 0]  # as they complete
    out.write_text("\n".join(json.dumps(r) for r in rows if r["index"] != 2) + '\n{"index": 2, "sta')
    fake.seen.clear()
    assert cli.run(arguments) == 3
    assert [c for _, c in fake.seen] == ["bad\n", "broken\n"]  # what was cut short, and what had failed
    assert sorted(json.loads(line)["index"] for line in out.read_text().splitlines()) == [0, 1, 2, 3]


def test_candidates_of_one_task_go_together_whatever_their_order(fake: type[Fake], tmp_path: Path) -> None:
    other = TESTS / "fixture_tasks" / "conv_bn_relu.py"
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "out.jsonl"
    rows = [{"task": str(task), "candidate": f"good {i}\n"} for i in range(4) for task in (TASK, other)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.run(["verify", "--pairs", str(pairs), "--out", str(out)]) == 0
    assert [task for task, _ in fake.seen] == ["mish_chain"] * 4 + ["conv_bn_relu"] * 4
    assert [candidate for _, candidate in fake.seen] == [f"good {i}\n" for i in range(4)] * 2
    written = {row["index"]: row["task_id"] for row in map(json.loads, out.read_text().splitlines())}
    assert written == {i: ("mish_chain", "conv_bn_relu")[i % 2] for i in range(8)}


def test_a_task_given_as_text_is_the_task_of_a_file(fake: type[Fake], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the sizes that it states; and rows of one text are one task, whatever is between them."""
    given: list[Task] = []

    class Noting(Fake):
        def verify(self, task: Task, candidate: str) -> Verdict:
            given.append(task)
            return super().verify(task, candidate)

    monkeypatch.setattr(verify, "open_verifier", Noting)
    text = TASK.read_text()
    other, broken = text.replace('"M": 8', '"M": 4'), text.replace('"M": 8', '"nothing": 8')
    rows = [{"task": one, "candidate": "good\n"} for one in (text, other, broken, text, other)] + [
        {"task": text, "candidate": "good\n", "id": "mine"},
        {"task": "import torch\n", "candidate": "good\n"},
    ]
    pairs, file = tmp_path / "pairs.jsonl", tmp_path / "stated.py"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file.write_text(text)
    assert cli.run(["verify", "--pairs", str(pairs), "--out", str(tmp_path / "out.jsonl"), "--json"]) == 2
    assert [task.id for task in given] == ["pairs-0", "pairs-0", "mine", "pairs-1", "pairs-1"]
    [of_file] = load_tasks(file).tasks
    assert given[0].input_sets == given[2].input_sets == of_file.input_sets
    assert given[3].input_sets != of_file.input_sets


def test_a_bad_row_is_named(fake: type[Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"task": "t"}\n')
    assert cli.run(["verify", "--pairs", str(pairs), "--out", str(tmp_path / "o")]) == 2
    assert "pairs.jsonl:1" in capsys.readouterr().err


def test_rows_that_cannot_be_read_fail_alone(fake: type[Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "o"
    (tmp_path / "folder.py").mkdir()
    good = {"task": str(TASK), "candidate": "good\n"}
    rows = [
        good, good | {"candidate": 5}, {"task": str(TASK), "candidate_file": "folder.py"}, good | {"task": "x" * 5000},
        [1], good | {"candidate_file": "a.py"}, good | {"id": []}, {"task": "a\0b", "candidate": "good"}, {"task": str(TASK),
        "candidate_file": "/proc/self/mem"}, good,
    ]  # fmt: skip
    deep = "[" * 100_000
    pairs.write_text("\n".join([*map(json.dumps, rows), deep, "{", '{"task": 1e999}']) + "\n")
    assert cli.run(["verify", "--pairs", str(pairs), "--out", str(out), "--json"]) == 2
    summary = json.loads(capsys.readouterr().out)
    assert [json.loads(line)["index"] for line in out.read_text().splitlines()] == [9, 0]
    assert [bad["row"] for bad in summary["bad_rows"]] == [2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13]
    assert f"{pairs}:3: " in summary["bad_rows"][1]["reason"]
    assert (summary["verdicts"], summary["statuses"]) == (2, {"correct": 2})


def test_a_reply_is_never_taken_for_a_file_name(fake: type[Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "right.py").write_text("good")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"task": str(TASK), "candidate": "right.py"}))
    assert cli.run(["verify", "--pairs", str(pairs), "--out", str(tmp_path / "o")]) == 0
    assert fake.seen == [("mish_chain", "right.py")]
    assert "candidate_file" in capsys.readouterr().out


def test_faults_of_the_verifier_are_counted_and_not_tried_for_ever(
    fake: type[Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "o"
    write_pairs(pairs, "good\n", "bad\n")
    fault = Verdict(Status.INFRA_ERROR, Stage.PLAN, "IndexError", "t", "0", "fp32", internal_error=True)
    out.write_text(json.dumps({"index": 0, **fault.to_json()}) + "\n")
    assert cli.run(["verify", "--pairs", str(pairs), "--out", str(out), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["internal_errors"] == 1
    assert [c for _, c in fake.seen] == ["bad\n"]


@pytest.mark.parametrize(
    ("pairs", "out", "says"),
    [
        (b'{"task": "\xff"}', "v.jsonl", "is not UTF-8 text"),
        (b"", "v.jsonl", "is empty"),
        (b"here", "pairs.jsonl", "does not hold verdicts alone"),
        (b"here", "nowhere/v.jsonl", "there is no folder"),
        (b"here", ".", "it is a folder; name a file"),
        (b"here", "/proc/v.jsonl", "it cannot be written to"),
    ],
)
def test_pairs_that_cannot_be_read_or_written(
    fake: type[Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str], pairs: bytes, out: str, says: str
) -> None:
    path = tmp_path / "pairs.jsonl"
    text = pairs.replace(b"here", json.dumps({"task": str(TASK), "candidate": "good"}).encode())
    path.write_bytes(text)
    assert cli.run(["verify", "--pairs", str(path), "--out", str(tmp_path / out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("kernrl: --")
    assert says in error
    assert path.read_bytes() == text


def test_a_verdict_that_was_cut_short_is_made_again(fake: type[Fake], tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "v.jsonl"
    pairs.write_text(json.dumps({"task": str(TASK), "candidate": "good"}))
    for cut in ('{"in', '{"index": 0, "sta'):
        out.write_text(cut)
        assert cli.run(["verify", "--pairs", str(pairs), "--out", str(out)]) == 0
        assert json.loads(out.read_text())["status"] == "correct"


def test_verdicts_of_other_pairs_are_not_gone_on_with(fake: type[Fake], tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "verdicts.jsonl"
    write_pairs(pairs, "good\n")
    out.write_text('{"index": 5, "status": "correct"}\n')
    assert cli.run(["verify", "--pairs", str(pairs), "--out", str(out)]) == 2


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_a_real_verdict_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A task of one large size is judged at derived ones, and priced at its own."""
    drawing = tmp_path / "graph.svg"
    arguments = ["verify", str(TASK), str(GOOD), "--device", "cpu", "--no-cache", "--json", "--explain", str(drawing)]
    assert cli.run([*arguments, "--workers", "1"]) == 0
    row = json.loads(capsys.readouterr().out)
    said = verify.account(Verdict.from_json(row), drawing)
    assert [str(part.text) for part in said.renderables[1:]] == [f"drawn in {drawing}"]
    assert row["status"] == "correct"
    assert {record["input_set"] for record in row["errors"]} == {"small", "ragged"}
    assert row["plan"]["launches"] == 1
    assert drawing.read_text().startswith("<svg")


def test_what_only_a_gpu_can_tell_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Small(Fake):
        def verify(self, task: Task, candidate: str) -> Verdict:
            status = Status.NEEDS_GPU if "large" in candidate else Status.WRONG
            return Verdict(status, Stage.CORRECTNESS, "because", task.id, "0", "fp32")

    monkeypatch.setattr(verify, "open_verifier", Small)
    codes = {}
    for name in ("large", "wrong"):
        (tmp_path / name).write_text(name)
        codes[name] = cli.run(["verify", str(TASK), str(tmp_path / name)])
    assert codes == {"large": 4, "wrong": 1}
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"task": str(TASK), "candidate": f"{name} {i}\n"} for i, name in enumerate(("large", "wrong", "wrong"))]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    assert cli.run(["verify", "--pairs", str(pairs), "--out", str(tmp_path / "out.jsonl")]) == 0
    assert "judged 2 of 3: the others need a GPU" in capsys.readouterr().out


def test_a_file_without_end_is_read_in_part(fake: type[Fake], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", str(TASK), "/dev/zero"]) == 1
    [(_, candidate)] = Fake.seen
    assert len(candidate) == verify.MOST_CHARS


def test_a_byte_order_mark_is_no_code(fake: type[Fake], tmp_path: Path) -> None:
    """As editors on Windows write it."""
    (tmp_path / "candidate.py").write_text("good", encoding="utf-8-sig")
    (tmp_path / "task.py").write_text(TASK.read_text(), encoding="utf-8-sig")
    row = json.dumps({"task": str(tmp_path / "task.py"), "candidate_file": str(tmp_path / "candidate.py")})
    (tmp_path / "pairs.jsonl").write_text(row, encoding="utf-8-sig")
    assert cli.run(["verify", str(tmp_path / "task.py"), str(tmp_path / "candidate.py")]) == 0
    assert cli.run(["verify", "--pairs", str(tmp_path / "pairs.jsonl"), "--out", str(tmp_path / "out.jsonl")]) == 0
    assert [candidate for _, candidate in Fake.seen] == ["good", "good"]


def test_task_and_candidate_the_wrong_way_round(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", str(GOOD), str(TASK)]) == 2
    assert "but ModelNew: it is a candidate and no task" in capsys.readouterr().err


def test_a_drawing_that_cannot_be_written_is_refused_first(
    fake: type[Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["verify", str(TASK), str(GOOD), "--explain"]
    assert cli.run([*line, str(tmp_path / "absent" / "a.svg")]) == 2
    assert cli.run([*line, str(tmp_path)]) == 2
    assert "it is a folder; name a file" in capsys.readouterr().err
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    assert cli.run([*line, str(tmp_path / "a.svg")]) == 2
    assert "cannot be written to" in capsys.readouterr().err
    assert not Fake.seen


def test_a_drawing_replaces_an_older_one_and_nothing_else(
    fake: type[Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes, old = tmp_path / "notes.svg", tmp_path / "old.svg"
    notes.write_text('<svg xmlns="http://www.w3.org/2000/svg"></svg>')
    old.write_text(f"<svg {DRAWN}></svg>")
    assert cli.run(["verify", str(TASK), str(GOOD), "--explain", str(notes)]) == 2
    assert "it exists and was not written by kernrl" in capsys.readouterr().err
    assert cli.run(["verify", str(TASK), str(GOOD), "--explain", str(old)]) == 1
    assert (notes.stat().st_size, old.stat().st_size) == (46, 0)  # the verdict has no plan to draw
