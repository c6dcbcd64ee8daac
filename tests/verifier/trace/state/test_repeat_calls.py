"""What a module may do otherwise on later calls, and what it may not; recorded in this process, without a sandbox."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.front import dense, spec
from torch import Tensor, nn

from kernrl.verifier.plan.plan import KernelSource, LaunchNode, Plan, TensorRef, Variant
from kernrl.verifier.trace.record_forward import record_forward
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.recording import recording
from kernrl.verifier.trace.state.repeat_calls import Call, check_calls, check_state
from kernrl.verifier.trace.untraceable import Untraceable


@pytest.fixture(autouse=True)
def _unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of the modules here stand for any that `python_state` does not find."""
    monkeypatch.setattr("kernrl.verifier.trace.record_forward.remembered", lambda model: {})


class Base(nn.Module):
    """Counts its calls, and keeps what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.kept: Any = None
        self.zeros = torch.zeros(8, 32, device="cuda")

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.compute(x)  # pyright: ignore[reportCallIssue]


def record(compute: Any, **told: Any) -> Plan:
    """Plan of a module whose forward is `compute(self, x)`, called again and again."""
    cls = type("ModelNew", (Base,), {"compute": compute})
    recorder = Recorder()
    with recording(recorder):
        return record_forward(cls, replace(spec(dense(8, 32)), **told), recorder, [], again=True)


def table(self: Any, x: Tensor) -> Tensor:
    if self.kept is None:
        self.kept = torch.arange(32, device=x.device).float().exp()
    return x * self.kept


def tables_in_a_dict(self: Any, x: Tensor) -> Tensor:
    self.kept = self.kept or {}
    if x.shape not in self.kept:
        self.kept[x.shape] = torch.ones_like(x) * 3
    return x * self.kept[x.shape]


def workspace(self: Any, x: Tensor) -> Tensor:
    if self.kept is None:
        self.kept = torch.empty_like(x)
    self.kept.copy_(x)
    return self.kept * 2


def refilled(self: Any, x: Tensor) -> Tensor:
    self.zeros.zero_()
    self.zeros += x
    return self.zeros + 1


def once_the_logarithm(self: Any, x: Tensor) -> Tensor:
    if self.calls == 1:
        _ = torch.zeros(4, device=x.device)
    return x + 1


ALLOWED = {
    "the same": lambda self, x: x * 2,
    "a table made once": table,
    "tables by shape": tables_in_a_dict,
    "a workspace that is filled in every call": workspace,
    "memory of the constructor that is filled in every call": refilled,
    "work of the first call that nothing needs": once_the_logarithm,
    "a view of new memory": lambda self, x: (x * 2).t(),
    "a constant of the constructor": lambda self, x: x + self.zeros,
    "nested": lambda self, x: {"a": x * 2, "b": (x + 1, [x - 1])},
}


@pytest.mark.parametrize("compute", ALLOWED.values(), ids=ALLOWED.keys())
def test_honest_habits_are_recorded(compute):
    assert record(compute, modes_differ=False).nodes


def first_result(self: Any, x: Tensor) -> Tensor:
    if self.kept is None:
        self.kept = x * 2
    return self.kept


def by_address(self: Any, x: Tensor) -> Tensor:
    self.kept = self.kept or {}
    if id(x) not in self.kept:
        self.kept[id(x)] = x * 2
    return self.kept[id(x)]


def table_of_the_input(self: Any, x: Tensor) -> Tensor:
    if self.kept is None:
        self.kept = x.mean(0)
    return x - self.kept


def counts_up(self: Any, x: Tensor) -> Tensor:
    self.zeros += 1
    return x + self.zeros


def counts_up_lazily(self: Any, x: Tensor) -> Tensor:
    if self.kept is None:
        self.kept = torch.zeros_like(x)
    self.kept += 1
    return x + self.kept


def changed_after_it_was_read(self: Any, x: Tensor) -> Tensor:
    y = x + self.zeros
    self.zeros.copy_(x)
    return y


DIFFERS, OLD, STATE = "does something else when it is called again", "returns the result of an earlier call", "filled only once"
REFUSED = {
    "another number": (lambda self, x: x * (2 if self.calls == 1 else 3), DIFFERS),
    "another number at the third call": (lambda self, x: x * (2 if self.calls < 3 else 3), DIFFERS),
    "another operation": (lambda self, x: x.exp() if self.calls == 1 else x.sin(), DIFFERS),
    "more work later": (lambda self, x: x * 2 if self.calls == 1 else x * 2 + 1, DIFFERS),
    "less work later": (lambda self, x: (x * 2).exp() if self.calls == 1 else x * 2, DIFFERS),
    "another view": (lambda self, x: (x * 2)[:4] if self.calls == 1 else (x * 2)[4:], DIFFERS),
    "other strides": (lambda self, x: (x * 2).view(32, 8) if self.calls == 1 else (x * 2).t(), DIFFERS),
    "another nesting": (lambda self, x: x * 2 if self.calls == 1 else [x * 2], DIFFERS),
    "other names": (lambda self, x: {f"call {self.calls}": x * 2}, DIFFERS),
    "operands exchanged": (lambda self, x: x - self.zeros if self.calls == 1 else self.zeros - x, DIFFERS),
    "the first result": (first_result, OLD),
    "a cache by address": (by_address, OLD),
    "a table of the first input": (table_of_the_input, DIFFERS),
    "a count in memory": (counts_up, STATE),
    "a count in memory made in the first call": (counts_up_lazily, STATE),
    "what the last call left": (changed_after_it_was_read, STATE),
}


@pytest.mark.parametrize(("compute", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_module_that_does_otherwise_later_is_refused(compute, said):
    with pytest.raises(Untraceable, match=said):
        record(compute)


def test_outputs_are_nested_as_the_reference_s():
    assert record(lambda self, x: (x * 2,), nesting="(tensor)").outputs
    with pytest.raises(Untraceable, match=re.escape("returns tensor, and the reference (tensor)")):
        record(lambda self, x: x * 2, nesting="(tensor)")


def raises_in_eval(self: Any, x: Tensor) -> Tensor:
    if not self.training:
        raise NotImplementedError
    return x * 2


def keeps_in_eval(self: Any, x: Tensor) -> Tensor:
    return x * 2 if self.training else self.zeros


MODES = {
    "the same in both": (lambda self, x: x * 2, "", ""),
    "another number": (lambda self, x: x * (2 if self.training else 3), "in eval mode, where the reference does the same", ""),
    "an exception": (raises_in_eval, "in eval mode forward[(][)] raises NotImplementedError", ""),
    "old memory": (keeps_in_eval, OLD, OLD),
    "no use of the input": (
        lambda self, x: x * 2 if self.training else torch.ones_like(x) * 2,
        "in eval mode, where the reference does the same",
        "does not compute its result from its inputs",
    ),
    "another shape": (
        lambda self, x: x * 2 if self.training else (x * 2)[:1],
        "in eval mode, where the reference does the same",
        "does not compute its result from its inputs",
    ),
}


@pytest.mark.parametrize(("compute", "same", "differ"), MODES.values(), ids=MODES.keys())
def test_the_other_mode(compute, same, differ):
    for modes_differ, said in ((False, same), (True, differ), (None, "")):
        if said:
            with pytest.raises(Untraceable, match=said):
                record(compute, modes_differ=modes_differ)
        else:
            assert record(compute, modes_differ=modes_differ).nodes


def test_running_statistics_may_change_in_every_call():
    class ModelNew(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(32, affine=False)

        def forward(self, x: Tensor) -> Tensor:
            mean: Any = self.norm.running_mean
            mean.mul_(0.9)
            return x - mean

    recorder = Recorder()
    with recording(recorder):
        assert record_forward(ModelNew, spec(dense(8, 32)), recorder, [], again=True).nodes


def test_another_class_is_refused():
    class Other(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class ModelNew(nn.Module):
        def __new__(cls) -> Any:
            return Other()

    recorder = Recorder()
    with recording(recorder), pytest.raises(Untraceable, match="makes a Other, another class"):
        record_forward(ModelNew, spec(), recorder, [], again=True)


# launches, which are data: storage 0 is the input, 1 a workspace of the constructor, further ones are made in calls

KERNEL = KernelSource("k", "", {"x": "*fp32", "y": "*fp32", "n": "i32"}, {}, 4, 3)
"""Its IR cannot be read, so that it may read and write whatever it is given."""


def at(storage: int, *, offset: int = 0) -> TensorRef:
    return TensorRef(storage, "float32", (8, 32), (32, 1), offset)


def launch(x: TensorRef, y: TensorRef, n: int = 256, *, grid: int = 4, kernel: int = 0) -> LaunchNode:
    return LaunchNode((Variant(kernel, (grid, 1, 1), {"x": x, "y": y, "n": n}),))


def check(first: LaunchNode, later: LaunchNode, output: TensorRef | None = None) -> None:
    recorder = Recorder()
    with recording(recorder):
        recorder.empty(dense(8, 32), "input", 0)
        for _ in range(4):
            recorder.empty(dense(8, 32))
    calls = iter([Call([0], [later], [output or at(3)], 3, 4, "tensor"), Call([0], [later], [output or at(3)], 3, 4, "tensor")])
    begun = Call([0], [first], [at(2)], 2, 3, "tensor")
    check_calls(lambda _: next(calls), lambda: None, begun, None, recorder, [KERNEL, KERNEL])


def test_a_launch_is_the_same_on_memory_in_the_same_place():
    check(launch(at(0), at(2)), launch(at(0), at(3)))
    check(launch(at(1), at(2)), launch(at(1), at(3)))


LAUNCHES = {
    "grid": launch(at(0), at(3), grid=2),
    "kernel": launch(at(0), at(3), kernel=1),
    "number": launch(at(0), at(3), 128),
    "type of a number": launch(at(0), at(3), 256.0),  # pyright: ignore
    "workspace in place of the input": launch(at(1), at(3)),
    "offset": launch(at(0), at(3, offset=32)),
    "two variants": LaunchNode(launch(at(0), at(3)).variants * 2),
}


@pytest.mark.parametrize("later", LAUNCHES.values(), ids=LAUNCHES.keys())
def test_another_launch_is_refused(later):
    with pytest.raises(Untraceable, match=DIFFERS):
        check(launch(at(0), at(2)), later)


def test_one_output_buffer_for_ever_is_refused():
    with pytest.raises(Untraceable, match="allocate outputs in forward"):
        check(launch(at(0), at(1)), launch(at(0), at(1)), at(1))


def test_memory_that_a_kernel_may_read_and_write_must_be_filled_in_every_call():
    recorder = Recorder()
    with recording(recorder):
        recorder.empty(dense(8, 32), "input", 0)
        recorder.empty(dense(8, 32))
    filled = [launch(at(1), at(1))]
    with pytest.raises(Untraceable, match=STATE):
        check_state(filled, [launch(at(0), at(1))], recorder, [KERNEL])
    check_state([], [launch(at(0), at(1))], recorder, [KERNEL])
    recorder.statistics = {1}
    check_state(filled, [launch(at(0), at(1))], recorder, [KERNEL])
