"""Do models larger than nano learn the task form, and gain under RL? The same stages at 0.5B and 1.5B, from random weights.

    python scripts/prove_hub_model.py --sizes 0.5B --work /tmp/hub --out hub.json                       # one H200, ten minutes
    python scripts/prove_hub_model.py --sizes 0.5B --work /tmp/hub --out hub.json --reinforce-s 900     # some 150 steps of RL
    python scripts/prove_hub_model.py --sizes 1.5B --work /tmp/hub --out hub.json --stages sft --sft-s 530
    python scripts/prove_hub_model.py --sizes 1.5B --work /tmp/hub --out hub.json --reinforce-s 240     # the other stages
    python scripts/prove_hub_model.py --render --out hub.json                                           # hub.md, from hub.json
    python scripts/prove_hub_model.py --tiny --work /tmp/tiny --out tiny.json                           # a CPU, one minute

Runs `kernrl sft`, `eval`, `reinforce` and `eval` for each size and prints the commands. The record is written after each stage,
and every ten seconds during one, so a killed run keeps what it has. The same command goes on where `--work` was left: an `sft`
begins anew, the others resume. Rows of `--out` whose runs are not in `--work` are kept. A model that is in WORK/SIZE/start
already is taken in place of random weights.

The architectures are those of Qwen2.5-Coder-0.5B and -1.5B. Their tokenizer cannot be had without a network, so they have
nano's: 2,880 tokens in place of 151,936. This leaves 0.36 and 1.31 of 0.49 and 1.54 G parameters (what is missing is the
embedding, tied to the head), and a tokenizer with nano's tokens is asked in nano's form `graph`, not in chat. So the run shows
how larger decoders learn and improve by these commands. It shows nothing of what a pretrained coder knows, or of chat prompts.

Weights: normal, 0.02, and 0.02 / sqrt(2 layers) for what is added to the residual stream, as in GPT-2. The first loss should
be ln 2880 + width x 0.02^2 / 2 = 8.1 (0.5B) and 8.3 (1.5B) nats a token; nano's was 8.1.

Learning rates: Muon's step has a spectral norm of 0.2 sqrt(longer side) times the rate. With the same norm as nano at 3e-3, and
half of it for four times the layers, 0.5B takes 8e-4 and 1.5B 5e-4. They are a fifth to a third higher here, as the run is
short. All weights are trained, in SFT because they are random, and in RL because nano's rule was measured with all weights.
A step has 16,384 tokens: under a time limit the rate rises for 200 steps, of which larger steps would leave too few. 1.5B takes
them in two rows, which need 45 GiB by calculation, and some 15 more while Muon turns its matrices: H100s hold that too.
Nothing is compiled: nano's first step compiled for 36 s, and these have four times as many layers.

What the time buys, predicted from 37,318 tokens/s for all weights of 1.5B on an H200 (docs/benchmarks/sft.json; AdamW), less a
fifth for Muon, and with 30 s for loading and the first pairs; a pair has 851 tokens (nano's first training):

    size    tokens/s    --sft-s    tokens    pairs     steps    nano's loss after as many tokens
    0.5B    85,000      240        18 M      21,000    1,100    0.2
    1.5B    30,000      530        15 M      18,000    900      0.35

0.5B has 3.7 times fewer weights in its layers, of which narrow layers lose a quarter. nano's losses, from its
`trainer_state.json`, with steps of 65,536 tokens: 1.45 after 7 M tokens, 0.44 (13 M), 0.16 (20 M), 0.10 (26 M), 0.060
(60 M), 0.035 (130 M), 0.013 (984 M). A larger model should need fewer tokens for the same loss, and has four times as many
steps: expect 0.05 to 0.2. By then a model writes the form (most kernels compile), and is right on short compositions alone:
see `by_depth` in the record. RL starts there, with much to gain in correctness; nano started from 98 % and could gain in speed
alone. A step of 64 replies was predicted to take 3 to 4 s, with kernels that compile for 6 s at most. It takes 4 s where no
candidate comes to that limit, and 6 on average: 144 steps in 880 s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hub_model_table import BASELINES, STAGES, markdown, rows_of
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from kernrl.files import replace_file
from kernrl.policy.shipped_nano import trained_nano
from kernrl.runs.run_directory import environment

ROOT = Path(__file__).parents[1]
POLL_S = 10.0
"""Seconds between records during a stage."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """An architecture and how it is taught."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    rate: float
    """Muon's, in SFT."""
    row_tokens: int = 16_384
    rows_per_step: int = 1

    def config(self, tokenizer: Qwen2Tokenizer) -> Qwen2Config:
        """As published, but for the vocabulary, which is rounded up to a multiple of 64."""
        end_id: Any = tokenizer.eos_token_id
        pad_id: Any = tokenizer.pad_token_id
        return Qwen2Config(
            vocab_size=-(-len(tokenizer) // 64) * 64,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=2,
            intermediate_size=self.feed_forward,
            max_position_embeddings=32_768,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end_id,
            pad_token_id=pad_id,
        )


SIZES = {
    "0.5B": Size(896, 24, 14, 4864, rate=1e-3),
    "1.5B": Size(1536, 28, 12, 8960, rate=6e-4, row_tokens=8192, rows_per_step=2),
    "nano": Size(512, 6, 8, 1280, rate=4e-3, row_tokens=65_536),
    "tiny": Size(64, 2, 4, 128, rate=4e-3, row_tokens=2048),
}
"""nano is there to compare with: its architecture, from random weights, in the same time."""

EXAM: Row = {"tasks": "heldout", "temperature": 0.8, "max-tokens": 1024, "precision": "tf32"}
PRACTICE: Row = {"tasks-per-step": 8, "samples": 8, "max-tokens": 1024, "sampling-batch": 128, "limit": 1000, "steps": 10_000}
PRACTICE |= {"verifier.precision": "tf32", "verifier.compile-timeout-s": 6}
NANOS_RULE: Row = {"reward": "log-speed", "speed-cap": 10, "advantage": "rank", "learning-rate": 2e-3, "adam-epsilon": 1e-2}
NANOS_RULE |= {"max-grad-norm": 0.2, "updates-per-epoch": 3, "warmup-steps": 1, "schedule": "linear", "beta": 0.03}
"""The update that nano's gains were measured with, in half as many parts for smaller steps; the rate falls, and there is a KL
penalty. A step is as long as its gradient, whatever the number of weights."""

NEVER = 1_000_000
"""Steps between checkpoints: one of 1.5B has 16 GB, with the optimizer."""

TINY: dict[str, Row] = {
    "sft": {"count": 20, "styles": 1, "workers": 1, "steps": 3},
    "eval": {"limit": 2, "samples": 2, "max-tokens": 16},
    "reinforce": {"limit": 4, "tasks-per-step": 2, "samples": 2, "max-tokens": 16, "steps": 2},
}


# --- the stages ----------------------------------------------------------------------------------------------------------


def make(size: Size, folder: Path, seed: int) -> None:
    """Write a model with random weights in bf16, and nano's tokenizer."""
    tokenizer = Qwen2Tokenizer.from_pretrained(trained_nano())
    torch.manual_seed(seed)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(size.config(tokenizer))
    shrink = (2 * size.layers) ** -0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(shrink)
    part = folder.with_name(folder.name + ".part")
    model.to(torch.bfloat16).save_pretrained(part)  # pyright: ignore[reportArgumentType]
    tokenizer.save_pretrained(part)
    part.rename(folder)


def commands(name: str, folder: Path, args: argparse.Namespace) -> dict[str, list[str]]:
    """Stage → the words of its command, without `kernrl`."""
    size = SIZES[name]
    sft = {
        "form": "graph",
        "optimizer": "muon",
        "learning-rate": size.rate,
        "schedule": "linear",
        "rows-per-step": size.rows_per_step,
    }
    sft |= {"row-tokens": size.row_tokens, "max-length": 2048, "time-limit-s": args.sft_s, "validate-every": 100}
    exam = EXAM | {"limit": args.tasks, "samples": args.samples, "baseline": ",".join(BASELINES)}
    practice = PRACTICE | NANOS_RULE | {"row-tokens": min(8192, size.row_tokens), "time-limit-s": args.reinforce_s}
    start, taught, improved = folder / "start", folder / "sft" / "model", folder / "reinforce" / "model"
    whole = ["--no-lora", "--no-gradient-checkpointing"]

    def words(stage: str, command: str, model: Path, flags: Row, *more: str) -> list[str]:
        given = flags | (TINY[command] if name == "tiny" else {}) | {"seed": args.seed}
        resume = ["--resume"] if (folder / stage / "config.json").exists() else []
        pairs = [word for flag, value in given.items() for word in (f"--{flag}", str(value))]
        return [command, "--model", str(model), "--output", str(folder / stage), *pairs, *more, *resume]

    return {
        "sft": words("sft", "sft", start, sft | {"save-every": NEVER}, "--no-compile"),
        "before": words("before", "eval", taught, exam),
        "reinforce": words("reinforce", "reinforce", taught, practice | {"save-every": NEVER}, *whole),
        "after": words("after", "eval", improved, exam),
    }


def run(command: Sequence[str], meanwhile: Callable[[], None], limit_s: float | None = None) -> int:
    """Exit code of a command. After `limit_s` seconds it is interrupted, on which kernrl keeps what it has: by SIGTERM, since
    what a shell has started in the background ignores Ctrl-C's signal."""
    until = time.monotonic() + limit_s if limit_s else None
    process = subprocess.Popen(command, cwd=ROOT)
    while True:
        try:
            return process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            meanwhile()
        if until and time.monotonic() > until:
            process.terminate()
            until = None


def prove(args: argparse.Namespace) -> None:
    """Take the stages that are not done yet, and write the record after each."""
    for name in args.sizes:
        folder = args.work.resolve() / name
        if not (folder / "start").exists():
            folder.mkdir(parents=True, exist_ok=True)
            make(SIZES[name], folder / "start", args.seed)
            torch.cuda.empty_cache()  # the commands need the GPU
        for stage in args.stages:
            if (folder / stage / "results.json").exists():
                continue
            words = commands(name, folder, args)[stage]
            if not (model := Path(words[2])).exists():
                print(f"{name}: {stage} was left out, as there is no {model}", flush=True)
                continue
            print("$ kernrl", *words, flush=True)
            limit_s = args.eval_s if words[0] == "eval" else None
            code = run([sys.executable, "-m", "kernrl", *words], lambda: write_record(args), limit_s)
            print(f"{name}: {stage} ended with exit code {code}", flush=True)
            write_record(args)


def write_record(args: argparse.Namespace) -> None:
    """The rows of all runs in `--work`, with those that `--out` has of others."""
    old = json.loads(args.out.read_text()) if args.out.exists() else {}
    rows = {(row["size"], row["stage"]): row for row in old.get("rows", [])}
    for name in SIZES:
        rows |= {(name, row["stage"]): row for row in rows_of(name, args.work / name)}
    order = [rows[key] for key in sorted(rows, key=lambda key: (list(SIZES).index(key[0]), STAGES.index(key[1])))]
    about = environment()
    about["date"] = about.pop("started")[:10]
    about |= {"commit": args.commit} if args.commit else {}
    replace_file(args.out, json.dumps({**about, "rows": order}, indent=1) + "\n")


def render(args: argparse.Namespace) -> None:
    """Print the table of the record, and write it beside the record."""
    text = markdown(json.loads(args.out.read_text()))
    replace_file(args.out.with_suffix(".md"), text)
    print(text)


def main() -> None:
    """Take the stages, or only write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["0.5B", "1.5B"])
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "prove_hub_model", help="folder of models and runs")
    parser.add_argument("--out", type=Path, required=True, help="the JSON record; the table goes beside it")
    parser.add_argument(
        "--sft-s", type=float, default=240.0, help="seconds of `kernrl sft`, the making of its first pairs included"
    )
    parser.add_argument("--reinforce-s", type=float, default=120.0, help="seconds of the steps of `kernrl reinforce`")
    parser.add_argument("--eval-s", type=float, default=120.0, help="seconds after which an evaluation is interrupted")
    parser.add_argument("--tasks", type=int, default=48, help="held-out tasks of an evaluation")
    parser.add_argument("--samples", type=int, default=4, help="candidates a task in an evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", default="", help="of the code, where it is not a checkout")
    parser.add_argument("--tiny", action="store_true", help="a model of a few weights and a few steps, to see that all runs")
    parser.add_argument("--render", action="store_true", help="only write the table of the record")
    args = parser.parse_args()
    if args.tiny:
        args.sizes = ["tiny"]
    if not args.render:
        prove(args)
    render(args)


if __name__ == "__main__":
    main()
