"""Where convolutions leave the channels."""

import pytest
import torch
from support.front import dense, module, ops, plan_of, spec

from kernrl.verifier.plan.plan import AtenNode


@pytest.mark.parametrize(("rank", "call"), [(2, "conv2d"), (2, "conv_transpose2d"), (3, "conv3d")])
def test_a_convolution_leaves_the_channels_where_it_finds_them(rank, call):
    """As cuDNN does: a copy into another order that no real run makes would be timed with the candidate."""
    last = torch.channels_last if rank == 2 else torch.channels_last_3d
    body = (
        f"w = torch.full((4, 4, {'3, ' * rank}), 0.5, device=x.device); last = {last}; "
        f"y = nn.functional.{call}(x.contiguous(memory_format=last), w); return launch(y.contiguous(memory_format=last))"
    )
    plan = plan_of(module(body), spec(dense(2, 4, *[6] * rank)))
    (convolution,) = [n for n in plan.nodes if isinstance(n, AtenNode) and n.op == "aten.convolution.default"]
    (made,) = convolution.outputs
    assert made
    assert made.stride[1] == 1
    assert ops(plan).count("aten.clone.default") == 1
    plain = plan_of(
        module(f"return launch(nn.functional.{call}(x, torch.ones({'4, ' * (rank + 2)}device=x.device)))"),
        spec(dense(2, 4, *[6] * rank)),
    )
    (convolution,) = [n for n in plain.nodes if isinstance(n, AtenNode) and n.op == "aten.convolution.default"]
    (made,) = convolution.outputs
    assert made
    assert made.stride[-1] == 1
