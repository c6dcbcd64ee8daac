"""Models part by part: which parts are found, how they are swapped, and what happens where the fast forward may not run."""

from __future__ import annotations

import copy
import functools
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import ROOT
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import kernrl
from kernrl.errors import UsageError
from kernrl.optimization import api
from kernrl.optimization.models.agreement import disagreement
from kernrl.optimization.models.submodules import find_parts
from kernrl.optimization.models.swap import FastForward, is_swapped, swap
from kernrl.optimization.module_task import positional
from kernrl.optimization.one_task import Found
from kernrl.optimization.python_class import read_inputs, task_of_class
from kernrl.optimization.search.trials import Proposal, Trial
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.lift import lift, lift_module
from kernrl.tasks.graph.writing.plain import CannotStandAloneError, task_of_graph
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import load_reference


class Block(nn.Module):
    def __init__(self, d: int, act: str = "gelu"):
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(d), nn.Linear(d, 2 * d), act
        self.down = nn.Linear(2 * d, d)

    def forward(self, x: Tensor, scale: float = 1.0, *, cache: Any = None) -> Tensor:
        h = self.up(self.norm(x))
        h = F.gelu(h) if self.act == "gelu" else F.silu(h)
        return x + self.down(h) * scale


class Net(nn.Module):
    """Three equal blocks, one other, a recurrent part in between, and a head without a name of its own."""

    def __init__(self, d: int = 16):
        super().__init__()
        self.embed = nn.Embedding(50, d)
        self.blocks = nn.ModuleList([Block(d), Block(d), Block(d), Block(d, "silu")])
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Sequential(nn.Linear(d, 8), nn.ReLU(), nn.Softmax(-1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(self.rnn(x)[0])


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


IDS = torch.arange(40).reshape(4, 10)


@pytest.mark.slow
def test_parts_are_the_largest_that_lift_and_equal_ones_are_one(net: Net) -> None:
    model = copy.deepcopy(net).eval()
    parts = find_parts(model, (IDS,))
    found = {part.paths: part.graph.composition for part in parts.found}
    assert set(found) == {("blocks.0", "blocks.1", "blocks.2"), ("blocks.3",), ("head",)}
    assert "gelu" in found["blocks.0", "blocks.1", "blocks.2"]
    assert "silu" in found["blocks.3",]
    why = dict(parts.left)
    assert "recurrent" in why["rnn"]
    assert why["embed"] == "it is one library call already"


# --- written out -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "four_glances", "strip_mixer_block", "conv_transpose2d_sum_width", "attention_core_bias", "pooling_zoo_3d",
        "portfolio_risk_rows", "layernorm_chw", "reflect_padded_conv", "scores_einsum", "mobile_inverted",
    ],
)  # fmt: skip
def test_a_graph_written_out_computes_the_same(name: str, tmp_path: Path) -> None:
    task = with_input_sets(load_tasks(ROOT / "tests" / "foreign" / f"{name}.py").tasks[0], tmp_path)
    reference = load_reference(task, task.input_set("small"))
    torch.manual_seed(0)
    module, inputs = reference.Model(*reference.get_init_inputs()), list(reference.get_inputs())
    graph = lift_module(module, inputs)
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    written = load_reference(task_of_graph(graph, name, held))
    again = written.Model(*written.get_init_inputs())
    with torch.no_grad():
        for path, tensor in [*again.named_parameters(), *again.named_buffers()]:
            tensor.copy_(held[path])
        mine = again(*[inputs[int(i.place[0])] for i in graph.inputs])  # pyright: ignore[reportArgumentType]
        theirs = module(*inputs)
    for a, b in zip(tree_leaves(mine), tree_leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_what_would_compute_something_else_is_refused() -> None:
    """A list of parameters has no path as Python."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.randn(8)) for _ in range(2)])

        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(x * self.weights[1])

    graph = lift_module(Listed(), [torch.randn(4, 8)])
    with pytest.raises(CannotStandAloneError, match="list of parameters"):
        task_of_graph(graph, "listed", {})


@pytest.mark.slow
def test_a_written_task_has_small_and_ragged_sets() -> None:
    graph = lift_module(Block(64).eval(), [torch.randn(32, 128, 64)])
    task = with_input_sets(task_of_graph(graph, "block", {}))
    assert [s.name for s in task.input_sets] == ["full", "small", "ragged"]
    ragged = lift(task, task.input_set("ragged"))
    assert all(size % 8 for size in ragged.inputs[0].value.shape)


# --- swapped -----------------------------------------------------------------------------------------------------------

FAST = """
from torch import nn
import torch.nn.functional as F

class ModelNew(nn.Module):
    calls = 0

    def forward(self, x):
        ModelNew.calls += 1
        h = F.gelu(self.up(self.norm(x)))
        return x + self.down(h) * 0.5
"""


def fast_class(source: str = FAST) -> Any:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace["ModelNew"]


def swapped(net: Net, devices: tuple[str, ...] = ("cpu",), source: str = FAST) -> tuple[nn.Module, Any]:
    model = api.shared_copy(net)
    [part] = [p for p in find_parts(model, (IDS,)).found if "blocks.0" in p.paths]
    cls = fast_class(source)
    for path in part.paths:
        swap(model.get_submodule(path), cls.forward, part.call, [0], devices)
    return model, cls


@pytest.mark.slow
def test_a_swapped_model_gives_the_same_has_the_same_state_and_leaves_the_original(net: Net) -> None:
    model, cls = swapped(net)
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(IDS), net(IDS))
        assert cls.calls == 3
    assert list(model.state_dict()) == list(net.state_dict())
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(model.parameters(), net.parameters(), strict=True))
    assert not any(is_swapped(part) for part in net.modules())
    assert disagreement(net, model, (IDS,), "fp32", 2) == ""


@pytest.mark.slow
def test_a_copy_of_it_reads_its_own_parameters(net: Net) -> None:
    model, _ = swapped(net)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
        assert not torch.allclose(other.blocks[0](torch.ones(4, 10, 16), 0.5), model.blocks[0](torch.ones(4, 10, 16), 0.5))  # pyright: ignore
    torch.testing.assert_close(model(IDS), net.eval()(IDS))


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda block, x: block(x, scale=0.25),  # another number than was checked
        lambda block, x: block(x[:2], 0.5),  # another shape
        lambda block, x: block(x.double().float()[..., :], 0.5, cache=object()),  # by name alone
    ],
)
def test_other_calls_run_the_module_s_own_forward(net: Net, call: Any) -> None:
    model, cls = swapped(net)
    x = torch.randn(4, 10, 16)
    before = cls.calls
    with torch.no_grad():
        torch.testing.assert_close(call(model.blocks[0], x), call(net.blocks[0], x))  # pyright: ignore[reportIndexIssue]
    assert cls.calls == before


@pytest.mark.slow
def test_on_a_cpu_a_part_for_gpus_runs_as_before(net: Net) -> None:
    model, cls = swapped(net, devices=("cuda",))
    with torch.no_grad():
        assert torch.equal(model(IDS), net.eval()(IDS))
    assert cls.calls == 0


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "rows"), [(("cpu",), 4), (("cuda",), 4), (("cpu",), 2)])
def test_gradients_are_refused_with_a_sentence_whichever_forward_runs(net: Net, devices: tuple[str, ...], rows: int) -> None:
    model, cls = swapped(net, devices)
    out = model(IDS[:rows]).sum()
    assert cls.calls == (3 if (devices, rows) == (("cpu",), 4) else 0)
    with pytest.raises(RuntimeError, match="for inference alone: use the original module to train"):
        out.backward()
    model.train()
    with pytest.raises(RuntimeError, match="in eval mode"):
        model(IDS)


@pytest.mark.slow
def test_torch_compile_takes_it(net: Net) -> None:
    model, _ = swapped(net)
    block: Any = model.get_submodule("blocks.0")
    compiled: Any = torch.compile(block, backend="eager")
    x = torch.randn(4, 10, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, 0.5), net.blocks[0].eval()(x, 0.5))


@pytest.mark.slow
def test_a_wrong_part_shows_in_the_whole(net: Net) -> None:
    model, _ = swapped(net, source=FAST.replace("0.5", "0.501"))
    assert "is off by" in disagreement(net, model, (IDS,), "fp32", 1)


# --- kernrl.optimize ---------------------------------------------------------------------------------------------------


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every part is won by a text that only its class shows; no process is started."""
    from support.tiny import verdict_of

    asked: list[str] = []

    class Idle:
        class evaluator:
            gpus, workers = (), 1
            start = staticmethod(lambda: None)

        def __init__(self, config: object):
            pass

        def __enter__(self) -> Idle:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def found(task: Any, judge: object, settings: object, folder: Path, budget: object) -> Found:
        asked.append(task.id)
        trial = Trial("style-0", Proposal(FAST, "style", "fused"), verdict_of(FAST, speedup_x=2.0), 1.0)
        won = "Block" in task.id and "gelu" in task.pytorch_code
        return Found({"sentence": f"{task.id}: said"}, trial if won else None, interrupted=False)

    monkeypatch.setattr(api, "HardenedVerifier", Idle)
    monkeypatch.setattr(api, "optimize_task", found)
    return asked


@pytest.mark.slow
def test_optimize_searches_distinct_parts_once_and_says_what_it_did(net: Net, no_search: list[str], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="there is no GPU"):
        model = kernrl.optimize(net, IDS, output=tmp_path / "run")
    assert len(no_search) == 5  # three parts, and what is inside the two that stay as they are
    assert [is_swapped(block) for block in model.blocks] == [True, True, True, False]
    report = str(model.kernrl_report)
    assert "swapped: blocks.0 (Block) and 2 more: said" in report
    assert "rnn" in report
    assert "not compared with the original" in report
    assert isinstance(model.blocks[0].__dict__["forward"], FastForward)
    with torch.no_grad():
        assert torch.equal(model(IDS), net.eval()(IDS))


@pytest.mark.slow
def test_parts_are_searched_side_by_side_where_there_are_cores(
    net: Net, no_search: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, together = api.optimize_task, threading.Barrier(3)

    def meet(task: Any, judges: Any, *rest: Any) -> Found:
        if len(no_search) < 3:
            together.wait(timeout=60)  # broken, unless all three are searched at the same time
        return found(task, judges, *rest)

    monkeypatch.setattr(api, "tasks_at_once", lambda verifier: 3)
    monkeypatch.setattr(api, "optimize_task", meet)
    with pytest.warns(UserWarning, match="there is no GPU"):
        model = kernrl.optimize(net, IDS)
    assert [is_swapped(block) for block in model.blocks] == [True, True, True, False]
    folders = {path.name for path in model.kernrl_report.folder.iterdir() if path.is_dir()}
    assert folders >= {f"part-{number}" for number in range(len(model.kernrl_report.parts))}


@pytest.mark.parametrize("algebra", [True, False])
def test_the_switch_for_algebra_reaches_the_search_of_every_part(
    no_search: list[str], monkeypatch: pytest.MonkeyPatch, algebra: bool
) -> None:
    found, seen = api.optimize_task, list[bool]()

    def note(task: Any, judges: Any, settings: Any, *rest: Any) -> Found:
        seen.append(settings.algebra)
        return found(task, judges, settings, *rest)

    monkeypatch.setattr(api, "optimize_task", note)
    with pytest.warns(UserWarning, match="there is no GPU"):
        kernrl.optimize(nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(2, 8), algebra=algebra)
    assert set(seen) == {algebra}


@pytest.mark.slow
def test_a_part_that_stays_is_searched_inside_and_ctrl_c_keeps_what_was_found(
    net: Net, no_search: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wide(nn.Module):
        """Lifts as a whole, which the stand-in never makes faster; the blocks in it it does."""

        def __init__(self) -> None:
            super().__init__()
            self.pair = nn.Sequential(Block(16), Block(16))
            self.tail = nn.Sequential(nn.LayerNorm(16), nn.SiLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.tail(self.pair(x)).softmax(-1)

    wide, x = Wide().eval(), torch.randn(4, 10, 16)
    with pytest.warns(UserWarning, match="there is no GPU"):
        model = kernrl.optimize(wide, x)
    assert "tail.1" in dict(model.kernrl_report.left)  # inside of a part that stays
    kinds = [name.rpartition("-part")[0] for name in no_search]
    assert kinds[:3] == ["Wide", "Sequential", "Block"]
    assert [is_swapped(block) for block in model.pair] == [True, True]
    assert [p.paths for p in model.kernrl_report.parts if p.swapped] == [("pair.0", "pair.1")]

    search = api.optimize_task
    monkeypatch.setattr(
        api, "optimize_task", lambda task, *rest: interrupt() if "Sequential" in task.id else search(task, *rest)
    )
    with pytest.warns(UserWarning, match="there is no GPU"):
        stopped = kernrl.optimize(wide, x)
    assert "the search was interrupted" in str(stopped.kernrl_report)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_explain_names_what_could_fuse_and_the_floor(net: Net) -> None:
    explanation = kernrl.explain(net, {"ids": IDS}, target="H100")
    text = str(explanation)
    assert "linear + gelu" in text
    assert "H100" in text
    apart, together = explanation.parts[0].floor_us(explanation.rates)
    assert 0 < together < apart


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (torch.zeros(0, 10, dtype=torch.int64), "without elements"),
        (IDS.to("meta"), "is on meta and the module on cpu"),
        ((IDS, IDS), "does not take these inputs"),
    ],
)
def test_bad_inputs_get_one_sentence(net: Net, inputs: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kernrl.optimize(net, inputs)


def test_inputs_with_gradients_and_small_budgets_are_refused() -> None:
    with pytest.raises(UsageError, match="needs gradients"):
        kernrl.optimize(nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(2, 8, requires_grad=True))
    with pytest.raises(UsageError, match="too small a budget"):
        kernrl.optimize(nn.ReLU(), torch.randn(2, 8), budget_s=1)


class Scaled(nn.Module):
    """Takes an argument by name alone, and computes something of its own around a part that does not lift."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
        self.rnn = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        return F.softmax(F.gelu(self.rnn(self.head(x))[0]) * scale, -1)


@pytest.mark.slow
def test_explain_takes_arguments_by_name_alone_and_leaves_no_op_out() -> None:
    explanation = kernrl.explain(Scaled().eval(), {"x": torch.randn(2, 4, 8), "scale": torch.ones(8)})
    assert [part.paths for part in explanation.parts] == [("head",)]
    left = dict(explanation.left)
    assert "own forward computes between its parts stays as it is (gelu, mul, softmax)" in left[""]
    assert "recurrent" in left["rnn"]
    assert "hub model" not in str(explanation)
    other = api.shared_copy(Scaled())
    given = {"scale": torch.rand(8)}
    assert "is off by" in disagreement(Scaled(), other, (torch.randn(2, 4, 8),), "fp32", 1, given)
    assert disagreement(other, other, (torch.randn(2, 4, 8),), "fp32", 1, given) == ""


def test_what_is_not_given_is_left_to_a_decorator_of_forward() -> None:
    def with_scale(forward):  # as transformers fills in what its configurations say
        @functools.wraps(forward)
        def wrapped(self, *args, **kwargs):
            if kwargs.get("scale") is None:
                kwargs["scale"] = 2.0
            return forward(self, *args, **kwargs)

        return wrapped

    class Decorated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)

        @with_scale
        def forward(self, x, bias=None, scale=None):
            return self.norm(x) * scale

    for given in (torch.randn(4, 8), {"x": torch.randn(4, 8)}):
        (part,) = kernrl.explain(Decorated().eval(), given).parts
        assert part.paths == ("",)

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Decorated()

        def forward(self, x):
            return self.inner(x, None) + self.inner(x=x)

    ((paths),) = [part.paths for part in kernrl.explain(Holder().eval(), torch.randn(4, 8)).parts]
    assert paths in (("",), ("inner",))


def test_an_argument_by_name_is_not_taken_for_another_by_place() -> None:
    class Scale(nn.Module):
        def forward(self, x, by=None, plus=None):
            y = F.gelu(F.layer_norm(x, (8,)))
            y = y if by is None else y * by
            return y if plus is None else y + plus

    module, (x, y) = Scale().eval(), torch.randn(2, 4, 8)
    (part,) = find_parts(module, (x,), named={"plus": y}).found
    swap(module, lambda self, x, plus: x - plus, part.call, [int(i.place[0]) for i in part.graph.inputs], ("cpu",))
    with torch.no_grad():
        assert torch.equal(module(x, plus=y), x - y)
        assert torch.equal(module(plus=y, x=x), x - y)
        assert torch.equal(module(x, None, y), x - y)
        assert torch.equal(module(x, y), Scale()(x, y))


@pytest.mark.parametrize(
    ("module", "settings", "said"),
    [
        (nn.GELU(), {"precision": "tf31"}, "precision: 'tf31' is not one that there is"),
        (nn.GELU(), {"baseline": ("eagr",)}, "baseline: 'eagr' is not one that there is"),
        (nn.GELU(), {"candidates": 0}, "candidates: 0 leaves nothing to try"),
        (nn.Linear(9, 8), {}, "Linear: it raises RuntimeError on the example inputs: mat1 and mat2"),
        (lambda x: x, {}, "this is a function, and a torch.nn.Module is wanted"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(module: Any, settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        kernrl.optimize(module, torch.randn(4, 8), output=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_nobody_knows_has_no_floor() -> None:
    with pytest.raises(UsageError, match="'H1000000' is no GPU"):
        kernrl.explain(nn.GELU(), torch.randn(4, 8), target="H1000000")


def test_a_folder_with_a_search_in_it_is_no_new_one(tmp_path: Path) -> None:
    (tmp_path / "run" / "part-0").mkdir(parents=True)
    (tmp_path / "run" / "part-0" / "candidates.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"output: .*run is not empty; name a new folder"):
        kernrl.optimize(nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(2, 8), output=tmp_path / "run")


# --- package.module:Class ----------------------------------------------------------------------------------------------


def test_a_class_is_lifted_at_the_inputs_that_are_named() -> None:
    task = task_of_class("torch.nn:LayerNorm", "input=float32[64, 128]", "128, eps=1e-3")
    graph = lift(task)
    assert graph.composition == ("layer_norm",)
    assert graph.inputs[0].value.shape == (64, 128)
    assert graph.nodes[0]["eps"] == 1e-3


@pytest.mark.parametrize(
    "text", ["x=float32[0,2]", "x=float32[2", "float33[2]", "x=float32[2], float32[2]", "", "x=float32[2];__import__('os')"]
)
def test_inputs_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--inputs"):
        read_inputs(text)


@pytest.mark.parametrize(
    "size", ["x=float32[1000000000000000000000]", "float32[1000000000,1000000]", "int64[4]<100000000000000000000"]
)
def test_inputs_that_no_machine_holds_are_refused(size: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{size} is too large for this machine")):
        read_inputs(size)


def test_whole_numbers_stay_below_their_bound() -> None:
    [tensor] = read_inputs("int64[1000]<7")
    assert tensor.min() >= 0  # pyright: ignore[reportAttributeAccessIssue]
    assert tensor.max() == 6  # pyright: ignore[reportAttributeAccessIssue]


def test_defaults_are_filled_in_and_names_find_their_places() -> None:
    x = torch.randn(2, 16)
    assert positional(Block(16), {"x": x})[1] == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(positional(Block(16), x)) == 2


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_model_whose_weights_hooks_compute_can_be_copied_and_compared() -> None:
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 4)), nn.ReLU())
    assert disagreement(net, api.shared_copy(net), (torch.randn(16, 8),), "fp32", 1) == ""
