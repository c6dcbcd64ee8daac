"""Candidates do not meet in the sandbox, and tensors take no memory there."""

import concurrent.futures

import pytest
from support.front import HEAD, dense, module, plan_of, spec, trace

from kernrl.verifier.base.verdict import Rejection, Status


@pytest.mark.slow
def test_candidates_do_not_meet():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        bodies = ["return launch(x)", "while True: pass", "torch.zeros = None; raise SystemExit", "return launch(x * 2)"] * 2
        results = list(pool.map(lambda body: trace(module(body), timeout_s=3.0), bodies))
    for first, second in ((0, 4), (3, 7)):
        assert results[first] == results[second]
        assert isinstance(results[first], list)
    stopped = [r.status for r in results[1:3] if isinstance(r, Rejection)]
    assert stopped == [Status.TIMEOUT, Status.TRACE_ERROR]


@pytest.mark.slow
def test_a_trace_of_many_gibibytes_needs_none() -> None:
    """The sandbox has 2 GiB; inputs, parameters and outputs would take 24."""
    source = (
        HEAD
        + """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(1 << 16, 1 << 15))
        self.table = torch.randn(1 << 16, 1 << 15, device="cuda") * 0 + 1

    def forward(self, x):
        return launch(x + self.w)
"""
    )
    shape = 1 << 16, 1 << 15
    plan = plan_of(source, spec(dense(*shape), state={"w": dense(*shape)}))
    assert sum(s.nbytes for s in plan.storages) >= 24 << 30
