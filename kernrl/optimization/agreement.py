"""Whether a whole model still computes what the original does: both beside the original in float64, on fresh inputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernrl.optimization.module_task import tensors_in
from kernrl.verifier.base.float64_mode import Float64Mode
from kernrl.verifier.base.precision import UNIT_ROUNDOFF, policy_flags

FACTOR, ROUNDOFFS = 3.0, 32.0
"""A model may be three times as far from float64 as the original, and a few dozen roundings of its outputs' scale."""

TF32_ROUNDOFF = 2.0**-11


def computed(module: nn.Module) -> dict[int, Any]:
    """Identity → value of the tensors that hooks compute, such as `weight_norm`'s, which `copy.deepcopy` refuses."""
    held = [value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor)]
    return {id(value): value.detach() for value in held if not value.is_leaf}


@torch.no_grad()
def disagreement(
    original: nn.Module,
    made: nn.Module,
    arguments: Sequence[Any],
    precision: str,
    count: int,
    named: Mapping[str, Any] | None = None,
) -> str:
    """'' where the two agree on `count` fresh inputs, else what is wrong.

    Args:
        named: Arguments by name.
    """
    was_training, exact = original.training, copy.deepcopy(original, computed(original)).double().eval()
    original.eval()
    try:
        with policy_flags(precision):
            for seed in range(count):
                args = [fresh(argument, seed) for argument in arguments]
                by_name = {name: fresh(argument, seed) for name, argument in (named or {}).items()}
                wide_args, wide_by_name = pytree.tree_map_only(
                    Tensor, lambda t: t.double() if t.is_floating_point() else t, (args, by_name)
                )
                theirs, mine = tensors_in(original(*args, **by_name)), tensors_in(made(*args, **by_name))
                with Float64Mode(precision):
                    truth = tensors_in(exact(*wide_args, **wide_by_name))
                if problem := _differs(mine, theirs, truth, precision):
                    return f"input {seed}: {problem}"
    finally:
        original.train(was_training)
    return ""


def fresh(item: Any, seed: int) -> Any:
    """Other numbers of the same kind: floats of the same mean and spread, whole numbers in another order."""
    generator = torch.Generator().manual_seed(seed)

    def draw(t: Tensor) -> Tensor:
        if t.is_floating_point():
            spread, middle = float(t.double().std(correction=0)), float(t.double().mean())
            return (torch.randn(t.shape, generator=generator) * spread + middle).to(t)
        return t.flatten()[torch.randperm(t.numel(), generator=generator).to(t.device)].reshape(t.shape)

    return pytree.tree_map_only(Tensor, draw, item)


def _differs(mine: list[Tensor], theirs: list[Tensor], truth: list[Tensor], precision: str) -> str:
    if [(t.shape, t.dtype) for t in mine] != [(t.shape, t.dtype) for t in theirs]:
        return "the outputs have other shapes or dtypes"
    unit = TF32_ROUNDOFF if precision == "tf32" else ROUNDOFFS * UNIT_ROUNDOFF[precision]
    for i, (a, b, t) in enumerate(zip(mine, theirs, truth, strict=True)):
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return f"output {i} differs"
            continue
        limit = FACTOR * _rms(b.double() - t) + unit * _rms(t.double())
        if not _rms(a.double() - t) <= limit:
            return f"output {i} is off by {_rms(a.double() - t):.3g}, where {limit:.3g} is allowed"
    return ""


def _rms(x: Tensor) -> float:
    return float(x.double().pow(2).mean().sqrt()) if x.numel() else 0.0
