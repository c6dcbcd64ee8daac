"""`ppo_loss` and `ratio_kl`, on a CPU."""

import pytest
import torch
from support.ppo_case import clipped, mean, ppo_case

from kernrl.errors import UsageError
from kernrl.kernels import ppo_loss, ratio_kl
from kernrl.kernels.loss_metrics import Metrics

torch.set_num_threads(1)


@pytest.fixture
def case():
    return ppo_case()


def test_clip_and_clip_ratio(case):
    loss, metrics = ppo_loss(case.new, case.old, case.a, case.mask)
    torch.testing.assert_close(loss, mean(case, clipped(case)))
    ratio = (case.new - case.old).exp()
    outside = ((ratio > 1.2) & (case.a > 0)) | ((ratio < 0.8) & (case.a < 0))
    torch.testing.assert_close(metrics["clip_ratio"], mean(case, outside.double()))


def test_gradient_matches_finite_differences(case):
    leaf = case.new.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ppo_loss(x, case.old, case.a, case.mask, delta=1.5)[0], leaf)


def test_metrics_are_a_mapping_that_joins_dicts():
    metrics = Metrics(("a", "b"), torch.tensor([1.0, 2.0, 3.0])[:2])
    assert dict(metrics) == {"a": 1.0, "b": 2.0}
    assert (metrics | {"b": 5.0, "c": 4.0}) == {"a": 1.0, "b": 5.0, "c": 4.0}
    assert len(metrics) == 2
    assert "c" not in metrics
    with pytest.raises(KeyError):
        metrics["c"]


def test_no_token_gives_zero():
    """A micro-batch may have none."""
    new, none = torch.zeros(0, requires_grad=True), torch.zeros(0)
    loss, metrics = ppo_loss(new, none, none, none, cu_seqlens=torch.tensor([0, 0]), correction="none")
    loss.backward()
    assert loss == 0
    assert metrics["tokens"] == metrics["ratio_max"] == 0


def test_entropy_is_refused(case):
    with pytest.raises(UsageError, match="entropies"):
        ppo_loss(case.new, case.old, case.a, case.mask, entropy_coef=0.1)


def test_ratio_kl_is_its_formula_and_passes_gradcheck():
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 2, 4, 7, generator=generator, dtype=torch.float64).unbind()
    ids = torch.randint(0, 7, (2, 4), generator=generator)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    old = -torch.rand(2, 4, generator=generator, dtype=torch.float64) * 3
    ids[1, 2:] = -100

    def logp(logits):
        return (logits / 0.7).log_softmax(-1).gather(-1, ids.clamp(min=0)[..., None])[..., 0]

    ratio, kl = ratio_kl(policy, reference, ids, mask, old, temperature=0.7)
    d = logp(reference) - logp(policy)
    torch.testing.assert_close(ratio, (logp(policy) - old).exp() * mask)
    torch.testing.assert_close(kl, (d.exp() - d - 1) * mask)
    leaf = policy.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ratio_kl(x, reference, ids, mask, old, temperature=0.7), leaf)
    ids[0, 0] = 7
    with pytest.raises(UsageError, match="outside"):
        ratio_kl(policy, reference, ids, mask, old)
