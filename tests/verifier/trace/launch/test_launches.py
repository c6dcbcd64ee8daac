"""What a launch is in the plan: its arguments over storages, its grid and its kernel."""

import dataclasses

from support.front import dense, launches, module, ops, plan_of, spec

from kernrl.verifier.plan.checks import check_plan
from kernrl.verifier.plan.plan import TensorRef


def test_a_launch_is_recorded_over_storages():
    plan = plan_of(module("return launch(x)"))
    (launch,) = launches(plan)
    (variant,) = launch.variants
    assert variant.grid == (4, 1, 1)
    assert list(variant.args) == ["x_ptr", "y_ptr", "n"]
    assert variant.args["n"] == 256
    x, y = variant.args["x_ptr"], variant.args["y_ptr"]
    assert isinstance(x, TensorRef)
    assert plan.storages[x.storage].kind == "input"
    assert plan.outputs == (y,)
    kernel = plan.kernels[variant.kernel]
    assert (kernel.function, kernel.num_warps, kernel.constexprs) == ("double", 4, {"BLOCK": 64})
    assert kernel.ttir.startswith("module {")
    assert not ops(plan)


def test_specialisation_is_triton_s_own():
    source = module("""
        y = torch.empty_like(x)
        double[(4,)](x, y, 256, BLOCK=64)
        double[(4,)](x, y, 255, BLOCK=64)
        double[(4,)](x, y, 1, BLOCK=64)
        double[(4,)](x, y, 512, BLOCK=64)
        double[(4,)](x.view(-1)[1:], y, 256, BLOCK=64)
        return y""")
    plan = plan_of(source)
    assert [n.variants[0].kernel for n in launches(plan)] == [0, 1, 2, 0, 3]
    assert "n" not in launches(plan)[2].variants[0].args, "1 is folded into the code"
    assert plan.kernels[2].constexprs["n"] == 1


def test_an_empty_grid_launches_nothing():
    plan = plan_of(module("y = launch(x); double[(0,)](x, y, 0, BLOCK=64); return y"))
    assert len(launches(plan)) == 1


def test_clusters_of_blocks():
    plan = plan_of(module("y = torch.empty_like(x); double[(4,)](x, y, 256, BLOCK=64, num_ctas=2); return y"))
    assert plan.kernels[0].num_ctas == 2
    assert check_plan(plan, spec(dense(8, 32))) is None
    kernels = (dataclasses.replace(plan.kernels[0], num_ctas=3),)
    assert "3 blocks a cluster" in check_plan(dataclasses.replace(plan, kernels=kernels), spec(dense(8, 32))).reason
