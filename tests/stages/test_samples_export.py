"""`kernrl samples --export`, and source that leaves through a pipe as it is."""

import hashlib
import json

import pytest
from support.synthetic_run import correct, row, verdict, write_lines
from support.tiny import verdict_of

from kernrl.cli import run
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.nano.form import candidate, replies
from kernrl.verifier.base.parse import Candidate, parse_reply
from kernrl.verifier.base.verdict import Stage, Status

LONG = "x = " + " + ".join(["1"] * 80) + "\n"


@pytest.fixture
def samples(tmp_path):
    rows = [
        row(correct("level2/1_a b", 1.2), member=0, text="slow = 1\n"),
        row(correct("level2/1_a b", 2.5), member=1, text=LONG),
        row(correct("b", 1.1), text="b = 1\n"),
        row(verdict("c", Status.WRONG, Stage.CORRECTNESS, "no"), text="c = 1\n"),
    ]
    write_lines(tmp_path / "run" / "samples.jsonl", rows)
    return tmp_path / "run"


def test_the_best_correct_kernel_of_each_task_is_a_file_as_it_was_judged(samples, tmp_path, capsys):
    folder = tmp_path / "kernels"
    assert run(["samples", str(samples), "--export", str(folder), "--json"]) == 0
    assert {p.name: p.read_text().strip() for p in folder.iterdir()} == {"level2_1_a_b.py": LONG.strip(), "b.py": "b = 1"}
    listed = json.loads(capsys.readouterr().out)
    assert [(entry["task"], entry["speedup_x"]["value"]) for entry in listed] == [("level2/1_a b", 2.5), ("b", 1.1)]


TEXTS = {
    "crlf": "```python\r\nclass ModelNew: ...  # \u00e9\r\n```",
    "bare": "class ModelNew: ...",
    "blanks": "Here:\n```python\n\n\nclass ModelNew:\n    a = 1   \n\t\n\n```\nDone.",
    "fences": 'So.\n```python\nclass ModelNew:\n    """\n    ```python\n    use()\n    ```\n    """\n```\n',
    "two": "```python\nclass ModelNew: a = 1\n```\nBetter:\n```python\nclass ModelNew: a = 2\n```",
    "form feed": "```python\nclass ModelNew: ...\x0c\nx = 1\n```",
}
"""Replies by the name of their task."""


def test_a_file_s_sha256_is_the_verdict_s(tmp_path):
    rows = [row(verdict_of(text, speedup_x=2.0, task_id=name)) | {"text": text} for name, text in TEXTS.items()]
    write_lines(tmp_path / "run" / "samples.jsonl", rows)
    assert run(["samples", str(tmp_path / "run"), "--export", str(tmp_path / "kernels")]) == 0
    found = {p.stem: hashlib.sha256(p.read_bytes()).hexdigest() for p in (tmp_path / "kernels").iterdir()}
    assert found == {r["task"].replace(" ", "_"): r["verdict"]["candidate_sha"] for r in rows}


@pytest.mark.slow
def test_what_nano_replies_is_saved_as_the_file_that_was_judged(tmp_path):
    task = load_tasks("heldout").tasks[0]
    source = candidate(task, replies(task, "fp32")[0])
    judged = parse_reply(source)
    assert isinstance(judged, Candidate)
    write_lines(tmp_path / "run" / "samples.jsonl", [row(verdict_of(source, speedup_x=2.0)) | {"text": source}])
    assert run(["samples", str(tmp_path / "run"), "--export", str(tmp_path / "kernels")]) == 0
    saved = (tmp_path / "kernels" / "task.py").read_bytes()
    assert (saved.decode(), hashlib.sha256(saved).hexdigest()) == (source, judged.sha)


def test_an_export_of_nothing_or_over_something_is_refused(samples, tmp_path, capsys):
    assert run(["samples", str(samples), "--task", "c", "--export", str(tmp_path / "none")]) == 2
    assert "has no correct candidate" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert run(["samples", str(samples), "--export", str(samples)]) == 2
    assert "--export" in capsys.readouterr().err


def test_source_in_a_pipe_is_not_wrapped(samples, capsys):
    assert run(["samples", str(samples), "--show", "best"]) == 0
    assert LONG in capsys.readouterr().out
    assert run(["tasks", "show", "heldout#2"]) == 0
    shown = capsys.readouterr().out
    assert "    return [torch.randn(batch_size, rows, inner), torch.randn(batch_size, inner, columns)]\n" in shown


def test_a_reason_is_whole_in_a_pipe(tmp_path, capsys):
    reason = "the error is far over its tolerance " * 9
    write_lines(
        tmp_path / "run" / "samples.jsonl", [row(verdict("c", Status.WRONG, Stage.CORRECTNESS, reason), text="c = 1\n")]
    )
    assert run(["samples", str(tmp_path / "run")]) == 0
    assert reason.strip() in capsys.readouterr().out
