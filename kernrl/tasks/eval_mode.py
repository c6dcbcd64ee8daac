"""References that are judged as in eval mode: in training mode their answers depend on chance or on earlier calls.

A module is in training mode when it is made, and a dropout then draws numbers. No answer can be compared with those, and
whoever writes kernels for such a module means inference. So its constructor is followed by `eval()`. Batch norms without a
dropout beside them stay in training mode, where they are as definite as anything.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernrl.syntax import parse_python

if TYPE_CHECKING:
    from torch import nn

IN_EVAL_MODE = "The task is judged in eval mode: in training mode its answers depend on chance or on earlier calls."

_CHANCE = ("dropout", "drop_path", "rand", "bernoulli", "rrelu")
"""Parts of names of functions that draw numbers."""


def judged_mode(model: Callable[..., Any], source: str) -> Callable[..., Any]:
    """A task's `Model`, whose modules are in eval mode where training mode is indefinite; `source` is the task's."""

    @functools.wraps(model, updated=())
    def made(*args: Any, **kwargs: Any) -> Any:
        module = model(*args, **kwargs)
        if _is_indefinite(module, source):
            module.eval()
        return module

    return made


def _is_indefinite(module: Any, source: str) -> bool:
    from torch import nn

    if not isinstance(module, nn.Module):
        return False
    training = [part for part in module.modules() if part.training]
    return any(map(_varies, training)) or (bool(training) and _draws_in_training(source))


def _varies(part: nn.Module) -> bool:
    """Whether a module of torch's own draws numbers in training mode, or steps on with every call, as a spectral norm does."""
    from torch import nn
    from torch.nn.utils.parametrizations import _SpectralNorm  # pyright: ignore[reportPrivateUsage]
    from torch.nn.utils.spectral_norm import SpectralNorm

    if isinstance(part, nn.modules.dropout._DropoutNd):  # pyright: ignore[reportPrivateUsage]
        return part.p > 0
    if isinstance(part, nn.MultiheadAttention | nn.RNNBase):
        return part.dropout > 0
    hooks = part._forward_pre_hooks.values()  # pyright: ignore[reportPrivateUsage]
    return isinstance(part, nn.RReLU | _SpectralNorm) or any(isinstance(hook, SpectralNorm) for hook in hooks)


@functools.lru_cache(maxsize=64)
def _draws_in_training(source: str) -> bool:
    """Whether a function of the source reads `training` and names what draws numbers: `F.dropout(x, 0.1, self.training)`."""
    for function in ast.walk(parse_python(source)):
        if isinstance(function, ast.FunctionDef):
            nodes = list(ast.walk(function))
            read = {n.attr for n in nodes if isinstance(n, ast.Attribute)} | {n.id for n in nodes if isinstance(n, ast.Name)}
            if "training" in read and any(word in name for name in read for word in _CHANCE):
                return True
    return False
