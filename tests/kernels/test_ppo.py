"""`ppo_loss`, `ratio_kl` and the SkyRL adapter, on a CPU."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from kernrl.errors import UsageError
from kernrl.integrations.skyrl import NAME, ppo_policy_loss_fused, register, summed_policy_loss_fused
from kernrl.kernels import ppo_loss, ratio_kl
from kernrl.kernels.loss_metrics import Metrics

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


def test_metrics_are_a_mapping_that_joins_dicts():
    metrics = Metrics(("a", "b"), torch.tensor([1.0, 2.0, 3.0])[:2])
    assert dict(metrics) == {"a": 1.0, "b": 2.0}
    assert (metrics | {"b": 5.0, "c": 4.0}) == {"a": 1.0, "b": 5.0, "c": 4.0}
    assert len(metrics) == 2
    assert "c" not in metrics
    with pytest.raises(KeyError):
        metrics["c"]


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
    ratio = (shifted.new - shifted.old).exp()
    clipped_tokens = ((ratio > 1.28) & (case.a > 0)) | ((ratio < 0.8) & (case.a < 0))  # SkyRL leaves the dual clip out
    assert clip_ratio == pytest.approx(mean(case, clipped_tokens.double()).item())
    tis = (case.old - case.rollout).exp().clamp(max=1.1)
    loss, _ = ppo_policy_loss_fused(case.new, case.old, case.a, skyrl_config(use_tis=True), case.mask, case.rollout)
    torch.testing.assert_close(loss, mean(case, tis * clipped(case, high=0.28)))


def correction_config(**changes):
    names = ("tis_ratio_type", "sequence_mask_metric", "outlier_token_is_threshold_low", "outlier_token_is_threshold_high",
             "token_mask_is_threshold_low", "token_mask_is_threshold_high")  # fmt: skip
    caps = {"token_tis_ratio_clip_high": 1.1, "sequence_tis_ratio_clip_high": 1.3}
    return SimpleNamespace(**{**dict.fromkeys(names), **caps, **changes})


def test_the_summed_skyrl_loss_and_its_corrections(case):
    each, m = clipped(case, high=0.28), case.mask
    gap = (case.old - case.rollout) * m
    expected = {None: 1.0, "token": gap.exp().clamp(max=1.1), "sequence": gap.sum(1, keepdim=True).exp().clamp(max=1.3)}
    for level, rho in expected.items():
        config = skyrl_config(off_policy_correction=correction_config(tis_ratio_type=level))
        loss, metrics = summed_policy_loss_fused(case.new, case.old, case.a, config, m, case.rollout)
        torch.testing.assert_close(loss, (rho * each * m).sum())
        assert set(metrics) == {"clip_ratio"}
        assert isinstance(metrics["clip_ratio"], float)


def test_skyrl_refuses_what_it_does_not_know(case):
    with pytest.raises(UsageError, match="clip_cov"):
        ppo_policy_loss_fused(case.new, case.old, case.a, skyrl_config(policy_loss_type="clip_cov"), case.mask)
    with pytest.raises(UsageError, match="prompt_mean"):
        ppo_policy_loss_fused(case.new, case.old, case.a, skyrl_config(loss_reduction="prompt_mean"), case.mask)
    masked = skyrl_config(off_policy_correction=correction_config(sequence_mask_metric="product"))
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

    parts = f"{package}.utils.ppo_utils".split(".")
    for hidden in ("skyrl", "skyrl_train"):
        monkeypatch.setitem(sys.modules, hidden, None)
    for i in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), ModuleType(parts[i - 1]))
    vars(sys.modules[".".join(parts)])["PolicyLossRegistry"] = PolicyLossRegistry
    register()
    assert registered == {NAME: loss}


def test_register_says_that_skyrl_is_missing(monkeypatch):
    for hidden in ("skyrl", "skyrl_train"):
        monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(UsageError, match="not installed"):
        register()


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
