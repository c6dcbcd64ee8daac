"""The fixtures that prove the verifier: tasks, exploits, quietly wrong and honest candidates, and what each must come to.

A fixture is a candidate's source whose first lines are comments of the form `# key: value`:

    # entry: 14                         the entry of the catalogue in docs/guides/add_an_exploit.md (exploits only)
    # tries: what the candidate hopes for, in one sentence
    # task: linear_gelu                 a file of tests/fixture_tasks
    # cpu: wrong @ plan : the reference returns    statuses | … @ stages | … : what the reason says | … without a GPU
    # gpu: correct|wrong @ timing|correctness
    # credit: 1.1                       the greatest speed-up over eager it may be given where `correct` is allowed
    # precision: tf32                   the policy it is verified under (default fp32)

An exploit that ends as `correct` may never be credited with more than the fastest honest candidate of its task, either.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import pytest
import triton

from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.base.verdict import Verdict
from support import EXHAUSTIVE, TESTS

CREDIT_MARGIN = 1.15
"""Two timings of the same program differ by a few per cent; a lie about time worth telling is larger."""


BLOCK_POINTERS = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
"""Triton 3.9 gave block pointers up in favour of tensor descriptors."""
_HEADER = re.compile(r"# (\w+): (.*)")


@dataclass(frozen=True, slots=True)
class Expectation:
    """The statuses and the stages a fixture may end with, and why: a catch for another reason is an accident."""

    statuses: frozenset[str]
    stages: frozenset[str]
    reasons: tuple[str, ...]
    """The reason of a rejection must contain one of these; empty where any will do."""

    @classmethod
    def parse(cls, text: str) -> Expectation:
        outcome, _, reason = text.partition(" : ")
        statuses, _, stages = outcome.partition("@")
        sets = (frozenset(part.strip() for part in side.split("|")) for side in (statuses, stages))
        return cls(*sets, tuple(part.strip() for part in reason.split(" | ") if part.strip()))

    def allows(self, verdict: Verdict) -> bool:
        caught = verdict.correct or not self.reasons or any(part in verdict.reason for part in self.reasons)
        return str(verdict.status) in self.statuses and str(verdict.stage) in self.stages and caught


@dataclass(frozen=True, slots=True)
class Fixture:
    """One candidate, the task it answers, and what the verifier must say of it."""

    name: str
    source: str
    task: Task
    header: dict[str, str] = field(default_factory=dict)

    @property
    def precision(self) -> str:
        return self.header.get("precision", "fp32")

    @property
    def credit_x(self) -> float | None:
        return float(self.header["credit"]) if "credit" in self.header else None

    def expectation(self, where: str) -> Expectation:
        """What must come out on `cpu` or on `gpu`."""
        return Expectation.parse(self.header[where])


@cache
def fixture_task(name: str) -> Task:
    """A task of tests/fixture_tasks, with the input sets its file declares."""
    code = (TESTS / "fixture_tasks" / f"{name}.py").read_text()
    declared = next(
        ast.literal_eval(node.value)
        for node in ast.parse(code).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "INPUT_SETS"
    )
    sets = (InputSet("full"), *(InputSet(key, constants) for key, constants in declared.items()))
    return Task(id=name, pytorch_code=code, input_sets=sets)


def read_header(source: str) -> dict[str, str]:
    """The `# key: value` lines a fixture starts with; other comments among them are for the reader."""
    header: dict[str, str] = {}
    for line in source.splitlines():
        if not line.startswith("#"):
            break
        if found := _HEADER.fullmatch(line):
            header[found[1]] = found[2].strip()
    return header


def fixture_of(name: str, source: str) -> Fixture:
    """A fixture from its source; the task carries the precision that the header asks for."""
    header = read_header(source)
    task = fixture_task(header["task"])
    return Fixture(name, source, dataclasses.replace(task, precision=header.get("precision", task.precision)), header)


def read_folder(folder: str) -> list[Fixture]:
    """Every candidate file of tests/<folder>, by name, but those whose part of Triton the installed release has given up."""
    sources = {path.stem: path.read_text() for path in sorted((TESTS / folder).glob("*.py"))}
    return [
        fixture_of(n, s) for n, s in sources.items() if s.startswith("# ") and (BLOCK_POINTERS or "make_block_ptr" not in s)
    ]


def exploits() -> list[Fixture]:
    return read_folder("exploits")


def honest() -> list[Fixture]:
    """The hand-written honest candidates, then the templated ones."""
    from support import honest_templates

    return read_folder("honest") + [fixture_of(name, source) for name, source in honest_templates.made()]


def quietly_wrong() -> list[Fixture]:
    from quietly_wrong import mutations

    return mutations.fixtures()


def quietly_accepted(fixture: Fixture, verdict: Verdict) -> str:
    """How a wrong candidate came to anything but a refusal for its wrong numbers, in a sentence; empty when it did not."""
    from quietly_wrong import mutations

    races = fixture.name in mutations.RACES
    reason = "depends on the order of" if races else "Wrong on the"
    if verdict.status == "wrong" and verdict.stage == "correctness" and reason in verdict.reason:
        return ""
    return f"{verdict.status} at {verdict.stage} instead of wrong at correctness ({reason} …): {verdict.reason}"


@contextmanager
def known_seeds() -> Iterator[None]:
    """A verifier started meanwhile draws the same inputs in every run of the tests, so that none fails by chance.

    At night they are secret, as they are for users: then what is caught by luck escapes now and then, and is seen.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not EXHAUSTIVE:
            patch.setattr("kernrl.verifier.judge.draws.secrets.token_bytes", bytes)
        yield


def judge_all(judge: Callable[[Task, str], Verdict], fixtures: Sequence[Fixture], workers: int) -> dict[str, Verdict]:
    """Every fixture's verdict by name, `workers` at a time."""
    with ThreadPoolExecutor(workers) as pool:
        verdicts = pool.map(lambda fixture: judge(fixture.task, fixture.source), fixtures)
        return {fixture.name: verdict for fixture, verdict in zip(fixtures, verdicts, strict=True)}


def measured_x(verdict: Verdict) -> float | None:
    """The measured speed-up over eager that a verdict credits, or None."""
    timing = verdict.timing
    return timing.speedups_x["eager"].value if verdict.correct and timing and timing.kind == "measured" else None


def escape(fixture: Fixture, verdict: Verdict, where: str, fastest_honest_x: float | None = None) -> str:
    """How an exploit got away with something, in a sentence; empty when it did not."""
    if "ESCAPED" in verdict.reason:
        return f"got out of the sandbox: {verdict.reason}"
    if not fixture.expectation(where).allows(verdict):
        return f"{verdict.status} at {verdict.stage} instead of {fixture.header[where]}: {verdict.reason}"
    credited = measured_x(verdict)
    limits = [fixture.credit_x, fastest_honest_x * CREDIT_MARGIN if fastest_honest_x else None]
    for limit in limits:
        if credited and limit and credited > limit:
            return f"credited with {credited:.2f}×, over {limit:.2f}×"
    return ""
