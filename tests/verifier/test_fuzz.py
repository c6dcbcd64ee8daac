"""No data from outside raises past the functions that read it: plans, frames, IR, replies and rows of pairs.

About 2,000 cases here; `KERNRL_FUZZ=100000 python -m pytest tests/verifier/test_fuzz.py` is the nightly form. What is tested
are the functions themselves, in this process: the funnel also runs them in a worker that can be killed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.front import HEAD, module, spec, trace, tracer
from support.tiny import verdict_of

from kernrl.config import VerifyConfig
from kernrl.errors import UsageError
from kernrl.stages import verify
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.screen import screen
from kernrl.verifier.base.verdict import Rejection, Status, Verdict
from kernrl.verifier.interpret.plain_mistake import numbers_in
from kernrl.verifier.plan import ttir
from kernrl.verifier.plan.codec import encode
from kernrl.verifier.plan.kernel_flops import kernel_flops
from kernrl.verifier.plan.plan import ITEM_BYTES
from kernrl.verifier.plan.reading import Asked, PlansRead, read_plans
from kernrl.verifier.rpc.frames import Channel
from kernrl.verifier.trace.tracer import Traced, receive_plans

CASES = int(os.environ.get("KERNRL_FUZZ", "2000"))
pytestmark = pytest.mark.slow


def cases(share: float):
    """Settings of one test, which has that share of all cases; equal from run to run, but at night."""
    return settings(
        max_examples=max(1, int(CASES * share)), deadline=None, derandomize=CASES <= 2000, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 3, 16, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200, 0.5, 1e308]),
    st.integers(),
)
NAMES = st.sampled_from([
    "aten.add.Tensor", "aten.add.out", "aten.native_batch_norm.default", "aten.native_group_norm.default",
    "aten.native_layer_norm.default", "aten._weight_norm_interface.default", "aten.upsample_nearest1d.default",
    "aten.index.Tensor", "aten.mm.__class__", "aten.mm", "aten..", "kernrl.constant", "aten.zeros.default", "prim.x.y", "",
    "aten.fill_.Scalar", "aten.copy_.default", *ITEM_BYTES, "input", "state", "temp", "x_ptr", "*fp32", "i32", "device",
])  # fmt: skip
TEMP = 9
"""Stands for a storage of 4 kB that is the plan's own."""
REFS = st.builds(
    lambda storage, dtype, sizes, offset: {"t": [storage, dtype, [n for n, _ in sizes], [st for _, st in sizes], offset]},
    st.sampled_from([TEMP, TEMP, TEMP, 0, 1, 2]), st.sampled_from(["float32", "float32", "int64", "complex128"]),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 4])), max_size=3), st.integers(0, 4),
)  # fmt: skip
PRODUCTS = st.sampled_from([
    *(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul")),
    "aten.convolution.default", "aten._trilinear.default", "aten.mm.out", "aten.addmm.out",
])  # fmt: skip
VALUES: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, NAMES, st.text(max_size=8), REFS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.builds(lambda k, v: {k: v}, st.sampled_from(["t", "l", "s", "spec", "x"]), inner)
    ),
    max_leaves=6,
)
NODES = st.builds(
    lambda op, args, kwargs, out: {"op": op, "args": args, "kwargs": kwargs, "out": out},
    st.one_of(PRODUCTS, NAMES), st.lists(st.one_of(REFS, REFS, REFS, VALUES), max_size=4),
    st.dictionaries(NAMES, VALUES, max_size=1), st.lists(REFS, max_size=2),
)  # fmt: skip

SOURCE = module("return launch(F.linear(launch(x), self.w))", init="self.w = nn.Parameter(torch.ones(32, 32))")
LOOP = """
@triton.jit
def sums(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(0, n, BLOCK):
        at = i + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + at, mask=at < n, other=0.0)
    if n > 3:
        total *= 2.0
    tl.store(y_ptr, tl.sum(total))
class ModelNew(nn.Module):
    def forward(self, x):
        y = x.new_empty(1)
        sums[(1,)](x, y, x.numel(), BLOCK=64)
        return y
"""
FULL = spec(state={"w": spec().inputs[0].__class__("float32", (32, 32), (32, 1))})


@functools.cache
def honest() -> bytes:
    traced = tracer().trace(SOURCE, [FULL])
    assert isinstance(traced, Traced), traced
    return traced.frames[0]


@functools.cache
def asked() -> Asked:
    device = device_for("sm_90")
    assert device
    return Asked((FULL,), ((FULL.inputs[0],),), frozenset(), device, "fp32")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, part in inner for p in places(part, (*path, key)))]


def put(row: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    holder = row
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return row


def judged(frame: bytes) -> PlansRead:
    """A verdict of some kind; an exception fails the test."""
    found = read_plans([frame], asked())
    assert isinstance(found, PlansRead)
    assert (found.rejection is None) == (found.price is not None)
    json.dumps([str(found.rejection), found.price and found.price.modelled_us])
    return found


def test_the_honest_plan_is_read() -> None:
    assert judged(honest()).rejection is None


@cases(0.35)
@given(st.data())
def test_plans_with_other_values_anywhere(data: st.DataObject) -> None:
    row = json.loads(honest())
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(row)))
        row = put(row, path, copy.deepcopy(data.draw(VALUES)))
        if not isinstance(row, dict | list):
            break
    judged(json.dumps(row).encode())


@cases(0.2)
@given(st.lists(NODES, min_size=1, max_size=3))
def test_plans_with_other_calls(nodes: list[dict[str, Any]]) -> None:
    row = json.loads(honest())
    row["storages"].append(["temp", 4096, None])
    text = json.dumps(nodes).replace(f'{{"t": [{TEMP},', f'{{"t": [{len(row["storages"]) - 1},')
    row["nodes"] = [*json.loads(text), *row["nodes"]]
    judged(json.dumps(row).encode())


@cases(0.1)
@given(st.data())
def test_frames_with_other_bytes(data: st.DataObject) -> None:
    frame = bytearray(honest())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=8))
    judged(bytes(frame))
    judged(data.draw(st.binary(max_size=64)))


@functools.cache
def lines() -> list[str]:
    plans = trace(HEAD + LOOP, spec())
    assert isinstance(plans, list), plans
    return [line for plan in plans for kernel in plan.kernels for line in kernel.ttir.splitlines()]


TOKENS = st.sampled_from([
    "%0", "%x_ptr", "%9#3", ": i32", "tensor<64xf32>", "tensor<99999999999x9x!tt.ptr<f32>>", "{", "}", "^bb1:", "scf.for", "",
    "scf.while (%a = %b) {", "} do {", "scf.yield", "= arith.constant 99999999999999999999", "tt.reduce", "tt.dot", "(", "i0",
    "i99999999999",
])  # fmt: skip


@cases(0.2)
@given(st.data())
def test_ir_with_other_lines(data: st.DataObject) -> None:
    text = list(lines())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            del text[at]
        elif kind == 1:
            text[at : at + 1] = data.draw(st.lists(st.sampled_from(lines()), max_size=3))
        else:
            words = text[at].split(" ")
            words[data.draw(st.integers(0, len(words) - 1))] = data.draw(TOKENS)
            text[at] = " ".join(words)
        if not text:
            return
    ir = "\n".join(text) + "\n"
    ttir.access(ir)
    for read in (ttir.parse, lambda ir: kernel_flops(ir, {0: 3, 2: 1 << 62}, (2, 3, 1 << 31))):
        with contextlib.suppress(ttir.TtirError):
            read(ir)
    row = json.loads(honest())
    row["kernels"][0]["ttir"] = ir
    judged(json.dumps(row).encode())


CODE = st.lists(
    st.one_of(
        st.sampled_from([
            "```", "```python\n", "~~~", "class ModelNew", "(nn.Module):\n", "import torch\n", "@triton.jit\n",
            "1 << 60", "2 ** 30", "9" * 50, "1e999", "0x" + "f" * 40, "(", ")", ":\n    ", "lambda:", "f'{", "\\",
            "\0", "\ud800", "\u2028",
            "-", "/ 0", "// 0", " ** ", "% 0", "\nx = ",
        ]),
        st.text(max_size=6),
    ),
    max_size=12,
).map("".join)  # fmt: skip


@cases(0.1)
@given(CODE)
def test_replies(text: str) -> None:
    found = parse_reply(text)
    if isinstance(found, Rejection):
        return
    assert len(found.sha) == 64
    for source in (found.source, found.source + "\nimport triton\nk = triton.jit\nclass ModelNew: pass\n"):
        if screen(source) is None:
            list(numbers_in(source))


class AllWrong(contextlib.nullcontext[Any]):
    """A verifier that finds every candidate wrong."""

    def __enter__(self) -> Any:
        return self

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        for position, (_, candidate) in enumerate(pairs):
            yield position, verdict_of(candidate, Status.WRONG)


@cases(0.05)
@given(
    st.lists(
        st.one_of(st.text(max_size=20), st.dictionaries(st.sampled_from(verify.TEXTS), VALUES).map(json.dumps)), min_size=1
    )
)
def test_rows_of_pairs(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    pairs, text = folder / "pairs.jsonl", "\n".join(lines)
    pairs.write_text(text, encoding="utf-8")
    count = len(pairs.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "open_verifier", lambda config: AllWrong())
        said, refused = {}, ""
        try:
            said: Any = verify.run(VerifyConfig(pairs=pairs, out=folder / "verdicts.jsonl")).data
        except UsageError as error:  # where no row of it can be read
            refused = str(error)
    if said:
        assert said["verdicts"] + len(said["bad_rows"]) == count
    else:
        assert refused.startswith((f"{pairs}:", f"--pairs: {pairs} is empty"))


class Said:
    """A sandbox that says these frames, then nothing."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames

    def recv(self) -> bytes | None:
        return self._frames.pop(0) if self._frames else None


HEADERS = st.one_of(
    st.binary(max_size=12), VALUES.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(["reject", "plans"]), st.one_of(VALUES, st.lists(VALUES, min_size=2, max_size=2))).map(
        lambda row: json.dumps(row).encode()
    ),
)  # fmt: skip


@cases(0.05)
@given(HEADERS, st.lists(st.binary(max_size=8), max_size=3), st.integers(1, 3))
def test_answers_of_the_sandbox(header: bytes, frames: list[bytes], count: int) -> None:
    found: Any = receive_plans(Said([header, *frames]), count)  # pyright: ignore[reportArgumentType]
    assert found is None or isinstance(found, Rejection) or len(found) == count


@cases(0.05)
@given(st.binary(max_size=40))
def test_bytes_on_the_wire(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.close()
        channel = Channel(ours, max_bytes=64)
        with contextlib.suppress(ValueError):
            while (frame := channel.recv()) is not None:
                assert len(frame) <= 64


def test_an_encoded_plan_is_what_was_decoded() -> None:
    assert encode(judged(honest()).plans[0]) == honest()
