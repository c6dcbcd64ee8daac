"""Time the fused losses against their peers and against the memory's own speed, on one GPU.

    python scripts/bench_loss.py --out docs/benchmarks/loss.json        # measure (about three minutes on an H200)
    python scripts/bench_loss.py --render docs/benchmarks/loss.json     # write loss.md and loss.svg beside it

Every figure is forward + backward in bfloat16 through the public function: the median over rounds in which each
implementation runs once, with the inputs restored, the L2 cache flushed and, for hidden states in, the GPU warmed by the same
products outside the timed span. Peers that are not installed are left out.
"""

import argparse
import functools
import importlib.metadata
import json
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

LOGITS_SHAPES = [(8192, 32768), (8192, 151936), (32768, 32768), (32768, 151936)]
LINEAR_SHAPES = [(8192, 1536), (16384, 1536), (8192, 3584), (16384, 3584)]
VOCAB = 151936
SEQUENCES = 8
ROUNDS = 11
WARM_S = 0.05
MAIN_GRAD = "kernrl, into a float32 main gradient"
TEMPERATURE, BETA, EPSILON = 0.9, 0.04, 0.2
GIB = 2**30


def once_ms(run: Callable[[], object], restore: Callable[[], object] | None = None) -> float:
    """Milliseconds on the GPU of `run`, after `restore` and with a flushed cache."""
    flush = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    if restore:
        restore()
    # Several milliseconds, in which Python gets ahead of the GPU: the span holds GPU time alone.
    for _ in range(6):
        flush.zero_()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def medians_ms(
    runs: dict[str, Callable[[], object]], restore: Callable[[], object] | None = None, rounds: int = ROUNDS
) -> dict[str, float]:
    """Median milliseconds of each, run in turn. What runs out of memory is left out."""
    able = {}
    for name, run in runs.items():
        try:
            once_ms(run, restore)
            able[name] = run
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    times = {name: [] for name in able}
    for _ in range(rounds):
        for name, run in able.items():
            times[name].append(once_ms(run, restore))
    return {name: statistics.median(of) for name, of in times.items()}


def forward_backward(loss: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    loss(*(x.detach().requires_grad_() for x in inputs)).backward()


def peak_bytes(run: Callable[[], object]) -> int:
    """Most memory held during `run`, above what was held before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def grpo_of_logprobs(logp, tokens):
    """GRPO with a k3 KL from log-probs [B, T], as a trainer writes it in PyTorch."""
    ratio = (logp - tokens["old"]).exp()
    advantage = tokens["advantages"][:, None]
    policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantage)
    d = tokens["ref"] - logp
    each = policy + BETA * (d.exp() - d - 1)
    return (each * tokens["mask"]).sum() / tokens["count"]


def eager(logits, tokens):
    logp = (logits.float() / TEMPERATURE).log_softmax(-1).gather(-1, tokens["ids"][..., None])[..., 0]
    return grpo_of_logprobs(logp, tokens)


@functools.cache
def compiled_eager() -> Callable:
    return torch.compile(eager, dynamic=True)


def make_tokens(n: int, vocab: int, density: float) -> dict:
    """Ids, masks and log-probs near those of random logits, for SEQUENCES sequences."""
    shape = (SEQUENCES, n // SEQUENCES)
    logp = torch.randn(shape, device="cuda") - 12.5
    mask = torch.rand(shape, device="cuda") < density
    return {
        "ids": torch.randint(0, vocab, shape, device="cuda"),
        "old": logp,
        "ref": logp + 0.1 * torch.randn(shape, device="cuda"),
        "mask": mask,
        "count": float(mask.sum()),
        "advantages": torch.randn(SEQUENCES, device="cuda"),
    }


def our_options(tokens: dict) -> dict:
    return {
        "advantages": tokens["advantages"], "old_logprobs": tokens["old"], "ref_logprobs": tokens["ref"], "beta": BETA,
        "mask": tokens["mask"], "num_tokens": tokens["count"], "temperature": TEMPERATURE,
    }  # fmt: skip


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


def bench_logits(n: int, vocab: int) -> Iterator[dict]:
    tokens = make_tokens(n, vocab, density=1.0)
    # Liger wants one position more in each sequence, so each implementation gets its logits in its own shape.
    master = torch.randn(n + SEQUENCES, vocab, device="cuda", dtype=torch.bfloat16) * 2
    buffer = torch.empty_like(master)
    runs: dict[str, Callable[[], object]] = {"copy": lambda: buffer[:n].copy_(master[:n])}
    for name, loss in logits_peers(tokens):
        rows = n + SEQUENCES if name.startswith("Liger") else n
        runs[name] = functools.partial(forward_backward, loss, buffer[:rows].view(SEQUENCES, rows // SEQUENCES, vocab))
    times = medians_ms(runs, lambda: buffer.copy_(master))
    for name, run in runs.items():
        ms = times.get(name)
        peak = None if ms is None else peak_bytes(run) / GIB
        yield {"name": name, "ms": ms, "peak_gib": peak, "x_floor": None if ms is None else ms / times["copy"]}


def linear_peers(tokens: dict, weight: torch.Tensor, slow: bool) -> Iterator[tuple[str, Callable]]:
    from kernrl.kernels import linear_grpo_loss

    options = our_options(tokens)
    yield "kernrl", lambda h, w: linear_grpo_loss(h, w, tokens["ids"], **options)[0]
    main = torch.zeros(weight.shape, dtype=torch.float32, device="cuda")
    yield MAIN_GRAD, lambda h, w: linear_grpo_loss(h, w, tokens["ids"], weight_grad=main, **options)[0]
    yield "eager", lambda h, w: eager(h @ w.t(), tokens)
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


def three_gemms(hidden: torch.Tensor, weight: torch.Tensor) -> Callable[[], object]:
    """A linear layer's three products by themselves, logits held whole and outputs allocated beforehand."""
    logits = torch.empty(hidden.shape[0], VOCAB, device="cuda", dtype=torch.bfloat16)
    d_hidden, d_weight = torch.empty_like(hidden), torch.empty_like(weight)

    def run():
        torch.mm(hidden, weight.t(), out=logits)
        torch.mm(logits, weight, out=d_hidden)
        torch.mm(logits.t(), hidden, out=d_weight)

    return run


def warm(gemms: Callable[[], object]) -> None:
    """Hold the GPU at its power limit for a while, as the layers below a head do. It slows down there, and what runs after
    something light would gain by what went before it."""
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_S:
        gemms()
        torch.cuda.synchronize()


def copy_gb_per_s() -> float:
    source, target = torch.empty(2, 1 << 31, dtype=torch.uint8, device="cuda")
    return 2 * source.numel() / medians_ms({"copy": lambda: target.copy_(source)})["copy"] / 1e6


def bench_linear(n: int, width: int) -> Iterator[dict]:
    hidden = torch.randn(SEQUENCES, n // SEQUENCES, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(VOCAB, width, device="cuda", dtype=torch.bfloat16) * width**-0.5
    gemms = three_gemms(hidden.view(n, width), weight)
    runs: dict[str, Callable[[], object]] = {"three GEMMs": gemms}
    densities = {"three GEMMs": 1.0}
    for density in (1.0, 0.5, 0.25):
        tokens = make_tokens(n, VOCAB, density)
        for name, loss in linear_peers(tokens, weight, slow=n == 8192):
            if density < 1 and name != MAIN_GRAD:
                continue
            label = name if density == 1 else f"{name}, density {density}"
            runs[label], densities[label] = functools.partial(forward_backward, loss, hidden, weight), density
    times = medians_ms(runs, lambda: warm(gemms), rounds=7)
    for name, run in runs.items():
        # A main gradient is the caller's, and autograd makes none for the weight beside it.
        gradients = hidden.numel() * 2 + (0 if name.startswith(MAIN_GRAD) else weight.numel() * 2)
        extra = 0.0 if name == "three GEMMs" else (peak_bytes(run) - gradients) / GIB
        ms = times[name]
        yield {"name": name, "ms": ms, "peak_gib": extra, "x_floor": ms / times["three GEMMs"], "density": densities[name]}


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
    result = {
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "triton", "liger-kernel", "trl")},
        "commit": commit,
        "copy_gb_per_s": copy_gb_per_s(),
        "logits": [],
        "linear": [],
    }
    for kind, shapes, bench in (("logits", LOGITS_SHAPES, bench_logits), ("linear", LINEAR_SHAPES, bench_linear)):
        for shape in shapes:
            for row in bench(*shape):
                row = {"shape": list(shape), **row}
                result[kind].append(row)
                print(kind, json.dumps(row), flush=True)
            torch.cuda.empty_cache()
            out.write_text(json.dumps(result, indent=1) + "\n")


def render(path: Path) -> None:
    data = json.loads(path.read_text())
    path.with_suffix(".md").write_text(markdown(data))
    path.with_suffix(".svg").write_text(svg(data))


def markdown(data: dict) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in data["versions"].items() if value)
    lines = [
        f"Measured on one {data['gpu']}: {versions}, CUDA {data['cuda']}, commit {data['commit']}. "
        f"Copy bandwidth {data['copy_gb_per_s']:.0f} GB/s (read + write). Forward + backward, bfloat16, "
        "GRPO with a k3 KL, every token active unless a density is given.",
        "",
    ]
    for kind, floor, memory in (
        ("logits", "one read + one write (copy)", "peak above inputs"),
        ("linear", "three GEMMs", "peak above inputs and gradients"),
    ):
        header = "N × V" if kind == "logits" else f"N, H (V = {VOCAB})"
        lines += [f"| {header} | implementation | ms | × {floor} | {memory}, GiB |", "|---|---|---:|---:|---:|"]
        for row in data[kind]:
            shape = " × ".join(map(str, row["shape"])) if kind == "logits" else ", ".join(map(str, row["shape"]))
            name = row["name"]
            if row["ms"] is None:
                lines.append(f"| {shape} | {name} | out of memory | | |")
            else:
                lines.append(f"| {shape} | {name} | {row['ms']:.3f} | {row['x_floor']:.2f} | {row['peak_gib']:.2f} |")
        lines.append("")
    return "\n".join(lines)


def svg(data: dict) -> str:
    """Two panels of bars: time over the floor, and memory, for logits in and hidden states in."""
    panels = []
    for kind, shape, title in (
        ("logits", [8192, 151936], "Logits in, 8192 × 151936: time over one read + write"),
        ("linear", [8192, 1536], "Hidden states in, 8192 × 1536 × 151936: time over three GEMMs"),
    ):
        rows = [row for row in data[kind] if row["shape"] == shape and row["ms"] and row.get("density", 1) == 1]
        panels.append((title, rows))
    width, bar, gap = 860, 18, 7
    out, y = [], 24
    for title, rows in panels:
        out.append(f'<text x="12" y="{y}" font-weight="bold">{title}</text>')
        y += 14
        most = max(row["x_floor"] for row in rows)
        for row in rows:
            length = max(2, 420 * row["x_floor"] / most)
            fill = "#2a6f4e" if row["name"].startswith("kernrl") else "#9aa5b1"
            label = f"{row['x_floor']:.2f}×, {row['ms']:.2f} ms, {row['peak_gib']:.2f} GiB"
            out.append(f'<text x="300" y="{y + 13}" text-anchor="end">{row["name"]}</text>')
            out.append(f'<rect x="308" y="{y}" width="{length:.0f}" height="{bar}" fill="{fill}"/>')
            out.append(f'<text x="{316 + length:.0f}" y="{y + 13}">{label}</text>')
            y += bar + gap
        y += 26
    body = "\n".join(out)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 80}" height="{y}" font-family="sans-serif" font-size="12">'
    return f'{head}\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'


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
