"""The policy loss over tokens whose log-probs exist, in one launch: loss, metrics and, where wanted, the gradient.

Programs share out the tokens, or the sequences where anything is asked of them, and write partial sums; the last to finish
adds those up. Every sum is taken in a fixed order, so results are the same from run to run: atomics only count programs, and
the counters are back at 0 when the launch ends. Nothing waits for the GPU.
"""

from functools import cache, lru_cache

import torch
from torch import Tensor

from kernrl.kernels.launch import Launch, Variant, multiprocessors, scratch
from kernrl.kernels.over_tokens.token_kernel import SUMS, _tokens_kernel
from kernrl.kernels.over_tokens.token_loss import METRICS, LossConfig
from kernrl.kernels.over_tokens.tokens import Batch, Plan

BLOCK, WARPS = 512, 4
PER_SM, MAX_REGISTERS = 4, 128  # programs; and of a thread, so that all programs run at once where they wait for one another
MOST_PROGRAMS = 512
MOST_HELD = 4  # tiles whose gradients a program can keep until it knows how many tokens count


def _workspace(device: torch.device) -> tuple[Tensor, ...]:
    """(partial sums, how many programs have counted and what, how many are done); the latter are 0 between launches."""
    partial = torch.empty(SUMS.value, MOST_PROGRAMS, dtype=torch.float32, device=device)
    return partial, torch.zeros(4, dtype=torch.int64, device=device), torch.zeros(4, dtype=torch.int32, device=device)


@lru_cache(maxsize=1024)
def _variant(
    config: LossConfig,
    by_sequence: bool,
    by_length: bool,
    own_count: bool,
    unit_advantage: bool,
    block: int,
    held: int,
    most_programs: int,
) -> Variant:
    return Variant(
        _tokens_kernel,
        {
            **config.constants, "TRUNCATE": config.correction.endswith("truncate"), "BY_SEQUENCE": by_sequence,
            "SEQUENCE_RATIO": config.sequence_ratio, "BY_LENGTH": by_length, "OWN_COUNT": own_count,
            "UNIT_ADVANTAGE": unit_advantage, "HELD": held, "BLOCK": block, "MOST_PROGRAMS": most_programs,
        },
        num_warps=WARPS if block == BLOCK else 2,
        maxnreg=MAX_REGISTERS,
        launch_cooperative_grid=own_count,  # programs wait for one another
    )  # fmt: skip


def _launch(logprobs: Tensor, plan: Plan, config: LossConfig) -> Launch:
    n, device = logprobs.numel(), logprobs.device
    unit_advantage, by_sequence = plan.tokens_per_advantage == 0, plan.by_sequence
    block, units, tokens_per_unit = BLOCK, plan.sequences, plan.tokens_per_sequence
    if not by_sequence:
        units, tokens_per_unit = -(-n // BLOCK), BLOCK
    elif 0 < tokens_per_unit <= 256:
        block = 256  # a sequence that fits one tile of it
    programs = max(1, min(units, PER_SM * multiprocessors(device), MOST_PROGRAMS))
    tiles = -(-units // programs)
    held = 1 << (tiles - 1).bit_length() if plan.own_count and not by_sequence and 0 < tiles <= MOST_HELD else 0
    most_programs = 128 if programs <= 128 else MOST_PROGRAMS
    variant = _variant(config, by_sequence, plan.by_length, plan.own_count, unit_advantage, block, held, most_programs)
    integers = n, units, tokens_per_unit, plan.tokens_per_advantage
    return Launch(variant, programs, integers, (plan.weight_scale, *config.scalars))


def reduce_tokens(
    logprobs: Tensor, entropy: Tensor | None, batch: Batch, config: LossConfig, g: Tensor | None = None, h: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(loss [], metrics [len(METRICS) + 1]) float32 on the GPU, the last metric being the share of all clipped tokens.

    `g` and `h`, where given, receive dloss/dlogp and dloss/dentropy, of `logprobs`' shape; `g` in its own dtype.
    """
    device, plan = logprobs.device, batch.plan
    launch = plan.launches.get("tokens")
    if launch is None:
        launch = plan.launches["tokens"] = _launch(logprobs, plan, config)
    like_loss, like_metrics = _results(device)
    loss, metrics = torch.empty_like(like_loss), torch.empty_like(like_metrics)
    launch(
        loss, metrics, g, h, *scratch(_workspace, device), logprobs, entropy, batch.mask, batch.advantages, batch.weight,
        batch.rho, batch.count, batch.old_logprobs, batch.ref_logprobs, batch.rollout_logprobs,
        batch.cu_seqlens if plan.by_sequence else None,
    )  # fmt: skip
    return loss, metrics


@cache
def _results(device: torch.device) -> tuple[Tensor, Tensor]:
    """A loss and metrics to make others like: less than half of what it costs the host to say their shape, dtype and device."""
    loss = torch.empty((), dtype=torch.float32, device=device)
    return loss, torch.empty(len(METRICS) + 1, dtype=torch.float32, device=device)
