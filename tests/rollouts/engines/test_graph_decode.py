"""The loop of one step a token, on a CPU: as transformers' `generate` decodes, whatever is padded, cut, full or ended."""

import math
import time
from threading import Event

import pytest
import torch
from support.tiny import tiny_policy
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

from kernrl.policy.attention import VARLEN
from kernrl.policy.load import Policy, add_lora
from kernrl.rollouts.engines import graph_decode
from kernrl.rollouts.engines.decoding_batch import CHECK_EVERY, DecodingBatch
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine, left_padded
from kernrl.rollouts.engines.graph_decode import GraphDecoder, can_decode

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14], [20, 21, 22, 23]]
STOPS = tuple(range(100, 140))
SIZES = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


def sampled(policy: Policy, *, graphs: bool, prompts=PROMPTS, batch_size: int = 7, **changes):
    sampling = Sampling(**{"n": 3, "max_tokens": 40, "temperature": 0.8, "stop_ids": STOPS, "seed": 5, **changes})
    rollouts = GenerateEngine(policy, batch_size=batch_size, graphs=graphs).generate(prompts, sampling)
    return sorted(rollouts, key=lambda r: (r.prompt, r.sample))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 1.4, "stop_ids": ()},
        {"temperature": 0.0},
        {"temperature": 0.0, "stop_ids": ()},
        {"top_p": 0.7},
        {"top_k": 5},
        {"min_p": 0.1},
        {"top_p": 0.9, "top_k": 20, "min_p": 0.02},
        {"batch_size": 6},  # two batches of equally many rows
        {"max_tokens": 1},
        {"max_tokens": 8},
        {"max_tokens": 9, "stop_ids": ()},
        {"prompts": [[7] * 500, [5, 6, 7]], "stop_ids": ()},  # room for 12 tokens
    ],
    ids=str,
)
@pytest.mark.slow
def test_it_samples_what_transformers_samples(policy, changes):
    """From the same random numbers: on a CPU both draw [B, V] of them a step."""
    ours, theirs = (sampled(policy, graphs=graphs, **changes) for graphs in (True, False))
    assert [(r.token_ids, r.finish) for r in ours] == [(r.token_ids, r.finish) for r in theirs]
    for a, b in zip(ours, theirs, strict=True):
        if b.logprobs is None:
            assert a.logprobs is None
        else:
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
    assert any(len(set(r.token_ids)) > 1 for r in ours) or changes.get("max_tokens") == 1


@pytest.mark.slow
def test_the_likeliest_tokens_are_those_of_each_prompt_by_itself(policy):
    for rollout in sampled(policy, graphs=True, n=1, temperature=0.0, stop_ids=()):
        ids = torch.tensor([PROMPTS[rollout.prompt]])
        for token in rollout.token_ids:
            with torch.no_grad():
                assert policy.model(input_ids=ids).logits[0, -1].argmax() == token
            ids = torch.cat([ids, torch.tensor([[token]])], dim=1)


@pytest.mark.slow
def test_a_cache_that_grows_keeps_what_it_holds(policy, monkeypatch):
    wanted = sampled(policy, graphs=True, max_tokens=60, stop_ids=())
    monkeypatch.setattr(graph_decode, "GROWTH", 16)
    assert sampled(policy, graphs=True, max_tokens=60, stop_ids=()) == wanted


def test_rows_that_have_ended_are_not_decoded_on(policy):
    rows = []
    hook = policy.model.register_forward_pre_hook(lambda _, __, inputs: rows.append(len(inputs["input_ids"])), with_kwargs=True)
    with hook:
        lengths = [len(r.token_ids) for r in sampled(policy, graphs=True, n=4, batch_size=16, stop_ids=STOPS[:12])]
    assert max(lengths) == 40
    wanted = [sum(length > step // CHECK_EVERY * CHECK_EVERY for length in lengths) for step in range(1, 40)]
    assert rows[-39:] == wanted
    assert len(set(wanted)) > 2


def batch(rows: int, sampling: Sampling, emit) -> DecodingBatch:
    return DecodingBatch([(0, s) for s in range(rows)], sampling, 0, emit, Event(), time.perf_counter())


def test_rows_that_only_fill_the_step_change_nothing_and_memory_is_given_back(policy):
    ids, mask = left_padded([[5, 6, 7]], 0)
    decoder, found = GraphDecoder(policy.model.eval()), []
    sampling = Sampling(n=1, max_tokens=20, temperature=0.0)
    prompt_of = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        for rows in (2, 5):
            decoder.decode(ids, mask, prompt_of, batch(2, sampling, found.append), rows=rows, room=20, seed=0)
    assert [r.token_ids for r in found] == [found[0].token_ids] * 4
    assert len(found[0].token_ids) == 20
    layers, keys_and_values, heads, width, float32 = 2, 2, 2, 8, 4
    assert decoder.nbytes == layers * keys_and_values * 5 * heads * graph_decode.GROWTH * width * float32
    decoder.release()
    assert decoder.nbytes == 0


def test_cancelling_ends_it_without_handing_out_what_has_not_ended(policy):
    engine = GenerateEngine(policy)
    engine.on_tokens = lambda tokens: engine.cancel()
    assert not list(engine.generate([[5, 6, 7]], Sampling(n=4, max_tokens=500, temperature=0.8)))
    engine.on_tokens = lambda tokens: None
    assert len(list(engine.generate([[5, 6, 7]], Sampling(n=4, max_tokens=5, temperature=0.8)))) == 4


def model_of(config) -> Policy:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=VARLEN)
    return Policy(model.eval(), tiny_policy().tokenizer)


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES, pad_token_id=0),
        GPT2Config(vocab_size=256, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3, pad_token_id=0),
    ],
    ids=lambda config: config.model_type,
)
def test_models_of_other_kinds(config):
    policy = model_of(config)
    assert can_decode(policy.model)
    ours, theirs = (sampled(policy, graphs=graphs, max_tokens=20) for graphs in (True, False))
    assert [r.token_ids for r in ours] == [r.token_ids for r in theirs]


@pytest.mark.slow
def test_a_model_with_adapters(policy):
    plain = tiny_policy()
    adapted = Policy(add_lora(plain.model, rank=4, alpha=8, dropout=0.5, targets=("all-linear",)), plain.tokenizer)
    for name, parameter in adapted.model.named_parameters():
        if "lora_B" in name:  # zeros at first
            torch.nn.init.normal_(parameter, std=0.1)
    assert can_decode(adapted.model.eval())
    ours, theirs = (sampled(adapted, graphs=graphs, max_tokens=20) for graphs in (True, False))
    assert [r.token_ids for r in ours] == [r.token_ids for r in theirs]
    assert [r.token_ids for r in ours] != [r.token_ids for r in sampled(policy, graphs=True, max_tokens=20)]


def test_a_model_that_attends_to_a_window_is_left_to_transformers():
    window = model_of(MistralConfig(**SIZES, sliding_window=8, pad_token_id=0))
    assert not can_decode(window.model)
    assert can_decode(model_of(MistralConfig(**SIZES, sliding_window=None, pad_token_id=0)).model)
    ours, theirs = (sampled(window, graphs=graphs, max_tokens=20) for graphs in (True, False))
    assert ours == theirs
    assert math.prod(len(r.token_ids) for r in ours)


def test_what_cannot_be_decoded_is_found():
    plain = model_of(Qwen2Config(**SIZES, pad_token_id=0))
    assert can_decode(plain.model)
    plain.model.set_attn_implementation("sdpa")
    assert not can_decode(plain.model)
    turning = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    assert not can_decode(model_of(Qwen2Config(**SIZES, pad_token_id=0, rope_parameters=turning)).model)
