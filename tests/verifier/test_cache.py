"""The verdict cache: what it keeps, what it forgets, and that its failure costs nothing but time."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict
from kernrl.verifier.cache import VerdictCache, task_fingerprint, verdict_key

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


def test_a_full_disk_or_a_broken_file_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v.sqlite"
    path.write_bytes(b"this is no database" * 100)
    broken = VerdictCache(path)
    broken.put("key", verdict())
    assert broken.get("key") is None

    class Full:
        def execute(self, *args: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        def close(self) -> None:
            pass

    cache = VerdictCache(tmp_path / "w.sqlite")
    monkeypatch.setattr(cache, "_db", Full())
    cache.put("key", verdict())
    assert cache.get("key") is None
