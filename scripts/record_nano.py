"""Record a nano's training and its evaluations, whole ones or those that were interrupted, as docs/benchmarks/nano.json.

    python scripts/record_nano.py --training RUN/results.json --commit 8de6943 --out docs/benchmarks/nano.json \\
        held-out=EVAL/held foreign=EVAL/foreign

Of an evaluation that was interrupted, the tasks that were judged whole count; `of_tasks` says how many there were to judge.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from kernrl.files import replace_file
from kernrl.reports.results import summarise
from kernrl.reports.run_files import read_run
from kernrl.tasks.loaders import load_tasks

KEPT = ("tasks", "samples", "correct", "pass@8", "statuses", "specialised", "baselines", "precisions", "timing", "by_depth")


def main() -> None:
    """Read, summarise, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluations", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--training", type=Path, required=True, help="results.json of the SFT run")
    parser.add_argument("--before", type=Path, help="the record of the nano that the training went on from")
    parser.add_argument("--commit", required=True, help="of the code that trained and judged")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    training = json.loads(given.training.read_text())
    training.pop("model", None)
    before = json.loads(given.before.read_text())["trainings"] if given.before else []
    trainings = [*before, {"commit": given.commit} | training]
    record: dict[str, Any] = {"date": given.date, "commit": given.commit, "trainings": trainings}
    for named in given.evaluations:
        name, _, folder = named.partition("=")
        run = read_run(Path(folder))
        samples = run.samples
        found = summarise(samples, baselines=("eager", "compile"))
        config = run.config["config"]
        record["gpu"] = found["timing"]["device"]
        record["versions"] = samples[0].verdict.versions
        record[name] = {k: found[k] for k in KEPT if k in found} | {
            "samples_a_task": config["samples"],
            "temperature": config["temperature"],
            "of_tasks": len(load_tasks(config["tasks"]).tasks),
        }
    replace_file(given.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
