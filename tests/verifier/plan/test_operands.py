"""The contracts of raw library calls: what would read or write beyond an operand is refused, what fits is not."""

from __future__ import annotations

import pytest

from kernrl.verifier.plan.aten import mutated
from kernrl.verifier.plan.operands import misfit
from kernrl.verifier.plan.plan import AtenNode, Special, TensorRef


def ref(*shape: int, stride: tuple[int, ...] | None = None, dtype: str = "float32") -> TensorRef:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return TensorRef(0, dtype, shape, stride or tuple(strides))


X, C = ref(2, 4, 8), ref(4)
BN, GN, LN = "aten.native_batch_norm.default", "aten.native_group_norm.default", "aten.native_layer_norm.default"
WN, UP = "aten._weight_norm_interface.default", "aten.upsample_bilinear2d.default"
IMAGE = ref(1, 2, 8, 8)
REAL, TO_REAL, OF_COMPLEX = "aten._fft_r2c.default", "aten._fft_c2r.default", "aten._fft_c2c.default"
WAVES, BAG, ROWS, STARTS = (
    ref(2, 9, dtype="complex64"),
    "aten._embedding_bag.default",
    ref(12, dtype="int64"),
    ref(5, dtype="int64"),
)


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
        ("aten.grid_sampler_3d.default", (ref(1, 2, 8, 8, 8), ref(1, 4, 4, 4, 3), 0, 5, False), "padding_mode"),
        (REAL, (ref(2, 16), (1,), 0, True), None),
        (REAL, (ref(2, 16), (2,), 0, True), "are not axes"),
        (REAL, (ref(2, 16), (-1,), 0, True), "are not axes"),
        (REAL, (ref(2, 16), (1, 1), 0, True), "are not axes"),
        (REAL, (ref(2, 16), (), 0, True), "are not axes"),
        (REAL, (ref(2, 16), (1,), 3, True), "normalization"),
        (REAL, (WAVES, (1,), 0, True), "self is complex64"),
        (OF_COMPLEX, (WAVES, (0, 1), 2, False), None),
        (OF_COMPLEX, (ref(2, 16), (1,), 0, True), "self is float32"),
        (TO_REAL, (WAVES, (1,), 2, 16), None),
        (TO_REAL, (WAVES, (1,), 2, 17), None),
        (TO_REAL, (WAVES, (1,), 2, 18), "frequencies"),
        (TO_REAL, (WAVES, (1,), 2, 1 << 40), "frequencies"),
        (TO_REAL, (WAVES, (1,), 2, 0), "frequencies"),
        (BAG, (ref(9, 4), ROWS, STARTS), None),
        (BAG, (ref(9, 4), ROWS, STARTS, False, 0, False, ref(12), True, -1), None),
        (BAG, (ref(9, 4), ROWS, STARTS, False, 0, False, ref(11), False, -1), "per_sample_weights"),
        (BAG, (ref(9, 4), ROWS, STARTS, False, 1, False, ref(12), False, -1), "per_sample_weights"),
        (BAG, (ref(9, 4), ROWS, STARTS, False, 0, False, ref(12, dtype="float64"), False, -1), "per_sample_weights"),
        (BAG, (ref(9, 4), ROWS, STARTS, False, 3, False, None, False, -1), "mode"),
        (BAG, (ref(9, 4), ref(3, 4, dtype="int64"), STARTS, False, 0, False, None, False, -1), "the shapes"),
        (BAG, (ref(9, 4), ROWS, ref(1, dtype="int64"), False, 2, False, None, True, -1), "the shapes"),
        (BAG, (ref(9, 4), ROWS, ref(0, dtype="int64"), False, 2, False, None, False, -1), "the shapes"),
        ("aten._pdist_forward.default", (ref(3, 4), 2.0), None),
        ("aten._pdist_forward.default", (ref(2, 3, 4), 2.0), "no matrix"),
        ("aten.histc.default", (X, 9, -1.0, 1.0), None),
        ("aten.histc.default", (X, 9), "on the host"),
        ("aten.histc.default", (X, 9, 2, 2), "on the host"),
        ("aten.nanmedian.dim", (X, 1), None),
        ("aten.nanmedian.default", (X,), "on the host"),
        ("aten.special_laguerre_polynomial_l.n_scalar", (X, 3), None),
        ("aten.special_laguerre_polynomial_l.n_scalar", (X, 1 << 40), "as many steps"),
        ("aten.special_laguerre_polynomial_l.n_scalar", (X, Special("float", "inf")), "as many steps"),
        ("aten.special_laguerre_polynomial_l.default", (X, X), "as many steps"),
        ("aten.mvlgamma.default", (X, 3), None),
        ("aten.mvlgamma.default", (X, 1 << 40), "times its operand's memory"),
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
