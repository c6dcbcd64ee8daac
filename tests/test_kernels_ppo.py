"""`ppo_loss`, `ratio_kl` and the SkyRL adapter, on a CPU."""

from types import SimpleNamespace

import pytest
import torch

from kernrl.errors import UsageError
from kernrl.integrations.skyrl import ppo_policy_loss_fused
from kernrl.kernels import ppo_loss, ratio_kl

torch.set_num_threads(1)


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    new = draw(3, 6) - 2
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4], dtype=torch.float64)
    return SimpleNamespace(new=new, old=new + 0.3 * draw(3, 6), rollout=new + 0.3 * draw(3, 6), a=draw(3, 6), mask=mask)


def clipped(case, low=0.2, high=0.2):
    ratio = (case.new - case.old).exp()
    return -torch.minimum(ratio * case.a, ratio.clamp(1 - low, 1 + high) * case.a)


def mean(case, each):
    return (each * case.mask).sum() / case.mask.sum()


def test_clip_and_clip_ratio(case):
    loss, metrics = ppo_loss(case.new, case.old, case.a, case.mask)
    torch.testing.assert_close(loss, mean(case, clipped(case)))
    ratio = (case.new - case.old).exp()
    outside = ((ratio > 1.2) & (case.a > 0)) | ((ratio < 0.8) & (case.a < 0))
    torch.testing.assert_close(metrics["clip_ratio"], mean(case, outside.double()))


def test_gradient_matches_finite_differences(case):
    leaf = case.new.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ppo_loss(x, case.old, case.a, case.mask, delta=1.5)[0], leaf)


def test_entropy_is_refused(case):
    with pytest.raises(UsageError, match="entropies"):
        ppo_loss(case.new, case.old, case.a, case.mask, entropy_coef=0.1)


def skyrl_config(**changes):
    return SimpleNamespace(
        **{
            "policy_loss_type": "regular", "eps_clip_low": 0.2, "eps_clip_high": 0.28, "clip_ratio_c": 3.0,
            "loss_reduction": "token_mean", "max_seq_len": 10, "use_tis": False, "tis_imp_ratio_cap": 1.1, **changes,
        }
    )  # fmt: skip


def test_skyrl_reductions(case):
    each, m = clipped(case, high=0.28), case.mask
    expected = {
        "token_mean": (each * m).sum() / m.sum(),
        "sequence_mean": ((each * m).sum(1) / m.sum(1)).mean(),
        "seq_mean_token_sum_norm": ((each * m).sum(1) / 10).mean(),
    }
    for reduction, want in expected.items():
        loss, _ = ppo_policy_loss_fused(case.new, case.old, case.a, skyrl_config(loss_reduction=reduction), m)
        torch.testing.assert_close(loss, want)


def test_skyrl_dual_clip_and_tis(case):
    each = clipped(case, high=0.28)
    dual = torch.where(case.a < 0, torch.minimum(each, -3.0 * case.a), each)
    loss, clip_ratio = ppo_policy_loss_fused(
        case.new, case.old - 2, case.a, skyrl_config(policy_loss_type="dual_clip"), case.mask
    )
    shifted = SimpleNamespace(**{**vars(case), "old": case.old - 2})
    each = clipped(shifted, high=0.28)
    dual = torch.where(case.a < 0, torch.minimum(each, -3.0 * case.a), each)
    torch.testing.assert_close(loss, mean(case, dual))
    assert 0 < clip_ratio <= 1
    tis = (case.old - case.rollout).exp().clamp(max=1.1)
    loss, _ = ppo_policy_loss_fused(case.new, case.old, case.a, skyrl_config(use_tis=True), case.mask, case.rollout)
    torch.testing.assert_close(loss, mean(case, tis * clipped(case, high=0.28)))


def test_skyrl_refuses_what_it_does_not_know(case):
    with pytest.raises(UsageError, match="clip_cov"):
        ppo_policy_loss_fused(case.new, case.old, case.a, skyrl_config(policy_loss_type="clip_cov"), case.mask)


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
