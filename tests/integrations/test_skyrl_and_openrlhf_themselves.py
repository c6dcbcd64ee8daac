"""The losses beside SkyRL's own, in its own registry, and OpenRLHF's: only where they are installed, as CONTRIBUTING.md says.

Their losses are imported as they are. What else their packages import, ray and vLLM say, has stand-ins.
"""

import importlib
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib.machinery import PathFinder
from types import ModuleType, SimpleNamespace

import pytest
import torch
from support import ROOT
from support.ppo_case import ppo_case, skyrl_config, skyrl_correction
from support.stand_in_module import stand_in_module

from kernrl.integrations import skyrl

torch.set_num_threads(1)


@pytest.fixture
def apart(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """What is imported of these packages meanwhile is forgotten afterwards."""
    yield monkeypatch
    for name in [name for name in sys.modules if name.partition(".")[0] in ("skyrl", "skyrl_train", "openrlhf")]:
        del sys.modules[name]


def import_alone(patch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A module of an installed package, whose `__init__`s do not run."""
    *packages, _ = itertools.accumulate(name.split("."), "{}.{}".format)
    path = None
    for package in packages:
        spec = PathFinder.find_spec(package, path)
        if spec is None:
            pytest.skip(f"{package} is not installed")
        module = ModuleType(package)
        module.__path__ = path = list(spec.submodule_search_locations or ())
        patch.setitem(sys.modules, package, module)
    return importlib.import_module(name)


def compare(ours, theirs, new) -> None:
    """Loss and gradient; and the other results."""
    (loss, *rest), (want, *wanted) = ours, theirs
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(torch.autograd.grad(loss, new)[0], torch.autograd.grad(want, new)[0])
    assert rest == pytest.approx(wanted, abs=1e-6)


REDUCTIONS = {"skyrl_train": list(skyrl.REDUCTIONS), "skyrl": ["token_mean"]}  # the newer one sums in any case
LEVELS = {"skyrl_train": [None, "token"], "skyrl": [None, "token", "sequence"]}


@pytest.mark.parametrize("package", REDUCTIONS)
def test_loss_gradient_and_clip_ratio_are_skyrls(apart, package):
    inner = "skyrl_train" if package == "skyrl_train" else "skyrl.backends.skyrl_train"
    ray = {"remote": lambda x: x, "is_initialized": lambda: False}
    stand_in_module(apart, "ray", **ray)
    if package == "skyrl":
        apart.setitem(sys.modules, "skyrl.train.config", ModuleType("skyrl.train.config"))
        apart.setitem(sys.modules, "skyrl.train", ModuleType("skyrl.train"))
        vars(sys.modules["skyrl.train.config"])["AlgorithmConfig"] = object
    else:
        apart.setitem(sys.modules, "skyrl", None)
        apart.setitem(sys.modules, "skyrl_train.training_batch", SimpleNamespace(TrainingInputBatch=object))
    utils = import_alone(apart, f"{inner}.utils.ppo_utils")
    skyrl.register()
    fused, own = (utils.PolicyLossRegistry.get(name) for name in (skyrl.NAME, "regular"))
    case = ppo_case()
    old, new = case.old - 1.0, case.new.requires_grad_()  # so that every bound binds
    kinds = ("regular", "dual_clip")
    for kind, reduction, level, high in itertools.product(kinds, REDUCTIONS[package], LEVELS[package], (0.2, 0.28)):
        config = skyrl_config(
            policy_loss_type=kind, loss_reduction=reduction, use_tis=level is not None, clip_ratio_c=1.5, eps_clip_high=high,
            off_policy_correction=skyrl_correction(tis_ratio_type=level),
        )  # fmt: skip
        ours, theirs = (list(of(new, old, case.a, config, case.mask, case.rollout)) for of in (fused, own))
        if package == "skyrl":
            ours[1], theirs[1] = ours[1]["clip_ratio"], theirs[1]["clip_ratio"]
        assert theirs[1] > 0
        compare(ours, theirs, new)


def test_the_guides_loss_is_openrlhfs_own(apart):
    stand_in_module(apart, "deepspeed")
    own = import_alone(apart, "openrlhf.models.loss").PolicyLoss
    actor = stand_in_module(apart, "openrlhf.trainer.ray.ppo_actor", PolicyLoss=own)
    guide = (ROOT / "docs" / "guides" / "own_loop.md").read_text()
    (example,) = (text for text in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "openrlhf" in text)
    exec(textwrap.dedent(example), {})
    case = ppo_case()
    old, new = case.old - 1.0, case.new.requires_grad_()
    for dual, high, batch in itertools.product((None, 1.5), (0.2, 0.28), ((), (2, 77.0))):
        both = vars(actor)["PolicyLoss"], own
        ours, theirs = (of(0.1, high, dual)(new, old, case.a, case.mask, None, *batch) for of in both)
        assert ours[3:] == theirs[3:] == (None, None)
        assert theirs[1] > 0
        compare([ours[0], *(x.item() for x in ours[1:3])], [theirs[0], *(x.item() for x in theirs[1:3])], new)
