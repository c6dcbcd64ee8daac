"""Whole models: every part that is found is swapped for what it was written out as, and the model computes what it did.

Architectures are transformers' own at small widths. What is swapped in is plain PyTorch under the part's own parameter paths,
so this needs no search: it holds the way from a call to its Graph, to a file, and back into the model.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import tempfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import ROOT
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernrl.optimization import api
from kernrl.optimization.models.agreement import disagreement
from kernrl.optimization.models.submodules import Parts, find_parts
from kernrl.optimization.models.swap import FastForward, is_swapped, swap
from kernrl.optimization.module_task import positional, task_of_module
from kernrl.tasks.graph.writing.plain import task_of_graph
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.truth.reference_answers import ReferenceAnswers


@pytest.fixture(scope="module")
def architectures() -> Any:
    """`scripts/bench_optimize_models.py`, which is no package."""
    spec = importlib.util.spec_from_file_location("bench_optimize_models", ROOT / "scripts" / "bench_optimize_models.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def all_swapped(model: nn.Module, inputs: Any) -> tuple[nn.Module, Parts, list[int]]:
    """A copy with every part swapped on the CPU, its parts, and a list that gets an entry a fast call."""
    made = api.shared_copy(model)
    arguments = positional(made, inputs)
    parts, called = find_parts(made, arguments), []
    folder = Path(tempfile.mkdtemp())
    for number, part in enumerate(parts.found):
        first = made.get_submodule(part.paths[0])
        held = {**dict(first.named_parameters()), **dict(first.named_buffers())}
        written = api.load_named(task_of_graph(part.graph, f"part-{number}", held).pytorch_code, folder)

        def forward(self: nn.Module, *tensors: Tensor, own: Any = written.Model.forward, number: int = number) -> Any:
            called.append(number)
            out = own(self, *tensors)
            assert all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(out))  # as the verifier asks
            return out

        places = [int(i.place[0]) for i in part.graph.inputs]
        for path in part.paths:
            swap(made.get_submodule(path), forward, part.call, places, ("cpu",))
    return made, parts, called


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parts", "whole"),
    [
        ("resnet50", {"ResNetStage", "ResNetEmbeddings"}, 0),
        ("vit", {"ViTLayer", "ViTEmbeddings", "LayerNorm"}, 2),
        ("llama", {"LlamaAttention", "LlamaMLP", "LlamaRMSNorm"}, 2),
    ],
)
def test_an_architecture_of_transformers_computes_the_same_part_by_part(
    architectures: Any, name: str, parts: set[str], whole: int
) -> None:
    torch.manual_seed(0)
    model, x = architectures.MODELS[name](small=True)
    model.eval()
    made, found, called = all_swapped(model, x)
    assert parts <= {part.kind for part in found.found}
    assert sorted(len(part.paths) for part in found.found)[-1] >= max(1, whole)
    with torch.no_grad():
        made(x)
    assert set(called) == set(range(len(found.found)))
    assert disagreement(model, made, (x,), "fp32", 2) == ""
    assert list(made.state_dict()) == list(model.state_dict())
    again = api.shared_copy(model)
    again.load_state_dict(made.state_dict())
    compiled: Any = torch.compile(made, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="for inference alone"):
        made(x).sum().backward()


Pair = namedtuple("Pair", "fine coarse")


class Odd(nn.Module):
    """Gives a named tuple and takes a tuple by name, a number and a flag."""

    def __init__(self, d: int):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(d), nn.Linear(d, d)

    def forward(self, x: Tensor, scale: float = 2.0, *, rotary: tuple[Tensor, Tensor], flag: bool = False, **more: Any) -> Pair:
        cosine, sine = rotary
        h = F.gelu(self.up(self.norm(x)) * cosine + sine) * scale
        return Pair(h, {"mean": h.mean(-1), "all": [h + x]})


class Whole(nn.Module):
    """Calls one part by name, the same module twice, and casts in between."""

    def __init__(self, d: int = 16):
        super().__init__()
        self.odd = Odd(d)
        self.shared = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.LayerNorm(d))
        self.again = self.shared

    def forward(self, x: Tensor) -> Tensor:
        pair = self.odd(x=x, rotary=(x.cos(), x.sin()), flag=True, unused=None)
        assert isinstance(pair, Pair)
        y = self.again(self.shared(pair.fine)) + pair.coarse["all"][0]
        if float(y.sum()) == 0.5:  # decided by numbers, so that the whole is no part
            y = y + 1
        return (y.double().float() * pair.coarse["mean"][..., None]).float()


class Rotary(nn.Module):
    """A table of angles in float32 whatever the inputs are, with autocast switched off: as older transformers write it."""

    def __init__(self, d: int):
        super().__init__()
        self.register_buffer("rates", 100.0 ** -(torch.arange(0, d, 2).float() / d), persistent=False)
        self.rates: Tensor

    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        rates = self.rates[None, :, None].float().expand(places.shape[0], -1, 1)
        with torch.autocast(device_type="cpu", enabled=False):
            angles = (rates.float() @ places[:, None, :].float()).transpose(1, 2)
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Narrow(nn.Module):
    """Products of what is made or cast in float32, of a plain attribute, and of a number's tensor, with what is not."""

    def __init__(self, d: int = 16):
        super().__init__()
        self.rotary, self.up = Rotary(d), nn.Linear(d, d)
        self.table = torch.randn(d, d, generator=torch.Generator().manual_seed(1))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)[None]
        cosine, sine = self.rotary(x, places)
        scores = torch.softmax(x @ x.transpose(1, 2), -1, dtype=torch.float32)
        y = scores @ self.up(x) * cosine + x.to(torch.float32) @ self.table * sine
        causal = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float32, device=x.device)
        causal.add_(2.0)
        return causal @ y


X = torch.randn(4, 10, 16, generator=torch.Generator().manual_seed(0))


def test_float32_by_name_is_float64_in_the_truth() -> None:
    torch.manual_seed(0)
    model = Narrow().eval()
    made, parts, called = all_swapped(model, X)
    assert [part.kind for part in parts.found] == ["Narrow"]
    assert disagreement(model, made, (X,), "fp32", 2) == ""
    assert called
    off = copy.deepcopy(model)
    with torch.no_grad():
        off.up.weight += 0.01  # pyright: ignore[reportOperatorIssue]
    assert "off by" in disagreement(model, off, (X,), "fp32", 1)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_a_part_that_names_float32_has_a_truth(precision: str) -> None:
    task = task_of_module(Narrow().eval(), X, "narrow", precision)
    assert "torch.float32" in task.pytorch_code
    full = task.input_set("full")
    assert full
    answer = ReferenceAnswers(TaskInputs(task, full, precision, "cpu")).answer()
    assert [y.dtype for y in answer.truth] == [torch.float64]


def test_arguments_by_name_nested_outputs_and_shared_modules() -> None:
    model = Whole().eval()
    made, found, called = all_swapped(model, X)
    paths = {part.paths: part for part in found.found}
    assert ("odd",) in paths
    assert any("shared" in found for found in paths)
    assert disagreement(model, made, (X,), "fp32", 2) == ""
    assert set(called) == set(range(len(found.found)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"scale": 3.0},
        {"flag": False},
        {"flag": 1},
        {"unused": 1},
        {"rotary": (X[:2, :1], X[:2, :1])},
        {"rotary": [X.cos(), X.sin()]},
    ],
)
def test_other_arguments_by_name_run_the_module_s_own_forward(changed: dict[str, Any]) -> None:
    model = Whole().eval()
    made, _, called = all_swapped(model, X)
    arguments: dict[str, Any] = {"rotary": (X.cos(), X.sin()), "flag": True, "unused": None}
    odd: Any = made.get_submodule("odd")
    with torch.no_grad():
        odd(X, **arguments)
        assert len(called) == 1
        try:
            mine = odd(X, **(arguments | changed))
        except RuntimeError:
            mine = None  # its own forward refuses such shapes
        assert len(called) == 1
        if mine is not None:
            theirs = model.odd(X, **(arguments | changed))
            torch.testing.assert_close(mine.fine, theirs.fine)
    with pytest.raises(TypeError, match="rotary"):
        odd(X)


def test_a_part_with_hooks_or_a_forward_of_its_own_is_left() -> None:
    model = Whole().eval()
    model.odd.up.register_forward_hook(lambda *given: given[-1] * 2)
    model.shared.forward = model.shared.forward  # pyright: ignore[reportAttributeAccessIssue]
    parts = find_parts(model, (X,))
    assert all(path not in part.paths for part in parts.found for path in ("odd", "odd.up", "shared", "again"))
    assert "has hooks" in dict(parts.left)["odd.up"]
    seen: list[nn.Module] = []
    model.odd.norm.register_forward_pre_hook(lambda module, args: seen.append(module))
    made, _, _ = all_swapped(model, X)
    with torch.no_grad():
        torch.testing.assert_close(made(X), model(X))
    assert len(seen) >= 2  # in the copy and in the original


def test_channels_last_images_are_left_as_they_are() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()).eval()
    images = torch.randn(2, 8, 6, 6)
    assert find_parts(model, (images,)).found
    parts = find_parts(model, (images.to(memory_format=torch.channels_last),))
    assert parts.found == ()
    assert "channels-last" in parts.left[0][1]


def test_a_saved_model_loads_into_the_original_and_back(tmp_path: Path) -> None:
    model = Whole().eval()
    made, _, _ = all_swapped(model, X)
    torch.save(made.state_dict(), tmp_path / "weights.pt")
    other = Whole().eval()
    other.load_state_dict(torch.load(tmp_path / "weights.pt"))
    with torch.no_grad():
        torch.testing.assert_close(other(X), made(X))
        changed = {name: value * 1.5 for name, value in other.state_dict().items()}
        other.load_state_dict(changed)
        made.load_state_dict(changed)  # in place: the fast forward reads what it is given
        torch.testing.assert_close(other(X), made(X))
    assert is_swapped(made.get_submodule("odd"))
    assert isinstance(made.get_submodule("odd").__dict__["forward"], FastForward)
