"""The fixtures that prove the verifier: tasks, exploits, quietly wrong and honest candidates, and what each must come to.

A fixture is a candidate's source whose first lines are comments of the form `# key: value`:

    # entry: 14                         the entry of the catalogue in docs/verifier.md (exploits only)
    # tries: what the candidate hopes for, in one sentence
    # task: linear_gelu                 a file of tests/fixture_tasks
    # cpu: wrong @ correctness          statuses | … @ stages | … allowed without a GPU
    # gpu: correct|wrong @ timing|correctness
    # credit: 1.1                       the greatest speed-up it may be given where `correct` is allowed
    # precision: tf32                   the policy it is verified under (default fp32)
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.verdict import Verdict

HERE = Path(__file__).parent
_HEADER = re.compile(r"# (\w+): (.*)")


@dataclass(frozen=True, slots=True)
class Expectation:
    """The statuses and the stages a fixture may end with."""

    statuses: frozenset[str]
    stages: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Expectation:
        statuses, _, stages = text.partition("@")
        return cls(*(frozenset(part.strip() for part in side.split("|")) for side in (statuses, stages)))

    def allows(self, verdict: Verdict) -> bool:
        return str(verdict.status) in self.statuses and str(verdict.stage) in self.stages


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
    code = (HERE / "fixture_tasks" / f"{name}.py").read_text()
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
    header = read_header(source)
    return Fixture(name, source, fixture_task(header["task"]), header)


def read_folder(folder: str) -> list[Fixture]:
    """Every candidate file of tests/<folder>, by name."""
    paths = sorted((HERE / folder).glob("*.py"))
    return [fixture_of(path.stem, path.read_text()) for path in paths if path.read_text().startswith("# ")]
