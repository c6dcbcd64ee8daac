"""The generator: the same tasks everywhere, the right splits, within bounds."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import pytest

from kernrl.errors import UsageError
from kernrl.tasks.grammar.generate import draw_task_program, generate_tasks, make_task
from kernrl.tasks.grammar.plain_words import in_words
from kernrl.tasks.grammar.pointwise import ACTIVATIONS, PARAMETERS, SCALARS, TENSORS
from kernrl.tasks.grammar.producers import FAMILIES
from kernrl.tasks.grammar.reductions import CORES
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.split import SPLITS, split_of
from kernrl.tasks.task import task_fingerprint

MANY = 1000


@pytest.fixture(scope="module")
def many() -> list[tuple[str, tuple[str, ...], str]]:
    """(family, composition, split) of many tasks: programs alone, without their solutions."""
    programs = (draw_task_program(2, 3, index, 2 << 30) for index in range(MANY))
    return [(p.producer.family, p.composition, split_of(p.composition)) for p in programs]


@pytest.mark.slow
def test_tasks_do_not_depend_on_workers() -> None:
    alone = list(generate_tasks(count=70, seed=5))
    assert list(generate_tasks(count=70, seed=5, workers=2)) == alone
    assert list(generate_tasks(count=9, seed=5)) == alone[:9]
    assert list(generate_tasks(count=5, seed=6)) != alone[:5]


@pytest.mark.slow
def test_no_more_processes_are_started_than_there_is_work_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers: int, mp_context: object) -> None:
            asked.append(workers)
            super().__init__(1)

    monkeypatch.setattr("kernrl.tasks.worker_pool.ProcessPoolExecutor", Pool)
    assert list(generate_tasks(count=33, workers=5000)) == list(generate_tasks(count=33))
    assert asked == [3]  # of 16 tasks each


def test_a_task_is_the_same_on_every_machine() -> None:
    task = make_task(2, 0, 0)
    assert task.composition == ("linear", "hardswish", "sub_param", "max_param", "relu")
    assert task.id == "gen-2-0-000000"


@pytest.mark.slow
def test_one_split_alone_is_the_whole_filtered() -> None:
    held = list(generate_tasks(count=6, seed=5, split="heldout"))
    assert all(task.split == "heldout" for task in held)
    everything = generate_tasks(count=200, seed=5)
    assert list(islice((task for task in everything if task.split == "heldout"), 6)) == held


@pytest.mark.slow
def test_no_heldout_composition_is_in_train(many: list) -> None:
    by_split = {name: {composition for _, composition, split in many if split == name} for name in SPLITS}
    assert not by_split["heldout"] & by_split["train"]
    assert not by_split["heldout"] & by_split["validation"]
    shares = Counter(split for _, _, split in many)
    assert 0.76 < shares["train"] / MANY < 0.84
    assert 0.07 < shares["heldout"] / MANY < 0.13


def test_the_split_is_stable() -> None:
    assert split_of(("linear", "relu")) == split_of(["linear", "relu"])
    assert {split_of(("linear", "relu", str(i))) for i in range(100)} == set(SPLITS)


@pytest.mark.slow
def test_level_2_spans_families_and_depths(many: list) -> None:
    families = Counter(family for family, _, _ in many)
    assert set(families) == set(FAMILIES)
    assert min(families.values()) > MANY / 50
    depths = Counter(len(composition) for _, composition, _ in many)
    assert set(depths) == set(range(2, 9))
    assert min(depths.values()) > MANY / 12
    assert len({composition for _, composition, _ in many}) > 0.95 * MANY


def test_memory_is_bounded() -> None:
    for index in range(20):
        program = draw_task_program(2, 1, index, 256 << 20)
        assert program.peak_bytes("full") <= 256 << 20
        assert program.peak_bytes("small") < 1 << 20


@pytest.mark.slow
def test_every_task_has_several_different_solutions() -> None:
    tasks = list(generate_tasks(count=40, seed=2))
    codes = [[solution.triton_code for solution in task.solutions] for task in tasks]
    assert all(len(set(texts)) == len(texts) for texts in codes)
    assert all(2 <= len(texts) <= 6 for texts in codes)
    assert sum(len(texts) for texts in codes) > 3 * len(codes)


def test_generation_does_not_load_torch() -> None:
    code = (
        "import sys; from kernrl.tasks.grammar.generate import make_task; make_task(2, 0, 0); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("arguments", [{"level": 3}, {"split": "test"}, {"max_bytes": 1 << 20}])
def test_bad_arguments_are_usage_errors(arguments: dict) -> None:
    with pytest.raises(UsageError):
        next(generate_tasks(count=1, **arguments))


def test_the_shipped_suite_is_held_out_and_spans_the_families() -> None:
    loaded = load_tasks("heldout")
    assert not loaded.problems
    assert len(loaded.tasks) == 64
    assert {task.family for task in loaded.tasks} == set(FAMILIES)
    assert {len(task.composition) for task in loaded.tasks} == set(range(2, 9))
    assert len({task.composition for task in loaded.tasks}) == 64
    assert all(task.split == split_of(task.composition) == "heldout" for task in loaded.tasks)
    assert all(task.solutions for task in loaded.tasks)


def test_the_shipped_suite_is_what_the_generator_makes() -> None:
    for shipped in load_tasks("heldout").tasks[::16]:
        _, level, seed, index = shipped.id.split("-")
        assert make_task(int(level), int(seed), int(index)) == shipped
    assert {task.precision for task in load_tasks("heldout").tasks} == {"tf32"}


def test_a_precision_changes_nothing_but_itself() -> None:
    [made, asked] = (next(generate_tasks(count=1, seed=5, **precision)) for precision in ({}, {"precision": "bf16"}))
    assert (made.precision, asked.precision) == ("tf32", "bf16")
    assert replace(asked, precision="tf32") == made


def test_an_instruction_is_in_plain_words_and_the_code_as_it_was() -> None:
    """The docstring of the code keeps the names of ops: verdicts, caches and recorded results are of that code."""
    task = make_task(2, 0, 0)
    words = "linear layer, hard swish, subtraction of a parameter, maximum with a parameter, then ReLU"
    assert task.instruction == f"Write a Triton version of this PyTorch module: {words}."
    assert '"""Linear, hardswish, sub param, max param, then relu."""' in task.pytorch_code
    assert task_fingerprint(task) == task_fingerprint(replace(task, instruction="Mind the bias."))


def test_every_op_has_plain_words() -> None:
    ops = {op for shipped in load_tasks("heldout").tasks for op in shipped.composition}
    ops |= {op.name for op in (*ACTIVATIONS, *SCALARS, *PARAMETERS, *TENSORS, *CORES)}
    assert len(ops) > 70
    for op in ops:
        jargon = r"_|\b(param|scalar|tensor|space|channel|conv|bmm|matmul|logsumexp|relu|elu|gelu|min|max(?! pool))\b"
        assert not re.search(jargon, in_words(op)), in_words(op)
    assert [in_words(op) for op in ("conv_transpose1d", "space_mean", "channel_logsumexp")] == [
        "transposed 1D convolution",
        "mean over all positions",
        "logarithm of the sum of exponentials over the channels",
    ]
