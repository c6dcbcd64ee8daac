"""Plans as bytes: what goes in comes out, and nothing else gets in."""
# ruff: noqa: E501  (programs are quoted as models write them)

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernrl.verifier.plan.codec import PlanError, decode, decode_spec, encode, encode_spec
from kernrl.verifier.plan.plan import (
    AtenNode,
    KernelSource,
    LaunchNode,
    Plan,
    Special,
    Storage,
    TensorRef,
    TensorSpec,
    TraceSpec,
    Variant,
    walk_refs,
)

X = TensorRef(0, "float32", (4, 8), (8, 1))
W = TensorRef(1, "bfloat16", (8, 4), (1, 8), 0)
Y = TensorRef(2, "float32", (4, 4), (4, 1), 16)
KERNEL = KernelSource("k", "module {\n}\n", {"x": "*fp32", "n": "i32"}, {"B": 64, "f": Special("function", "g")}, 4, 3)
PLAN = Plan(
    "full",
    (Storage("input", 128, 0), Storage("state", 64, "w"), Storage("temp", 128)),
    (AtenNode("aten.full.default", ((2, 2), Special("float", "inf")), {"dtype": Special("dtype", "float32")}, (None,)),),
    (AtenNode("aten.mm.default", (X, W), {}, (Y,)), LaunchNode((Variant(0, (4, 1, 1), {"x": Y, "n": 16}),))),
    (Y,),
    (KERNEL,),
)


def test_a_plan_survives_the_journey():
    assert decode(encode(PLAN)) == PLAN


def test_a_spec_survives_the_journey():
    spec = TraceSpec(
        "ragged", (3, [1, 2], (4, "same"), None, True, 1.5, SimpleNamespace(width=3, inner=SimpleNamespace(rate=0.5))), (TensorSpec("float32", (2, 3), (3, 1)), [TensorSpec("int64", (), ())], 2.0, {"mask": TensorSpec("bool", (2,), (1,)), "at": {"n": (1, None)}}),
        {"w": TensorSpec("float16", (3,), (1,))}, True, "fp16", "sm_90",
    )  # fmt: skip
    assert decode_spec(json.loads(json.dumps(encode_spec(spec)))) == spec


@pytest.mark.parametrize("tag", ["d", "n"])
def test_dictionaries_and_settings_are_for_specs_alone(tag):
    def change(row):
        row["nodes"][0]["args"] = [{tag: [["a", 1]]}]

    with pytest.raises(PlanError, match=f"the tag '{tag}'"):
        decode(forged(change))


def forged(change) -> bytes:
    row = json.loads(encode(PLAN))
    change(row)
    return json.dumps(row).encode()


FORGERIES = {
    "view beyond its storage": lambda r: r["outputs"][0]["t"].__setitem__(4, 17),
    "stride beyond its storage": lambda r: r["outputs"][0]["t"].__setitem__(3, [1 << 39, 1]),
    "negative stride": lambda r: r["outputs"][0]["t"].__setitem__(3, [-4, 1]),
    "negative offset": lambda r: r["outputs"][0]["t"].__setitem__(4, -1),
    "unknown storage": lambda r: r["outputs"][0]["t"].__setitem__(0, 3),
    "negative storage": lambda r: r["outputs"][0]["t"].__setitem__(0, -1),
    "boolean storage": lambda r: r["outputs"][0]["t"].__setitem__(0, True),
    "unknown dtype": lambda r: r["outputs"][0]["t"].__setitem__(1, "object"),
    "too few strides": lambda r: r["outputs"][0]["t"].__setitem__(3, [1]),
    "scalar output": lambda r: r["outputs"].__setitem__(0, 3),
    "unknown kernel": lambda r: r["nodes"][1]["variants"][0].__setitem__(0, 1),
    "empty grid": lambda r: r["nodes"][1]["variants"][0].__setitem__(1, [0, 1, 1]),
    "huge grid": lambda r: r["nodes"][1]["variants"][0].__setitem__(1, [1 << 31, 1, 1]),
    "short grid": lambda r: r["nodes"][1]["variants"][0].__setitem__(1, [1]),
    "float grid": lambda r: r["nodes"][1]["variants"][0].__setitem__(1, [1.0, 1, 1]),
    "no variants": lambda r: r["nodes"][1].__setitem__("variants", []),
    "many variants": lambda r: r["nodes"][1].__setitem__("variants", r["nodes"][1]["variants"] * 200),
    "extra field": lambda r: r.__setitem__("verdict", "correct"),
    "missing field": lambda r: r.pop("setup"),
    "other format": lambda r: r.__setitem__("format", 2),
    "storage too large": lambda r: r["storages"][2].__setitem__(1, 1 << 41),
    "state without a name": lambda r: r["storages"][1].__setitem__(2, None),
    "input by name": lambda r: r["storages"][0].__setitem__(2, "x"),
    "unknown kind": lambda r: r["storages"][0].__setitem__(0, "output"),
    "unknown special": lambda r: r["setup"][0]["kwargs"]["dtype"].__setitem__("s", ["pickle", "x"]),
    "two tags": lambda r: r["setup"][0]["kwargs"].__setitem__("dtype", {"s": ["dtype", "x"], "t": []}),
    "huge integer": lambda r: r["setup"][0]["args"].__setitem__(0, 1 << 64),
    "no warps": lambda r: r["kernels"][0].__setitem__("launch", [0, 1, 1]),
    "long IR": lambda r: r["kernels"][0].__setitem__("ttir", "x" * 2_000_001),
    "long name": lambda r: r["nodes"][0].__setitem__("op", "a" * 513),
    "many nodes": lambda r: r.__setitem__("nodes", r["nodes"] * 3000),
    "deep argument": lambda r: r["setup"][0]["args"].__setitem__(0, [[[[[[[[[[1]]]]]]]]]]),
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_plan_is_refused(change):
    with pytest.raises(PlanError):
        decode(forged(change))


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{", b'{"format": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"format": 1e999}', b"9" * 10_000],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(PlanError):
        decode(data)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(value=ANYTHING, seed=st.integers(0, 1 << 32))
def test_a_plan_with_one_part_replaced_is_refused_or_still_a_plan(value, seed):
    """Whatever stands in one place of the JSON, decode ends in a plan whose views fit their storages, or in PlanError."""
    row = json.loads(encode(PLAN))
    rng, place = random.Random(seed), row
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.2:
            place[key] = value
            break
        place = place[key]
    try:
        plan = decode(json.dumps(row).encode())
    except PlanError:
        return
    for node in (*plan.setup, *plan.nodes):
        args = [*node.args, *node.kwargs.values(), *node.outputs] if isinstance(node, AtenNode) else []
        for ref in (r for a in args for r in walk_refs(a)):
            assert 0 <= ref.storage < len(plan.storages)
            assert ref.numel == 0 or ref.nbytes <= plan.storages[ref.storage].nbytes


@pytest.mark.parametrize(("dtype", "nbytes"), [("complex32", 4), ("complex64", 8), ("complex128", 16)])
def test_complex_numbers_take_the_room_of_two_real_ones(dtype, nbytes):
    waves = TensorRef(2, dtype, (2, 3), (3, 1))
    call = AtenNode("aten.mul.Tensor", (waves, waves), {}, (waves,))
    fits = replace(PLAN, storages=(*PLAN.storages[:2], Storage("temp", 6 * nbytes)), nodes=(call,), outputs=(waves,))
    assert decode(encode(fits)) == fits
    assert waves.nbytes == 6 * nbytes
    short = replace(fits, storages=(*PLAN.storages[:2], Storage("temp", 6 * nbytes - 1)))
    with pytest.raises(PlanError, match="beyond the end"):
        decode(encode(short))
