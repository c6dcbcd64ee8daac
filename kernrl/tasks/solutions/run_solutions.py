"""Runs worked solutions beside their reference, in this process: for the tests and `scripts/bench_tasks.py`.

Solutions are our own text, so nothing is guarded here; what a model writes is judged by `kernrl.verifier`. Under
`TRITON_INTERPRET=1`, set before triton is first imported, no GPU is needed.
"""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from kernrl.tasks.task import InputSet, Reference, Task, load_reference

REGIMES = ("normal", "uniform", "offset", "small", "large", "sparse", "onehot")
"""Distributions of inputs: N(0, 1), U(0, 1), N(3, 1), N(0, 1) × 1e-3, N(0, 1) × 64, nine zeros in ten, and ones among zeros."""
ROUNDOFF = 2.0**-24
"""Unit roundoff of float32."""


def draw_like(tensors: Sequence[Tensor], regime: str, seed: int) -> list[Tensor]:
    """Tensors of the same shapes and device, from one distribution."""
    drawn = []
    for index, like in enumerate(tensors):
        generator = torch.Generator(like.device).manual_seed(seed + index)
        x = torch.randn(like.shape, generator=generator, device=like.device)
        spike = torch.rand(like.shape, generator=generator, device=like.device)
        drawn.append(
            {
                "normal": x,
                "uniform": spike,
                "offset": x + 3.0,
                "small": x * 1e-3,
                "large": x * 64.0,
                "sparse": x * (spike < 0.1),
                "onehot": (spike < 0.1).float(),
            }[regime]
        )
    return drawn


def load_module(source: str, path: Path) -> types.ModuleType:
    """Import a solution from a file of its own: Triton reads the source of its functions from disk."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far an answer and eager PyTorch are from float64, on one input; of eager, the worst of several runs."""

    rms: float
    eager_rms: float
    largest: float
    eager_largest: float
    scale: float
    """RMS of the float64 answer."""

    @property
    def ok(self) -> bool:
        """At most twice eager's RMS error and four times its largest, with a few roundings of the scale to spare."""
        close = self.rms <= 2 * self.eager_rms + 4 * ROUNDOFF * self.scale
        return close and self.largest <= 4 * self.eager_largest + 16 * ROUNDOFF * self.scale


class Bench:
    """One task at one input set on one device: the module in float32 and float64, and its input shapes."""

    def __init__(self, task: Task, input_set: InputSet, device: str = "cpu", seed: int = 0) -> None:
        self.reference: Reference = load_reference(task, input_set)
        torch.manual_seed(seed)
        with torch.device(device), torch.no_grad():
            self.arguments = list(self.reference.get_init_inputs())
            self.model: nn.Module = self.reference.Model(*self.arguments)
            self.exact: nn.Module = self.reference.Model(*self.arguments).double()
            self.exact.load_state_dict({name: value.double() for name, value in self.model.state_dict().items()})
            self.likes: list[Tensor] = list(self.reference.get_inputs())
        self.device = device

    def answer(self, module: types.ModuleType) -> nn.Module:
        """`ModelNew` with the reference's parameters. Raises AssertionError when its state has other names."""
        with torch.device(self.device):
            model = module.ModelNew(*self.arguments)
        state = self.model.state_dict()
        assert list(model.state_dict()) == list(state), "ModelNew has other parameters than Model"
        model.load_state_dict(state)
        return model

    @torch.no_grad()
    def truth(self, inputs: Sequence[Tensor]) -> tuple[Tensor, float, float]:
        """(float64 answer, eager's RMS error in float32, its largest).

        Eager answers these inputs, and twice the same moved by a rounding; its worst errors count. A few elements may happen to
        come out far more exact than float32 is, on one processor and not on another.
        """
        exact = self.exact(*(x.double() for x in inputs))
        moved = torch.Generator(self.device).manual_seed(1)
        found = [_errors(self.model(*inputs), exact)]
        found += [_errors(self.model(*(_moved(x, moved) for x in inputs)), exact) for _ in range(2)]
        return exact, max(rms for rms, _ in found), max(largest for _, largest in found)

    @torch.no_grad()
    def compare(self, model: nn.Module, inputs: Sequence[Tensor], truth: tuple[Tensor, float, float]) -> Agreement:
        """Run an answer and measure it. Raises AssertionError when its shape differs or it wrote to an input."""
        exact, eager_rms, eager_largest = truth
        mine = [x.clone() for x in inputs]
        out = model(*mine)
        assert out.shape == exact.shape, f"shape {tuple(out.shape)} instead of {tuple(exact.shape)}"
        assert all(torch.equal(a, b) for a, b in zip(mine, inputs, strict=True)), "an input was written to"
        rms, largest = _errors(out, exact)
        return Agreement(rms, eager_rms, largest, eager_largest, float(exact.pow(2).mean().sqrt()))


def _errors(answer: Tensor, exact: Tensor) -> tuple[float, float]:
    """(RMS, largest) error of an answer."""
    error = answer.double() - exact
    return float(error.pow(2).mean().sqrt()), float(error.abs().max())


def _moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """`x` with every element a rounding up or down; whole numbers as they are."""
    if not x.is_floating_point():
        return x
    up = torch.rand(x.shape, generator=generator, device=x.device) < 0.5
    return x * (1 + 2 * ROUNDOFF * (2 * up.to(x.dtype) - 1))
