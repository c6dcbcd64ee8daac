"""Which draws a candidate is judged on: the sets, the regimes given to them at random, and their secret seeds."""

from __future__ import annotations

import hashlib
import random
import secrets
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from kernrl.tasks.task import FULL, RAGGED, InputSet
from kernrl.verifier.judge.regimes import HUGE, NOMINAL, REGIMES, TIMED

BIG_BYTES = 256 << 20
"""Plans that hold more than this get fewer draws if the task has no small sets: each draw costs a float64 reference."""

ONLY_SET_REGIMES, ONLY_BIG_SET_REGIMES = 7, 2
"""Regimes of a task with one input set, besides its own inputs."""


SPOT_CHECKS = 5
"""Most timed calls that are judged, besides one after the last."""

SPOT_CHECK_BYTES = 1 << 30
"""Most that the outputs of judged timed calls may take together, if there is more than one."""


def spot_checks(output_bytes: int) -> int:
    """How many timed calls are judged, at that many bytes of outputs each: each also costs the judge an answer of its own."""
    return max(1, min(SPOT_CHECKS, SPOT_CHECK_BYTES // max(output_bytes, 1)))


@dataclass(frozen=True, slots=True)
class Draw:
    """One set of inputs for a candidate, determined by its seed."""

    input_set: str
    regime: str
    seed: int
    """Secret; 63 bits."""
    held: tuple[int, ...] = ()
    """Inputs that are as the task draws them in every regime, by position: see `Domain`."""
    bounded: bool = False
    """Whether the reference raises on some numbers."""

    @property
    def own(self) -> bool:
        """Whether these are the task's own inputs."""
        return self.regime in (NOMINAL, TIMED)

    @property
    def finite(self) -> bool:
        """Whether nothing infinite or NaN was put among the inputs."""
        return self.own or REGIMES[self.regime].finite


def schedule(
    sets: Sequence[InputSet], seed: int, regimes: Sequence[str] | None = None, *, big: bool = False, precision: str = "fp32",
    held: tuple[int, ...] = (), refused: Collection[str] = (),
) -> tuple[Draw, ...]:  # fmt: skip
    """The draws a candidate is judged on, cheap ones first.

    Every set gets the task's own inputs. The ragged set gets every regime, too, or the small one if there is no ragged one;
    beside it, the small set gets half of them, at random. The full set gets `mixed`, which combines regimes, and another one
    at random; where a draw is expensive, only every second candidate gets the other one. Inputs that are not finite are for
    small shapes: at large ones, library calls may choose algorithms that carry them into their neighbours. Under the 16-bit
    policies no input is huge. `regimes` narrows the choice, to test what each regime is worth; `held` and `refused` are those
    of the reference's `Domain`.
    """
    rng = random.Random(seed)
    names = [n for n in REGIMES if n not in refused and (n != HUGE or precision not in ("bf16", "fp16"))]
    rng.shuffle(names)
    others = [s.name for s in sets if s.name != FULL]
    finite = [name for name in names if REGIMES[name].finite]
    if others:
        whole = RAGGED if RAGGED in others else others[0]
        plan = {name: [NOMINAL, *(names if name == whole else names[:: len(others)])] for name in others}
        if any(s.name == FULL for s in sets):
            mixed, other = [n for n in finite if n == "mixed"], [n for n in finite if n != "mixed"][:1]
            plan[FULL] = [NOMINAL, *mixed, *(other if not big or rng.random() < 0.5 else ())]
    else:
        plan = {FULL: [NOMINAL, *finite[: ONLY_BIG_SET_REGIMES if big else ONLY_SET_REGIMES]]}
    pairs = [(name, regime) for name, asked in plan.items() for regime in asked if regimes is None or regime in regimes]
    bounded = bool(held or refused)
    return tuple(Draw(name, regime, (seed + 7919 * i) % (1 << 63), held, bounded) for i, (name, regime) in enumerate(pairs))


def spot_draws(draws: Sequence[Draw]) -> tuple[Draw, ...]:
    """Draws for the timed calls that are judged, beside a schedule: like every timed call's, and each used once."""
    one = replace(draws[0], input_set=FULL, regime=TIMED)
    return tuple(replace(one, seed=(one.seed + 104_729 * (i + 1)) % (1 << 63)) for i in range(SPOT_CHECKS + 1))


class Seeds:
    """Secret seeds of the draws, by task. A seed serves 32 candidates, so that a group shares its answers."""

    def __init__(self) -> None:
        self._secret, self._mutex = secrets.token_bytes(16), threading.Lock()
        self._served: Counter[str] = Counter()

    def next(self, task_key: str) -> int:
        """The seed for the next candidate of a task; 63 bits."""
        with self._mutex:
            turn = self._served[task_key] // 32
            self._served[task_key] += 1
        digest = hashlib.blake2b(f"{turn} {task_key}".encode(), key=self._secret, digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1
