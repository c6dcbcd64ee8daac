"""Charts: round ticks, points where the data is, and nothing that is not a number."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernrl.reports.svg import (
    MOST_POINTS,
    Row,
    Scale,
    Series,
    fast_p_chart,
    line_chart,
    log_ticks,
    nice_ticks,
    percent,
    seconds,
    share_rows,
    short,
    speed_rows,
    stacked_bar,
    thin,
    times,
)

FINITE = st.floats(-1e9, 1e9)


def elements(svg: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(tag))


def points(svg: str, css: str = "line") -> list[tuple[float, float]]:
    path = next(p for p in elements(svg, "path") if css in p.attrib["class"].split())
    return [(float(a), float(b)) for a, b in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.attrib["d"])]


@given(FINITE, FINITE)
def test_ticks_are_round_and_enclose(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    step = ticks[1] - ticks[0]
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8
    if step > 1e-9 * max(abs(low), abs(high), 1e-3):
        digit = step / 10 ** math.floor(math.log10(step) + 1e-6)
        assert min(abs(digit - d) for d in (1, 2, 5)) < 1e-3


def test_what_is_always_zero_lies_on_the_ground() -> None:
    assert nice_ticks(0.0, 0.0)[0] == 0.0


@given(st.floats(0.01, 1), st.floats(1.01, 1000))
def test_log_ticks_enclose(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert ticks[0] <= low * 1.0001
    assert ticks[-1] >= high * 0.9999
    assert len(ticks) <= 9


@given(st.lists(FINITE, min_size=1, max_size=30))
@example([5e-324])
@example([0.0, 5e-324])
def test_line_is_inside_the_picture_and_in_order(ys: list[float]) -> None:
    svg = line_chart([Series("a", list(range(len(ys))), ys)], label="a", height=200)
    drawn = points(svg)
    assert len(drawn) == len(ys)
    assert all(0 <= x <= 360 and 0 <= y <= 200 for x, y in drawn)
    top, bottom = ys.index(max(ys)), ys.index(min(ys))
    assert drawn[top][1] <= drawn[bottom][1]  # up is more


def test_line_passes_through_its_points() -> None:
    svg = line_chart([Series("a", [0, 5, 10], [0, 0.5, 1])], label="a", bounds=(0, 1), height=200)
    (x0, y0), (x1, y1), (x2, y2) = points(svg)
    assert (x0, x1, x2) == (40, 195, 350)
    assert (y0, y1, y2) == (170, 89, 8)


def test_fast_p_falls_in_steps() -> None:
    svg = fast_p_chart([Series("a", [0.5, 1, 2], [0.8, 0.4, 0.2])], label="fast_p")
    drawn = points(svg)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(drawn))
    assert len({y for _, y in drawn}) == 3


def test_long_lines_are_averaged() -> None:
    n = 10 * MOST_POINTS
    series = thin(Series("a", list(range(n)), [7.0] * n, [6.0] * n, [8.0] * n))
    assert len(series.x) == MOST_POINTS
    assert set(series.y) == {7.0}
    assert series.x[0] == 4.5
    assert series.low is not None
    assert set(series.low) == {6.0}


def test_bars_are_as_long_as_their_values() -> None:
    svg = share_rows([Row("a", 0.5, 0.25, 0.75), Row("b", None), Row("c", 0.0)], label="shares")
    bars = [float(r.attrib["width"]) for r in elements(svg, "rect") if r.attrib["class"] == "f0"]
    track = float(elements(svg, "rect")[0].attrib["width"])
    assert bars == [pytest.approx(track / 2, abs=1)]
    assert "25% to 75%" in svg
    assert "–" in svg


def test_speed_bars_leave_even_to_both_sides() -> None:
    svg = speed_rows([Row("a", 2.0), Row("b", 0.5)], label="speeds")
    faster, slower = (next(r for r in elements(svg, "rect") if r.attrib["class"] == c) for c in ("faster", "slower"))
    assert float(faster.attrib["width"]) == pytest.approx(float(slower.attrib["width"]), abs=0.1)
    assert float(slower.attrib["x"]) + float(slower.attrib["width"]) == pytest.approx(float(faster.attrib["x"]), abs=0.1)


def test_stacked_bar_is_in_proportion() -> None:
    svg = stacked_bar([("a", 3.0), ("b", 1.0)], label="time")
    a, b = (float(r.attrib["width"]) + 1 for r in elements(svg, "rect"))
    assert a / b == pytest.approx(3, rel=0.02)


def test_nothing_to_draw_draws_nothing() -> None:
    assert line_chart([], label="x") == line_chart([Series("a", [], [])], label="x") == ""
    assert fast_p_chart([], label="x") == speed_rows([Row("a", None)], label="x") == stacked_bar([], label="x") == ""


def test_names_are_escaped() -> None:
    svg = share_rows([Row("<script>", 0.5, note="a & b")], label='"quoted"')
    assert elements(svg, "script") == []
    assert ET.fromstring(svg).attrib["aria-label"] == '"quoted"'


def test_log_scale_puts_even_in_the_middle() -> None:
    assert Scale(0.25, 4, 0, 100, log=True)(1) == 50
    assert Scale(0.25, 4, 0, 100, log=True)(1e9) == 100


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (percent(0.123), "12%"), (percent(0.0123), "1.2%"), (percent(0), "0%"), (percent(1), "100%"),
        (percent(0.9996), ">99.9%"), (percent(0.9994), "99.9%"), (percent(0.996), "99.6%"), (percent(0.994), "99%"),
        (times(1.4), "1.40×"), (times(12.34), "12.3×"), (times(1234), "1234×"),
        (short(1234567), "1.23M"), (short(0.00012), "0.00012"), (short(-2500), "−2.5k"),
        (seconds(0.41), "0.41 s"), (seconds(90), "90 s"), (seconds(600), "10 min"), (seconds(9000), "2.5 h"),
    ],
)  # fmt: skip
def test_numbers_as_a_person_says_them(words: str, expected: str) -> None:
    assert words == expected
