"""The verdict cache: what it keeps, what it forgets, and that its failure costs nothing but time."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import ROOT

from kernrl.config import VerifierConfig
from kernrl.tasks.task import InputSet, Task, task_fingerprint
from kernrl.verifier.base import version
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict
from kernrl.verifier.base.version import verifier_version, version_of
from kernrl.verifier.cache import VerdictCache, verdict_key
from kernrl.verifier.funnel import StagedEvaluator

TIMING = Timing("measured", "GPU", 10.0, {"eager": 20.0}, {"eager": Speedup(2.0, 1.9, 2.1, True)}, 0.1, 0.01)


def verdict(status: Status = Status.CORRECT) -> Verdict:
    return Verdict(status, Stage.TIMING, "", "task", "abc", "fp32", TIMING, [{"excess": 0.5}], {"launches": 1}, {"trace": 0.1})


def test_a_verdict_comes_back_as_it_was_and_marked(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "deep" / "verdicts.sqlite")
    cache.put("key", verdict())
    found = cache.get("key")
    assert found
    assert found.cached
    assert {**found.to_json(), "cached": False} == verdict().to_json()
    assert cache.get("other") is None
    cache.close()
    assert VerdictCache(tmp_path / "deep" / "verdicts.sqlite").get("key")


@pytest.mark.parametrize("status", [Status.INFRA_ERROR, Status.TIMEOUT])
def test_what_may_come_out_otherwise_is_not_kept(tmp_path: Path, status: Status) -> None:
    cache = VerdictCache(tmp_path / "v.sqlite")
    cache.put("key", verdict(status))
    assert cache.get("key") is None


def test_a_key_depends_on_code_shapes_candidate_and_conditions() -> None:
    task = Task("a", "code")
    renamed, wider = Task("b", "code"), Task("a", "code", input_sets=(InputSet("full"), InputSet("small", {"N": 1})))
    assert task_fingerprint(task) == task_fingerprint(renamed) != task_fingerprint(wider)
    keys = {
        verdict_key(task, "1", ["fp32"]),
        verdict_key(task, "2", ["fp32"]),
        verdict_key(task, "1", ["bf16"]),
        verdict_key(wider, "1", ["fp32"]),
    }
    assert len(keys) == 4


def version_in(folder: Path) -> str:
    """The version by which the verifier of a copy of the package calls itself."""
    code = "from kernrl.verifier.base.version import verifier_version; print(verifier_version())"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_key_covers_every_file_of_the_verifier_wherever_it_lies(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "kernrl", tmp_path / "kernrl", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "kernrl" / "verifier"
    before = version_in(tmp_path)
    assert before == verifier_version(), "the place of the package does not count"

    edited = folder / "plan" / "checks.py"
    edited.write_text(edited.read_text() + "\n")
    after_edit = version_in(tmp_path)
    (folder / "judge" / "compare.py").rename(folder / "judge" / "comparison.py")
    after_move = version_in(tmp_path)
    (folder / "judge" / "deeper").mkdir()
    (folder / "judge" / "comparison.py").rename(folder / "judge" / "deeper" / "comparison.py")
    after_nesting = version_in(tmp_path)
    mode = tmp_path / "kernrl" / "tasks" / "eval_mode.py"
    mode.write_text(mode.read_text() + "\n")
    after_another_mode = version_in(tmp_path)
    versions = [before, after_edit, after_move, after_nesting, after_another_mode]
    assert len({verdict_key(Task("a", "code"), "1", [version]) for version in versions}) == 5


def test_verdicts_are_kept_under_the_verifiers_version() -> None:
    evaluator = StagedEvaluator(VerifierConfig(device="cpu", cache=False, workers=1))
    assert verifier_version() in evaluator.versions.values()


def test_a_version_of_some_modules_depends_on_these_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "PACKAGE", tmp_path)
    modules = []
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.py").write_text(name)
        modules.append(ModuleType(name))
        modules[-1].__file__ = str(tmp_path / f"{name}.py")
    before = version_of(*modules[:2])
    (tmp_path / "c.py").write_text("changed")
    assert version_of(*modules[:2]) == before
    assert version_of(*modules) != before
    (tmp_path / "b.py").write_text("changed")
    assert version_of(*modules[:2]) != before


def test_a_full_disk_or_a_broken_file_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v.sqlite"
    path.write_bytes(b"this is no database" * 100)
    broken = VerdictCache(path)
    broken.put("key", verdict())
    assert broken.get("key") is None

    class Full(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if sql.startswith("INSERT"):
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *args)

    monkeypatch.setattr("kernrl.verifier.cache.sqlite3.connect", partial(sqlite3.connect, factory=Full))
    cache = VerdictCache(tmp_path / "w.sqlite")
    cache.put("key", verdict())
    assert cache.get("key") is None
