"""Draw how verdicts a second fall with a task's size, beside the floor, from what `bench_real_sizes.py` recorded.

    python scripts/plot_sizes.py docs/benchmarks/sizes.json        # writes docs/benchmarks/sizes.svg

A point is a task: verdicts over the seconds that its candidates kept a lane, waiting aside; several lanes share a GPU. The
floor is the time to move what eager holds once for each set of inputs that a verdict needs at least, at peak bandwidth.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from kernrl.errors import UsageError
from kernrl.reports.svg import Scale, log_ticks
from kernrl.verifier.base.devices import device_for

AT_WORK = ("correctness", "load_baseline", "baseline", "timing")
"""Parts of a verdict's seconds in which it keeps a lane, without what it waits for."""

INPUTS = {1: 8, 2: 12}
"""Sets of inputs that a verdict needs at least, by the number of baselines: two judged draws, the draw for capturing a baseline
and a block of four timed calls for each, and a judged call after the last."""

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 60, 20, 48, 46
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def points(phase: dict[str, Any]) -> list[tuple[float, float]]:
    """(GiB, verdicts a second) of each task whose candidates were all timed, the smallest task first."""
    by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in phase["rows"]:
        by_task[row["task"]].append(row)
    timed = [rows for rows in by_task.values() if all(row["us"] for row in rows)]
    spent = [sum(row["seconds"].get(name, 0.0) for row in rows for name in AT_WORK) for rows in timed]
    return sorted((rows[0]["gib"], len(rows) / s) for rows, s in zip(timed, spent, strict=True) if s)


def floor_per_s(gib: float, baselines: int, gb_per_s: float) -> float:
    """Verdicts a second of a task of that size, if memory were all that took time."""
    return gb_per_s * 1e9 / (INPUTS[baselines] * gib * 2**30)


def svg(record: dict[str, Any]) -> str:
    """The chart, on two logarithmic axes."""
    gpu = record["versions"].get("gpu")
    device = device_for(gpu) if gpu else None
    if device is None:
        raise UsageError("the record names no GPU whose bandwidth is known: it was made without one.")
    found = {name: points(phase) for name, phase in record["phases"].items()}
    found = {name: places for name, places in found.items() if places}
    if not found:
        raise UsageError("the record has no task whose candidates were all timed.")
    sizes = [gib for places in found.values() for gib, _ in places]
    counts = {len(name.split(" ")[0].split(",")) for name in found}
    floors = {
        n: [(gib, floor_per_s(gib, n, device.bandwidth_gb_s)) for gib in (min(sizes), max(sizes))] for n in sorted(counts)
    }
    rates = [rate for places in (*found.values(), *floors.values()) for _, rate in places]
    across, up = log_ticks(min(sizes), max(sizes)), log_ticks(min(rates), max(rates))
    x = Scale(across[0], across[-1], LEFT, WIDTH - RIGHT, log=True)
    y = Scale(up[0], up[-1], HEIGHT - BOTTOM, TOP, log=True)
    parts = [_tick(x(t), HEIGHT - BOTTOM, f"{t:g}", "across") for t in across]
    parts += [_tick(LEFT, y(t), f"{t:g}", "up") for t in up]
    for i, (name, places) in enumerate(found.items()):
        colour = COLOURS[i % len(COLOURS)]
        parts += [f'<circle cx="{x(gib)}" cy="{y(rate)}" r="3.5" fill="{colour}"/>' for gib, rate in places]
        parts.append(f'<text x="{LEFT + i * 165}" y="18" fill="{colour}">● {name}</text>')
    for n, ends in floors.items():
        line = " ".join(f"{x(gib)},{y(rate)}" for gib, rate in ends)
        parts.append(f'<polyline points="{line}" fill="none" stroke="#555" stroke-dasharray="{4 * n} 3"/>')
    says = " and ".join(f"{INPUTS[n]}" for n in floors)
    parts.append(
        f'<text x="{LEFT}" y="36" fill="#555">dashed: the floor, {says} sets of inputs at {device.name}\'s bandwidth</text>'
    )
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">GiB that eager holds</text>')
    parts.append(
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">verdicts a second of a lane</text>'
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _tick(x: float, y: float, text: str, axis: str) -> str:
    """A line of the grid with its label."""
    if axis == "across":
        line, place = f"M{x} {TOP}V{y}", f'x="{x}" y="{y + 16}" text-anchor="middle"'
    else:
        line, place = f"M{x} {y}H{WIDTH - RIGHT}", f'x="{x - 6}" y="{y + 4}" text-anchor="end"'
    return f'<path d="{line}" stroke="#ddd"/><text {place}>{text}</text>'


def main() -> None:
    """Write the chart beside the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="JSON of bench_real_sizes.py")
    path = parser.parse_args().record
    out = path.with_suffix(".svg")
    out.write_text(svg(json.loads(path.read_text())))
    print(out)


if __name__ == "__main__":
    main()
