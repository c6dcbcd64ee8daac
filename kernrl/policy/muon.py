"""Muon: matrices move along the nearest orthogonal matrix of their momentum; everything else is AdamW's.

Steps are scaled so that an element moves as far as under AdamW (Liu et al. 2025, arXiv:2502.16982), so both take the same
learning rate and decay. Matrices of one shape are stacked: a small model has many, and launches would cost more than the
products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ORTHOGONAL = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration that brings singular values near 1 (Jordan et al. 2024)."""

ITERATIONS = 5
MOMENTUM = 0.95


class Muon(torch.optim.AdamW):
    """AdamW whose parameter groups marked `muon`, of matrices alone, take Muon's step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update of every parameter with a gradient; there is no `closure`."""
        assert closure is None
        every = self.param_groups
        for group in every:
            if group.get("muon"):
                self._muon(group)
        self.param_groups = [group for group in every if not group.get("muon")]
        try:
            super().step()
        finally:
            self.param_groups = every

    def __setstate__(self, state: dict[str, Any]) -> None:
        """AdamW looks for its count of steps in the state of every parameter, and Muon's matrices have none."""
        every = state["param_groups"]
        super().__setstate__({**state, "param_groups": [group for group in every if not group.get("muon")]})
        self.param_groups = every

    def _muon(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for p in group["params"]:
            if p.grad is not None:
                by_shape.setdefault(p.shape, []).append(p)
        for (rows, columns), matrices in by_shape.items():
            foreach: Any = torch  # private names, as torch's own optimizers use them
            gradients: list[Any] = [p.grad for p in matrices]
            for p in matrices:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in matrices]
            foreach._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
            ahead = foreach._foreach_lerp(gradients, momenta, MOMENTUM)  # Nesterov's
            moves = orthogonal(torch.stack(list(ahead))).to(matrices[0].dtype).unbind()
            foreach._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            foreach._foreach_add_(matrices, list(moves), alpha=-group["lr"] * 0.2 * max(rows, columns) ** 0.5)


def orthogonal(matrices: Tensor) -> Tensor:
    """For each matrix of [B, M, N] one with the same singular vectors and singular values between about 0.7 and 1.2."""
    a, b, c = ORTHOGONAL
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
