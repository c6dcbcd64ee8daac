"""The policy loss over tokens whose log-probs exist, in one launch: loss, metrics and, where wanted, the gradient.

Programs share out the tokens, or the sequences where anything is asked of them, and write partial sums; the last to finish
adds those up. Every sum is taken in a fixed order, so results are the same from run to run: atomics only count programs, and
the counters are back at 0 when the launch ends. Nothing waits for the GPU.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kernrl.kernels.launch import Launch, Variant, multiprocessors, scratch
from kernrl.kernels.over_tokens.token_kernel import SUMS, _tokens_kernel
from kernrl.kernels.over_tokens.token_loss import METRICS, LossConfig
from kernrl.kernels.over_tokens.tokens import Batch, read_options

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


def _launch(n: int, device: torch.device, batch: Batch, config: LossConfig) -> tuple[Launch, bool]:
    """(the launch over `batch`'s N tokens, whether it goes by sequences)."""
    unit_advantage = batch.tokens_per_advantage == 0
    by_sequence = batch.by_length or unit_advantage or (config.by_sequence and batch.rho is None)
    block, units, tokens_per_unit = BLOCK, batch.sequences, batch.tokens_per_sequence
    if not by_sequence:
        units, tokens_per_unit = -(-n // BLOCK), BLOCK
    elif 0 < tokens_per_unit <= 256:
        block = 256  # a sequence that fits one tile of it
    programs = max(1, min(units, PER_SM * multiprocessors(device), MOST_PROGRAMS))
    tiles = -(-units // programs)
    held = 1 << (tiles - 1).bit_length() if batch.own_count and not by_sequence and 0 < tiles <= MOST_HELD else 0
    most_programs = 128 if programs <= 128 else MOST_PROGRAMS
    variant = _variant(config, by_sequence, batch.by_length, batch.own_count, unit_advantage, block, held, most_programs)
    integers = n, units, tokens_per_unit, batch.tokens_per_advantage
    return Launch(variant, programs, integers, (batch.weight_scale, *config.scalars)), by_sequence


def reduce_tokens(
    logprobs: Tensor, entropy: Tensor | None, batch: Batch, config: LossConfig, g: Tensor | None = None, h: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(loss [], metrics [len(METRICS) + 1]) float32 on the GPU, the last metric being the share of all clipped tokens.

    `g` and `h`, where given, receive dloss/dlogp and dloss/dentropy, of `logprobs`' shape; `g` in its own dtype.
    """
    launch, by_sequence = _launch(logprobs.numel(), logprobs.device, batch, config)
    rest = (
        batch.mask, batch.advantages, batch.weight, batch.rho, batch.count, batch.old_logprobs, batch.ref_logprobs,
        batch.rollout_logprobs, batch.cu_seqlens if by_sequence else None,
    )  # fmt: skip
    return _run(launch.once, logprobs, entropy, g, h, rest)


def _run(
    launch: Callable[..., None], logprobs: Tensor, entropy: Tensor | None, g: Tensor | None, h: Tensor | None,
    rest: Sequence[Tensor | None],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    device = logprobs.device
    loss = torch.empty((), dtype=torch.float32, device=device)
    metrics = torch.empty(len(METRICS) + 1, dtype=torch.float32, device=device)
    launch(loss, metrics, g, h, *scratch(_workspace, device), logprobs, entropy, *rest)
    return loss, metrics


# The options of `ppo_loss` that are tensors of a launch, in its order; None for what it never has.
_GIVEN = (
    "mask", "advantages", None, None, "num_tokens", "old_logprobs", "ref_logprobs", "rollout_logprobs", "cu_seqlens"
)  # fmt: skip
_launches: dict[tuple, tuple[Launch, list[str | None]]] = {}


def reduce_given(logprobs: Tensor, given: dict[str, Any], g: Tensor | None) -> tuple[Tensor, Tensor]:
    """`reduce_tokens` of contiguous `logprobs` and the options of `ppo_loss`. What is made of options like these is kept: to
    read them anew would cost the host more than the launch."""
    key = (
        logprobs.shape, logprobs.dtype, logprobs.get_device(), g is None,
        *[(name, x.shape, x.dtype, x.is_contiguous()) if isinstance(x, Tensor) else (name, x) for name, x in given.items()],
    )  # fmt: skip
    known = _launches.get(key)
    if known is None:
        batch, config = read_options(logprobs.shape, 1.0, given)
        launch, by_sequence = _launch(logprobs.numel(), logprobs.device, batch, config)
        rest = (
            batch.mask, batch.advantages, None, None, batch.count, batch.old_logprobs, batch.ref_logprobs,
            batch.rollout_logprobs, batch.cu_seqlens if by_sequence else None,
        )  # fmt: skip
        if all(x.is_contiguous() for x in given.values() if isinstance(x, Tensor)):
            if len(_launches) >= 256:  # a number of tokens, say, that is another one each time
                _launches.clear()
            names = [None if x is None else name for name, x in zip(_GIVEN, rest, strict=True)]
            _launches[key] = launch, names
        return _run(launch.once, logprobs, None, g, None, rest)
    launch, names = known
    return _run(launch, logprobs, None, g, None, [None if name is None else given[name] for name in names])
