"""The losses that SkyRL calls, on a CPU, and their registration."""

import sys
from types import SimpleNamespace

import pytest
import torch
from support.ppo_case import clipped, mean, ppo_case, skyrl_config, skyrl_correction
from support.stand_in_module import stand_in_module

from kernrl.errors import UsageError
from kernrl.integrations.skyrl import NAME, ppo_policy_loss_fused, register, summed_policy_loss_fused

torch.set_num_threads(1)


@pytest.fixture
def case():
    return ppo_case()


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
    ratio = (shifted.new - shifted.old).exp()
    clipped_tokens = ((ratio > 1.28) & (case.a > 0)) | ((ratio < 0.8) & (case.a < 0))  # SkyRL leaves the dual clip out
    assert clip_ratio == pytest.approx(mean(case, clipped_tokens.double()).item())
    tis = (case.old - case.rollout).exp().clamp(max=1.1)
    loss, _ = ppo_policy_loss_fused(case.new, case.old, case.a, skyrl_config(use_tis=True), case.mask, case.rollout)
    torch.testing.assert_close(loss, mean(case, tis * clipped(case, high=0.28)))


def test_the_summed_skyrl_loss_and_its_corrections(case):
    each, m = clipped(case, high=0.28), case.mask
    gap = (case.old - case.rollout) * m
    expected = {None: 1.0, "token": gap.exp().clamp(max=1.1), "sequence": gap.sum(1, keepdim=True).exp().clamp(max=1.3)}
    for level, rho in expected.items():
        config = skyrl_config(off_policy_correction=skyrl_correction(tis_ratio_type=level))
        loss, metrics = summed_policy_loss_fused(case.new, case.old, case.a, config, m, case.rollout)
        torch.testing.assert_close(loss, (rho * each * m).sum())
        assert set(metrics) == {"clip_ratio"}
        assert isinstance(metrics["clip_ratio"], float)


def test_skyrl_refuses_what_it_does_not_know(case):
    with pytest.raises(UsageError, match="clip_cov"):
        ppo_policy_loss_fused(case.new, case.old, case.a, skyrl_config(policy_loss_type="clip_cov"), case.mask)
    with pytest.raises(UsageError, match="prompt_mean"):
        ppo_policy_loss_fused(case.new, case.old, case.a, skyrl_config(loss_reduction="prompt_mean"), case.mask)
    masked = skyrl_config(off_policy_correction=skyrl_correction(sequence_mask_metric="product"))
    with pytest.raises(UsageError, match="sequence_mask_metric"):
        summed_policy_loss_fused(case.new, case.old, case.a, masked, case.mask, case.rollout)


@pytest.mark.parametrize(
    ("package", "loss"), [("skyrl_train", ppo_policy_loss_fused), ("skyrl.backends.skyrl_train", summed_policy_loss_fused)]
)
def test_register_adds_the_loss_that_the_installed_skyrl_calls(monkeypatch, package, loss):
    """SkyRL's registry as its two packages have it: `register(name, function)`, and a name may be taken once."""
    registered = {}

    class PolicyLossRegistry:
        @classmethod
        def register(cls, name, func):
            assert name not in registered
            registered[name] = func

    for hidden in ("skyrl", "skyrl_train"):
        monkeypatch.setitem(sys.modules, hidden, None)
    stand_in_module(monkeypatch, f"{package}.utils.ppo_utils", PolicyLossRegistry=PolicyLossRegistry)
    register()
    assert registered == {NAME: loss}


def test_register_says_that_skyrl_is_missing(monkeypatch):
    for hidden in ("skyrl", "skyrl_train"):
        monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(UsageError, match="not installed"):
        register()
