"""The chart of verdicts a second over task size: what a point is, where it lies, and what has no chart."""

from __future__ import annotations

import importlib.util
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from support import ROOT

from kernrl.errors import UsageError

found = importlib.util.spec_from_file_location("plot_sizes", ROOT / "scripts" / "plot_sizes.py")
assert found
assert found.loader
plot_sizes: Any = importlib.util.module_from_spec(found)
found.loader.exec_module(plot_sizes)


def row(task: str, gib: float, seconds: dict[str, float], us: float | None = 100.0) -> dict[str, Any]:
    return {"task": task, "gib": gib, "seconds": seconds, "us": us}


PHASE = {
    "rows": [
        row(
            "two",
            2.0,
            {
                "correctness": 0.5,
                "baseline": 0.25,
                "load_baseline": 1.0,
                "compile_baseline": 9.0,
                "timing": 0.25,
                "gpu_queue": 99.0,
            },
        ),
        row("one", 1.0, {"correctness": 0.25, "timing": 0.25, "judge": 0.2}),
        row("two", 2.0, {"correctness": 0.25, "timing": 0.25}),
        row("refused", 4.0, {"correctness": 0.1}, us=None),
    ]
}


def test_a_point_is_verdicts_over_the_seconds_that_kept_a_lane() -> None:
    assert plot_sizes.points(PHASE) == [(1.0, 2.0), (2.0, pytest.approx(2 / 2.5))]


def test_the_floor_falls_with_size_and_with_baselines() -> None:
    assert plot_sizes.floor_per_s(1.0, 1, 8 * 2**30 / 1e9) == pytest.approx(1.0)
    assert plot_sizes.floor_per_s(2.0, 2, 8 * 2**30 / 1e9) == pytest.approx(8 / 24)


def test_the_chart_has_every_task_in_its_place() -> None:
    record = {"versions": {"gpu": "NVIDIA H200"}, "phases": {"eager cold": PHASE, "eager,compile cold": PHASE}}
    chart = ElementTree.fromstring(plot_sizes.svg(record))
    dots = [{k: float(v) for k, v in c.attrib.items() if k[0] == "c"} for c in chart.iter() if c.tag.endswith("circle")]
    assert len(dots) == 4
    small, large = dots[:2]
    assert small["cx"] < large["cx"]
    assert small["cy"] < large["cy"], "more verdicts a second are higher up"
    lines = [c for c in chart.iter() if c.tag.endswith("polyline")]
    assert len(lines) == 2
    heights = [float(y) for line in lines for y in re.findall(r",([\d.]+)", line.attrib["points"])]
    assert max(heights) <= min(d["cy"] for d in dots), "nobody is above the floor's rate"


@pytest.mark.parametrize("change", [{"versions": {}}, {"phases": {"eager cold": {"rows": PHASE["rows"][3:]}}}])
def test_what_cannot_be_drawn_is_said(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the record"):
        plot_sizes.svg({"versions": {"gpu": "NVIDIA H200"}, "phases": {"eager cold": PHASE}} | change)
