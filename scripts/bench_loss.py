"""Time the fused losses against their peers and against the memory's own speed, on one GPU; where there are two, the
vocabulary-parallel losses too.

    python scripts/bench_loss.py --out docs/benchmarks/loss.json        # measure (under ten minutes on an H200)
    python scripts/bench_loss.py --render docs/benchmarks/loss.json     # write loss.md and loss.svg beside it

Every figure is forward + backward through the public function: the median over rounds in which each implementation runs once,
with the inputs restored, the L2 cache flushed and, for hidden states in, the GPU warmed by the same products outside the timed
span. Peers that are not installed are left out.
"""

import argparse
import datetime
import functools
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from bench_other_losses import bench_cross_entropy, bench_host, bench_logprobs, bench_variants
from bench_token_ops import autograd_us, bench_ratio, bench_tokens
from gpu_clock import GpuClock
from loss_batches import (
    BETA,
    EPSILON,
    GIB,
    SEQUENCES,
    TEMPERATURE,
    VOCAB,
    compiled_eager,
    eager,
    grpo_of_logprobs,
    make_tokens,
    our_options,
    three_gemms,
    warm,
)
from loss_table import markdown, svg
from loss_timing import Spans, copy_gb_per_s, forward_backward, medians_ms, peak_bytes

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# (N, V, dtype, density), and whether every peer is timed or only Liger in place.
LOGITS: list[tuple] = [
    *((8192, vocab, BF16, 1.0, vocab in (32768, 151936)) for vocab in (
        32000, 32768, 50257, 65536, 100000, 128256, 151936, 151937, 201088, 248320, 256000, 262144)),
    *((8192, vocab, FP16, 1.0, False) for vocab in (50257, 151936, 262144)),
    *((4096, vocab, FP32, 1.0, False) for vocab in (32000, 50257, 128256, 151936, 262144)),
    *((n, vocab, BF16, 1.0, False) for n in (512, 2048) for vocab in (50257, 151936, 262144)),
    *((8192, vocab, BF16, 0.25, False) for vocab in (50257, 151936, 262144)),
]  # fmt: skip
LINEAR_SHAPES: list[tuple] = [(n, width) for width in (1536, 2048, 3584, 4096) for n in (8192, 16384)]
TOKEN_SHAPES: list[tuple] = [(128, 512), (512, 2048), (1024, 8192)]
VARIANT_SHAPES: list[tuple] = [(8192, VOCAB)]
LOGPROB_SHAPES: list[tuple] = [(8192, VOCAB, 1536)]
# With whether torch.compile is timed too: it takes half a minute to compile.
CROSS_ENTROPY_SHAPES: list[tuple] = [(8192, 1536, True), (8192, 4096, False)]
HOST_SHAPES: list[tuple] = [(512, VOCAB, 1536)]
RATIO_SHAPES: list[tuple] = [(4096, 32768), (4096, 50257), (4096, 151936), (4096, 262144)]
MAIN_GRAD = "kernrl, into a float32 main gradient"


def logits_peers(tokens: dict) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """(name, loss of logits [B, T, V]) of every implementation that is installed."""
    from kernrl.kernels import grpo_loss

    options = our_options(tokens)
    yield "kernrl, in place", lambda x: grpo_loss(x, tokens["ids"], **options)[0]
    yield "kernrl", lambda x: grpo_loss(x, tokens["ids"], inplace=False, **options)[0]
    try:
        from liger_kernel.transformers.grpo_loss import triton_grpo_loss  # pyright: ignore[reportMissingImports]

        def liger(inplace):
            mask = tokens["mask"].int()
            return lambda x: triton_grpo_loss(
                x, tokens["old"], tokens["ref"], tokens["ids"], tokens["advantages"], mask, temperature=TEMPERATURE,
                beta=BETA, eps_low=EPSILON, eps_high=EPSILON, inplace=inplace, loss_type="bnpo", reduce=True,
            )[0]  # fmt: skip

        yield "Liger, in place", liger(True)
        yield "Liger", liger(False)
    except ImportError:
        pass
    try:
        from trl.kernels import selective_log_softmax_and_entropy  # pyright: ignore[reportMissingImports]

        yield (
            "TRL log-prob kernel + eager loss",
            lambda x: grpo_of_logprobs(selective_log_softmax_and_entropy(x, tokens["ids"], TEMPERATURE)[0], tokens),
        )
    except ImportError:
        pass
    yield "torch.compile", lambda x: compiled_eager()(x, tokens)
    yield "eager", lambda x: eager(x, tokens)


def bench_logits(n: int, vocab: int, dtype: torch.dtype, density: float, every_peer: bool) -> Iterator[dict]:
    tokens = make_tokens(n, vocab, density)
    # Liger wants one position more in each sequence, so each implementation gets its logits in its own shape.
    master = torch.randn(n + SEQUENCES, vocab, device="cuda", dtype=dtype) * 2
    buffer = torch.empty_like(master)
    active = int(tokens["count"])

    def floor():
        buffer[:active].copy_(master[:active])
        if active < n:
            buffer[active:n].zero_()

    runs: dict[str, Callable[[], object]] = {"copy": floor}
    for name, loss in logits_peers(tokens):
        if not every_peer and name not in ("kernrl, in place", "Liger, in place"):
            continue
        rows = n + SEQUENCES if name.startswith("Liger") else n
        runs[name] = functools.partial(forward_backward, loss, buffer[:rows].view(SEQUENCES, rows // SEQUENCES, vocab))
    times = medians_ms(runs, lambda: buffer.copy_(master), rounds=7)
    for name, run in runs.items():
        ms = times.get(name)
        peak = None if ms is None else peak_bytes(run) / GIB
        yield {
            "dtype": str(dtype)[6:], "density": density, "name": name, "ms": ms, "peak_gib": peak,
            "x_floor": None if ms is None else ms / times["copy"],
            "floor": "the active rows read and all written once (a copy, and zeros for the others)",
        }  # fmt: skip


def linear_peers(tokens: dict, weight: torch.Tensor, slow: bool, compile_too: bool) -> Iterator[tuple[str, Callable]]:
    from kernrl.kernels import linear_grpo_loss

    options = our_options(tokens)
    yield "kernrl", lambda h, w: linear_grpo_loss(h, w, tokens["ids"], **options)[0]
    main = torch.zeros(weight.shape, dtype=torch.float32, device="cuda")
    yield MAIN_GRAD, lambda h, w: linear_grpo_loss(h, w, tokens["ids"], weight_grad=main, **options)[0]
    yield "eager", lambda h, w: eager(h @ w.t(), tokens)
    if compile_too:
        yield "torch.compile", torch.compile(lambda h, w: eager(h @ w.t(), tokens))
    try:
        from trl.kernels import ChunkedLogProbFunction  # pyright: ignore[reportMissingImports]

        def trl(h, w):
            flat = h.reshape(-1, h.shape[-1])
            logp = ChunkedLogProbFunction.apply(flat, w, None, tokens["ids"].reshape(-1), TEMPERATURE, 8192, None, 1.0, ())[0]
            return grpo_of_logprobs(logp.view(tokens["ids"].shape), tokens)

        yield "TRL chunked log-prob + eager loss", trl
    except ImportError:
        pass
    if not slow:
        return
    try:
        from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss  # pyright: ignore[reportMissingImports]
    except ImportError:
        return
    liger = LigerFusedLinearGRPOLoss(beta=BETA, temperature=TEMPERATURE, loss_type="bnpo", use_ref_model=True)
    mask = tokens["mask"].float()
    for tf32 in (True, False):

        def run(h, w, tf32=tf32):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            try:
                loss = liger(
                    h, w, tokens["ids"], mask, tokens["advantages"], ref_per_token_logps=tokens["ref"],
                    old_per_token_logps=tokens["old"],
                )[0]  # fmt: skip
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False
            return loss

        yield f"Liger fused linear, TF32 {'on' if tf32 else 'off'}", run


def bench_linear(n: int, width: int) -> Iterator[dict]:
    hidden = torch.randn(SEQUENCES, n // SEQUENCES, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(VOCAB, width, device="cuda", dtype=torch.bfloat16) * width**-0.5
    gemms = three_gemms(hidden.view(n, width), weight)
    runs: dict[str, Callable[[], object]] = {"three GEMMs": gemms}
    densities = {"three GEMMs": 1.0}
    for density in (1.0, 0.5, 0.25):
        tokens = make_tokens(n, VOCAB, density)
        for name, loss in linear_peers(tokens, weight, n == 8192 and width in (1536, 3584), (n, width) == (8192, 1536)):
            if density < 1 and (name != MAIN_GRAD or n > 8192 or width not in (1536, 3584)):
                continue
            label = name if density == 1 else f"{name}, density {density}"
            runs[label], densities[label] = functools.partial(forward_backward, loss, hidden, weight), density
    spans: Spans = {}
    with GpuClock(f"GPU-{torch.cuda.get_device_properties(0).uuid}") as clock:
        times = medians_ms(runs, lambda: warm(gemms), rounds=7, spans=spans)
    for name, run in runs.items():
        # A main gradient is the caller's, and autograd makes none for the weight beside it.
        gradients = hidden.numel() * 2 + (0 if name.startswith(MAIN_GRAD) else weight.numel() * 2)
        extra = 0.0 if name == "three GEMMs" else (peak_bytes(run) - gradients) / GIB if name in times else None
        ms = times.get(name)
        yield {
            "name": name,
            "ms": ms,
            "peak_gib": extra,
            "x_floor": None if ms is None else ms / times["three GEMMs"],
            "density": densities[name],
            "clock_mhz": clock.median_mhz(spans.get(name, [])),
            "floor": "the three products of a linear layer by themselves, just before",
        }


PARTS: tuple[tuple[str, list[tuple], Callable[..., Iterator[dict]]], ...] = (
    ("tokens", TOKEN_SHAPES, bench_tokens), ("logits", LOGITS, bench_logits), ("variants", VARIANT_SHAPES, bench_variants),
    ("logprobs", LOGPROB_SHAPES, bench_logprobs), ("ratio", RATIO_SHAPES, bench_ratio), ("linear", LINEAR_SHAPES, bench_linear),
    ("cross_entropy", CROSS_ENTROPY_SHAPES, bench_cross_entropy), ("host", HOST_SHAPES, bench_host),
)  # fmt: skip


def measure(out: Path) -> None:
    """Write the figures to `out`, anew after each shape."""

    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    commit = None
    if shutil.which("git"):
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip() or None
    started = time.monotonic()
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": 0.0,
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "triton", "liger-kernel", "trl")},
        "commit": commit,
        "copy_gb_per_s": copy_gb_per_s(),
        "autograd_us": autograd_us(),
        **{kind: [] for kind, *_ in PARTS},
    }

    def save() -> None:
        result["seconds"] = round(time.monotonic() - started, 1)
        out.write_text(json.dumps(result, indent=1) + "\n")

    for kind, shapes, bench in PARTS:
        for shape in shapes:
            for row in bench(*shape):
                row = {"shape": list(shape[:2]), **row}
                result[kind].append(row)
                print(kind, json.dumps(row), flush=True)
            torch.cuda.empty_cache()
            save()
    if torch.cuda.device_count() > 1:
        part = out.with_suffix(".parallel.json")
        script = Path(__file__).with_name("bench_parallel.py")
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), "--out", str(part)]
        subprocess.run(run, check=True)
        result["parallel"] = json.loads(part.read_text())
        part.unlink()
        save()


def render(path: Path) -> None:
    data = json.loads(path.read_text())
    path.with_suffix(".md").write_text(markdown(data))
    path.with_suffix(".svg").write_text(svg(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="measure, and write the figures here as JSON")
    parser.add_argument("--render", type=Path, help="write the Markdown table and the plot beside this JSON")
    args = parser.parse_args()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        measure(args.out)
    if args.render:
        render(args.render)


if __name__ == "__main__":
    main()
