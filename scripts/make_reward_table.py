"""Write the table of archetypes in docs/reference/verdicts.md: what each reward pays ten ways to answer one task.

The task is a linear layer, GELU and softmax: 100 µs in eager PyTorch, of which the product takes 60. An archetype is a verdict
with its plan's prices and its measured speedup; the rewards are those of `kernrl.rollouts.reward`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from kernrl.rollouts.reward import Preset, authored_share_of, reward
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "verdicts.md"
BLOCK = re.compile(r"(<!-- archetypes -->\n).*?(<!-- end -->)", re.DOTALL)

EAGER_US = 100.0
NOISE = 0.02
"""Half-width of the noise band, as |log ratio|."""

PRODUCT, GELU, SOFTMAX = ("library", 60.0), ("unfused", 15.0), ("unfused", 25.0)


@dataclass(frozen=True, slots=True)
class Archetype:
    """A way to answer the task."""

    name: str
    nodes: tuple[tuple[str, float], ...] = ()
    """(kind, µs) of what it launches, in order; what is empty is not correct."""
    status: Status = Status.CORRECT

    @property
    def speed_x(self) -> float:
        """How many times as fast as eager."""
        return EAGER_US / sum(us for _, us in self.nodes)

    @property
    def verdict(self) -> Verdict:
        """What the verifier would say."""
        if self.status is not Status.CORRECT:
            return Verdict(self.status, Stage.CORRECTNESS, "", "task", "", "fp32")
        x = self.speed_x
        speedup = Speedup(x, x * 0.995, x * 1.005, significant=not 1 / 1.025 < x < 1.025)
        timing = Timing("measured", "H200", EAGER_US / x, {"eager": EAGER_US}, {"eager": speedup}, noise=NOISE)
        nodes: list[dict[str, Any]] = [{"name": kind, "kind": kind, "us": us} for kind, us in self.nodes]
        return Verdict(self.status, Stage.TIMING, "", "task", "", "fp32", timing, plan={"nodes": nodes})


ARCHETYPES = (
    Archetype("no code, or code that does not run", status=Status.NO_CODE),
    Archetype("a wrong result, however fast", status=Status.WRONG),
    Archetype("library operators alone, a copy at the end", (PRODUCT, GELU, SOFTMAX, ("authored", 8.0))),
    Archetype("library operators, a kernel for the bias only", (("library", 58.0), GELU, SOFTMAX, ("authored", 2.0))),
    Archetype("a product of its own, four times as slow", (("authored", 240.0), ("authored", 18.0))),
    Archetype("one kernel for each operator, slower than eager", (PRODUCT, ("authored", 22.0), ("authored", 34.0))),
    Archetype("one kernel for each operator, as fast as eager", (PRODUCT, ("authored", 15.0), ("authored", 25.0))),
    Archetype("GELU by PyTorch, softmax in a faster kernel", (PRODUCT, GELU, ("authored", 18.0))),
    Archetype("the tail fused into one kernel", (PRODUCT, ("authored", 18.0))),
    Archetype("all of it fused, and the product in half the time", (("authored", 40.0),)),
)


def table() -> str:
    """The table in Markdown: rows as they stand above, rewards under the default settings of each preset."""
    presets = [name for name in get_args(Preset) if name != "best-known"]  # which pays as log-speed before anything is known
    head = ["candidate", "against eager", "own share", *(f"`{name}`" for name in presets)]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    for one in ARCHETYPES:
        verdict = one.verdict
        facts = [f"{one.speed_x:.2f}×", f"{authored_share_of(verdict):.0%}"] if verdict.correct else ["", ""]
        values = [f"{found.value:.2f}".replace("-", "−") for name in presets if (found := reward(verdict, name))]
        lines.append(f"| {' | '.join([one.name, *facts, *values])} |")
    return "\n".join(lines) + "\n"


def render(page: str) -> str:
    """The page with its table made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table()}\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
