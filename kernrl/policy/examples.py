"""Training examples: (prompt, completion) pairs as token ids, exactly as sampling sees them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from kernrl.policy.pairs import Message, Pair


@dataclass(frozen=True, slots=True)
class Example:
    """One tokenised training pair. Only the completion contributes to the loss."""

    prompt_ids: list[int]
    """At least one token."""
    completion_ids: list[int]
    """Ends with the tokenizer's end token."""
    weight: float = 1.0
    """Factor on the loss of each completion token: 1 in plain SFT, the advantage in reinforce; a negative one unlearns."""

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(slots=True)
class Tokenized:
    """Examples that fit, and a count of those that do not."""

    examples: list[Example] = field(default_factory=list)
    too_long: int = 0
    """Pairs left out because prompt and completion exceed the maximum length; nothing is cut to fit."""


def tokenize_pairs(pairs: Iterable[Pair], tokenizer: PreTrainedTokenizerBase, max_length: int, batch: int = 1024) -> Tokenized:
    """Tokenise pairs, each completion with the end token. Pairs of more than `max_length` tokens are counted and left out."""
    end_id: Any = tokenizer.eos_token_id
    result, waiting = Tokenized(), []

    def encode(texts: list[str]) -> list[list[int]]:
        # not verbose: pairs that are too long are counted here, without the tokenizer's warnings
        return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]  # pyright: ignore[reportReturnType]

    def flush() -> None:
        asked = {id(p.messages): p.messages for p in waiting}  # the solutions of a task share its prompt
        encoded = dict(zip(asked, encode([prompt_text(messages, tokenizer) for messages in asked.values()]), strict=True))
        prompt_ids = [encoded[id(p.messages)] for p in waiting]
        completion_ids = encode([p.completion for p in waiting])
        for pair, prompt, completion in zip(waiting, prompt_ids, completion_ids, strict=True):
            example = Example(prompt, [*completion, end_id], pair.weight)
            if len(example) > max_length:
                result.too_long += 1
            else:
                result.examples.append(example)
        waiting.clear()

    for pair in pairs:
        waiting.append(pair)
        if len(waiting) == batch:
            flush()
    if waiting:
        flush()
    return result


def prompt_text(messages: list[Message], tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that a reply continues: the chat template up to the start of the assistant's message."""
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    return text
