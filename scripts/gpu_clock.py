"""The clock of the GPU's multiprocessors while something runs, which its power limit moves by a third."""

import statistics
import subprocess
import threading
import time
from collections.abc import Iterable
from types import TracebackType

EVERY_MS = 10


class GpuClock:
    """Asks nvidia-smi for the clock again and again, as a context."""

    def __init__(self, gpu: str):
        """`gpu` as nvidia-smi knows it: an index or a UUID."""
        ask = ["nvidia-smi", f"--id={gpu}", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", f"--loop-ms={EVERY_MS}"]
        self._ask = ask
        self.seen: list[tuple[float, int]] = []
        """(when, by `time.perf_counter`; MHz)"""

    def __enter__(self) -> "GpuClock":
        self.process = subprocess.Popen(self._ask, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.seen.append((time.perf_counter(), int(line)))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def median_mhz(self, spans: Iterable[tuple[float, float]]) -> float | None:
        """Median over these spans of `time.perf_counter`; None where the clock was not seen in any."""
        spans = list(spans)
        seen = [mhz for at, mhz in self.seen if any(start <= at <= end for start, end in spans)]
        return statistics.median(seen) if seen else None
