"""`grpo_loss` on a CPU: the reference, against formulas written out here, by hand, and against finite differences."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernrl.errors import UsageError
from kernrl.kernels import METRICS, grpo_loss, linear_cross_entropy, linear_grpo_loss, token_logprobs

torch.set_num_threads(1)
B, T, V = 3, 5, 11
TEMPERATURE = 0.7


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits = draw(B, T, V)
    ids = torch.randint(0, V, (B, T), generator=generator)
    logp = (logits / TEMPERATURE).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.bool)
    old, ref, rollout = (logp + 0.3 * draw(B, T) for _ in range(3))
    return {
        "logits": logits, "ids": ids, "logp": logp, "mask": mask, "advantages": draw(B), "old": old, "ref": ref,
        "rollout": rollout,
    }  # fmt: skip


def loss_of(case, **options):
    options = {"mask": case["mask"], "old_logprobs": case["old"], "advantages": case["advantages"], **options}
    return grpo_loss(case["logits"], case["ids"], temperature=TEMPERATURE, **options)


def clipped_surrogate(case, low=0.2, high=0.2, ratio=None):
    ratio = (case["logp"] - case["old"]).exp() if ratio is None else ratio
    a = case["advantages"][:, None]
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def test_each_aggregation_is_the_mean_it_is_named_after(case):
    each, m = clipped_surrogate(case), case["mask"]
    per_sequence = (each * m).sum(1)
    expected = {
        "token_mean": per_sequence.sum() / m.sum(),
        "sequence_mean": (per_sequence / m.sum(1)).mean(),
        "sequence_sum": per_sequence.mean(),
        "sum": per_sequence.sum(),
        "fixed_length": per_sequence.sum() / (B * 8),
    }
    for name, value in expected.items():
        torch.testing.assert_close(loss_of(case, aggregation=name, max_tokens=8)[0], value)
    torch.testing.assert_close(loss_of(case, num_tokens=100)[0], per_sequence.sum() / 100)
    torch.testing.assert_close(loss_of(case, num_tokens=torch.tensor(100))[0], per_sequence.sum() / 100)
    torch.testing.assert_close(loss_of(case, aggregation="sequence_sum", num_sequences=6)[0], per_sequence.sum() / 6)


def test_each_loss_type_is_its_published_formula(case):
    a, m = case["advantages"][:, None], case["mask"]
    ratio = (case["logp"] - case["old"]).exp()
    mean = lambda each: (each * m).sum() / m.sum()  # noqa: E731
    torch.testing.assert_close(loss_of(case, epsilon_high=0.28)[0], mean(clipped_surrogate(case, high=0.28)))
    cispo = -ratio.clamp(max=1.2) * a * case["logp"]
    torch.testing.assert_close(loss_of(case, loss_type="cispo")[0], mean(cispo))
    steepness = torch.where(a > 0, 1.0, 1.05).double()
    sapo = -a * 4 / steepness * torch.sigmoid(steepness * (ratio - 1))
    torch.testing.assert_close(loss_of(case, loss_type="sapo", aggregation="token_mean")[0], mean(sapo))
    torch.testing.assert_close(loss_of(case, loss_type="reinforce")[0], mean(-a * case["logp"]))
    sequence_ratio = (((case["logp"] - case["old"]) * m).sum(1) / m.sum(1)).exp()[:, None]
    gspo = clipped_surrogate(case, ratio=sequence_ratio)
    torch.testing.assert_close(loss_of(case, loss_type="gspo")[0], ((gspo * m).sum(1) / m.sum(1)).mean())
    dual = torch.where(a < 0, torch.minimum(clipped_surrogate(case), -1.3 * a), clipped_surrogate(case))
    torch.testing.assert_close(loss_of(case, delta=1.3)[0], mean(dual))


def test_each_sequence_loss_is_its_published_formula(case):
    a, m, gap = case["advantages"], case["mask"], case["logp"] - case["old"]
    lengths = m.sum(1)
    mean_ratio = ((gap * m).sum(1) / lengths).exp()
    bounds = {"epsilon_low": 0.04, "epsilon_high": 0.02}
    each = -torch.minimum(mean_ratio * a, mean_ratio.clamp(1 - 0.04, 1 + 0.02) * a)
    assert (mean_ratio > 1.02).any()
    torch.testing.assert_close(loss_of(case, loss_type="luspo", **bounds)[0], (each * lengths).mean())

    product = (gap * m).sum(1).exp()
    power, decay = torch.where(a >= 0, 2.0, 3.0).double(), torch.where(a >= 0, 3.0, 2.0).double()
    weight = decay.exp() * product**power * (-decay * product).exp()
    vespo = -(weight * a)[:, None] * case["logp"]
    torch.testing.assert_close(loss_of(case, loss_type="vespo")[0], (vespo * m).sum() / m.sum())

    one_sided = torch.where(a[:, None] > 0, gap.clamp(max=0.02), gap.clamp(min=-0.01))
    gmpo = -a * ((one_sided * m).sum(1) / lengths).exp()
    loss, metrics = loss_of(case, loss_type="gmpo", epsilon_low=0.01, epsilon_high=0.02)
    torch.testing.assert_close(loss, gmpo.mean())
    clipped = m & (one_sided != gap)
    assert clipped.any()
    torch.testing.assert_close((metrics["clip_low"] + metrics["clip_high"]).float(), clipped.sum() / m.sum())


def test_vespo_stops_the_gradient_at_its_weight(case):
    leaf = case["logits"].clone().requires_grad_()
    options = {"vespo_power_pos": 1.5, "vespo_power_neg": 2.5, "vespo_decay_pos": 0.7, "vespo_decay_neg": 0.4}
    loss_of({**case, "logits": leaf}, loss_type="vespo", aggregation="sum", **options)[0].backward()
    a, m = case["advantages"][:, None], case["mask"]
    product = ((case["logp"] - case["old"]) * m).sum(1, keepdim=True).exp()
    weight = torch.where(a >= 0, product**1.5 * (0.7 * (1 - product)).exp(), product**2.5 * (0.4 * (1 - product)).exp())
    p = (case["logits"] / TEMPERATURE).softmax(-1)
    onehot = torch.nn.functional.one_hot(case["ids"], V)
    torch.testing.assert_close(leaf.grad, (-weight * a * m)[..., None] * (onehot - p) / TEMPERATURE)


def test_without_old_logprobs_every_sequence_loss_has_the_gradient_of_reinforce(case):
    def gradient(**options):
        leaf = case["logits"].clone().requires_grad_()
        loss_of({**case, "logits": leaf, "old": None}, **options)[0].backward()
        return leaf.grad

    for loss_type in ("gspo", "luspo", "vespo", "gmpo"):
        got = gradient(loss_type=loss_type, aggregation="sequence_mean")
        torch.testing.assert_close(got, gradient(loss_type="reinforce", aggregation="sequence_mean"))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_is_its_estimator(case, kind):
    d = case["ref"] - case["logp"]
    kl = {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - d - 1}[kind]
    loss, metrics = loss_of(case, ref_logprobs=case["ref"], beta=0.1, kl_estimator=kind)
    mean_kl = (kl * case["mask"]).sum() / case["mask"].sum()
    torch.testing.assert_close(loss - loss_of(case)[0], 0.1 * mean_kl)
    torch.testing.assert_close(metrics["kl_ref"], mean_kl)


def test_corrections_weigh_the_policy_term_but_not_the_kl(case):
    m = case["mask"]
    rho = (case["old"] - case["rollout"]).exp()
    whole = ((case["old"] - case["rollout"]) * m).sum(1).exp()[:, None].expand(B, T)
    cut = {
        "token_truncate": rho.clamp(max=1.1),
        "token_mask": rho.where((rho <= 1.1) & (rho >= 0.9), 0),
        "sequence_truncate": whole.clamp(max=1.1),
        "sequence_mask": whole.where((whole <= 1.1) & (whole >= 0.9), 0),
    }
    kl = {"ref_logprobs": case["ref"], "beta": 0.1}
    kl_part = loss_of(case, **kl)[0] - loss_of(case)[0]
    for name, weights in cut.items():
        loss, metrics = loss_of(
            case, correction=name, rollout_logprobs=case["rollout"], correction_max=1.1, correction_min=0.9, **kl
        )  # fmt: skip
        torch.testing.assert_close(loss, (weights * clipped_surrogate(case) * m).sum() / m.sum() + kl_part)
        torch.testing.assert_close(metrics["correction_mean"], (weights * m).sum() / m.sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epsilon_low": 0.05, "epsilon_high": 0.1, "delta": 1.2},
        {"loss_type": "sapo"},
        {"loss_type": "gspo"},
        {"loss_type": "luspo", "epsilon_high": 0.02},
        {"loss_type": "gmpo", "epsilon_low": 0.01},
        {"loss_type": "gmpo", "epsilon_high": 0.01, "aggregation": "token_mean"},
        {"loss_type": "reinforce", "entropy_coef": 0.3},
        {"beta": 0.3, "kl_estimator": "k3"},
        {"correction": "sequence_truncate"},
    ],
)
def test_gradients_match_finite_differences(case, options):
    if "beta" in options:
        options = {**options, "ref_logprobs": case["ref"]}
    if "correction" in options:
        options = {**options, "rollout_logprobs": case["rollout"]}
    leaf = case["logits"].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss_of({**case, "logits": x}, **options)[0], leaf)


def test_cispo_stops_the_gradient_at_the_ratio(case):
    leaf = case["logits"].clone().requires_grad_()
    loss_of({**case, "logits": leaf}, loss_type="cispo", aggregation="sum")[0].backward()
    ratio = (case["logp"] - case["old"]).exp().clamp(max=1.2)
    g = -(ratio * case["advantages"][:, None] * case["mask"])
    p = (case["logits"] / TEMPERATURE).softmax(-1)
    onehot = torch.nn.functional.one_hot(case["ids"], V)
    torch.testing.assert_close(leaf.grad, g[..., None] * (onehot - p) / TEMPERATURE)


def test_metrics_are_what_they_are_called(case):
    ratio, a, m = (case["logp"] - case["old"]).exp(), case["advantages"][:, None], case["mask"]
    _, metrics = loss_of(case, epsilon_low=0.1, epsilon_high=0.15)
    share = lambda where: (where & m).sum() / m.sum()  # noqa: E731
    assert set(metrics) == set(METRICS)
    assert metrics["tokens"] == m.sum()
    torch.testing.assert_close(metrics["ratio_mean"], ratio[m].mean())
    torch.testing.assert_close(metrics["ratio_max"], ratio[m].max())
    torch.testing.assert_close(metrics["clip_low"].float(), share((ratio < 0.9) & (a < 0)))
    torch.testing.assert_close(metrics["clip_high"].float(), share((ratio > 1.15) & (a > 0)))
    logp = (case["logits"] / TEMPERATURE).log_softmax(-1)
    torch.testing.assert_close(metrics["entropy"], -(logp.exp() * logp).sum(-1)[m].mean())
    torch.testing.assert_close(metrics["ess"], ratio[m].sum() ** 2 / (m.sum() * (ratio[m] ** 2).sum()))
    assert metrics["clip_delta"] == 0


def test_packed_and_padded_agree(case):
    m = case["mask"]
    cu = torch.tensor([0, 5, 8, 9])
    by_sequence = [(loss_type, {}) for loss_type in ("gspo", "luspo", "vespo", "gmpo")]
    for loss_type, options in (("grpo", {"aggregation": "sequence_mean"}), *by_sequence, ("dr_grpo", {"max_tokens": 5})):
        want, _ = loss_of(case, loss_type=loss_type, **options)
        packed, _ = grpo_loss(
            case["logits"][m], case["ids"][m], advantages=case["advantages"], old_logprobs=case["old"][m], cu_seqlens=cu,
            temperature=TEMPERATURE, loss_type=loss_type, **options,
        )  # fmt: skip
        torch.testing.assert_close(packed, want)


def test_masked_positions_may_hold_anything(case):
    m = case["mask"]
    want, _ = loss_of(case)
    logits, ids, old = case["logits"].clone(), case["ids"].clone(), case["old"].clone()
    logits[~m], ids[~m], old[~m] = math.nan, -100, math.nan
    leaf = logits.requires_grad_()
    loss, _ = loss_of({**case, "logits": leaf, "ids": ids, "old": old})
    loss.backward()
    torch.testing.assert_close(loss, want)
    assert (leaf.grad[~m] == 0).all()


def test_an_active_id_outside_the_vocabulary_is_an_error(case):
    for bad in (-1, V):
        ids = case["ids"].clone()
        ids[0, 0] = bad
        with pytest.raises(UsageError, match="outside"):
            loss_of({**case, "ids": ids})


def test_extreme_ratios_stay_finite(case):
    for shift in (-1e4, 1e4, math.inf, -math.inf):
        leaf = case["logits"].clone().requires_grad_()
        advantages = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
        loss, metrics = loss_of({**case, "logits": leaf, "old": case["old"] + shift, "advantages": advantages})
        loss.backward()
        assert loss.isfinite()
        assert leaf.grad.isfinite().all()
        assert metrics["ratio_max"] <= math.exp(20) * (1 + 1e-12)


def test_logits_of_minus_infinity(case):
    logits = case["logits"].clone()
    logits[..., 3:5] = -math.inf
    ids = case["ids"].where((case["ids"] < 3) | (case["ids"] > 4), 0)
    leaf = logits.requires_grad_()
    loss, metrics = loss_of({**case, "logits": leaf, "ids": ids}, entropy_coef=0.1)
    loss.backward()
    assert loss.isfinite()
    assert metrics["entropy"].isfinite()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_type": "vanilla"}, "loss_type"),
        ({"aggregation": "mean"}, "aggregation"),
        ({"kl_estimator": "k4"}, "kl_estimator"),
        ({"beta": 0.1}, "ref_logprobs"),
        ({"correction": "token_mask"}, "rollout_logprobs"),
        ({"delta": 1.1}, "delta"),
        ({"epsilon_low": 1.5}, "epsilon_low"),
        ({"loss_type": "dr_grpo"}, "max_tokens"),
        ({"loss_type": "vespo", "vespo_decay_pos": 0.0}, "vespo_decay_pos"),
        ({"loss_type": "vespo", "correction": "token_mask", "rollout_logprobs": torch.zeros(B, T)}, "vespo"),
        ({"advantages": torch.zeros(B + 1)}, "advantages"),
        ({"old_logprobs": torch.zeros(B, T + 1)}, "old_logprobs"),
        ({"cu_seqlens": torch.tensor([0, 5])}, "cu_seqlens"),
    ],
)
def test_wrong_options_say_what_is_wrong(case, options, message):
    with pytest.raises(UsageError, match=message):
        loss_of(case, **options)


def test_temperature_has_no_default_and_must_be_positive(case):
    with pytest.raises(TypeError, match="temperature"):
        grpo_loss(case["logits"], case["ids"], advantages=case["advantages"])
    with pytest.raises(UsageError, match="temperature"):
        grpo_loss(case["logits"], case["ids"], advantages=case["advantages"], temperature=0.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(2, 9), st.floats(0.3, 3), st.integers(0, 2**31), st.booleans())
def test_gradient_rows_sum_to_zero_and_shifting_logits_changes_nothing(b, t, v, temperature, seed, old_given):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(b, t, v, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, v, (b, t), generator=generator)
    options = {"advantages": torch.randn(b, generator=generator, dtype=torch.float64), "entropy_coef": 0.1}
    if old_given:
        options["old_logprobs"] = -torch.rand(b, t, generator=generator, dtype=torch.float64)
    leaf = logits.clone().requires_grad_()
    loss, metrics = grpo_loss(leaf, ids, temperature=temperature, **options)
    loss.backward()
    torch.testing.assert_close(leaf.grad.sum(-1), torch.zeros(b, t, dtype=torch.float64), atol=1e-12, rtol=0)
    moved, _ = grpo_loss(logits + torch.randn(b, t, 1, dtype=torch.float64), ids, temperature=temperature, **options)
    torch.testing.assert_close(moved, loss.detach())
    assert 0 < metrics["ess"] <= 1 + 1e-12
    assert -1e-12 <= metrics["entropy"] <= math.log(v) + 1e-12


def test_linear_loss_is_the_loss_of_its_logits(case):
    hidden = torch.randn(B, T, 6, dtype=torch.float64)
    weight = torch.randn(V, 6, dtype=torch.float64)
    options = {"advantages": case["advantages"], "mask": case["mask"], "temperature": TEMPERATURE}
    want, _ = grpo_loss(hidden @ weight.t(), case["ids"], **options)
    loss, _ = linear_grpo_loss(hidden, weight, case["ids"], **options)
    torch.testing.assert_close(loss, want)
    with pytest.raises(UsageError, match="width"):
        linear_grpo_loss(hidden, weight[:, :4], case["ids"], **options)


def test_linear_cross_entropy_is_pytorchs():
    hidden, weight = torch.randn(7, 6, dtype=torch.float64), torch.randn(V, 6, dtype=torch.float64)
    targets = torch.tensor([1, 2, -100, 4, 5, -100, 0])
    logits = hidden @ weight.t()
    loss, metrics = linear_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, targets), check_dtype=False)
    weights = torch.rand(7, dtype=torch.float64)
    loss, _ = linear_cross_entropy(hidden, weight, targets, token_weights=weights, num_tokens=10)
    each = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(loss, (each * weights).sum() / 10)
    assert metrics["tokens"] == 5


def test_token_logprobs_from_logits_and_from_hidden_states(case):
    logp, entropy = token_logprobs(case["logits"], case["ids"], temperature=TEMPERATURE, mask=case["mask"])
    torch.testing.assert_close(logp, case["logp"].where(case["mask"], 0))
    assert (entropy[~case["mask"]] == 0).all()
    hidden, weight = torch.randn(B, T, 6), torch.randn(V, 6)
    from_hidden, _ = token_logprobs(hidden, case["ids"], temperature=1.0, lm_head_weight=weight)
    torch.testing.assert_close(from_hidden, token_logprobs(hidden @ weight.t(), case["ids"], temperature=1.0)[0])


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize(
    "options", [{}, {"correction": "sequence_mask"}, {"importance_sampling": "sequence"}, {"aggregation": "sequence_mean"}]
)
def test_rows_without_a_token_give_zero(shape, options):
    """A micro-batch may have none, and its sequences still have an advantage each."""
    logits, none = torch.zeros(*shape, 7, requires_grad=True), torch.zeros(shape)
    ids, advantages = torch.zeros(shape, dtype=torch.long), torch.ones(shape[0])
    loss, metrics = grpo_loss(
        logits, ids, advantages=advantages, temperature=1.0, old_logprobs=none, rollout_logprobs=none, **options
    )
    loss.backward()
    assert loss == metrics["tokens"] == 0
    assert logits.grad is not None
    assert logits.grad.shape == logits.shape
