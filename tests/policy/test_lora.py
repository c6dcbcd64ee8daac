"""LoRA: where adapters go, how strong they are, and what is saved of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kernrl.errors import UsageError
from kernrl.policy.load import Policy, add_lora, check_targets, load_config, load_policy
from kernrl.policy.parallel import save_final
from kernrl.policy.ranks import open_ranks
from kernrl.runs.tracking import open_accelerator


def test_adapters_go_where_they_are_told(model: Path) -> None:
    adapted = add_lora(load_policy(str(model)).model, rank=4, alpha=12, dropout=0.25, targets=("q_proj", "v_proj"))
    names = {name.split(".")[-4] for name, p in adapted.named_parameters() if p.requires_grad}
    assert names == {"q_proj", "v_proj"}
    settings = adapted.peft_config["default"]  # pyright: ignore
    assert (settings.lora_alpha, settings.lora_dropout) == (12, 0.25)


def test_every_linear_layer_is_the_default(model: Path) -> None:
    adapted = add_lora(load_policy(str(model)).model, rank=4, alpha=8)
    names = {name.split(".")[-4] for name, p in adapted.named_parameters() if p.requires_grad}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_a_layer_that_is_not_there_is_one_sentence(model: Path) -> None:
    with pytest.raises(UsageError, match="--lora-targets nothing: "):
        add_lora(load_policy(str(model)).model, rank=4, alpha=8, targets=("nothing",))


def test_names_of_layers_are_checked_before_weights_are_loaded(model: Path) -> None:
    config = load_config(str(model))
    for fine in (("all-linear",), ("q_proj", "mlp.up_proj")):
        check_targets(config, fine)
    with pytest.raises(
        UsageError, match=r"--lora-targets q_poj: no layer of the model has that name; there are q_proj, k_proj"
    ):
        check_targets(config, ("v_proj", "q_poj"))


def test_the_final_model_is_merged_and_keeps_its_adapters(model: Path, tmp_path: Path) -> None:
    policy = load_policy(str(model))
    torch.manual_seed(0)
    adapted = add_lora(policy.model, rank=4, alpha=8)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # zero at first
            torch.nn.init.normal_(parameter, std=0.1)
    with open_ranks(open_accelerator("none", tmp_path)) as ranks:
        save_final(ranks, Policy(adapted, policy.tokenizer), tmp_path / "model", [{"step": 1}])
    ids = torch.arange(4)[None]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    plain = base(ids).logits
    from peft import PeftModel  # two seconds, which the fast tests do without

    beside = PeftModel.from_pretrained(base, str(tmp_path / "model" / "adapters"))
    assert json.loads((tmp_path / "model" / "adapters" / "adapter_config.json").read_text())["r"] == 4
    wanted = beside(ids).logits
    off = (merged(ids).logits - wanted).abs().mean() / (plain - wanted).abs().mean()
    assert off < 0.1  # weights are saved in bf16
    assert not torch.allclose(plain, merged(ids).logits, atol=0.05)
    torch.testing.assert_close(wanted, merged(ids).logits, atol=0.1, rtol=0.03)
