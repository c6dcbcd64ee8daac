"""What the pages say is true now: paths exist, commands are commands, Python runs, and what is generated is current."""

import html
import importlib.util
import json
import math
import pkgutil
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import loss_table  # pyright: ignore[reportMissingImports]
import make_results_page  # pyright: ignore[reportMissingImports]
import optimize_figures  # pyright: ignore[reportMissingImports]
import pytest
import readme_figures  # pyright: ignore[reportMissingImports]
import torch
from support import ROOT
from support.page_commands import commands
from support.synthetic_run import make_reinforce_run

from kernrl import cli
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.loaders import load_tasks
from kernrl.verifier.judge.regimes import REGIMES

DOCS = ROOT / "docs"
README = ROOT / "README.md"
IN_DOCS = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "benchmarks")
OTHERS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md", "checkpoints/nano/README.md")
PAGES = [*(ROOT / page for page in OTHERS), *IN_DOCS]
"""Pages that are true now: a changelog names files where they were."""
ALL_PAGES = [*PAGES, ROOT / "CHANGELOG.md", *sorted((DOCS / "benchmarks").glob("*.md"))]


def of(page: Path) -> str:
    return str(page.relative_to(ROOT))


CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1$", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)
TABLE_ROW = re.compile(r"^ *\|")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_in_the_readme_is_of_the_recorded_session() -> None:
    session = json.loads((DOCS / "benchmarks" / "optimize_session.json").read_text())
    drawn = html.unescape(re.sub(r"<[^>]*>", "", (DOCS / "images" / "optimize.svg").read_text())).replace("\xa0", " ")
    search, check = session["commands"]
    assert f"\n    {search['command']}\n" in README.read_text()
    words = f"$ {search['command']} {search['output']} $ {check['command']} {check['output']}".split()
    missing = [word for word in words if word not in drawn]
    assert len(words) > 50
    assert not missing


def test_cli_page_is_current() -> None:
    assert (DOCS / "reference" / "cli.md").read_text() == script("make_cli_docs").render(), "run `make docs`"


@pytest.mark.parametrize("page", make_results_page.PAGES, ids=of)
def test_tables_are_current(page: Path) -> None:
    text = page.read_text()
    assert "<!-- table: " in text
    assert make_results_page.render(text) == text, "run `make docs`"


def test_a_table_appears_when_its_measurement_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_results_page
    page = "<!-- table: ablation -->\n<!-- end -->\n"
    monkeypatch.setattr(made, "DOCS", tmp_path)
    assert "Not measured yet: there is no ablation.json" in made.render(page)
    (tmp_path / "benchmarks").mkdir()
    recorded = json.loads((ROOT / "docs" / "benchmarks" / "ablation_cpu.json").read_text())
    (tmp_path / "benchmarks" / "ablation.json").write_text(json.dumps(recorded | {"gpu": "NVIDIA H200"}))
    table = made.render(made.render(page))
    assert "| poison |" in table
    assert "NVIDIA H200, torch" in table


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    missing = []
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", CODE_BLOCK.sub("", text)):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(f"{target}#{anchor}")
    # `folder/file` in backticks is a path of the repository, where its first part is one of ours
    ours = ("kernrl", "docs", "scripts", "tests", "data", ".ci", ".github")
    paths = [p for p in re.findall(r"`([\w./-]+/[\w./-]*)`", text) if p.split("/")[0] in ours]
    if page.name == "processes.md":  # its paths start in the verifier
        missing += [p for p in re.findall(r"\b\w+/\w+\.py\b", text) if not (ROOT / "kernrl" / "verifier" / p).exists()]
    missing += [path for path in paths if not (ROOT / path).exists() and not path.startswith("data/generated")]
    assert not missing, f"{of(page)} names what is not there: {missing}"


def test_where_things_are_is_where_they_are() -> None:
    """A row of CONTRIBUTING's list names folders, and files in them by their names alone."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where is")[2].partition("## Rules")[0]
    rows = [line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    for row in rows:
        places = [ROOT / path for path in re.findall(r"`((?:kernrl|docs|tests)/[\w./-]*)`", row)]
        folders = [place if place.is_dir() else place.parent for place in places]
        assert places, row
        assert not [place for place in places if not place.exists()], row
        for name in re.findall(r"`(\w+\.py|(?!tests)\w+/)`", row):
            assert any((folder / name).exists() for folder in folders), f"{name} is in none of the folders of: {row}"


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may name."""
    headings = re.findall(r"^#+ (.+)$", CODE_BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", IN_DOCS, ids=of)
def test_pages_are_written_for_mkdocs_too(page: Path) -> None:
    """Its Markdown is older: what GitHub takes as a list, a table or a block of code, it shows as text or flat."""
    outside = re.findall(r"\]\((?!https?:)([^)#]+)", CODE_BLOCK.sub("", page.read_text()))
    assert not [target for target in outside if not (page.parent / target).resolve().is_relative_to(DOCS)]
    assert not re.search(r"^ +(```|~~~)", page.read_text(), re.MULTILINE), "a fenced block inside a list"
    item = re.compile(r"( *)(?:[-*]|\d+\.) ")
    for block in re.split(r"\n\s*\n", CODE_BLOCK.sub("\n", page.read_text())):
        first, *_ = lines = block.strip("\n").split("\n")
        items = [found for line in lines if (found := item.match(line))]
        assert not [found for found in items if len(found[1]) % 4], f"a list in a list is indented by four: {block}"
        assert item.match(first) or not items, f"no empty line before the list: {block}"
        assert "|" in first[:5] or not [line for line in lines if line.startswith("|")], f"none before the table: {block}"


def test_every_page_is_in_the_navigation_and_in_a_folder_of_its_kind() -> None:
    navigation = set(re.findall(r": (\w\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert navigation == {str(page.relative_to(DOCS)) for page in IN_DOCS}
    folders = {"start", "guides", "reference", "explanation", "notes"}
    assert {name.split("/")[0] for name in navigation - {"index.md"}} == folders


def test_a_note_says_when() -> None:
    """Its name and its first lines hold one date, and the list of notes has it."""
    notes = [page for page in (DOCS / "notes").glob("*.md") if page.name not in ("index.md", "results.md")]
    assert len(notes) >= 8
    listed = (DOCS / "notes" / "index.md").read_text()
    for page in notes:
        year, month, day = page.name.split("-")[:3]
        assert (year, month) == ("2026", "11")
        assert f"*{int(day)} November {year}" in page.read_text(), of(page)
        assert f"| {year}-{month}-{day} | [" in listed
        assert f"({page.name})" in listed


LONGEST_ROW = 600
"""A row of a table stands in one line of the source: beyond this it is several rows, or prose."""

WIDE = ("reference/cli.md",)
"""Pages whose lines are not broken at 120 columns: a script makes them."""


@pytest.mark.parametrize("page", ALL_PAGES, ids=of)
def test_prose_is_under_120_columns(page: Path) -> None:
    """What scripts write included; only rows of tables cannot be broken."""
    if page.is_relative_to(DOCS) and str(page.relative_to(DOCS)) in WIDE:
        pytest.skip("written by a script")
    lines = CODE_BLOCK.sub("", page.read_text()).splitlines()
    assert [line for line in lines if len(line) >= 120 and not TABLE_ROW.match(line)] == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=of)
def test_rows_of_tables_are_of_readable_length(page: Path) -> None:
    rows = [line for line in CODE_BLOCK.sub("", page.read_text()).splitlines() if TABLE_ROW.match(line)]
    assert [row for row in rows if len(row) >= LONGEST_ROW] == []


def test_the_table_of_the_losses_is_current() -> None:
    page = loss_table.markdown(record("loss"))
    assert page == (DOCS / "benchmarks" / "loss.md").read_text(), "run `python scripts/bench_loss.py --render`"


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_make_targets_are_in_the_makefile(page: Path) -> None:
    named = re.findall(r"(?:^ *|`)make ((?:[a-z-]+ ?)+)", page.read_text(), re.MULTILINE)
    targets = {target for words in named for target in words.split()}
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    assert page != README or {"quickstart", "test"} <= targets


def test_the_help_of_make_fits_a_terminal() -> None:
    texts = re.findall(r"^([a-z-]+):.*## (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(texts) > 5
    assert [name for name, text in texts if 14 + len(text) > 80] == []


def test_ci_runs_what_the_readme_says() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert ".ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_commands_are_found() -> None:
    text = "Say\n\n    kernrl doctor  # here\n\n```bash\nkernrl eval --model x#1 \\\n  --samples 2 | head\n```\n"
    text += "\n```\n$ kernrl --help\n```\n"
    assert commands(text) == [["doctor"], ["eval", "--model", "x#1", "--samples", "2"], ["--help"]]


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_every_command_is_one(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(page.read_text()):
        assert cli.run([*words, *([] if "--help" in words else ["--dry-run"])]) == 0, (words, capsys.readouterr().err)


# --- README's figures, worked out here from the records, without the scripts that write them ---------------------------


def record(name: str) -> Any:
    return json.loads((DOCS / "benchmarks" / f"{name}.json").read_text())


def recorded(name: str) -> bool:
    return (DOCS / "benchmarks" / f"{name}.json").exists()


def claims(table: str) -> dict[str, list[str]]:
    """The cells of each row of one of README's tables, by its first cell."""
    block = re.search(rf"<!-- table: {table} -->\n(.*?)<!-- end -->", README.read_text(), re.DOTALL)
    assert block
    rows = [line.strip("|").split(" | ") for line in block[1].splitlines() if line.startswith("| ")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[2:]}


def interval(figure: Any) -> str:
    value = 100 * figure["value"]
    digits = 1 if 99.5 <= value < 100 else 0  # nearly all are not all
    return f"{value:.{digits}f}% [{100 * figure['low']:.0f}, {100 * figure['high']:.0f}]"


def ratio(figure: Any) -> str:
    return f"{figure['value']:.2f}× [{figure['low']:.2f}, {figure['high']:.2f}]"


def test_readme_counts_wins_beyond_the_noise_against_both_baselines() -> None:
    methods = {
        "nano, where all start": "start",
        "more SFT": "further-sft",
        "best-of-N": "best-of-n",
        "reward-weighted SFT": "reward-weighted",
        "REINFORCE, three seeds": "reinforce, all seeds",
        "REINFORCE, one seed continued": "reinforce-long",
    }
    claimed, rows = claims("methods"), record("training")["rows"]
    methods = {title: name for title, name in methods.items() if name in rows}
    assert list(claimed) == list(methods)
    assert {"start", "reinforce, all seeds"} <= set(methods.values())
    for title, name in methods.items():
        row = rows[name]
        _seconds, correct, speed, eager, compiled, against = claimed[title]
        for said, baseline in ((eager, "eager"), (compiled, "compile")):
            found = row["against"][baseline]
            assert said == f"{interval(found['fast_1'])} ({100 * found['fast_1_plain']['value']:.0f}%)"
        assert against == ratio(row["against"]["compile"]["geomean_x"])
        assert correct.startswith(interval(row["correct"]))
        if name == "start":
            assert speed == "–"
        else:
            assert speed == ratio(row["change"]["speed_ratio_x"])
            assert f"{100 * row['change']['correct']['value']:+.1f} [" in correct  # what it costs stands beside it


def test_readme_shows_every_seed_and_leaves_out_no_run() -> None:
    rows = record("training")["rows"]
    seconds = [rows[f"reinforce-{seed}"]["training"]["seconds"] for seed in range(3)]
    assert claims("methods")["REINFORCE, three seeds"][0] == f"{min(seconds):.0f} to {max(seconds):.0f}"
    runs = record("tasks")["runs"]
    right, pairs = (sum(run["figures"][key] for run in runs) for key in ("right", "pairs"))
    figure = claims("headline")["tasks: worked solutions"][0]
    assert f"{right:,} of {pairs:,} right in {len(runs)} runs" in figure
    assert all(f"{run['figures']['best_style_x']:.2f} × over" in figure for run in runs if run["figures"]["best_style_x"])


def test_readme_has_conditions_commit_and_date_of_every_figure() -> None:
    claimed = claims("headline")
    verifier, tasks, scaling = (record(name) for name in ("verifier", "tasks", "scaling"))
    made = {
        "verifier: its": verifier["suite"],  # proved by a run of its own
        "verifier: programs": verifier,
        "verifier: speed": verifier | verifier["speed"],
        "losses": record("loss"),
        "tasks: worked styles": record("styles") | {"gpu": record("styles")["gpu"].removeprefix("measured on ")},
        "tasks: worked solutions": tasks | {"commit": ", ".join(sorted({run["commit"] for run in tasks["runs"]}))},
        **{nano_title(name): record("nano") | record("nano")[name] for name in NANO_SETS},
        "`kernrl optimize`": record("optimize"),
        **({"`kernrl.optimize` of": record("optimize_models")} if recorded("optimize_models") else {}),
        "nano: a decoding step": record("decode"),
        "two GPUs, `--launch ddp`: `sft`": scaling["ddp"]["made"],
        "two GPUs, `--launch ddp`: `reinforce`": scaling["ddp_rl"]["made"],
        "training a 7B": scaling["fsdp2"]["made"],
    }
    assert len(claimed) == len(made)
    for start, data in made.items():
        [(_figure, where, commit, date)] = [row for title, row in claimed.items() if title.startswith(start)]
        assert data["gpu"].replace("NVIDIA ", "") in where
        assert sorted(commit.split(", ")) == sorted(found[:7] for found in data["commit"].split(", "))
        assert date == (data["date"] if "date" in data else data["started"][:10])
        if versions := data.get("versions", data if "torch" in data else None):
            numbers = [re.match(r"[\d.]+", versions[name]) for name in ("torch", "triton")]
            assert where.endswith("torch {}, triton {}".format(*(found and found[0] for found in numbers)))
        assert where.startswith("2 × ") == (data in (part["made"] for part in scaling.values()))
        if start in ("verifier: programs", "verifier: speed"):
            assert f", {data['cores']} cores, " in where
    for one, two in (("one", "ddp"), ("one_rl", "ddp_rl"), ("lora", "fsdp2")):  # two runs of one commit and day in a row
        first, second = (scaling[name]["made"] for name in (one, two))
        assert (first["commit"], first["started"][:10]) == (second["commit"], second["started"][:10])
    training = record("training")
    note = README.read_text().partition("<!-- table: methods -->")[2].partition("<!-- end -->")[0]
    versions = "torch {torch}, triton {triton}".format(**training["versions"])
    start = training["rows"]["start"]
    said = " ".join(note.split())
    assert f"One H200, {versions}, commit {training['commit'][:7]}, {training['date']}." in said
    temperature = training["settings"]["temperature"]
    assert (
        f"{start['tasks']} held-out tasks × {start['samples'] // start['tasks']} candidates, T = {temperature}, tf32." in said
    )


def test_readme_says_what_the_records_say_of_verifier_and_losses() -> None:
    claimed, verifier = claims("headline"), record("verifier")
    suite = verifier["suite"]
    counts = suite["counts"]
    figure = claimed["verifier: its own test suite"][0]
    assert figure.startswith(f"{len(suite['escapes'])} of {counts['exploits']} exploits escaped")
    assert f"{len(suite['wrong_accepted'])} of {counts['wrong']} quietly wrong candidates accepted" in figure
    assert f"{len(suite['honest_refused'])} of {counts['honest']} honest ones refused" in figure
    for pass_ in ("cold", "again"):
        assert f"{verifier[pass_]['verdicts'] / verifier[pass_]['wall_s']:.0f} " in claimed["verifier: speed"][0]
    ours, copies, ligers = (
        {
            tuple(row["shape"]): row["ms"]
            for row in record("loss")["logits"]
            if row["name"] == name and (row["dtype"], row["density"], row["shape"][0]) == ("bfloat16", 1.0, 8192)
        }
        for name in ("kernrl, in place", "copy", "Liger, in place")
    )
    over_copy = sorted(ours[shape] / copies[shape] for shape in ours)
    under_liger = sorted(ligers[shape] / ours[shape] for shape in ours)
    figure = claimed["losses: `grpo_loss`"][0]
    for values in (over_copy, under_liger):  # the worst as well as the best
        assert f"{values[0]:.2f} to {values[-1]:.2f} ×" in figure
    vocabularies = sorted(vocabulary for _rows, vocabulary in ours)
    assert f"({len(ours)} vocabularies from {vocabularies[0]:,} to {vocabularies[-1]:,}, 8,192 tokens, bf16" in figure


def test_readme_says_how_often_equal_programs_were_called_different() -> None:
    null = record("verifier")["null"]
    figure = claims("headline")["verifier: programs timed against themselves"][0]
    wrong = null["false_speedups"] + null["false_slowdowns"]
    assert figure.startswith(f"{wrong} of {null['comparisons']:,} called different; ")
    times = sorted(us for us, _half_width in null["noise"]["points"])
    assert null["planted"] == null["comparisons"] * (len(times) - 1) / len(times)  # the shortest was not among the planted
    assert f"{null['planted_seen']:,} of {null['planted']:,} seen when slowed by 5 % (at {times[1]:.0f} µs or more)" in figure


def test_readme_says_what_the_record_says_of_optimize() -> None:
    data = record("optimize")
    title = f"`kernrl optimize`, {data['modules']} modules of `tests/foreign`, {data['settings']['budget_s']:.0f} s each"
    says_what_the_results_say(claims("headline")[title][0], data)


def says_what_the_results_say(figure: str, data: Any) -> None:
    """A row about `kernrl optimize` says what the results of the modules do."""
    results = data["results"]
    assert len(results) == data["modules"]
    assert figure.startswith(f"a right file for {interval_of(results, lambda r: bool(r['best']))} ")
    ratios = [r["best"]["verdict"]["timing"]["speedups_x"] if r["best"] else {} for r in results]
    for name, start in (("eager", "faster than eager, beyond the noise, for "), ("compile", "")):
        share = interval_of(ratios, lambda one, name=name: name in one and one[name]["value"] > 1 and one[name]["significant"])
        assert f"{start}{share} [" in figure
    logs = [math.log(one["compile"]["value"]) for one in ratios if "compile" in one]
    assert f"(mean {math.exp(sum(logs) / len(logs)):.2f}× [" in figure.rpartition(", beyond the noise: ")[2]
    again = [r for r in results if r["searches"] == 2]
    assert data.get("searched_twice", 0) == len(again)
    if not again:
        assert "after" not in figure
        return
    before, _, after = figure.partition("; after ")
    first = data["first"]["baselines"]["compile"]
    assert f"after one search {first['faster']:.0%} [" in before
    assert f"(mean {first['geomean_x']:.2f}× [" in before
    assert after.startswith(f"{data['settings']['second_budget_s']:.0f} s more for {len(again)} modules that were not")
    assert figure.rpartition("modules that were not")[2].count("%") == 1  # the figures after both come last
    for name in ("gpu", "commit"):
        where = after.partition(")")[0].partition("(")[2]
        for found in data[f"second_{name}"].split(", ") if data[f"second_{name}"] != data[name] else ():
            assert found.removeprefix("NVIDIA ").split()[0][:7] in where
    elsewhere = {r["best"]["verdict"]["timing"]["device"] for r in results if r["best"]} - set(data["gpu"].split(", "))
    assert elsewhere <= set(data["second_gpu"].split(", "))


def interval_of(rows: list[Any], holds: Callable[[Any], bool]) -> str:
    """The share of rows of which something holds."""
    return f"{sum(map(holds, rows)) / len(rows):.0%}"


@pytest.mark.slow
@pytest.mark.parametrize("second", [None, ("NVIDIA H100 80GB HBM3", "c" * 40), ("NVIDIA H200", "a" * 40)])
def test_the_row_of_optimize_is_made_of_what_the_script_records(second: tuple[str, str] | None) -> None:
    first = {"gpu": "NVIDIA H200", "commit": "a" * 40, "searches": 1, "device": "NVIDIA H200"}
    rows = []
    for row in record("optimize")["results"]:
        verdict = row["best"]["verdict"]
        there = row["best"] | {"verdict": verdict | {"timing": verdict["timing"] | {"device": "NVIDIA H200"}}}
        rows.append({k: v for k, v in row.items() if k not in ("first", "second")} | first | {"best": there})
    rows[0] = rows[0] | {"best": None}
    if second:
        where = dict(zip(("gpu", "commit"), second, strict=True))
        twice = {"searches": 2, "first": rows[0], "second": where}
        verdict = rows[1]["best"]["verdict"]
        there = verdict | {"timing": verdict["timing"] | {"device": where["gpu"]}}
        rows[0] = rows[0] | twice | {"best": rows[1]["best"] | {"verdict": there}}
        rows[2] = rows[2] | twice | {"first": rows[2]}
    data = optimize_figures.figures_of_both(rows, {})
    data |= {"versions": {"torch": "2.11.0+cu130", "triton": "3.6.0"}, "date": "2026-11-27", "results": rows}
    data |= {"settings": {"precision": "tf32", "budget_s": 30.0, "second_budget_s": 40.0}}
    [[title, figure, where, commit, date]] = readme_figures.optimize(data)
    assert title == f"`kernrl optimize`, {len(rows)} modules of `tests/foreign`, 30 s each"
    assert (where, commit, date) == ("H200, tf32, torch 2.11.0, triton 3.6.0", "aaaaaaa", "2026-11-27")
    assert ("(commit ccccccc, H100)" in figure) == (second is not None and second[0] != "NVIDIA H200")
    says_what_the_results_say(figure, data)


WHOLE_MODELS = {
    "versions": {"torch": "2.11.0+cu130", "triton": "3.6.0"},
    "gpu": "NVIDIA H200",
    "commit": "a" * 40,
    "date": "2026-11-27",
    "models": [
        {
            "title": "ResNet-50, batch 64",
            "precision": "tf32",
            "small": False,
            "whole": True,
            "budget_s": 100.0,
            "seconds": 97.6,
            "swapped": 5,
            "of": 6,
            "agrees": "yes",
            "errors": {"eager": 1.234e-4, "kernrl": 2.5e-4},
            "ms": {"eager": 20.0, "kernrl": 16.0, "compile": 15.0},
            "speedups_x": {
                "eager": {"value": 1.25, "low": 1.2, "high": 1.3},
                "compile": {"value": 0.94, "low": 0.93, "high": 0.95},
            },
            "speedups_as_graphs_x": {"eager": {"value": 1.3, "low": 1.29, "high": 1.31}},
        },
        {"title": "ViT-B/16, batch 64", "precision": "tf32", "small": False, "swapped": 2},
        {"title": "TinyLlama 1.1B, at tiny sizes", "precision": "tf32", "small": True, "whole": True},
    ],
}
"""One that was measured, one that was begun, and one that was looked at."""


def test_whole_models_have_a_table_and_a_row_once_they_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [[title, figure, where, commit, date]] = readme_figures.whole_models(WHOLE_MODELS)
    assert title == "`kernrl.optimize` of 1 whole models, 100 s each: `forward`"
    assert figure == "ResNet-50, batch 64: 1.25× [1.20, 1.30] eager and 0.94× [0.93, 0.95] `torch.compile`"
    assert (where, commit, date) == ("H200, tf32, torch 2.11.0, triton 3.6.0", "aaaaaaa", "2026-11-27")
    monkeypatch.setattr(make_results_page, "DOCS", tmp_path)
    assert readme_figures.if_recorded(readme_figures.whole_models, make_results_page.read, "optimize_models") == []
    page = "<!-- table: whole_models -->\n<!-- end -->\n"
    assert "Not measured yet" in make_results_page.render(page)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "optimize_models.json").write_text(json.dumps(WHOLE_MODELS))
    rows = [line for line in make_results_page.render(page).splitlines() if line.startswith("| ")][2:]
    speeds = "20.00 | 1.25× [1.20, 1.30] | 0.94× [0.93, 0.95] | 1.30× [1.29, 1.31] | –"
    assert rows == [f"| ResNet-50, batch 64 | 5 of 6 | {speeds} | yes | 1.2e-04, 2.5e-04 | 98 |"]
    assert "NVIDIA H200, torch 2.11.0+cu130, triton 3.6.0, commit aaaaaaa," in " ".join(make_results_page.render(page).split())


@pytest.mark.skipif(not recorded("optimize_models"), reason="not measured yet")
def test_readme_says_what_the_record_says_of_whole_models() -> None:
    data = record("optimize_models")
    [row] = [cells for title, cells in claims("headline").items() if title.startswith("`kernrl.optimize` of ")]
    shown = [model for model in data["models"] if model.get("whole") and not model["small"]]
    assert len(row[0].split("; ")) == len(shown)
    for model in shown:
        ours = model["turns_ms"]["kernrl"]
        assert f"{model['title']}: " in row[0]
        for name in ("eager", "compile"):
            logs = [math.log(one / mine) for one, mine in zip(model["turns_ms"][name], ours, strict=True)]
            assert f"{math.exp(statistics.median(logs)):.2f}× [" in row[0]


NANO_SETS = {"foreign": "modules", "heldout": "generated tasks of 2 to 8 ops"}


def nano_title(name: str) -> str:
    """How the row of a set of nano's begins."""
    data = record("nano")
    found, seconds = data[name], sum(run["train_s"] for run in data["trainings"])
    assert found["tasks"] == found["of_tasks"], "else the row says of how many"
    return f"nano ({seconds:.0f} s of SFT), {found['tasks']} {NANO_SETS[name]}"


@pytest.mark.parametrize("name", NANO_SETS)
def test_readme_says_what_the_record_says_of_nano(name: str) -> None:
    found = record("nano")[name]
    statuses = found["statuses"]
    [(title, (figure, *_))] = [row for row in claims("headline").items() if row[0].startswith(nano_title(name))]
    assert f"× {found['samples'] // found['tasks']}, T = {found['temperature']}" in title
    assert f"{100 * found['correct']['value']:.0f}%" == f"{100 * statuses['correct'] / found['samples']:.0f}%"
    eager, compiled = (found["baselines"][name] for name in ("eager", "compile"))
    assert figure == (
        f"{interval(found['correct'])} correct, pass@8 {interval(found['pass@8'])}; faster than eager beyond the noise "
        f"{interval(eager['fast_1'])}, than `torch.compile` {interval(compiled['fast_1'])}; mean speed "
        f"{ratio(eager['geomean_x'])} and {ratio(compiled['geomean_x'])}"
    )


def test_readme_says_what_the_record_says_of_decoding() -> None:
    rows = {row["engine"]: row for row in record("decode")["results"] if row["rows"] == 256}
    ours, theirs = (rows[engine]["ms_a_step"] for engine in ("captured step", "transformers"))
    figure = claims("headline")["nano: a decoding step of 256 replies"][0]
    assert figure == f"{ours:.2f} ms, transformers' `generate` {theirs:.1f} ms"


def test_readme_says_what_the_records_say_of_two_gpus_and_of_seven_billion() -> None:
    claimed, data = claims("headline"), record("scaling")
    tokens = {name: data[name]["sft"]["row_tokens"] * data[name]["sft"]["rows_per_step"] for name in ("one", "ddp")}
    rates = {name: tokens[name] / data[name]["sft"]["step_s"] for name in tokens}
    figure = claimed["two GPUs, `--launch ddp`: `sft` of nano"][0]
    assert figure.startswith(f"{rates['ddp'] / rates['one']:.2f} ×")
    last = {name: data[name]["rl"] for name in ("one_rl", "ddp_rl")}
    attempts = {name: run["attempts"] / run["steps"][-1]["seconds"]["step"] for name, run in last.items()}
    figure = claimed["two GPUs, `--launch ddp`: `reinforce` of nano"][0]
    assert figure == f"{attempts['ddp_rl']:.0f} attempts a second in the last step, {attempts['one_rl']:.0f} on one GPU"
    said = []
    for run in (data["fsdp2"]["full"], data["lora"]["lora"]):
        assert 7.6e9 < run["parameters"] < 7.7e9
        whole_rows = run["row_tokens"] * run["rows_per_step"] / run["step_s"]
        assert 0.95 * whole_rows < run["tokens_per_s"] < whole_rows  # padding is left out
        said.append(f"{run['tokens_per_s']:,.0f} tokens/s, {run['peak_gib']:.0f} GiB")
    assert (data["fsdp2"]["gpus"], data["lora"]["gpus"]) == (2, 1)
    figure = claimed["training a 7B architecture, random weights"][0]
    assert figure == f"all weights on two GPUs: {said[0]} each; LoRA on one: {said[1]}"


def test_readme_has_figures_in_its_tables_alone() -> None:
    prose = GENERATED.sub("", CODE_BLOCK.sub("", README.read_text()))
    assert re.findall(r"[^\n]*\d (?:%|times|×|points|tokens|verdicts)[^\n]*|\d×", prose.replace("95 % intervals", "")) == []


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 150


def test_every_example_is_a_task_that_is_understood() -> None:
    tasks = load_tasks(str(DOCS / "examples")).tasks
    assert [task.id for task in tasks] == [file.stem for file in sorted((DOCS / "examples").glob("*.py"))]
    for task in tasks:
        assert not lift(task).unknown
        assert {"small", "ragged"} <= {found.name for found in with_input_sets(task).input_sets}  # it is judged at other sizes


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages' examples name: a task, a candidate, and a run that judged candidates from disk."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the verifier's cache
    tasks = load_tasks("heldout", limit=2).tasks
    (tmp_path / "my_kernels").mkdir()
    for task in tasks:
        (tmp_path / "my_kernels" / f"{task.id}.py").write_text(task.solutions[0].triton_code)
    assert cli.run(["eval", "--from-run", "my_kernels", "--limit", "2", "--quiet"]) == 0
    return tmp_path


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_the_python_guide_runs(workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "guides" / "python.md").read_text(), re.DOTALL):
        exec(compile(block, "docs/guides/python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "correct modelled" in said
    assert re.search(r"0 wrong .+\n", said)
    assert "1 no_code" in said
    assert (workshop / "report.html").exists()
    assert (workshop / "again" / "results.json").exists()


LONG = ("quickstart", "sft", "best-of-n", "reinforce", "reward-weighted", "eval", "optimize", "serve")
"""Commands of the README that take minutes or never end; other tests and `make quickstart` run them."""


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_the_readmes_quick_commands_run(workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = load_tasks("heldout#2").tasks[0]
    (workshop / "my_task.py").write_text(task.source_at(task.input_set("small") or task.input_sets[0]))
    (workshop / "candidate.py").write_text(task.solutions[0].triton_code)
    pair = {"task": f"heldout::{task.id}", "candidate": task.solutions[1].triton_code}
    (workshop / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    make_reinforce_run(workshop / "checkpoints" / "rl", steps=2)
    (workshop / "checkpoints" / "eval-1").rename(workshop / "checkpoints" / "eval")
    ran = [words for words in commands(README.read_text()) if words[0] not in LONG]
    for words in ran:
        fewer = ["20" if word == "1000" else word for word in words]  # of the tasks that are generated
        code = cli.run([*fewer, "--quiet"])
        assert code == 0, (words, capsys.readouterr().err)
    assert len(ran) >= 6
    assert json.loads((workshop / "verdicts.jsonl").read_text())["status"] == "correct"
    assert (workshop / "report.html").exists()


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_the_guide_to_verify_a_kernel_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files are saved under the names it gives them, and its commands judge them: the verdict is the one it shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the verifier's cache
    text = (DOCS / "guides" / "verify_a_kernel.md").read_text()
    task, candidate, stated_sets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    Path("my_task.py").write_text(task)
    Path("candidate.py").write_text(candidate)
    Path("wrong.py").write_text(candidate.replace("x * (1.0", "0.5 * x * (1.0"))
    assert cli.run(["tasks", "check", "my_task.py"]) == 0
    assert "derived" in capsys.readouterr().out
    assert cli.run(["verify", "my_task.py", "candidate.py", "--device", "cpu", "--json"]) == 0
    at_derived = json.loads(capsys.readouterr().out)
    Path("stated.py").write_text(f"{task}\n{stated_sets}")
    assert cli.run(["verify", "stated.py", "candidate.py", "--device", "cpu", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert len(verdict["errors"]) == len(at_derived["errors"]) == 2 + len(REGIMES) + -(-len(REGIMES) // 2)
    assert f"{len(verdict['errors'])} inputs, largest error" in text
    assert [verdict["status"], verdict["timing"]["kind"]] == ["correct", "modelled"]
    assert f"{verdict['speedup_x']['value']:.2f}× by the roofline model" in text
    assert cli.run(["verify", "stated.py", "wrong.py", "--device", "cpu", "--json"]) == 1
    reason = json.loads(capsys.readouterr().out)["reason"]
    form = r"Wrong on the \w+ shapes with \w+ inputs: the error is \S+× the tolerance; at index \[\d+, \d+\] of output 0"
    assert re.search(form, reason)
    assert re.search(form, " ".join(text.split()))


@pytest.mark.slow
def test_the_guide_to_lift_a_module_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "guides" / "lift_a_module.md").read_text()
    [source] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    Path("my_module.py").write_text(source)
    shown = re.findall(r"```\n(.*?)```", re.sub(r"```\w+\n.*?```", "", text, flags=re.DOTALL), re.DOTALL)
    lines = (
        ["tasks", "lift", "my_module.py"],
        ["tasks", "check", "my_module.py"],
        ["tasks", "lift", "heldout", "--limit", "3"],
    )
    for words, expected in zip(lines, shown[:3], strict=True):
        assert cli.run(words) == 0
        assert capsys.readouterr().out.split() == expected.split(), words
    [example] = re.findall(r"```python\n(.*?)```", (DOCS / "explanation" / "graph.md").read_text(), re.DOTALL)
    exec(compile(example, "docs/explanation/graph.md", "exec"), {})
    assert capsys.readouterr().out.startswith(shown[0].partition("\n\n")[0])
    assert cli.run(["tasks", "lift", "my_module.py", "--svg", "graph.svg"]) == 0
    assert Path("graph.svg").read_text() == (DOCS / "images" / "graph.svg").read_text(), "draw it again with --svg"


# what the guide's table says of it, and a `forward` of which it is said
REFUSED = {
    "the result depends on randomness (dropout at line": "F.dropout(self.fc(x), 0.1)",
    "decides by the numbers in a tensor": "x if x.sum() > 0 else self.fc(x)",
    "makes a tensor whose shape depends on numbers": "x[x > 0]",
    "is recurrent, which no Graph holds": "self.rnn(x)[0]",
    "makes a sparse tensor": "x.to_sparse().to_dense()",
    "unknown: aten.topk.default": "torch.topk(x, 4).values",
}
MODULE = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.rnn = nn.Linear(8, 8), nn.GRU(8, 8)

    def forward(self, x):
        return {forward}

def get_inputs():
    return [torch.randn(16, 8)]

def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("said", REFUSED)
def test_what_the_guide_says_of_modules_that_do_not_lift(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in (DOCS / "guides" / "lift_a_module.md").read_text()
    Path("task.py").write_text(MODULE.format(forward=REFUSED[said]))
    assert cli.run(["tasks", "lift", "task.py"]) == (0 if said.startswith("unknown") else 2)
    captured = capsys.readouterr()
    assert said.split(" (")[0] in re.sub(r" at line \d+", "", " ".join((captured.out + captured.err).split()))


def test_every_import_of_the_reference_is_there() -> None:
    """Names that move are found here before a user finds them."""
    listed = re.findall(r"^\| `(kernrl\.[\w.]+)` \|", (DOCS / "reference" / "python.md").read_text(), re.MULTILINE)
    assert len(listed) > 25
    for name in listed:
        if name.startswith("kernrl.integrations"):  # needs the other framework
            assert (ROOT / Path(*name.split(".")[:3])).with_suffix(".py").exists(), name
            continue
        assert pkgutil.resolve_name(name), name
