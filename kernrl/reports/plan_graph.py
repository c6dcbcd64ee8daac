"""A task's graph before and after fusion: the ops that PyTorch runs one by one, and what the candidate launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from kernrl.console import counted
from kernrl.reports.svg import WIDTH, percent

BOX, TALL, GAP, HEAD = 24, 36, 12, 20
COLUMN = 160
"""Width of a column; what is left between the two holds the arrow."""
MOST_NODES = 12

KINDS = {
    "authored": "its own kernel",
    "library": "library call",
    "unfused": "unfused op",
    "fill": "fill",
}
"""Kind of a plan's node, as the verifier prices it → what the page calls it."""


def fusion_chart(composition: Sequence[str], plan: Mapping[str, Any]) -> Markup:
    """Two columns: the task's ops, and the plan's nodes with their kind and share of the modelled time.

    Args:
        composition: The task's ops in order; with none there is only the right column.
        plan: A verdict's `plan`: `nodes` of `{name, kind, us}`.

    Returns:
        An SVG, or nothing where the plan lists no nodes.
    """
    listed = plan.get("nodes")
    nodes = [n for n in listed if isinstance(n, dict)] if isinstance(listed, list) else []
    if not nodes:
        return Markup()
    total_us = sum(float(n.get("us") or 0) for n in nodes)
    right = [_node(n, total_us) for n in nodes[:MOST_NODES]]
    if len(nodes) > MOST_NODES:
        right.append((f"{len(nodes) - MOST_NODES} more", "", "plain"))
    left = [(op, "", "plain") for op in composition[:MOST_NODES]]
    height = HEAD + max(len(left) * (BOX + GAP), len(right) * (TALL + GAP))
    parts = [_column(right, WIDTH - COLUMN - 1, height, f"the candidate: {counted(len(nodes), 'step')}")]
    if left:
        parts.append(_column(left, 1, height, f"the task: {counted(len(composition), 'op')}"))
        middle, tip = HEAD + (height - HEAD - GAP) / 2, WIDTH - COLUMN - 8
        parts.append(Markup('<path class="arrow" d="M{} {}H{}m-5 -4l5 4l-5 4"/>').format(COLUMN + 7, middle, tip))
    head = '<svg class="chart graph" viewBox="0 0 {} {}" role="img" aria-label="the graph before and after fusion">'
    return Markup(head).format(WIDTH, height) + Markup("").join(parts) + Markup("</svg>")


def _node(node: Mapping[str, Any], total_us: float) -> tuple[str, str, str]:
    """(name, small print, css class) of a plan's node."""
    kind = str(node.get("kind"))
    share = f", {percent(float(node.get('us') or 0) / total_us)}" if total_us > 0 else ""
    name = str(node.get("name")).removeprefix("aten.").removesuffix(".default")
    return name, KINDS.get(kind, kind) + share, kind if kind in KINDS else "plain"


def _column(boxes: Sequence[tuple[str, str, str]], left: float, height: float, title: str) -> Markup:
    """Boxes from top to bottom, each as tall as its share of the column, so that a fused kernel stands beside its ops."""
    parts = [Markup('<text class="tick" x="{}" y="12">{}</text>').format(left, title)]
    pitch = (height - HEAD) / len(boxes)
    for index, (name, small, style) in enumerate(boxes):
        top, tall = HEAD + index * pitch, pitch - GAP
        box = '<rect class="node {}" x="{}" y="{:.1f}" width="{}" height="{:.1f}" rx="5"/>'
        parts.append(Markup(box).format(style, left, top, COLUMN, tall))
        room_for_two = tall >= TALL and small
        middle = top + tall / 2 + (-2 if room_for_two else 4)
        words = '<text x="{}" y="{:.1f}" text-anchor="middle">{}<title>{}: {}</title></text>'
        parts.append(Markup(words).format(left + COLUMN / 2, middle, _fit(name), name, small))
        if room_for_two:
            note = '<text class="tick" x="{}" y="{:.1f}" text-anchor="middle">{}</text>'
            parts.append(Markup(note).format(left + COLUMN / 2, middle + 14, small))
        if index + 1 < len(boxes):
            arrow = '<path class="arrow" d="M{} {:.1f}v{}m-3 -4l3 4l3 -4"/>'
            parts.append(Markup(arrow).format(left + COLUMN / 2, top + tall, GAP))
    return Markup("").join(parts)


def _fit(name: str) -> str:
    """A name that fits its box, which holds about 22 characters."""
    return name if len(name) <= 22 else name[:20] + "…"
