"""Tasks of a line or two, and what Triton's interpreter says of the solutions that are written for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.task import FULL, InputSet, Task
from support import interpreted


def ask(requests: Sequence[dict]) -> list[list[list[str]]]:
    """[style, code, what is wrong] of every solution, for each request."""
    return list(interpreted.ask("graph_solution_worker", requests))


def rows_of(task: Task) -> list[list]:
    """The input sets of a task for `task_sets` of a request, so that they are derived once."""
    return [[s.name, dict(s.constants)] for s in task.input_sets if s.name != FULL]


def module(init: str, forward: str, inputs: str, arguments: str = "self, x", **sizes: int) -> str:
    """A task's source, with the sizes that it names: B, C, H and W, some perhaps others than usual."""
    all_sizes = {"B": 6, "C": 12, "H": 18, "W": 20} | sizes
    named = {"C", *re.findall(r"\b[BHW]\b", f"{init} {forward} {inputs}")}
    constants = "\n".join(f"{name} = {size}" for name, size in all_sizes.items() if name in named)
    return f"""
import torch
from torch import nn
import torch.nn.functional as F

{constants}


class Model(nn.Module):
    def __init__(self, C):
        super().__init__()
        {init}

    def forward({arguments}):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [C]
"""


IMAGE, ROWS = "torch.randn(B, C, H, W)", "torch.randn(H, C)"


def on_a_cpu(task: Task) -> Task | None:
    """The task with its small set for its full one; None where it has none."""
    task = with_input_sets(task)
    small, ragged = task.input_set("small"), task.input_set("ragged")
    if small is None or ragged is None:
        return None
    return Task(task.id, task.source_at(small), precision=task.precision, input_sets=(InputSet(FULL), ragged))


def compiled_product(code: str, folder: Path, element: str):
    """The product's kernel as machine code for Hopper, which needs no GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel

    from kernrl.tasks.solutions.run_solutions import load_module

    function = load_module(code, folder / "solution.py").product_kernel
    calls = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Call) and "product_kernel[" in ast.unparse(n.func)]
    numbers = {k.arg: ast.literal_eval(k.value) for k in calls[0].keywords}
    found = re.findall(r"^ *(\w+) = TensorDescriptor\.from_tensor\(.*?(\[[\d, ]+\])\s*\)$", code, re.MULTILINE | re.DOTALL)
    blocks = dict(found)
    signature, constants, hints = {}, {}, {}
    for i, name in enumerate(function.arg_names):
        if name in numbers:
            signature[name], constants[(i,)] = "constexpr", numbers[name]
        elif name in blocks:
            signature[name] = f"tensordesc<{element}{blocks[name]}>"
        else:
            signature[name] = f"*{element}" if name.endswith("_ptr") else "i32"
            hints[(i,)] = [["tt.divisibility", 16]]
    options = {k: numbers[k] for k in ("num_warps", "num_stages")}
    return compile_kernel(ASTSource(function, signature, constants, hints), GPUTarget("cuda", 90, 32), options)
