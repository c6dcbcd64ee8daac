"""Cases of the vocabulary-parallel losses, and what one process in float64 makes of them."""

import math

import torch

from kernrl.kernels import grpo_loss, linear_grpo_loss

B, T, V, H = 3, 6, 40, 12
TEMPERATURE = 0.7
OPTIONS = {
    "clip, k3, mask": {"old": True, "ref": True, "beta": 0.1, "epsilon_high": 0.1},
    "entropy, on policy": {"entropy_coef": 0.2},
    "gspo": {"old": True, "loss_type": "gspo", "epsilon_high": 0.05},
    "vespo": {"old": True, "loss_type": "vespo"},
    "gmpo": {"old": True, "loss_type": "gmpo", "epsilon_high": 0.05},
    "sequence correction": {"rollout": True, "correction": "sequence_truncate", "correction_max": 1.1},
}
HALVES, UNEVEN = (0, 20, 40), (0, 27, 40)


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_case(options: dict, dtype: torch.dtype, ends: tuple, linear: bool = False) -> dict:
    ids = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(1))
    ids[0, :4] = torch.tensor([0, ends[1] - 1, ends[1], V - 1])  # the edges of the shards
    inputs = draw(B, T, H if linear else V, seed=2)
    weight = draw(V, H, seed=3)
    if not linear:
        inputs[0, 4, : ends[1]] = -math.inf  # a shard with nothing in it
        inputs[0, 5, ids[0, 5]] = 25.0  # p_a -> 1
        inputs[1, 0, ids[1, 0]] = -60.0
        ids[0, 4] = V - 2
    inputs, weight = inputs.to(dtype), weight.to(dtype)
    logits = (inputs @ weight.t() if linear else inputs).double()
    logp = (logits / TEMPERATURE).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    mask = torch.tensor([6, 4, 1])[:, None] > torch.arange(T)
    ids[1, 5] = -100
    inputs[1, 4] = math.nan
    given = {f"{name}_logprobs": logp + 0.3 * draw(B, T, seed=4 + i) for i, name in enumerate(("old", "ref", "rollout"))}
    given = {name: value for name, value in given.items() if options.get(name.removesuffix("_logprobs"))}
    rest = {name: value for name, value in options.items() if name not in ("old", "ref", "rollout")}
    advantages = draw(B, seed=9)
    case = {
        "inputs": inputs, "ids": ids, "ends": ends,
        "options": {"advantages": advantages, "mask": mask, "temperature": TEMPERATURE, **given, **rest},
    }  # fmt: skip
    return {**case, "weight": weight, "chunk_rows": 16} if linear else case


def cases() -> dict[str, dict]:
    made = {f"{name}, float64": make_case(options, torch.float64, HALVES) for name, options in OPTIONS.items()}
    made |= {f"{name}, float32": make_case(options, torch.float32, UNEVEN) for name, options in OPTIONS.items()}
    made["bfloat16"] = make_case(OPTIONS["clip, k3, mask"], torch.bfloat16, HALVES)
    for dtype in (torch.float64, torch.float32):
        made[f"linear, {dtype}"] = make_case(OPTIONS["clip, k3, mask"], dtype, UNEVEN, linear=True)
        made[f"linear, entropy, {dtype}"] = make_case(OPTIONS["entropy, on policy"], dtype, HALVES, linear=True)
    for name, bad in (("too large", V), ("negative", -1)):
        made[name] = make_case({}, torch.float64, HALVES)
        made[name]["ids"][0, 0] = bad
    return made


def reference(case: dict) -> dict:
    inputs = case["inputs"].double().requires_grad_()
    if "weight" in case:
        weight = case["weight"].double().requires_grad_()
        loss, metrics = linear_grpo_loss(inputs, weight, case["ids"], **case["options"])
    else:
        weight = None
        loss, metrics = grpo_loss(inputs, case["ids"], **case["options"])
    loss.backward()
    return {"loss": loss.detach(), "metrics": metrics, "inputs": inputs.grad, "weight": None if weight is None else weight.grad}


TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2**-8}
