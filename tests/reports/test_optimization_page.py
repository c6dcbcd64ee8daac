"""The page of `kernrl optimize`: what was tried is all there, and what a candidate wrote stays text."""

from __future__ import annotations

import re
from typing import Any

from support.tiny import verdict_of

from kernrl.optimization.search.trials import Proposal, Trial
from kernrl.optimization.searches import unusable
from kernrl.reports.optimization_page import MOST_BARS, render
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status

TASK = Task("a_task", "")


def rows(right: int, wrong: int) -> list[dict[str, Any]]:
    found = []
    for n in range(right + wrong):
        text, status = f"class ModelNew: n = {n}", Status.CORRECT if n < right else Status.WRONG
        verdict = verdict_of(text, status, speedup_x=1.0 + n if n < right else None)
        found.append(Trial(f"model-{n}", Proposal(text, "model", f"<b>sample</b> {n}"), verdict, float(n)).to_row(TASK, n))
    return found


def page(right: int, wrong: int) -> str:
    results = unusable(TASK, "said") | {"ended": "candidates"}
    return render([results], {TASK.id: rows(right, wrong)}, "A title")


def test_every_candidate_is_named_with_its_status_and_reason() -> None:
    text = page(2, 3)
    table = re.findall(r"<details><summary>Every candidate.*?</details>", text, re.DOTALL)[0]
    assert table.count("<tr>") == 1 + 5
    assert table.count("<td>wrong</td><td></td><td>the first element differs</td>") == 3
    assert table.count("<td>correct</td>") == 2
    assert "<b>sample" not in text
    assert "&lt;b&gt;sample&lt;/b&gt; 4" in table


def test_the_caption_says_how_many_are_drawn() -> None:
    assert f"<figcaption>The fastest {MOST_BARS} of {MOST_BARS + 6} that were timed</figcaption>" in page(MOST_BARS + 6, 1)
    assert "<figcaption>Every candidate that was timed</figcaption>" in page(MOST_BARS, 1)
