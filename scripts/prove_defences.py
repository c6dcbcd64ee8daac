"""All that the verifier has to prove beside its fixtures, on one machine with GPUs: a stream of work for each GPU, the rest on
the other cores.

    python scripts/prove_defences.py --out folder [--proof proof.json] [--seconds 390] [--gpus 2] [--only prices,mutants]

Runs, each in processes of its own: the proof of the fixtures, if there is none (`prove_verifier.py`), every ablation and the
cost of a verdict without that defence (`ablate_verifier.py`), 20 tasks confirmed by the plain evaluation
(`validate_tasks.py`), modelled against measured times of 500 worked solutions (`bench_prices.py`), a mutant by each operator
of every worked solution of 200 tasks (`prove_mutants.py`, which explains the survivors afterwards), and 100,000 fuzzed cases.
Each writes what it has found while it runs. What is not done when the time is over, or when this is ended, is ended; the same
command again goes on with what is missing. On one GPU: `--gpus 1 --seconds 200 --only proof`, then `--only
validation,ablation --proof proof.json --seconds 140`, again until nothing is missing, and so on. Ablations need the proof of
this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ABLATIONS = (
    "nothing", "floor", "plan checks", "input regimes", "parameter redraw", "ragged shapes", "poison", "decoy search",
    "overwrite search",
)  # fmt: skip
FUZZERS, FUZZED = 6, 100_002
LEAST_S, LEAST_ABLATION_S = 40.0, 15.0
"""No job of a GPU is started with less time left; an ablation writes what it has, and is short."""
SHORT_S, COST, SHORT_COST = 240.0, 128, 32
"""Runs of less than so many seconds take the cost of a verdict from fewer worked solutions."""


@dataclass(frozen=True)
class Job:
    """A command that writes its results into the folder."""

    name: str
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


class Machine:
    """Runs jobs until the time is over, and ends what runs then."""

    def __init__(self, out: Path, seconds: float) -> None:
        self.out, self._begun, self._seconds = out, time.monotonic(), seconds
        self._groups: set[int] = set()
        out.mkdir(parents=True, exist_ok=True)

    def end(self) -> None:
        """End what runs."""
        for group in list(self._groups):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    @property
    def left_s(self) -> float:
        return self._seconds - (time.monotonic() - self._begun)

    def run(self, job: Job, cores: Sequence[int], gpu: int | None = None) -> None:
        """Run a job on these cores, unless it is done."""
        done = self.out / f"{job.name}.done"
        if done.exists():
            return
        environment = os.environ | job.environment | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)})
        begun = time.monotonic()
        with (self.out / f"{job.name}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, *job.command], cwd=ROOT, stdout=log, stderr=log, env=environment, start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )  # fmt: skip
            self._groups.add(process.pid)
            try:
                code = str(process.wait(max(1.0, self.left_s)))
            except subprocess.TimeoutExpired:
                code = "ended, the time was over"
            with contextlib.suppress(ProcessLookupError):  # what the job has left behind, too
                os.killpg(process.pid, signal.SIGKILL)
            self._groups.discard(process.pid)
            process.wait()
        if code == "0" or (code == "1" and job.name == "proof"):  # that tells of escapes, and is whole
            done.touch()
        print(f"{job.name}: {code}, {time.monotonic() - begun:.0f} s, at {self._seconds - self.left_s:.0f} s", flush=True)


def main() -> int:
    options = _options()
    machine, cores = Machine(options.out, options.seconds), sorted(os.sched_getaffinity(0))

    def cut_off(number: int, frame: object) -> None:
        machine.end()
        _report(options.out)
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, cut_off)
    beside = _asked("fuzz", options)
    own = max(1, len(cores) * 9 // 32 if beside else len(cores) // max(options.gpus, 1))  # a GPU's share of the cores
    queue, lock = _gpu_jobs(options), threading.Lock()
    rest = cores[own * options.gpus :] or cores
    proved = threading.Event()
    if options.proof or not _asked("proof", options):
        proved.set()

    def stream(gpu: int) -> None:
        while True:
            with lock:
                job = queue.pop(0) if queue and machine.left_s > _least_s(queue[0]) else None
            if job is None:
                break
            mine = cores[own * gpu : own * (gpu + 1)]
            if job.name == "proof":
                machine.run(job, mine, gpu)
                proved.set()
            elif not job.name.startswith("ablation") or proved.wait(max(0.0, machine.left_s)):
                machine.run(job, mine, gpu)

    threads = [threading.Thread(target=stream, args=(gpu,)) for gpu in range(options.gpus)]
    fuzzers = FUZZERS if _asked("fuzz", options) else 0
    threads += [threading.Thread(target=machine.run, args=(_fuzzer(i), rest)) for i in range(fuzzers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _report(options.out)
    return 0


def _gpu_jobs(options: argparse.Namespace) -> list[Job]:
    """In order: the ablations need the proof."""
    out, proof = options.out, options.proof or options.out / "proof.json"

    def script(name: str, made: str, *arguments: str) -> Job:
        return Job(made, [f"scripts/{name}.py", "--out", str(out / f"{made}.json"), *arguments])

    first = [] if options.proof else [script("prove_verifier", "proof")]
    first += [
        script("bench_prices", "prices", "--count", "500", "--seconds", str(min(150, options.seconds * 0.6))),
        script("validate_tasks", "validation", "--mutants", "--workers", "4"),
    ]
    kept = str(Path(tempfile.gettempdir(), "kernrl_prove_defences"))  # machine code, for all ablations
    cost = COST if options.seconds >= SHORT_S else SHORT_COST
    arguments = ("--proof", str(proof), "--cost", str(cost), "--cache-dir", kept)
    ablations = [script("ablate_verifier", f"ablation_{n.replace(' ', '_')}", *arguments, "--only", n) for n in ABLATIONS]
    asked = ("--device", "cuda", "--tasks", str(options.tasks), "--each", "1", "--turns", "30", "--processes", "3")
    shares = range(1, options.gpus + 1)
    seconds = ("--seconds", str(options.seconds - LEAST_S))
    mutants = [script("prove_mutants", f"mutants_{i}", *asked, *seconds, "--share", f"{i}/{options.gpus}") for i in shares]
    return [job for job in (*first, *ablations, *mutants) if _asked(job.name.partition("_")[0], options)]


def _least_s(job: Job) -> float:
    """The least time that a job of a GPU is started with."""
    return LEAST_ABLATION_S if job.name.startswith("ablation") else LEAST_S


def _asked(part: str, options: argparse.Namespace) -> bool:
    """Whether a part is to be run."""
    return not options.only or part in options.only.split(",")


def _fuzzer(number: int) -> Job:
    command = ["-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/verifier/test_fuzz.py"]
    return Job(f"fuzz_{number}", command, {"KERNRL_FUZZ": str(FUZZED // FUZZERS), "CUDA_VISIBLE_DEVICES": ""})


def _report(out: Path) -> None:
    """What was found, in few lines; ablations together in one file."""
    found = {}
    for path in sorted(out.glob("*.json")):
        with contextlib.suppress(json.JSONDecodeError):  # cut off while it was written
            found[path.stem] = json.loads(path.read_text())
    if "proof" in found:
        kinds = ("counts", "escapes", "wrong_accepted", "wrong_refused_elsewhere", "honest_refused", "changed_afterwards")
        print("proof", json.dumps({kind: found["proof"][kind] for kind in kinds}))
    parts = [found[f"ablation_{n.replace(' ', '_')}"] for n in ABLATIONS if f"ablation_{n.replace(' ', '_')}" in found]
    if parts:
        together = parts[0] | {"ablations": {k: v for part in parts for k, v in part["ablations"].items()}}
        (out / "ablation.json").write_text(json.dumps(together, indent=1))
        for name, row in together["ablations"].items():
            counts = {key: len(value) for key, value in row.items() if isinstance(value, list)}
            print(f"without {name}, of {row['asked']}: {counts}; {row['cost_ms']}")
    for name, part in found.items():
        if name.startswith("mutants_"):
            print(name, {k: part[k] for k in ("seconds", "tasks", "solutions", "total")})
    if "prices" in found:
        prices = {k: found["prices"][k] for k in ("solutions", "tasks", "rank_correlation", "worst_style_x", "styles")}
        print("prices", json.dumps(prices))
    for name in ("validation", *(f"fuzz_{i}" for i in range(FUZZERS))):
        if (log := out / f"{name}.log").exists():
            print(f"{name}:", *log.read_text().splitlines()[-1:])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proof", type=Path, help="what prove_verifier.py wrote on this kind of machine")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seconds", type=float, default=390)
    parser.add_argument("--gpus", type=int, default=2, help="0 for a dry run of fuzz")
    parser.add_argument("--only", default="", help="comma-separated, of: proof, prices, validation, ablation, mutants, fuzz")
    parser.add_argument("--tasks", type=int, default=200, help="whose solutions are mutated")
    options = parser.parse_args()
    proof = options.proof or options.out / "proof.json"
    if options.only and not _asked("proof", options) and _asked("ablation", options) and not proof.exists():
        parser.error(f"ablations need a proof: there is no {proof}; give --proof, or run --only proof first")
    return options


if __name__ == "__main__":
    sys.exit(main())
