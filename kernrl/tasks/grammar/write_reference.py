"""Writes a program as a KernelBench-style PyTorch module that reads as if a person had written it."""

from __future__ import annotations

import re

from kernrl.tasks.grammar.program import RESIDUAL, Program

IMPORTS = ("import torch", "import torch.nn as nn", "import torch.nn.functional as F")


def imports_for(text: str) -> list[str]:
    """The import lines that `text` needs."""
    needed = {"import torch": True, "import torch.nn as nn": "nn." in text, "import torch.nn.functional as F": "F." in text}
    return [line for line in IMPORTS if needed[line]]


def init_arguments(program: Program) -> list[str]:
    """Constants that `__init__` takes: those its lines name, in the order in which they name them."""
    text = "\n".join((*program.state, *(step.module for step in program.steps)))
    constants = program.constants("full")
    return list(dict.fromkeys(word for word in re.findall(r"[a-z_]+", text) if word in constants))


def describe(program: Program) -> str:
    """The chain in words: `linear, gelu, then layer norm`."""
    words = [name.replace("_", " ") for name in program.composition]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + ", then " + words[-1]


def write_reference(program: Program) -> str:
    """The task's source: `Model`, the constants of the full input set, `get_inputs`, `get_init_inputs`."""
    init = list(program.producer.state)
    forward: list[str] = []
    if program.producer.expression != "x":
        forward.append(f"x = {program.producer.expression}")
    if program.has_residual:
        forward.append(f"{RESIDUAL} = x")
    for step in program.steps:
        init += [*step.state, *([step.module] if step.module else [])]
        forward.append("x = " + step.spelling.replace("{x}", "x"))
    arguments = init_arguments(program)
    names = ", ".join(name for name, _ in program.inputs)
    tensors = ", ".join("torch.randn(" + ", ".join(dims) + ")" for _, dims in program.inputs)
    body = [
        "class Model(nn.Module):",
        f'    """{describe(program).capitalize()}."""',
        "",
        f"    def __init__({', '.join(['self', *arguments])}):",
        "        super().__init__()",
        *(f"        {line}" for line in init),
        "",
        f"    def forward(self, {names}):",
        *(f"        {line}" for line in forward),
        "        return x",
        "",
        "",
        *(f"{name} = {value}" for name, value in program.constants("full").items()),
        "",
        "",
        "def get_inputs():",
        f"    return [{tensors}]",
        "",
        "",
        "def get_init_inputs():",
        f"    return [{', '.join(arguments)}]",
        "",
    ]
    return "\n".join([*imports_for("\n".join(body)), "", "", *body])
