"""What adversarial candidates cost: core-seconds and peak memory of each, judged without a GPU with the screen off.

    python scripts/measure_bombs.py                # every fixture tests/exploits/x_*bomb*.py
    python scripts/measure_bombs.py x_raw_ e13_    # those whose names begin so

Needs a machine that does nothing else. docs/notes/ has the recorded table.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import suite  # pyright: ignore[reportMissingImports]

from kernrl.config import VerifierConfig
from kernrl.verifier import funnel
from kernrl.verifier.funnel import StagedEvaluator

SAMPLE_S = 0.05


def processes() -> list[int]:
    """This process and all below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_s() -> float:
    """Core-seconds of all processes, with those that ended and were waited for."""
    total = 0
    for pid in processes():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(n) for n in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def largest_mib() -> float:
    """Memory of the largest process, without what it shares with files."""
    sizes = [0]
    for pid in processes():
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{pid}/status").read_text()
            sizes.append(int(status.partition("RssAnon:")[2].split()[0]))
    return max(sizes) / 1024


class Peak(threading.Thread):
    """Watches memory until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mib, self._done = 0.0, threading.Event()

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.mib = max(self.mib, largest_mib())

    def stop(self) -> float:
        self._done.set()
        self.join()
        return self.mib


def main() -> None:
    prefixes = tuple(sys.argv[1:])
    chosen = [f for f in suite.exploits() if (f.name.startswith(prefixes) if prefixes else "bomb" in f.name)]
    funnel.screen = lambda source: None
    evaluator = StagedEvaluator(VerifierConfig(device="cpu", cache=False, workers=2))
    control = next(f for f in suite.honest() if f.name == "mish_chain_flat")
    assert evaluator.evaluate(control.task, control.source).correct
    print("| candidate | core-seconds | largest process, MiB | verdict |\n|---|---:|---:|---|")
    for fixture in [control, *chosen]:
        begun, watch = cpu_s(), Peak()
        watch.start()
        verdict = evaluator.evaluate(fixture.task, fixture.source)
        peak = watch.stop()
        time.sleep(0.5)  # until the last child has been waited for
        said = f"{verdict.status} @ {verdict.stage}: {verdict.reason[:90]}"
        print(f"| `{fixture.name}` | {cpu_s() - begun:.1f} | {peak:.0f} | {said} |", flush=True)
        if fixture is not control and (escaped := suite.escape(fixture, verdict, "cpu")):
            print(f"  {escaped}", flush=True)
    evaluator.close()


if __name__ == "__main__":
    main()
