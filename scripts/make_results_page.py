"""Write the tables of docs/notes/results.md and README.md from docs/benchmarks/*.json: `make docs`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a function of `TABLES`. What is around it is prose.
No figure in a table is typed by hand.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import paragraphs
import readme_figures
from training_table import NOTE, faster, seconds_text

from kernrl.reports.svg import percent
from kernrl.reports.tables import figure_text

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (DOCS / "notes" / "results.md", DOCS.parent / "README.md")
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with every table made anew whose measurement is recorded. Raises KeyError for the name of no table."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{made(TABLES[found[2]])}\n{found[3]}", page)


def made(make: Callable[[], str]) -> str:
    try:
        return make()
    except FileNotFoundError as error:
        return f"*Not measured yet: there is no {Path(error.filename).name}.*\n"


def read(name: str) -> Any:
    return json.loads((DOCS / "benchmarks" / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def sft_curve() -> str:
    """SFT from nothing by the number of pairs, for as many steps each."""
    data = read("sft")
    rows = []
    for point in data["curve"]:
        found = point["heldout"]
        shares = (figure_text(found[key]) for key in ("compiled", "pass@1", "pass@4"))
        rows.append([f"{point['pairs']:,}", f"{point['loss']:.3f}", f"{point['validation_loss']:.3f}", *shares])
    first = data["curve"][0]
    each = first["samples"] // first["tasks"]
    head = ["pairs", "loss", "validation loss", "compiled", "pass@1", "pass@4"]
    note = f"{first['steps']:,} steps each; {first['tasks']} held-out tasks, {each} candidates each."
    return table(head, rows) + f"\n{note} {conditions(data['curve_made'])}\n"


def sft_where() -> str:
    """The share right by depth and by family, for each number of pairs and for the recipe of the shipped nano."""
    data = read("sft")
    runs = [(f"{point['pairs']:,} pairs", point["by_depth"] | point["by_family"]) for point in data["curve"]]
    whole = data["heldout"]
    parts = whole["by_depth"] | whole["by_family"]
    runs.append((f"the whole recipe, {data['training']['pairs']:,}", {key: part["correct"] for key, part in parts.items()}))
    names = {**{depth: f"{depth} ops deep" for depth in whole["by_depth"]}, **{family: family for family in whole["by_family"]}}
    rows = [[name, *(figure_text(found[key]) for _, found in runs)] for key, name in names.items()]
    return table(["", *(title for title, _ in runs)], rows)


WORD = re.compile("[a-z][a-z-]*")
"""Of a command's name, before its paths and flags."""


def quickstart() -> str:
    """The story from nothing, command by command."""
    data = read("quickstart")
    names = [" ".join(takewhile(WORD.fullmatch, step["command"].split())) for step in data["steps"]]
    rows = [[f"`{name}`", f"{step['seconds']:.0f}"] for name, step in zip(names, data["steps"], strict=True)]
    note = f"{data['seconds'] / 60:.1f} minutes in all. {conditions(data)}"
    return table(["command", "seconds"], rows) + f"\n{note}\n"


def quickstart_change() -> str:
    """What the story's model got right before and after it practised."""
    data = read("quickstart")
    rows = []
    for name, title in (("before", "after SFT"), ("after", "after best-of-N and REINFORCE")):
        found = data[name]
        shares = (figure_text(found[key]) for key in ("correct", "pass@8", "fast_1_plain"))
        rows.append([title, *shares, figure_text(found["geomean_x"], as_times=True)])
    change = data["change"]
    ratio = figure_text(change["speed_ratio_x"], as_times=True)
    rows.append(["change, on the same tasks", points(change["correct"]), "–", points(change["fast_1_plain"]), ratio])
    each = f"{data['before']['tasks']} held-out tasks, {data['before']['samples'] // data['before']['tasks']} candidates each."
    head = ["", "correct", "pass@8", "faster than eager, every win counted", "speed"]
    return table(head, rows) + f"\n{each} Wins beyond the noise were not recorded apart.\n"


METHODS = {
    "start": "SFT, where all start",
    "further-sft": "more SFT",
    "best-of-n": "best-of-N",
    "reward-weighted": "reward-weighted SFT",
    "reinforce, all seeds": "REINFORCE, all seeds",
    "best-of-n-then-reinforce, all seeds": "best-of-N, then REINFORCE, all seeds",
    "reinforce-long": "REINFORCE, continued",
    "fastest of all": "the fastest that any wrote",
}

PASS_K = 8

DOLLARS_A_GPU_HOUR = 3.0
"""What cost is reckoned at: an assumption, near what an H200 is rented for."""


def training() -> str:
    """One row a method, all from the same start: the held-out suite."""
    return _training(read("training"))


def training_foreign() -> str:
    """The same models, asked for modules written by hand."""
    return _training(read("training_foreign"))


def _training(data: Any) -> str:
    rows = []
    for name, title in METHODS.items():
        if not (row := data["rows"].get(name)):
            continue
        change, against = row.get("change", {}), row["against"]
        cells = [
            figure_text(row["correct"]),
            points(change.get("correct")),
            figure_text(row.get(f"pass@{PASS_K}")),
            faster(against["eager"]),
            faster(against.get("compile", {})),
            figure_text(against["eager"]["geomean_x"], as_times=True),
            figure_text(change.get("speed_ratio_x"), as_times=True),
        ]
        rows.append([title, *cells])
    head = [
        "",
        "correct",
        "change, points",
        f"pass@{PASS_K}",
        "faster than eager",
        "than compile",
        "speed",
        "speed, same tasks",
    ]
    start = data["rows"]["start"]
    asked = f"{start['tasks']} tasks, {PASS_K} candidates each, {data['settings']['precision']}."
    return table(head, rows) + wrapped(f"{asked} {NOTE} {conditions(data)}")


def seeds() -> str:
    """Each seed of REINFORCE by itself: how far one run is from the next."""
    data = read("training")
    names = [name for name in data["rows"] if name.startswith("reinforce-")]
    return table(SHORT, (short_row(data, n, n) for n in names))


THREE_SEEDS = {
    "training_three_seeds": "held-out, tf32",
    "training_three_seeds_foreign": "by hand, tf32",
    "training_three_seeds_bf16": "held-out, bf16",
    "training_three_seeds_bf16_foreign": "by hand, bf16",
}


def three_seeds() -> str:
    """Best-of-N and then REINFORCE, each seed and all of them, asked for two suites under two precisions."""
    head = [
        "asked for",
        "run",
        "tasks",
        "correct",
        "change, points",
        "faster than eager",
        "than compile",
        "speed against compile",
    ]
    rows = []
    for record, asked in THREE_SEEDS.items():
        for name, row in read(record)["rows"].items():
            if name == "fastest of all":
                continue
            against, change = row["against"], row.get("change", {})
            title = name.removeprefix("best-of-n-then-reinforce-").removeprefix("best-of-n-then-reinforce, ")
            cells = [figure_text(row["correct"]), points(change.get("correct")), faster(against["eager"])]
            cells += [faster(against["compile"]), figure_text(against["compile"]["geomean_x"], as_times=True)]
            title = f"seed {title}" if title.isdigit() else title
            rows.append([asked, title, f"{row['tasks']}", *cells, figure_text(change.get("speed_ratio_x"), as_times=True)])
            asked = ""
    return table([*head, "speed, same tasks"], rows) + wrapped(f"{NOTE} {conditions(read('training_three_seeds'))}")


def rl_curve() -> str:
    """The models that a run of REINFORCE went through, asked side by side."""
    data = read("curve_two_gpus")
    rows = []
    for row in data["judged"]["rows"]:
        against, change = row["against"], row.get("change", {})
        rows.append([
            row["name"].replace("start", "nano"),
            row.get("step", "–"),
            figure_text(row["correct"]),
            points(change["correct"]) if change else "–",
            *(figure_text(against[name]["fast_1"]) for name in ("eager", "compile")),
            figure_text(against["compile"]["geomean_x"], as_times=True),
            figure_text(row["best_geomean_x"]["compile"], as_times=True),
            figure_text(change["speed_ratio_x"], as_times=True) if change else "–",
            f"{row['distinct_a_task']:.1f}",
        ])  # fmt: skip
    head = ["", "steps", "correct", "change, points", "faster than eager", "than compile", "speed against compile"]
    run = data["run"]
    attempts = sum(step["attempts_per_s"] * step["seconds"]["step"] for step in data["steps"])
    note = f"{attempts:,.0f} attempts in {run['seconds']:.0f} s. {conditions(run | {'date': run['started'][:10]})}"
    return table([*head, "best of 8", "speed, same tasks", "different of 8"], rows) + wrapped(note)


def rewards() -> str:
    """Short runs of REINFORCE that differ in their reward alone, asked side by side."""
    data = read("training_rewards")
    rows = []
    for name in ("start", *data["settings"]["choices"]):
        if not (row := data["rows"].get(name)):
            continue
        change, compiled = row.get("change_from_unchanged", {}), row["against"]["compile"]
        rows.append([
            REWARDS.get(name, name),
            figure_text(row["correct"]),
            faster(row["against"]["eager"]),
            faster(compiled),
            figure_text(compiled["geomean_x"], as_times=True),
            figure_text(row["change"]["speed_ratio_x"], as_times=True) if "change" in row else "–",
            points(change["correct"]) if change else "–",
            "{value:.3f}× [{low:.3f}, {high:.3f}]".format_map(change["speed_ratio_x"]) if change else "–",
        ])  # fmt: skip
    head = ["rewarded", "correct", "faster than eager", "than compile", "speed against compile", "speed, same tasks as nano"]
    note = f"{NOTE} {conditions(data)}"
    return table([*head, "points, against the second row", "speed, same tasks as the second row"], rows) + wrapped(note)


REWARDS = {
    "start": "(nano before)",
    "unchanged": "`log-speed` against eager",
    "reward-compile": "`log-speed` against `torch.compile`",
    "reward-best-known": "`best-known`",
    "reward-milestones": "`milestones`",
}


SHORT = ("run", "correct", "change, points", "faster than eager", "speed", "speed, same tasks")


def short_row(data: Any, name: str, title: str) -> list[str]:
    row = data["rows"][name]
    eager, change = row["against"]["eager"], row["change"]
    speeds = [figure_text(figure, as_times=True) for figure in (eager["geomean_x"], change.get("speed_ratio_x"))]
    return [title, figure_text(row["correct"]), points(change["correct"]), faster(eager), *speeds]


def cost() -> str:
    """Time and money of each run."""
    data = read("training")
    rows = []
    for name in (*METHODS, *data["settings"]["choices"]):
        if spent := data["rows"].get(name, {}).get("training"):
            shares = spent.get("share_of_time", {})
            hours = spent["seconds"] / 3600
            rows.append(
                [
                    METHODS.get(name, name),
                    f"{spent['attempts']:.0f}" if "attempts" in spent else "–",
                    f"{spent['attempts_per_s']:.0f}" if "attempts_per_s" in spent else "–",
                    *(percent(shares[p]) if shares else "–" for p in ("generate", "verify", "update")),
                    f"{seconds_text(spent)} s",
                    f"{hours:.3f}",
                    f"{hours * DOLLARS_A_GPU_HOUR:.2f}",
                ]
            )
    head = ["run", "candidates", "a second", "sampling", "verifying", "updating", "time", "GPU-hours", "cost, $"]
    return table(head, rows) + f"\nAt ${DOLLARS_A_GPU_HOUR:g} a GPU-hour, which is an assumption.\n"


def points(figure: Any) -> str:
    """A difference of shares in percentage points, with its interval."""
    if not figure or figure["value"] is None:
        return "–"
    value, low, high = (figure[key] for key in ("value", "low", "high"))
    return f"{100 * value:+.1f}" + ("" if low is None else f" [{100 * low:+.1f}, {100 * high:+.1f}]")


def ablation() -> str:
    """What gets through without each defence, on a GPU."""
    return _ablation(read("ablation"))


def ablation_cpu() -> str:
    """What gets through without each defence, on a machine with no GPU."""
    return _ablation(read("ablation_cpu"))


def _ablation(data: Any) -> str:
    """One row a defence."""
    rows = []
    for name, row in data["ablations"].items():
        kinds = ("exploits_accepted", "wrong_accepted", "exploits_overpaid")
        examples = [f"`{example}`" for kind in kinds for example in row[kind][:2]][:3]
        rows.append([name, row["what"], row["asked"], *(len(row[kind]) for kind in kinds), ", ".join(examples) or "none"])
    head = ["switched off", "which is", "judged again", "exploits accepted", "wrong accepted", "overpaid", "such as"]
    counts, through = data["counts"], data["all_on"]
    whole = (
        f"With all of them on, {through['escapes']} of {counts['exploits']} exploits and {through['wrong_accepted']} of "
        f"{counts['wrong']} quietly wrong candidates got through, and {through['honest_refused']} of {counts['honest']} honest "
        "ones were refused."
    )
    return table(head, rows) + wrapped(f"{whole} {conditions(data)}")


def validation() -> str:
    """A few tasks in detail, on a GPU."""
    return _validation(read("validation"))


def validation_cpu() -> str:
    """A few tasks in detail, on a machine with no GPU: times are modelled."""
    return _validation(read("validation_cpu"))


def _validation(data: Any) -> str:
    """One row a task: kernrl's verdict beside the plain evaluation's."""
    rows = []
    for row in data["tasks"]:
        verdict, plain = row["verdict"], row["plain"]
        errors = [record["excess"] for record in verdict["errors"]]
        worst = f"{max(errors):.2g}" if errors else "–"
        says = f"**{verdict['status']}**" if not verdict["correct"] else verdict["status"]
        other = plain.get("error") or ("correct" if plain["correct"] else "wrong")
        rows.append([" → ".join(row["composition"]), says, len(errors), worst, *times(verdict), other, plain_x(plain)])
    kinds = {row["verdict"]["timing"]["kind"] for row in data["tasks"] if row["verdict"]["timing"]}
    mark = ", modelled" if "modelled" in kinds else ""
    head = ["task", "verdict", "inputs", "error / tolerance", f"eager, µs{mark}", f"candidate, µs{mark}", f"speedup{mark}"]
    head += ["plain", "speedup"]
    same = sum(row["verdict"]["correct"] == row["plain"]["correct"] for row in data["tasks"])
    return table(head, rows) + wrapped(
        f"{same} of {len(rows)} verdicts are confirmed.{agreement(data['tasks'])} {conditions(data)}"
    )


def times(verdict: dict[str, Any]) -> list[str]:
    """Eager's time, the candidate's, and the speedup with its interval."""
    timing = verdict["timing"]
    if not timing:
        return ["–"] * 3
    up = timing["speedups_x"]["eager"]
    interval = f" [{up['low']:.2f}, {up['high']:.2f}]" if timing["kind"] == "measured" else ""
    return [f"{timing['baseline_us']['eager']:.0f}", f"{timing['candidate_us']:.0f}", f"{up['value']:.2f}{interval}"]


def plain_x(plain: dict[str, Any]) -> str:
    return f"{plain['speedup_x']:.2f}" if "speedup_x" in plain else "–"


def agreement(rows: list[dict[str, Any]]) -> str:
    """How far the two speedups are apart, over the tasks that both timed."""
    both = [
        row["plain"]["speedup_x"] / row["verdict"]["timing"]["speedups_x"]["eager"]["value"]
        for row in rows
        if row["verdict"]["timing"] and "speedup_x" in row["plain"]
    ]
    if not both:
        return ""
    return (
        f" The plain speedup is {statistics.median(both):.2f} times kernrl's in the median, "
        f"{min(both):.2f} to {max(both):.2f} times in all."
    )


def wrapped(text: str) -> str:
    """A paragraph below a table."""
    return f"\n{paragraphs.wrapped(text)}\n"


def conditions(data: dict[str, Any]) -> str:
    """Where, when and with what figures were taken."""
    versions = data["versions"]
    gpu = data.get("gpu") or versions.get("gpu", "none")
    on = "Two CPU cores" if gpu == "none" else gpu
    when = "".join(f", {part}" for part in (commit(data), data.get("date")) if part)
    return f"{on}, torch {versions['torch']}, triton {versions['triton']}{when}."


def commit(data: dict[str, Any]) -> str:
    return f"commit {readme_figures.short(data['commit'])}" if data.get("commit") else ""


def whole_models() -> str:
    """Whole models before and after `kernrl.optimize`."""
    data = read("optimize_models")
    rows = []
    for row in data["models"]:
        if not row.get("whole") or row["small"]:
            continue
        speeds = [
            figure_text(row[kind].get(name), as_times=True)
            for kind in ("speedups_x", "speedups_as_graphs_x")
            for name in ("eager", "compile")
        ]
        errors = ", ".join(f"{row['errors'][name]:.1e}" for name in ("eager", "kernrl"))
        agrees = "yes" if row["agrees"] == "yes" else "**no**"
        ms = f"{row['ms']['eager']:.2f}"
        rows.append([row["title"], f"{row['swapped']} of {row['of']}", ms, *speeds, agrees, errors, f"{row['seconds']:.0f}"])
    head = ["model", "parts swapped", "eager, ms", "against eager", "against compile", "as graphs, eager", "compile"]
    precisions = ", ".join(dict.fromkeys(row["precision"] for row in data["models"]))
    note = f"Errors are relative to float64, in RMS. {precisions}, {conditions(data)}"
    return table([*head, "agrees", "error of eager, optimised", "seconds"], rows) + wrapped(note)


def headline() -> str:
    """README's figures."""
    return table(readme_figures.HEAD, readme_figures.rows(read))


def methods() -> str:
    """README's figures of training."""
    rows, note = readme_figures.methods(read("training"))
    return table(readme_figures.METHODS_HEAD, rows) + wrapped(note)


TABLES: dict[str, Callable[[], str]] = {
    make.__name__: make
    for make in (
        quickstart,
        quickstart_change,
        sft_curve,
        sft_where,
        training,
        training_foreign,
        seeds,
        three_seeds,
        rl_curve,
        rewards,
        cost,
        ablation,
        ablation_cpu,
        validation,
        validation_cpu,
        whole_models,
        headline,
        methods,
    )
}


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(render(path.read_text()))
        print(f"wrote {path}")
