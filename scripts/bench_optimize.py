"""Optimise every module of a suite, and record how many got a right file, how many a faster one, and where that came from.

    python scripts/bench_optimize.py --seconds 180 --out bench.json                 # a sample of tests/foreign, tf32
    python scripts/bench_optimize.py --seconds 520 --out bench.json                 # goes on with what is in bench.json
    python scripts/bench_optimize.py --seconds 520 --out bench.json --again         # those that were not faster, once more
    python scripts/bench_optimize.py --gpus 8 --budget 100 --out bench.json         # modules shared out among eight GPUs
    python scripts/bench_optimize.py --limit 2 --budget 20 --n 4 --out /tmp/bench.json    # a look, on a CPU

A module with a `best.py` counts as answered; `--keep-tie` is on, so that a tie is an answer. Speeds without a GPU are modelled.

Modules are taken from one family after another (see `family`), shuffled by a fixed seed, so that those of a run that was
stopped stand for the rest. `--seconds` ends the run as Ctrl-C would. `--out` is written anew whenever a module is done, so it
also stands after a kill; what it has is not searched again, unless `--again` asks for a second search of the modules that are
not faster than the last baseline beyond the noise, and none is searched a third time. The better of both results counts, and
the seconds of both. The figures of the first searches alone are `first`; what starts with `second_` is of the second ones:
where they ran, on which commit, how long. `modules_per_minute` is that of the first, on all GPUs together.

With `--gpus`, each GPU has a process of its own, with its share of the cores and of the modules.

The record holds no sources: the folder of each command, with every candidate, stays in the folder for temporary files (TMPDIR).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optimize_figures import figures_of_both

from kernrl.config import OptimizeConfig
from kernrl.files import replace_file
from kernrl.optimization.search.trials import beats
from kernrl.runs.run_directory import environment
from kernrl.stages.optimize import INTERRUPTED, run
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import write_tasks
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.funnel import visible_gpus

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

SHARED = ("budget_s", "n", "model")
"""Settings that all first searches have in common, and all second ones."""

OF_A_SEARCH = (*SHARED, "limit", "tasks_at_once", "gpus")
"""Settings that are recorded for each kind of search."""

OF_A_MACHINE = ("versions", "cores", "date")
"""What is recorded of the last command, for each kind of search."""


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


class Record:
    """The file of results, kept up to date while a run goes on.

    Args:
        settings: Of this command.
        again: Whether this command makes second searches.
        commit: Of this code, where its folder is not a repository.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        families: Mapping[str, str],
        settings: Mapping[str, Any],
        *,
        again: bool = False,
        commit: str | None = None,
    ):
        self.path, self.folder, self.families = path, folder, families
        self.before = in_todays_form(json.loads(path.read_text())) if path.exists() else {}
        self.results: dict[str, dict[str, Any]] = {result["task"]: result for result in self.before.get("results", ())}
        self.first: dict[str, dict[str, Any]] = {}
        """Results of a first search, of the modules that are searched a second time."""
        self._second = "second_" if again else ""
        """How the names begin of what is said of this command."""
        own = {f"{self._second}{name}" if name in OF_A_SEARCH else name: value for name, value in settings.items()}
        self.settings = self.before.get("settings", {}) | own
        self._environment, self._began = environment(), time.monotonic()
        self._environment |= {"commit": commit} if commit else {}

    def require_same(self) -> None:
        """Refuse to go on with results that were found otherwise. Raises ValueError."""
        before = self.before.get("settings", {})
        for name in ("precision", *(f"{self._second}{name}" for name in SHARED)):
            if name in before and before[name] != self.settings[name]:
                raise ValueError(f"{self.path} has {name} = {before[name]}, not {self.settings[name]}")
        gpus = [result["gpu"] for result in self.results.values()]
        if gpus and any(gpus) != bool(self._environment["gpu"]):
            raise ValueError(f"{self.path} has {'measured' if any(gpus) else 'modelled'} times, and here they would not be")

    def update(self, ended: Sequence[Mapping[str, Any]] = ()) -> None:
        """Add the modules that are done, and write the file where there are any."""
        found = [*ended]
        for path in self.folder.glob("**/tasks/*/results.json"):
            try:
                found.append(json.loads(path.read_text()))
            except ValueError:  # it is being written
                continue
        missing = {r["task"] for r in found} - self.results.keys()
        missing |= {task for task, result in self.first.items() if self.results[task] is result}
        new = {r["task"]: slim(r, self.families) for r in found if r["task"] in missing and r["ended"] != "interrupted"}
        for task, result in new.items():
            result |= {"gpu": self._environment["gpu"], "commit": self._environment["commit"], "searches": 1}
            self.results[task] = better(self.first[task], result) if task in self.first else result
        if new or ended:
            self.write()

    def write(self) -> None:
        """Write the file."""
        record = {k: v for k, v in self.before.items() if k.removeprefix("second_") in OF_A_MACHINE}
        now = {"versions": self._environment["versions"], "cores": len(os.sched_getaffinity(0))}
        now |= {"date": time.strftime("%Y-%m-%d")}
        record |= {f"{self._second}{name}": value for name, value in now.items()}
        for name in ("wall_s", "second_wall_s"):
            here_s = time.monotonic() - self._began if name == f"{self._second}wall_s" else 0.0
            before_s = self.before.get(name, 0.0)
            record[name] = None if before_s is None else before_s + here_s
        results = list(self.results.values())
        record |= figures_of_both(results, self.before) | {"settings": self.settings}
        record["modules_per_minute"] = 60 * len(results) / record["wall_s"] if record["wall_s"] else None
        replace_file(self.path, json.dumps(record | {"results": results}) + "\n")

    def search_again(self, tasks: Sequence[Task], baseline: str) -> list[Task]:
        """The tasks whose one search found nothing faster than the baseline beyond the noise, the furthest behind first."""
        for task in tasks:
            result = self.results.get(task.id)
            if result and result["searches"] == 1 and not faster_than(baseline, result):
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
            self.update()


def faster_than(baseline: str, result: Mapping[str, Any]) -> bool:
    """The best of a search is faster than a baseline beyond the noise."""
    return bool(result["best"]) and beats(Verdict.from_json(result["best"]["verdict"]), baseline)


def better(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Of two searches of a module the better one, timed against as many baselines at least, with the seconds of both."""

    def rank(result: Mapping[str, Any]) -> tuple[int, float]:
        speedups = result["best"]["verdict"]["timing"]["speedups_x"] if result["best"] else {}
        return len(speedups), list(speedups.values())[-1]["value"] if speedups else 0.0

    where = {name: second[name] for name in ("gpu", "commit")}
    both = {"searches": 2, "spent_s": first["spent_s"] + second["spent_s"], "first": first, "second": where}
    return max(first, second, key=rank) | both


def in_todays_form(record: dict[str, Any]) -> dict[str, Any]:
    """A record of before 27 November 2026 as one of today: its rows said neither their GPU nor what came of the first of two
    searches."""
    older = {"searches": 1, "commit": None}
    rows = [
        {**older, "gpu": row.get("device") if row["clock"] == "measured" else None, **row} for row in record.get("results", ())
    ]
    lost = [row for row in rows if row["searches"] == 2 and "first" not in row]
    for row in lost:
        row.setdefault("second", {name: record.get(f"second_{name}") for name in ("gpu", "commit")})
    changed: dict[str, Any] = {"results": rows}
    if "versions" not in record and "torch" in record:
        changed["versions"] = {name: record[name] for name in ("torch", "triton")}
    if "budget" in (settings := record.get("settings", {})):
        changed["settings"] = settings | {"budget_s": settings["budget"]}
    if lost and "searched_twice" not in record:  # `wall_s` is of both kinds, the rest of the last command
        changed |= {"wall_s": None, "gpu": None, "commit": None}
    if lost:
        changed.setdefault("second_wall_s", record.get("second_wall_s"))
    return record | changed


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
    parser.add_argument("--gpus", type=int, default=1, help="share the modules out among so many GPUs, a process each")
    parser.add_argument("--seconds", type=float, help="after which no more is begun; what was found is recorded")
    parser.add_argument("--again", action="store_true", help="a second search where the first was not faster")
    parser.add_argument("--commit", help="of this code, where its folder is not a repository")
    parser.add_argument("--out", type=Path, required=True, help="the record; results in it already are kept")
    given = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="bench-optimize-")) / "run"
    chosen = spread(load_tasks(given.source).tasks)[: given.limit]
    families = {task.id: family(task.pytorch_code) for task in chosen}
    named = vars(given) | {"budget_s": given.budget}
    settings = {name: named[name] for name in ("source", "precision", *OF_A_SEARCH)}
    record = Record(given.out, folder, families, settings, again=given.again, commit=given.commit)
    try:
        record.require_same()
    except ValueError as error:
        parser.error(str(error))
    if given.again:
        waiting = record.search_again(chosen, OptimizeConfig(source="").baseline[-1])
    else:
        waiting = [task for task in chosen if task.id not in record.results]
    if not waiting:
        print(f"{given.out} has no module to search again." if given.again else f"{given.out} has every module.")
        return
    config = OptimizeConfig(
        source=str(folder.with_name("tasks.jsonl")),
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
        ended = search(config, waiting, given.gpus)
        signal.setitimer(signal.ITIMER_REAL, 0)
    record.update(ended)
    if not given.out.exists():
        print("No module was done in time.")
        return
    shown = json.loads(given.out.read_text())
    print(json.dumps({k: v for k, v in shown.items() if k not in ("settings", "results", "versions", "first")}, indent=2))


def search(config: OptimizeConfig, tasks: Sequence[Task], gpus: int) -> list[dict[str, Any]]:
    """Search the tasks, and return their results. A KeyboardInterrupt ends it, with those that there are."""
    source, output = Path(config.source), config.output
    assert output
    if gpus == 1:
        write_tasks(source, tasks)
        ended = run(config).data
        return ended.get("tasks", [ended])
    visible, cores = visible_gpus(), sorted(os.sched_getaffinity(0))
    if not 0 < gpus <= min(len(visible), len(cores)):
        raise SystemExit(f"--gpus {gpus}: there are {len(visible)} GPUs and {len(cores)} cores")
    output.mkdir(parents=True)
    shares, each = min(gpus, len(tasks)), len(cores) // gpus
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(shares):
            share = source.with_name(f"tasks-{number}.jsonl")
            write_tasks(share, tasks[number::shares])
            own = config.model_copy(update={"source": str(share), "output": output / str(number)})
            with (output / f"{number}.json").open("w") as found:
                command = [sys.executable, "-m", "kernrl", "optimize", "--json", *words_of(own)]
                env = os.environ | {"CUDA_VISIBLE_DEVICES": visible[number]}
                # a Ctrl-C at the terminal comes to this process alone, which passes it on
                running.append(subprocess.Popen(command, stdout=found, env=env, start_new_session=True))
            os.sched_setaffinity(running[-1].pid, cores[number * each : (number + 1) * each])  # it has started nothing yet
        for process in running:
            process.wait()
    except KeyboardInterrupt:
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()
    finally:
        for process in running:
            process.kill()
    ended = []
    for number, process in enumerate(running):
        if process.returncode in (0, 3, INTERRUPTED) and (text := (output / f"{number}.json").read_text()):
            ended.append(json.loads(text))
        elif process.returncode != INTERRUPTED:
            print(f"The search on GPU {visible[number]} ended with exit code {process.returncode}.", file=sys.stderr)
    return [result for one in ended for result in one.get("tasks", [one])]


def words_of(config: OptimizeConfig) -> list[str]:
    """The command line of a search."""
    given = {
        "precision": config.precision,
        "budget": config.budget,
        "n": config.candidates,
        "model": config.model,
        "tasks-at-once": config.tasks_at_once,
        "output": config.output,
    }
    return [config.source, "--keep-tie", *(str(w) for k, v in given.items() if v is not None for w in (f"--{k}", v))]


def slim(result: Mapping[str, Any], families: Mapping[str, str]) -> dict[str, Any]:
    """A module's results without sources and Plans, of which a record needs none."""
    left_out = {"graph", "finals", "versions", "ranking", "file", "improved"}
    if result["best"]:
        left_out.add("sentence")  # where nothing was right, it says why
    kept = {k: v for k, v in result.items() if k not in left_out}
    kept["family"] = families.get(result["task"], "")
    if kept["best"]:
        verdict = kept["best"]["verdict"] | {"plan": {}, "errors": []}
        kept["best"] = {k: v for k, v in kept["best"].items() if k not in ("source", "sha")} | {"verdict": verdict}
    return kept


if __name__ == "__main__":
    main()
