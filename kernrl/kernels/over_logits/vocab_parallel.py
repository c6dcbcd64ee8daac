"""Losses of a vocabulary that is spread over ranks (tensor parallelism): each has some columns of the logits, or of the head.

A rank sums its own columns, one collective gathers those sums, [N, 4] of each rank, and every rank combines them in the same
order. With lse_s and H_s the log-sum-exp and the entropy of rank s's columns alone, r the action's owner, logp_r its log-prob
among r's columns, and lse = log sum_s exp(lse_s):

    logp = logp_r - log(1 + sum over s != r of exp(lse_s - lse_r))
    H    = sum_s q_s (H_s - ln q_s),  q_s = exp(lse_s - lse)

Both terms of logp are at most 0, so it keeps its digits as p_a -> 1. The gradient of a rank's columns needs nothing more from
other ranks; that of hidden states is a sum over ranks, one more collective. The loss of the log-probs is plain PyTorch. On a
CPU so is everything; on a GPU the kernels of `vocab` sum and differentiate the columns.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from kernrl.errors import UsageError
from kernrl.kernels.over_logits.chunks import rows_per_chunk
from kernrl.kernels.over_logits.id_check import invalid_id_flag
from kernrl.kernels.over_logits.vocab import LOG2_E, masked_rows, vocab_gradient, vocab_stats
from kernrl.kernels.over_tokens.token_loss import LossConfig, policy_loss_reference
from kernrl.kernels.over_tokens.tokens import Batch, expand, with_sequence_correction


def partials_reference(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """[N, 4] of a rank's columns [N, V_r]: their log-sum-exp, entropy, the log-prob of `ids` among them, and whether it is
    there. Columns that are all -inf (padding) have an lse of -inf; what else is said of them is without meaning."""
    y = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    lse = y.logsumexp(-1)
    log_p = y - lse[:, None]
    entropy = -(log_p.exp() * log_p.where(log_p != -torch.inf, 0.0)).sum(-1)
    there = _there(logits, ids)
    logp = y.log_softmax(-1).gather(-1, ids.where(there, 0)[:, None])[:, 0]
    return torch.stack((lse, entropy, logp, there.to(lse.dtype)), 1)


def partials(logits: Tensor, ids: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
    """`partials_reference` by Triton, float32."""
    there = _there(logits, ids)
    logp, entropy, c = vocab_stats(logits, ids.where(there, 0), mask, temperature)
    return torch.stack((-c / LOG2_E, entropy, logp, there.to(c.dtype)), 1)


def combine(parts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(logp, entropy, lse, whether the action is anywhere) [N] from all ranks' partials [R, N, 4]."""
    lses, entropies, logps, there = parts.unbind(-1)
    there = there > 0
    lse = lses.logsumexp(0)
    own = lses.where(there, 0.0).sum(0)
    others = lses.where(~there, -torch.inf).logsumexp(0)
    rest = softplus(others - own, threshold=40)  # lse - own, with its digits where the owner has nearly all
    log_share = (lses - own - rest).where(own != -torch.inf, lses - lse)
    share = log_share.exp()
    entropy = (share * (entropies - log_share)).where(share != 0, 0.0).sum(0)
    logp = logps.where(there, 0.0).sum(0) - rest
    return logp.where(own != -torch.inf, -torch.inf), entropy, lse, there.any(0)


def gradient_reference(
    logits: Tensor, ids: Tensor, stats: tuple[Tensor, Tensor, Tensor], g: Tensor, h: Tensor, temperature: float
) -> Tensor:
    """dL/dlogits [N, V_r] of a rank's columns, from the whole rows' (logp, entropy, lse) [N] and g, h = dL/d(logp, entropy)."""
    logp, entropy, lse = stats
    log_p = logits.to(lse.dtype) / temperature - lse[:, None]
    p = log_p.exp()
    through_entropy = h[:, None] * p * (log_p.where(p != 0, 0.0) + entropy[:, None])
    d = -g[:, None] * p - through_entropy
    there = _there(logits, ids)
    at = ids.where(there, 0)[:, None]
    of_action = -g[:, None] * torch.expm1(logp)[:, None] - through_entropy.gather(1, at)  # 1 - p_a with its digits
    d = d.scatter(1, at, of_action.where(there[:, None], d.gather(1, at)))
    return (d / temperature).to(logits.dtype)


def gradient(
    out: Tensor, logits: Tensor, ids: Tensor, mask: Tensor | None, stats: tuple[Tensor, Tensor, Tensor], g: Tensor, h: Tensor,
    temperature: float,
) -> None:  # fmt: skip
    """`gradient_reference` by Triton, written into `out`, which may be `logits`."""
    logp, entropy, lse = stats
    there = _there(logits, ids)
    # The kernel stores an action's gradient in every row: where the action is another rank's, in column 0, which is mended.
    first = gradient_reference(logits[:, :1], torch.full_like(ids, -1), stats, g, h, temperature)[:, 0]
    if mask is not None:
        first = first.where(mask, 0.0)
    vocab_gradient(out, logits, ids.where(there, 0), mask, (logp, entropy, -lse * LOG2_E), g, h, temperature)
    out[:, 0] = out[:, 0].where(there, first)


def _there(logits: Tensor, ids: Tensor) -> Tensor:
    return (ids >= 0) & (ids < logits.shape[-1])


class _ParallelLogprobs(torch.autograd.Function):
    """(logp, entropy) [N] from a rank's logits [N, V_r], or hidden states [N, H] and its rows of the LM head [V_r, H]."""

    @staticmethod
    def forward(
        ctx, inputs: Tensor, weight: Tensor | None, ids: Tensor, mask: Tensor | None, temperature: float,
        group: dist.ProcessGroup, chunk_rows: int | None,
    ):  # fmt: skip
        own = []
        for rows, logits in _chunks(inputs, weight, chunk_rows):
            part = None if mask is None else mask[rows]
            own.append(
                partials(logits, ids[rows], part, temperature) if logits.is_cuda
                else partials_reference(logits, ids[rows], temperature)
            )  # fmt: skip
        own = torch.cat(own)
        ranks, (n, sums) = dist.get_world_size(group), own.shape
        parts = own.new_empty(ranks * n, sums)
        dist.all_gather_into_tensor(parts, own, group=group)
        logp, entropy, lse, found = combine(parts.view(ranks, n, sums))
        logp = _refuse_missing(logp, found if mask is None else found | ~mask)
        if mask is not None:
            logp, entropy = logp.where(mask, 0.0), entropy.where(mask, 0.0)
        ctx.save_for_backward(inputs, weight, ids, mask, logp, entropy, lse)
        ctx.temperature, ctx.group, ctx.chunk_rows = temperature, group, chunk_rows
        return logp.clone(), entropy.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_logp, grad_entropy):  # pyright: ignore[reportIncompatibleMethodOverride]
        inputs, weight, ids, mask, *stats = ctx.saved_tensors
        g, h = grad_logp.contiguous(), grad_entropy.contiguous()
        d_inputs = torch.empty_like(inputs)
        d_weight = None if weight is None else torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        for rows, logits in _chunks(inputs, weight, ctx.chunk_rows):
            each, part = tuple(x[rows] for x in stats), None if mask is None else mask[rows]
            d_logits = d_inputs if weight is None else logits
            if logits.is_cuda:
                gradient(d_logits, logits, ids[rows], part, each, g[rows], h[rows], ctx.temperature)
            else:
                d = gradient_reference(logits, ids[rows], each, g[rows], h[rows], ctx.temperature)
                d_logits.copy_(d if part is None else d.where(part[:, None], 0.0))
            if weight is not None and d_weight is not None:
                d_inputs[rows] = d_logits @ weight
                _add_product(d_weight, d_logits.t(), inputs[rows])
        if weight is not None:
            dist.all_reduce(d_inputs, group=ctx.group)
        return d_inputs, None if weight is None or d_weight is None else d_weight.to(weight.dtype), *(None,) * 5


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, summed in total's dtype."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a.to(total.dtype) @ b.to(total.dtype)


def _chunks(inputs: Tensor, weight: Tensor | None, chunk_rows: int | None):
    """(rows, their logits) of a rank, one chunk after the other."""
    if weight is None:
        yield slice(0, inputs.shape[0]), inputs
        return
    step = rows_per_chunk(inputs.shape[0], weight, chunk_rows)
    for start in range(0, max(1, inputs.shape[0]), step):
        rows = slice(start, start + step)
        yield rows, inputs[rows] @ weight.t()


def _refuse_missing(logp: Tensor, found: Tensor) -> Tensor:
    """`logp`, NaN where no rank has the action; on a CPU an error, the same on every rank."""
    if logp.is_cuda:
        flag = invalid_id_flag(logp.device)
        flag.copy_(torch.maximum(flag, (~found).any().to(flag.dtype)))
    elif not found.all():
        raise UsageError("action_ids holds an id that no rank's columns have at an active position; mask it out")
    return logp.where(found, torch.nan)


def parallel_loss(
    inputs: Tensor, weight: Tensor | None, ids: Tensor, batch: Batch, config: LossConfig, temperature: float,
    group: dist.ProcessGroup, start: int | None, chunk_rows: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """The loss and metrics of logits [.., V_r], or hidden states [.., H] with `weight` [V_r, H], the same on every rank."""
    width = inputs.shape[-1] if weight is None else weight.shape[0]
    first = dist.get_rank(group) * width if start is None else start
    tokens = expand(batch, ids, config)
    rows = inputs.reshape(-1, inputs.shape[-1]).contiguous()
    rows = rows if weight is None else masked_rows(rows, tokens.mask)
    logp, entropy = _ParallelLogprobs.apply(  # pyright: ignore[reportGeneralTypeIssues]
        rows, weight, tokens.ids - first, tokens.mask, temperature, group, chunk_rows
    )
    tokens = with_sequence_correction(tokens, logp.detach(), config)
    return policy_loss_reference(logp, entropy, tokens, config)
