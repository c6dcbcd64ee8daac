"""Calls of PyTorch that are several ops of a Graph: each is read, nothing of it is unknown, and the Graph computes it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.graph_cases import assert_same
from torch import Tensor, nn

from kernrl.tasks.graph.lift import lift_module
from kernrl.tasks.graph.lifting.composed import COMPOSED

CALLS = {
    "asinh": "x.asinh()",
    "acosh": "torch.acosh(x.abs() + 1)",
    "atanh": "torch.atanh(x.tanh())",
    "frac": "torch.frac(x * 3)",
    "logit": "torch.logit(y, eps=1e-4) + torch.logit(y)",
    "sinc": "torch.sinc(x) + torch.sinc(x * 0)",
    "xlogy": "torch.xlogy(y, y + 1) + torch.xlogy(x * 0, y)",
    "logaddexp": "torch.logaddexp(x, y) + torch.logaddexp(x * 100, y) + torch.logaddexp(y, y)",
    "hypot": "torch.hypot(x, y) + torch.hypot(y, y) + torch.hypot(x * 0, y * 0)",
    "nan_to_num": "torch.nan_to_num(torch.log(x)) + torch.nan_to_num(1 / (x - x), nan=0.5, posinf=3.0, neginf=-2.0)",
    "isfinite": "torch.isfinite(torch.log(x))",
    "special_expit": "torch.special.expit(x)",
    "rad2deg": "torch.rad2deg(x)",
    "deg2rad": "torch.deg2rad(x)",
    "ldexp": "torch.ldexp(x, y)",
    "fmax": "torch.fmax(x, x.log()), torch.fmax(x.log(), y), torch.fmax(x.log(), x.log())",
    "fmin": "torch.fmin(x, x.log()), torch.fmin(x.log(), y), torch.fmin(x.log(), x.log())",
    "heaviside": "torch.heaviside(x.round(), y), torch.heaviside(x.log(), y)",
    "signbit": "torch.signbit(x), torch.signbit(x * 0), torch.signbit(1 / (x * 0))",
    "copysign": "torch.copysign(y, x), torch.copysign(y, x * 0), x.copysign(-2.0), x.copysign(1)",
    "special_entr": "torch.special.entr(y - 0.1), torch.special.entr(y * (x > 0)), torch.special.entr(x.log())",
    "float_power": "torch.float_power(y, x), torch.float_power(y, 1.5), torch.float_power(2, x)",
    "isclose": "x.isclose(x.round(), 0.1, 0.2), (y * 0).log().isclose((y * 0).log()), x.isclose((y * 0).log())",
    "__rshift__": "n >> 1, (n - 3) >> 2",
    "__lshift__": "n << 1, (n - 3) << 2",
    "rnn_tanh_cell": "torch.rnn_tanh_cell(x, y, self.w[0], self.w[1], self.w[2, 0], self.w[2, 1])",
    "rnn_relu_cell": "torch.rnn_relu_cell(x, y, self.w[0], self.w[1])",
    "gru_cell": "torch.gru_cell(x, y, self.w[0].repeat(3, 1), self.w[:3].flatten(0, 1), self.w[0, :3].flatten()),"
    " torch.gru_cell(x[:1], y[:1], self.w[1:].flatten(0, 1), self.w[:3].flatten(0, 1))",
    "lstm_cell": "*torch.lstm_cell(x, (y, x.sin()), self.w.flatten(0, 1), self.w[3].repeat(4, 1), self.w[0, :4].flatten())",
    "mse_loss": "F.mse_loss(x, y), F.mse_loss(x, y, reduction='sum')",
    "l1_loss": "F.l1_loss(x, y, reduction='none')",
    "smooth_l1_loss": "F.smooth_l1_loss(x, y, beta=0.5), F.smooth_l1_loss(x, y, beta=0, reduction='none')",
    "huber_loss": "F.huber_loss(x, y, delta=0.7)",
    "kl_div": "F.kl_div(x, y, reduction='batchmean'), F.kl_div(x, x, log_target=True, reduction='none')",
    "binary_cross_entropy": "F.binary_cross_entropy(y, x.sigmoid()), F.binary_cross_entropy(y, y, weight=y)",
    "binary_cross_entropy_with_logits": "F.binary_cross_entropy_with_logits(x * 9, y, weight=y, pos_weight=y[0])",
    "cross_entropy_loss": "F.cross_entropy(x, n), F.cross_entropy(x, n, label_smoothing=0.1, ignore_index=2),"
    " F.cross_entropy(x, y, reduction='none'), F.cross_entropy(x[0], n[0]), F.cross_entropy(x[:, :, None], n[:, None])",
    "weighted": "F.cross_entropy(x, n, weight=y[0]), F.cross_entropy(x[:, :, None], n[:, None], y[0], reduction='none'),"
    " F.cross_entropy(x, n, y[0], label_smoothing=0.3, ignore_index=2), F.nll_loss(x, n, y[0], ignore_index=5)",
    "nll_loss": "F.nll_loss(x.log_softmax(1), n, reduction='sum'), F.nll_loss(x, n)",
    "pairwise_distance": "F.pairwise_distance(x, y), F.pairwise_distance(x, y, p=1.0, keepdim=True)",
    "triplet_margin_loss": "F.triplet_margin_loss(x, y, x.flip(0), margin=0.5)",
    "margin_ranking_loss": "F.margin_ranking_loss(x, y, x.sign(), margin=0.1)",
    "cosine_embedding_loss": "F.cosine_embedding_loss(x, y, n - 2, margin=0.2, reduction='none'),"
    " F.cosine_embedding_loss(x[0], y[0], n[3] - 2), F.cosine_embedding_loss(x, y, (n > 2) * 2 - 1, margin=-0.5)",
    "hinge_embedding_loss": "F.hinge_embedding_loss(x, (y > 0.2) * 2 - 1, reduction='none'),"
    " F.hinge_embedding_loss(x[:, 0], n - 3, margin=0.5)",
    "poisson_nll_loss": "F.poisson_nll_loss(x, y)",
    "soft_margin_loss": "F.soft_margin_loss(x, x.sign())",
    "dist": "torch.dist(x, y), torch.dist(x, y, p=1.0)",
    "bilinear": "F.bilinear(x, y, self.w, self.b)",
    "tensordot": "torch.tensordot(x, self.w, dims=([1], [2])), torch.tensordot(self.w, self.w * 2, dims=([0, 1], [0, 1]))",
    "inner": "torch.inner(x, y), torch.inner(x[:, :4], y[:, :4]), torch.inner(x[0], y[0])",
    "addbmm": "torch.addbmm(self.w[0][:, :4], self.w, self.w.mT[:, :, :4], beta=0.5, alpha=2.0)",
    "linalg_multi_dot": "torch.linalg.multi_dot((x, y.T, x))",
    "hstack": "torch.hstack((x, y))",
    "vstack": "torch.vstack((x, y))",
    "dstack": "torch.dstack((self.w, self.w))",
    "repeat_interleave": "x.repeat_interleave(3, dim=1), x.repeat_interleave(2)",
    "one_hot": "F.one_hot(n, 7).float() * x.sum(), F.one_hot(n, 7)",
    "tile": "x.tile(2), x.tile((2, 1, 3))",
    "channel_shuffle": "F.channel_shuffle(x.reshape(2, 6, 1, 2), 3)",
    "unfold": "x.unfold(-1, 2, 2), x.unfold(0, 1, 2)",
    "im2col": "F.unfold(x.reshape(1, 2, 2, 6), (2, 3), stride=(2, 3))",
    "tensor_split": "*x.tensor_split(4, dim=1), *x.tensor_split((1, -2), dim=1)",
    "diff": "torch.diff(x, dim=1), x.diff(dim=0)",
    "aminmax": "*torch.aminmax(x, dim=1), *x.aminmax()",
    "nansum": "torch.nansum(torch.log(x), dim=1)",
    "nanmean": "torch.log(x).nanmean(1, keepdim=True), torch.log(x).nanmean()",
    "meshgrid": "*torch.meshgrid(x[0], y[:, 0], indexing='ij'), *torch.meshgrid(x[0], y[:, 0], x[:2, 1], indexing='xy')",
    "eye": "torch.eye(6) + x[0], torch.eye(4, 6, dtype=torch.int64) + n[:, None], torch.eye(6, 4).bool()",
    "fill_diagonal": "x.clone().fill_diagonal_(-9.0), (x.T * 1).fill_diagonal_(2)",
    "index_put": "torch.index_put(x, (x > 0,), y[0, 0]), torch.index_put(x, (n > 2,), y[0, :1])",
}
"""Name of a rule → calls of it, of x [4, 6], shares y [4, 6], classes n [4], and a weight w [4, 6, 6]."""


def module_of(call: str) -> nn.Module:
    scope: dict[str, type[nn.Module]] = {}

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(4, 6, 6)), nn.Parameter(torch.randn(4))

    exec(f"class Model(Held):\n    def forward(self, x, y, n):\n        return ({call},)", {**globals(), "Held": Held}, scope)
    return scope["Model"]()


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_composed_call_is_read_as_ops(name: str) -> None:
    torch.manual_seed(0)
    module = module_of(CALLS[name])
    inputs: list[Tensor] = [torch.randn(4, 6), torch.rand(4, 6).softmax(1), torch.tensor([0, 5, 2, 3])]
    graph = lift_module(module, inputs)
    assert not graph.unknown, graph.listing()
    assert_same(graph, module, inputs)


def test_every_rule_has_a_call() -> None:
    rules = {rule for name, rule in COMPOSED.items() if name in CALLS}
    assert F is not None  # the calls name it
    assert not {name for name, rule in COMPOSED.items() if rule not in rules}
