"""The loss that verl calls, on a CPU, and its registration."""

import sys
from types import SimpleNamespace

import pytest
import torch
from support.ppo_case import clipped, mean, ppo_case
from support.stand_in_module import stand_in_module

from kernrl.errors import UsageError
from kernrl.integrations.verl import AGGREGATIONS, NAME, policy_loss_fused, register

torch.set_num_threads(1)


class ActorConfig(SimpleNamespace):
    """verl's, as far as the loss reads it."""

    def __init__(self, **changes):
        plain = {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
        super().__init__(**plain | {"global_batch_info": {}} | changes)

    def get(self, name, default):
        return getattr(self, name, default)


@pytest.fixture
def case():
    made = ppo_case()
    made.old = made.old - 1.5  # so that both clips bind
    made.new.requires_grad_()
    return made


def each_loss(case):
    each = clipped(case, high=0.28)
    return torch.where(case.a < 0, torch.minimum(each, -3.0 * case.a), each)


def aggregated(each, mask, mode, tokens, sequences, ranks=1, factor=None):
    """As verl's `agg_loss` does it."""
    per = (each * mask).sum(-1)
    return {
        "token-mean": per.sum() / tokens * ranks,
        "token-sum": per.sum() * ranks,
        "seq-mean-token-sum": per.sum() / sequences * ranks,
        "seq-mean-token-sum-norm": per.sum() / sequences * ranks / (factor or mask.shape[-1]),
        "seq-mean-token-mean": (per / (mask.sum(-1) + 1e-8)).sum() / sequences * ranks,
    }[mode]


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("ranks", [None, 1, 4])
def test_every_aggregation_and_its_gradient(case, mode, ranks):
    known = {} if ranks is None else {"dp_size": ranks, "batch_num_tokens": 50, "global_batch_size": 10, "loss_scale_factor": 7}
    loss, _ = policy_loss_fused(case.old, case.new, case.a, case.mask, mode, ActorConfig(global_batch_info=known))
    tokens, sequences = (50, 10) if known else (case.mask.sum(), 3)
    want = aggregated(each_loss(case), case.mask, mode, tokens, sequences, ranks or 1, 7 if known else None)
    torch.testing.assert_close(loss, want)
    (got,) = torch.autograd.grad(loss, case.new, retain_graph=True)
    (expected,) = torch.autograd.grad(want, case.new)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_sequence_that_is_masked_as_a_whole_does_not_count(case, mode):
    case.mask[1] = 0
    loss, _ = policy_loss_fused(case.old, case.new, case.a, case.mask, mode, ActorConfig())
    torch.testing.assert_close(loss, aggregated(each_loss(case), case.mask, mode, case.mask.sum(), 2))


def test_metrics_are_verls(case):
    _, metrics = policy_loss_fused(case.old, case.new, case.a, case.mask, config=ActorConfig())
    log_ratio, ratio = case.new - case.old, (case.new - case.old).exp()
    first, second = -case.a * ratio, -case.a * ratio.clamp(0.8, 1.28)
    beyond = (torch.maximum(first, second) > -3.0 * case.a) & (case.a < 0)
    assert metrics == {
        "actor/pg_clipfrac": pytest.approx(mean(case, (second > first).double()).item()),
        "actor/ppo_kl": pytest.approx(mean(case, -log_ratio).item()),
        "actor/pg_clipfrac_lower": pytest.approx(mean(case, beyond.double()).item()),
    }
    assert metrics["actor/pg_clipfrac_lower"] > 0


def test_weights_of_the_rollout_correction(case):
    weights = (case.old - case.rollout).exp().clamp(max=1.5)
    weights[0, 2] = 0.0
    loss, _ = policy_loss_fused(case.old, case.new, case.a, case.mask, "token-mean", ActorConfig(), weights)
    torch.testing.assert_close(loss, mean(case, weights * each_loss(case)))


def test_what_cannot_be_computed_is_refused(case):
    with pytest.raises(UsageError, match="token-median"):
        policy_loss_fused(case.old, case.new, case.a, case.mask, "token-median", ActorConfig())
    for mode, missing in (("token-mean", "batch_num_tokens"), ("seq-mean-token-mean", "global_batch_size")):
        known = ActorConfig(global_batch_info={"dp_size": 2})
        with pytest.raises(UsageError, match=missing):
            policy_loss_fused(case.old, case.new, case.a, case.mask, mode, known)


def test_register_adds_it_to_verls_registry(monkeypatch):
    """verl's registry as its package has it: a decorator with the name."""
    registered = {}

    def register_policy_loss(name):
        return lambda function: registered.setdefault(name, function)

    stand_in_module(monkeypatch, "verl.trainer.ppo.core_algos", register_policy_loss=register_policy_loss)
    register()
    assert registered == {NAME: policy_loss_fused}


def test_register_says_that_verl_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "verl", None)
    with pytest.raises(UsageError, match="not installed"):
        register()
