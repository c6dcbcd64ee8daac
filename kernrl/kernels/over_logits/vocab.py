"""Kernels over rows of logits: per-row statistics, and the gradient of any loss of them.

With y_v = z_v / temperature, a the row's token, p = softmax(y):

    logp    = y_a - lse(y)                    H = -sum_v p_v ln p_v
    dL/dz_v = (g (1[v = a] - p_v) - h p_v (ln p_v + H)) / temperature,      g = dL/dlogp, h = dL/dH

so these kernels know a loss by (g, h) alone. Their numerics, here and in `resident`:

- Sums run in float32 relative to y_a, not to the maximum: one pass, no rescaling, and logp = -log1p(S / e_a) from S, the
  sum over the *other* tokens, so that log-probs and 1 - p_a stay accurate as p_a -> 1. Where the action is far from likely
  (p_a < 1e-12, or y_a = -inf) the row is summed again relative to its maximum.
- Every gradient is rounded once: that of the action's logit is made in float32 and stored over the row's.
- Loads and stores move 16 aligned bytes (a group). A row that starts anywhere is framed by the 128-byte lines that it
  touches: what a frame holds of the neighbours is left out of the sums, and the row's first and last group are stored apart.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from kernrl.kernels.launch import Launch, Variant
from kernrl.kernels.over_logits import resident
from kernrl.kernels.over_logits.id_check import invalid_id_flag
from kernrl.kernels.over_logits.vocab_kernels import _gradient_kernel, _loss_kernel, _stats_kernel
from kernrl.kernels.over_tokens.token_loss import LossConfig, Tokens

LOG2_E = math.log2(math.e)


def vocab_stats_reference(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(logp, entropy) [N] of `logits` [N, V], differentiable; float32, or float64 where the logits are."""
    y = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    all_logp = y.log_softmax(-1)
    # p ln p = 0 at p = 0: a logit of -inf must not make the row NaN.
    finite = all_logp.where(all_logp > -math.inf, 0.0)
    return all_logp.gather(-1, ids[:, None])[:, 0], -(all_logp.exp() * finite).sum(-1)


def tile_for(vocab: int, most: int, per_thread: int = 8) -> tuple[int, int]:
    """(elements, warps) of a row's tile, at most `most` elements; chosen by sweep on an H200. Eight elements a thread leave the
    kernels that sum enough registers for several rows an SM, and a short row in two tiles fills more of them."""
    block = max(256, min(most, 1 << (vocab - 1).bit_length() >> 1))
    return block, block // (32 * per_thread) or 1


def is_aligned(logits: Tensor) -> bool:
    """Whether every row starts a line."""
    return logits.shape[-1] * logits.element_size() % resident.LINE_BYTES == 0


def masked_rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x` [N, ..] with the rows that do not count at 0: NaN there would reach a gradient as NaN * 0."""
    return x if mask is None else x.where(mask[:, None], 0.0)


@lru_cache(maxsize=1024)
def variant(kernel, most: int, per_thread: int, vocab: int, *constants: tuple) -> Variant:
    """`kernel` with (name, value) `constants` and the tile of a row of `vocab`, its last constant."""
    block, warps = tile_for(vocab, most, per_thread)
    return Variant(kernel, {**dict(constants), "BLOCK": block}, num_warps=warps)


def vocab_stats(logits: Tensor, ids: Tensor, mask: Tensor | None, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(logp, entropy, c) of `logits` [.., V] on a GPU, float32 of ids' shape, with p_v = 2^(z_v log2(e) / temperature + c); 0
    where masked."""
    n, vocab = ids.numel(), logits.shape[-1]
    logp = torch.empty_like(ids, dtype=torch.float32)
    entropy, c = torch.empty_like(logp), torch.empty_like(logp)
    if n:
        tensors = (logits, ids, mask, invalid_id_flag(logits.device), logp, entropy, c)
        kernel = variant(_stats_kernel, 2048, 8, vocab, ("ALIGNED", is_aligned(logits)))
        kernel(n, tensors, (vocab,), (LOG2_E / temperature,))
    return logp, entropy, c


def vocab_gradient(
    out: Tensor, logits: Tensor, ids: Tensor, mask: Tensor | None, stats: tuple[Tensor, Tensor, Tensor], g: Tensor | None,
    h: Tensor | None, temperature: float,
) -> None:  # fmt: skip
    """Write dL/dlogits into `out` (which may be `logits` [.., V]), given `vocab_stats`' answer and g, h [N] float32."""
    n, vocab = ids.numel(), logits.shape[-1]
    if n:
        constants = ("ENTROPY_GRADIENT", h is not None), ("ALIGNED", is_aligned(logits))
        kernel = variant(_gradient_kernel, 4096, 16, vocab, *constants)
        kernel(n, (out, logits, ids, mask, *stats, g, h), (vocab,), (LOG2_E / temperature, 1 / temperature))


def row_results(n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Three [N] float32."""
    one = torch.empty(n, dtype=torch.float32, device=device)
    return one, torch.empty_like(one), torch.empty_like(one)


def vocab_loss(
    out: Tensor, logits: Tensor, tokens: Tokens, config: LossConfig, temperature: float,
    results: tuple[Tensor, Tensor, Tensor] | None = None, launches: dict[str, Launch] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(logp, entropy, g) [N] float32, in `results` where given; writes dloss/dlogits into `out` (which may be `logits` [.., V])
    in the same launch, which `launches` keeps.

    Rows that fit on chip go through `resident`, which reads and writes each logit once; others are read twice.
    """
    device = logits.device
    if results is None:
        results = row_results(tokens.ids.numel(), device)
    if tokens.ids.numel() == 0:
        return results
    launch = None if launches is None else launches.get("rows")
    if launch is None:
        launch = _loss_launch(logits, tokens, config, temperature)
        if launches is not None:
            launches["rows"] = launch
    tensors = (
        out, logits, tokens.ids, invalid_id_flag(device), *results, tokens.mask, tokens.advantages, tokens.weight,
        tokens.count, tokens.old_logprobs, tokens.ref_logprobs, tokens.correction,
    )  # fmt: skip
    if launch.variant.kernel is _loss_kernel:
        launch(*tensors)
    else:
        order = None if tokens.mask is None else torch.empty_like(tokens.ids, dtype=torch.int32)
        launch(*tensors, *resident.exchange(launch.variant, device), order)
    return results


def _loss_launch(logits: Tensor, tokens: Tokens, config: LossConfig, temperature: float) -> Launch:
    n, vocab = tokens.ids.numel(), logits.shape[-1]
    integers = vocab, tokens.tokens_per_advantage
    floats = LOG2_E / temperature, 1 / temperature, tokens.weight_scale, *config.scalars
    if layout := resident.layout_for(logits):
        return resident.loss_launch(layout, config, n, integers, floats, logits)
    constants = *config.constants.items(), ("ENTROPY_GRADIENT", config.entropy_coef != 0), ("ALIGNED", is_aligned(logits))
    return Launch(variant(_loss_kernel, 4096, 8, vocab, *constants), n, integers, floats)
