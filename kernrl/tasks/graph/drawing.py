"""A Graph as an SVG: ops from top to bottom, in the colour of the kernel that they could be, with bytes and FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from kernrl.files import DRAWN
from kernrl.tasks.graph.costs import bytes_text, flops_text, kernels, node_bytes, node_flops
from kernrl.tasks.graph.graph import Graph, Node

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 250, 56, 28, 30, 16
FILLS = ("#dbe9f6", "#e2f0d9", "#fdebd0", "#f3dff0", "#e8e4f8", "#fde0dd", "#d9f0ee", "#f0ead6")
STYLE = """
  text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #1b1f24; }
  .small { font-size: 10px; fill: #57606a; }
  .edge { fill: none; stroke: #8c959f; stroke-width: 1.2; marker-end: url(#tip); }
  .node { stroke: #8c959f; }
  .unknown { stroke: #cf222e; stroke-width: 2; stroke-dasharray: 4 3; }
  .given { fill: #ffffff; stroke: #8c959f; stroke-dasharray: 2 2; }
"""


def draw(graph: Graph, title: str = "") -> str:
    """The SVG as text. A value of the module is named in the box that reads it; an unknown op has a dashed red border."""
    places = _places(graph)
    right = max((x for x, _ in places.values()), default=0) + WIDTH + MARGIN
    bottom = max((y for _, y in places.values()), default=0) + HEIGHT + MARGIN
    fills = {node.value.name: FILLS[i % len(FILLS)] for i, kernel in enumerate(kernels(graph)) for node in kernel.nodes}
    size = f'viewBox="0 0 {right} {bottom}" width="{right}" height="{bottom}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {DRAWN} {size} role="img">'
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    parts = [head, f"<title>{escape(title or 'graph')}</title>", f"<style>{STYLE}</style>"]
    parts.append(f'<defs>{tip}<path d="M0 0L8 4L0 8z" fill="#8c959f"/></marker></defs>')
    parts.append(f'<rect width="{right}" height="{bottom}" fill="#ffffff"/>')
    for node in graph.nodes:
        parts += [_edge(places[name], places[node.value.name]) for name in dict.fromkeys(node.reads) if name in places]
    for given in graph.inputs:
        label = f"{given.value.name}  {given.argument}"
        parts.append(_box(places[given.value.name], "given", "#ffffff", [label, str(given.value)]))
    for node in graph.nodes:
        kind = "unknown" if node.kind == "unknown" else "node"
        parts.append(_box(places[node.value.name], kind, fills[node.value.name], _lines(graph, node)))
    return "\n".join([*parts, "</svg>", ""])


def _places(graph: Graph) -> dict[str, tuple[int, int]]:
    """Left and top of every box: a row below its lowest operand, as far left as there is room."""
    row: dict[str, int] = {}
    taken: dict[int, int] = {}
    places = {}
    for given in graph.inputs:
        row[given.value.name] = 0
    for node in graph.nodes:
        level = 1 + max((row[name] for name in node.reads if name in row), default=0)
        row.update((r.name, level) for r in node.results)
    firsts = [i.value.name for i in graph.inputs] + [n.value.name for n in graph.nodes]
    for name in firsts:
        column = taken.get(row[name], 0)
        taken[row[name]] = column + 1
        places[name] = (MARGIN + column * (WIDTH + GAP_X), MARGIN + row[name] * (HEIGHT + GAP_Y))
    for node in graph.nodes:  # further results of one node are drawn where the first is
        places.update((r.name, places[node.value.name]) for r in node.results)
    return places


def _lines(graph: Graph, node: Node) -> list[str]:
    held: Mapping[str, str] = {p.value.name: p.path or "constant" for p in graph.parameters}
    call = str(node).partition(" = ")[2]
    named = ", ".join(held[name] for name in dict.fromkeys(node.reads) if name in held)
    cost = "a view" if node.kind == "view" else f"{bytes_text(node_bytes(graph, node))}, {flops_text(node_flops(graph, node))}"
    line = f", line {node.line}" if node.line else ""
    return [call, f"{node.value}  {named}", cost + line]


def _box(place: tuple[int, int], kind: str, fill: str, lines: list[str]) -> str:
    x, y = place
    rect = f'<rect class="{kind}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{fill}"/>'
    texts = [
        f'<text x="{x + 8}" y="{y + 18 + 15 * i}"{" class=" + chr(34) + "small" + chr(34) if i else ""}>'
        f"{escape(_fit(line, 32 if i == 0 else 39))}</text>"
        for i, line in enumerate(lines)
    ]
    return f"<g><title>{escape(chr(10).join(lines))}</title>{rect}{''.join(texts)}</g>"


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + WIDTH / 2, start[1] + HEIGHT, end[0] + WIDTH / 2, end[1]
    if y2 - y1 > GAP_Y and x1 == x2:  # past the boxes between
        side = start[0] + WIDTH + GAP_X / 2
        return f'<path class="edge" d="M{start[0] + WIDTH} {y1 - 12}C{side} {y1} {side} {y2} {end[0] + WIDTH} {y2 + 12}"/>'
    return f'<path class="edge" d="M{x1} {y1}C{x1} {y1 + GAP_Y / 2} {x2} {y2 - GAP_Y / 2} {x2} {y2}"/>'


def _fit(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
