"""A task's source at other shapes, and what a reference that cannot teach is told."""

import sys
import types
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from pathlib import Path

import pytest
import torch

from kernrl.errors import UsageError
from kernrl.tasks.task import InputSet, Task, load_reference, override_constants
from kernrl.tasks.task_check import check_task
from kernrl.tasks.worker_pool import apart_from_main

SOURCE = """\
import torch
import torch.nn as nn

BATCH = 64  # größer
N = 32


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(BATCH, N)]


def get_init_inputs():
    return [N]
"""


def task(forward: str = "torch.relu(self.linear(x))", **changes: object) -> Task:
    code = SOURCE.replace("torch.relu(self.linear(x))", forward)
    return Task(id="t", pytorch_code=code, input_sets=(InputSet("full"), InputSet("small", {"BATCH": 4, "N": 8})))


def test_constants_are_written_in() -> None:
    source = override_constants(SOURCE, {"N": 7, "BATCH": 3})
    assert "BATCH = 3  # größer\nN = 7\n" in source
    assert override_constants(SOURCE, {}) == SOURCE
    with pytest.raises(UsageError, match="t: an input set names 'M'"):
        override_constants(SOURCE, {"M": 7}, where="t")


def test_reference_runs_at_an_input_set() -> None:
    small = task().input_set("small")
    assert small is not None
    reference = load_reference(task(), small)
    model = reference.Model(*reference.get_init_inputs())
    [x] = reference.get_inputs()
    assert x.shape == (4, 8)
    torch.testing.assert_close(model(x), torch.relu(x @ model.linear.weight.T + model.linear.bias))
    assert task().input_set("ragged") is None


def test_annotations_of_a_source_are_evaluated() -> None:
    checked = SOURCE + "\ndef f(a: int): ...\nassert f.__annotations__ == {'a': int}\n"
    load_reference(Task("a", checked))


def test_source_that_does_not_run_is_named() -> None:
    with pytest.raises(UsageError, match=r"^x: .*does not run: NameError"):
        load_reference(Task(id="x", pytorch_code=SOURCE + "nothing()\n"))
    with pytest.raises(UsageError, match=r"No module named 'helpers'\. A task is one file"):
        load_reference(Task(id="x", pytorch_code="from helpers import act\n" + SOURCE))
    with pytest.raises(UsageError, match="x: the task's source defines no Model and no get_init_inputs"):
        load_reference(Task(id="x", pytorch_code="def get_inputs(): return []"))


def test_a_name_of_the_contract_that_is_something_else_is_named() -> None:
    with pytest.raises(UsageError, match="x: the task's source sets Model to 3: give that another name"):
        load_reference(Task(id="x", pytorch_code=SOURCE + "Model = 3\n"))


def test_good_reference_passes() -> None:
    check_task(task())


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("x * float('nan')", "NaN or infinity"),
        ("x * 0", "same value whatever its inputs"),
        ("torch.ones(3) * 2", "same value whatever its inputs"),
        ("torch.arange(3.0)", "same value whatever its inputs"),
        ("x[:0]", "empty tensor"),
        ("x * torch.rand(())", "gives another answer to the same inputs: draw random numbers in get_inputs"),
        ("1 / 0", "raises ZeroDivisionError: division by zero"),
        ("self.missing(x)", "raises AttributeError"),
        ("float(x.sum())", "returns a float, where a tensor is wanted, or a tuple, list or dict of tensors"),
        ("(x, {'y': None})", "returns a tuple that holds a NoneType, where a tensor is wanted"),
        ("{'y': x * 0}", "same value whatever its inputs"),
        ("()", "returns an empty tuple"),
        ("x.to('cuda:99')", "References are checked on the CPU. Name no device"),
        ("__import__('os').abort()", r"kills its process \(exit code -6\)"),
        pytest.param("__import__('time').sleep(60)", "does not finish in 2 s", marks=pytest.mark.slow),
    ],
)
def test_reference_that_cannot_teach_is_refused(forward: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^t: the reference .*{reason}") as raised:
        check_task(task(forward), timeout_s=2.0 if "sleep" in forward else 60.0)
    assert "\n" not in str(raised.value)


def test_outputs_may_be_nested() -> None:
    check_task(task("{'y': x, 'more': (x * 2, [x.sum(1)])}"))


@pytest.mark.parametrize("given", ["{'n': 8}", "[[], {'n': 8}]", "[[8], {}]", "[(8,), {}]"])
def test_arguments_by_name_are_put_in_order(given: str) -> None:
    code = SOURCE.replace("N = 32", "N = 8").replace("return [N]", f"return {given}")
    check_task(Task(id="t", pytorch_code=code))
    assert load_reference(Task(id="t", pytorch_code=code)).get_init_inputs() == [8]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{'n': 8, 'm': 8}", "got an unexpected keyword argument 'm'"),
        ("[[8], {'m': 8}]", "got an unexpected keyword argument 'm'"),
        ("[[], {}]", "missing a required argument: 'n'"),
    ],
)
def test_arguments_by_name_that_do_not_fit_are_refused(given: str, reason: str) -> None:
    code = SOURCE.replace("return [N]", f"return {given}")
    with pytest.raises(UsageError, match=f"^t: get_init_inputs does not fit Model: .*{reason}"):
        check_task(Task(id="t", pytorch_code=code))


def test_check_runs_the_smallest_input_set() -> None:
    # the full shape could not be allocated
    code = SOURCE.replace("BATCH = 64", f"BATCH = {10**12}")
    check_task(Task(id="t", pytorch_code=code, input_sets=(InputSet("full"), InputSet("small", {"BATCH": 4}))))
    with pytest.raises(UsageError, match="raises RuntimeError"):
        check_task(Task(id="t", pytorch_code=code, input_sets=(InputSet("full"), InputSet("small", {"N": 8}))))


def test_check_runs_the_ragged_set_too() -> None:
    sets = (InputSet("full"), InputSet("small", {"BATCH": 4}), InputSet("ragged", {"BATCH": 10**12}))
    with pytest.raises(UsageError, match=r"at the ragged sizes, the reference raises RuntimeError: .*allocate"):
        check_task(Task(id="t", pytorch_code=SOURCE, input_sets=sets))


def test_check_derives_the_sets_that_a_task_does_not_state() -> None:
    checked = check_task(Task(id="t", pytorch_code=SOURCE.replace("BATCH = 64", f"BATCH = {10**12}")))
    small, ragged = checked.input_sets[1:]
    assert (small.name, ragged.name, small.derived, ragged.derived) == ("small", "ragged", True, True)
    assert max(small.constants.values()) <= 16
    assert ragged.constants["N"] % 2 == 1


def test_processes_do_not_import_the_script_that_starts_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = types.ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert "init_main_from_path" in spawn.get_preparation_data("child")
    script.__spec__ = ModuleSpec("my_package.__main__", None)
    assert "init_main_from_name" in spawn.get_preparation_data("child")
    with apart_from_main():
        assert not {"init_main_from_path", "init_main_from_name"} & spawn.get_preparation_data("child").keys()
    assert (script.__file__, script.__spec__.name) == (str(tmp_path / "script.py"), "my_package.__main__")
