"""The memory estimate against what autograd saves on the meta device, what peft adds, and what an H200 took."""

import pytest
import torch
from support.tiny import tiny_tasks
from transformers import Qwen2Config, Qwen2ForCausalLM

from kernrl.cli import run
from kernrl.errors import UsageError
from kernrl.policy import memory_plan
from kernrl.policy.load import add_lora, recompute_activations
from kernrl.policy.memory_plan import GIB, count_adapters, count_parameters, estimate_training, layer_bytes
from kernrl.stages import sft
from kernrl.tasks.rows import write_tasks
from kernrl.training import starting_policy


def decoder(hidden, feed_forward, heads, key_heads, layers, vocab_size=1024, **more):
    return Qwen2Config(
        vocab_size=vocab_size, hidden_size=hidden, intermediate_size=feed_forward, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, **more,
    )  # fmt: skip


WIDTHS = {"nano": (512, 1280, 8, 2), "1.5B": (1536, 8960, 12, 2), "7B": (3584, 18_944, 28, 4)}
SEVEN = decoder(*WIDTHS["7B"], layers=28, vocab_size=152_064, tie_word_embeddings=False)
SMALL = decoder(*WIDTHS["1.5B"], layers=28, vocab_size=151_936, tie_word_embeddings=True)
NANO = decoder(*WIDTHS["nano"], layers=6, vocab_size=4096, tie_word_embeddings=True)


def on_meta(config, *, lora, checkpointing=False):
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config).to(torch.bfloat16)  # pyright: ignore[reportArgumentType]
        if lora:
            model = add_lora(model, rank=16, alpha=32)
    if checkpointing:
        recompute_activations(model)
    if lora:
        model.enable_input_require_grads()
    return model.train()


def saved_bytes(model, tokens=16):
    """Bytes that autograd keeps of a forward pass, weights left out."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    base = model.get_base_model() if hasattr(model, "peft_config") else model
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = base.get_decoder()(input_ids=ids, attention_mask={"full_attention": None}, use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
def test_a_layer_keeps_what_autograd_saves_for_it(widths):
    few, many = (saved_bytes(on_meta(decoder(*widths, layers=n), lora=False)) for n in (1, 3))
    found = (many - few) / 2 / 16
    assert layer_bytes(decoder(*widths, layers=1), autocast=False, compiled=False) == pytest.approx(found, rel=0.03)


@pytest.mark.parametrize("lora", [False, True])
def test_under_checkpointing_a_layer_keeps_its_input_alone(lora):
    few, many = (saved_bytes(on_meta(decoder(*WIDTHS["7B"], layers=n), lora=lora, checkpointing=True)) for n in (1, 3))
    assert (many - few) / 2 / 16 == 2 * 3584
    one, three = (
        estimate_training(
            decoder(*WIDTHS["7B"], layers=n), parameters=0, row_tokens=16, weight_bytes=2, gradient_checkpointing=True
        ).activations_bytes
        for n in (1, 3)
    )
    assert (three - one) / 2 / 16 == 2 * 3584


def test_adapters_are_counted_as_peft_makes_them():
    config = decoder(*WIDTHS["7B"], layers=2)
    made = on_meta(config, lora=True)
    trainable = [p for p in made.parameters() if p.requires_grad]
    assert count_adapters(config, 16) == sum(p.numel() for p in trainable)
    assert {p.dtype for p in trainable} == {torch.float32}  # 4 bytes for the weight, 4 for its gradient, 8 for its moments


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "row_tokens", "lora_rank", "compiled", "peak_gib"),
    [
        (NANO, 65_536, 0, True, 7.62),
        (NANO, 131_072, 0, True, 14.57),
        (NANO, 65_536, 0, False, 11.46),
        (SMALL, 16_384, 0, False, 75.14),
        (SMALL, 16_384, 16, False, 59.68),
    ],
)
def test_an_h200_took_what_is_foretold(config, row_tokens, lora_rank, compiled, peak_gib):
    """Measured with torch 2.11 by scripts/bench_sft.py."""
    estimate = estimate_training(
        config,
        parameters=count_parameters(config),
        row_tokens=row_tokens,
        weight_bytes=2 if lora_rank else 4,
        lora_rank=lora_rank,
        compiled=compiled,
    )
    assert estimate.total_bytes / GIB == pytest.approx(peak_gib, rel=0.04)


@pytest.mark.slow
def test_seven_billion_fits_where_it_should():
    parameters = count_parameters(SEVEN)
    assert parameters == 7_615_616_512
    rows = {"parameters": parameters, "row_tokens": 16_384, "gradient_checkpointing": True}
    lora = estimate_training(SEVEN, weight_bytes=2, lora_rank=16, **rows)
    assert lora.weights_bytes - 4 * count_adapters(SEVEN, 16) == 2 * parameters
    assert lora.gathered_bytes == 0
    assert lora.total_bytes < 40 * GIB
    whole = estimate_training(SEVEN, weight_bytes=4, **rows)
    shards = [estimate_training(SEVEN, weight_bytes=4, shards=n, **rows) for n in (2, 8)]
    assert whole.total_bytes > 120 * GIB > shards[0].total_bytes > shards[1].total_bytes
    state = [s.weights_bytes + s.gradients_bytes + s.optimizer_bytes for s in shards]
    assert state == pytest.approx([16 * parameters / 2, 16 * parameters / 8])
    # embedding and head whole in bf16, with their gradients, and the head's in float32
    assert shards[0].gathered_bytes == shards[1].gathered_bytes > 20 * 152_064 * 3584


def test_a_run_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (139 * GIB, 140 * GIB))
    settings = {"row_tokens": 16_384, "weight_bytes": 4, "lora_rank": 0, "gradient_checkpointing": True, "compiled": True}
    memory_plan.check_training_memory(SEVEN, shards=2, **settings)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (130 * GIB, 140 * GIB))
    with pytest.raises(UsageError, match=r"^This run needs about 13\d\.\d GiB .* but 130\.0 GiB are free: use .* --lora\.$"):
        memory_plan.check_training_memory(SEVEN, shards=1, **settings)


@pytest.mark.parametrize(
    ("row_tokens", "layers", "vocab_size", "grown_mib"),
    [(2048, 6, 300, 667), (2048, 2, 300, 277), (1024, 6, 16_384, 622)],
)
def test_a_step_on_a_cpu_took_what_is_foretold(row_tokens, layers, vocab_size, grown_mib):
    """Measured with torch 2.13: what the process grew by in its first two steps, less weights, gradients and moments."""
    config = decoder(*WIDTHS["nano"], layers=layers, vocab_size=vocab_size)
    estimate = estimate_training(config, parameters=1000, row_tokens=row_tokens, weight_bytes=4, on_gpu=False)
    assert estimate.activations_bytes / 2**20 == pytest.approx(grown_mib, rel=0.25)
    assert estimate.weights_bytes + estimate.gradients_bytes + estimate.optimizer_bytes == 16 * 1000


def test_a_machine_without_a_gpu_is_asked_what_it_has(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(memory_plan, "CONTAINER_LIMIT", tmp_path / "memory.max")
    assert GIB // 8 < memory_plan.free_ram_bytes() < 2**45
    (tmp_path / "memory.max").write_text(f"{3 * GIB}\n")
    assert memory_plan.free_ram_bytes() <= 3 * GIB
    with pytest.raises(UsageError, match=r"^This run needs about 1\d\d\.\d GiB .* GiB are free: use .*--lora\.$"):
        memory_plan.check_training_memory(
            SEVEN, row_tokens=1024, weight_bytes=4, lora_rank=0, gradient_checkpointing=False, shards=1, compiled=True
        )


def test_nano_from_nothing_is_foretold_before_its_data_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory_plan, "free_ram_bytes", lambda: GIB)
    monkeypatch.setattr(sft, "read_pairs", lambda config, split: pytest.fail("data was made for a run that cannot be"))
    assert run(["sft", "--output", str(tmp_path / "run"), "--row-tokens", "65536", "--quiet"]) == 2
    assert "but 1.0 GiB are free: use --gradient-checkpointing or a smaller --row-tokens" in capsys.readouterr().err


def test_a_stage_that_samples_checks_too(tmp_path, monkeypatch, capsys):
    SEVEN.save_pretrained(tmp_path / "model")
    write_tasks(tmp_path / "tasks.jsonl", tiny_tasks())

    def refuse(model, **settings):
        raise UsageError(str(settings))

    monkeypatch.setattr(starting_policy, "check_training_memory", refuse)
    where = ["--model", str(tmp_path / "model"), "--tasks", str(tmp_path / "tasks.jsonl"), "--output", str(tmp_path / "run")]
    assert run(["reinforce", *where, "--lora", "--gradient-checkpointing", "--quiet"]) == 2
    assert "'lora_rank': 16, 'gradient_checkpointing': True, 'shards': 1, 'compiled': False" in capsys.readouterr().err
