"""The same losses from hidden states and the LM head's weight: the logits are never held whole.

Rows go in chunks. A chunk's logits are made, turned into their own gradient in place, and multiplied into dhidden and
dweight, all inside the forward pass: the three matrix products of a linear layer and nothing twice. Each product sums in
float32; dweight's sum over chunks is rounded after each where they are few, and float32 where they are many. Rows that
cannot move the loss are left out before the first product, and clipped rows (their gradient is 0) before the other two.
Both are exact; finding how many there are waits for the GPU, once a call and, where a loss clips, once a chunk.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernrl.errors import UsageError
from kernrl.kernels.grpo import grpo_loss_reference, needs_sequences, sequence_gradients
from kernrl.kernels.over_logits.chunks import rows_per_chunk
from kernrl.kernels.over_logits.vocab import masked_rows, row_results, vocab_gradient, vocab_loss, vocab_stats
from kernrl.kernels.over_logits.vocab_parallel import parallel_loss
from kernrl.kernels.over_tokens.token_loss import LOSS_TYPES, METRICS, LossConfig, Tokens
from kernrl.kernels.over_tokens.token_reduce import reduce_tokens
from kernrl.kernels.over_tokens.tokens import Batch, as_batch, expand, read_options, with_sequence_correction
from kernrl.kernels.scale import scale_

EXTRA_BYTES = 1190 << 20  # of memory above the inputs and the gradients: 4096 such rows, where nothing else takes of it
MOST_ROUNDED = 4
"""Chunks whose sum may be rounded after each: four errors at random come to twice one of them."""


def chunks_of(n: int, weight: Tensor, main_grad: Tensor | None, chunk_rows: int | None) -> tuple[int, torch.dtype]:
    """(rows, dtype of the sum over chunks) that keep a gradient of N rows within EXTRA_BYTES, or with many chunks within its
    float32 sum where that is more."""
    rows = rows_per_chunk(n, weight, chunk_rows, EXTRA_BYTES)
    if main_grad is not None:
        return rows, torch.float32
    if n <= MOST_ROUNDED * rows or weight.dtype == torch.float32:
        return rows, weight.dtype
    # The sum takes 2 bytes an element more than the gradient it is rounded to; rounding takes 2 more, when the logits are gone.
    sum_bytes = 2 * weight.numel()
    return rows_per_chunk(n, weight, chunk_rows, max(EXTRA_BYTES - sum_bytes, sum_bytes)), torch.float32


def linear_stats(
    hidden: Tensor, weight: Tensor, ids: Tensor, mask: Tensor | None, temperature: float, chunk_rows: int | None
) -> tuple[Tensor, Tensor]:
    """(logp, entropy) [N] float32 on a GPU, no gradient."""
    n, vocab = hidden.shape[0], weight.shape[0]
    chunk_rows = rows_per_chunk(n, weight, chunk_rows)
    buffer = torch.empty(min(chunk_rows, n), vocab, dtype=hidden.dtype, device=hidden.device)
    logp, entropy = (torch.empty(n, dtype=torch.float32, device=hidden.device) for _ in range(2))
    for start in range(0, n, chunk_rows):
        rows = slice(start, min(start + chunk_rows, n))
        logits = torch.mm(hidden[rows], weight.t(), out=buffer[: rows.stop - start])
        part = None if mask is None else mask[rows]
        logp[rows], entropy[rows], _ = vocab_stats(logits, ids[rows], part, temperature)
    return logp, entropy


class _Gradients:
    """dhidden [N, H] and dweight [V, H], gathered chunk by chunk."""

    def __init__(self, hidden: Tensor, weight: Tensor, rows: Tensor | None, dtype: torch.dtype, weight_grad: Tensor | None):
        self.hidden, self.weight, self.rows = hidden, weight, rows
        self.d_hidden = torch.empty_like(hidden) if rows is None else torch.zeros_like(hidden)
        self.main_grad = weight_grad
        self.d_weight = weight_grad if weight_grad is not None else torch.empty_like(weight, dtype=dtype)
        self.started = weight_grad is not None

    def add(self, d_logits: Tensor, hidden: Tensor, start: int, dead: Tensor | None) -> None:
        """A chunk's dlogits (overwritten) and hidden states; `start` is its first row, `dead` [C] marks rows of zeros."""
        positions = None
        if dead is not None:
            alive = (~dead).nonzero()[:, 0]  # waits for the GPU
            if (count := alive.numel()) < dead.numel():
                holes = dead[:count].nonzero()[:, 0]
                movers = alive[count - holes.numel() :]
                # Only rows beyond `count` move, into the holes before it.
                d_logits[holes] = d_logits[movers]
                positions = torch.arange(count, device=dead.device)
                positions[holes] = movers
                d_logits, hidden = d_logits[:count], hidden[positions]
        if self.rows is None and positions is None:
            torch.mm(d_logits, self.weight, out=self.d_hidden[start : start + len(d_logits)])
        else:
            self._add_hidden(torch.mm(d_logits, self.weight), start, positions, None if dead is None else dead.numel())
        if not self.started and self.d_weight.dtype == d_logits.dtype:
            torch.mm(d_logits.t(), hidden, out=self.d_weight)
        elif not self.started:
            torch.mm(d_logits.t(), hidden, out_dtype=torch.float32, out=self.d_weight)
        elif self.d_weight.dtype == d_logits.dtype:
            torch.addmm(self.d_weight, d_logits.t(), hidden, out=self.d_weight)
        else:
            torch.addmm(self.d_weight, d_logits.t(), hidden, out_dtype=torch.float32, out=self.d_weight)
        self.started = True

    def _add_hidden(self, d_hidden: Tensor, start: int, positions: Tensor | None, chunk: int | None) -> None:
        count = d_hidden.shape[0]
        if positions is None:
            assert self.rows is not None
            target = self.rows[start : start + count]
        else:
            assert chunk is not None
            if self.rows is None:
                self.d_hidden[start : start + chunk] = 0
            target = positions + start if self.rows is None else self.rows[positions + start]
        self.d_hidden[target] = d_hidden

    def finish(self) -> tuple[Tensor, Tensor | None]:
        if not self.started:
            self.d_weight.zero_()
        if self.main_grad is not None:
            return self.d_hidden, None
        return self.d_hidden, self.d_weight.to(self.weight.dtype)


def clips(tokens: Tokens, config: LossConfig) -> bool:
    """True where the gradient of a token can be 0 because its ratio is clipped."""
    return LOSS_TYPES[config.loss_type] == 0 and tokens.old_logprobs is not None


def rows_that_matter(tokens: Tokens, batch: Batch, config: LossConfig) -> Tensor | None:
    """Indices of the rows that can move the loss, None for all of them. Waits for the GPU unless there is nothing to drop."""
    keep = tokens.mask
    policy_only = tokens.ref_logprobs is None and config.entropy_coef == 0 and not needs_sequences(batch, config)
    if policy_only:
        advantages = tokens.advantages
        if tokens.tokens_per_advantage > 1:
            advantages = advantages.repeat_interleave(tokens.tokens_per_advantage, output_size=tokens.ids.numel())
        keep = advantages != 0 if keep is None else keep & (advantages != 0)
    if keep is None:
        return None
    rows = keep.nonzero()[:, 0]
    return None if rows.numel() == keep.numel() else rows


def _chunk_gradient(
    logits: Tensor, tokens: Tokens, config: LossConfig, temperature: float, g: Tensor | None, h: Tensor | None,
    results: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Turn a chunk's logits into their gradient, in place, by its own loss or by given g and h; `results` [C] receive
    logp, entropy and g."""
    if g is None:
        vocab_loss(logits, logits, tokens, config, temperature, results)
    else:
        results[2].copy_(g)
        stats = vocab_stats(logits, tokens.ids, tokens.mask, temperature)
        vocab_gradient(logits, logits, tokens.ids, tokens.mask, stats, results[2], h, temperature)


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, hidden: Tensor, weight: Tensor, ids: Tensor, batch: Batch, config: LossConfig, temperature: float,
        chunk_rows: int | None, weight_grad: Tensor | None,
    ):  # fmt: skip
        given = g = h = None
        tokens = expand(batch, ids, config)
        if needs_sequences(batch, config):
            stats = linear_stats(hidden, weight, tokens.ids, tokens.mask, temperature, chunk_rows)
            loss, metrics, g, h = sequence_gradients(*stats, batch, config)
            given = loss, metrics
        elif tokens.old_logprobs is not None:
            tokens = with_sequence_correction(tokens, tokens.old_logprobs, config)
        whole, rows = hidden, rows_that_matter(tokens, batch, config)
        tokens = tokens[slice(None) if rows is None else rows]
        if rows is not None:
            hidden, g, h = hidden[rows], None if g is None else g[rows], None if h is None else h[rows]
        n = hidden.shape[0]
        chunk_rows, dtype = chunks_of(n, weight, weight_grad, chunk_rows)
        buffer = torch.empty(min(chunk_rows, n), weight.shape[0], dtype=hidden.dtype, device=hidden.device)
        gradients = _Gradients(whole, weight, rows, dtype, weight_grad)
        results = row_results(n, hidden.device)
        zeros_possible = (
            config.entropy_coef == 0 and config.beta == 0 and (clips(tokens, config) or config.correction != "none")
        )
        for start in range(0, n, chunk_rows):
            part = slice(start, min(start + chunk_rows, n))
            logits = torch.mm(hidden[part], weight.t(), out=buffer[: part.stop - start])
            g_part, h_part = (None if x is None else x[part] for x in (g, h))
            logp, entropy, g_found = (x[part] for x in results)
            _chunk_gradient(logits, tokens[part], config, temperature, g_part, h_part, (logp, entropy, g_found))
            gradients.add(logits, hidden[part], start, g_found == 0 if zeros_possible else None)
        buffer = logits = None  # before the weight's gradient is rounded into memory of its own
        loss, metrics = given or reduce_tokens(results[0], results[1], as_batch(tokens, config), config)
        ctx.gradients = gradients.finish()
        ctx.mark_non_differentiable(metrics)
        ctx.set_materialize_grads(False)
        return loss, metrics

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, _grad_metrics):  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.gradients is None:
            raise RuntimeError("a linear loss can be backpropagated once: its gradients have been handed over")
        (d_hidden, d_weight), ctx.gradients = ctx.gradients, None
        nothing = (None,) * 6
        if grad_loss is None:
            return None, None, *nothing
        return scale_(d_hidden, grad_loss), None if d_weight is None else scale_(d_weight, grad_loss), *nothing


def _evaluate(
    hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float, chunk_rows: int | None, weight_grad: Tensor | None,
    options: dict,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    batch, config = read_options(ids.shape, temperature, options)
    hidden = hidden.reshape(-1, hidden.shape[-1])
    if not hidden.is_cuda:
        tokens = expand(batch, ids, config)
        return grpo_loss_reference(masked_rows(hidden, tokens.mask) @ weight.t(), tokens, config, temperature)
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        loss, metrics = _LinearLoss.apply(hidden, weight, ids, batch, config, temperature, chunk_rows, weight_grad)  # pyright: ignore[reportGeneralTypeIssues]
    else:
        tokens = expand(batch, ids, config)
        stats = linear_stats(hidden, weight, tokens.ids, tokens.mask, temperature, chunk_rows)
        loss, metrics = reduce_tokens(*stats, batch, config)
    return loss, dict(zip(METRICS, metrics.unbind(), strict=False))


def linear_grpo_loss(
    hidden: Tensor,
    lm_head_weight: Tensor,
    action_ids: Tensor,
    *,
    temperature: float,
    chunk_rows: int | None = None,
    weight_grad: Tensor | None = None,
    vocab_group: dist.ProcessGroup | None = None,
    vocab_start: int | None = None,
    **options,
) -> tuple[Tensor, dict[str, Tensor]]:
    """`grpo_loss` of the logits `hidden @ lm_head_weight.T`, which are never held whole.

    Args:
        hidden: [N, H] or [B, T, H]; hidden[i] scores action_ids[i].
        lm_head_weight: [V, H], of hidden's dtype.
        chunk_rows: most rows of logits held at a time; None for as many as keep the memory above inputs and gradients
            within 1.2 GiB. The sum of dweight over at most four chunks is of the weight's dtype, rounded after each; over
            more it is float32, and may take as much memory as the gradient twice. Fewer, larger chunks are faster: each
            reads and writes dweight once more.
        weight_grad: float32 [V, H] that the weight's gradient is added to (a trainer's main gradient), in the forward
            pass. autograd then hands none to the weight, and the loss must be the root of `backward`, unscaled.
        vocab_group, vocab_start: as in `grpo_loss`; lm_head_weight are then this rank's rows of the head [V_r, H], and the
            gradient of `hidden` is summed over the ranks. No rows are left out then, and the logits are made twice.
        options: `advantages` and every other keyword of `grpo_loss`, but `inplace`.

    Returns:
        As `grpo_loss`. Rows with advantage 0 are left out, metrics included, where nothing else can move them (no KL or
        entropy term).
    """
    _check_head(hidden, lm_head_weight, action_ids, weight_grad)
    if vocab_group is not None:
        if weight_grad is not None:
            raise UsageError("weight_grad does not go with vocab_group; let autograd hand over the weight's gradient")
        batch, config = read_options(action_ids.shape, temperature, options)
        return parallel_loss(
            hidden, lm_head_weight, action_ids, batch, config, temperature, vocab_group, vocab_start, chunk_rows
        )  # fmt: skip
    return _evaluate(hidden, lm_head_weight, action_ids, temperature, chunk_rows, weight_grad, options)


def linear_cross_entropy(
    hidden: Tensor,
    lm_head_weight: Tensor,
    targets: Tensor,
    *,
    token_weights: Tensor | None = None,
    ignore_index: int = -100,
    num_tokens: float | Tensor | None = None,
    temperature: float = 1.0,
    chunk_rows: int | None = None,
    weight_grad: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy of the next token, sum(token_weights * -log p(target)) / num_tokens, for supervised training.

    Args:
        hidden: [N, H] or [B, T, H]; hidden[i] predicts targets[i] (already shifted).
        targets: [N] or [B, T] int64; `ignore_index` marks those that do not count.
        token_weights: of targets' shape (a reward, say); None for ones. Tokens of weight 0 cost nothing.
        num_tokens: the normaliser; None for the number of targets that count.
        chunk_rows, weight_grad: as in `linear_grpo_loss`.

    Returns:
        The scalar loss (float32) and the metrics, of which `tokens` and `entropy` mean something here.
    """
    _check_head(hidden, lm_head_weight, targets, weight_grad)
    weights = torch.ones_like(targets, dtype=torch.float32) if token_weights is None else token_weights
    options = {
        "advantages": weights, "mask": targets != ignore_index, "loss_type": "reinforce", "num_tokens": num_tokens,
        "aggregation": "token_mean",
    }  # fmt: skip
    return _evaluate(hidden, lm_head_weight, targets, temperature, chunk_rows, weight_grad, options)


def _check_head(hidden: Tensor, weight: Tensor, ids: Tensor, weight_grad: Tensor | None) -> None:
    if hidden.shape[:-1] != ids.shape or hidden.shape[-1] != weight.shape[-1]:
        raise UsageError(
            f"hidden {tuple(hidden.shape)} must be the ids' shape {tuple(ids.shape)} and the weight's width {weight.shape[-1]}"
        )
    if weight_grad is not None and (weight_grad.shape != weight.shape or weight_grad.dtype != torch.float32):
        raise UsageError("weight_grad must be float32 of lm_head_weight's shape")
