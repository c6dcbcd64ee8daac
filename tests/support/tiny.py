"""A policy, tasks and a verifier small enough to train in a test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from kernrl.policy.attention import VARLEN
from kernrl.policy.load import Policy
from kernrl.policy.nano import train_tokenizer
from kernrl.rollouts.engines.engine import Rollout, Sampling
from kernrl.tasks.task import Task
from kernrl.verifier.base.parse import Candidate, parse_reply
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict

Judge = Callable[[str], Verdict]


def tiny_policy(seed: int = 0) -> Policy:
    """Two layers, a vocabulary of a few hundred bytes, weights large enough that samples vary."""
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(["ab"])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    model.set_attn_implementation(VARLEN)
    return Policy(model, tokenizer)


def save_tiny_policy(folder: Path, seed: int = 0) -> Path:
    policy = tiny_policy(seed)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def tiny_tasks(count: int = 4) -> list[Task]:
    code = "class Model: ...\nget_inputs = get_init_inputs = {}\n"
    # with a composition, as the generator makes them: such tasks pass the lint unread
    return [Task(id=f"task-{n}", pytorch_code=code.format(n), composition=("relu",), split="train") for n in range(count)]


def verdict_of(
    text: str, status: Status = Status.CORRECT, *, speedup_x: float | None = None, compile_x: float | None = None,
    significant: bool = True, unfused_share: float = 0.0, task_id: str = "task",
) -> Verdict:  # fmt: skip
    """A verdict on `text`, timed where a speedup is given."""
    parsed = parse_reply(text)
    sha = parsed.sha if isinstance(parsed, Candidate) else hashlib.sha256(text.encode()).hexdigest()
    timing = None
    if speedup_x is not None:
        speedups = {"eager": Speedup(speedup_x, speedup_x * 0.99, speedup_x * 1.01, significant)}
        if compile_x is not None:
            speedups["compile"] = Speedup(compile_x, compile_x * 0.99, compile_x * 1.01, significant)
        baselines = {name: 10.0 * speed.value for name, speed in speedups.items()}
        timing = Timing("measured", "no device", 10.0, baselines, speedups, unfused_share)
    reason = "as good as the reference" if status is Status.CORRECT else "the first element differs"
    return Verdict(status, Stage.CORRECTNESS, reason, task_id, sha, "fp32", timing, seconds={"trace": 0.01})


class FakeVerifier:
    """Judges text by a function; remembers what it was asked, so that a test can see what was verified twice."""

    def __init__(self, judge: Judge):
        self.judge = judge
        self.asked: list[tuple[str, str]] = []

    def __enter__(self) -> FakeVerifier:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def gpu(self) -> str:
        return "H200"

    def unfit(self, task: Task) -> str:
        return ""

    def doing(self) -> str:
        return ""

    def untimed(self, gpu: int | None = None) -> AbstractContextManager[None]:
        return nullcontext()

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        for index, (task, text) in enumerate(pairs):
            self.asked.append((task.id, text))
            yield index, self.judge(text)


class ScriptedEngine:
    """Says what it is told to, in the order it is told."""

    def __init__(self, tokenizer, replies, finish="stop"):
        self.tokenizer, self.replies, self.finish = tokenizer, replies, finish
        self.calls: list[tuple[list[str], Sampling]] = []

    def generate(self, prompts, sampling) -> Iterator[Rollout]:
        self.calls.append(([self.tokenizer.decode(p) for p in prompts], sampling))
        for sample in reversed(range(sampling.n)):
            for prompt in range(len(prompts)):
                text = self.replies(prompt, sample, len(self.calls))
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                if self.finish == "stop":
                    ids = [*ids, self.tokenizer.eos_token_id]
                yield Rollout(prompt, sample, ids, [-1.0] * len(ids), self.finish, 0)

    def sync(self, named, version):
        pass

    def close(self):
        pass
