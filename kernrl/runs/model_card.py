"""The README.md of a trained model: how it was made, and how good it is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernrl.config import SftConfig
from kernrl.policy.shipped_nano import NANO
from kernrl.settings import Config, flag_name

HEADER = """\
---
{origin}library_name: transformers
pipeline_tag: text-generation
tags: [triton, gpu-kernels, code]
---
"""

USE = """\
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
```

`kernrl eval`, `best-of-n`, `reinforce` and `reward-weighted` take the folder as `--model`. What the model writes is a
candidate: run it only through `kernrl verify`, or in a sandbox of your own.
"""


def model_card(config: SftConfig, results: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """The card, in Markdown.

    Args:
        results: of the stage: `architecture`, losses, speeds and, under `heldout`, what `kernrl eval` found.
        environment: `versions`, `gpu` and `commit` of the run.
    """
    ours = config.model == NANO
    # another model's licence is not ours to state; the hub shows that of the base model
    origin = "license: apache-2.0\n" if ours else "" if Path(config.model).exists() else f"base_model: {config.model}\n"
    header = HEADER.format(origin=origin)
    name = NANO if ours else f"{config.model}, fine-tuned"
    what = (
        f"A decoder of the {results['architecture']} architecture that writes fused Triton kernels for PyTorch modules, "
        f"trained by `kernrl sft`: {results['parameters']:,} parameters, weights in bf16."
    )
    knows = "the Graphs of kernrl's sampler" if config.form == "graph" else "the programs of kernrl's op grammar"
    limits = f" It knows one form of prompt and {knows}, and nothing else."
    intro = [f"{header}# {name}", what + limits * ours]
    return "\n\n".join([*intro, _heldout(results), _made(config, results, environment), USE])


def command(config: Config) -> str:
    """The command line of this config, with a standard output folder."""
    words = ["kernrl", "sft"]
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if name in ("output", "resume") or value == field.default or isinstance(value, Config):
            continue
        if isinstance(value, tuple):
            words += [word for item in value for word in (flag_name(name), str(item))]
        elif isinstance(value, bool):
            words.append(flag_name(name) if value else flag_name(f"no_{name}"))
        else:
            words += [flag_name(name), str(value)]
    return shlex.join([*words, "--output", "checkpoints/sft"])


def _made(config: SftConfig, results: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    versions = environment["versions"]
    rows = {
        "Data": f"{results['pairs']:,} pairs of prompt and solution ({config.data})",
        "Steps": f"{results['steps']:,} ({results['tokens']:,} tokens)",
        "Training time": f"{results['train_s']:.0f} s on {environment['gpu'] or 'the CPU'}, after {results['data_s']:.0f} s "
        "for the data",
        "Validation loss": f"{results['validation_loss']:.4f} nats a token, on the validation split"
        + (", whose compositions of ops training never shows" if config.data == "generated" else ""),
        "Versions": ", ".join(f"{name} {versions[name]}" for name in ("kernrl", "torch", "triton", "transformers")),
        "Commit": environment["commit"] or "not known",
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return f"## How it was made\n\n```bash\n{command(config)}\n```\n\n| | |\n|---|---|\n{table}"


def _heldout(results: Mapping[str, Any]) -> str:
    heldout = results.get("heldout")
    if not heldout:
        return "## How good it is\n\nNot measured: run `kernrl eval --model` on this folder."
    titles = {"fast_1": "fast_1, wins beyond the noise", "fast_1_plain": "fast_1, every win counted"}
    rows = "\n".join(
        f"| {titles.get(name, name)} | {_estimate(heldout[name])} |"
        for name in ("compiled", "pass@1", *_last_pass(heldout), "fast_1", "fast_1_plain", "geomean_x")
        if _known(heldout, name)
    )
    families = "\n".join(
        f"| {key} | {part['tasks']} | {_estimate(part['correct'])} |"
        for by in ("by_family", "by_depth")
        for key, part in heldout[by].items()
    )
    timing = heldout["timing"] or {"kind": "no", "device": "device"}
    return (
        f"## How good it is\n\n{heldout['tasks']} held-out tasks (compositions of ops that training never shows), "
        f"{heldout['samples']} samples at temperature {results['heldout_temperature']}, judged by `kernrl eval`; "
        f"{timing['kind']} times on {timing['device']}; intervals are of 95 %, over tasks.\n\n"
        f"| | |\n|---|---|\n{rows}\n\n| family, or ops deep | tasks | correct |\n|---|---|---|\n{families}"
    )


def _last_pass(heldout: Mapping[str, Any]) -> list[str]:
    return sorted((k for k in heldout if k.startswith("pass@") and k != "pass@1"), key=lambda k: int(k[5:]))[-1:]


def _known(heldout: Mapping[str, Any], name: str) -> bool:
    return heldout.get(name, {}).get("value") is not None


def _estimate(figure: Mapping[str, Any]) -> str:
    value, low, high = figure["value"], figure.get("low"), figure.get("high")
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f} to {high:.3f})"
