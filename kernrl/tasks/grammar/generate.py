"""Endless tasks by seed: task `i` of a seed is the same on every machine and for any number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from itertools import count as count_from
from random import Random

from kernrl.errors import UsageError
from kernrl.tasks.grammar.draw_program import draw_program
from kernrl.tasks.grammar.plain_words import chain_in_words
from kernrl.tasks.grammar.pointwise import ACTIVATIONS, PARAMETERS, SCALARS, TENSORS, Pointwise
from kernrl.tasks.grammar.producers import FAMILIES, MATRICES
from kernrl.tasks.grammar.program import Program
from kernrl.tasks.grammar.reductions import CORES, Core
from kernrl.tasks.grammar.write_reference import write_reference
from kernrl.tasks.solutions.grammar_styles import write_solutions
from kernrl.tasks.split import SPLITS, split_of
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.tasks.worker_pool import worker_pool

PRECISION = "tf32"
"""Default policy of generated tasks: what people set on GPUs that have it."""
MAX_BYTES = 2 << 30
"""Default bound on what eager PyTorch holds at once at full size, in bytes of float32."""
MIN_BYTES = 128 << 20
"""Least such bound: under it hardly a full size is left that is worth timing."""
CHUNK = 16
"""Task indices a worker makes at a time."""

FAMILY_WEIGHTS = {"linear": 4, "matmul": 2, "bmm": 2, "conv2d": 4, "conv_transpose2d": 2, "rows": 2, "image": 2}
"""Shares of families in level 2; those not named have 1.5."""


def draw_task_program(level: int, seed: int, index: int, max_bytes: int) -> Program:
    """The program of task `index`: a single op (level 1), or a producer and a chain of 2 to 8 ops in all (level 2)."""
    rng = Random(f"kernrl/{level}/{seed}/{index}")
    if level == 2:
        family = rng.choices(FAMILIES, weights=[FAMILY_WEIGHTS.get(name, 1.5) for name in FAMILIES])[0]
        return draw_program(family, rng.randint(2, 8), rng, max_bytes)
    if rng.random() < 0.15:
        return draw_program(rng.choice(tuple(MATRICES)), 1, rng, max_bytes)
    op: Pointwise | Core = rng.choice((*ACTIVATIONS, *SCALARS, *PARAMETERS, *TENSORS[:5], *CORES))
    if isinstance(op, Core):
        family = "rows" if op.space == "rows" or "1d(" in op.spellings[0] else "image"
    else:
        family = rng.choice(("rows", "image"))
    return draw_program(family, 1, rng, max_bytes, only=op)


def make_task(level: int, seed: int, index: int, max_bytes: int = MAX_BYTES, precision: str = PRECISION) -> Task:
    """Task `index` of a seed, with its worked solutions."""
    program = draw_task_program(level, seed, index, max_bytes)
    rng = Random(f"kernrl/{level}/{seed}/{index}/solutions")
    inputs = (InputSet(FULL), *(InputSet(name, program.sizes[name]) for name in ("small", "ragged")))
    words = chain_in_words(program.composition)  # the code's docstring keeps the names, as recorded results are of that code
    return Task(
        id=f"gen-{level}-{seed}-{index:06d}",
        pytorch_code=write_reference(program),
        level=level,
        name="_".join(program.composition),
        family=program.producer.family,
        composition=program.composition,
        split=split_of(program.composition),
        instruction=f"Write a Triton version of this PyTorch module: {words}.",
        precision=precision,
        input_sets=inputs,
        solutions=write_solutions(program, rng),
    )


def _make_chunk(start: int, *, level: int, seed: int, split: str | None, max_bytes: int, precision: str) -> list[Task]:
    tasks = (make_task(level, seed, index, max_bytes, precision) for index in range(start, start + CHUNK))
    return [task for task in tasks if split is None or task.split == split]


def generate_tasks(
    *,
    level: int = 2,
    count: int,
    seed: int = 0,
    split: str | None = None,
    workers: int | None = None,
    max_bytes: int = MAX_BYTES,
    precision: str = PRECISION,
) -> Iterator[Task]:
    """Yield `count` tasks in order of their index, those of one split alone when `split` names it.

    The result depends on level, seed, split and max_bytes only, never on `workers` (processes; None or 1 works in this
    one), and `precision` changes that one field. Raises UsageError for a level other than 1 and 2, an unknown split, or a
    max_bytes under 128 MiB.
    """
    if level not in (1, 2):
        raise UsageError(f"Level {level} cannot be generated: choose 1 (single ops) or 2 (fusion chains).")
    if split is not None and split not in SPLITS:
        raise UsageError(f"Unknown split {split!r}: choose one of {', '.join(SPLITS)}.")
    if max_bytes < MIN_BYTES:
        raise UsageError(f"{max_bytes} bytes are too few for full-size tasks: allow at least {MIN_BYTES} (128 MiB).")
    make = partial(_make_chunk, level=level, seed=seed, split=split, max_bytes=max_bytes, precision=precision)
    starts = count_from(0, CHUNK)
    workers = min(workers or 1, -(-count // CHUNK))  # a pool starts as many processes as it is told to
    if workers <= 1:
        yield from islice(chain.from_iterable(map(make, starts)), count)
        return
    made = 0
    with worker_pool(workers) as mapped:
        while made < count:
            # one wave of chunks at a time keeps the order and never runs far past `count`
            for tasks in mapped(make, list(islice(starts, 4 * workers))):
                fresh = tasks[: count - made]
                made += len(fresh)
                yield from fresh
