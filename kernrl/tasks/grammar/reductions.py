"""The ops that look at more than one element: normalisations, reductions, softmax and pooling.

Each reduces over a *space*, the set of elements that one output depends on. Consecutive ops over the same space can
share a kernel that holds the whole set in registers, which is what most worked solutions exploit.

    rows      [M, N]          the N numbers of a row, contiguous
    space     [B, C, *S]      the pixels of one channel of one image, contiguous
    group     [B, C, *S]      the pixels of C / G channels of one image, contiguous ([M, N] too)
    channels  [B, C, *S]      the C channels at one pixel, strided by the number of pixels
    batch     [B, C, *S]      all pixels of one channel over the batch ([M, N] too)
    window    [B, C, *S]      a pooling window
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = Any
Space = Literal["rows", "space", "group", "channels", "batch", "window"]
Body = Literal["norm", "rms", "softmax", "log_softmax", "sum", "mean", "max", "min", "logsumexp"]


@dataclass(frozen=True, slots=True)
class Core:
    """A reducing op. `{C}` is its channel count, `{G}` its number of groups, `{k}` and `{s}` a window's size and stride."""

    name: str
    space: Space
    body: Body
    spellings: tuple[str, ...]
    """PyTorch expressions of `{x}`; one that starts with `nn.` is a module made in `__init__`."""
    affine: tuple[str, ...] = ()
    """Per-channel parameters applied afterwards, as far as the spelling takes them."""
    collapses: bool = False
    """One number is left of each set; the reduced dimensions stay as 1 where the spelling keeps them."""


def simulate(body: Body, x: Array, axis: int | tuple[int, ...]) -> Array:
    """The op in numpy over `axis`, keeping dimensions; affine parameters are left to the caller."""
    reduce: dict[str, Callable[..., Array]] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
    if body in reduce:
        return reduce[body](x, axis=axis, keepdims=True)
    if body == "norm":
        centred = x - x.mean(axis=axis, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=axis, keepdims=True) + 1e-5)
    if body == "rms":
        return x / np.sqrt((x**2).mean(axis=axis, keepdims=True) + 1e-5)
    shifted = x - x.max(axis=axis, keepdims=True)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    if body == "softmax":
        return np.exp(shifted) / total
    if body == "log_softmax":
        return shifted - np.log(total)
    return np.log(total) + x.max(axis=axis, keepdims=True)


AFFINE = ("weight", "bias")

ROW_CORES = (
    Core("layer_norm", "rows", "norm", ("nn.LayerNorm({C})", "F.layer_norm({x}, ({C},), {weight}, {bias})"), AFFINE),
    Core("rms_norm", "rows", "rms", ("nn.RMSNorm({C}, eps=1e-5)", "F.rms_norm({x}, ({C},), {weight}, eps=1e-5)"), ("weight",)),
    Core("softmax", "rows", "softmax", ("torch.softmax({x}, dim=-1)", "F.softmax({x}, dim=-1)", "nn.Softmax(dim=-1)")),
    Core("log_softmax", "rows", "log_softmax", ("F.log_softmax({x}, dim=-1)", "torch.log_softmax({x}, dim=-1)")),
    Core("sum", "rows", "sum", ("torch.sum({x}, dim=-1, keepdim=True)", "{x}.sum(dim=-1, keepdim=True)"), collapses=True),
    Core("mean", "rows", "mean", ("torch.mean({x}, dim=-1, keepdim=True)", "{x}.mean(dim=-1, keepdim=True)"), collapses=True),
    Core("max", "rows", "max", ("torch.amax({x}, dim=-1, keepdim=True)", "torch.max({x}, dim=-1).values"), collapses=True),
    Core("min", "rows", "min", ("torch.amin({x}, dim=-1, keepdim=True)", "torch.min({x}, dim=-1).values"), collapses=True),
    Core(
        "logsumexp",
        "rows",
        "logsumexp",
        ("torch.logsumexp({x}, dim=-1, keepdim=True)", "torch.logsumexp({x}, dim=-1)"),
        collapses=True,
    ),
)

# over features too, but only where a row is a sample: [M, N], not the [B, M, N] of a batched product
SAMPLE_CORES = (
    Core("group_norm", "group", "norm", ("nn.GroupNorm({G}, {C})", "F.group_norm({x}, {G}, {weight}, {bias})"), AFFINE),
    Core("batch_norm", "batch", "norm", ("nn.BatchNorm1d({C}, track_running_stats=False)",), AFFINE),
)

GRID_CORES = (
    SAMPLE_CORES[0],
    Core("batch_norm", "batch", "norm", ("nn.BatchNorm{d}d({C}, track_running_stats=False)",), AFFINE),
    Core(
        "instance_norm",
        "space",
        "norm",
        ("nn.InstanceNorm{d}d({C})", "F.instance_norm({x})", "nn.InstanceNorm{d}d({C}, affine=True)"),
        AFFINE,
    ),
    Core("channel_softmax", "channels", "softmax", ("torch.softmax({x}, dim=1)", "F.softmax({x}, dim=1)", "nn.Softmax(dim=1)")),
    Core("channel_log_softmax", "channels", "log_softmax", ("F.log_softmax({x}, dim=1)",)),
    Core(
        "channel_sum",
        "channels",
        "sum",
        ("torch.sum({x}, dim=1, keepdim=True)", "{x}.sum(dim=1, keepdim=True)"),
        collapses=True,
    ),
    Core(
        "channel_mean",
        "channels",
        "mean",
        ("torch.mean({x}, dim=1, keepdim=True)", "{x}.mean(dim=1, keepdim=True)"),
        collapses=True,
    ),
    Core(
        "channel_max",
        "channels",
        "max",
        ("torch.amax({x}, dim=1, keepdim=True)", "torch.max({x}, dim=1, keepdim=True)[0]"),
        collapses=True,
    ),
    Core(
        "channel_min",
        "channels",
        "min",
        ("torch.amin({x}, dim=1, keepdim=True)", "torch.min({x}, dim=1, keepdim=True)[0]"),
        collapses=True,
    ),
    Core("channel_logsumexp", "channels", "logsumexp", ("torch.logsumexp({x}, dim=1, keepdim=True)",), collapses=True),
    Core("space_softmax", "space", "softmax", ("torch.softmax({x}.flatten(2), dim=-1).view_as({x})",)),
    Core("space_sum", "space", "sum", ("torch.sum({x}, dim={space}, keepdim=True)", "{x}.sum(dim={space})"), collapses=True),
    Core(
        "space_mean", "space", "mean", ("torch.mean({x}, dim={space}, keepdim=True)", "{x}.mean(dim={space})"), collapses=True
    ),
    Core(
        "space_max",
        "space",
        "max",
        ("torch.amax({x}, dim={space}, keepdim=True)", "torch.amax({x}, dim={space})"),
        collapses=True,
    ),
    Core(
        "space_min",
        "space",
        "min",
        ("torch.amin({x}, dim={space}, keepdim=True)", "torch.amin({x}, dim={space})"),
        collapses=True,
    ),
    Core("space_logsumexp", "space", "logsumexp", ("torch.logsumexp({x}, dim={space}, keepdim=True)",), collapses=True),
    Core("global_avg_pool", "space", "mean", ("F.adaptive_avg_pool{d}d({x}, 1)", "nn.AdaptiveAvgPool{d}d(1)"), collapses=True),
    Core("global_max_pool", "space", "max", ("F.adaptive_max_pool{d}d({x}, 1)", "nn.AdaptiveMaxPool{d}d(1)"), collapses=True),
    Core("avg_pool", "window", "mean", ("F.avg_pool{d}d({x}, {k}, stride={s})", "nn.AvgPool{d}d({k}, stride={s})")),
    Core("max_pool", "window", "max", ("F.max_pool{d}d({x}, {k}, stride={s})", "nn.MaxPool{d}d({k}, stride={s})")),
)

CORES = ROW_CORES + SAMPLE_CORES + GRID_CORES
