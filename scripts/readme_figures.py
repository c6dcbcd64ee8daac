"""The figures that README claims: each with its conditions, commit and date, from one recorded measurement."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

from bench_styles import best
from training_table import NOTE, faster

from kernrl.reports.tables import figure_text
from kernrl.verifier.replay.timing import OVERHEAD_US

HEAD = ("what", "figure", "on", "commit", "date")

Read = Callable[[str], Any]
"""Name of a record in docs/benchmarks → its data."""

Row = list[str]

ROWS = 8192
"""Tokens of the losses' main comparison; the record has fewer too."""


def rows(read: Read) -> list[Row]:
    """The rows of README's first table.

    Raises:
        KeyError: a record lacks a figure, its date or its commit.
    """
    return [
        *verifier(read("verifier")),
        *losses(read("loss")),
        *solutions(read("tasks")),
        *styles(read("styles")),
        *shipped(read("nano")),
        *optimize(read("optimize")),
        *if_recorded(whole_models, read, "optimize_models"),
        *decoding(read("decode")),
        *scaling(read("scaling")),
    ]


def if_recorded(make: Callable[[Any], list[Row]], read: Read, name: str) -> list[Row]:
    """The rows of a measurement that may not have been made yet."""
    try:
        return make(read(name))
    except FileNotFoundError:
        return []


def verifier(data: Any) -> list[Row]:
    suite, null = data["suite"], data["null"]
    counts = suite["counts"]
    escaped, accepted, refused = (len(suite[k]) for k in ("escapes", "wrong_accepted", "honest_refused"))
    suite_text = (
        f"{escaped} of {counts['exploits']} exploits escaped, {accepted} of {counts['wrong']} quietly wrong candidates "
        f"accepted, {refused} of {counts['honest']} honest ones refused"
    )
    least_us = min(us for us, _ in null["noise"]["points"] if us >= OVERHEAD_US)  # of shorter ones none can be significant
    null_text = (
        f"{null['false_speedups'] + null['false_slowdowns']} of {null['comparisons']:,} called different; "
        f"{null['planted_seen']:,} of {null['planted']:,} seen when slowed by 5 % (at {least_us:.0f} µs or more)"
    )
    cold, known = (data[k]["verdicts_per_s"] for k in ("cold", "again"))
    speed_text = f"{cold:.0f} verdicts a second with every kernel compiled anew, {known:.0f} with machine code cached"
    where = conditions(data, f"{data['cores']} cores")
    # of the suite's run, which is another, cores and versions were not recorded
    return [
        ["verifier: its own test suite", suite_text, gpu(suite), suite["commit"], suite["date"]],
        ["verifier: programs timed against themselves", null_text, *where],
        ["verifier: speed", speed_text, *conditions(data | data["speed"], f"{data['speed']['cores']} cores")],
    ]


def losses(data: Any) -> list[Row]:
    """`grpo_loss` over bf16 logits in place, every token active: against a copy, and against Liger in the same run."""
    rows = [r for r in data["logits"] if r["dtype"] == "bfloat16" and r["density"] == 1 and r["shape"][0] == ROWS]
    ms = {(tuple(row["shape"]), row["name"]): row["ms"] for row in rows}
    shapes = sorted({shape for shape, _ in ms})
    copies = [ms[s, "kernrl, in place"] / ms[s, "copy"] for s in shapes]
    liger = [ms[s, "Liger, in place"] / ms[s, "kernrl, in place"] for s in shapes]
    vocabularies = sorted(v for _, v in shapes)
    text = (
        f"{span(copies)} × the time of copying the logits, {span(liger)} × as fast as Liger in place "
        f"({len(shapes)} vocabularies from {vocabularies[0]:,} to {vocabularies[-1]:,}, {ROWS:,} tokens, bf16, "
        "forward + backward)"
    )
    return [["losses: `grpo_loss`", text, *conditions(data)]]


def solutions(data: Any) -> list[Row]:
    """All recorded runs, since they are of different seeds; the latest is the one that is dated."""
    runs = data["runs"]
    right, pairs = (sum(run["figures"][k] for run in runs) for k in ("right", "pairs"))
    best = [run["figures"] for run in runs if run["figures"]["tasks_timed"]]
    speeds = ", ".join(f"{f['best_style_x']:.2f} × over {f['tasks_timed']} tasks" for f in best)
    text = f"{right:,} of {pairs:,} right in {len(runs)} runs; the best style of a task against eager: {speeds}"
    commits = ", ".join(dict.fromkeys(run["commit"][:7] for run in runs))
    return [["tasks: worked solutions", text, ", ".join((gpu(data), "fp32", *versions(data))), commits, data["date"]]]


SETS = {
    "foreign": "modules of `tests/foreign`",
    "heldout": "generated tasks of 2 to 8 ops (`heldout`)",
}
"""Sets that the shipped nano was evaluated on."""


def styles(data: Any) -> list[Row]:
    """The fastest correct style of each task against `torch.compile`, under each precision."""
    texts, tasks = [], set()
    for precision in dict.fromkeys(row["precision"] for row in data["rows"]):
        rows = [row for row in data["rows"] if row["precision"] == precision]
        found = [one["speedups_x"]["compile"] for row in rows if (one := best(row))]
        mean = math.exp(fmean(math.log(value) for value, *_ in found))
        kept = 1 - sum(significant and value < 1 for value, _, _, significant in found) / len(found)
        won = sum(significant and value > 1 for value, _, _, significant in found) / len(found)
        texts.append(f"{precision}: {mean:.2f} × in the mean, faster for {won:.0%}, not slower for {kept:.0%}")
        tasks |= {row["task"] for row in rows}
    text = "the best style of a task against `torch.compile`, beyond the noise: " + "; ".join(texts)
    return [[f"tasks: worked styles, {len(tasks)} tasks, half of them written by hand", text, *conditions(data)]]


def shipped(data: Any) -> list[Row]:
    trained_s = sum(run["train_s"] for run in data["trainings"])
    made = []
    for name, title in SETS.items():
        found = data[name]
        count = f"{found['tasks']}" if found["tasks"] == found["of_tasks"] else f"{found['tasks']} of {found['of_tasks']}"
        each = f"{count} {title} × {found['samples_a_task']}, T = {found['temperature']}"
        eager, compiled = (found["baselines"][name] for name in ("eager", "compile"))
        text = (
            f"{figure_text(found['correct'])} correct, pass@8 {figure_text(found['pass@8'])}; faster than eager beyond the "
            f"noise {figure_text(eager['fast_1'])}, than `torch.compile` {figure_text(compiled['fast_1'])}; mean speed "
            f"{figure_text(eager['geomean_x'], as_times=True)} and {figure_text(compiled['geomean_x'], as_times=True)}"
        )
        made.append([f"nano ({trained_s:.0f} s of SFT), {each}", text, *conditions(data | found, "tf32")])
    return made


def optimize(data: Any) -> list[Row]:
    settings, compiled = data["settings"], data["baselines"]["compile"]
    text = (
        f"a right file for {interval(data['right_interval'])}; faster than eager, beyond the noise, for "
        f"{interval(data['baselines']['eager']['faster_interval'])}. Faster than `torch.compile`, beyond the noise: "
    )
    if again := data.get("searched_twice"):
        there = {"commit": f"commit {short(data['second_commit'])}", "gpu": short(data["second_gpu"])}
        where = ", ".join(said for name, said in there.items() if data[f"second_{name}"] != data[name])
        text += (
            f"after one search {wins(data['first']['baselines']['compile'])}; after {settings['second_budget_s']:g} s more for "
            f"{again} modules that were not{where and f' ({where})'}, "
        )
    title = f"`kernrl optimize`, {data['modules']} modules of `tests/foreign`, {settings['budget_s']:g} s each"
    return [[title, text + wins(compiled), *conditions(data, settings["precision"], times=settings.get("gpus", 1))]]


BASELINES = {"eager": "eager", "compile": "`torch.compile`"}


def whole_models(data: Any) -> list[Row]:
    """How fast `forward` of whole models is, by the clock that has launches from Python in it."""
    rows = [row for row in data["models"] if row.get("whole") and not row["small"]]
    said = [f"{row['title']}: {' and '.join(against(row, 'speedups_x', name) for name in BASELINES)}" for row in rows]
    budgets = ", ".join(dict.fromkeys(f"{row['budget_s']:g}" for row in rows))
    precisions = ", ".join(dict.fromkeys(row["precision"] for row in rows))
    title = f"`kernrl.optimize` of {len(rows)} whole models, {budgets} s each: `forward`"
    return [[title, "; ".join(said), *conditions(data, precisions)]] if rows else []


def against(row: Any, kind: str, name: str) -> str:
    """A model's speed against that of a baseline."""
    found = row[kind].get(name)
    return f"{speed([found[key] for key in ('value', 'low', 'high')])} {BASELINES[name]}" if found else f"– {BASELINES[name]}"


def wins(baseline: Any) -> str:
    """How many were faster than a baseline, and by how much all were."""
    return f"{interval(baseline['faster_interval'])} (mean {speed(baseline['geomean_interval'])})"


def short(names: str) -> str:
    """`H100` of `NVIDIA H100 80GB HBM3`, seven characters of a commit; of several, each."""
    return ", ".join(name.removeprefix("NVIDIA ").split()[0][:7] for name in names.split(", "))


def interval(figures: list[float]) -> str:
    """A share with its interval."""
    return figure_text(dict(zip(("value", "low", "high"), figures, strict=True)))


def speed(figures: list[float]) -> str:
    """A mean speedup with its interval."""
    value, low, high = figures
    return f"{value:.2f}× [{low:.2f}, {high:.2f}]"


def decoding(data: Any) -> list[Row]:
    """A step of nano's decoding, at the most rows that were measured."""
    most = max(row["rows"] for row in data["results"])
    ours, theirs = (next(r for r in data["results"] if (r["engine"], r["rows"]) == (name, most)) for name in ENGINES)
    text = f"{ours['ms_a_step']:.2f} ms, transformers' `generate` {theirs['ms_a_step']:.1f} ms"
    return [[f"nano: a decoding step of {most} replies", text, *conditions(data)]]


ENGINES = ("captured step", "transformers")

METHODS = {
    "start": "nano, where all start",
    "further-sft": "more SFT",
    "best-of-n": "best-of-N",
    "reward-weighted": "reward-weighted SFT",
    "reinforce, all seeds": "REINFORCE, three seeds",
    "best-of-n-then-reinforce, all seeds": "best-of-N, then REINFORCE, three seeds",
    "reinforce-long": "REINFORCE, one seed continued",
}

METHODS_HEAD = (
    "",
    "seconds",
    "correct",
    "speed on the same tasks",
    "faster than eager",
    "faster than `torch.compile`",
    "speed against `torch.compile`",
)


def methods(data: Any) -> tuple[list[Row], str]:
    """A row for each method, and where all were measured. What is lost in correctness stands beside the gain in speed."""
    made = []
    for name, title in METHODS.items():
        if not (row := data["rows"].get(name)):
            continue
        change, eager, compiled = row.get("change", {}), row["against"]["eager"], row["against"]["compile"]
        correct = figure_text(row["correct"]) + (f", {points(change['correct'])} points" if change else "")
        ratio = figure_text(change.get("speed_ratio_x"), as_times=True)
        against = figure_text(compiled["geomean_x"], as_times=True)
        made.append([title, seconds(data["rows"], row), correct, ratio, faster(eager), faster(compiled), against])
    start = data["rows"]["start"]
    where, commit, date = conditions(data)
    each = f"{start['tasks']} held-out tasks × {start['samples'] // start['tasks']} candidates"
    how = f"T = {data['settings']['temperature']}, {data['settings']['precision']}"
    return made, f"{each}, {how}. One {where}, commit {commit}, {date}. {NOTE}"


def seconds(all_rows: Any, row: Any) -> str:
    """How long training took; of several seeds, the shortest and the longest."""
    took = sorted(all_rows[name]["training"]["seconds"] for name in row["runs"] if "training" in all_rows[name])
    return " to ".join(f"{s:.0f}" for s in dict.fromkeys((took[0], took[-1]))) if took else "–"


def scaling(data: Any) -> list[Row]:
    one, two = data["one"]["sft"], data["ddp"]["sft"]
    steps = (data["one_rl"]["rl"]["steps"], data["ddp_rl"]["rl"]["steps"])
    rates = [step[-1]["attempts_per_s"] for step in steps]
    sft_text = f"{two['tokens_per_s'] / one['tokens_per_s']:.2f} × the tokens a second of one GPU"
    rl_text = f"{rates[1]:.0f} attempts a second in the last step, {rates[0]:.0f} on one GPU"
    full, lora = data["fsdp2"]["full"], data["lora"]["lora"]
    large = (
        f"all weights on two GPUs: {full['tokens_per_s']:,.0f} tokens/s, {full['peak_gib']:.0f} GiB each; "
        f"LoRA on one: {lora['tokens_per_s']:,.0f} tokens/s, {lora['peak_gib']:.0f} GiB"
    )
    sft, rl, full_run = (data[name]["made"] for name in ("ddp", "ddp_rl", "fsdp2"))
    return [
        ["two GPUs, `--launch ddp`: `sft` of nano", sft_text, *conditions(sft, times=2)],
        ["two GPUs, `--launch ddp`: `reinforce` of nano", rl_text, *conditions(rl, times=2)],
        ["training a 7B architecture, random weights", large, *conditions(full_run, times=2)],
    ]


def conditions(data: Any, *more: str, times: int = 1) -> Row:
    """What a figure was seen on, the commit and the date."""
    where = ", ".join((gpu(data) if times == 1 else f"{times} × {gpu(data)}", *more, *versions(data)))
    return [where, short(data["commit"]), data["date"] if "date" in data else data["started"][:10]]


def gpu(data: Any) -> str:
    return data["gpu"].removeprefix("measured on ").replace("NVIDIA ", "")


def versions(data: Any) -> list[str]:
    """Torch and triton, as a record has them; without the build."""
    found = data.get("versions", data)
    return [f"{name} {found[name].partition('+')[0]}" for name in ("torch", "triton")]


def span(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def points(figure: Any) -> str:
    """A difference of shares, in points with its interval."""
    return f"{100 * figure['value']:+.1f} [{100 * figure['low']:+.1f}, {100 * figure['high']:+.1f}]"
