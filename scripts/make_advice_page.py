"""Write docs/reference/advice.md: what a model is told between turns, of candidates that this judges on a CPU.

Every candidate is a change to one right candidate, so that a reader sees what is wrong with it. `make advice` runs it.
"""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import dataclass
from pathlib import Path

from kernrl.config import VerifierConfig
from kernrl.rollouts.advice import feedback
from kernrl.tasks.task import FULL, RAGGED, SMALL, InputSet, Task
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.verifier import HardenedVerifier

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "advice.md"

REFERENCE = """\
import torch
import torch.nn as nn

rows, columns = 4096, 3000


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x):
        return torch.softmax(nn.functional.silu(x + self.bias), dim=-1)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return [columns]
"""

INPUT_SETS = (
    InputSet(FULL),
    InputSet(SMALL, {"rows": 8, "columns": 64}),
    InputSet(RAGGED, {"rows": 5, "columns": 37}),
)

RIGHT = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fused(x_ptr, bias_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    x = tl.load(x_ptr + row * columns + cols, mask=mask, other=0.0)
    x = x + tl.load(bias_ptr + cols, mask=mask, other=0.0)
    x = x * tl.sigmoid(x)
    x = tl.where(mask, x, float("-inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    y = e / tl.sum(e, axis=0)
    tl.store(out_ptr + row * columns + cols, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x):
        out = torch.empty_like(x)
        fused[(x.shape[0],)](x, self.bias, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
"""


@dataclass(frozen=True, slots=True)
class Archetype:
    """A candidate as models write them."""

    title: str
    edits: tuple[tuple[str, str], ...] = ()
    """Text of the right candidate, and what stands in its place."""
    reply: str | None = None
    """The whole reply, where it is no change of the right one."""

    @property
    def text(self) -> str:
        """What the model replies with."""
        if self.reply is not None:
            return self.reply
        source = RIGHT
        for old, new in self.edits:
            if source.count(old) != 1:
                raise ValueError(f"{self.title}: {old!r} stands {source.count(old)} times in the candidate")
            source = source.replace(old, new)
        return f"```python\n{source}```"


LAUNCH = "        fused[(x.shape[0],)](x, self.bias, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))\n"

ARCHETYPES = (
    Archetype(
        "A reply without code", reply="The bias, SiLU and softmax can be fused into one kernel that keeps a row in registers."
    ),
    Archetype("Code that does not parse", edits=(("    def forward(self, x):", "    def forward(self, x)"),)),
    Archetype(
        "PyTorch alone",
        edits=(
            (
                f"        out = torch.empty_like(x)\n{LAUNCH}        return out",
                "        return torch.softmax(nn.functional.silu(x + self.bias), dim=-1)",
            ),
        ),
    ),
    Archetype(
        "A kernel beside the work",
        edits=(
            (f"{LAUNCH}        return out", f"{LAUNCH}        return torch.softmax(nn.functional.silu(x + self.bias), dim=-1)"),
        ),
    ),
    Archetype("A block size that is no power of two", edits=(("triton.next_power_of_2(x.shape[1])", "x.shape[1]"),)),
    Archetype("Another formula", edits=(("    x = x * tl.sigmoid(x)\n", "    x = tl.sigmoid(x)\n"),)),
    Archetype(
        "The tail of a row is not masked",
        edits=(('    x = tl.where(mask, x, float("-inf"))\n', ""),),
    ),
    Archetype("No maximum before the exponential", edits=(("tl.exp(x - tl.max(x, axis=0))", "tl.exp(x)"),)),
    Archetype(
        "Half precision inside",
        edits=(("    x = x * tl.sigmoid(x)\n", "    x = (x * tl.sigmoid(x)).to(tl.float16).to(tl.float32)\n"),),
    ),
    Archetype(
        "A write behind the end",
        edits=(
            ("    tl.store(out_ptr + row * columns + cols, y, mask=mask)", "    tl.store(out_ptr + row * columns + cols, y)"),
        ),
    ),
    Archetype(
        "Right, and slow: one pass for each operator",
        edits=(
            (
                RIGHT[RIGHT.index("    x = tl.where") : RIGHT.index("    tl.store")],
                "    y = x\n",
            ),
            ("        return out", "        return torch.softmax(out, dim=-1)"),
        ),
    ),
    Archetype("Right and fused"),
)

INTRODUCTION = """\
# What a model is told between turns

This page is made by `make advice`: a script judges the candidates below on a CPU, and writes down what `--turns` tells
a model of each. Times are modelled for an NVIDIA H200; with a GPU they are measured, and a kernel that is slower than
its bytes and arithmetic allow is told so. Long lines are wrapped here; a change shows what differs from the right
candidate at the end.

The task:

"""


def change(archetype: Archetype) -> str:
    """How a candidate differs from the right one, or the reply where it is none."""
    if archetype.reply is not None:
        return f"~~~text\n{archetype.reply}\n~~~\n"
    if not archetype.edits:
        return f"~~~python\n{RIGHT}~~~\n"
    now = archetype.text.removeprefix("```python\n").removesuffix("```")
    lines = list(difflib.unified_diff(RIGHT.splitlines(), now.splitlines(), lineterm="", n=0))[2:]
    return "\n".join(["~~~diff", *(line for line in lines if not line.startswith("@@")), "~~~", ""])


def told(verdict: Verdict) -> str:
    """The message, its long lines wrapped."""
    lines = [part for line in feedback(verdict).splitlines() for part in textwrap.wrap(line, 116) or [""]]
    return "\n".join(["~~~text", *lines, "~~~"])


def render() -> str:
    """The whole page."""
    task = Task(id="bias-silu-softmax", pytorch_code=REFERENCE, input_sets=INPUT_SETS)
    parts = [INTRODUCTION, f"~~~python\n{REFERENCE}~~~\n"]
    with HardenedVerifier(VerifierConfig(device="cpu", target="H200", cache=False)) as verifier:
        for archetype in ARCHETYPES:
            verdict = verifier.verify(task, archetype.text)
            parts.append(f"\n## {archetype.title}\n\n{change(archetype)}\nThe model is told:\n\n{told(verdict)}\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
