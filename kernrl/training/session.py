"""The session of best-of-n, reinforce and reward-weighted: a policy that samples, a verifier that judges, a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase, set_seed

from kernrl.config import ImproveConfig
from kernrl.console import log
from kernrl.errors import RunError
from kernrl.policy.checkpoint import commit_checkpoint
from kernrl.policy.load import Policy
from kernrl.policy.nano import END, USER, VOCAB_SIZE
from kernrl.policy.pairs import PromptStyle
from kernrl.policy.parallel import save_final, whole_weights
from kernrl.policy.ranks import Ranks, open_ranks
from kernrl.rollouts.collect import Attempt, Collector, Verifier
from kernrl.rollouts.engines.distributed_engine import DistributedEngine
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.reward import UNKNOWN, Reward, reward
from kernrl.runs.run_directory import RunDirectory, read_lines
from kernrl.runs.tracking import open_accelerator, start_tracker, track
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import parse_columns
from kernrl.tasks.task import Task
from kernrl.training.lint_tasks import sound_tasks
from kernrl.training.open_engine import open_engine
from kernrl.training.starting_policy import load_starting_policy
from kernrl.verifier.base.verdict import Verdict

GENERATED_TASKS = 2000
"""Train compositions generated when no source of tasks is named."""

T = TypeVar("T")

MAY_CHANGE_ON_RESUME = ("steps", "rounds", "time_limit_s", "gpu_hour_price")
"""Settings that a resume may change, so that a run can be made longer."""


@dataclass
class Session:
    """Everything that a stage which samples and trains has open."""

    ranks: Ranks
    directory: RunDirectory
    policy: Policy
    tasks: list[Task]
    collector: Collector
    checkpoint: Path | None
    """The checkpoint to resume from."""
    row_tokens: int
    """Tokens of a packed row."""
    gpu_hour_price: float | None

    @property
    def pad_id(self) -> int:
        pad: Any = self.policy.tokenizer.pad_token_id
        return pad

    @property
    def device(self) -> torch.device:
        return self.ranks.accelerator.device

    def fits(self, attempt: Attempt) -> bool:
        """Whether prompt and rollout fit a packed row; nothing is ever cut to fit."""
        return 0 < len(attempt.rollout.token_ids) <= self.row_tokens - len(attempt.prompt_ids)

    def gpu_time(self, seconds: float) -> dict[str, float]:
        """GPU-hours of so many seconds of wall time, and their cost where an hour has a price; empty without a GPU."""
        spent: dict[str, float] = {}
        if self.device.type == "cuda":
            spent["gpu_hours"] = seconds * self.ranks.size / 3600
            if self.gpu_hour_price is not None:
                spent["cost"] = spent["gpu_hours"] * self.gpu_hour_price
        return spent

    def lead(self, work: Callable[[], T]) -> T:
        """Run `work`, which may sample, on rank 0; every rank returns its result."""
        engine = self.collector.engine
        return engine.lead(work) if isinstance(engine, DistributedEngine) else work()

    def sample_writer(self, step: int) -> Callable[[Attempt], None]:
        """A function that appends an attempt of this step to `samples.jsonl`."""
        return lambda attempt: self.directory.add_sample(sample_row(attempt, step))

    def sync_sampler(self, version: int) -> None:
        """Give the engine the policy's weights as they are now; every rank calls this."""
        if self.ranks.sharded:
            weights = whole_weights(self.policy)
            self.collector.engine.sync(lambda: iter(weights.items()), version)
        else:
            self.collector.engine.sync(self.policy.model.named_parameters, version)

    def record(self, metrics: dict[str, Any], step: int) -> None:
        """Write a step's metrics to `metrics.jsonl` and to the tracker."""
        if self.ranks.leads:
            self.directory.log(**metrics)
            track(self.ranks.accelerator, metrics, step)

    def finish(self, results: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Write the final model and `results.json`; returns the results and the metrics of every step."""
        history = self.ranks.lead(lambda: self.directory.history)
        final = commit_checkpoint(
            self.directory.path, "model", lambda folder: save_final(self.ranks, self.policy, folder, history), self.ranks
        )
        results |= {"model": str(final), "last": history[-1]}
        if self.ranks.leads:
            self.directory.write_results(results)
        return results, history


@contextmanager
def open_session(config: ImproveConfig, verifier: Verifier | None = None, turns: int = 1) -> Iterator[Session]:
    """Open the processes, the run directory, the tasks, the policy, the verifier and the engine, and close what was opened.

    Args:
        verifier: one that is open already, and stays so; by default one is opened for the run.
        turns: replies a trajectory may have.
    """
    with ExitStack() as stack:
        ranks = stack.enter_context(open_ranks(open_accelerator(config.report_to, config.output)))
        set_seed(config.seed)
        tasks = ranks.lead(lambda: read_tasks(config))
        directory = ranks.lead(
            lambda: RunDirectory.open(config.output, config, resume=config.resume, may_change=MAY_CHANGE_ON_RESUME)
        )
        checkpoint = ranks.lead(directory.latest) if config.resume else None
        on_gpu = ranks.accelerator.device.type == "cuda"
        row_tokens = config.row_tokens or (16_384 if on_gpu else 4_096)
        policy = load_starting_policy(config, checkpoint, row_tokens, ranks)
        if not ranks.sharded:
            policy.model.to(ranks.accelerator.device)  # pyright: ignore[reportArgumentType]
        start_tracker(ranks.accelerator, config)
        verifier = verifier or stack.enter_context(open_verifier(config))
        engine = stack.enter_context(closing(open_engine(config, policy, verifier, directory.path, ranks)))
        collector = Collector(
            engine,
            policy.tokenizer,
            verifier,
            reward_of(config),
            Sampling(config.samples, config.max_tokens, config.temperature, stop_ids=stop_ids(policy)),
            style=config.prompt or prompt_style(policy.tokenizer),
            precision=config.verifier.precision,
            turns=turns,
            known=known_verdicts(directory),
        )
        yield Session(ranks, directory, policy, tasks, collector, checkpoint, row_tokens, config.gpu_hour_price)


def open_verifier(config: ImproveConfig) -> AbstractContextManager[Verifier]:
    """The verifier that the run's rewards come from."""
    from kernrl.verifier.verifier import HardenedVerifier

    return HardenedVerifier(config.verifier)


def read_tasks(config: ImproveConfig) -> list[Task]:
    """The tasks to train on."""
    if config.tasks == "generated":
        split = config.split or "train"
        count = config.limit or GENERATED_TASKS
        return list(generate_tasks(level=2, count=count, seed=config.seed, split=split, workers=config.workers))
    loaded = load_tasks(config.tasks, split=config.split, columns=parse_columns(config.map), limit=config.limit)
    for problem in loaded.problems:
        log.print(f"Skipped: {problem}", markup=False, highlight=False, soft_wrap=True)
    return sound_tasks(loaded.tasks, config.verifier)


def prompt_style(tokenizer: PreTrainedTokenizerBase) -> PromptStyle:
    """How a model is asked, by its tokenizer: nano in its own short form, every other model in chat."""
    vocabulary = tokenizer.get_vocab()
    return "nano" if len(vocabulary) <= VOCAB_SIZE and USER in vocabulary and END in vocabulary else "chat"


def stop_ids(policy: Policy) -> tuple[int, ...]:
    """The tokens that end a reply."""
    return end_tokens(policy.tokenizer, policy.model.generation_config)


def end_tokens(tokenizer: PreTrainedTokenizerBase, settings: GenerationConfig | None) -> tuple[int, ...]:
    """The tokenizer's end token, and what a model's generation settings add."""
    more: Any = settings.eos_token_id if settings is not None else None
    own: Any = tokenizer.eos_token_id
    ids = [own, *(more if isinstance(more, list) else [more])]
    return tuple(sorted({i for i in ids if i is not None}))


def reward_of(config: ImproveConfig) -> Callable[[Verdict], Reward | None]:
    """The configured preset, as a function of a verdict alone."""

    def worth(verdict: Verdict) -> Reward | None:
        return reward(
            verdict,
            config.reward,
            baseline=config.baseline,
            cap_x=config.speed_cap,
            authored_share=config.authored_share,
            modelled=config.modelled_speed,
        )

    return worth


def sample_row(attempt: Attempt, step: int) -> dict[str, Any]:
    """One line of `samples.jsonl`."""
    return {
        "id": f"{step}-{attempt.group}-{attempt.member}-{attempt.turn}",
        "step": step,
        "task": attempt.task.id,
        "family": attempt.task.family,
        "composition": list(attempt.task.composition),
        "group": attempt.group,
        "member": attempt.member,
        "turn": attempt.turn,
        "version": attempt.rollout.version,
        "finish": attempt.rollout.finish,
        "tokens": len(attempt.rollout.token_ids),
        "text": attempt.text,
        "key": attempt.key,
        "repeated": attempt.repeated,
        "reward": attempt.reward.value if attempt.reward else None,
        "reward_parts": attempt.reward.parts if attempt.reward else None,
        "verdict": attempt.verdict.to_json(),
    }


def known_verdicts(directory: RunDirectory) -> dict[tuple[str, str], Verdict]:
    """(task id, candidate key) → verdict of all that the run has verified: a step that is run again verifies nothing twice."""
    verdicts = ((row, Verdict.from_json(row["verdict"])) for row in read_lines(directory.path / "samples.jsonl"))
    return {(row["task"], row["key"]): verdict for row, verdict in verdicts if verdict.status not in UNKNOWN}


def require_judged(attempts: list[Attempt]) -> None:
    """Stop a run that cannot learn anything.

    Raises:
        RunError: not one attempt could be judged; the sentence gives the verifier's reason.
    """
    if attempts and all(a.verdict.status in UNKNOWN for a in attempts):
        verdict = attempts[0].verdict
        raise RunError(f"No candidate could be judged ({verdict.status}): {verdict.reason}")
