"""What a worker of `pair_stream` does. It imports what that takes and no more: each worker is a new process."""

from __future__ import annotations

import gc
import os
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

from kernrl.policy.examples import Tokenized, tokenize_pairs
from kernrl.policy.pairs import Pair
from kernrl.policy.stream import FlatExamples
from kernrl.tasks.nano.graph_pairs import GraphPair, chunk_of_pairs


def ready() -> None:
    """Called once, when a worker has imported what it needs: the garbage collector would go through all of that again and
    again, for an eighth of the worker's time."""
    gc.freeze()


def made(number: int, *, folder: Path, **how: Any) -> FlatExamples | list[GraphPair]:
    """A chunk to learn from, `how` as `chunk_of_pairs` takes it: token ids if the tokenizer is in its folder, else text."""
    pairs = [pair for of_graph in chunk_of_pairs(number, split="train", **how) for pair in of_graph]
    return flat(pairs, _tokenizer(folder)) if folder.exists() else pairs


def flat(pairs: list[GraphPair], tokenizer: PreTrainedTokenizerBase) -> FlatExamples:
    """Pairs as token ids; those too long are left to the stream to leave out."""
    tokenized: Tokenized = tokenize_pairs((pair_of(p) for p in pairs), tokenizer, 1_000_000)
    return FlatExamples.of(tokenized.examples)


def pair_of(pair: GraphPair) -> Pair:
    return Pair([{"role": "user", "content": pair.prompt}], pair.reply)


@cache
def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    import torch

    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return Qwen2Tokenizer.from_pretrained(folder)
