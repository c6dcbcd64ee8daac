"""From a sandbox's bytes to plans that may be replayed: decode, check, read the kernels' IR, price.

All of it works on data that a candidate may have forged, so the funnel has it done in a worker (`PlanReader`) that can be
killed and has limits: whatever a candidate sends, it costs `CPU_S` seconds and `MEMORY_BYTES` at most.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernrl.errors import InternalError
from kernrl.verifier.base.devices import Device
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.plan import ttir
from kernrl.verifier.plan.checks import check_plan
from kernrl.verifier.plan.codec import PlanError, decode
from kernrl.verifier.plan.plan import Plan, TensorSpec, TraceSpec
from kernrl.verifier.plan.price import Price, price
from kernrl.verifier.rpc.limits import CpuClock, cpu_limit, data_bytes, limit_process_memory

CPU_S = 3.0
"""CPU seconds for reading all plans of one candidate; honest ones take some milliseconds."""

MEMORY_BYTES = 1 << 30
"""What reading may take, beyond the libraries."""

KEPT_BYTES = 192 << 20
"""A reader that has grown by more than this is replaced."""

MAX_TOTAL_BYTES = 16 << 20
"""Of all plans of one candidate, as JSON. Honest ones with a hundred configurations take some MB."""

_MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """What plans are checked against: the task, and the device that they are priced for."""

    specs: tuple[TraceSpec, ...]
    outputs: tuple[tuple[TensorSpec, ...], ...]
    derived: frozenset[str]
    """Names of the derived input sets: their plans are checked last."""
    device: Device
    precision: str
    checks: bool = True


@dataclass(slots=True)
class PlansRead:
    """The plans of one candidate, or why they are refused."""

    plans: list[Plan]
    price: Price | None = None
    """Of the last plan."""
    rejection: Rejection | None = None
    input_set: str = ""
    """The derived set that the rejection is about; empty where it is about the candidate as a whole."""
    malformed: bool = False
    """The bytes are no plans: the trace is at fault, not what it says."""
    cpu_s: float = 0.0
    worn: bool = False
    """The reader has grown, and should be replaced."""


def read_plans(frames: Sequence[bytes], asked: Asked) -> PlansRead:
    """Decode, check and price plans. Whatever the bytes are, the result is a value; any exception is a fault of ours."""
    if (size := sum(map(len, frames))) > MAX_TOTAL_BYTES:
        return _refused(Status.POLICY, f"The trace holds {size >> 20} MiB, more than {MAX_TOTAL_BYTES >> 20}: {_FEWER}.")
    try:
        plans = [decode(frame) for frame in frames]
    except PlanError as error:
        refused = _refused(Status.TRACE_ERROR, f"The trace came back malformed ({str(error)[:_MAX_MESSAGE_CHARS]}).")
        return replace(refused, malformed=True)
    if asked.checks:
        together = list(zip(plans, asked.specs, asked.outputs, strict=True))
        for plan, spec, outputs in sorted(together, key=lambda one: one[0].input_set in asked.derived):
            if objection := check_plan(plan, spec, outputs=outputs):
                return PlansRead([], None, objection, plan.input_set if plan.input_set in asked.derived else "")
    try:
        plans = [_with_what_ir_says(plan) for plan in plans]
    except ttir.TtirError as error:
        return _refused(Status.POLICY, f"A kernel's IR cannot be read ({str(error)[:_MAX_MESSAGE_CHARS]}).")
    return PlansRead(plans, price(plans[-1], asked.device, asked.precision))


_FEWER = "use fewer kernels, configurations or unrolled loops"


def too_long(seconds: float) -> Rejection:
    """The rejection for plans that used up their CPU seconds."""
    return Rejection(Status.TIMEOUT, f"The recorded plan takes more than {seconds:g} s to read: {_FEWER}.")


def too_large() -> Rejection:
    """The rejection for plans that used up their memory."""
    return Rejection(Status.POLICY, f"The recorded plan takes more than {MEMORY_BYTES >> 20} MiB to read: {_FEWER}.")


def _refused(status: Status, reason: str) -> PlansRead:
    return PlansRead([], None, Rejection(status, reason))


def _with_what_ir_says(plan: Plan) -> Plan:
    """The plan with what is asked of its kernels' IR later, where the IR itself may be missing."""
    kernels = (
        replace(k, parameters=ttir.parse(k.ttir).param_types, takes_extreme=ttir.takes_extreme(k.ttir)) for k in plan.kernels
    )
    return replace(plan, kernels=tuple(kernels))


class PlanReader:
    """A worker that reads plans. It holds nothing of a task but shapes."""

    def __init__(self) -> None:
        limit_process_memory(MEMORY_BYTES)
        self._least_bytes = data_bytes()

    def healthy(self) -> bool:
        """Always true: an exception leaves nothing behind here."""
        return True

    def read(self, frames: Sequence[bytes], asked: Asked) -> PlansRead | InternalError:
        """`read_plans` within the limits; a fault of ours is returned, with its traceback."""
        clock = CpuClock()
        try:
            with cpu_limit(CPU_S):
                found = read_plans(frames, asked)
        except MemoryError:
            found = PlansRead([], rejection=too_large(), worn=True)
        except Exception as error:
            return InternalError(f"{type(error).__name__} while reading a plan", traceback.format_exc())
        if data_bytes() - self._least_bytes > KEPT_BYTES:
            ttir.forget()
            gc.collect()
            found.worn = True
        found.cpu_s = clock.seconds
        return found
