"""The session of best-of-n, reinforce and reward-weighted: a policy that samples, a verifier that judges, a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import set_seed
from transformers import GenerationConfig, PreTrainedTokenizerBase

from kernrl.config import EvalConfig, ImproveConfig, ReinforceConfig
from kernrl.config.by_model import is_nano
from kernrl.config.shared.heldout_checks import CheckedConfig
from kernrl.config.shared.prompts import PromptForm
from kernrl.console import Result, log, progress
from kernrl.errors import RunError, UsageError
from kernrl.policy.checkpoint import commit_checkpoint
from kernrl.policy.four_bit import require_four_bit
from kernrl.policy.load import Policy, find_source, load_tokenizer
from kernrl.policy.nano import END, USER, VOCAB_SIZE, form_of
from kernrl.policy.pairs import PromptStyle
from kernrl.policy.parallel import save_final, whole_weights
from kernrl.policy.ranks import Ranks, open_ranks
from kernrl.rollouts.best_known import BestKnown, verdicts_until
from kernrl.rollouts.collect import Attempt, Collector, Verifier
from kernrl.rollouts.engines.distributed_engine import DistributedEngine
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.rollouts.own_reward import own_reward
from kernrl.rollouts.reward import UNKNOWN, Reward, reward
from kernrl.runs.activity import Activity, SamplingWatch
from kernrl.runs.disk_space import require_room
from kernrl.runs.hub_upload import check_upload, upload
from kernrl.runs.run_directory import RunDirectory, read_lines
from kernrl.runs.steps_table import final_table
from kernrl.runs.tracking import open_accelerator, start_tracker, track
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.nano.lifter import Lifter, worker_count
from kernrl.tasks.prompt import GRAPH_STYLES, read_template
from kernrl.tasks.rows import parse_columns
from kernrl.tasks.task import Task
from kernrl.training.confirm_samples import confirm_samples
from kernrl.training.lint_tasks import fitting_tasks, sound_tasks
from kernrl.training.open_engine import open_engine, require_server
from kernrl.training.run_history import best_step, give_up, learnt
from kernrl.training.starting_policy import load_starting_policy
from kernrl.user_code import is_import_path
from kernrl.verifier.base.verdict import Verdict

GENERATED_TASKS = 2000
"""Train compositions generated when no source of tasks is named."""

T = TypeVar("T")


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
    activity: Activity
    watch: SamplingWatch
    best_known: BestKnown = field(default_factory=BestKnown)
    """Of `--reward best-known`: what rewards compare with. Only rank 0 collects, and so knows anything."""
    tracked: int = 0
    """The last step that the tracker knows from before a resume."""

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

    def know(self, attempts: Sequence[Attempt]) -> None:
        """Compare the next steps' candidates with the fastest of these too; called on rank 0 when a step has its rewards."""
        self.best_known.take(a.verdict for a in sorted(attempts, key=lambda a: a.order))

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
        self.watch.steps_done = step
        if self.ranks.leads:
            self.directory.log(**metrics)
            if step > self.tracked:
                track(self.ranks.accelerator, metrics, step)

    def best_step(self) -> int | None:
        """The step that did best in the evaluations during training; every rank calls this."""
        return self.ranks.lead(lambda: best_step(self.directory.history, self.directory.checkpoints))

    def give_up(self, steps: int) -> None:
        """Raise RunError where the last `steps` learnt nothing; every rank calls this."""
        self.ranks.lead(lambda: give_up(self.directory.history, steps))

    def finish(self, config: ImproveConfig, results: dict[str, Any]) -> Result:
        """Export the model, its last state or the best one, and write `results.json`.

        A run that learnt nothing exports no model, as it would be the one it started from under another name, and ends with
        exit code 1.
        """
        history = self.ranks.lead(lambda: self.directory.history)
        learnt_some = any(learnt(line) for line in history)
        best = self.best_step() if isinstance(config, CheckedConfig) and config.keep_best else None
        title = "nothing was learnt, so no model was exported"
        results |= {"model": None, "last": history[-1]} | ({"best_step": best} if best else {})
        if learnt_some:
            policy = self.policy
            if best and best != history[-1]["step"]:
                policy = load_starting_policy(config, self.directory.path / f"step_{best}", self.row_tokens, self.ranks)
            final = commit_checkpoint(
                self.directory.path, "model", lambda folder: save_final(self.ranks, policy, folder, history), self.ranks
            )
            results["model"] = str(final)
            if self.ranks.leads and config.push_to_hub:
                results["uploaded"] = upload(final, config.push_to_hub)
            title = f"model: {final}" + (f", of step {best}, the best on held-out tasks" if best else "")
        if self.ranks.leads:
            self.directory.write_results(results)
        return Result(results, final_table(history, title), exit_code=0 if learnt_some else 1)


@contextmanager
def open_session(config: ImproveConfig, verifier: Verifier | None = None, turns: int = 1) -> Iterator[Session]:
    """Open the processes, the run directory, the tasks, the policy, the verifier and the engine, and close what was opened.

    Args:
        verifier: one that is open already, and stays so; by default one is opened for the run.
        turns: replies a trajectory may have.
    """
    with ExitStack() as stack:
        activity = stack.enter_context(Activity())
        activity.phase(f"loading {config.model}, and its tasks")
        ranks = stack.enter_context(open_ranks(open_accelerator(config.report_to, config.output)))
        set_seed(config.seed)
        best_known = BestKnown(config.modelled_speed)
        reward_function = reward_of(config, best_known)
        template = read_template(config.prompt_template) if config.prompt_template else ""
        ranks.lead(lambda: check_upload(config.push_to_hub))
        if config.load_in_4bit:
            ranks.lead(require_four_bit)
        ranks.lead(lambda: find_source(config.model, config.revision))  # a name of nothing is refused at once
        tasks = ranks.lead(lambda: read_tasks(config))
        ranks.lead(lambda: confirm_samples(config.samples, tasks_at_once(config, tasks), yes=config.yes, what=" at a time"))
        if config.engine == "server":
            ranks.lead(lambda: require_server(config))  # before a model is loaded
        shown = stack.enter_context(ExitStack())
        shown.enter_context(activity.shown())
        directory = ranks.lead(lambda: RunDirectory.open(config.output, config, resume=config.resume))
        activity.folder = directory.path if ranks.leads else None
        checkpoint = ranks.lead(directory.latest) if config.resume else None
        lifter = stack.enter_context(closing(lifter_for(config) if ranks.leads else Lifter(0)))
        on_gpu = ranks.accelerator.device.type == "cuda"
        row_tokens = config.row_tokens or (16_384 if on_gpu else 4_096)
        policy = load_starting_policy(config, checkpoint, row_tokens, ranks)
        if not ranks.sharded:
            policy.model.to(ranks.accelerator.device)  # pyright: ignore[reportArgumentType]
        kept = config.keep_checkpoints + 1 + getattr(config, "keep_best", False)
        optimizer = isinstance(config, ReinforceConfig)  # a round of the other stages starts its own
        ranks.lead(lambda: require_room(directory.path, policy.model, kept=kept, optimizer=optimizer, adapters=config.lora))
        done = int(checkpoint.name.removeprefix("step_")) if checkpoint else 0
        tracked = ranks.lead(lambda: directory.forget_after(done)) if config.resume else 0
        if config.reward == "best-known":
            best_known.take(verdicts_until(done, read_lines(directory.path / "samples.jsonl")))
        start_tracker(ranks.accelerator, config)
        style = prompt_style(policy.tokenizer, config.prompt)
        tasks = ranks.lead(lambda: askable(tasks, style, lifter.each))
        verifier = verifier or stack.enter_context(open_verifier(config))
        tasks = ranks.lead(lambda: fitting_tasks(tasks, verifier))
        engine = stack.enter_context(closing(open_engine(config, policy, verifier, directory.path, ranks)))
        collector = Collector(
            engine,
            policy.tokenizer,
            verifier,
            reward_function,
            sampling_of(config, stop_ids(policy)),
            style=style,
            precision=config.verifier.precision,
            facts=config.facts,
            name_gpu=config.name_gpu,
            template=template,
            turns=turns,
            known=known_verdicts(directory),
            watch=(watch := SamplingWatch()),
            prepare=lifter,
        )
        if isinstance(engine, GenerateEngine):
            engine.on_tokens = watch.decoded
        shown.close()  # the stage shows the line from here on
        activity.follow(watch.line)
        price = config.gpu_hour_price
        yield Session(
            ranks, directory, policy, tasks, collector, checkpoint, row_tokens, price, activity, watch, best_known, tracked
        )


def open_verifier(config: ImproveConfig) -> AbstractContextManager[Verifier]:
    """The verifier that the run's rewards come from."""
    from kernrl.service import client

    return client.open_verifier(config.verifier)


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


def tasks_at_once(config: ImproveConfig, tasks: list[Task]) -> int:
    """Tasks of a step, or of a round."""
    return getattr(config, "tasks_per_step", None) or getattr(config, "tasks_per_round", None) or len(tasks)


def prompt_style(tokenizer: PreTrainedTokenizerBase, asked: PromptForm | None = None) -> PromptStyle:
    """How a model is asked, by its tokenizer: a nano in the form that it speaks, every other model in chat.

    Args:
        asked: `--prompt`, which decides where it is given; nano's form is still the tokenizer's own.
    """
    vocabulary = tokenizer.get_vocab()
    nano = len(vocabulary) <= VOCAB_SIZE and USER in vocabulary and END in vocabulary
    if asked == "chat" or (asked is None and not nano):
        return "chat"
    form = form_of(tokenizer)
    return form if form == "graph" or form == "graph-fast" else "nano"


def lifter_for(config: ImproveConfig | EvalConfig) -> Lifter:
    """What lifts the tasks of a nano that is asked by their Graphs; without a process for every other model. Its processes
    load torch while the model is loaded."""
    model = config.model or ""
    if not is_nano(model):
        return Lifter(0)
    style = prompt_style(load_tokenizer(model, revision=config.revision), config.prompt)
    return Lifter(worker_count() if style in GRAPH_STYLES else 0)


def askable(tasks: list[Task], style: PromptStyle, lifted: Callable[[Sequence[Task]], Iterable[Task]] = iter) -> list[Task]:
    """The tasks that can be asked in a style: all, but for those that have no Graph, of which stderr says why.

    Generated tasks (those with a composition) have one. Each is lifted when nano is asked for it: few of two thousand are.

    Args:
        lifted: `each` of a Lifter.

    Raises:
        UsageError: There is none.
    """
    if style not in GRAPH_STYLES:
        return tasks
    from kernrl.tasks.nano.form import unasked

    unknown = [task for task in tasks if not task.composition]
    with progress() as bar:
        refused = unasked(bar.track(lifted(unknown), total=len(unknown), description="lifting tasks"))
    for task, reason in refused:
        log.print(f"Skipped: {task.id} has no Graph to ask nano for: {reason}", markup=False, highlight=False, soft_wrap=True)
    left = {task.id for task, _ in refused}
    if len(left) == len(tasks):
        raise UsageError(f"--tasks: no task can be asked of this nano: {refused[0][1]}")
    return [task for task in tasks if task.id not in left]


def sampling_of(config: ImproveConfig | EvalConfig, stop: tuple[int, ...]) -> Sampling:
    """How a command's settings sample."""
    cuts = {"top_p": config.top_p, "top_k": config.top_k, "min_p": config.min_p}
    return Sampling(config.samples, config.max_tokens, config.temperature, stop_ids=stop, **cuts)


def stop_ids(policy: Policy) -> tuple[int, ...]:
    """The tokens that end a reply."""
    return end_tokens(policy.tokenizer, policy.model.generation_config)


def end_tokens(tokenizer: PreTrainedTokenizerBase, settings: GenerationConfig | None) -> tuple[int, ...]:
    """The tokenizer's end token, and what a model's generation settings add."""
    more: Any = settings.eos_token_id if settings is not None else None
    own: Any = tokenizer.eos_token_id
    ids = [own, *(more if isinstance(more, list) else [more])]
    return tuple(sorted({i for i in ids if i is not None}))


def reward_of(config: ImproveConfig, best_known: BestKnown | None = None) -> Callable[[Verdict], Reward | None]:
    """The configured reward, as a function of a verdict, and under `best-known` of what `best_known` has by then.

    Raises:
        UsageError: it cannot be imported.
    """
    if is_import_path(config.reward):
        return own_reward(config.reward)
    preset: Any = config.reward

    def worth(verdict: Verdict) -> Reward | None:
        return reward(
            verdict,
            preset,
            baseline=config.reward_baseline,
            cap_x=config.speed_cap,
            authored_share=config.authored_share,
            modelled=config.modelled_speed,
            known=best_known,
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
