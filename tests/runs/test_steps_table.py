"""A run to look at: a line a step in a log, a table in a terminal."""

import io
import re

import pytest
from support import ROOT

from kernrl.console import OwnConsole
from kernrl.runs import steps_table

STEP = {
    "step": 3, "reward": 0.5, "correct": 0.25, "speed_geomean_x": None, "mismatch_kl": 1e-5,
    "seconds": {"step": 2.0, "ask": 0.25, "generate": 1.5}, "alarms": ["a speedup of 40× was credited"],
}  # fmt: skip


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")

    def make(**options):
        console = OwnConsole(file=io.StringIO(), color_system=None, **options)
        monkeypatch.setattr(steps_table, "log", console)
        return console

    return make


def test_a_log_gets_one_line_a_step_and_its_alarms(screen):
    console = screen(width=60)
    with steps_table.LiveTable(5) as table:
        table.add(STEP)
    assert console.file.getvalue().splitlines() == [
        "step 3, reward 0.500, correct 25%, mismatch 1.0e-05, ask s 0.2, generate s 1.5, step s 2.0",
        "step 3: a speedup of 40× was credited",
    ]


def test_a_terminal_that_cannot_redraw_gets_lines_without_control_characters(screen, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = screen(width=80, force_terminal=True)
    with steps_table.LiveTable(5) as table:
        table.add(STEP)
    said = console.file.getvalue()
    assert said.startswith("step 3, reward 0.500")
    assert all(character.isprintable() or character == "\n" for character in said)


def test_the_title_has_no_last_step_where_time_ends_the_run(screen):
    console = screen(width=80, force_terminal=True)
    with steps_table.LiveTable(None) as table:
        table.add(STEP)
    assert "step 3\n" in "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
    assert "step 3 of" not in console.file.getvalue()


def test_a_terminal_gets_a_table_that_fits(screen):
    for width, shown in ((30, False), (160, True)):
        console = screen(width=width, force_terminal=True)
        with steps_table.LiveTable(5) as table:
            table.add(STEP)
        assert "step 3 of 5" in console.file.getvalue()
        console = screen(width=width)
        console.print(steps_table.steps_table([STEP, {**STEP, "step": 4}], "title"))
        text = console.file.getvalue()
        assert ("mismatch" in text) == shown
        assert "speed" not in text  # no step has one
        assert max(map(len, text.splitlines())) <= width


def test_no_column_is_cut_and_the_most_wanted_ones_are_shown(screen):
    parts = {"generate": 146.7, "verify": 0.1, "update": 47.7, "step": 196.0}
    step = {
        "step": 1, "reward": 1.19, "correct": 0.84, "fast_1": 0.84, "speed_geomean_x": 1.51, "length": 240, "entropy": 0.012,
        "clip_low": 0.0, "clip_high": 0.0, "mismatch_kl": 3.4e-5, "attempts_per_s": 0.2,
        "heldout": {"reward": 1.0, "correct": 0.9}, "seconds": parts,
    }  # fmt: skip
    for width in (40, 80, 100, 120, 200):
        console = screen(width=width)
        console.print(steps_table.steps_table([step], "title"))
        title, *heads, row = console.file.getvalue().splitlines()
        assert title == "title"
        assert "…" not in "".join((*heads, row))
        assert max(map(len, (*heads, row))) <= width
        assert ("3.4e-05" in row) == (width >= 100)
        assert ("196.0" in row) == (width >= 80)
    assert len(heads) == 1


def test_the_end_shows_the_first_step_and_the_last_ones(screen):
    console = screen(width=80)
    console.print(steps_table.final_table([{**STEP, "step": n} for n in range(1, 51)], "model: x"))
    steps = [line.split()[0] for line in console.file.getvalue().splitlines()[2:]]
    assert steps == ["1", *map(str, range(31, 51))]


def test_a_title_is_not_as_narrow_as_its_table(screen):
    console = screen(width=80)
    console.print(steps_table.final_table([{"step": 1, "reward": 0.5, "modelled": True}], "nothing was learnt"))
    assert console.file.getvalue().splitlines()[0].rstrip() == "nothing was learnt (speeds are modelled)"


def test_a_speedup_is_written_with_the_same_sign_everywhere():
    files = (ROOT / "kernrl").rglob("*.py")
    assert [f"{file.name}: {found}" for file in files for found in re.findall(r":\.\df\}x\W.*", file.read_text())] == []
