"""What a plan may leave to torch is what torch does: every call is made for real, and held against what the plan says of it."""

from __future__ import annotations

import pytest
import torch
from support.front import dense, module, plan_of, spec

from kernrl.verifier.plan import aten
from kernrl.verifier.plan.call_aten import call_aten, view
from kernrl.verifier.plan.checks import check_plan
from kernrl.verifier.plan.plan import AtenNode, LaunchNode, Plan, TensorRef, walk_refs

torch.set_num_threads(1)

C = "torch.view_as_complex(x.view(8, 16, 2))"
BAG = "torch.nn.functional.embedding_bag(rows, x, starts"
LEFT = {
    "rfft": "torch.view_as_real(torch.fft.rfft(x)).contiguous()",
    "rfft, scaled": "torch.view_as_real(torch.fft.rfft(x, n=24, dim=1, norm='ortho')).contiguous()",
    "rfft of columns": "torch.view_as_real(torch.fft.rfft(x, dim=0)).contiguous()",
    "fft of both axes": "torch.fft.fft2(x).abs()",
    "ifft of real numbers": "torch.view_as_real(torch.fft.ifft(x).resolve_conj())",
    "irfft": f"torch.fft.irfft({C}, n=31)",
    "irfft of both axes": "torch.fft.irfft2(torch.fft.rfft2(x), s=(8, 32))",
    "stft": "torch.stft(x, 16, 4, window=torch.hann_window(16, device=x.device), return_complex=True).abs()",
    "fftfreq": "torch.fft.rfftfreq(62, device=x.device) * x",
    "conjugated": f"torch.view_as_real(torch.conj({C}) * {C})",
    "conjugated and copied": f"torch.view_as_real({C}.conj().clone())",
    "conjugated in a product": f"torch.view_as_real({C} @ {C}.mH)",
    "part of a conjugate": f"{C}.conj().imag * 2",
    "copied part of a conjugate": f"{C}.conj().imag.clone()",
    "legendre": "torch.special.legendre_polynomial_p(x, 3)",
    "angle": f"torch.angle({C})",
    "polar": "torch.view_as_real(torch.polar(x, x))",
    **{name: f"torch.special.{name}(x)" for name in ("i0e", "i1", "erfcx", "log_ndtr", "bessel_j1", "entr")},
    "zeta": "torch.special.zeta(x.abs() + 2, x.abs() + 1)",
    "polygamma": "torch.special.polygamma(1, x.abs() + 1)",
    "multigammaln": "torch.special.multigammaln(x.abs() + 3, 4)",
    "gammainc": "torch.special.gammainc(x.abs(), x.abs())",
    "sums of rows": f"{BAG})",
    "weighted sums of rows": f"{BAG}, mode='sum', per_sample_weights=x.new_ones(12))",
    "means of rows": f"{BAG}, mode='mean', include_last_offset=True)",
    "maxima of rows": f"{BAG}, mode='max', padding_idx=2)",
    "pdist": "torch.nn.functional.pdist(x)",
    "renorm": "torch.renorm(x, 2, 0, 1.0)",
    "nanmedian": "torch.nanmedian(x, 1).values",
    "nextafter": "torch.nextafter(x, x + 1)",
    "frexp": "torch.frexp(x)[0]",
    "take": "torch.take(x, x.new_ones(7).long())",
    "put": "torch.put(x, x.new_ones(1).long(), x[0, :1])",
    "index_reduce": "torch.zeros(4, 32, device=x.device).index_reduce(0, x.new_ones(8).long(), x, 'amax')",
    "diagonal_scatter": "torch.diagonal_scatter(x, x[0, :8])",
    "select_scatter": "torch.select_scatter(x, x[0], 0, 3)",
    "slice_scatter": "torch.slice_scatter(x, x[:4], 0, 2, 6)",
    "as_strided_scatter": "torch.as_strided_scatter(x, x[0, :8], (8,), (33,))",
    "grid_sample of volumes": "F.grid_sample(x.view(1, 1, 4, 8, 8), x.view(1, 1, 8, 4, 8)[..., :3])",
    "padded volumes": "F.pad(x.view(1, 1, 4, 8, 8), (1, 1, 1, 1, 1, 1), mode='reflect')",
    "smoothed resize": "F.interpolate(x.view(1, 1, 16, 16), size=(5, 7), mode='bilinear', antialias=True)",
    "histc": "torch.histc(x, 9, -2.0, 2.0)",
}


def left_to_torch(expression: str) -> Plan:
    """The plan of a module that leaves the expression to torch and doubles what comes out."""
    made = "rows = torch.arange(12, device=x.device).remainder(8)\nstarts = torch.arange(0, 12, 3, device=x.device)\n"
    return plan_of(module(f"{made if 'rows' in expression else ''}return launch(({expression}).contiguous())"))


def changed_bytes(memory: list[torch.Tensor], before: list[torch.Tensor]) -> set[int]:
    return {i for i, (now, then) in enumerate(zip(memory, before, strict=True)) if not torch.equal(now, then)}


@pytest.mark.parametrize("expression", LEFT.values(), ids=LEFT)
def test_calls_give_what_the_plan_says_in_memory_of_their_own(expression: str) -> None:
    plan = left_to_torch(expression)
    assert check_plan(plan, spec(dense(8, 32))) is None
    memory = [torch.full((storage.nbytes,), 0x3C, dtype=torch.uint8) for storage in plan.storages]
    memory[0].view(torch.float32).copy_(torch.randn(8 * 32, generator=torch.Generator().manual_seed(1)))

    def view_of(ref: TensorRef) -> torch.Tensor:
        return view(memory[ref.storage], ref)

    x = view_of(TensorRef(0, "float32", (8, 32), (32, 1))).clone()
    known = {"x": x, "rows": torch.arange(12) % 8, "starts": torch.arange(0, 12, 3), "torch": torch, "F": torch.nn.functional}
    expected = eval(expression, known)
    [launch] = [node for node in plan.nodes if isinstance(node, LaunchNode)]
    [given, _] = [value for value in launch.variants[0].args.values() if isinstance(value, TensorRef)]
    calls = [node for node in plan.nodes if isinstance(node, AtenNode)]
    assert calls
    for node in calls:
        before = [bytes_.clone() for bytes_ in memory]
        results = call_aten(node, view_of, "cpu")
        assert len(results) == len(node.outputs)
        written = {r.storage for r in node.outputs if r is not None}
        assert changed_bytes(memory, before) <= written, "it writes to nothing that the plan does not say"
        read = {r.storage for a in (*node.args, *node.kwargs.values()) for r in walk_refs(a)}
        for result, ref in zip(results, node.outputs, strict=True):
            if ref is None:
                continue
            assert (tuple(result.shape), str(result.dtype)) == (ref.shape, f"torch.{ref.dtype}")
            assert not result.is_conj()
            assert not result.is_neg()
            starts = {memory[i].data_ptr() for i in read - written}
            assert result.untyped_storage().data_ptr() not in starts, "it returns memory of its operands"
            if result.data_ptr() != view_of(ref).data_ptr():
                view_of(ref).copy_(result)
    torch.testing.assert_close(view_of(given), expected.to(view_of(given).dtype).reshape(given.shape), equal_nan=True)


def test_what_bags_tell_besides_is_no_part_of_a_plan() -> None:
    """Its shape is another one on each device."""
    [node] = [n for n in left_to_torch(LEFT["maxima of rows"]).nodes if isinstance(n, AtenNode) and "bag" in n.op]
    assert aten.base_name(node.op) in aten.BAGS
    assert [out is not None for out in node.outputs] == [True, False, False, False]


def test_no_operator_is_both_allowed_and_refused() -> None:
    assert not aten.ALLOWED & (aten.FACTORISE | aten.WAIT)
    unknown = {name for name in aten.ALLOWED | aten.FACTORISE | aten.WAIT if not hasattr(torch.ops.aten, name)}
    assert not {name for name in unknown if not hasattr(torch.ops.aten, f"{name}_")}
