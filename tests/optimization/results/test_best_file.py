"""best.py: what was judged byte for byte, and a check that finds what is wrong."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import EXHAUSTIVE
from support.tiny import verdict_of

from kernrl.files import replace_file
from kernrl.optimization.results import self_check
from kernrl.optimization.results.best_file import CHECK, best_file, judged_source
from kernrl.optimization.search.trials import Proposal, Trial
from kernrl.tasks.constants import Constant, edits, override_constants
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.base.verdict import Speedup, Timing, Verdict

CHECKING = Path(self_check.__file__).read_text(encoding="utf-8").partition(CHECK)[2]
"""What every best.py ends with."""

REFERENCE = '''"""A quote ' and a back\\\\slash."""
import torch
from torch import nn

N, M = 64, 32


class Model(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.norm = nn.LayerNorm(m)

    def forward(self, x):
        return self.norm(x) * 2


def get_inputs():
    return [torch.randn(N, M)]


def get_init_inputs():
    return [M]
'''
CANDIDATE = """from __future__ import annotations
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.norm = nn.LayerNorm(m)

    def forward(self, x: Undefined):
        y = x - x.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)
        return (y * self.norm.weight + self.norm.bias) * 2"""
"""Ends without a newline, and begins with what must come first in a file."""


def trial(source: str, verdict: Verdict | None = None) -> Trial:
    errors = [{"input_set": name, "regime": "normal", "excess": 0.25} for name in ("small", "small", "ragged")]
    timing = Timing("modelled", "NVIDIA H200", 5.0, {"eager": 10.0}, {"eager": Speedup(2.0, 2.0, 2.0, False)})
    row = verdict_of(source).to_json() | {"errors": errors, "plan": {"bytes_moved": 1 << 30}, "notes": ["Nobody looked at X."]}
    plain = Verdict.from_json(row)
    return Trial("style-0", Proposal(source, "style", "fused"), verdict or Verdict.from_json(
        plain.to_json() | {"timing": {"kind": timing.kind, "device": timing.device, "candidate_us": 5.0,
        "baseline_us": {"eager": 10.0}, "unfused_share": 0.0, "noise": 0.0,
        "speedups_x": {"eager": {"value": 2.0, "low": 2.0, "high": 2.0, "significant": False}}}}), 1.0)  # fmt: skip


@pytest.fixture
def task() -> Task:
    sets = (InputSet("full"), InputSet("small", {"N": 2, "M": 16}, True), InputSet("ragged", {"N": 3, "M": 11}, True))
    return Task("my/task", REFERENCE, input_sets=sets)


def run(path: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, env=environment)


def test_the_header_says_when_fewer_operations_were_done(task: Task) -> None:
    note = "It does 0.5 of the floating-point operations that the reference asks for."
    row = trial(CANDIDATE).verdict.to_json()
    said = best_file(
        task, trial(CANDIDATE, Verdict.from_json(row | {"notes": [note, "Nobody looked at X."]})), {"date": "2026"}
    )
    assert f"# - Fewer operations: {note}" in said
    assert "# - Not checked: Nobody looked at X." in said
    assert "Not checked: It does" not in said
    assert "Fewer operations" not in best_file(task, trial(CANDIDATE), {"date": "2026"})


def test_it_names_the_sizes_of_the_verdict_and_checks_at_those(task: Task) -> None:
    """A verdict may be about other sets of the same names: those at which the task's numbers stay."""
    plan = {"sets": {"small": {"N": 5, "SHAPE": [1, 2]}, "full": {}}}
    task = replace(task, pytorch_code=f"SHAPE = (3, 4)\n{REFERENCE}")
    text = best_file(
        task, trial(CANDIDATE, Verdict.from_json(trial(CANDIDATE).verdict.to_json() | {"plan": plan})), {"date": "2026"}
    )
    assert "small (N=5, SHAPE=(1, 2))" in " ".join(text.partition("# --- judged")[0].split("\n# "))
    assert "'small': {'N': 5, 'SHAPE': (1, 2)}" in text


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n# é \x0c", "\n# --- judged source: ends\nx = 1\n"])
def test_the_judged_source_is_in_it_byte_for_byte(task: Task, tmp_path: Path, end: str) -> None:
    judged = trial(CANDIDATE + end)
    replace_file(tmp_path / "best.py", best_file(task, judged, {"date": "2026-01-02"}))
    text = (tmp_path / "best.py").read_bytes().decode()
    assert judged_source(text) == CANDIDATE + end
    assert hashlib.sha256(judged_source(text).encode()).hexdigest() == judged.verdict.candidate_sha
    compile(text, "best.py", "exec")  # `from __future__` still comes first


def test_a_best_file_may_be_the_candidate_and_the_module_of_the_next(task: Task) -> None:
    first = best_file(task, trial(CANDIDATE), {"date": "2026-01-02"})
    second = best_file(replace(task, pytorch_code=first, input_sets=(InputSet("full"),)), trial(first), {"date": "2026-01-03"})
    assert judged_source(second) == first
    assert judged_source(judged_source(second)) == CANDIDATE


def test_the_header_says_what_is_modelled_checked_and_not(task: Task) -> None:
    header = " ".join(best_file(task, trial(CANDIDATE), {"date": "2026-01-02"}).partition("# --- judged")[0].split("\n# "))
    header = " ".join(header.split())
    assert "MODELLED" in header
    assert "small (N=2, M=16), 2 inputs (normal), largest error 0.25 of its tolerance; ragged (N=3, M=11), 1 input" in header
    assert "Not checked: the module's own sizes, which need a GPU." in header
    assert "Not checked: Nobody looked at X." in header
    assert "gradients" in header


def test_the_header_names_the_module_and_what_a_variant_is_of(task: Task) -> None:
    found = trial(CANDIDATE)
    variant = replace(found, proposal=Proposal(CANDIDATE, "variant", "num_stages=4", "style-0", of="product-split2, BLOCK=64"))
    lines = best_file(task, variant, {"date": "2026-01-02", "module": "nets/mine.py"}).splitlines()
    assert lines[1] == "#"  # the title stands alone
    assert any(line.startswith("# - Replaces: `nets/mine.py`, whose source has the sha256") for line in lines)
    assert any("style-0, variant of product-split2, BLOCK=64 (num_stages=4); sha256" in line for line in lines)
    assert any("style-0, style fused; sha256" in line for line in best_file(task, found, {"date": "2026"}).splitlines())
    assert lines[lines.index(next(line for line in lines if line.startswith("# --- judged"))) - 1] == ""


def test_the_reference_in_it_is_the_module_that_it_replaces(task: Task) -> None:
    text = best_file(task, trial(CANDIDATE), {"date": "2026-01-02"})
    held = next(s for s in ast.parse(text).body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "KERNRL")
    data = ast.literal_eval(held.value)
    assert data["reference"] == REFERENCE
    assert data["input_sets"] == {"full": {}, "small": {"N": 2, "M": 16}, "ragged": {"N": 3, "M": 11}}
    assert data["edits"].keys() == {"small", "ragged"}
    assert data["full_is_large"] is True


@pytest.mark.slow
def test_it_checks_a_module_whose_arguments_are_given_by_name(task: Task, tmp_path: Path) -> None:
    named = replace(task, pytorch_code=task.pytorch_code.replace("return [M]", "return [[], {'m': M}]"))
    assert named != task
    best = tmp_path / "best.py"
    best.write_text(best_file(named, trial(CANDIDATE), {"date": "2026-01-02"}))
    done = run(best)
    assert done.returncode == 0, done.stderr
    assert "ragged: agrees" in done.stdout


@pytest.mark.slow
def test_it_checks_itself_and_finds_what_is_wrong(task: Task, tmp_path: Path) -> None:
    best = tmp_path / "best.py"
    best.write_text(best_file(task, trial(CANDIDATE), {"date": "2026-01-02"}))
    done = run(best)
    assert done.returncode == 0, done.stderr
    assert "small: agrees" in done.stdout
    assert "ragged: agrees" in done.stdout
    assert "nothing is timed" in done.stdout
    mistakes = [CANDIDATE + ".0 * (1 + 2**-10)", CANDIDATE.replace(" + self.norm.bias", ""), CANDIDATE.replace("1e-5", "1e-2")]
    for wrong in mistakes if EXHAUSTIVE else mistakes[:1]:  # each is a process that imports torch
        best.write_text(best_file(task, trial(wrong), {"date": "2026-01-02"}))
        done = run(best)
        assert done.returncode == 1, wrong
        assert "output 0 is off by" in done.stdout


def test_a_file_of_several_tuples_and_chains_is_checked_at_small_sizes(tmp_path: Path) -> None:
    """The constants of a reference are overridden in every form that input sets know."""
    namespace: dict[str, object] = {"__name__": "best"}
    source = "SHAPE = (3, 64)\nH = W = 128\nA, B = 2, 4\nC: int = 9\nD = A * B\n"
    exec(compile(CHECKING, "check", "exec"), namespace)
    constants: dict[str, Constant] = {"SHAPE": (1, 2), "W": 8, "A": 7, "C": 1}
    namespace["KERNRL"] = {"reference": source, "edits": {"small": edits(source, constants)}}
    module = namespace["_reference"]("small")  # pyright: ignore
    assert (module.SHAPE, module.H, module.W, module.A, module.B, module.C, module.D) == ((1, 2), 128, 8, 7, 4, 1, 28)


def test_the_check_changes_numbers_that_one_name_holds_together() -> None:
    namespace: dict[str, object] = {"__name__": "best"}
    source = (
        "from dataclasses import dataclass\nCFG = {'rows': 64, 'shape': (8, 9), 'kept': 3}\nmore = dict(rows=5, columns=6)\n"
        "@dataclass\nclass Config:\n    rows: int = 1\n    columns: int = 2\nmade = Config(columns=7)\nplain = Config()\n"
        "größe = 1\ndef get_inputs(): return 64\n"
    )
    exec(compile(CHECKING, "check", "exec"), namespace)
    constants: dict[str, Constant] = {
        "CFG.rows": 4, "CFG.shape": (1, 2), "more.columns": 11, "Config.rows": 12, "made.columns": 13, "get_inputs.0": 7,
    }  # fmt: skip
    namespace["KERNRL"] = {"reference": source, "edits": {"small": edits(source, constants)}}
    module = namespace["_reference"]("small")  # pyright: ignore
    assert module.get_inputs() == 7
    assert module.CFG == {"rows": 4, "shape": (1, 2), "kept": 3}
    assert module.more == {"rows": 5, "columns": 11}
    assert (module.made.rows, module.made.columns, module.plain.rows, module.plain.columns) == (12, 13, 12, 2)
    rewritten: dict[str, Any] = {}
    exec(override_constants(source, constants), rewritten)
    assert all(rewritten[name] == getattr(module, name) for name in ("CFG", "more"))


class Narrow(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(4, device=x.device).to(torch.float32)
        return x @ (places[:, None] * torch.ones(4, 3, dtype=torch.float32)) + x.float().sum()


def test_the_check_is_exact_where_the_reference_names_float32() -> None:
    namespace: dict[str, Any] = {"__name__": "best", "KERNRL": {"precision": "tf32"}}
    exec(compile(CHECKING, "check", "exec"), namespace)
    x = torch.rand(2, 4)
    [found] = namespace["_exactly"](Narrow(), [x])
    exact = x.double() @ torch.arange(4.0, dtype=torch.float64)[:, None].expand(4, 3) + x.double().sum()
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, exact, rtol=1e-14, atol=0)


def test_of_a_real_task_the_file_loads_and_holds_its_class() -> None:
    task = load_tasks("heldout").tasks[0]
    source = task.solutions[0].triton_code
    text = best_file(task, trial(source), {"date": "2026-01-02"})
    assert judged_source(text) == source
    assert torch.nn  # the file needs torch and triton alone
    imported = {a.name.split(".")[0] for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import) for a in n.names}
    assert imported <= {"torch", "triton", "ast", "linecache", "types", "copy", "os", "sys", "time", "math", "inspect"}
