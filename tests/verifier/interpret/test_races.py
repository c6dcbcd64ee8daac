"""What depends on the order of a launch's programs is refused, whatever order the interpreter takes; what does not, passes."""
# ruff: noqa: E501  (a kernel's lines are quoted as one)

from __future__ import annotations

import pytest
import torch
from support.front import HEAD, interpret, plan_of

from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.interpret import launch_interpreter
from kernrl.verifier.plan.plan import Plan

torch.set_num_threads(1)

X = torch.linspace(-3, 3, 256).reshape(8, 32)


@pytest.fixture(params=[1, 3, 8], ids=lambda n: f"{n} at a time", autouse=True)
def at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run side by side, or one batch after another: a verdict must not depend on it."""
    monkeypatch.setattr(launch_interpreter, "BATCH_ELEMENTS", 32 * request.param)


def plan(body: str, out: str = "torch.zeros_like(x)", grid: str = "(8,)") -> Plan:
    """Program r of 8 has row r of x [8, 32] in `v`; `i` are the columns."""
    lines = ["r = tl.program_id(0)", "i = tl.arange(0, B)", "v = tl.load(x + r * B + i)", *body.strip().splitlines()]
    return plan_of(f"""{HEAD}
@triton.jit
def k(x, y, n, B: tl.constexpr):
    {"    ".join(line + chr(10) for line in lines)}
class ModelNew(nn.Module):
    def forward(self, x):
        y = {out}
        k[{grid}](x, y, 8, B=32)
        return y
""")


RACES = {
    "neighbours, in place": "w = tl.load(y + (r + 1) % n * B + i)\ntl.store(y + r * B + i, v + w)",
    "neighbours, in place, the other way": "w = tl.load(y + (r + 7) % n * B + i)\ntl.store(y + r * B + i, v + w)",
    "adding up without atomics": "tl.store(y, tl.load(y) + tl.sum(v))",
    "the last one wins": "tl.store(y + i, v)",
    "the last one wins, with an atomic that orders nothing": "tl.atomic_add(y + 64, 1.0)\ntl.store(y + i, v)",
    "one prepares for all": "if r == 0:\n    tl.store(y + i, v)\ntl.store(y + 32 + r * 8 + i % 8, tl.load(y + i % 8))",
    "the last one prepares for all": "if r == 7:\n    tl.store(y + i, v)\ntl.store(y + 32 + r * 8, tl.load(y + r))",
    "zeros and atomics in one launch": "tl.store(y + i, v * 0)\ntl.atomic_add(y + i, v)",
    "a neighbour's numbers put back": "w = tl.load(y + r * B + i * 2 % 64)\ntl.store(y + r * B + i * 2 % 64, tl.where(i < 16, v, w))",
    "many numbers to one place": "tl.store(y + r * B + i // 2, v)",
    "where the numbers say": "j = tl.abs(v).to(tl.int32)\ntl.store(y + j, v)",
}  # fmt: skip


@pytest.mark.parametrize("body", RACES.values(), ids=RACES.keys())
def test_a_race_is_wrong(body: str) -> None:
    said = interpret(plan(body, out="torch.zeros(9, 32, device='cuda')"), {0: X})
    assert isinstance(said, Rejection)
    assert said.status is Status.WRONG
    assert said.reason.startswith("The result of k depends on the order of its programs: ")


HONEST = {
    "rows of their own": "tl.store(y + r * B + i, v)",
    "equal numbers from all": "tl.store(y + i, i * 1.0)",
    "equal numbers from all, read back": "tl.store(y + i, i * 1.0)\ntl.store(y + 64 + r * 8 + i % 8, tl.load(y + i % 8) + 0 * i)",
    "in place": "w = tl.load(y + r * B + i)\ntl.store(y + r * B + i, w * 2)",
    "its own numbers read back": "tl.store(y + r * B + i, v)\nw = tl.load(y + r * B + i)\ntl.store(y + r * B + i, w + 1)",
    "atomics": "tl.atomic_add(y + i, v)\ntl.atomic_max(y + 64 + i, v)",
    "a loop over its own numbers": "for s in range(4):\n    tl.store(y + r * B + i, tl.load(y + r * B + i) + v)",
    "what all load and one stores elsewhere": "tl.store(y + r * B + i, v + tl.load(y + 256 + i))",
    "masked to rows of their own": "tl.store(y + (r + i // 16) % 8 * B + i, v, mask=i < 16)\ntl.store(y + r * B + i, v, mask=i >= 16)",
    "tiles that overlap": "j = tl.minimum(r * B, 240 - B) + i\nw = tl.load(x + j)\ntl.store(y + j, w * 2)",
    "a ticket": "t = tl.atomic_add(y, 1.0)\ntl.store(y + 32 + i, v, mask=(i < 1) & (t == 7))",
    "nothing at all": "tl.store(y + i, v, mask=i < 0)",
}  # fmt: skip


@pytest.mark.parametrize("body", HONEST.values(), ids=HONEST.keys())
def test_what_is_no_race_passes(body: str) -> None:
    said = interpret(plan(body, out="torch.zeros(9, 32, device='cuda')"), {0: X})
    assert isinstance(said, list), said


def test_rounding_is_no_race() -> None:
    """Tiles that overlap may add up in another order; then a few roundings part what they store."""
    body = "w = tl.load(x + tl.minimum(r, 6) * B + i)\ns = tl.sum(w) + tl.where(r == 7, 1e-6, 0.0)\ntl.store(y + tl.minimum(r, 6), s)"
    assert isinstance(interpret(plan(body), {0: X + 3}), list)
    assert isinstance(interpret(plan(body.replace("1e-6", "1e-2")), {0: X + 3}), Rejection)
