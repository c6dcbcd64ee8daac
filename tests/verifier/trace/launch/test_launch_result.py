"""What a launch and a warm-up return can be launched again, with the arguments that its code is right for."""

import pytest
from support.front import HEAD, launches, module, plan_of, trace

from kernrl.verifier.base.verdict import Rejection


def test_a_launch_returns_what_can_be_launched_again_and_says_what_it_needs():
    plan = plan_of(
        module("""
        y, z = torch.empty_like(x), torch.empty_like(x)
        k = double[(4,)](x, y, 256, BLOCK=64, num_warps=2)
        k[(4, 1, 1)](y, z, 256, 64)
        w = double.warmup(x, y, 256, BLOCK=64, num_warps=2, grid=(1,))
        w._init_handles()
        assert w.n_max_threads >= 64
        assert 8 <= w.n_regs <= 255 and w.n_spills == 0 and 0 < w.metadata.shared < 1 << 16 and w.metadata.num_warps == 2
        w[(2, 1, 1)](x, z, 512)
        return z""")
    )
    assert [n.variants[0].kernel for n in launches(plan)] == [0, 0, 0], "a warm-up launches nothing"
    assert [n.variants[0].grid[0] for n in launches(plan)] == [4, 4, 2]
    assert launches(plan)[1].variants[0].args["x_ptr"].storage == launches(plan)[0].variants[0].args["y_ptr"].storage


SHIFT = (
    HEAD
    + """
@triton.jit
def shift(x, y, n, by, least, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i + by < n, other=0.0) * tl.maximum(by, least), mask=i < n)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        k = shift.warmup(x, y, {0}, BLOCK=64, grid=(1,))
        k[(4, 1, 1)](x, y, {1})
        return y
"""
)


@pytest.mark.parametrize(
    ("compiled", "launched", "fits"),
    [
        ("250, 3, 0", "250, 3, 0", True),
        ("250, 3, 0", "250, 1, 0", True),
        ("250, 3, 7", "256, 1, 1", True),
        ("(1 << 40) + 1, (1 << 40) + 1, 7", "256, 1, 5", True),
        ("(1 << 40) + 1, 3, 0", "250, 3, 0", True),
        ("250, 1, 0", "250, 3, 0", False),
        ("250, 3, 0", "1 << 40, 3, 0", False),
        ("256, 3, 0", "250, 3, 0", False),
        ("256, 3, 0", "1, 3, 0", False),
        ("250, 3, 0", "250, 1.0, 0", False),
        ("250, 3, 0", "250, None, 0", False),
        ("250, 1.5, 0", "250, 1, 0", False),
    ],
)
def test_a_compiled_kernel_takes_what_its_code_is_right_for(compiled: str, launched: str, fits: bool) -> None:
    """What Triton specialises more is no other argument: a kernel for any whole number computes with 1, too."""
    source = SHIFT.replace("{0}", compiled).replace("{1}", launched)
    if fits:
        [variant] = launches(plan_of(source))[0].variants
        n, by, _ = eval(f"({launched})")
        assert (variant.args["n"], variant.args["by"]) == (n, by)
    else:
        rejection = trace(source)
        assert isinstance(rejection, Rejection)
        assert "was not compiled for" in rejection.reason
