"""Which candidates are worth a reader's time: the best, the most instructive, and the cheats that were caught."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from kernrl.console import counted
from kernrl.reports.plan_graph import fusion_chart
from kernrl.reports.results import clocks, speedup_x, timed
from kernrl.reports.run_files import Run, Sample, read_row
from kernrl.reports.svg import percent
from kernrl.reports.tables import figure_text
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection, Status

CHEATS = (Status.POLICY, Status.DECOY)
"""Statuses of candidates that could have passed a test of outputs and times without doing the work."""

MOST_LINES = 300
"""Lines of a source that are shown."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A candidate on show."""

    title: str
    status: str
    facts: tuple[str, ...]
    source: Markup
    """Highlighted, escaped."""
    graph: Markup
    """The task's ops beside what the candidate launches, where its plan is known."""


@dataclass(frozen=True, slots=True)
class Cheat:
    """A way of cheating, and how often it was caught."""

    status: str
    reason: str
    count: int
    example: Exhibit


def best(run: Run, samples: Iterable[Sample], count: int = 3) -> list[Exhibit]:
    """The fastest correct candidates against the first baseline, at most one a task, those beyond noise first."""
    samples = [s for s in samples if s.verdict.correct]
    clock, _ = clocks(samples)
    ranked: list[tuple[bool, float, Sample]] = []
    for sample in samples:
        timing = sample.verdict.timing
        if timing and timed(sample, clock) and timing.speedups_x:
            first = next(iter(timing.speedups_x))
            ranked.append((timing.speedups_x[first].significant, speedup_x(sample, clock, first) or 0.0, sample))
    ranked.sort(key=lambda entry: entry[:2], reverse=True)
    chosen: dict[str, Sample] = {}
    for _, _, sample in ranked:
        chosen.setdefault(sample.task, sample)
    return [_exhibit(run, sample, _speed_facts(sample)) for sample in list(chosen.values())[:count]]


def instructive(run: Run, samples: Iterable[Sample], count: int = 5) -> list[Exhibit]:
    """For each of the commonest ways to fail, the shortest reply that failed for its commonest reason."""
    samples = [s for s in samples if s.judged]
    failures: dict[Status, list[Sample]] = defaultdict(list)
    for sample in samples:
        if not sample.verdict.correct and sample.verdict.status not in CHEATS:
            failures[sample.verdict.status].append(sample)
    exhibits = []
    for failed in sorted(failures.values(), key=len, reverse=True)[:count]:
        share = f"{len(failed)} of {len(samples)} candidates ({percent(len(failed) / len(samples))}) ended this way"
        exhibits.append(_exhibit(run, _typical(failed), (share,)))
    return exhibits


def cheats(run: Run, samples: Iterable[Sample], count: int = 8) -> list[Cheat]:
    """The ways of cheating that were caught, the commonest first."""
    kinds: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.verdict.status in CHEATS:
            kinds[str(sample.verdict.status), kind_of_reason(sample.verdict.reason)].append(sample)
    ranked = sorted(kinds.items(), key=lambda item: -len(item[1]))[:count]
    return [Cheat(s, found[0].verdict.reason, len(found), _exhibit(run, _typical(found), ())) for (s, _), found in ranked]


def kind_of_reason(reason: str) -> str:
    """The reason without its numbers and quoted names, so that equal mistakes are counted together."""
    return re.sub(r"'[^']*'|`[^`]*`|\d[\d.e+-]*", "…", reason)


def _typical(samples: list[Sample]) -> Sample:
    commonest = Counter(kind_of_reason(s.verdict.reason) for s in samples).most_common(1)[0][0]
    same = [s for s in samples if kind_of_reason(s.verdict.reason) == commonest]
    return min(same, key=lambda s: (s.tokens, s.id))


def _speed_facts(sample: Sample) -> tuple[str, ...]:
    timing = sample.verdict.timing
    if timing is None:
        return ()
    measured = timing.kind == "measured"
    facts = []
    for name, speedup in timing.speedups_x.items():
        figure = {"value": speedup.value, "low": speedup.low, "high": speedup.high} if measured else {"value": speedup.value}
        remark = f", {timing.kind}" if not measured else "" if speedup.significant else ", within noise"
        facts.append(f"{figure_text(figure, as_times=True)} over {name}{remark}")
    took = ", ".join(f"{name} {us:.1f} µs" for name, us in timing.baseline_us.items())
    return (*facts, f"{timing.candidate_us:.1f} µs against {took}{'' if measured else f' ({timing.kind})'}")


def _exhibit(run: Run, sample: Sample, facts: tuple[str, ...]) -> Exhibit:
    text = str(read_row(run, sample).get("text") or "")
    parsed = parse_reply(text)
    source = text if isinstance(parsed, Rejection) else parsed.source
    where = (" → ".join(sample.composition), f"step {sample.step}" if sample.step else "", sample.verdict.reason)
    graph = fusion_chart(sample.composition, sample.verdict.plan)
    return Exhibit(sample.task, str(sample.verdict.status), (*(w for w in where if w), *facts), highlighted(source), graph)


# --- source ------------------------------------------------------------------------------------------------------


def highlighted(source: str) -> Markup:
    """Python source as HTML spans; everything in it is escaped, and what is too long is cut with a remark."""
    lines = source.splitlines()
    shown = "\n".join(line[:400] for line in lines[:MOST_LINES])
    if len(lines) > MOST_LINES:
        shown += f"\n# … {counted(len(lines) - MOST_LINES, 'more line')}"
    return Markup(highlight(shown, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)))


def source_styles() -> Markup:
    """CSS of the highlighting: light, and dark where the reader prefers it."""
    light, dark = (HtmlFormatter(style=name).get_style_defs("pre.source") for name in ("xcode", "monokai"))
    return Markup(f"{_rules(light)}\n@media (prefers-color-scheme: dark) {{\n{_rules(dark)}\n}}")


def _rules(css: str) -> str:
    """The rules for tokens alone; the page itself styles the block and numbers no lines."""
    return "\n".join(line for line in css.splitlines() if re.match(r"pre\.source \.\w+ \{", line))
