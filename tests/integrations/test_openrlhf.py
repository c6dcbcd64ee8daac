"""The guide's example for OpenRLHF, with a stand-in for the class that it derives from."""

import re
import textwrap

import pytest
import torch
from support import ROOT
from support.ppo_case import clipped, mean, ppo_case
from support.stand_in_module import stand_in_module

torch.set_num_threads(1)


class PolicyLoss(torch.nn.Module):
    """OpenRLHF's constructor, and what it keeps."""

    def __init__(self, clip_eps_low=0.2, clip_eps_high=0.2, dual_clip=None, token_level_loss=True, policy_loss_type="ppo"):
        super().__init__()
        self.clip_eps_low, self.clip_eps_high, self.dual_clip = clip_eps_low, clip_eps_high, dual_clip
        self.token_level_loss, self.policy_loss_type, self.is_correction_level = token_level_loss, policy_loss_type, "off"


def test_the_guides_loss_is_openrlhfs(monkeypatch):
    actor = stand_in_module(monkeypatch, "openrlhf.trainer.ray.ppo_actor", PolicyLoss=PolicyLoss)
    guide = (ROOT / "docs" / "guides" / "own_loop.md").read_text()
    (example,) = (text for text in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "openrlhf" in text)
    exec(textwrap.dedent(example), {})

    case = ppo_case()
    case.old -= 1.5
    each = clipped(case, high=0.28)
    loss_of = vars(actor)["PolicyLoss"](0.2, 0.28, dual_clip=3.0)
    assert loss_of.__class__.__name__ == "FusedPolicyLoss"
    loss, clip_ratio, kl, *rest = loss_of(case.new, case.old, case.a, case.mask)
    torch.testing.assert_close(loss, mean(case, torch.where(case.a < 0, torch.minimum(each, -3.0 * case.a), each)))
    ratio = (case.new - case.old).exp()
    bound = ratio.clamp(0.8, 1.28) * case.a < ratio * case.a
    assert clip_ratio.item() == pytest.approx(mean(case, bound.double()).item())
    assert kl.item() == pytest.approx(mean(case, case.old - case.new).item())
    assert rest == [None, None]
    loss, *_ = vars(actor)["PolicyLoss"](0.2, 0.28)(case.new, case.old, case.a, case.mask, None, 2, 40.0)
    torch.testing.assert_close(loss, (each * case.mask).sum() / 40 * 2)
