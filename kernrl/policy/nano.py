"""nano: the small model that kernrl ships, a Qwen2 of 18 M parameters with a byte-level BPE of 4 k tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from kernrl.tasks.prompt import GRAPH_STYLES

VOCAB_SIZE = 4096
CONTEXT = 4096
PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"

FORM = "kernrl_form"
"""Entry of `tokenizer_config.json` with the form that a nano speaks; a folder without it speaks `program`."""

_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "<|assistant|>{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{%- else -%}<|user|>{{ message['content'] }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def train_tokenizer(texts: Sequence[str], vocab_size: int = VOCAB_SIZE, *, form: str = "program") -> Qwen2Tokenizer:
    """Train nano's tokenizer on `texts` (deterministic). Any NFC text can be encoded and decoded without loss.

    Two stages. First a byte-level BPE under Qwen2's way of splitting text, which `AutoTokenizer` gives every Qwen2 model
    whatever its files say; it runs out of merges at about 1,200 tokens, as code has few different words. The rest of the
    vocabulary is phrases: a second BPE over the tokens of each line, added as plain (not special) tokens. They shorten a
    generated solution from 774 tokens to 83 on average, and so its sampling and its training.

    Args:
        form: What the model will speak, which is recorded with the tokenizer. For those of Graphs, names of values and axes
            (`v12`, the `p0` of `p0_ptr`, `B`) are one token each, and phrases keep off them and off numbers: both are the same
            tokens in the prompt and everywhere in the reply, and can be copied.
    """
    splitting: Any = Qwen2Tokenizer().backend_tokenizer
    learner: Any = Tokenizer(models.BPE())
    learner.normalizer, learner.pre_tokenizer = splitting.normalizer, splitting.pre_tokenizer
    specials = [PAD, USER, ASSISTANT, END]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]
    merges: Any = [tuple(merge) for merge in learnt["merges"]]
    tokenizer = Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=merges,
        unk_token=PAD,  # never produced: every byte is in the vocabulary
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[USER, ASSISTANT],
        chat_template=_CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )
    if names := form in GRAPH_STYLES:
        tokenizer.add_tokens(_name_tokens())  # pyright: ignore[reportArgumentType]
    phrases = _phrases(tokenizer, texts, vocab_size - len(tokenizer), names)
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])  # pyright: ignore[reportArgumentType]
    if form != "program":
        set_form(tokenizer, form)
    return tokenizer


NAMES = re.compile(r"\b(?:[vpxk]\d+(?=_|\b)|[A-EG-Z]\b|\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)")
"""What a reply copies from a listing: names of values, kernels and axes (`F` is torch's module), and broken numbers."""

MOST_NAMES = {"v": 64, "p": 64, "x": 16, "k": 24}
"""First letter → how many names of it have a token; further ones are several tokens."""

NUMBERS = ("0.0", "1.0", "0.5", "2.0", "1e-05", "1e-06")
"""Numbers that are everywhere, as one token; others are written digit by digit."""

NOT_NAMES = ("conv1d", "conv2d", "conv3d", "exp2", "fp16", "fp32", "bf16", "tf32")
"""Words that end like a name: tokens of their own, or their end would be taken for one."""


def _name_tokens() -> list[AddedToken]:
    """The tokens of names, and of what must not be taken for one."""
    names = [f"{letter}{i}" for letter, count in MOST_NAMES.items() for i in range(count)]
    axes = [chr(c) for c in range(ord("A"), ord("Z") + 1) if chr(c) != "F"]
    whole = [AddedToken(word, normalized=False) for word in (*NOT_NAMES, *names, *NUMBERS)]
    return whole + [AddedToken(axis, normalized=False, single_word=True) for axis in axes]


def form_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The form that a nano speaks: `program` (the whole source), `graph` (the Graph's listing) or `graph-fast` (the same, which
    can ask for the fastest style)."""
    return tokenizer.init_kwargs.get(FORM, "program")


def set_form(tokenizer: PreTrainedTokenizerBase, form: str) -> None:
    """Record what a nano speaks, for `form_of` to find in the saved tokenizer."""
    tokenizer.init_kwargs[FORM] = form


def _phrases(tokenizer: Qwen2Tokenizer, texts: Sequence[str], count: int, names: bool) -> list[str]:
    """The `count` phrases of several tokens, each within a line, that shorten `texts` most, by BPE over token ids."""
    # each token is written as one character of Unicode's private plane, and each line as one word
    base = 0xF0000
    tokens: Any = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    ends_line = {number for number, token in enumerate(tokens) if "Ċ" in token}

    def lines() -> Iterator[str]:
        encodings = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            cut = {at for m in NAMES.finditer(text) for at in range(*m.span())} if names else set()
            words = []
            for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                apart = bool(cut) and not cut.isdisjoint(range(start, end))
                words.append(f" {chr(base + i)} " if apart else chr(base + i) + (" " if i in ends_line else ""))
            yield "".join(words)

    learner: Any = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    letters = [chr(base + i) for i in range(len(tokenizer))]
    # a third more than needed, since some are dropped below
    trainer = trainers.BpeTrainer(
        vocab_size=len(letters) + count + count // 3, initial_alphabet=letters, min_frequency=20, show_progress=False
    )
    learner.train_from_iterator(lines(), trainer)
    learnt = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    phrases = [str(tokenizer.decode([ord(letter) - base for letter in word])) for word, _ in learnt if len(word) > 1]
    # a phrase that begins or ends inside a number would split equal numbers differently
    kept = [p for p in phrases if not (p[0].isdigit() or p[-1].isdigit() or "<|" in p)]
    if names:  # nor may one end where it would swallow the `v` of a name, or leave half a word to look like one
        kept = [p for p in kept if not NAMES.search(p) and p[-1] not in "vpxk."]
    return kept[:count]


def nano_config(vocab_size: int, *, end_id: int | None = None, pad_id: int | None = None) -> Qwen2Config:
    """nano's architecture; the vocabulary is rounded up to a multiple of 64."""
    return Qwen2Config(
        vocab_size=-(-vocab_size // 64) * 64,
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


def create_nano(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """A nano with fresh float32 weights drawn from `seed`."""
    end_id: Any = tokenizer.eos_token_id
    pad_id: Any = tokenizer.pad_token_id
    config = nano_config(len(tokenizer), end_id=end_id, pad_id=pad_id)
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
