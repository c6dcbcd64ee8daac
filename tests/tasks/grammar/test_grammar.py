"""The grammar: its ops mean what PyTorch means, its references run, and programs that prove nothing are refused."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernrl.tasks.grammar.draw_program import Names, draw_program, place_core, place_pointwise
from kernrl.tasks.grammar.generate import draw_task_program, make_task
from kernrl.tasks.grammar.pointwise import ACTIVATIONS, PARAMETERS, POINTWISE, SCALARS, Pointwise
from kernrl.tasks.grammar.producers import FAMILIES, image, linear, rows
from kernrl.tasks.grammar.program import Program, Shape
from kernrl.tasks.grammar.reductions import CORES, GRID_CORES, ROW_CORES, Core
from kernrl.tasks.grammar.soundness import is_sound
from kernrl.tasks.solutions.run_solutions import Bench

torch.set_num_threads(1)
BY_NAME: dict[str, Pointwise | Core] = {op.name: op for op in (*POINTWISE, *CORES)}


def chain(start: str, *names: str, spelling: int = 0) -> Program:
    """A program of these ops on a bare input or a linear layer, with every choice the first one."""

    class First(Random):
        def choice(self, seq):
            return seq[min(spelling, len(seq) - 1)] if isinstance(seq[0], str) else seq[0]

    rng = First(0)
    producer = {"rows": rows, "image": image, "linear": linear}[start](Random(0))
    steps, shape, taken = [], producer.after, Names("")
    for name in names:
        pool = ROW_CORES if shape.layout == "rows" else GRID_CORES
        op = next((core for core in pool if core.name == name), None) or BY_NAME[name]
        step = place_core(op, shape, rng, taken) if isinstance(op, Core) else place_pointwise(op, shape, rng, taken)
        steps.append(step)
        shape = step.after
    return Program(producer, tuple(steps), {})


@pytest.mark.slow
@pytest.mark.parametrize("op", [*ACTIVATIONS, *SCALARS], ids=lambda op: op.name)
@pytest.mark.parametrize("spelling", [0, 1, 2])
def test_every_spelling_of_a_pointwise_op_is_what_the_simulation_says(op: Pointwise, spelling: int) -> None:
    values = tuple(menu[0] for menu in op.values)
    text = op.spellings[min(spelling, len(op.spellings) - 1)].format(x="x", **dict(zip("ab", values, strict=False)))
    x = torch.linspace(-4.0, 4.0, 101, dtype=torch.float64)
    got = eval(text, {"torch": torch, "F": F, "nn": nn, "x": x})
    got = got(x) if isinstance(got, nn.Module) else got
    # the simulation has one gelu, which differs from the erf form by at most 5e-4
    np.testing.assert_allclose(op.simulate(x.numpy(), *values), got.numpy(), atol=1e-3 if op.name == "gelu" else 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
def test_references_run_at_every_size_and_have_the_shapes_they_claim(level: int) -> None:
    for index in range(40):
        program, task = draw_task_program(level, 21, index, 2 << 30), make_task(level, 21, index)
        for name in ("small", "ragged"):
            input_set = task.input_set(name)
            assert input_set is not None
            bench = Bench(task, input_set)
            with torch.no_grad():
                out = bench.model(*bench.likes)
            last = program.steps[-1].after if program.steps else program.producer.after
            assert tuple(out.shape) == last.at(program.constants(name))
            assert torch.isfinite(out).all()
            assert out.numel() < 4 or out.std() > 0


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(set(BY_NAME)))
def test_every_op_can_be_drawn_alone(op: str) -> None:
    chosen = BY_NAME[op]
    in_rows = chosen in ROW_CORES or isinstance(chosen, Pointwise)
    if chosen.name.startswith("residual"):
        assert not is_sound(chain("rows", "relu", "residual_add")) or is_sound(chain("rows", "tanh", "residual_mul"))
        return
    program = draw_program("rows" if in_rows else "image", 1, Random(op), 1 << 31, only=chosen)
    assert program.composition == (op,)


@pytest.mark.parametrize(
    ("start", "names"),
    [
        ("rows", ("relu", "relu6", "relu")),
        ("rows", ("sigmoid", "relu")),
        ("rows", ("add_scalar", "softmax")),
        ("rows", ("softmax", "sum")),
        ("image", ("add_param", "instance_norm")),
        ("image", ("instance_norm", "space_mean")),
        ("linear", ("batch_norm",)),
    ],
)
def test_programs_that_cannot_tell_right_from_wrong_are_refused(start: str, names: tuple[str, ...]) -> None:
    program = chain(start, *names)
    if start == "linear":
        # a bias before batch statistics is subtracted again
        step = place_core(BY_NAME["batch_norm"], Shape(("batch_size", "out_features"), "rows"), Random(0), Names(""))  # type: ignore[arg-type]
        program = Program(replace(program.producer, bias="self.linear.bias"), (step,), {})
    assert not is_sound(program)


@pytest.mark.parametrize(
    ("start", "names"),
    [
        ("rows", ("gelu", "layer_norm")),
        ("image", ("instance_norm", "relu", "space_mean")),
        ("rows", ("mul_param", "softmax")),
        ("linear", ("add_param", "relu", "log_softmax")),
    ],
)
def test_sensible_programs_are_kept(start: str, names: tuple[str, ...]) -> None:
    assert is_sound(chain(start, *names))


def test_parameters_are_never_drawn_at_values_that_do_nothing() -> None:
    """Each parameter and buffer moves the result: replacing it by its neutral value is seen."""
    for op in PARAMETERS:
        found = (i for i in range(600) if draw_task_program(1, 4, i, 2 << 30).composition == (op.name,))
        task = make_task(1, 4, next(found))
        bench = Bench(task, task.input_sets[1])
        with torch.no_grad():
            before = bench.model(*bench.likes)
            for name, value in bench.model.state_dict().items():
                neutral = 1.0 if any(word in name for word in ("scale", "divisor", "weight", "var")) else 0.0
                assert (value - neutral).abs().max() > 0.05, (op.name, name)
            assert before.isfinite().all()


def test_families_are_all_drawn_as_named() -> None:
    for family in FAMILIES:
        program = draw_program(family, 3, Random(family), 1 << 31)
        assert program.producer.family == family
        assert len(program.composition) == 3
