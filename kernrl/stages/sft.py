"""`kernrl sft`: supervised fine-tuning on pairs of task and solution. nano is trained here from random weights."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate.utils import set_seed
from rich.console import Group
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from kernrl.config import SftConfig
from kernrl.config.by_model import is_nano
from kernrl.console import Result, counted, log
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.policy.attention import VARLEN
from kernrl.policy.checkpoint import commit_checkpoint, read_json
from kernrl.policy.examples import tokenize_pairs
from kernrl.policy.finetune import Finetuner, FinetuneSettings
from kernrl.policy.four_bit import require_four_bit
from kernrl.policy.load import Policy, load_tokenizer, recompute_activations
from kernrl.policy.nano import VOCAB_SIZE, create_nano, form_of, nano_config, set_form, train_tokenizer
from kernrl.policy.packing import PackedDataset
from kernrl.policy.pairs import Pair
from kernrl.policy.parallel import save_final
from kernrl.policy.ranks import Ranks, open_ranks
from kernrl.policy.shipped_nano import NANO
from kernrl.policy.stream import ExampleStream
from kernrl.runs.activity import Activity, time_left
from kernrl.runs.disk_space import require_room
from kernrl.runs.hub_upload import check_upload, upload
from kernrl.runs.interrupt import StopAfterStep
from kernrl.runs.model_card import model_card
from kernrl.runs.run_directory import RunDirectory
from kernrl.runs.tracking import open_accelerator, start_tracker, track
from kernrl.tasks.prompt import GRAPH_STYLES
from kernrl.training.pair_stream import PairStream
from kernrl.training.session import prompt_style
from kernrl.training.sft_data import new_form, read_pairs, streamed
from kernrl.training.sft_evaluation import TEMPERATURE, SampleCheck, heldout_figures, sample_check
from kernrl.training.starting_policy import check_memory, load_starting_policy, load_starting_tokenizer
from kernrl.verifier.base.devices import device_for

TOKENIZER_PAIRS = 4_000
"""Pairs that nano's tokenizer is trained on: enough for the merges and phrases that matter, in a few seconds."""

ENDLESS = sys.maxsize
"""Steps where the time ends the run."""

SPEEDS = (("tokens_per_s", ",.0f"), ("mfu", ".0%"))
"""Metrics of speed in the final table, and their formats."""


def run(config: SftConfig) -> Result:
    """Run the stage: data, policy, steps, and a checkpoint that plain transformers loads."""
    started = time.perf_counter()
    with (
        Activity() as activity,
        activity.shown(),
        open_ranks(open_accelerator(config.report_to, config.output)) as ranks,
        ExitStack() as stack,
    ):
        set_seed(config.seed)
        on_gpu = ranks.accelerator.device.type == "cuda"
        config = with_defaults(config, on_gpu=on_gpu, processes=ranks.size)
        if config.load_in_4bit:
            ranks.lead(require_four_bit)
        ranks.lead(lambda: check_upload(config.push_to_hub))
        directory = ranks.lead(lambda: RunDirectory.open(config.output, config, resume=config.resume))
        activity.folder = directory.path if ranks.leads else None
        if config.resume and (ended := ranks.lead(lambda: results_of_ended(directory, config))):
            return Result(ended, summary(ended, ranks.lead(lambda: directory.history)))
        latest = ranks.lead(directory.latest) if config.resume else None

        config = check_model(config, latest, ranks)
        doing = f"sft: preparing pairs ({config.data})"
        activity.phase(doing)
        source = stack.enter_context(PairStream(config, ranks)) if streamed(config) else None
        few = source.first(TOKENIZER_PAIRS // ranks.size) if source else []
        pairs = few or (_read(read_pairs(config, "train"), activity, doing) if ranks.leads else [])
        policy = starting_policy(config, latest, pairs, ranks)
        if source:
            row_tokens, (_, limit) = config.row_tokens or config.max_length, longest(policy, config)
            train = source.start(policy.tokenizer, row_tokens, limit)
        else:
            train = ranks.lead(lambda: pack(pairs, policy, config, "train"))
        checked = source.validation if source else lambda: read_pairs(config, "validation")
        validation = ranks.lead(lambda: pack(checked(), policy, config, "validation"))
        settings = schedule(config, train, started)
        data_s = time.perf_counter() - started

        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # autocast runs no product in float32
        compiled = config.compile and on_gpu and not config.load_in_4bit  # bitsandbytes' layers were never compiled here
        finetuner = Finetuner(ranks, policy, train, settings, compile_model=compiled)
        ranks.lead(
            lambda: require_room(
                directory.path, policy.model, kept=config.keep_checkpoints + 1, optimizer=True, adapters=config.lora
            )
        )
        if latest:
            finetuner.restore(latest)
            if finetuner.step > settings.steps:
                raise UsageError(f"--steps {settings.steps}: the run is at step {finetuner.step} already; give a larger one.")
        tracked = ranks.lead(lambda: directory.forget_after(finetuner.step)) if config.resume else 0
        start_tracker(ranks.accelerator, config)  # only now: a run that is refused must leave nothing behind
        checking = sample_check(config, policy, directory) if config.verify_every and ranks.leads else nullcontext()
        with checking as check:
            train_and_save(finetuner, validation, directory, config, check, activity, tracked)
        results = {"architecture": policy.model.config.model_type, "parameters": policy.model.num_parameters()}
        results |= {"pairs": train.seen if isinstance(train, ExampleStream) else len(train.examples), "data_s": data_s}
        results["length"] = length(config)
        return finish(config, policy, directory, results, ranks)


def _read(pairs: Iterable[Pair], activity: Activity, doing: str) -> list[Pair]:
    """All of them, counted as they come: twenty thousand take minutes."""
    read: list[Pair] = []
    activity.follow(lambda: f"{doing}: {len(read):,} so far" if read else doing)
    for pair in pairs:
        read.append(pair)
    return read


def length(config: SftConfig) -> dict[str, Any]:
    """What decides when the run ends."""
    return {name: getattr(config, name) for name in config.LENGTH}


def results_of_ended(directory: RunDirectory, config: SftConfig) -> dict[str, Any] | None:
    """The results of a run that has come to its end, unless it is asked to be longer now.

    An exam on held-out tasks and an upload that are asked for only now are made up for.
    """
    path = directory.path / "results.json"
    found = read_json(path) if path.exists() else {}
    if found.get("length") != length(config):
        return None
    log.print(ENDED.format(found["model"]), highlight=False, soft_wrap=True)
    if (config.heldout_samples and "heldout" not in found) or (config.push_to_hub and "uploaded" not in found):
        final = Path(found["model"])
        publish(config, final, load_tokenizer(str(final)), directory, found)
    return found


def with_defaults(config: SftConfig, *, on_gpu: bool, processes: int) -> SftConfig:
    """The config with the defaults that depend on the machine, too."""
    nano = is_nano(config.model)
    row_tokens = (65_536 if nano else 16_384) if on_gpu else 4_096
    rows_per_step = math.lcm(1 if nano else 4, processes)
    left_open = {"row_tokens": config.row_tokens or row_tokens, "rows_per_step": config.rows_per_step or rows_per_step}
    return config.model_copy(update=left_open)


def finish(config: SftConfig, policy: Policy, directory: RunDirectory, results: dict[str, Any], ranks: Ranks) -> Result:
    """Write the final model with its history, its results on held-out tasks, and its card."""
    history = ranks.lead(lambda: directory.history)
    final = commit_checkpoint(config.output, "model", lambda folder: save_final(ranks, policy, folder, history), ranks)
    results |= {**figures(history), "model": str(final)}
    if ranks.leads:
        publish(config, final, policy.tokenizer, directory, results)
    return Result(results, summary(results, history))


def publish(
    config: SftConfig, final: Path, tokenizer: PreTrainedTokenizerBase, directory: RunDirectory, results: dict[str, Any]
) -> None:
    """Put what is asked for and not yet there into the results: an exam on held-out tasks, an upload; and write the card."""
    if config.heldout_samples and "heldout" not in results:
        results["heldout"] = heldout_figures(config, final, tokenizer)
        results["heldout_temperature"] = TEMPERATURE
    replace_file(final / "README.md", model_card(config, results, read_json(config.output / "config.json")))
    if config.push_to_hub and "uploaded" not in results:
        results["uploaded"] = upload(final, config.push_to_hub)
    directory.write_results(results)


ENDED = (
    "The run has ended. To make it longer, add a larger --steps, --epochs or --time-limit-s to --resume; to go on training its "
    "model with other settings, give --model {} and another --output."
)

NEW_NANO = (
    "A new nano is made from random weights. To go on with the one that the other commands call nano, give its folder, such as "
    "--model checkpoints/nano."
)


def check_model(config: SftConfig, checkpoint: Path | None, ranks: Ranks) -> SftConfig:
    """Choose the prompt style, and refuse a model that cannot be trained here before minutes go into its data."""
    row_tokens, style, form = config.row_tokens or 0, "nano", new_form(config)
    if config.model == NANO and checkpoint is None:
        log.print(NEW_NANO, highlight=False, soft_wrap=True)
        check_memory(config, nano_config(VOCAB_SIZE), row_tokens, ranks, compiled=config.compile)
    else:
        tokenizer = load_starting_tokenizer(config, checkpoint, row_tokens, ranks, compiled=config.compile)
        style = prompt_style(tokenizer, config.prompt)
        form = "graph" if style in GRAPH_STYLES else "program"
        if config.form == "graph" != form:
            raise UsageError(f"--form graph: {config.model} does not speak it; leave --form out, or make a new nano.")
    choice = config.style_choice or ("tagged" if style == "graph-fast" else None)
    prompt = "chat" if style == "chat" else config.prompt or "nano"
    return config.model_copy(update={"prompt": prompt, "form": form, "style_choice": choice})


def starting_policy(config: SftConfig, checkpoint: Path | None, pairs: list[Pair], ranks: Ranks) -> Policy:
    """The policy at step 0, or as the checkpoint left it."""
    if ranks.sharded and config.verify_every:
        raise UsageError(
            "--verify-every samples from the model in this process, which FSDP2's shards do not allow: leave it out."
        )
    asked = "graph-fast" if config.style_choice == "tagged" else "graph"
    if config.model != NANO or checkpoint is not None:
        policy = load_starting_policy(config, checkpoint, config.row_tokens or 0, ranks, compiled=config.compile)
        if form_of(policy.tokenizer) in GRAPH_STYLES:
            set_form(policy.tokenizer, asked)
        return policy
    form = asked if new_form(config) == "graph" else "program"
    tokenizer = ranks.lead(lambda: train_tokenizer(few_texts(pairs), form=form))
    policy = Policy(create_nano(tokenizer, config.seed), tokenizer)
    policy.model.set_attn_implementation(VARLEN)
    if config.gradient_checkpointing:
        recompute_activations(policy.model)
    return policy


def few_texts(pairs: list[Pair]) -> list[str]:
    """The texts that nano's tokenizer is trained on: evenly spaced pairs, as generated data begins with single ops."""
    few = pairs[:: -(-len(pairs) // TOKENIZER_PAIRS)]
    return [text for p in few for text in (p.messages[-1]["content"], p.completion)]


def pack(pairs: Iterator[Pair] | list[Pair], policy: Policy, config: SftConfig, split: str) -> PackedDataset:
    """Tokenise and pack one split."""
    row_tokens = config.row_tokens or config.max_length
    name, limit = longest(policy, config)
    tokenized = tokenize_pairs(pairs, policy.tokenizer, limit)
    pairs_are = counted(tokenized.too_long, f"{split} pair is", f"{split} pairs are")
    too_long = f"{pairs_are} longer than {limit} tokens, {name}, and left out"
    if not tokenized.examples:
        raise UsageError(f"--data {config.data}: no {split} pair is left to learn from: {too_long}.")
    if tokenized.too_long:
        log.print(f"{too_long}.", highlight=False, soft_wrap=True)
    pad: Any = policy.tokenizer.pad_token_id
    return PackedDataset(tokenized.examples, row_tokens, pad, config.seed if split == "train" else None)


def longest(policy: Policy, config: SftConfig) -> tuple[str, int]:
    """The longest pair in tokens, and what sets that limit."""
    limits = {"--max-length": config.max_length, "--row-tokens": config.row_tokens or config.max_length}
    if context := getattr(policy.model.config, "max_position_embeddings", None):
        limits["the model's context"] = context
    return min(limits.items(), key=lambda item: item[1])


def schedule(config: SftConfig, train: PackedDataset | ExampleStream, started: float) -> FinetuneSettings:
    """The number of steps or the deadline, and the learning rate."""
    rows_per_step = config.rows_per_step
    assert rows_per_step is not None  # `with_defaults` left nothing open
    if config.steps or config.time_limit_s or isinstance(train, ExampleStream):
        steps = config.steps or ENDLESS
    else:
        steps = max(1, round(config.epochs * train.rows_per_epoch / rows_per_step))
    return FinetuneSettings(
        steps=steps,
        deadline=started + config.time_limit_s if config.time_limit_s else math.inf,
        optimizer=config.optimizer,
        rows_per_step=rows_per_step,
        learning_rate=config.learning_rate,
        warmup_ratio=config.warmup_ratio,
        schedule=config.schedule,
        weight_decay=config.weight_decay,
    )


def train_and_save(
    finetuner: Finetuner,
    validation: PackedDataset,
    directory: RunDirectory,
    config: SftConfig,
    check: SampleCheck | None,
    activity: Activity,
    tracked: int,
) -> None:
    """Take all steps, with validation losses, sample checks and checkpoints in between.

    Args:
        tracked: the last step that the tracker knows from before a resume.
    """
    ranks, steps = finetuner.ranks, finetuner.settings.steps
    peak = peak_tflops()

    def due(step: int, every: int | None) -> bool:
        return every is not None and (step % every == 0 or finetuner.last)

    began, first = time.perf_counter(), finetuner.step
    line = ""
    activity.follow(lambda: line or "sft: the first step")

    with StopAfterStep(ranks) as stop:

        def on_step(metrics: dict[str, Any]) -> None:
            nonlocal line
            step = metrics["step"]
            if peak:
                metrics["mfu"] = metrics["tflops"] / peak
            if due(step, config.validate_every):
                metrics["validation_loss"] = finetuner.evaluate(validation)
            if ranks.leads:
                if check and due(step, config.verify_every):
                    metrics |= check(step)
                directory.log(**metrics)
                if step > tracked:
                    track(ranks.accelerator, metrics, step)
            stopping = stop.wanted()
            if stopping or (step % config.save_every == 0 and not finetuner.last):
                directory.checkpoint(step, finetuner.save, ranks, keep=config.keep_checkpoints)
            if stopping:
                raise KeyboardInterrupt
            if steps != ENDLESS:
                left, whole = time_left(began, step - first, steps - first), f" of {steps}"
            else:
                left, whole = f", {max(0.0, finetuner.left_s):,.0f} s left", ""
            line = f"sft: step {step}{whole}, loss {metrics['loss']:.3f}, {metrics['tokens_per_s']:,.0f} tokens/s{left}"

        finetuner.run(on_step)


def peak_tflops() -> float | None:
    """Dense bf16 peak of this GPU by its data sheet, the denominator of MFU; None for a GPU that is not listed."""
    device = device_for(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return device.half_tflops if device else None


def figures(history: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of a run's metrics. Speeds are medians over steps, as the first ones compile."""
    last = history[-1]
    middle = {name: median(line[name] for line in history) for name in ("tokens_per_s", "tflops", "mfu") if name in last}
    return {
        "steps": last["step"],
        "tokens": round(sum(line["tokens_per_s"] * line["seconds"] for line in history)),
        "train_s": sum(line["seconds"] for line in history),
        "data_wait_s": sum(line["data_wait_s"] for line in history),
        "loss": last["loss"],
        "validation_loss": next((line["validation_loss"] for line in reversed(history) if "validation_loss" in line), None),
        **middle,
        **{name: last[name] for name in ("correct", "compiled") if name in last},
    }


def summary(results: dict[str, Any], history: list[dict[str, Any]]) -> Group:
    """The table at the end of the run, below a title: one of the table itself would be as narrow as the table."""
    columns: dict[str, list[str]] = {name: [] for name in ("step", "loss", "validation loss", "tokens/s", "MFU", "correct")}
    looks = [place for place, line in enumerate(history) if "validation_loss" in line]
    for before, place in list(pairwise([-1, *looks]))[-5:]:
        line, since = history[place], history[before + 1 : place + 1]
        # medians, since a row that is not full, as the last one may be, is slower a token
        middle = {name: median(at[name] for at in since if name in at) for name, _ in SPEEDS if name in line}
        speed, mfu = (format(middle[name], form) if name in middle else "" for name, form in SPEEDS)
        correct = f"{line['correct']:.0%}" if "correct" in line else ""
        row = (str(line["step"]), f"{line['loss']:.4f}", f"{line['validation_loss']:.4f}", speed, mfu, correct)
        for column, cell in zip(columns.values(), row, strict=True):
            column.append(cell)
    columns = {name: cells for name, cells in columns.items() if any(cells)}  # there is no MFU without a GPU
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return Group(Text(f"model: {results['model']}", style="italic"), table)
