"""Every public loss against its well-known equivalent, where one is installed: TRL's trainer, TRL's kernels, Liger's.

TRL's formulas run anywhere; what needs a GPU is marked `gpu`.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from kernrl.kernels import grpo_loss, linear_grpo_loss, ppo_loss, ratio_kl, token_logprobs

torch.set_num_threads(1)

pytestmark = pytest.mark.slow  # importing TRL takes two CPU seconds
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
B, T = 4, 24
TEMPERATURE, BETA = 0.8, 0.04


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def case(request):
    # On a GPU a vocabulary wide enough for the kernels that hold a row on chip would need 16-bit logits; float32 shows more.
    return make_case(request.param, 32768 if request.param == "cuda" else 500)


def make_case(device: str, vocab: int) -> SimpleNamespace:
    """Logits [B, T, V] in float32 and log-probs near the policy's own, so that some ratios clip and most do not."""
    generator = torch.Generator(device).manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, device=device)  # noqa: E731
    logits = draw(B, T, vocab) * 2
    ids = torch.randint(0, vocab, (B, T), generator=generator, device=device)
    logp = (logits / TEMPERATURE).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    mask = torch.rand(B, T, generator=generator, device=device) < 0.8
    noisy = {name: logp + 0.2 * draw(B, T) for name in ("old", "ref", "rollout")}
    return SimpleNamespace(logits=logits, ids=ids, mask=mask, advantages=draw(B), **noisy)


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30)).item()


def trl_loss(case, logits, *, correction=None, **changes):
    """What `trl.GRPOTrainer` makes of log-probs and entropies that plain PyTorch computes from `logits`."""
    trainer = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer
    all_logp = (logits / TEMPERATURE).log_softmax(-1)
    logp = all_logp.gather(-1, case.ids[..., None])[..., 0]
    entropy = -(all_logp.exp() * all_logp).sum(-1)
    settings = {
        "loss_type": "grpo", "beta": BETA, "epsilon_low": 0.2, "epsilon_high": 0.28, "delta": None, "entropy_coef": 0.0,
        "importance_sampling_level": "token", "max_completion_length": 40, **changes,
    }  # fmt: skip
    args = SimpleNamespace(
        use_bias_correction_kl=False, delta=settings["delta"], sapo_temperature_pos=1.0, sapo_temperature_neg=1.05,
        steps_per_generation=1, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0,
    )  # fmt: skip
    if settings["loss_type"] == "gmpo":
        trainer = pytest.importorskip("trl.experimental.gmpo").GMPOTrainer
    whole = lambda x, **_: x  # noqa: E731
    me = SimpleNamespace(
        **settings, args=args, model=SimpleNamespace(training=False), current_gradient_accumulation_steps=1,
        accelerator=SimpleNamespace(num_processes=1, sync_gradients=True, gather=whole, reduce=whole),
        get_gamma_weights=trainer.get_gamma_weights,
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_adaptive_entropy=False,
        use_vllm=correction is not None, vllm_importance_sampling_correction=True,
        _metrics=defaultdict(lambda: defaultdict(list)), _entropy_bonus_enabled=settings["entropy_coef"] != 0,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropy, None),
    )  # fmt: skip
    prompt = torch.zeros_like(case.ids[:, :1])
    inputs = {
        "prompt_ids": prompt, "prompt_mask": prompt, "completion_ids": case.ids, "completion_mask": case.mask.int(),
        "advantages": case.advantages, "old_per_token_logps": case.old, "ref_per_token_logps": case.ref,
        "num_items_in_batch": case.mask.sum(), "importance_sampling_ratio": correction,
    }  # fmt: skip
    return trainer._compute_loss(me, None, inputs)


# (ours, TRL's) of the same loss; TRL's cispo bounds the ratio by epsilon_high itself.
TRL = {
    "grpo": ({"aggregation": "sequence_mean"}, {}),
    "bnpo": ({}, {}),
    "dapo": ({"delta": 1.6}, {"delta": 1.6}),
    "dr_grpo": ({"max_tokens": 40}, {}),
    "cispo": ({}, {"epsilon_high": 1.28}),
    "sapo": ({}, {}),
    "luspo": ({}, {"importance_sampling_level": "sequence"}),
    "vespo": ({}, {}),
    "gmpo": ({"epsilon_low": 0.1, "epsilon_high": 0.15}, {"epsilon_low": 0.1, "epsilon_high": 0.15}),
}


def our_options(case, loss_type, **changes):
    return {
        "advantages": case.advantages, "old_logprobs": case.old, "ref_logprobs": case.ref, "beta": BETA, "mask": case.mask,
        "epsilon_high": 0.28, "loss_type": loss_type, **changes,
    }  # fmt: skip


def compare_with_trl(case, ours, **theirs):
    leaf, exact = case.logits.clone().requires_grad_(), case.logits.double().requires_grad_()
    loss, _ = grpo_loss(leaf * 1, case.ids, temperature=TEMPERATURE, **ours)
    loss.backward()
    want = trl_loss(case, exact, **theirs)
    want.backward()
    torch.testing.assert_close(loss.double(), want, rtol=2e-5, atol=1e-6)
    assert relative(leaf.grad, exact.grad) < 2e-5


@pytest.mark.parametrize("loss_type", TRL)
def test_agrees_with_trl(case, loss_type):
    ours, theirs = TRL[loss_type]
    compare_with_trl(case, our_options(case, loss_type, **ours), loss_type=loss_type, **theirs)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_sequence_ratios_agree_with_trl(case, aggregation):
    kind = {"sequence_mean": "grpo", "token_mean": "bnpo"}[aggregation]
    ours = our_options(case, "gspo", aggregation=aggregation, epsilon_low=0.02, epsilon_high=0.03)
    compare_with_trl(
        case, ours, loss_type=kind, importance_sampling_level="sequence", epsilon_low=0.02, epsilon_high=0.03
    )  # fmt: skip


def test_the_entropy_bonus_agrees_with_trl(case):
    compare_with_trl(case, our_options(case, "bnpo", entropy_coef=0.05), loss_type="bnpo", entropy_coef=0.05)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_corrections_agree_with_trl(case, level, kind):
    gap = (case.old - case.rollout).where(case.mask, 0.0)
    rho = (gap if level == "token" else gap.sum(1, keepdim=True)).exp()
    rho = rho.clamp(max=1.1) if kind == "truncate" else rho.masked_fill((rho > 1.1) | (rho < 0.9), 0.0)
    ours = our_options(
        case, "bnpo", correction=f"{level}_{kind}", correction_max=1.1, correction_min=0.9, rollout_logprobs=case.rollout
    )  # fmt: skip
    compare_with_trl(case, ours, loss_type="bnpo", correction=rho)


@pytest.mark.parametrize("loss_type", TRL)
def test_ppo_loss_agrees_with_trl(case, loss_type):
    ours, theirs = TRL[loss_type]
    logp, _ = token_logprobs(case.logits, case.ids, temperature=TEMPERATURE)
    options = our_options(case, loss_type, **ours)
    old, advantages, mask = options.pop("old_logprobs"), options.pop("advantages"), options.pop("mask")
    loss, _ = ppo_loss(logp, old, advantages, mask, **options)
    want = trl_loss(case, case.logits.double(), loss_type=loss_type, **theirs)
    torch.testing.assert_close(loss.double(), want, rtol=2e-5, atol=1e-6)


def test_ratio_kl_agrees_with_trl(case):
    """TRL's loss with advantages of -1, nothing clipped and weights of one half and one is ratio / 2 + KL."""
    other = case.logits + 0.1 * torch.randn_like(case.logits)
    ref, _ = token_logprobs(other, case.ids, temperature=TEMPERATURE)
    ratio, kl = ratio_kl(case.logits, other, case.ids, case.mask, case.old, temperature=TEMPERATURE)
    plain = SimpleNamespace(**{**vars(case), "ref": ref, "advantages": -torch.ones_like(case.advantages) / 2})
    want = trl_loss(plain, case.logits.double(), loss_type="bnpo", beta=1.0, epsilon_low=0.999, epsilon_high=1e6)
    got = (ratio / 2 + kl).sum() / case.mask.sum()
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-6)


LIGER = {
    "grpo": ({"epsilon_high": 0.28, "aggregation": "sequence_mean"}, {"high": 0.28}),
    "bnpo": ({}, {"high": 0.28}),
    "dr_grpo": ({"max_tokens": 40}, {"high": 0.28, "max_completion_length": 40}),
    "dapo": ({"delta": 1.6}, {"high": 0.28, "delta": 1.6}),
    "cispo": ({}, {"high": 1.28}),
    "sapo": ({}, {"high": 0.28}),
    "gspo": ({}, {"high": 0.28, "importance_sampling_level": "sequence"}),
}


@pytest.mark.parametrize("loss_type", LIGER)
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_agrees_with_ligers_kernel(loss_type):
    liger = pytest.importorskip("liger_kernel.transformers.grpo_loss")
    case = make_case("cuda", 32768)
    ours, theirs = LIGER[loss_type]
    leaf = case.logits.clone().requires_grad_()
    loss, _ = grpo_loss(leaf * 1, case.ids, temperature=TEMPERATURE, **our_options(case, loss_type, **ours))
    loss.backward()
    padded = torch.cat([case.logits, case.logits[:, :1]], 1).requires_grad_()
    options = {name: value for name, value in theirs.items() if name != "high"}
    want, _ = liger.triton_grpo_loss(
        padded, case.old, case.ref, case.ids, case.advantages, case.mask.int(), temperature=TEMPERATURE, beta=BETA,
        eps_low=0.2, eps_high=theirs["high"], inplace=False, reduce=True,
        loss_type="grpo" if loss_type == "gspo" else loss_type, **options,
    )  # fmt: skip
    want.backward()
    torch.testing.assert_close(loss, want, rtol=1e-4, atol=1e-6)
    assert padded.grad is not None
    assert relative(leaf.grad, padded.grad[:, :-1]) < 1e-4


@pytest.mark.parametrize("loss_type", LIGER)
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_agrees_with_ligers_linear_loss(loss_type):
    liger = pytest.importorskip("liger_kernel.chunked_loss")
    case = make_case("cuda", 5008)
    ours, theirs = LIGER[loss_type]
    generator = torch.Generator("cuda").manual_seed(1)
    hidden = torch.randn(B, T, 64, generator=generator, device="cuda")
    weight = torch.randn(5008, 64, generator=generator, device="cuda") * 0.1
    logp, _ = token_logprobs(hidden, case.ids, temperature=TEMPERATURE, lm_head_weight=weight)
    case = SimpleNamespace(**{**vars(case), "old": logp + case.old * 0.02, "ref": logp - case.ref * 0.02})
    grads = []
    for fused in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if fused:
            options = our_options(case, loss_type, **ours)
            loss, _ = linear_grpo_loss(h, w, case.ids, temperature=TEMPERATURE, chunk_rows=32, **options)
        else:
            options = {name: value for name, value in theirs.items() if name != "high"}
            module = liger.LigerFusedLinearGRPOLoss(
                beta=BETA, epsilon_low=0.2, epsilon_high=theirs["high"], temperature=TEMPERATURE, compiled=False,
                loss_type="grpo" if loss_type == "gspo" else loss_type, **options,
            )  # fmt: skip
            loss = module(
                h, w, case.ids, case.mask.float(), case.advantages, ref_per_token_logps=case.ref, old_per_token_logps=case.old
            )[0]  # fmt: skip
        loss.backward()
        grads.append((loss.detach(), h.grad, w.grad))
    (loss, *ours_grad), (want, *liger_grad) = grads
    torch.testing.assert_close(loss, want, rtol=1e-4, atol=1e-6)
    assert all(relative(a, b) < 2e-4 for a, b in zip(ours_grad, liger_grad, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_log_probabilities_agree_with_trls_kernels():
    kernels = pytest.importorskip("trl.kernels")
    case = make_case("cuda", 8192)
    generator = torch.Generator("cuda").manual_seed(1)
    hidden = torch.randn(B * T, 64, generator=generator, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(8192, 64, generator=generator, device="cuda", dtype=torch.bfloat16) * 0.3
    ids = case.ids.view(-1)
    with torch.no_grad():
        want, entropy, *_ = kernels.ChunkedLogProbFunction.apply(hidden, weight, None, ids, 0.9, 4096)
        logp, ours = token_logprobs(hidden, ids, temperature=0.9, lm_head_weight=weight)
    torch.testing.assert_close(logp, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, entropy, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        want, entropy = kernels.selective_log_softmax_and_entropy(case.logits, case.ids, TEMPERATURE)[:2]
    logp, ours = token_logprobs(case.logits, case.ids, temperature=TEMPERATURE)
    torch.testing.assert_close(logp, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, entropy, rtol=1e-4, atol=1e-4)
