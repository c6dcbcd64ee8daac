"""Optimise every module of a suite, and record how many got a right file, how many a faster one, and where that came from.

    python scripts/bench_optimize.py --seconds 180 --out bench.json                 # a sample of tests/foreign, tf32
    python scripts/bench_optimize.py --seconds 520 --out bench.json                 # goes on with what is in bench.json
    python scripts/bench_optimize.py --seconds 520 --out bench.json --again         # those that were not faster, once more
    python scripts/bench_optimize.py --limit 2 --budget 20 --n 4 --out /tmp/bench.json    # a look, on a CPU

A module with a `best.py` counts as answered; `--keep-tie` is on, so that a tie is an answer. Speeds without a GPU are modelled.

Modules are taken from one family after another (see `family`), shuffled by a fixed seed, so that those of a run that was
stopped stand for the rest. `--seconds` ends the run as Ctrl-C would. `--out` is written anew whenever a module is done, so it
also stands after a kill; what it has is not searched again, unless `--again` asks for a second search of the modules that are
not faster than the last baseline beyond the noise. The better of both results counts, and the seconds of both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from kernrl.config import OptimizeConfig
from kernrl.files import replace_file
from kernrl.optimization.trials import beats
from kernrl.reports.statistics import TaskBootstrap
from kernrl.runs.run_directory import environment
from kernrl.stages.optimize import run
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import write_tasks
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict

PRODUCERS = {
    "transposed convolution": r"conv_?transpose",
    "convolution in 3d": r"conv3d",
    "convolution": r"conv[12]d|unfold",
    "product": r"linear|matmul|\bb?mm\b|einsum|addmm|baddbmm| @ |bilinear",
    "no product": "",
}
TAILS = {
    "norm": r"norm|softmax|rsqrt|\bvar\b|\.std\(",
    "reduction": r"pool|\.(?:sum|mean|max|min|amax|amin|logsumexp)\(|logsumexp",
    "pointwise": "",
}
"""What the source of a module has, the first that fits; case does not count."""

RECORD_EVERY_S = 2.0


def family(source: str) -> str:
    """The family of a module, by the words of its source: what it begins with, and what comes after."""
    return ", ".join(
        next(name for name, words in kinds.items() if re.search(words, source, re.IGNORECASE)) for kinds in (PRODUCERS, TAILS)
    )


def spread(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, one family after the other, each in an order of chance that is always the same."""
    by_family: dict[str, list[Task]] = {}
    shuffled = sorted(tasks, key=lambda task: task.id)
    random.Random(0).shuffle(shuffled)
    for task in shuffled:
        by_family.setdefault(family(task.pytorch_code), []).append(task)
    return [task for turn in itertools.zip_longest(*by_family.values()) for task in turn if task is not None]


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a suite: shares of all its modules, geometric means over those that are right; intervals over modules."""
    if not results:
        return {"modules": 0}
    right = [r for r in results if r["best"]]
    verdicts = {r["task"]: Verdict.from_json(r["best"]["verdict"]) for r in right}
    names = dict.fromkeys(name for v in verdicts.values() if v.timing for name in v.timing.speedups_x)
    bootstrap = TaskBootstrap(len(results))

    def interval(estimate: Any) -> list[float | None]:
        return [estimate.value, estimate.low, estimate.high]

    figures: dict[str, Any] = {"modules": len(results), "right": len(right) / len(results), "baselines": {}}
    figures["right_interval"] = interval(bootstrap.share([float(bool(r["best"])) for r in results]))
    for name in names:
        speeds = [v.speedup(name) if (v := verdicts.get(r["task"])) else None for r in results]
        faster = [float((v := verdicts.get(r["task"])) is not None and beats(v, name)) for r in results]
        logs, timed = [math.log(s.value) if s else 0.0 for s in speeds], [float(s is not None) for s in speeds]
        figures["baselines"][name] = {
            "faster": fmean(faster),
            "faster_interval": interval(bootstrap.share(faster)),
            "not_slower": fmean(float(s is not None and (s.value >= 1.0 or not s.significant)) for s in speeds),
            "geomean_x": geomean([s.value for s in speeds if s]),
            "geomean_interval": interval(bootstrap.geometric_mean(logs, timed)),
            "timed": int(sum(timed)),
        }
    winners = [r["best"]["origin"] for r in right]
    figures["winners"] = {origin: winners.count(origin) for origin in dict.fromkeys(winners)}
    figures["origins"] = {origin: share_of(origin, right) for r in right for origin in r["by_origin"]}
    noises = sorted(v.timing.noise for v in verdicts.values() if v.timing)
    figures["noise"] = {"median": noises[len(noises) // 2], "largest": noises[-1]} if noises else None
    counts = sorted(r["judged"] for r in right)
    figures["judged"] = {"median": counts[len(counts) // 2], "fewest": counts[0]} if counts else None
    figures["styles"] = _counted(r["best"]["name"] for r in right if r["best"]["origin"] == "style")
    gains = [
        r["by_origin"]["variant"] / r["by_origin"]["style"] for r in right if {"variant", "style"} <= r["by_origin"].keys()
    ]
    figures["variants_over_styles_x"] = geomean([max(1.0, gain) for gain in gains])
    figures["regret"] = {count: regret_after(right, count) for count in ("8", "16", "32", "64")}
    firsts = sorted(r["first_right_s"] for r in right if r.get("first_right_s") is not None)
    figures["first_right_s"] = {"median": firsts[len(firsts) // 2], "last": firsts[-1]} if firsts else None
    figures["families"] = {}
    for name in dict.fromkeys(r.get("family", "") for r in results):
        mine = [r for r in results if r.get("family", "") == name]
        speeds = {
            b: [s.value for r in mine if (v := verdicts.get(r["task"])) and (s := v.speedup(b))] for b in names
        }  # fmt: skip
        means = {b: geomean(values) for b, values in speeds.items()}
        figures["families"][name] = {"modules": len(mine), "right": sum(bool(r["best"]) for r in mine), "geomean_x": means}
    figures["seconds_of_searches"] = sum(r["spent_s"] for r in results)
    figures["clock"] = sorted({r["clock"] for r in right})
    return figures


def share_of(origin: str, right: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What an origin of candidates brought: modules that it was right on, those whose best is from it, and by how much the best
    of all was faster for it. A variant counts as its own, whatever it is a variant of."""
    mine = [r["by_origin"] for r in right if origin in r["by_origin"]]
    others = [(ratios[origin], max((x for name, x in ratios.items() if name != origin), default=None)) for ratios in mine]
    gains = [max(1.0, ratio / best) for ratio, best in others if best]
    wins = sum(r["best"]["origin"] == origin for r in right)
    return {"modules": len(mine), "wins": wins, "alone": len(mine) - len(gains), "gain_x": geomean(gains)}


def regret_after(right: Sequence[Mapping[str, Any]], count: str) -> dict[str, Any]:
    """By how much the best of all beat the best of the first so many, where that many were tried."""
    lost = [r["regret"][count] for r in right if count in r["regret"]]
    known = [loss for loss in lost if loss is not None]
    return {"modules": len(lost), "none_right": len(lost) - len(known), "mean": fmean(known) if known else None}


def _counted(names: Iterator[str]) -> dict[str, int]:
    found = list(names)
    return dict(sorted({name: found.count(name) for name in found}.items(), key=lambda pair: -pair[1]))


def geomean(values: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(fmean(math.log(v) for v in values)) if values else None


class Record:
    """The file of results, kept up to date while a run goes on."""

    def __init__(self, path: Path, folder: Path, families: Mapping[str, str], settings: Mapping[str, Any]):
        self.path, self.folder, self.families, self.settings = path, folder, families, settings
        before = json.loads(path.read_text()) if path.exists() else {}
        self.results: dict[str, dict[str, Any]] = {result["task"]: result for result in before.get("results", ())}
        self.first: dict[str, dict[str, Any]] = {}
        """Results of a first search, of the modules that are searched a second time."""
        self._environment, self._before_s, self._began = environment(), before.get("wall_s", 0.0), time.monotonic()
        self._before = len(self.results)

    def update(self, ended: Sequence[Mapping[str, Any]] = ()) -> None:
        """Add the modules that are done, and write the file where there are any."""
        found = [*ended]
        for path in self.folder.glob("tasks/*/results.json"):
            try:
                found.append(json.loads(path.read_text()))
            except ValueError:  # it is being written
                continue
        missing = {r["task"] for r in found} - self.results.keys()
        missing |= {task for task, result in self.first.items() if self.results[task] is result}
        new = {r["task"]: slim(r, self.families) for r in found if r["task"] in missing and r["ended"] != "interrupted"}
        for task, result in new.items():
            result |= {"commit": self._environment["commit"], "searches": 1}
            self.results[task] = better(self.first[task], result) if task in self.first else result
        if new or ended:
            self.write()

    def write(self) -> None:
        """Write the file."""
        results, here_s = list(self.results.values()), time.monotonic() - self._began
        record = {**self._environment, "date": time.strftime("%Y-%m-%d"), "wall_s": self._before_s + here_s}
        record |= {"modules_per_minute": 60 * (len(results) - self._before) / max(here_s, 1e-9), **summary(results)}
        replace_file(self.path, json.dumps(record | {"settings": self.settings, "results": results}, indent=2) + "\n")

    def search_again(self, tasks: Sequence[Task], baseline: str) -> list[Task]:
        """The tasks whose one search found nothing faster than the baseline beyond the noise, the furthest behind first."""
        for task in tasks:
            result = self.results.get(task.id)
            if result and result.get("searches", 1) == 1 and not faster_than(baseline, result):
                self.first[task.id] = result

        def behind(task: Task) -> float:
            best = self.first[task.id]["best"]
            return best["verdict"]["timing"]["speedups_x"].get(baseline, {"value": 0.0})["value"] if best else 0.0

        return sorted((task for task in tasks if task.id in self.first), key=behind)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within, the file is written whenever a module is done."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(RECORD_EVERY_S):
                self.update()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def faster_than(baseline: str, result: Mapping[str, Any]) -> bool:
    """The best of a search is faster than a baseline beyond the noise."""
    return bool(result["best"]) and beats(Verdict.from_json(result["best"]["verdict"]), baseline)


def better(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Of two searches of a module the better one, timed against as many baselines at least, with the seconds of both."""

    def rank(result: Mapping[str, Any]) -> tuple[int, float]:
        speedups = result["best"]["verdict"]["timing"]["speedups_x"] if result["best"] else {}
        return len(speedups), list(speedups.values())[-1]["value"] if speedups else 0.0

    chosen = max(first, second, key=rank)
    return chosen | {"searches": 2, "spent_s": first["spent_s"] + second["spent_s"]}


def main(words: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="tests/foreign")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each module")
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--model", default="none")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--tasks-at-once", type=int)
    parser.add_argument("--seconds", type=float, help="after which no more is begun; what was found is recorded")
    parser.add_argument("--again", action="store_true", help="a second search where the first was not faster")
    parser.add_argument("--out", type=Path, required=True, help="the record; results in it already are kept")
    given = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="bench-optimize-")) / "run"
    chosen = spread(load_tasks(given.source).tasks)[: given.limit]
    families = {task.id: family(task.pytorch_code) for task in chosen}
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(given).items()}
    record = Record(given.out, folder, families, settings)
    if given.again:
        waiting = record.search_again(chosen, OptimizeConfig(source="").baseline[-1])
    else:
        waiting = [task for task in chosen if task.id not in record.results]
    if not waiting:
        print(f"{given.out} has every module.")
        return
    tasks = folder.with_name("tasks.jsonl")
    write_tasks(tasks, waiting)
    config = OptimizeConfig(
        source=str(tasks),
        precision=given.precision,
        budget=f"{given.budget:g}s",
        candidates=given.n,
        model=given.model,
        tasks_at_once=given.tasks_at_once,
        keep_tie=True,
        output=folder,
    )
    with record.kept():
        if given.seconds:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, given.seconds)
        ended = run(config)
        signal.setitimer(signal.ITIMER_REAL, 0)
    record.update(ended.data.get("tasks", [ended.data]))
    shown = json.loads(given.out.read_text())
    print(json.dumps({k: v for k, v in shown.items() if k not in ("settings", "results", "versions")}, indent=2))


def slim(result: Mapping[str, Any], families: Mapping[str, str]) -> dict[str, Any]:
    """A module's results without its Plans, of which a record needs none."""
    kept = {k: v for k, v in result.items() if k not in ("graph", "finals", "versions")}
    kept["family"] = families.get(result["task"], "")
    if kept.get("best"):
        verdict = {k: v for k, v in kept["best"]["verdict"].items() if k not in ("plan", "errors")}
        kept["best"] = kept["best"] | {"verdict": verdict | {"plan": {}, "errors": []}}
    return kept


if __name__ == "__main__":
    main()
