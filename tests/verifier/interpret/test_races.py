"""What depends on the order of a launch's programs is refused, whatever order the interpreter takes; what does not, passes."""
# ruff: noqa: E501  (a kernel's lines are quoted as one)

from __future__ import annotations

import pytest
import torch
from support.front import HEAD, interpret, plan_of

from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.interpret import launch_interpreter
from kernrl.verifier.interpret.interpreter import Unable
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
    "an atomic, then a load of what all have added": "tl.atomic_add(y + i, v)\ntl.store(y + 32 + r * 8 + i, tl.load(y + i), mask=i < 8)",
    "a load, then an atomic": "w = tl.load(y + i)\ntl.atomic_add(y + i, v)\ntl.store(y + 32 + r * 8 + i, w, mask=i < 8)",
    "two element sizes": "q = y.to(tl.pointer_type(tl.int16)) + 1\ntl.store(q + 2 * i + 64 * ((r + 1) % n), r.to(tl.int16))\ntl.store(y + r * B + i, v)",
    "two element sizes, the wide one first": "tl.store(y + r * B + i, v)\nw = tl.load(y.to(tl.pointer_type(tl.int16)) + 64 * ((r + 1) % n) + i)\ntl.store(y + 256 + i, w * 1.0, mask=r < 0)",
    "a ticket decides whose number stays": "t = tl.atomic_add(y, 1.0)\ntl.store(y + 32 + i, v, mask=(i < 1) & (t == 7))",
    "the first by ticket reads all": "tl.store(y + 32 + r * 8 + i, v, mask=i < 8)\nt = tl.atomic_add(y, 1.0)\n"
    "if t == 0:\n    tl.store(y + 128 + i, tl.load(y + 32 + i))",
    "partial results after the ticket": "t = tl.atomic_add(y, 1.0)\ntl.store(y + 32 + r * 8 + i, v, mask=i < 8)\n"
    "if t == 7:\n    tl.store(y + 128 + i, tl.load(y + 32 + i))",
    "an exchange of different numbers": "tl.atomic_xchg(y + i, v)",
    "a running sum in the order of arrival": "t = tl.atomic_add(y, tl.sum(v))\ntl.store(y + 32 + r, t)",
    "a lock around half of the work": "while tl.atomic_cas((y + 64).to(tl.pointer_type(tl.int32)), 0, 1) == 1:\n    pass\nw = tl.load(y)\n"
    "tl.atomic_xchg((y + 64).to(tl.pointer_type(tl.int32)), 0)\ntl.store(y, w + tl.sum(v))",
    "where the numbers say": "j = tl.abs(v).to(tl.int32)\ntl.store(y + j, v)",
}  # fmt: skip


@pytest.mark.slow
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
    "a ticket, and the last one does what anybody could": "t = tl.atomic_add(y, 1.0)\ntl.store(y + 32 + i, 1.0 * i, mask=t == 7)",
    "a ticket, and the last one reads what all have stored": "tl.store(y + 32 + r * 8 + i, v, mask=i < 8)\nt = tl.atomic_add(y, 1.0)\n"
    "if t == 7:\n    tl.store(y + 128 + i, tl.load(y + 32 + i))",
    "the largest of floats of both signs": "tl.atomic_max(y + i, v)\ntl.atomic_min(y + 64 + i, v)",
    "two halves of one place, by the same program": "q = (y + r * B).to(tl.pointer_type(tl.int16))\ntl.store(q + i, i.to(tl.int16))\ntl.store(q + B + i, i.to(tl.int16))\ntl.store(y + r * B + i, v)",
    "nothing at all": "tl.store(y + i, v, mask=i < 0)",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("body", HONEST.values(), ids=HONEST.keys())
def test_what_is_no_race_passes(body: str) -> None:
    said = interpret(plan(body, out="torch.zeros(9, 32, device='cuda')"), {0: X})
    assert isinstance(said, list), said


LOCK = (
    "lock = (y + 64).to(tl.pointer_type(tl.int32))\nwhile tl.atomic_cas(lock, 0, 1) == 1:\n    pass\n"
    "tl.store(y + i, tl.load(y + i) + v)\ntl.atomic_xchg(lock, 0)"
)
QUEUE = (
    "t = tl.atomic_add(y, 1.0).to(tl.int32)\nwhile t < n:\n    tl.store(y + 32 + t * 8 + i, tl.load(x + t * B + i), mask=i < 8)\n"
    "    t = tl.atomic_add(y, 1.0).to(tl.int32)"
)
CHAIN = (
    "flag = (y + 64).to(tl.pointer_type(tl.int32))\nwhile tl.atomic_add(flag, 0) < {turn}:\n    pass\n"
    "tl.store(y + i, tl.load(y + i) * 2 + v)\ntl.atomic_add(flag, 1)"
)
LAST = (
    "tl.store(y + 32 + r, tl.sum(v))\nt = tl.atomic_add(y, 1.0)\nif t == 7:\n"
    "    tl.store(y + 1, tl.sum(tl.load(y + 32 + tl.arange(0, 8))))\n    tl.store(y, 0.0)"
)
POLLED = CHAIN.replace("tl.atomic_add(flag, 0)", "tl.load(flag, volatile=True)")


def _chained(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(32)
    for row in rows:
        total = total * 2 + row
    return total


IN_TURN = {
    "a lock": (LOCK, slice(0, 32), X.sum(0)),
    "a queue": (QUEUE, slice(32, 96), X[:, :8].flatten()),
    "each waits for the one before": (CHAIN.format(turn="r"), slice(0, 32), _chained(X)),
    "each polls the one before": (POLLED.format(turn="r"), slice(0, 32), _chained(X)),
    "the last one adds up, and leaves the ticket as it was": (LAST, slice(0, 2), torch.stack([X.sum() * 0, X.sum()])),
    "the largest": ("tl.atomic_max(y + 9 + i % 2, v - 2)\ntl.atomic_min(y + 12 + i % 2, v)", slice(9, 14), torch.tensor(
        [X[:, ::2].max() - 2, X[:, 1::2].max() - 2, 0, X[:, ::2].min(), X[:, 1::2].min()])),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("body", "where", "want"), IN_TURN.values(), ids=IN_TURN.keys())
def test_programs_that_order_themselves_by_atomics_run_in_turn(body: str, where: slice, want: torch.Tensor) -> None:
    said = interpret(plan(body, out="torch.zeros(9, 32, device='cuda')"), {0: X})
    assert isinstance(said, list), said
    torch.testing.assert_close(said[0].flatten()[where], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("turn", ["r + 1", "7 - r"], ids=["for what never comes", "for later ones, which may not have begun"])
def test_programs_that_wait_are_left_to_a_gpu(turn: str) -> None:
    said = interpret(plan(CHAIN.format(turn=turn), out="torch.zeros(9, 32, device='cuda')"), {0: X})
    assert isinstance(said, Unable)
    assert "wait for later ones" in said.reason


def test_an_old_value_is_different_for_each_element_of_a_tile() -> None:
    said = interpret(plan("t = tl.atomic_add(y + i % 2, 1.0)\ntl.atomic_add(y + 32 + t.to(tl.int32), 1.0)",
                          out="torch.zeros(9, 32, device='cuda')"), {0: X})  # fmt: skip
    assert isinstance(said, list), said
    assert said[0].flatten()[:2].tolist() == [128, 128]
    assert said[0].flatten()[32 : 32 + 128].eq(2).all()


def test_rounding_is_no_race() -> None:
    """Tiles that overlap may add up in another order; then a few roundings part what they store."""
    body = "w = tl.load(x + tl.minimum(r, 6) * B + i)\ns = tl.sum(w) + tl.where(r == 7, 1e-6, 0.0)\ntl.store(y + tl.minimum(r, 6), s)"
    assert isinstance(interpret(plan(body), {0: X + 3}), list)
    assert isinstance(interpret(plan(body.replace("1e-6", "1e-2")), {0: X + 3}), Rejection)
