"""What commands say while they work, and how tables leave them."""

from __future__ import annotations

import time

import pytest
from rich.console import Console, Group
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from kernrl import console
from kernrl.command import Output
from kernrl.console import Code, Lines, Prose, Result, Whole, counted, progress, waiting


def test_progress_says_where_it_is_where_there_is_no_terminal(capsys):
    with progress(first_s=0.01, every_s=0.01) as bar:
        position = bar.add_task("tasks", total=2000, completed=1000)
        said = ""
        while "tasks: 1,000 of 2,000\n" not in said:
            time.sleep(0.005)
            said += capsys.readouterr().err
        bar.advance(position, 500)
        while "tasks: 1,500 of 2,000" not in said:
            time.sleep(0.005)
            said += capsys.readouterr().err


def test_progress_counts_what_is_tracked(capsys):
    said = ""
    with progress(first_s=0.01, every_s=0.01) as bar:
        for _ in bar.track(range(3), description="tasks"):
            while f"tasks: {bar.tasks[0].completed:.0f} of 3" not in said:
                time.sleep(0.005)
                said += capsys.readouterr().err
    assert "tasks: 2 of 3" in said


def test_waiting_says_for_how_long(capsys):
    with waiting("judging a.py", first_s=0.01, every_s=0.01):
        said = ""
        while "judging a.py: 0 s\n" not in said:
            time.sleep(0.005)
            said += capsys.readouterr().err


def test_progress_of_a_moment_and_quiet_progress_say_nothing(capsys, monkeypatch):
    with progress() as bar:
        list(bar.track(range(3), description="tasks"))
    monkeypatch.setattr(console.log, "quiet", True)
    with progress(first_s=0.01, every_s=0.01) as bar:
        bar.add_task("tasks", total=2)
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("terminal", "row"), [(True, "a   one → two → o…"), (False, f"a   {' → '.join(['one', 'two'] * 9)}")])
def test_a_row_is_one_line_and_is_cut_in_terminals_alone(terminal, row):
    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("ops")
    table.add_row("a", Text(" → ".join(["one", "two"] * 9), no_wrap=True, overflow="ellipsis"))
    shown = Console(width=18, force_terminal=terminal, color_system=None)
    with shown.capture() as capture:
        shown.print(Whole(table), crop=terminal)
    assert [line.rstrip() for line in capture.get().splitlines()[1:]] == [row]


def test_what_is_wider_than_a_terminal_is_left_for_it_to_wrap(capsys, monkeypatch):
    monkeypatch.setattr(console.out, "width", 80)
    monkeypatch.setattr(type(console.out), "is_terminal", property(lambda self: True))
    Output(Result({}, Group(Text("x" * 100, no_wrap=True, overflow="ignore"))), as_json=False).print()
    assert capsys.readouterr().out.rstrip("\n") == "x" * 100


def as_terminal(monkeypatch, width):
    for stream in (console.out, console.log):
        monkeypatch.setattr(stream, "width", width)
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: True))


PATH = "checkpoints/" + "very-long/" * 5


def test_sentences_are_broken_between_words_in_terminals_alone(capsys, monkeypatch):
    view = Prose(
        f"Ask the model for candidates of 12 held-out tasks.\n$ kernrl eval --model {PATH} --limit 12\nwritten to {PATH}\n"
    )
    Output(Result({}, view), as_json=False).print()
    console.log.print(view, soft_wrap=True)
    said = capsys.readouterr()
    assert said.out == said.err == f"{view}\n"
    as_terminal(monkeypatch, 40)
    Output(Result({}, view), as_json=False).print()
    console.log.print(view, soft_wrap=True)
    lines = [
        "Ask the model for candidates of 12",
        "held-out tasks.",
        f"$ kernrl eval --model {PATH} --limit 12",
        "written to",
        PATH,
    ]
    said = capsys.readouterr()
    assert said.out.splitlines() == said.err.splitlines() == [*lines, ""]
    Output(Result({}, Group(Text("a table"), Lines(view))), as_json=False).print()
    assert capsys.readouterr().out.splitlines() == ["a table", *lines, ""]


def test_source_is_not_broken_in_a_terminal(capsys, monkeypatch):
    as_terminal(monkeypatch, 40)
    source = f"x = [{', '.join(['torch.randn(2)'] * 9)}]\n\n\ndef f():\n    return x\n"
    Output(Result({}, Group(Code(source))), as_json=False).print()
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == source.splitlines()


def test_a_terminal_is_not_told_what_to_do_by_source(capsys, monkeypatch):
    source = "x = 1\x1b]0;title\x07\x1b[2J\x9b2J\r\n\ty = 2\n"
    Output(Result({}, Group(Code(source))), as_json=False).print()
    assert capsys.readouterr().out == source  # a file gets what there is
    as_terminal(monkeypatch, 80)
    Output(Result({}, Group(Code(source))), as_json=False).print()
    said = capsys.readouterr().out
    assert "x = 1␛]0;title␇␛[2J�2J␍" in said
    assert not set("\x1b\x07\x9b\r") & set(said)


def test_a_log_holds_sentences_and_rows_whole(capsys):
    sentence, source = " ".join(["word"] * 40), "y = " + " + ".join(["x"] * 80)
    table = Table(box=None, pad_edge=False)
    table.add_row("a", sentence)
    Output(Result({}, Group(Text(sentence), Rule("source"), Code(source), table)), as_json=False).print()
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert said[0] == sentence
    assert said[1].endswith("─")
    assert said[2:] == [source, "", f"a  {sentence}"]


def test_lines_of_a_log_end_with_their_words_and_source_stays_as_it_is(capsys):
    table = Table("name", "what", box=None, pad_edge=False)
    table.add_row("a", "one")
    table.add_row("longer", "")
    source = "x = 1   \n   \n"
    Output(Result({}, Group(table, Text("end  "), Code(source), Text())), as_json=False).print()
    console.log.print(table)
    said = capsys.readouterr()
    assert said.err == "name    what\na       one\nlonger\n"
    assert said.out == f"{said.err}end\n{source}\n"


def test_counts_agree_with_their_nouns():
    assert [counted(n, "task") for n in (0, 1, 2, 1200)] == ["0 tasks", "1 task", "2 tasks", "1,200 tasks"]
    assert [counted(n, "reply", "replies") for n in (1, 2)] == ["1 reply", "2 replies"]
