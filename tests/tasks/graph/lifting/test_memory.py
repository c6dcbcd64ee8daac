"""In-place calls on views: the Graph computes what the module leaves in memory, or the module is refused."""

from __future__ import annotations

import pytest
import torch
from support.graph_cases import assert_same
from torch import nn

from kernrl.tasks.graph.lift import lift_module
from kernrl.tasks.graph.lifting.read import LiftError

BODIES = {
    "a column": "y = x * 2; y[:, 0] = x[:, 1]; return y",
    "a number": "y = x * 2; y[1] = 3; y[:, -1] = 0.5; return y",
    "an end and a start": "y = x * 2; y[:2].exp_(); y[:, 4:] *= 3; y[..., 1:3] += x[:, :2]; return y",
    "another dtype": "y = x * 2; y[:, 0] = (x[:, 1] > 0); y[:, 1] = x[:, 1].double(); return y",
    "broadcast": "y = torch.zeros_like(x); y[:, 1:4] = x[:, :1]; return y",
    "a view of a view": "y = x * 2; y[1:][:, 2].neg_(); return y, y.sum()",
    "turned": "y = x * 2; y.t()[1] = x[:, 0]; y.t()[:, 1:3].abs_(); return y",
    "in another shape": "y = x * 2; z = y.view(2, 2, 6); z[:, 0] = 1.0; z[1].sqrt_(); return y, z",
    "squeezed": "y = x[None] * 2; y.squeeze(0)[2] = x[0]; return y",
    "axes of one apart": "y = x.view(4, 1, 6) * 2; y.permute(2, 1, 0)[3, 0] = x[:, 0]; return y",
    "pieces": "y = x * 2; a, b = y.split([2, 4], 1); b.exp_(); return y",
    "equal pieces": "y = x * 2; a, b, c = y.chunk(3, 1); b.exp_(); return y",
    "rows one by one": "y = x * 0\n        for i, row in enumerate(x.unbind(0)): y[i] = row.cumsum(0)\n        return y",
    "windows side by side": "y = x * 2; y.unfold(1, 2, 2)[:, 1] = 0; return y",
    "every other one": "y = x * 2; y[:, ::2] = x[:, :3]; y[1::2].exp_(); y[:, 1::3] = 0; return y",
    "every other one of what is turned": "y = x * 2; y.t()[1::2, 2] = 0; y[None, ..., ::2].abs_(); return y",
    "turns": "y = torch.empty_like(x); y[:, ::2] = -x[:, 1::2]; y[:, 1::2] = x[:, ::2]; return y",
    "over what was written": "y = x * 2; y[:, 1:3] = 0; y[:, 2:5] = x[:, :3]; y[:, 4] = 1; y[0] = 2; y[1:3] = x[:2]; return y",
    "a mask": "y = x * 2; y[y > 0.5] = 0.0; y[:, 1:][x[:, 1:] < 0] = 9.0; return y",
    "rows by a mask": "y = x * 2; y[x[:, 0] > 0] = x[0, 0]; return y",
    "all of it": "y = x * 2; z = y[:]; z[:] = x; y[:, :].exp_(); return y, z",
    "a copy is no view": "y = x * 2; z = y.t().contiguous(); z[0] = 0; w = y.t().reshape(-1); w[:3] = 1; return y, z, w",
    "what is in order is no copy": "y = x * 2; z = y.contiguous().reshape(-1); z[:3] = 1; return y",
    "turned in place": "y = x * 2; z = y.detach(); y.unsqueeze_(1); y[0] = 1; return y, z",
    "a view of what is overwritten": "y = x * 2; z = y[:, 1:4]; y[:, 2] = 0; w = z.t(); y[0].exp_(); return y, z, w[1:], w",
    "another shape of what is overwritten": "y = x * 2; z = y.view(2, 2, 6)[:, 1, ::3]; y.exp_(); return z + 1",
    "pieces one by one": "a, b, c = (x * 2).chunk(3, 1); a.exp_(); b.mul_(a); c -= b; return a, b, c",
    "the columns of what is turned": "y = x.t() * 2; z = y[1::2].t(); w = y[None, 0]; y[:, 1] = 7.0; return z, w",
    "without gradients": "y = x * 2\n        with torch.no_grad(): y[0].exp_(); y[:, 1].zero_()\n        return y",
    "the diagonal": "y = x * 2; y[:, :4].fill_diagonal_(1.0); return y",
    "scattered": "y = x * 2; y.scatter_(1, x.argmax(1, keepdim=True), 0.0); return y, x * 2",
}
"""What is overwritten → the body of `forward(self, x)`, x [4, 6]."""


def module_of(body: str) -> nn.Module:
    scope: dict[str, type[nn.Module]] = {}
    exec(f"class Model(nn.Module):\n    def forward(self, x):\n        {body}", {"nn": nn, "torch": torch}, scope)
    return scope["Model"]()


@pytest.mark.slow
@pytest.mark.parametrize("what", BODIES)
def test_what_is_overwritten_is_written_back(what: str) -> None:
    torch.manual_seed(0)
    module, x = module_of(BODIES[what]), torch.randn(4, 6)
    assert_same(lift_module(module, [x]), module, [x])


@pytest.mark.parametrize(
    "body",
    [
        "y = x * 2; z = y.diagonal(); y[:, 2] = 0; return z",
        "y = x * 2; z = y.diagonal().unsqueeze(0); y.exp_(); return z + 1",
        "y = x * 2; y[:, ::4] = 0; return y",
        "y = x * 2; y.diagonal().zero_(); return y",
        "y = x * 2; y.unfold(1, 3, 1)[:, 1] = 0; return y",
    ],
)
def test_what_nobody_can_say_is_refused(body: str) -> None:
    with pytest.raises(LiftError, match="overwritten through a view"):
        lift_module(module_of(body), [torch.randn(4, 6)])


def test_nothing_is_left_of_what_is_all_overwritten() -> None:
    module = module_of("y = x.new_empty(4, 6); y[:, ::2] = x[:, :3]; y[:, 1::2] = x[:, 3:]; y[:, 2] = 1.0; return y")
    assert lift_module(module, [torch.randn(4, 6)]).composition.count("full") == 1


def test_a_number_that_forward_changes_is_no_constant() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls: torch.Tensor
            self.scale: torch.Tensor
            self.register_buffer("calls", torch.ones(()))
            self.register_buffer("scale", torch.tensor(3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x / self.calls
            self.calls += 1
            return y * self.calls * self.scale

    graph = lift_module(Counting(), [torch.randn(4, 6)])
    assert [p.path for p in graph.parameters] == ["calls"]
