"""Plans are read within limits, by a worker that is replaced; what goes wrong there is a verdict, or a fault that is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from support.front import dense, module, spec, tracer

from kernrl.errors import InternalError
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.plan import reading
from kernrl.verifier.plan.plan import TensorRef
from kernrl.verifier.plan.price import flops_of
from kernrl.verifier.plan.reading import Asked, PlanReader, PlansRead, read_plans
from kernrl.verifier.pool.plan_readers import PlanReaders
from kernrl.verifier.rpc import limits
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.trace.tracer import Traced

DEVICE = device_for("sm_90")
assert DEVICE
ASKED = Asked((spec(),), ((dense(8, 32),),), frozenset(), DEVICE, "fp32")


@pytest.fixture(scope="module")
def frames() -> list[bytes]:
    traced = tracer().trace(module("return launch(x)"), [spec()])
    assert isinstance(traced, Traced)
    return traced.frames


@pytest.fixture(scope="module")
def readers(cpu_forks: ForkServer) -> Iterator[PlanReaders]:
    made = PlanReaders(1, cpu_forks, threading.BoundedSemaphore(1))
    yield made
    made.close()


@pytest.mark.slow
def test_an_honest_plan_is_read_by_one_worker(readers: PlanReaders, frames: list[bytes]) -> None:
    for _ in range(3):
        found = readers.read(frames, ASKED)
        assert found.rejection is None
        kernel = found.plans[0].kernels[0]
        assert kernel.parameters == ("*f32", "*f32", "i32")
        assert not kernel.takes_extreme
        assert found.price
    assert readers.processes[0].starts == 1


def test_a_plan_costs_what_it_took_for_itself_and_not_since_the_process_started(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    def read(frames: list[bytes], asked: Asked) -> PlansRead:
        now[0] += 2.5
        return PlansRead([])

    monkeypatch.setattr(limits, "time", SimpleNamespace(process_time=lambda: now[0]))
    monkeypatch.setattr(reading, "limit_process_memory", lambda nbytes: None)  # it would be this process's
    monkeypatch.setattr(reading, "read_plans", read)
    reader = PlanReader()
    for _ in range(2):
        found = reader.read([], ASKED)
        assert isinstance(found, PlansRead)
        assert found.cpu_s == 2.5


@pytest.mark.slow
def test_bytes_that_are_no_plan_are_a_malformed_trace(readers: PlanReaders) -> None:
    found = readers.read([b"[" * 100_000], ASKED)
    assert found.malformed
    assert found.rejection
    assert found.rejection.status is Status.TRACE_ERROR


def test_more_bytes_than_a_candidate_has_are_not_decoded(monkeypatch: pytest.MonkeyPatch, frames: list[bytes]) -> None:
    monkeypatch.setattr(reading, "decode", lambda frame: pytest.fail("it was decoded"))
    found = read_plans([b"x" * reading.MAX_TOTAL_BYTES, b"x"], ASKED)
    assert found.rejection
    assert found.rejection.status is Status.POLICY


@pytest.mark.slow
def test_what_takes_all_memory_is_refused_and_the_worker_replaced(readers: PlanReaders, frames: list[bytes]) -> None:
    assert readers.read(frames, ASKED).rejection is None
    starts = readers.processes[0].starts
    found = readers.read([b"[" + b"[]," * (5 << 20) + b"[]]"], ASKED)  # 15 MB, a list of 56 bytes for each three
    assert found.rejection
    assert readers.read(frames, ASKED).rejection is None
    ended = found.rejection.status is Status.TIMEOUT  # a slow machine is out of seconds before it is out of memory
    assert readers.processes[0].starts == starts + (found.worn or ended)


@pytest.mark.slow
def test_a_fault_of_ours_comes_with_its_traceback(readers: PlanReaders, frames: list[bytes]) -> None:
    broken = Asked((spec(),), (), frozenset(), DEVICE, "fp32")  # fewer outputs than sets: no candidate can do that
    with pytest.raises(InternalError, match="ValueError while reading a plan") as failed:
        readers.read(frames, broken)
    assert "read_plans" in failed.value.traceback
    assert readers.read(frames, ASKED).rejection is None


def test_products_of_numbers_have_a_price() -> None:
    number = TensorRef(0, "float32", (), ())
    for op in ("aten.mm.default", "aten.addmm.default", "aten.convolution.default", "aten.linear.default"):
        assert flops_of(op, (number, number, number), (number,)) >= 0
