"""LoRA on weights in 4 bits: what is refused, what bitsandbytes holds, what is learnt, and what the merged model is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.tiny import save_tiny_policy
from support.toy_runs import losses, reinforce_arguments, sft_arguments
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

from kernrl.cli import run
from kernrl.policy import four_bit
from kernrl.policy.load import load_policy
from kernrl.policy.memory_plan import GIB, count_parameters, estimate_training
from kernrl.training import session

LORA_4_BIT = ("--lora", "--load-in-4bit")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("sft --model some/model --load-in-4bit", "--load-in-4bit holds frozen weights, which only adapters can train: add"),
        ("reinforce --model some/model --no-lora --load-in-4bit", "--load-in-4bit holds frozen weights"),
        ("best-of-n --model nano --load-in-4bit", "--load-in-4bit is for large models, and nano is a small one"),
        ("sft --lora --load-in-4bit --launch fsdp2 --model some/model", "--load-in-4bit does not go with --launch fsdp2"),
    ],
)
def test_what_cannot_be_in_4_bits_is_refused(line: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run([*line.split(), "--output", str(tmp_path / "run"), "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(f"kernrl: {sentence}")


def test_adapters_by_default_are_enough(tmp_path: Path) -> None:
    assert run(["reinforce", "--model", "some/model", "--load-in-4bit", "--output", str(tmp_path), "--dry-run"]) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
@pytest.mark.parametrize("arguments", [sft_arguments, reinforce_arguments])
def test_what_is_missing_is_one_sentence_and_leaves_no_run(
    arguments, model, pairs, tasks, tmp_path, monkeypatch, capsys
) -> None:
    line = arguments(model, pairs if arguments is sft_arguments else tasks, tmp_path / "run", *LORA_4_BIT)
    monkeypatch.setattr(four_bit, "find_spec", lambda name: None)
    assert run(line) == 2
    assert capsys.readouterr().err == (
        "kernrl: --load-in-4bit needs bitsandbytes: pip install 'kernrl[4bit]', or leave it out.\n"
    )
    monkeypatch.setattr(four_bit, "find_spec", lambda name: object())
    assert run(line) == 2
    assert capsys.readouterr().err == "kernrl: --load-in-4bit needs an NVIDIA GPU, and there is none here: leave it out.\n"
    assert not (tmp_path / "run").exists()


def test_the_memory_of_7b_in_4_bits() -> None:
    config = Qwen2Config(
        vocab_size=152_064, hidden_size=3584, intermediate_size=18_944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, tie_word_embeddings=False,
    )  # fmt: skip
    settings = {"parameters": 7_615_616_512, "row_tokens": 4096, "weight_bytes": 2, "lora_rank": 16}
    whole = estimate_training(config, **settings)  # pyright: ignore[reportArgumentType]
    packed = estimate_training(config, **settings, four_bit=True)  # pyright: ignore[reportArgumentType]
    # 1.09 G weights of embedding and head in bf16, 6.53 G in 0.516 bytes, and adapters
    assert packed.weights_bytes / GIB == pytest.approx(2 * 1.09 * 0.9313 + 6.526 * 0.5159 * 0.9313 + 0.15, rel=0.01)
    assert packed.optimizer_bytes == whole.optimizer_bytes
    assert packed.total_bytes < whole.total_bytes - 8 * GIB


# --- with bitsandbytes, which computes NF4 on a CPU too ------------------------------------------------------------------


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """bitsandbytes on this CPU, in place of the GPU that `--load-in-4bit` asks for."""
    modules = pytest.importorskip("bitsandbytes").nn.modules
    monkeypatch.setattr(session, "require_four_bit", lambda: None)
    monkeypatch.setattr("kernrl.stages.sft.require_four_bit", lambda: None)
    # with AVX-512 it packs weights anew for evaluation, and cannot train on them afterwards
    monkeypatch.setattr(modules, "has_avx512bf16", lambda: False)


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_cpu")
def test_every_layer_but_the_head_is_in_4_bits_and_as_large_as_estimated(tmp_path: Path) -> None:
    from bitsandbytes.nn import Linear4bit

    save_tiny_policy(tmp_path)
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "vocab_size": json.loads((tmp_path / "config.json").read_text())["vocab_size"],
    }
    config = AutoConfig.from_pretrained(tmp_path, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    policy = load_policy(str(tmp_path), four_bit=True)
    packed = [m for m in policy.model.modules() if isinstance(m, Linear4bit)]
    assert len(packed) == 7 * 2
    assert policy.head_weight.dtype == torch.float32
    assert sum(map(four_bit.weights_in, policy.model.parameters())) == count_parameters(config)

    def state_bytes(state) -> int:
        return state.absmax.nbytes + state.state2.absmax.nbytes

    held = sum(p.nbytes for p in policy.model.parameters()) + sum(state_bytes(m.weight.quant_state) for m in packed)
    estimate = estimate_training(
        config, parameters=count_parameters(config), row_tokens=16, weight_bytes=4, four_bit=True, on_gpu=False
    )
    assert held == pytest.approx(estimate.weights_bytes, rel=0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_cpu")
def test_adapters_learn_on_4_bits_and_are_merged_into_whole_weights(model: Path, pairs: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    line = sft_arguments(model, pairs, output, *LORA_4_BIT, "--gradient-checkpointing", "--lora-rank", "4")
    assert run([*line, "--steps", "8"]) == 0
    loss = [values[0] for values in losses(output).values()]
    assert loss[-1] < loss[0] - 0.1
    before, after = load_file(model / "model.safetensors"), load_file(output / "model" / "model.safetensors")
    adapters = load_file(output / "model" / "adapters" / "adapter_model.safetensors")
    changed = 0
    for name, weight in before.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        wanted = weight.double()
        if f"{layer}.lora_A.weight" in adapters:
            product = adapters[f"{layer}.lora_B.weight"].double() @ adapters[f"{layer}.lora_A.weight"].double()
            wanted = wanted + 2 * product  # alpha is twice the rank
            changed += bool(product.abs().max() > 0.01)
        # bf16 rounds the weight, the product and their sum, by 2**-9 each; NF4 is off by up to 0.15 of a block's largest
        torch.testing.assert_close(after[name].double(), wanted, rtol=0, atol=4 * 2**-9 * float(wanted.abs().max()), msg=name)
    assert changed == 14


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_cpu", "verifier")
def test_a_policy_in_4_bits_is_improved_and_resumed(model: Path, tasks: Path, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    more = (*LORA_4_BIT, "--beta", "0.01")
    assert run(reinforce_arguments(model, tasks, whole, *more)) == 0
    assert run(reinforce_arguments(model, tasks, stopped, *more, steps=2)) == 0
    assert run(["reinforce", "--model", str(model), "--output", str(stopped), "--resume", "--steps", "3", "--quiet"]) == 0
    assert losses(stopped) == losses(whole)
    assert (stopped / "model" / "adapters" / "adapter_config.json").exists()
    assert AutoModelForCausalLM.from_pretrained(stopped / "model").dtype == torch.bfloat16
