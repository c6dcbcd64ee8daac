"""Shows a verdict to people: on a terminal, and as a drawing of reference and candidate as two columns of nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernrl.console import counted
from kernrl.files import DRAWN
from kernrl.tasks.task import RAGGED
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict

LEAST_FLOOR_US = 0.05
"""Shorter times are no measure of anything."""

COLOURS = {"authored": "#2f855a", "library": "#2b6cb0", "unfused": "#c05621", "fill": "#718096"}
"""Kind of node → its colour, in the terminal and in the SVG."""

NODE_WIDTH, LEAST_HEIGHT, MOST_HEIGHT, GAP = 300, 26, 220, 8


def account(verdict: Verdict) -> RenderableType:
    """The stages with their times, what is wrong and where, both columns of nodes, and the speed."""
    parts: list[RenderableType] = [_headline(verdict), _stages(verdict)]
    if verdict.plan.get("nodes"):
        parts.append(_columns(verdict.plan))
    if verdict.plan.get("sets") and verdict.errors:
        parts.append(_coverage(verdict))
    if verdict.timing:
        parts.append(_speed(verdict.timing, verdict.plan.get("floor_us", 0.0)))
    return Group(*parts)


def _headline(verdict: Verdict) -> Text:
    text = Text.assemble((str(verdict.status), f"bold {_colour(verdict)}"), f"  {verdict.task_id}, {verdict.precision}")
    if verdict.specialised:
        text.append("  (specialised)", "yellow")
    if verdict.cached:
        text.append("  (from the cache)", "dim")
    if verdict.reason:
        text.append(f"\n{verdict.reason}")
    if verdict.specialised:
        text.append(f"\nRight at the task's own sizes, and not at others: {verdict.specialised}")
    for note in verdict.notes:
        text.append(f"\n{note}", "yellow")
    return text


def _colour(verdict: Verdict) -> str:
    return {Status.CORRECT: "green", Status.NEEDS_GPU: "yellow"}.get(verdict.status, "red")


def _stages(verdict: Verdict) -> Table:
    """One row for each stage, up to the one reached."""
    table = Table(box=None, pad_edge=False, show_header=False)
    reached = list(Stage).index(verdict.stage)
    for i, stage in enumerate(Stage):
        if i > reached:
            break
        done = i < reached or verdict.status is Status.CORRECT
        last = "?" if verdict.status is Status.NEEDS_GPU else "✗"  # nobody has failed for want of a GPU
        seconds = verdict.seconds.get(str(stage))
        table.add_row(
            Text("✓" if done else last, "green" if done else _colour(verdict)),
            str(stage),
            f"{seconds * 1e3:.1f} ms" if seconds else "",
            _detail(stage, verdict),
        )
    return table


def _detail(stage: Stage, verdict: Verdict) -> str:
    if stage is Stage.TRACE and "compile" in verdict.seconds:
        return f"compiled in {verdict.seconds['compile'] * 1e3:.0f} ms"
    if stage is Stage.PLAN and verdict.plan:
        launches, unfused = verdict.plan["launches"], verdict.plan["unfused"]
        return f"{counted(launches, 'authored launch', 'authored launches')}, {counted(unfused, 'unfused op')}"
    if stage is Stage.CORRECTNESS and verdict.errors:
        worst = max(record["excess"] for record in verdict.errors)
        return f"{counted(len(verdict.errors), 'input')}, largest error {worst:.2g} × its tolerance"
    return ""


def _coverage(verdict: Verdict) -> Table:
    """Which input sets were judged on which inputs, and what nobody looked at."""
    table = Table(box=None, pad_edge=False, show_header=False)
    regimes: dict[str, list[str]] = {}
    for record in verdict.errors:
        regimes.setdefault(record["input_set"], []).append(record["regime"])
    for name, sizes in verdict.plan["sets"].items():
        values = ", ".join(f"{key}={value}" for key, value in sizes.items())
        shown = f"{name} ({values})" if values else f"{name} (the task's own sizes)"
        asked = ", ".join(dict.fromkeys(regimes.get(name, [])))
        tails = "; masks at the edges of tensors" if name == RAGGED and asked else ""
        table.add_row("checked" if asked else "not checked", shown, asked + tails)
    if verdict.timing and verdict.timing.kind != "measured":
        table.add_row("not checked", "time", "modelled; a GPU measures it")
    elif verdict.timing and "compile" not in verdict.timing.baseline_us:
        table.add_row("not checked", "time against torch.compile", "--baseline eager,compile measures it")
    return table


def _speed(timing: Timing, floor_us: float) -> Text:
    """One line for each baseline, and one for the least time that moving the task's data takes."""
    lines = []
    for name, speed in timing.speedups_x.items():
        times = f"{timing.baseline_us[name]:.1f} → {timing.candidate_us:.1f} µs"
        lines.append(f"{_speedup(speed, timing)} against {name} ({times}, {timing.kind} on {timing.device})")
    if floor_us >= LEAST_FLOOR_US:
        share = timing.candidate_us / floor_us
        lines.append(f"{share:.2f} × the floor ({floor_us:.1f} µs: inputs, parameters and outputs at peak bandwidth)")
    if timing.unfused_share:
        lines.append(f"{timing.unfused_share:.0%} of the time is spent outside the authored kernels")
    return Text("\n".join(lines))


def _speedup(speed: Speedup, timing: Timing) -> str:
    if timing.kind != "measured":
        return f"{speed.value:.2f}× by the roofline model"
    sure = "" if speed.significant else ", within the noise"
    return f"{speed.value:.2f}× [{speed.low:.2f}, {speed.high:.2f}]{sure}"


def _columns(plan: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, title_justify="left")
    for name in ("reference", "bytes", "µs*", "candidate", "bytes", "µs*"):
        table.add_column(name, justify="left" if name[0] in "rc" else "right")
    before, after = plan["reference"]["nodes"], plan["nodes"]
    for i in range(max(len(before), len(after))):
        table.add_row(*(cell for nodes in (before, after) for cell in _cells(nodes, i)))
    table.caption = "* by the roofline model"
    return table


def _cells(nodes: Sequence[Mapping[str, Any]], i: int) -> tuple[Text, str, str]:
    if i >= len(nodes):
        return Text(), "", ""
    node = nodes[i]
    return (
        Text(node["name"].removeprefix("aten."), COLOURS.get(node["kind"], "")),
        size(node["bytes_moved"]),
        f"{node['us']:.1f}",
    )


def size(nbytes: float) -> str:
    """Bytes with a unit, such as `12.5 MB`."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} GB"


def svg(verdict: Verdict) -> str:
    """Reference and candidate as two columns of boxes, whose heights show modelled time; '' without a plan."""
    if not verdict.plan.get("nodes"):
        return ""
    before, after = verdict.plan["reference"], verdict.plan
    scale = MOST_HEIGHT / max(node["us"] for side in (before, after) for node in side["nodes"])
    left, left_height = _column("reference", before, 20, scale)
    right, right_height = _column("candidate", after, 60 + NODE_WIDTH, scale)
    width, height = 80 + 2 * NODE_WIDTH, max(left_height, right_height) + 60
    title = f"{verdict.task_id}: {verdict.status}"
    if verdict.timing and verdict.timing.speedups_x:
        title += f", {_speedup(next(iter(verdict.timing.speedups_x.values())), verdict.timing)}"
    box = f'width="{width}" height="{math.ceil(height)}"'
    font = 'font-family="sans-serif" font-size="13"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {DRAWN} {box} viewBox="0 0 {width} {math.ceil(height)}" {font}>'
    heading = f'<text x="20" y="24" font-weight="bold">{escape(title)}</text>'
    return "\n".join([opening, f'<rect {box} fill="white"/>', heading, *left, *right, "</svg>\n"])


def _column(name: str, side: Mapping[str, Any], x: int, scale: float) -> tuple[list[str], float]:
    """SVG elements of one side, and the y at which they end."""
    total = f"{size(side['bytes_moved'])}, {side['modelled_us']:.1f} µs modelled"
    shapes, y = [f'<text x="{x}" y="50">{name}: {total}</text>'], 60.0
    for node in side["nodes"]:
        height = max(LEAST_HEIGHT, node["us"] * scale)
        label = f"{node['name'].removeprefix('aten.')}  {size(node['bytes_moved'])}, {node['us']:.1f} µs"
        colour = COLOURS.get(node["kind"], COLOURS["fill"])
        shapes.append(f'<rect x="{x}" y="{y:.1f}" width="{NODE_WIDTH}" height="{height:.1f}" rx="4" fill="{colour}"/>')
        shapes.append(f'<text x="{x + 8}" y="{y + 18:.1f}" fill="white">{escape(label)}</text>')
        y += height + GAP
    return shapes, y
