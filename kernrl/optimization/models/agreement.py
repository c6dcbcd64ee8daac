"""Whether a whole model still computes what the original does: both beside the original in float64, on fresh inputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


class Excess(NamedTuple):
    """How far a model is off."""

    ratio: float
    """Its largest error over what is allowed; infinite where it is not a number, or no such error can be told."""
    problem: str
    """'' where that is 1 at most."""


class Agreement:
    """Whether models compute what the original does, on fresh inputs that are drawn once."""

    @torch.no_grad()
    def __init__(
        self,
        original: nn.Module,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        precision: str,
        count: int,
    ):
        """
        Args:
            named: Arguments by name.
            count: How many inputs.
        """
        self.precision = precision
        modes, exact = modes_of(original), copy.deepcopy(original, computed(original)).double().eval()
        self._cases: list[tuple[list[Any], dict[str, Any], list[Tensor], list[Tensor]]] = []
        original.eval()
        try:
            with policy_flags(precision):
                for seed in range(count):
                    args = [fresh(argument, seed) for argument in arguments]
                    by_name = {name: fresh(argument, seed) for name, argument in named.items()}
                    wide_args, wide_by_name = pytree.tree_map_only(
                        Tensor, lambda t: t.double() if t.is_floating_point() else t, (args, by_name)
                    )
                    theirs = _kept(original(*_own(args), **_own(by_name)))
                    with Float64Mode(precision):
                        truth = _kept(exact(*_own(wide_args), **_own(wide_by_name)))
                    self._cases.append((args, by_name, theirs, truth))
        finally:
            for module, training in modes:
                module.training = training

    @torch.no_grad()
    def excess(self, made: nn.Module) -> Excess:
        """How far a model is off, on the worst of the inputs."""
        worst = Excess(0.0, "")
        with policy_flags(self.precision):
            for seed, (args, by_name, theirs, truth) in enumerate(self._cases):
                found = _excess(tensors_in(made(*_own(args), **_own(by_name))), theirs, truth, self.precision)
                if found.ratio > worst.ratio:
                    worst = found._replace(problem=f"input {seed}: {found.problem}" if found.problem else "")
        return worst


def disagreement(
    original: nn.Module,
    made: nn.Module,
    arguments: Sequence[Any],
    precision: str,
    count: int,
    named: Mapping[str, Any] | None = None,
) -> str:
    """'' where the two agree on `count` fresh inputs, else what is wrong with the worst.

    Args:
        named: Arguments by name.
    """
    return Agreement(original, arguments, named or {}, precision, count).excess(made).problem


def fresh(item: Any, seed: int) -> Any:
    """Other numbers of the same kind: floats of the same mean and spread, whole numbers in another order."""
    generator = torch.Generator().manual_seed(seed)

    def draw(t: Tensor) -> Tensor:
        if t.is_floating_point():
            spread, middle = float(t.double().std(correction=0)), float(t.double().mean())
            return (torch.randn(t.shape, generator=generator) * spread + middle).to(t)
        return t.flatten()[torch.randperm(t.numel(), generator=generator).to(t.device)].reshape(t.shape)

    return pytree.tree_map_only(Tensor, draw, item)


def _excess(mine: list[Tensor], theirs: list[Tensor], truth: list[Tensor], precision: str) -> Excess:
    if [(t.shape, t.dtype) for t in mine] != [(t.shape, t.dtype) for t in theirs]:
        return Excess(math.inf, "the outputs have other shapes or dtypes")
    worst = Excess(0.0, "")
    unit = TF32_ROUNDOFF if precision == "tf32" else ROUNDOFFS * UNIT_ROUNDOFF[precision]
    for i, (a, b, t) in enumerate(zip(mine, theirs, truth, strict=True)):
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return Excess(math.inf, f"output {i} differs")
            continue
        finite = b.isfinite()
        if not torch.equal(a.isfinite(), finite):
            return Excess(math.inf, f"output {i} is infinite or not a number elsewhere")
        a, b, t = a[finite], b[finite], t[finite]
        off, limit = _rms(a.double() - t), FACTOR * _rms(b.double() - t) + unit * _rms(t.double())
        ratio = 0.0 if off <= 0 else off / limit if limit else math.inf
        ratio = math.inf if math.isnan(ratio) else ratio
        if ratio > worst.ratio:
            worst = Excess(ratio, f"output {i} is off by {off:.3g}, where {limit:.3g} is allowed" if ratio > 1 else "")
    return worst


def modes_of(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """The modules of a model, and whether each is in training mode."""
    return [(module, module.training) for module in model.modules()]


def _own(items: Any) -> Any:
    """Arguments that a model may change."""
    return pytree.tree_map_only(Tensor, torch.clone, items)


def _kept(out: Any) -> list[Tensor]:
    """The tensors of an output, which may be those of the arguments."""
    return [t.clone() for t in tensors_in(out)]


def _rms(x: Tensor) -> float:
    return float(x.double().pow(2).mean().sqrt()) if x.numel() else 0.0
