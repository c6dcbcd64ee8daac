"""The contracts of raw library calls: what would read or write beyond an operand is refused, what fits is not."""

from __future__ import annotations

import pytest

from kernrl.verifier.plan.aten import mutated
from kernrl.verifier.plan.operands import misfit
from kernrl.verifier.plan.plan import AtenNode, TensorRef


def ref(*shape: int, stride: tuple[int, ...] | None = None) -> TensorRef:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return TensorRef(0, "float32", shape, stride or tuple(strides))


X, C = ref(2, 4, 8), ref(4)
BN, GN, LN = "aten.native_batch_norm.default", "aten.native_group_norm.default", "aten.native_layer_norm.default"
WN, UP = "aten._weight_norm_interface.default", "aten.upsample_bilinear2d.default"
IMAGE = ref(1, 2, 8, 8)


@pytest.mark.parametrize(
    ("op", "args", "says"),
    [
        (BN, (X, C, C, C, C, False, 0.1, 1e-5), None),
        (BN, (X, None, None, None, None, True, 0.1, 1e-5), None),
        (BN, (X, C, C, C, ref(1), False, 0.1, 1e-5), "running_var"),
        (BN, (X, ref(3), C, C, C, True, 0.1, 1e-5), "weight"),
        (BN, (X, C, C, None, None, False, 0.1, 1e-5), "missing"),
        (BN, (X, C, C, C, None, True, 0.1, 1e-5), "missing"),
        (BN, (ref(4), C, C, C, C, True, 0.1, 1e-5), "no channels"),
        (GN, (X, C, C, 2, 4, 8, 2, 1e-5), None),
        (GN, (X, None, None, 2, 4, 8, 2, 1e-5), None),
        (GN, (X, C, C, 2, 4, 9, 2, 1e-5), "the sizes"),
        (GN, (X, C, C, 2, 4, 8, 3, 1e-5), "the sizes"),
        (GN, (X, C, C, 2, 4, 8, 0, 1e-5), "the sizes"),
        (GN, (X, ref(4, stride=(0,)), C, 2, 4, 8, 2, 1e-5), "weight"),
        (GN, (X, C, ref(2), 2, 4, 8, 2, 1e-5), "bias"),
        (LN, (X, (8,), ref(8), ref(8), 1e-5), None),
        (LN, (X, (8,), ref(4), None, 1e-5), "weight"),
        (LN, (X, (16,), None, None, 1e-5), "normalized_shape"),
        (LN, (X, (), None, None, 1e-5), "missing"),
        (WN, (ref(6, 8), ref(6, 1), 0), None),
        (WN, (ref(6, 8), ref(1, 8), 1), None),
        (WN, (ref(6, 8), ref(1, 1), 0), "g has"),
        (WN, (ref(6, 8, 2), ref(1, 8, 1), 1), "neither the first nor the last"),
        (UP, (IMAGE, (16, 16), False, None, None), None),
        (UP, (IMAGE, (16, 16), True, 2.0, 2.0), None),
        (UP, (IMAGE, (16, 16), False, 2.0, 1e-40), "the scale"),
        (UP, (IMAGE, (16, 16), False, -2.0, 2.0), "the scale"),
        ("aten.grid_sampler_2d.default", (IMAGE, ref(1, 4, 4, 2), 7, 0, False), "interpolation_mode"),
        ("aten._cdist_forward.default", (ref(3, 4), ref(5, 4), 2.0, None), None),
        ("aten._cdist_forward.default", (ref(3, 4), ref(5, 2), 2.0, None), "together"),
    ],
)
def test_operands_fit_or_are_refused(op: str, args: tuple, says: str | None) -> None:
    found = misfit(AtenNode(op, args, {}, ()))
    assert (found is None) == (says is None), found
    assert says is None or says in str(found)


def test_arguments_by_name_count_too() -> None:
    node = AtenNode(BN, (X,), {"running_mean": ref(1), "running_var": C, "training": True, "momentum": 0.1, "eps": 1e-5}, ())
    assert "running_mean" in str(misfit(node))


@pytest.mark.parametrize(
    "op", ["aten.add.__class__", "aten.mm.overloads", "aten..", "aten.add", "aten.add.a b", "aten.\0.x", "x.y.z"]
)
def test_names_that_are_no_operators(op: str) -> None:
    assert mutated(op) is None
