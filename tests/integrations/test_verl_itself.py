"""The loss beside verl's own, in verl's own registry: only where verl 0.9 is installed (CONTRIBUTING.md says how)."""

import itertools

import pytest
import torch
from support.ppo_case import ppo_case

from kernrl.integrations.verl import AGGREGATIONS, NAME, register

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", exc_type=ImportError)
config = pytest.importorskip("verl.workers.config", exc_type=ImportError)
torch.set_num_threads(1)

GLOBAL = {"dp_size": 2, "batch_num_tokens": 77, "global_batch_size": 12, "loss_scale_factor": 11}
SETTINGS = list(itertools.product(AGGREGATIONS, ({}, GLOBAL), (0.2, 0.28), (3.0, 1.5), (False, True)))


@pytest.fixture(scope="module")
def fused():
    """The loss as verl finds it by the name in its config."""
    register()
    return core_algos.get_policy_loss_fn(NAME)


@pytest.mark.parametrize(("mode", "batch", "high", "dual", "weighted"), SETTINGS)
def test_loss_gradient_and_metrics_are_verls(fused, mode, batch, high, dual, weighted):
    case = ppo_case()
    old, new = case.old - 1.0, case.new.requires_grad_()  # so that every bound binds
    actor = config.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.1,
        clip_ratio_high=high,
        clip_ratio_c=dual,
    )
    actor.global_batch_info.update(batch)
    weights = (old - case.rollout).exp().clamp(max=2.0) if weighted else None
    results = []
    for loss_of in (fused, core_algos.get_policy_loss_fn("vanilla")):
        loss, metrics = loss_of(
            old_log_prob=old, log_prob=new, advantages=case.a, response_mask=case.mask, loss_agg_mode=mode, config=actor,
            rollout_is_weights=weights,
        )  # fmt: skip
        results.append((loss.detach(), torch.autograd.grad(loss, new)[0], metrics))
    (loss, gradient, metrics), (want, wanted, theirs) = results
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(gradient, wanted)
    assert metrics == pytest.approx(theirs, abs=1e-6)
    assert all(value > 0 for name, value in theirs.items() if "clipfrac" in name)
