"""Samples of a model in SFT on compositions that it is not trained on, judged by the verifier."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from kernrl.config import EvalConfig, SftConfig
from kernrl.policy.load import Policy
from kernrl.policy.pairs import PromptStyle
from kernrl.rollouts.collect import Collector
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.rollouts.reward import UNKNOWN
from kernrl.runs.run_directory import RunDirectory
from kernrl.service.client import open_verifier
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.prompt import read_template
from kernrl.training.evaluation import evaluate
from kernrl.training.session import prompt_style, sample_row, stop_ids
from kernrl.verifier.base.verdict import Stage

TEMPERATURE = 0.8
REPLIES: dict[PromptStyle, dict[str, Any]] = {
    "nano": {"max_tokens": 1024, "sampling_batch": 512},
    "graph": {"max_tokens": 2048, "sampling_batch": 512},
    "graph-fast": {"max_tokens": 2048, "sampling_batch": 512},
    "chat": {"max_tokens": 4096, "sampling_batch": 128},
}
"""Settings of sampling. In the tokens of a general tokenizer, solutions are many times as long as in nano's."""

SampleCheck = Callable[[int], dict[str, float]]
"""Step → metrics: `verify_s`, and `correct` and `compiled`, shares of the candidates that could be judged, if any."""


@contextmanager
def sample_check(config: SftConfig, policy: Policy, directory: RunDirectory) -> Iterator[SampleCheck]:
    """Open the verifier for checks during training: one sample of each of `config.verify_tasks` validation compositions.

    The tasks are the same in every check, so that the figures of a run can be compared. Samples go to `samples.jsonl`.
    """
    tasks = list(generate_tasks(level=2, count=config.verify_tasks, seed=config.seed, split="validation"))
    on_gpu = next(policy.model.parameters()).is_cuda
    engine = GenerateEngine(policy, dtype=torch.bfloat16 if on_gpu and not config.lora else None)
    style = prompt_style(policy.tokenizer, config.prompt)
    template = read_template(config.prompt_template) if config.prompt_template else ""
    sampling = Sampling(1, REPLIES[style]["max_tokens"], TEMPERATURE, stop_ids=stop_ids(policy))
    with closing(engine), open_verifier(config.verifier) as verifier:
        asked = {"style": style, "precision": config.verifier.precision, "facts": config.facts, "template": template}
        asked["name_gpu"] = config.name_gpu
        collector = Collector(engine, policy.tokenizer, verifier, lambda verdict: None, sampling, **asked)

        def check(step: int) -> dict[str, float]:
            started = time.perf_counter()
            engine.sync(policy.model.named_parameters, step)
            attempts = collector.collect(tasks, (config.seed, step)).attempts
            for attempt in attempts:
                directory.add_sample(sample_row(attempt, step))
            judged = [a.verdict for a in attempts if a.verdict.status not in UNKNOWN]
            metrics = {"verify_s": time.perf_counter() - started}
            if judged:
                metrics["correct"] = fmean(v.correct for v in judged)
                metrics["compiled"] = fmean(v.stage in (Stage.CORRECTNESS, Stage.TIMING) for v in judged)
            return metrics

        yield check


def heldout_figures(config: SftConfig, model: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The results of `kernrl eval` on the held-out suite; its run is `heldout` in the output folder."""
    assert config.heldout_samples
    style = prompt_style(tokenizer, config.prompt)
    settings = EvalConfig(
        model=str(model),
        output=config.output / "heldout",
        samples=config.heldout_samples,
        temperature=TEMPERATURE,
        prompt="chat" if style == "chat" else "nano",
        prompt_template=config.prompt_template,
        facts=config.facts,
        name_gpu=config.name_gpu,
        seed=config.seed,
        verifier=config.verifier,
        **REPLIES[style],
    )
    return evaluate(settings)
