"""nano: the small model for everyone who brings none: a Qwen2 of 18 M parameters and a byte-level BPE of 4 k."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

VOCAB_SIZE = 4096
CONTEXT = 4096
PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"

_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "<|assistant|>{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{%- else -%}<|user|>{{ message['content'] }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Qwen2Tokenizer:
    """Train nano's byte-level BPE on `texts` (deterministic). Any NFC text can be encoded and decoded without loss.

    It keeps Qwen2's way of splitting text, which `AutoTokenizer` gives every Qwen2 model whatever its files say. Digits
    stand alone in it, so sizes are copied from the prompt and not remembered.
    """
    splitting: Any = Qwen2Tokenizer().backend_tokenizer
    learner: Any = Tokenizer(models.BPE())
    learner.normalizer, learner.pre_tokenizer = splitting.normalizer, splitting.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]
    merges: Any = [tuple(merge) for merge in learnt["merges"]]
    return Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=merges,
        unk_token=PAD,  # never produced: every byte is in the vocabulary
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[USER, ASSISTANT],
        chat_template=_CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )


def create_nano(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """A nano with fresh float32 weights drawn from `seed`."""
    end_id: Any = tokenizer.eos_token_id
    pad_id: Any = tokenizer.pad_token_id
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=1280,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=pad_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.8,
        top_p=1.0,
        top_k=0,
        eos_token_id=end_id,
        pad_token_id=pad_id,
    )
    return model
