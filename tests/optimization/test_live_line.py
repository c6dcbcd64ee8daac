"""The line that says how searches go."""

from __future__ import annotations

from support.tiny import verdict_of

from kernrl.optimization.live_line import LiveLine, progress_words
from kernrl.optimization.search.trials import Progress, Proposal, Trial

SOURCE = "class ModelNew: ..."
BEST = Trial("style-0", Proposal(SOURCE, "style", "fused"), verdict_of(SOURCE, speedup_x=1.43), 1.0)
PROGRESS = Progress(90.0, tried=12, judged=10, correct=9, spent_s=19.0, best=BEST)


def test_one_search_has_every_count_and_the_time_left() -> None:
    assert progress_words(PROGRESS) == "best 1.43× (fused); 12 tried, 10 judged, 9 correct; 71 s left"
    assert progress_words(Progress(90.0)) == "nothing right yet; 0 tried, 0 judged, 0 correct; 90 s left"


def test_those_of_a_folder_have_them_too_in_short() -> None:
    line = LiveLine(3)
    line.begin("one")(PROGRESS)
    line.begin("two")(Progress(90.0, tried=1, spent_s=100.0))
    said = "0 of 3 done, 0 faster; correct/judged/tried | one: 1.43×, 9/10/12, 71 s left | two: -, 0/0/1, 0 s left"
    assert str(line) == said
