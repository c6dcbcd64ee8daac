"""Reading runs, their figures by hand, and the page: what it says, and what it lets through."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console
from support.synthetic_run import correct, make_eval_run, make_reinforce_run, row, timing, verdict, write_config, write_lines

from kernrl import cli
from kernrl.errors import UsageError
from kernrl.reports.comparable_runs import comparisons, newest, runs_by_kind
from kernrl.reports.gallery import best, cheats, highlighted, instructive, kind_of_reason
from kernrl.reports.page import render_report
from kernrl.reports.plan_graph import fusion_chart
from kernrl.reports.results import compare, summarise
from kernrl.reports.run_charts import largest, time_panels, training_numbers, training_panels
from kernrl.reports.run_files import Run, Sample, read_row, read_run
from kernrl.reports.tables import comparison_text, results_view
from kernrl.verifier.base.verdict import Stage, Status, Verdict

HOSTILE = '</code></pre><script>alert(1)</script><img src=x onerror=alert(2)> & "quotes" {{ 7 * 7 }} <!-- '


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(make_eval_run(tmp_path_factory.mktemp("runs") / "before"))


def sample(judged: Verdict, number: int = 0, **rest: object) -> Sample:
    return Sample(f"{judged.task_id}-{number}", judged.task_id, judged, **rest)  # pyright: ignore[reportArgumentType]


def wrong(task_id: str, stage: Stage = Stage.CORRECTNESS, status: Status = Status.WRONG, reason: str = "no") -> Verdict:
    return verdict(task_id, status, stage, reason)


def test_a_bar_has_no_more_parts_than_colours_and_loses_no_time() -> None:
    assert largest({"parse": 1.0, "trace": 3.0}) == {"trace": 3.0, "parse": 1.0}
    many = {f"stage {n}": float(n) for n in range(1, 10)}
    shown = largest(many)
    assert list(shown) == ["stage 9", "stage 8", "stage 7", "stage 6", "stage 5", "4 others"]
    assert sum(shown.values()) == sum(many.values())


def test_a_band_stays_within_what_was_seen(tmp_path: Path) -> None:
    norms = [{"step": n, "grad_norm": 40.0 if n == 1 else 0.1} for n in range(1, 201)]
    panel = next(p for p in training_panels([Run(tmp_path, metrics=norms)]) if p.title == "Gradient norm")
    assert ">-" not in str(panel.chart)  # no tick below 0: nothing was


def test_waiting_is_no_work(tmp_path: Path) -> None:
    judged = replace(correct("a", 2.0), seconds={"trace": 2.0, "gpu_queue": 60.0, "gpu_busy": 1.0}, cached=False)
    panel = time_panels(Run(tmp_path, samples=[sample(judged)]))[0]
    assert [text for text, _ in panel.legend] == ["trace: 2 s, 100%"]
    assert "waited 60 s for their turn" in panel.note


# --- figures -----------------------------------------------------------------------------------------------------


def test_figures_by_hand() -> None:
    samples = [
        sample(correct("a", 2.0), 0, family="linear"),
        sample(correct("a", 0.5), 1, family="linear"),
        sample(wrong("b"), 0, family="bmm"),
        sample(correct("b", 1.0), 1, family="bmm"),
        sample(wrong("b", Stage.TRACE, Status.COMPILE_ERROR), 2, family="bmm"),
        sample(wrong("b", Stage.PARSE, Status.NO_CODE), 3, family="bmm"),
    ]
    results = summarise(samples, resamples=500)
    assert results["correct"]["value"] == pytest.approx((1 + 1 / 4) / 2)  # a mean over tasks, not over samples
    assert results["compiled"]["value"] == pytest.approx((1 + 2 / 4) / 2)
    assert results["pass@1"]["value"] == results["correct"]["value"]
    assert results["pass@2"]["value"] == pytest.approx((1 + (1 - 3 / 6)) / 2)
    assert results["fast_0"]["value"] == results["correct"]["value"]
    assert results["fast_0.5"]["value"] == pytest.approx((1 / 2 + 1 / 4) / 2)  # 0.5 is not more than 0.5
    assert results["fast_1"]["value"] == pytest.approx((1 / 2 + 0) / 2)
    assert results["fast_2"]["value"] == 0
    assert results["geomean_x"]["value"] == pytest.approx(1.0)
    assert results["baselines"]["compile"]["geomean_x"]["value"] == pytest.approx(0.8)
    assert results["funnel"]["parse"]["value"] == pytest.approx((1 + 3 / 4) / 2)
    assert results["funnel"]["trace"]["value"] == pytest.approx((1 + 2 / 4) / 2)
    assert results["by_family"]["bmm"]["correct"]["value"] == 0.25
    assert (results["tasks"], results["samples"], results["runs"]) == (2, 6, 1)


def test_where_nothing_is_correct_nothing_is_fast() -> None:
    results = summarise([sample(wrong("a")), sample(wrong("b"))], baselines=("eager", "compile"), resamples=100)
    assert results["fast_1"]["value"] == results["baselines"]["compile"]["fast_1"]["value"] == 0
    assert results["geomean_x"]["value"] is None
    assert "fast_1" not in summarise([sample(correct("a"))], resamples=100)  # correct, but no one knows how fast


def test_what_could_not_be_judged_enters_no_figure() -> None:
    samples = [sample(correct("a", 2.0)), sample(wrong("a", Stage.TRACE, Status.INFRA_ERROR), 1)]
    results = summarise(samples, resamples=100)
    assert results["correct"]["value"] == 1.0
    assert (results["samples"], results["unjudged"]) == (1, 1)
    assert "1 sample could not be judged" in results["notes"][0]


def test_measured_and_modelled_times_are_never_mixed() -> None:
    samples = [
        sample(correct("a", 2.0)),
        sample(correct("b", 8.0, kind="modelled")),
        sample(correct("c", 8.0, kind="modelled")),
    ]
    results = summarise(samples, resamples=100)
    assert results["timing"]["kind"] == "measured"
    assert results["geomean_x"]["value"] == pytest.approx(2.0)
    assert results["untimed"] == 2
    assert results["fast_0"]["value"] == 1.0
    assert results["fast_1"]["value"] == pytest.approx(1 / 3)
    assert any("modelled on NVIDIA H200" in note for note in results["notes"])
    alone = summarise(samples[1:], resamples=100)
    assert alone["timing"]["kind"] == "modelled"
    assert any("nothing was measured" in note for note in alone["notes"])
    assert alone["fast_1"]["value"] == 1.0  # a model has no noise that a win could lie in


def test_every_fast_p_counts_wins_beyond_the_noise_and_has_the_plain_count_beside_it() -> None:
    speeds = {"a": 1.02, "b": 1.5, "c": 2.02, "d": 0.51}  # each with an interval of 3 %
    results = summarise([sample(correct(task, x)) for task, x in speeds.items()], resamples=100)
    found = {p: (results[f"fast_{p}"]["value"], results[f"fast_{p}_plain"]["value"]) for p in ("0.5", "0.8", "1", "1.2", "2")}
    assert found == {"0.5": (0.75, 1.0), "0.8": (0.75, 0.75), "1": (0.5, 0.75), "1.2": (0.5, 0.5), "2": (0, 0.25)}
    assert "fast_0_plain" not in results
    training = fmean(correct(task, x).faster() for task, x in speeds.items())
    assert training == results["fast_1"]["value"]  # one definition for both


def test_equal_samples_give_equal_intervals_whatever_their_order(run: Run) -> None:
    found = summarise(run.samples, resamples=300)
    shuffled = random.Random(5).sample(run.samples, len(run.samples))
    assert summarise(shuffled, resamples=300) == found
    half = [s for s in run.samples if s.id.endswith("0-1")]
    assert compare(run.samples, half) == compare(shuffled, half[::-1])


def test_comparison_is_over_the_tasks_of_both() -> None:
    before = [sample(correct("a", 1.0)), sample(wrong("b")), sample(correct("only before", 9.0))]
    after = [sample(correct("a", 1.5)), sample(correct("b", 3.0)), sample(wrong("only after"))]
    change = compare(before, after)
    assert (change["tasks"], change["solved_by_both"]) == (2, 1)
    assert change["correct"]["value"] == pytest.approx(0.5)
    assert change["speed_ratio_x"]["value"] == pytest.approx(1.5)
    assert compare(before, [sample(wrong("z"))])["tasks"] == 0


@pytest.mark.parametrize(("kind", "said"), [("measured", "wins beyond the noise, 0.0"), ("modelled", "modelled, +50.0")])
def test_what_is_said_of_a_change_counts_wins_beyond_the_noise_where_there_is_one(kind: str, said: str) -> None:
    """One of two tasks gets faster by what may be noise."""
    before = [sample(correct(task, 0.9, kind=kind)) for task in "ab"]
    within = correct("a", 1.01, kind=kind)
    assert within.timing is not None
    speedups_x = {name: replace(x, significant=False) for name, x in within.timing.speedups_x.items()}
    after = [sample(replace(within, timing=replace(within.timing, speedups_x=speedups_x))), before[1]]
    assert f"fast_1, {said} points" in comparison_text("before", {"name": "after", **compare(before, after)})


def test_speeds_of_two_clocks_are_not_compared() -> None:
    change = compare([sample(correct("a", 1.0))], [sample(correct("a", 9.0, kind="modelled"))])
    assert change["correct"]["value"] == 0
    assert "fast_1" not in change
    assert "nothing was timed in both by one clock" in comparison_text("before", {"name": "after", **change})


def test_modelled_is_said_wherever_a_modelled_speed_is_shown(tmp_path: Path) -> None:
    rows = [row(correct(t, 2.0, kind="modelled"), family=t) for t in ("a", "b")]
    write_lines(tmp_path / "samples.jsonl", rows)
    text = Page(render_report([read_run(tmp_path)])).text
    for words in (
        "faster than eager by the model", "faster than eager, modelled", "speed against eager, modelled", "fast_p, modelled",
        "by family, modelled", "against eager, modelled", "2.00× over eager, modelled", "µs (modelled)",
    ):  # fmt: skip
        assert words in text


def test_terminal_shows_the_figures(run: Run) -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(results_view(summarise(run.samples, resamples=200)))
    text = console.export_text()
    assert re.search(r"fast_1 +[\d.]+% \[\d+, \d+\](, [\d.]+% plain)? ", text)
    assert re.search(r"correct +\d+% \[\d+, \d+\]", text)
    assert "12 tasks, 48 samples, 1 run; fp32; measured on NVIDIA H200" in text


# --- files -------------------------------------------------------------------------------------------------------


def test_a_row_is_found_again_by_its_offset(run: Run) -> None:
    for chosen in (run.samples[0], run.samples[-1]):
        assert read_row(run, chosen)["id"] == chosen.id


def test_the_last_row_of_an_id_counts(tmp_path: Path) -> None:
    write_lines(tmp_path / "samples.jsonl", [row(wrong("a")), row(correct("a", 2.0)), row(wrong("b"))])
    read = read_run(tmp_path).samples
    assert [s.verdict.status for s in read] == [Status.CORRECT, Status.WRONG]


def test_a_cut_or_broken_line_is_left_out_and_said(tmp_path: Path) -> None:
    write_lines(tmp_path / "samples.jsonl", [row(correct("a", 2.0)), {"id": "no verdict"}])
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write('[1, 2]\n{"id": "cut off')
    (tmp_path / "results.json").write_text("{")
    read = read_run(tmp_path)
    assert len(read.samples) == 1
    said = " ".join(read.problems)
    assert "cut short" in said
    assert "left out 1 row that is no sample" in said
    assert "left out 1 line that is no JSON object" in said
    assert "results.json is not a JSON object" in said


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir()])
def test_no_run_is_a_usage_error(tmp_path: Path, make: object) -> None:
    path = tmp_path / "nothing"
    make(path)  # pyright: ignore[reportCallIssue]
    with pytest.raises(UsageError, match=r"no such folder|holds no run"):
        read_run(path)


# --- the page ----------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Counts tags and keeps what could reach beyond the page."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.links: list[tuple[str, str | None]] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.links += [(k, v) for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data")]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_whole_and_needs_nothing(run: Run) -> None:
    html = render_report([run])
    page = Page(html)
    assert not page.open
    assert not page.links
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == 0
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html
    assert "url(" not in html
    assert "@import" not in html
    for heading in ("Where candidates stop", "fast_p", "Correct, by family", "The best candidates", "Cheats and broken rules"):
        assert heading in page.text
    assert page.tags["svg"] >= 7


@pytest.mark.slow
def test_page_agrees_with_the_figures(run: Run) -> None:
    results = summarise(run.samples)
    text = Page(render_report([run])).text
    share = results["correct"]["value"]
    assert f"{100 * share:.0f}% are correct" in text
    assert f"{results['geomean_x']['value']:.2f}× its speed" in text


def test_untrusted_text_is_text(tmp_path: Path) -> None:
    hostile = verdict(HOSTILE, Status.POLICY, Stage.SCREEN, HOSTILE)
    lines = [row(hostile, family=HOSTILE, text=HOSTILE), row(correct("t", 2.0), member=1, text=f"x = 1  # {HOSTILE}")]
    plan = {"nodes": [{"name": HOSTILE, "kind": HOSTILE, "us": 1.0}]}
    lines.append(row(correct(HOSTILE, 3.0, plan=plan), member=2, family=HOSTILE, text=HOSTILE))
    lines.append(row(wrong("u", reason=HOSTILE), member=3, text=HOSTILE))
    write_lines(tmp_path / "run" / "samples.jsonl", lines)
    write_lines(
        tmp_path / "run" / "metrics.jsonl",
        [{"step": i, "reward": 0.5, "alarms": [HOSTILE], "seconds": {"generate": 1.0}} for i in range(3)],
    )
    write_config(tmp_path / "run", "eval", model=HOSTILE)
    html = render_report([read_run(tmp_path / "run")] * 2, title=HOSTILE)
    page = Page(html)
    assert page.tags["script"] == page.tags["img"] == 0
    assert not page.handlers
    assert not page.open
    assert "<script>alert" not in html
    assert "{{ 7 * 7 }}" in page.text  # nor is it taken for a template
    assert "<script>alert(1)</script>" in page.text  # and it can be read


def test_a_sources_flood_is_cut() -> None:
    text = highlighted("x = 1\n" * 5000 + "y" * 100_000)
    assert len(text) < 60_000
    assert "more lines" in text


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("metrics.jsonl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], "No candidate has been judged in this run."),
        ("samples.jsonl", [row(wrong("a"))], "Of 1 candidate, for 1 task, none are correct (fp32)."),
        ("samples.jsonl", [row(correct("a"))], "100% are correct; none was timed (fp32)."),
        ("samples.jsonl", [row(wrong("a", Stage.PLAN, Status.NEEDS_GPU))], "No candidate of this run could be judged."),
        ("samples.jsonl", [], "Nothing has happened in this run yet."),
    ],
)
def test_partial_runs_say_so(tmp_path: Path, name: str, rows: list[dict[str, Any]], expected: str) -> None:
    write_lines(tmp_path / name, rows)
    assert expected in Page(render_report([read_run(tmp_path)])).text


def test_settings_are_shown_as_they_are_given(tmp_path: Path) -> None:
    settings = {"limit": None, "baseline": ["eager", "compile"], "verifier": {"device": "auto", "workers": None}}
    described = {"config": settings, "argv": ["/opt/venv/bin/kernrl", "eval", "--tasks", "my tasks"]}
    (tmp_path / "config.json").write_text(json.dumps(described))
    text = Page(render_report([read_run(tmp_path)])).text
    assert "baselineeager, compileverifier.deviceauto" in text  # cells, side by side
    assert "kernrl eval --tasks 'my tasks'" in text
    assert "/opt/venv" not in text
    assert "workers" not in text


def test_the_terminal_says_so_where_nothing_has_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert cli.run(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split("\n")[0] == "Nothing has happened in this run yet."


def test_training_run_is_described_by_its_end(tmp_path: Path) -> None:
    trained = read_run(make_reinforce_run(tmp_path / "rl", steps=30))
    last, words = newest(trained.samples)
    assert words == "steps 28 to 30"
    assert {s.step for s in last} == {28, 29, 30}
    text = Page(render_report([trained])).text
    for heading in (
        "Reward",
        "Entropy, nats a token",
        "Wall time by phase",
        "steps 28 to 30",
        "Policy loss",
        "Alarms on the way",
    ):
        assert heading in text
    hours = sum(sum(m["seconds"].values()) for m in trained.metrics) / 3600
    assert f"{hours:.2f} GPU-hours: {3 * hours:.2f} at 3 an hour" in text


@pytest.mark.slow
def test_runs_are_compared_with_the_first(tmp_path: Path, run: Run) -> None:
    after = read_run(make_eval_run(tmp_path / "after", skill=0.9, seed=1))
    change = comparisons([run, after])[0]
    assert change["name"] == "after"
    assert change["correct"]["value"] > 0
    page = Page(render_report([run, after]))
    assert "before → after, on the 12 tasks of both: correct +" in page.text
    assert not page.open


@pytest.mark.slow
def test_a_run_that_did_not_sample_is_shown_and_not_compared(tmp_path: Path, run: Run) -> None:
    (tmp_path / "sft").mkdir()
    write_lines(tmp_path / "sft" / "metrics.jsonl", [{"step": n, "loss": 8 / n, "seconds": 0.1} for n in (1, 2, 3)])
    taught = read_run(tmp_path / "sft")
    assert comparisons([run, taught]) == comparisons([taught, run]) == []
    assert "Cross-entropy of SFT" in Page(render_report([run, taught])).text


@pytest.mark.slow
def test_a_table_never_mixes_tasks_and_has_every_run(tmp_path: Path, run: Run) -> None:
    more = read_run(make_eval_run(tmp_path / "more", tasks=16, seed=3))
    write_config(tmp_path / "elsewhere", "eval")
    write_lines(tmp_path / "elsewhere" / "samples.jsonl", [row(correct("of its own", 2.0))])
    elsewhere = read_run(tmp_path / "elsewhere")
    trained, chosen = (read_run(make_reinforce_run(tmp_path / name, steps=2)) for name in ("rl", "best-of-n"))
    assert runs_by_kind([trained, run]).heading == "evaluation, on 12 tasks"
    by_kind = runs_by_kind([trained, run, chosen, elsewhere, more])
    assert [r.name for r in by_kind.compared] == ["before", "more"]
    assert {s.task for s in by_kind.compared[0].samples} == {s.task for s in by_kind.compared[1].samples}
    assert (by_kind.tasks, by_kind.left_out) == (12, 16)
    assert [r.name for r in (*by_kind.training, *by_kind.apart)] == ["rl", "best-of-n", "elsewhere"]
    text = Page(render_report([trained, run, chosen, elsewhere, more])).text
    for words in ("on the 12 tasks that they share; 16 samples of other tasks are left out",
                  "Training, each step on tasks of its own", "Other runs, on other tasks",
                  "before → more, on the 12 tasks of both"):  # fmt: skip
        assert words in text
    assert all(name in text for name in ("rl", "best-of-n", "elsewhere"))


def test_a_change_is_shown_task_by_task_with_the_kernels(tmp_path: Path) -> None:
    sides = {"before": ("x = 1", 1.2), "after": ("x = 2  # <b>", 2.4)}
    for name, (text, speed) in sides.items():
        write_config(tmp_path / name, "eval")
        rows = [row(correct("a", speed), text=text), row(correct("same", 1.5), text="y = 1")]
        rows.append(row(correct("a", 1.1) if name == "after" else wrong("a"), member=1, text=text))
        write_lines(tmp_path / name / "samples.jsonl", rows)
    page = render_report([read_run(tmp_path / name) for name in sides])
    text = Page(page).text
    assert "1 of 2 → 2 of 2" in text
    assert "+50 points, 1.35×" in text  # the mean of 2.4 and 1.1 over 1.2
    assert '<span class="removed">-x = 1</span>\n<span class="added">+x = 2  # &lt;b&gt;</span>' in page
    assert page.count('class="removed"') == 1  # an equal kernel has no difference to show


def test_few_numbers_are_no_chart(tmp_path: Path) -> None:
    short, long = (read_run(make_reinforce_run(tmp_path / str(steps), steps=steps)) for steps in (2, 3))
    assert training_panels([short]) == []
    numbers = training_numbers([short])
    assert numbers
    assert dict(numbers.rows)["KL to the reference, nats a token"] == ["0.01 → 0.02"]
    assert training_numbers([long]) is None
    assert len(training_panels([long])) > 5


def test_losses_of_another_kind_are_apart(tmp_path: Path) -> None:
    rl = read_run(make_reinforce_run(tmp_path / "rl", steps=4))
    write_lines(tmp_path / "sft" / "metrics.jsonl", [{"step": n, "loss": 8 / n, "seconds": 0.1} for n in (1, 2, 3)])
    panels = {p.title: p for p in training_panels([rl, read_run(tmp_path / "sft")])}
    assert {"Policy loss", "Cross-entropy of SFT, nats a token"} <= panels.keys()
    assert panels["Policy loss"].legend == ()  # of one run alone


def test_the_page_opens_with_what_how_when_and_how_exact(run: Run) -> None:
    found = re.search(r'<p class="lead">(.*?)</p>', render_report([run]))
    assert found
    assert re.fullmatch(
        r"Of 48 candidates, for 12 tasks, \d+% are correct and \d+% are also faster than eager on NVIDIA H200; .* "
        r"\(nano, measured on NVIDIA H200, fp32, 2026-01-02\)\.",
        found[1],
    )


@pytest.mark.slow
def test_few_steps_are_said_to_follow_their_tasks(tmp_path: Path, run: Run) -> None:
    for steps, said in ((3, True), (60, False)):
        trained = read_run(make_reinforce_run(tmp_path / str(steps), steps=steps))
        assert ("Each step asks other tasks" in Page(render_report([run, trained])).text) is said


def test_tasks_of_training_are_no_others_of_an_evaluation(tmp_path: Path, run: Run) -> None:
    rows = [row(correct("of its own", 2.0))]
    for stage, said in (("reinforce", 0), ("best-of-n", 0), ("eval", 1)):
        (tmp_path / stage).mkdir()
        write_config(tmp_path / stage, stage)
        write_lines(tmp_path / stage / "samples.jsonl", rows)
        assert len(comparisons([run, read_run(tmp_path / stage)])) == said


# --- what is shown -----------------------------------------------------------------------------------------------


def test_best_are_the_fastest_of_distinct_tasks_and_beyond_noise(tmp_path: Path) -> None:
    rows = [
        row(correct("a", 1.9), member=0),
        row(correct("a", 2.5), member=1),
        row(correct("b", 3.0), member=2),
        row(verdict("c", Status.CORRECT, Stage.TIMING, "", timing=timing(9.0, kind="modelled")), member=3),
        row(wrong("d"), member=4),
    ]
    write_lines(tmp_path / "samples.jsonl", rows)
    read = read_run(tmp_path)
    shown = best(read, read.samples)
    assert [e.title for e in shown] == ["b", "a"]
    assert any("2.50×" in fact for fact in shown[1].facts)


def test_failures_are_shown_by_how_common_they_are(tmp_path: Path) -> None:
    reasons = ["off by 3.1e-02 in 'x'", "off by 2.7e-01 in 'y'", "all NaN"]
    rows = [row(wrong("a", reason=r), member=i) | {"tokens": 100 - i} for i, r in enumerate(reasons)]
    rows.append(row(wrong("a", Stage.TRACE, Status.COMPILE_ERROR), member=5))
    rows += [row(wrong("a", Stage.SCREEN, Status.POLICY, "imports 'os'"), member=6 + i) for i in range(4)]
    write_lines(tmp_path / "samples.jsonl", rows)
    read = read_run(tmp_path)
    shown = instructive(read, read.samples)
    assert [e.status for e in shown] == ["wrong", "compile_error"]
    assert "off by 2.7e-01 in 'y'" in shown[0].facts  # the shortest of the commonest kind
    caught = cheats(read, read.samples)
    assert [(c.status, c.count) for c in caught] == [("policy", 4)]


def test_reasons_are_of_a_kind_when_only_numbers_and_names_differ() -> None:
    assert kind_of_reason("kernel 'a' needs 3 warps") == kind_of_reason("kernel 'bcd' needs 16 warps")
    assert kind_of_reason("kernel 'a' needs 3 warps") != kind_of_reason("kernel 'a' needs 3 stages")


def test_graph_names_every_op_and_launch() -> None:
    nodes = [{"name": "aten.addmm.default", "kind": "library", "us": 3.0}, {"name": "tail", "kind": "authored", "us": 1.0}]
    svg = fusion_chart(("linear", "gelu", "scale"), {"nodes": nodes})
    for words in ("linear", "gelu", "scale", ">addmm<", "library call, 75%", ">tail<", "its own kernel, 25%", "2 steps"):
        assert words in svg
    assert fusion_chart(("linear",), {}) == ""
    assert fusion_chart((), {"nodes": "none"}) == ""


# --- the command -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_eval_run(tmp_path / "run", tasks=4)
    assert cli.run(["report", str(folder), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert Path(data["page"]).read_text().startswith("<!doctype html>")
    assert data["runs"][0]["tasks"] == 4
    assert math.isfinite(data["runs"][0]["correct"]["value"])
    assert cli.run(["report", str(folder)]) == 0  # a page can be made again
    assert "geomean" in capsys.readouterr().out


def test_report_command_overwrites_no_ones_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_eval_run(tmp_path / "run", tasks=4)
    (tmp_path / "thesis.html").write_text("<p>years of work")
    assert cli.run(["report", str(folder), "--output", str(tmp_path / "thesis.html")]) == 2
    assert "name another file" in capsys.readouterr().err
    assert (tmp_path / "thesis.html").read_text() == "<p>years of work"
    assert cli.run(["report"]) == 2
    assert cli.run(["report", str(tmp_path / "absent")]) == 2


def test_the_terminal_has_the_pages_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = make_reinforce_run(tmp_path / "rl", steps=3)
    assert cli.run(["report", str(trained)]) == 0
    text = capsys.readouterr().out
    last = read_run(trained).metrics[-1]
    assert f"{last['reward']:.3f}" in text
    judged = [s for s in read_run(trained).samples if s.step == 3]
    correct_share = sum(s.verdict.correct for s in judged) / len(judged)
    assert re.search(rf"right on every input +{100 * correct_share:.0f}%", text)
    stopped = Counter(str(s.verdict.status) for s in judged if not s.verdict.correct)
    assert all(f"{n} {status}" in text for status, n in stopped.items())
    spent = [row["seconds"] for row in read_run(trained).metrics]
    share = sum(s["update"] for s in spent) / sum(sum(s.values()) for s in spent)
    assert f"{share:.0%}" in text[text.index("phase") :]


def test_replies_that_were_cut_are_said() -> None:
    samples = [sample(correct("a", 2.0), n, cut=n < 3) for n in range(4)]
    results = summarise(samples)
    assert results["cut"] == 3
    assert "3 replies were cut at the limit of tokens, of 4." in results["notes"]
    assert not any("cut at" in note for note in summarise(samples[3:])["notes"])
