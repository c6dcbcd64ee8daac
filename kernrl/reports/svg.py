"""Charts as inline SVG, by nothing but string formatting: no dependency, no script, no network.

A chart is 360 units wide, as a phone is, so that its text is never scaled down to nothing; wide pages set charts side by
side. Colours are the page's CSS variables (`--s0` … `--s5` for series), which is how a chart follows light and dark. All
text goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

WIDTH = 360
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 8, 30
DIGIT = 6.6
"""Width of a digit of a tick, in units: an axis whose labels are longer begins further to the right."""
MOST_POINTS = 240
"""Points a line keeps; a longer one is averaged in buckets, for it would have more points than the screen has pixels."""
NOTHING = 1e-290
"""What is smaller is 0 on an axis: the distance of two ticks could no longer be told."""

COLOURS = 6

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    """A line over (x, y), with a band around it where `low` and `high` are given."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A labelled value with its interval."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    """Small print under the label."""
    colour: int = 0


def percent(value: float) -> str:
    if 0 < value < 0.0005:
        return "<0.1%"
    if 0.9995 <= value < 1:
        return ">99.9%"
    if 0.995 <= value < 1:
        return f"{100 * value:.1f}%"
    return f"{100 * value:.0f}%" if value in (0, 1) or abs(value) >= 0.1 else f"{100 * value:.1f}%"


def times(value: float) -> str:
    return f"{value:.2f}×" if value < 9.995 else f"{value:.1f}×" if value < 99.95 else f"{value:.0f}×"


def short(value: float) -> str:
    """A number in at most about six characters: 1234567 as 1.23M, -0.000012 as −1.2e−05."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return minus(f"{value / limit:.3g}{suffix}")
    return minus(f"{value:.3g}")


def minus(text: str) -> str:
    """The text of a number with the minus sign of print in place of a hyphen, which is too short to be seen."""
    return text.replace("-", "\N{MINUS SIGN}")


def signed(value: float, form: str = ".1f") -> str:
    """`+2.1`, `−0.4`; what rounds to nothing has no sign."""
    text = f"{value:+{form}}"
    return minus(text) if float(text) else text[1:]


def seconds(value: float) -> str:
    """A duration as a person says it: 8.2 ms, 0.4 s, 12 s, 3 min, 2.5 h."""
    if value < 0.1:
        return f"{1000 * value:.2g} ms"
    if value < 120:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


# --- scales ------------------------------------------------------------------------------------------------------


def nice_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) from at most `low` to at least `high`."""
    if high - low < NOTHING:
        half = abs(low) / 2
        low, high = (low - half, low + half) if half > NOTHING else (0.0, 1.0)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of two from at most `low` to at least `high`, thinned to at most seven."""
    first, last = math.floor(math.log2(low) + 1e-9), math.ceil(math.log2(high) - 1e-9)
    stride = max(1, math.ceil((last - first) / 6))
    powers = [p for p in range(first, last + 1) if p % stride == 0 or p in (first, last)]
    return [2.0**p for p in powers]


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value lies, in SVG units, between the ends of an axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 2)


# --- charts ------------------------------------------------------------------------------------------------------


def line_chart(
    series: Sequence[Series],
    *,
    label: str,
    x_label: str = "step",
    y_format: Format = short,
    bounds: tuple[float, float] | None = None,
    height: int = 200,
) -> Markup:
    """Lines over a linear axis. `bounds` fixes the y axis, for shares."""
    lines = [s for s in map(thin, series) if s.x]
    if not lines:
        return Markup()
    ys = [y for s in lines for part in (s.y, s.low or (), s.high or ()) for y in part]
    ticks = nice_ticks(*(bounds or (min(ys), max(ys))))
    xs = [x for s in lines for x in s.x]
    # there is no half a step
    x_ticks = [t for t in nice_ticks(min(xs), max(xs)) if min(xs) <= t <= max(xs) and (t.is_integer() or x_label != "step")]
    left = max(LEFT, 8 + DIGIT * max(len(y_format(t)) for t in ticks))
    x = Scale(min(xs), max(xs), left, WIDTH - RIGHT)
    y = Scale(ticks[0], ticks[-1], height - BOTTOM, TOP)
    parts = [_y_axis(ticks, y, y_format, left), _x_axis([(x(t), short(t)) for t in x_ticks], x_label, height, left)]
    for line in lines:
        points = [(x(a), y(b)) for a, b in zip(line.x, line.y, strict=True)]
        parts += [_band(line, x, y), _path(points, line.colour), _end_dot(points[-1], line, y_format)]
    return _svg(parts, height, label)


def fast_p_chart(series: Sequence[Series], *, label: str, height: int = 230) -> Markup:
    """The share of candidates faster than p, over p on a logarithmic axis: steps down, read at any threshold."""
    lines = [s for s in series if s.x]
    if not lines:
        return Markup()
    xs = [p for s in lines for p in s.x]
    ticks = log_ticks(min(xs), max(xs))
    x = Scale(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT, log=True)
    y = Scale(0, 1, height - BOTTOM, TOP)
    parts = [_y_axis([0, 0.25, 0.5, 0.75, 1], y, percent)]
    parts.append(_x_axis([(x(t), f"{t:g}") for t in ticks], "speedup p over the baseline, ×", height))
    parts.append(Markup('<path class="even" d="M{0} {1}V{2}"/>').format(x(1), TOP, height - BOTTOM))
    for line in lines:
        points = [(x(line.x[0]), y(line.y[0]))]
        for p, share in zip(line.x[1:], line.y[1:], strict=True):
            points += [(x(p), points[-1][1]), (x(p), y(share))]
        parts += [_band(line, x, y), _path(points, line.colour)]
    return _svg(parts, height, label)


def share_rows(rows: Sequence[Row], *, label: str) -> Markup:
    """Bars from 0 to 100 %, with whiskers."""
    x = Scale(0, 1, 1, WIDTH - 54)

    def draw(row: Row, top: float) -> Iterable[Markup]:
        yield Markup('<rect class="track" x="1" y="{}" width="{}" height="9" rx="2"/>').format(top, WIDTH - 55)
        if row.value:
            bar = '<rect class="f{}" x="1" y="{}" width="{}" height="9" rx="2"/>'
            yield Markup(bar).format(row.colour % COLOURS, top, max(x(row.value) - 1, 1.5))

    return _rows(rows, x, draw, percent, label)


def speed_rows(rows: Sequence[Row], *, label: str) -> Markup:
    """Bars that leave the line at 1× to the right where faster and to the left where slower, on a logarithmic axis."""
    values = [v for r in rows for v in (r.value, r.low, r.high) if v and v > 0]
    if not values:
        return Markup()
    reach = max(2.0, *(max(v, 1 / v) for v in values))
    x = Scale(1 / reach, reach, 1, WIDTH - 54, log=True)

    def draw(row: Row, top: float) -> Iterable[Markup]:
        yield Markup('<rect class="track" x="1" y="{}" width="{}" height="9" rx="2"/>').format(top, WIDTH - 55)
        if row.value:
            left, right = sorted((x(1), x(row.value)))
            faster = "faster" if row.value >= 1 else "slower"
            bar = '<rect class="{}" x="{}" y="{}" width="{}" height="9"/>'
            yield Markup(bar).format(faster, left, top, round(max(right - left, 1), 2))
        yield Markup('<path class="even" d="M{} {}v15"/>').format(x(1), top - 3)

    return _rows(rows, x, draw, times, label)


def stacked_bar(parts: Sequence[tuple[str, float]], *, label: str) -> Markup:
    """One bar divided in proportion; the legend beside it names the parts."""
    total = sum(value for _, value in parts)
    if total <= 0:
        return Markup()
    drawn, start = [], 0.0
    for index, (name, value) in enumerate(parts):
        width = WIDTH * value / total
        rect = '<rect class="f{}" x="{}" y="0" width="{}" height="22"><title>{}: {}, {}</title></rect>'
        words = (name, seconds(value), percent(value / total))
        drawn.append(Markup(rect).format(index % COLOURS, round(start, 2), round(max(width - 1, 0.4), 2), *words))
        start += width
    return _svg(drawn, 22, label)


def thin(series: Series) -> Series:
    """The series with at most MOST_POINTS points: means of equal buckets."""
    n = len(series.x)
    if n <= MOST_POINTS:
        return series
    edges = [round(i * n / MOST_POINTS) for i in range(MOST_POINTS + 1)]

    def average(values: Sequence[float]) -> list[float]:
        return [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]

    low, high = (band and average(band) for band in (series.low, series.high))
    return Series(series.name, average(series.x), average(series.y), low, high, series.colour)


# --- pieces ------------------------------------------------------------------------------------------------------


def _svg(parts: Iterable[Markup], height: float, label: str) -> Markup:
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, label)
    return head + Markup("").join(parts) + Markup("</svg>")


def _y_axis(ticks: Sequence[float], y: Scale, y_format: Format, left: float = LEFT) -> Markup:
    line = Markup('<path class="grid" d="M{0:g} {1}H{2}"/><text class="tick" x="{3:g}" y="{4}" text-anchor="end">{5}</text>')
    return Markup("").join(line.format(left, y(t), WIDTH - RIGHT, left - 5, y(t) + 3.5, y_format(t)) for t in ticks)


def _x_axis(ticks: Sequence[tuple[float, str]], x_label: str, height: float, left: float = LEFT) -> Markup:
    text = Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>')
    marks = [text.format(min(max(at, left + 4 + 2 * len(word)), WIDTH - 12), height - BOTTOM + 14, word) for at, word in ticks]
    marks.append(text.format((left + WIDTH - RIGHT) / 2, height - 3, x_label))
    return Markup("").join(marks)


def _path(points: Sequence[tuple[float, float]], colour: int) -> Markup:
    steps = "L".join(f"{a:g} {b:g}" for a, b in points)
    return Markup('<path class="line c{}" d="M{}"/>').format(colour % COLOURS, steps)


def _end_dot(point: tuple[float, float], series: Series, y_format: Format) -> Markup:
    dot = '<circle class="f{}" cx="{}" cy="{}" r="3"><title>{}: {}</title></circle>'
    return Markup(dot).format(series.colour % COLOURS, *point, series.name, y_format(series.y[-1]))


def _band(series: Series, x: Scale, y: Scale) -> Markup:
    if series.low is None or series.high is None:
        return Markup()
    there = [(x(a), y(b)) for a, b in zip(series.x, series.high, strict=True)]
    back = [(x(a), y(b)) for a, b in zip(series.x, series.low, strict=True)]
    outline = "L".join(f"{a:g} {b:g}" for a, b in [*there, *reversed(back)])
    return Markup('<path class="band f{}" d="M{}Z"/>').format(series.colour % COLOURS, outline)


def _rows(
    rows: Sequence[Row], x: Scale, draw: Callable[[Row, float], Iterable[Markup]], value_format: Format, label: str
) -> Markup:
    """Label, small print, bar with whisker, and value at the right; one row under the other."""
    parts: list[Markup] = []
    pitch = 37
    for index, row in enumerate(rows):
        top = index * pitch + 18
        parts.append(Markup('<text class="label" x="1" y="{}">{}</text>').format(top - 5, row.label))
        note = Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>')
        parts.append(note.format(WIDTH - 54, top - 5, row.note))
        parts += draw(row, top)
        if row.low is not None and row.high is not None:
            # under the bar: on it, a line would need one colour on the bar and another beside it
            path = Markup("M{0} {2}H{1}M{0} {3}v5M{1} {3}v5").format(x(row.low), x(row.high), top + 13, top + 10.5)
            whisker = '<path class="whisker" d="{0}"><title>{1} to {2}</title></path>'
            parts.append(Markup(whisker).format(path, value_format(row.low), value_format(row.high)))
        figure = "–" if row.value is None else value_format(row.value)
        parts.append(Markup('<text class="value" x="{}" y="{}" text-anchor="end">{}</text>').format(WIDTH, top + 8.5, figure))
    return _svg(parts, max(len(rows) * pitch, 1), label)
