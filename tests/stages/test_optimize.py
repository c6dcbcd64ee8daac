"""`kernrl optimize`: what it writes, what it says where nothing is faster, resume, many tasks, bad input."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from support import ROOT
from support.tiny import verdict_of

from kernrl import cli
from kernrl.config import OptimizeConfig
from kernrl.config.optimize import seconds_of
from kernrl.optimization.results.best_file import judged_source
from kernrl.optimization.search.budget import TooSmallBudgetError
from kernrl.optimization.searches import Searches
from kernrl.stages import optimize
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import write_tasks
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status, Verdict


class Verifier:
    """Stands for HardenedVerifier: what holds `fused_kernel` is twice as fast, a tie under `tie`, wrong under `wrong`."""

    mode = "faster"
    version = "one"
    asked: ClassVar[list[str]] = []

    def unfit(self, task: Task) -> str:
        return ""

    def __init__(self, config: object):
        known = {"gpus": [], "workers": 1, "cache_dir": None, "target": "sm_90", "conditions": [self.version]}
        self.evaluator = SimpleNamespace(start=lambda: None, precision_of=lambda task: task.precision, **known)
        self.input_sets = SimpleNamespace(complete=with_input_sets)

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, task: Task, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
        type(self).asked.append(candidate)
        if self.mode == "interrupt" and len(self.asked) == 3:
            raise KeyboardInterrupt
        future: Future[Verdict] = Future()
        speed = {"tie": 1.0, "wrong": None, "broken": None}.get(self.mode, 2.0 if "fused_kernel" in candidate else 1.0)
        status = {"wrong": Status.WRONG, "broken": Status.INFRA_ERROR}.get(self.mode, Status.CORRECT)
        future.set_result(verdict_of(candidate, status, speedup_x=speed, significant=speed == 2.0, task_id=task.id))
        return future


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> type[Verifier]:
    fresh = type("Fresh", (Verifier,), {"asked": [], "mode": "faster"})
    monkeypatch.setattr(optimize, "HardenedVerifier", fresh)
    return fresh


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "guides" / "optimize.md").read_text()
    path = tmp_path / "my_module.py"
    path.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    return path


def run(*words: str) -> int:
    return cli.run(["optimize", *words, "--quiet", "--n", "8"])


@pytest.mark.slow
def test_it_writes_the_winner_with_everything_beside_it(verifier: type[Verifier], module: Path) -> None:
    assert run("my_module.py", "--output", "out") == 0
    out = Path("out")
    names = {"best.py", "verdict.json", "candidates.jsonl", "results.json", "report.html", "config.json"}
    assert names <= {p.name for p in out.iterdir()}
    results = json.loads((out / "results.json").read_text())
    source = judged_source((out / "best.py").read_bytes().decode())
    assert source == results["best"]["source"]
    verdict = json.loads((out / "verdict.json").read_text())
    assert hashlib.sha256(source.encode()).hexdigest() == verdict["candidate_sha"]
    assert "fused_kernel" in results["best"]["source"]
    assert "2.00× [1.98, 2.02]" in results["sentence"]
    assert results["ranking"][0]["id"] == results["best"]["id"]
    assert results["ranking"][0]["speedups_x"]["eager"]["low"] == pytest.approx(1.98)
    page = (out / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert "<th>against eager</th>" in page
    assert re.search(r"<td>2\.00.? \[1\.98, 2\.02\]</td>", page)
    assert "<script" not in page
    assert len((out / "candidates.jsonl").read_text().splitlines()) == results["judged"] == 8
    assert (out / "kernelbench/level_2/level_2_problem_1_sample_0_kernel.py").read_text() == source


@pytest.mark.slow
def test_a_tie_says_why_and_writes_nothing_unless_asked(
    verifier: type[Verifier], module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verifier.mode = "tie"
    assert run("my_module.py", "--output", "out") == 0
    assert not Path("out/best.py").exists()
    said = capsys.readouterr().out
    assert "nothing is faster than eager PyTorch beyond the noise" in said
    assert "10.0 µs, where launching decides" in said
    assert run("my_module.py", "--output", "tie", "--keep-tie") == 0
    assert Path("tie/best.py").exists()


@pytest.mark.slow
def test_where_nothing_is_right_it_says_so(verifier: type[Verifier], module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verifier.mode = "wrong"
    assert run("my_module.py", "--output", "out", "--keep-tie") == 0
    assert re.search(r"none of \d candidates is correct \(\d wrong\)", capsys.readouterr().out)
    assert not Path("out/best.py").exists()


@pytest.mark.slow
def test_a_verifier_that_fails_every_time_is_no_answer(
    verifier: type[Verifier], module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verifier.mode = "broken"
    assert run("my_module.py", "--output", "out") == 3
    assert re.search(r"the verifier failed on every one of \d candidates: the first", capsys.readouterr().out)
    verifier.mode = "faster"
    assert run("my_module.py", "--output", "out", "--resume") == 0
    rows = [json.loads(line) for line in Path("out/candidates.jsonl").read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)  # those that failed are there beside those judged since
    assert {row["verdict"]["status"] for row in rows} == {"infra_error", "correct"}


@pytest.mark.slow
def test_an_interrupt_keeps_the_best_and_resume_goes_on(
    verifier: type[Verifier], module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verifier.mode = "interrupt"
    assert run("my_module.py", "--output", "out") == 130
    assert capsys.readouterr().out.endswith("\nInterrupted: --output out --resume goes on.\n")
    assert Path("out/best.py").exists()
    before = list(verifier.asked)
    assert run("my_module.py", "--output", "out") == 2  # the folder is in use
    verifier.mode = "faster"
    assert run("my_module.py", "--output", "out", "--resume") == 0
    judged = [json.loads(line) for line in Path("out/candidates.jsonl").read_text().splitlines()]
    assert len({row["text"] for row in judged}) == len(judged) == 8
    assert not set(before[:1]) & set(verifier.asked[len(before) :])


@pytest.mark.slow
def test_what_was_judged_against_another_module_does_not_count(
    verifier: type[Verifier], module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("my_module.py", "--output", "out") == 0
    before = len(verifier.asked)
    module.write_text(module.read_text().replace("* 0.5 + x", "* 0.5 - x"))
    verifier.mode = "wrong"
    capsys.readouterr()
    assert cli.run(["optimize", "my_module.py", "--output", "out", "--n", "8", "--resume"]) == 0
    said = capsys.readouterr()
    assert "goes on" not in said.out
    assert "8 candidates of the earlier search do not count: the module was another one then" in said.err
    assert "none of 8 candidates is correct" in said.out
    assert not Path("out/best.py").exists()
    rows = [json.loads(line) for line in Path("out/candidates.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    assert {row["verdict"]["status"] for row in rows} == {"wrong"}
    assert len(Path("out/candidates-1.jsonl").read_text().splitlines()) == before == 8
    assert verifier.asked[before] in verifier.asked[:before]  # the fastest of before are judged anew


SUMMED = """
import torch
B, K, N = 4096, 1024, 4096
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(K, N)
    def forward(self, x):
        return torch.relu(self.l(x).sum(1))
def get_inputs(): return [torch.randn(B, K)]
def get_init_inputs(): return []
"""


@pytest.mark.slow
def test_without_algebra_nothing_that_does_fewer_operations_is_tried_nor_after_a_resume(
    verifier: type[Verifier], module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fewer(folder: str) -> list[str]:
        rows = [json.loads(line) for line in Path(folder, "candidates.jsonl").read_text().splitlines()]
        assert rows
        return [row["name"] for row in rows if "algebra" in row["name"].split("-")]

    Path("summed.py").write_text(SUMMED)
    assert run("summed.py", "--output", "all") == 0
    assert fewer("all")
    verifier.mode = "interrupt"
    verifier.asked.clear()
    assert run("summed.py", "--output", "out", "--no-algebra") == 130
    verifier.mode = "faster"
    assert run("summed.py", "--output", "out", "--resume") == 0
    assert len(verifier.asked) > 3
    assert not fewer("out")
    for folder, flag, begun in (("out", "--algebra", "--no-algebra"), ("all", "--no-algebra", "--algebra")):
        assert run("summed.py", "--output", folder, "--resume", flag) == 2
        assert f"has {begun}, not {flag}" in capsys.readouterr().err
    asked = len(verifier.asked)
    described = json.loads(Path("all/config.json").read_text())
    del described["config"]["algebra"]  # a run that is older than the switch tried all
    Path("all/config.json").write_text(json.dumps(described))
    assert run("summed.py", "--output", "all", "--resume", "--no-algebra") == 2
    assert "add --algebra to go on as it began" in capsys.readouterr().err
    assert run("summed.py", "--output", "all", "--resume") == 0
    assert len(verifier.asked) == asked


@pytest.mark.slow
def test_another_version_or_device_judges_anew_and_the_same_one_does_not(verifier: type[Verifier], module: Path) -> None:
    assert run("my_module.py", "--output", "out") == 0
    assert run("my_module.py", "--output", "out", "--resume") == 0
    assert len(verifier.asked) == 8
    verifier.version = "two"
    assert run("my_module.py", "--output", "out", "--resume") == 0
    assert len(verifier.asked) == 16
    under = [json.loads(line)["under"] for line in Path("out/candidates.jsonl").read_text().splitlines()]
    assert [u["conditions"] for u in under] == [["two"]] * 8
    assert {u["clock"] for u in under} == {"modelled"}


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True])
def test_with_a_gpu_the_best_are_timed_again_or_it_says_that_they_were_not(
    verifier: type[Verifier], module: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    class OnGpu(verifier):
        def __init__(self, config: object):
            super().__init__(config)
            self.evaluator.gpus = [object()]
            self.config = SimpleNamespace(baseline=("eager",), executor="ray")  # whose judges time as they do

        def submit(self, task: Task, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
            if fresh and interrupted:
                raise KeyboardInterrupt
            return super().submit(task, candidate, fresh=fresh)

    monkeypatch.setattr(optimize, "HardenedVerifier", OnGpu)
    assert run("my_module.py", "--output", "out") == (130 if interrupted else 0)
    results = json.loads(Path("out/results.json").read_text())
    assert ("Timed once and briefly" in results["sentence"]) == interrupted
    assert bool(results["finals"]) != interrupted
    assert Path("out/best.py").exists()


@pytest.mark.slow
def test_many_tasks_give_a_table_and_kernelbench_s_layout(
    verifier: type[Verifier], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = [*load_tasks("heldout", limit=2).tasks, Task("random", RANDOM)]
    write_tasks(tmp_path / "tasks.jsonl", tasks)
    assert run("tasks.jsonl", "--output", "many", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert [row["task"] for row in rows] == [task.id for task in tasks]
    assert "randomness" in rows[2]["sentence"]
    entries = json.loads(Path("many/kernelbench/level_2/eval_results.json").read_text())
    assert len(entries) == 2
    asked = len(verifier.asked)
    assert run("tasks.jsonl", "--output", "many", "--resume") == 0
    assert len(verifier.asked) == asked
    assert json.loads(Path("many/tasks/random/results.json").read_text())["ended"] == "not searched"  # nor read again
    changed = replace(tasks[0], pytorch_code=tasks[0].pytorch_code + "\n")
    (tmp_path / "tasks.jsonl").unlink()
    write_tasks(tmp_path / "tasks.jsonl", [changed, *tasks[1:]])
    assert run("tasks.jsonl", "--output", "many", "--resume") == 0
    assert len(verifier.asked) == asked + 8  # of that one alone
    assert "All tasks" in Path("many/report.html").read_text()


@pytest.mark.slow
def test_several_tasks_are_searched_side_by_side_and_ctrl_c_leaves_the_finished_ones(
    verifier: type[Verifier], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = list(load_tasks("heldout", limit=3).tasks)
    write_tasks(tmp_path / "tasks.jsonl", tasks)
    together, met, once = threading.Barrier(2), set[str](), threading.Lock()

    class Pairs(verifier):
        stop = True

        def submit(self, task: Task, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
            if task.id == tasks[2].id:
                if self.stop:
                    if once.acquire(blocking=False):  # a second one would end the command at once
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # as a terminal does
                    return Future()  # which nobody waits for
            elif task.id not in met:
                met.add(task.id)
                together.wait(timeout=60)  # broken, unless the other one is searched at the same time
            return super().submit(task, candidate, fresh=fresh)

    monkeypatch.setattr(optimize, "HardenedVerifier", Pairs)
    words = ["tasks.jsonl", "--output", "many", "--tasks-at-once", "2", "--json"]
    assert run(*words) == 130
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert next(row["task"] for row in rows if row["ended"] != "interrupted") in {task.id for task in tasks[:2]}
    finished = sorted(path.parent.name for path in Path("many/tasks").glob("*/results.json"))
    assert finished
    assert optimize.place_of(Path("many"), tasks[2]).name not in finished
    Pairs.stop = False
    assert run(*words, "--resume") == 0
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert [row["task"] for row in rows] == [task.id for task in tasks]
    assert all(row["judged"] for row in rows)


RANDOM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.1)
def get_inputs(): return [torch.randn(16, 8)]
def get_init_inputs(): return []
"""


GRADIENTS = """
import torch
N = 64
class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.relu(x).sum()
        return torch.autograd.grad(y, x)[0]
def get_inputs(): return [torch.randn(N, 64, requires_grad=True)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["my_module.py", "--budget", "1s"], "--budget is too small"),
        (["my_module.py", "--budget", "soon"], "120s, 2m or 1h"),
        (["my_module.py", "--inputs", "float32[2]"], "--inputs and --init are for package.module:Class"),
        (["torch.nn:LayerNorm"], "say what its forward takes"),
        (["torch.nn:Layernorm", "--inputs", "float32[2]"], "cannot be imported"),
        (["torch.nn:LayerNorm", "--inputs", "float32[2,8]"], "cannot be made with --init"),
        (["nothing.py"], "nothing.py"),
        (["random.py"], "randomness"),
        (["gradients.py"], "asks for gradients at line 7, and this is for inference alone"),
        (["empty.py"], "without elements"),
        (["inverse.py"], "no rule writes linalg_inv, so there is nothing to try; --model names a model to ask."),
        (["my_module.py", "--resume"], "--resume needs --output"),
        (["collections:nothing"], "the module collections has no 'nothing'"),
    ],
)
def test_bad_input_is_one_sentence(
    verifier: type[Verifier], module: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("random.py").write_text(RANDOM)
    Path("gradients.py").write_text(GRADIENTS)
    Path("inverse.py").write_text(RANDOM.replace("dropout(x, 0.1)", "gelu(torch.linalg.inv(x))").replace("16, 8", "16, 16"))
    Path("empty.py").write_text(RANDOM.replace("dropout(x, 0.1)", "gelu(x)").replace("16, 8", "0, 8"))
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert not Path("checkpoints/optimize-1/candidates.jsonl").exists()
    assert said in error
    assert error.count("\n") == 1
    assert verifier.asked == []


@pytest.mark.slow
def test_a_server_that_is_not_there_is_said_before_anything_is_read_or_written(
    verifier: type[Verifier], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kernrl.http_client.FIRST_WAIT_S", 0.01)
    words = ["--model", "nano", "--engine", "server", "--server-url", "http://127.0.0.1:1", "--output", "out"]
    assert run("no_such_module.py", *words) == 3
    assert "--server-url http://127.0.0.1:1" in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_function_of_the_user_s_gives_the_tasks(
    verifier: type[Verifier], module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mytasks_of_optimize.py").write_text(
        "from pathlib import Path\nfrom kernrl.tasks.task import Task\n"
        "def make():\n    yield Task('mine', Path('my_module.py').read_text())\n"
        f"    yield Task('random', {RANDOM!r})\n"
    )
    monkeypatch.syspath_prepend(str(module.parent))
    assert run("mytasks_of_optimize:make", "--output", "out") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[-2:] == ["why", "not"]
    assert next(line for line in table if line.startswith("mine")).split()[1] == "faster"
    assert "randomness" in next(line for line in table if line.startswith("random"))
    assert "<th>why not</th>" in Path("out/report.html").read_text()


@pytest.mark.slow
def test_too_small_a_budget_says_that_an_earlier_result_stands(
    verifier: type[Verifier], module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(search: object) -> None:
        raise TooSmallBudgetError("the budget is too small. Give more.")

    monkeypatch.setattr(Searches, "first_rounds", late)
    assert run("my_module.py", "--output", "new") == 2
    assert "stands" not in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(module.parent)
    monkeypatch.setattr(optimize, "HardenedVerifier", verifier)
    assert run("my_module.py", "--output", "out") == 0
    monkeypatch.setattr(Searches, "first_rounds", late)
    assert run("my_module.py", "--output", "out", "--resume") == 2
    assert "Give more. What was found before stands: --resume with more goes on." in capsys.readouterr().err
    assert Path("out/best.py").exists()


def test_budgets_are_read_in_every_unit() -> None:
    assert [seconds_of(text) for text in ("90", "120s", "2m", "1.5h", "3 min")] == [90, 120, 120, 5400, 180]
    assert OptimizeConfig(source="x", budget="2m").budget_s == 120


SPEEDUP = re.compile(r"(\d\.\d\d)×")


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_the_guide_runs(module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first command gives the sentence that the guide shows; a search of more candidates finds another speed."""
    monkeypatch.setenv("HOME", str(module.parent))
    text = (ROOT / "docs" / "guides" / "optimize.md").read_text()
    command = next(line for line in text.splitlines() if line.startswith("kernrl optimize my_module.py"))
    assert cli.run([*command.split()[1:], "--n", "6", "--verifier.device", "cpu"]) == 0
    shown = re.findall(r"```\n(my_module: .*?)```", text, re.DOTALL)[0]
    said = capsys.readouterr().out
    assert SPEEDUP.sub("n×", said).endswith(SPEEDUP.sub("n×", f"\n\n{shown}"))
    best, longer = (float(SPEEDUP.findall(text)[-1]) for text in (said, shown))
    assert best <= longer < 1.02 * best
    assert re.match(r"candidate +modelled µs +eager\n\w+-\d+: ", said)


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_a_real_ctrl_c_keeps_the_best_and_resume_goes_on(module: Path) -> None:
    """As a terminal sends it: to every process of the command."""
    command = [sys.executable, "-m", "kernrl", "optimize", "my_module.py", "--output", "out", "--verifier.device", "cpu"]
    # a shell's background jobs ignore SIGINT, and what they start does too
    take = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    rows = Path("out/candidates.jsonl")
    process = subprocess.Popen(
        [sys.executable, "-c", take, *command, "--budget", "60s"], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        while process.poll() is None and not (rows.exists() and '"status": "correct"' in rows.read_text()):
            time.sleep(0.02)
        assert process.poll() is None, process.stderr and process.stderr.read()
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert "Traceback" not in error
    results = json.loads(Path("out/results.json").read_text())
    assert results["ended"] == "interrupted"
    assert Path("out/best.py").exists() == results["faster"]
    judged = [json.loads(line)["text"] for line in rows.read_text().splitlines()]
    assert cli.run([*command[3:], "--resume", "--n", str(len(judged) + 1), "--quiet"]) == 0
    again = [json.loads(line)["text"] for line in rows.read_text().splitlines()]
    assert again[: len(judged)] == judged
    assert len(set(again)) == len(again) == len(judged) + 1
