"""Loading a policy: a causal language model and its tokenizer, from a folder, the hub, or nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity, set_verbosity_error

from kernrl.errors import UsageError
from kernrl.policy.attention import VARLEN
from kernrl.policy.four_bit import four_bit_settings
from kernrl.policy.hub_cache import from_cache_alone
from kernrl.policy.shipped_nano import NANO, trained_nano

# transformers' progress bars would mix with ours, and ignore --quiet
disable_progress_bar()

SHARDS = "shards"
"""Folder inside a checkpoint to which several processes wrote their shards of weights and optimizer."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Policy:
    """The model that writes candidates, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    quantised_from: tuple[str, str | None] | None = None
    """Where the whole weights are, source and revision, if those in memory are in 4 bits."""

    @property
    def base(self) -> torch.nn.Module:
        """The decoder below the head: token ids → hidden states."""
        inner: Any = self.model
        if hasattr(inner, "peft_config"):
            inner = inner.get_base_model()
        return inner.get_decoder()

    @property
    def head_weight(self) -> torch.Tensor:
        """The head's weight, [V, H]."""
        head: Any = self.model.get_output_embeddings()
        return head.weight


def load_policy(source: str, *, dtype: str = "fp32", revision: str | None = None, four_bit: bool = False) -> Policy:
    """Load a model and its tokenizer from a folder or the hub, with packed attention available.

    Args:
        source: a folder written by `save_pretrained`, a hub id such as `Qwen/Qwen2.5-Coder-7B-Instruct`, or `nano` for the
            trained one of this repository.
        dtype: of the weights in memory: fp32, bf16 or fp16.
        revision: branch, tag or commit on the hub.
        four_bit: hold every linear layer but the head in 4 bits; `require_four_bit` has found that this can be done.

    Raises:
        UsageError: not found, not a causal language model, no end token, no chat template, or weights that do not fit.
    """
    source = find_source(source, revision)
    tokenizer, config = load_tokenizer(source, revision=revision), load_config(source, revision=revision)
    if (Path(source) / SHARDS).exists():
        return Policy(_from_shards(Path(source), config, DTYPES[dtype]), tokenizer)
    quantised = four_bit_settings() if four_bit else {}
    try:
        with _hushed():
            found: Any = AutoModelForCausalLM.from_pretrained(
                source, revision=revision, dtype=DTYPES[dtype], attn_implementation=VARLEN, output_loading_info=True,
                ignore_mismatched_sizes=True, local_files_only=_local(source, revision), **quantised,
            )  # fmt: skip
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise UsageError(f"--model {source}: its weights do not load ({_first_line(error)}).") from error
    model, loading = found
    # transformers initialises weights that are missing or of another shape at random
    if mismatched := sorted(loading["mismatched_keys"]):
        name, there, wanted = mismatched[0]
        raise UsageError(
            f"--model {source}: its weights do not fit its config.json: {len(mismatched)} are of another shape, such as "
            f"{name}, which is {list(there)} and not {list(wanted)}."
        )
    if missing := sorted(loading["missing_keys"]):
        raise UsageError(
            f"--model {source}: its weights do not fit its config.json: {len(missing)} are missing, such as {missing[0]}."
        )
    embedding: Any = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    if len(tokenizer) > rows:
        raise UsageError(
            f"--model {source}: its tokenizer has {len(tokenizer)} tokens but its embedding only {rows} rows; "
            "use the tokenizer the model was trained with."
        )
    return Policy(model, tokenizer, (source, revision) if four_bit else None)


def _is_causal(config: Any) -> bool:
    """Whether tokens attend only to earlier ones. Encoders such as BERT have a causal head too, but attend to all tokens."""
    bidirectional = type(config) in AutoModelForMaskedLM._model_mapping and not getattr(config, "is_decoder", False)
    return type(config) in AutoModelForCausalLM._model_mapping and not bidirectional


def find_source(model: str, revision: str | None = None) -> str:
    """The folder or hub id that a value of `--model` stands for.

    Raises:
        UsageError: the name is empty, there is no such folder or model, or `revision` is given for a folder.
    """
    if not model:
        raise UsageError("--model is empty: name a folder, a hub id or 'nano'.")
    source = str(trained_nano()) if model == NANO else model
    folder = Path(source)
    if folder.exists() and revision:
        raise UsageError(f"--revision: {source} is a folder, not a model of the hub; leave it out.")
    # `checkpoints/typo`, where there is a folder `checkpoints`, is a typo and not a hub id
    beside = "/" in source and folder.parent.is_dir()
    if not folder.exists() and (source.startswith((".", "/", "~")) or source.count("/") > 1 or beside):
        raise UsageError(f"--model {source}: there is no such folder.")
    _local(source, revision)
    return source


def _local(source: str, revision: str | None) -> bool:
    """Whether to look for files on this machine alone. Raises UsageError where there is no such model."""
    return Path(source).exists() or from_cache_alone(source, revision)


def load_config(source: str, *, revision: str | None = None) -> PretrainedConfig:
    """The configuration of a causal language model, without its weights.

    Raises:
        UsageError: it cannot be read, or is of another kind of model.
    """
    source = find_source(source, revision)
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, local_files_only=_local(source, revision))
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {source}: no model configuration can be read there ({_first_line(error)}).") from error
    if not _is_causal(config):
        kind = getattr(config, "model_type", type(config).__name__)
        raise UsageError(f"--model {source} is a {kind!r} model, which is not a causal language model.")
    return config


def _from_shards(folder: Path, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The whole model, from any number of shards; every process reads it by itself."""
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=VARLEN)
    load({"model": model.state_dict()}, checkpoint_id=folder / SHARDS, no_dist=True)
    return model


def load_tokenizer(source: str, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer without the model. Raises UsageError where it has no end token or no chat template."""
    source = find_source(source, revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, local_files_only=_local(source, revision))
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {source}: no tokenizer can be read there ({_first_line(error)}).") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes such a tokenizer from a folder without one
        raise UsageError(f"--model {source}: its tokenizer knows no words; is tokenizer.json missing there?")
    if tokenizer.eos_token_id is None:
        raise UsageError(f"--model {source}: its tokenizer has no end token; set `eos_token` in tokenizer_config.json.")
    if tokenizer.chat_template is None:
        raise UsageError(f"--model {source}: its tokenizer has no chat template; add a chat_template.jinja to the model.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def add_lora(
    model: PreTrainedModel,
    *,
    rank: int = 16,
    alpha: int = 32,
    dropout: float = 0.0,
    targets: Sequence[str] = ("all-linear",),
    checkpoint: Path | None = None,
) -> PreTrainedModel:
    """Freeze the model and add LoRA adapters, new or from a checkpoint.

    Args:
        rank, alpha, dropout: of new adapters; a checkpoint has its own.
        targets: ends of the names of layers; `all-linear` alone is every linear layer but the head.

    Raises:
        UsageError: peft is not installed (the `lora` extra), or the model has no layer of such a name.
    """
    try:
        from peft import LoraConfig, PeftModel, get_peft_model
    except ImportError:
        raise UsageError("LoRA needs peft: pip install 'kernrl[lora]', or train all weights with --no-lora.") from None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")  # peft reads it
        if checkpoint:
            return PeftModel.from_pretrained(model, str(checkpoint), is_trainable=True)  # pyright: ignore[reportReturnType]
        modules = targets[0] if tuple(targets) == ("all-linear",) else list(targets)
        settings: Any = LoraConfig(
            r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=modules, task_type="CAUSAL_LM"
        )  # pyright: ignore[reportArgumentType]
        try:
            adapted: Any = get_peft_model(model, settings)
        except ValueError as error:
            raise UsageError(f"--lora-targets {','.join(targets)}: {_first_line(error)}.") from None
    return adapted


def check_targets(model: PretrainedConfig, targets: Sequence[str]) -> None:
    """Refuse names that match the end of no layer's name, before the model's weights are loaded (UsageError)."""
    if tuple(targets) == ("all-linear",):
        return
    with torch.device("meta"):
        layers = dict(AutoModelForCausalLM.from_config(model).named_modules())
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            linear = {name.rpartition(".")[2]: None for name, part in layers.items() if isinstance(part, torch.nn.Linear)}
            raise UsageError(f"--lora-targets {target}: no layer of the model has that name; there are {', '.join(linear)}.")


def recompute_activations(model: PreTrainedModel) -> None:
    """Keep each layer's input alone in the forward pass, and compute the layer again in the backward pass."""
    # earlier versions of transformers have it under the other name
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


@contextmanager
def _hushed() -> Iterator[None]:
    """Silence transformers' report of weights that do not fit: `load_policy` says it in one sentence."""
    before = get_verbosity()
    set_verbosity_error()
    try:
        yield
    finally:
        set_verbosity(before)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
