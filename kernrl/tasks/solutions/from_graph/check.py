"""Runs worked solutions beside their reference, in this process: the first look, before the verifier's.

Under `TRITON_INTERPRET=1`, set before triton is first imported, no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from kernrl.tasks.solutions.run_solutions import ROUNDOFF, load_module
from kernrl.tasks.task import InputSet, Solution, Task, load_reference


def _double(tree: Any) -> Any:
    def cast(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return tree_map(cast, tree)


@torch.no_grad()
def problems(
    task: Task, input_set: InputSet, solutions: Sequence[Solution], folder: Path, *, device: str = "cpu", seed: int = 0
) -> list[str]:
    """For each solution the empty string, or what is wrong with it at one input set.

    An output may be three times as far from float64 as eager's, and a few roundings of its scale, in the root mean square.

    Args:
        folder: Where the solutions are written: Triton reads the source of its functions from disk.
    """
    reference = load_reference(task, input_set)
    torch.manual_seed(seed)
    with torch.device(device):
        arguments = list(reference.get_init_inputs())
        model = reference.Model(*arguments)
        exact_model = reference.Model(*arguments).double()
        inputs = list(reference.get_inputs())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    exact_model.load_state_dict(_double(state))
    exact, eager = tree_leaves(exact_model(*_double(inputs))), tree_leaves(model(*inputs))
    found = []
    for solution in solutions:
        try:
            module = load_module(solution.triton_code, folder / f"solution_{len(list(folder.iterdir()))}.py")
            with torch.device(device):
                answer = module.ModelNew(*arguments)
            answer.load_state_dict(state)
            given = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)
            out = tree_leaves(answer(*given))
            found.append(_difference(out, eager, exact))
        except Exception as error:
            found.append(f"{type(error).__name__}: {str(error)[-300:]}")
    return found


def _difference(out: list[Any], eager: list[Any], exact: list[Any]) -> str:
    if len(out) != len(eager):
        return f"{len(out)} outputs instead of {len(eager)}"
    for i, (mine, theirs, truth) in enumerate(zip(out, eager, exact, strict=True)):
        if not isinstance(theirs, Tensor):
            if mine != theirs:
                return f"output {i} is {mine!r} instead of {theirs!r}"
            continue
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"output {i} is {mine.dtype}{list(mine.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        if not truth.is_floating_point():
            if not torch.equal(mine, theirs):
                return f"output {i} differs"
            continue
        finite = truth.isfinite()
        if not torch.equal(mine[~finite].double().nan_to_num(0.5), truth[~finite].double().nan_to_num(0.5)):
            return f"output {i} has infinity or NaN out of place"
        mine, theirs, truth = (part[finite].double() for part in (mine, theirs, truth))
        limit = 3 * _rms(theirs - truth) + 8 * ROUNDOFF * _rms(truth)
        if truth.numel() and not _rms(mine - truth) <= limit:
            return f"output {i} is off by {_rms(mine - truth):.3g}, where {limit:.3g} is allowed"
    return ""


def _rms(x: Tensor) -> float:
    return float(x.double().pow(2).mean().sqrt())
